"""From numbers to verdicts: every assumption of both theorems holds, fails or is unknown, with the evidence.

holds takes a certified bound or the construction of the process. fails takes a witness. Everything else is unknown,
also what sampling did not refute. A fitted estimator never gets holds: it is an estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from offsupport.latent.process.generator import SparseGenerator
from offsupport.theory.measure import Measures
from offsupport.theory.subject import Subject

Status = Literal["holds", "fails", "unknown"]


@dataclass(frozen=True)
class Condition:
    """One assumption: its number and name in the paper, whether it holds, and why."""

    name: str
    status: Status
    evidence: str


@dataclass(frozen=True)
class Verdict:
    """One theorem: fails if any of its assumptions fails, holds if all hold, else unknown."""

    theorem: str
    status: Status
    conditions: tuple[Condition, ...]

    def failed(self) -> tuple[Condition, ...]:
        """Return the assumptions that fail."""
        return tuple(condition for condition in self.conditions if condition.status == "fails")


def theorem1(subject: Subject, m: Measures) -> Verdict:
    """Judge Theorem 1 (dense shifts)."""
    checks: list[Check] = [_model, _smooth, _invertible, _compact, _discrete, _continuous, _near]
    return _verdict("Theorem 1 (dense shifts)", subject, m, checks)


def theorem2(subject: Subject, m: Measures) -> Verdict:
    """Judge Theorem 2 (sparse shifts)."""
    checks: list[Check] = [_model, _smooth, _invertible, _informative, _sparse, _dependent]
    return _verdict("Theorem 2 (sparse shifts)", subject, m, checks)


Check = Callable[[Subject, Measures], Condition]


def _verdict(theorem: str, subject: Subject, m: Measures, checks: Sequence[Check]) -> Verdict:
    conditions = [check(subject, m) for check in checks]
    if subject.draws is None:
        conditions = [replace(c, status="unknown") if c.status == "holds" else c for c in conditions]
    states = {condition.status for condition in conditions}
    status: Status = "fails" if "fails" in states else "unknown" if "unknown" in states else "holds"
    return Verdict(theorem, status, tuple(conditions))


def _model(subject: Subject, m: Measures) -> Condition:
    name = "x = g(z)"
    if subject.draws is None:
        return Condition(name, "unknown", "whether the fitted model is the one behind the data cannot be seen from it")
    noise = subject.draws.process.noise
    if noise:
        return Condition(name, "fails", f"x carries noise of {noise:g} of its standard deviation")
    return Condition(name, "holds", "by construction")


def _smooth(subject: Subject, m: Measures) -> Condition:
    name = "i smooth"
    if m.tear is not None:
        return Condition(name, "fails", f"g jumps by {m.tear[1]:.3g} where s changes sign at {_show(m.tear[0])}")
    if m.kink is not None and m.kink[1] > 1e-9:
        return Condition(name, "fails", f"the Jacobian jumps by {m.kink[1]:.3g} at z = {_show(m.kink[0])}")
    process = None if subject.draws is None else subject.draws.process
    # An influence that varies with the sign of s switches columns, smooth activations or not.
    if process is not None and process.activation == "smooth" and process.influence == "fixed":
        return Condition(name, "holds", "sums and compositions of smooth functions")
    return Condition(name, "unknown", "not checked" if m.kink is None else "no jump found")


def _invertible(subject: Subject, m: Measures) -> Condition:
    name = "i invertible"
    if m.rank is None:
        return Condition(name, "unknown", "the estimator has no decoder")
    d_z, low, mean = subject.z.shape[-1], int(m.rank.min()), float(m.rank.double().mean())
    seen = f"the Jacobian has rank {mean:.1f} of {d_z} on average, {low} at least, over {len(m.rank)} latents"
    if m.collision is not None:
        return Condition(
            name,
            "fails",
            f"z = {_show(m.collision.z)} and another z at distance {m.collision.step:.3g} have the same x; {seen}",
        )
    if m.constants is not None and m.constants.lower > 0:
        return Condition(name, "holds", f"|g(z1) - g(z2)| >= {m.constants.lower:.2g} |z1 - z2| everywhere; {seen}")
    return Condition(name, "unknown", seen)


def _compact(subject: Subject, m: Measures) -> Condition:
    name = "ii compact"
    if subject.draws is None:
        return Condition(name, "unknown", "any finite sample is bounded")
    process = subject.draws.process
    if process.noise:
        return Condition(name, "fails", "normal observation noise is unbounded")
    if subject.draws.embeddings is None or process.d_continuous:
        largest = float(subject.z[:, : subject.d_c].norm(dim=-1).max())
        return Condition(name, "fails", f"c is normal and unbounded; the largest |c| of the sample is {largest:.2f}")
    return Condition(name, "holds", "finitely many c, s in a closed ball or box, g continuous")


def _discrete(subject: Subject, m: Measures) -> Condition:
    name = "iii discrete"
    if subject.draws is None:
        return Condition(name, "unknown", f"c_hat is continuous; {len(subject.others) + 1} class centres stand for C")
    if subject.draws.embeddings is not None:
        kept = f", {subject.d_c - subject.split} continuous dimensions count as s" if subject.support.free else ""
        return Condition(name, "holds", f"c takes {len(subject.draws.embeddings[0])} values{kept}")
    c = subject.z[:2000, : subject.split]
    gap = torch.cdist(c, c, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf).min()
    return Condition(
        name,
        "fails",
        f"c is drawn anew per sample: {len(c)} samples, as many values, two of them {float(gap):.2g} apart",
    )


def _continuous(subject: Subject, m: Measures) -> Condition:
    if subject.draws is None:
        return Condition("iv continuous", "unknown", "a density cannot be seen from a sample")
    return Condition("iv continuous", "holds", "s given c is a normal cut at the support")


def _near(subject: Subject, m: Measures) -> Condition:
    name, off = "v distance", f"{m.distance:.3g} off the support"
    radii = {radius.way: radius for radius in m.radii}
    if not radii:
        return Condition(name, "unknown", f"{off}; no decoder, no radius")
    proven, found = radii.get("certified"), radii["sampled"]
    granted = f", {subject.reading}" if subject.reading else ""
    if proven is not None and proven.ratio_s <= 1 and not granted:
        return Condition(name, "holds", f"{off}, within the certified radius {proven.radius_s:.3g}{granted}")
    largest = f"the largest possible radius {found.radius_s:.3g}"
    if found.ratio_s > 1:
        return Condition(name, "fails", f"{off}, {found.ratio_s:.3g} times {largest}{granted}")
    certified = "" if proven is None else f"beyond the certified radius {proven.radius_s:.3g} and "
    return Condition(name, "unknown", f"{off}, {certified}within {largest}{granted}")


def _informative(subject: Subject, m: Measures) -> Condition:
    name = "ii informative"
    if m.influence is None or m.informativeness is None or m.z is None:
        return Condition(name, "unknown", "the estimator has no decoder")
    empty = ~m.influence.exclusive.any(-1)
    if bool(empty.any()):
        return Condition(name, "fails", f"c alone moves no dimension of x at z = {_show(m.z[empty][0])}")
    if m.collision is not None and float(m.collision.direction[: subject.d_c].norm()) > 1e-6:
        step = m.collision.step * float(m.collision.direction[: subject.d_c].norm())
        return Condition(name, "fails", f"two c at distance {step:.3g} give the same x at z = {_show(m.collision.z)}")
    found = (
        f"the smallest |x_I(c1) - x_I(c2)| / |c1 - c2| found is {m.informativeness.ratio:.3g}, "
        f"the smallest rank {m.informativeness.rank} of {subject.d_c}"
    )
    if m.constants is not None and m.constants.lower_exclusive > 0:
        return Condition(name, "holds", f"that ratio is at least {m.constants.lower_exclusive:.2g} everywhere; {found}")
    shrinks = int(m.influence.exclusive.sum(-1).max()) > subject.d_c
    caveat = "; no bound excludes latents at which the gradient of such a dimension vanishes" if shrinks else ""
    return Condition(name, "unknown", found + caveat)


def _sparse(subject: Subject, m: Measures) -> Condition:
    name = "iii sparse influence"
    if m.influence is None or m.z is None:
        return Condition(name, "unknown", "the estimator has no decoder")
    d_s = subject.z.shape[-1] - subject.d_c
    sizes = m.influence.s.sum(-1)
    violated = ~m.influence.sparse(d_s)
    if bool(violated.any()):
        i = int(violated.int().argmax())
        both = int((m.influence.c[i] & m.influence.s[i]).sum())
        return Condition(
            name,
            "fails",
            f"s moves {int(sizes[i])} dimensions, more than d_s = {d_s}, and {both} of them are moved by c too, "
            f"at z = {_show(m.z[i])} and at {float(violated.double().mean()):.0%} of the latents",
        )
    found = f"s moves at most {int(sizes.max())} dimensions at {len(sizes)} latents, d_s = {d_s}"
    if subject.draws is not None and isinstance(subject.draws.g, SparseGenerator):
        return Condition(name, "holds", f"s is added to {d_s} dimensions by construction; {found}")
    return Condition(name, "unknown", found)


def _dependent(subject: Subject, m: Measures) -> Condition:
    name = "iv mechanistic dependence"
    if m.dependence is None or m.z is None:
        return Condition(name, "unknown", "the estimator has no decoder")
    margin = m.dependence.margin
    split = ~m.dependence.connected()
    if bool(split.any()):
        i = int(split.int().argmax())
        rows, part = m.dependence.rows[i], m.dependence.witness[i]
        return Condition(
            name,
            "fails",
            f"the ranks of x{_dims(part)} and x{_dims(rows & ~part)} add up (margin {float(margin[i]):.1g}) at z = "
            f"{_show(m.z[i])} and {int(split.sum())} of {len(split)} latents in all; {int(rows.sum())} dimensions are "
            f"moved by c alone, d_c = {subject.d_c}",
        )
    d_x, d_z = m.dependence.rows.shape[-1], subject.z.shape[-1]
    if _sparse(subject, m).status != "fails" and d_x <= d_z and subject.d_c > 1:
        return Condition(
            name,
            "fails",
            f"x has {d_x} dimensions, z {d_z}: wherever J has full rank (i), the at most {d_x - d_z + subject.d_c} "
            f"dimensions without s are independent and every split has adding ranks; i and iv need d_x > d_z",
        )
    if bool(torch.isinf(margin).all()):
        return Condition(name, "unknown", "nowhere two dimensions that c alone moves, so nothing to split")
    return Condition(
        name, "unknown", f"no split found; the smallest margin over {len(margin)} latents is {float(margin.min()):.3g}"
    )


def _show(z: Tensor) -> str:
    return "(" + ", ".join(f"{value:.2f}" for value in z.tolist()) + ")"


def _dims(mask: Tensor) -> str:
    return "[" + ",".join(str(i) for i in mask.nonzero()[:, 0].tolist()) + "]"
