"""A diagnosis in words: the verdict first, then the numbers behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offsupport.theory.conditions import Verdict
    from offsupport.theory.diagnose import Diagnosis

_MARKS = {"holds": "+", "fails": "x", "unknown": "?"}


def headline(diagnosis: Diagnosis) -> str:
    """Return the verdict as one sentence."""
    verdicts = (diagnosis.theorem1, diagnosis.theorem2)
    holding = [v.theorem for v in verdicts if v.status == "holds"]
    if holding:
        return f"Recoverable: {holding[0]} applies, every assumption is certified."
    reasons = [f"{v.theorem} fails at {', '.join(c.name for c in v.failed())}" for v in verdicts if v.status == "fails"]
    if len(reasons) == len(verdicts):
        start = "No guarantee" if diagnosis.known else "No guarantee, by the fitted model"
        return f"{start}: {'; '.join(reasons)}."
    ending = f" ({reasons[0]})" if reasons else ""
    return f"Undecided: nothing refutes {_open(diagnosis)}, and not every assumption can be certified{ending}."


def describe(diagnosis: Diagnosis) -> str:
    """Return the whole diagnosis as lines of text."""
    lines = [headline(diagnosis), "", f"Target of: {diagnosis.subject}"]
    lines += [f"  off the support by {diagnosis.distance:.4g}; the support is {diagnosis.convention}"]
    lines += [f"  distance to the {name}: {value:.4g}" for name, value in diagnosis.nearby]
    if diagnosis.jacobian is None:
        lines += ["  no decoder: Jacobians, separation, radius, influence and dependence are unknown"]
    lines += _geometry(diagnosis) + _structure(diagnosis)
    for verdict in (diagnosis.theorem1, diagnosis.theorem2):
        lines += ["", *_verdict(verdict)]
    return "\n".join(lines)


def _geometry(diagnosis: Diagnosis) -> list[str]:
    lines = []
    apart = diagnosis.separation
    if apart is not None:
        proven = "" if apart.certified is None else f", proven at least {apart.certified:.4g}"
        lines.append(f"  manifold separation {apart.boundary:.4g} on the boundary{proven}; {apart.whole:.4g} inside")
    if diagnosis.radii:
        lines.append(
            f"  {'Theorem 1 radius':<18}{'J_u':>9}{'radius':>11}{'ratio':>9}{'J_u^s':>11}{'radius':>11}{'ratio':>9}"
        )
    for r in diagnosis.radii:
        left = f"{r.J_u:>9.3g}{r.radius:>11.3g}{r.ratio:>9.3g}"
        lines.append(f"    {r.way:<16}{left}{r.J_u_s:>11.3g}{r.radius_s:>11.3g}{r.ratio_s:>9.3g}")
    return lines


def _structure(diagnosis: Diagnosis) -> list[str]:
    lines = []
    sets, link = diagnosis.influence, diagnosis.dependence
    if sets is not None:
        lines.append(
            f"  s moves {_range(sets.s_size)} dimensions of x, c {_range(sets.c_size)}, c alone "
            f"{_range(sets.exclusive_size)}; contrast {sets.contrast:.3g}"
        )
    if link is not None and link.margin is not None:
        state = "connected" if link.connected else "split"
        lines.append(
            f"  dimensions of c alone: {state}, margin {link.margin:.3g}, weakest split {_split(link.witness)}"
        )
    return lines


def _verdict(verdict: Verdict) -> list[str]:
    width = max(len(c.name) for c in verdict.conditions)
    lines = [f"{verdict.theorem}: {verdict.status}"]
    return lines + [f"  {_MARKS[c.status]} {c.name:<{width}}  {c.evidence}" for c in verdict.conditions]


def _open(diagnosis: Diagnosis) -> str:
    names = [v.theorem for v in (diagnosis.theorem1, diagnosis.theorem2) if v.status == "unknown"]
    return " or ".join(names)


def _range(size: tuple[int, int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[0]} to {size[1]}"


def _split(sides: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    return " | ".join("{" + ", ".join(map(str, side)) + "}" for side in sides)
