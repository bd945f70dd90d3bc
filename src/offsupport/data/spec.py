"""The options of a stream, declared once: what they are, what they may be, and which domains they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from offsupport.core.config import build
from offsupport.core.errors import ConfigError, nearest

Order: TypeAlias = Literal["iid", "sorted", "dirichlet"]
ORDERS: tuple[Order, ...] = ("iid", "sorted", "dirichlet")
Schedule: TypeAlias = Literal["sequence", "mixed", "ramp", "pairs"]
SCHEDULES: tuple[Schedule, ...] = ("sequence", "mixed", "ramp", "pairs")
SourceChoice: TypeAlias = Literal["auto", "files", "generated"]
SOURCES: tuple[SourceChoice, ...] = ("auto", "files", "generated")

ARRAYS = "arrays"
"""The data set name of a user's own pair of arrays."""
CLEAN = "clean"
"""The domain name of images without a corruption."""
SEVERITY = 5
"""The severity of corruptions unless one is asked for: the one that published tables use."""
MOST_DOMAINS = 100_000
"""A schedule lists its domains, and refuses to list more."""
CONCENTRATION = 0.1
"""Of the Dirichlet order, unless one is asked for."""


class Stage(NamedTuple):
    """What a domain is."""

    name: str
    corruption: str | None
    severity: int
    """0 for clean data."""
    over: tuple[str, int] | None = None
    """A corruption and its severity that the images had before, where two come one over the other."""

    @staticmethod
    def from_json(values: list[Any]) -> Stage:
        """Return what a file says of a domain; values of another kind are a TypeError."""
        name, corruption, severity, *before = values
        if not (type(name) is str and type(severity) is int and (corruption is None or type(corruption) is str)):
            raise TypeError(f"{values} is no domain")
        if not before:
            return Stage(name, corruption, severity)
        [(first, level)] = before
        if not (type(first) is str and type(level) is int and corruption is not None):
            raise TypeError(f"{values} is no domain")
        return Stage(name, corruption, severity, (first, level))

    def to_json(self) -> list[Any]:
        """Return it as a file holds it; two corruptions are said only where there are two."""
        return list(self[:3]) if self.over is None else [*self[:3], list(self.over)]


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    """Every option of a stream; with the data it fixes every pixel of every batch.

    ``stream``, ``stream_arrays`` and ``load`` take their options and defaults from here, under the same names except
    where they take something more convenient: ``corruption`` and ``severity`` may be one or several, and ``source`` is
    the ``wanted_source``. The field names are those of saved streams and of results, so they stay.
    """

    dataset: str
    """One of :func:`offsupport.data.list_datasets`, or ``arrays``."""
    split: str = "test"
    """``test``, ``train``, or another one that the data set has."""
    corruptions: tuple[str, ...] = ()
    """Each makes a domain at each of the severities; none is the clean data."""
    severities: tuple[int, ...] = ()
    """1 to 5 for most corruptions; empty for clean data."""
    block: int | None = None
    """Corrupt only a square of this side, at a random place of each image; None for the whole image."""
    corruption_seed: int | None = None
    """Of the corruptions' random draws; giving one means generating. None takes files, else seed 0."""
    wanted_source: SourceChoice = "auto"
    """``files`` insists on stored corruptions, ``generated`` on computing them; ``auto`` takes files that exist."""
    size: int | None = None
    """Side to which a ``folder`` is resized and cropped."""
    order: Order = "iid"
    """``iid``, ``sorted`` by label, or ``dirichlet`` (neighbours alike)."""
    schedule: Schedule = "sequence"
    """One domain after the other, all ``mixed``, a ``ramp`` from severity 1 up and back for each corruption, or
    ``pairs``, where each corruption fades while the next one grows."""
    visits: int = 1
    """How often the whole schedule comes, in another order of the images each time."""
    concentration: float | None = None
    """Of the Dirichlet order: small is bursty, large approaches ``iid``; None for other orders."""
    seed: int = 0
    """Of the order and of ``limit``."""
    limit: int | None = None
    """Keep a random subset of this many images in each domain, the same images in each; of ``pairs``, draw so many anew
    at each of the four steps from one severity to the next."""
    imbalance: float | None = None
    """Of what is kept, the most frequent class comes so many times as often as the rarest; None leaves them alone."""
    batch_size: int = 128
    """1 upwards; the last batch of a domain keeps what is left."""

    def __post_init__(self) -> None:
        if self.wanted_source not in SOURCES:
            raise ConfigError(f"Unknown source {self.wanted_source!r}.", nearest(self.wanted_source, SOURCES))

    @staticmethod
    def asked(
        dataset: str,
        corruption: str | Sequence[str] | None = None,
        severity: int | Sequence[int] = SEVERITY,
        *,
        concentration: float = CONCENTRATION,
        **options: Any,
    ) -> StreamSpec:
        """Return the options as a person gives them: one corruption or several, and a concentration that may not apply.

        Args:
            dataset: Name of the data set.
            corruption: A name or several; None for clean data.
            severity: One or several; without a corruption it means nothing.
            concentration: Kept where the order is ``dirichlet``, and None elsewhere.
            **options: The other fields, by name.
        """
        names = _several(corruption, "corruptions", "Name")
        return StreamSpec(
            dataset=dataset,
            corruptions=names,
            severities=_several(severity, "severities", "Give") if corruption is not None else (),
            concentration=concentration if options.get("order") == "dirichlet" else None,
            **options,
        )

    @staticmethod
    def from_json(values: dict[str, Any]) -> StreamSpec:
        """Return the options that :meth:`to_json` wrote; values of another kind are refused by name."""
        lists = {name: tuple(values[name]) for name in ("corruptions", "severities")}
        spec = build(StreamSpec, {**values, **lists}, "the stream")
        for name, kind in (("corruptions", str), ("severities", int)):
            if not all(type(value) is kind for value in lists[name]):
                raise ConfigError(f"The {name} of the stream are {list(lists[name])}.", f"Each is {kind.__name__}.")
        return spec

    def to_json(self) -> dict[str, Any]:
        """Return the options as a file holds them; those that came after 0.2.0 only where they are used."""
        later = {"visits": StreamSpec.visits, "imbalance": StreamSpec.imbalance}
        return {name: value for name, value in asdict(self).items() if later.get(name, ...) != value}

    def check(self) -> None:
        """Refuse what no stream can be.

        Apart from construction, because opening a data set takes the same options and does not care about batches.
        """
        for kind, value, known in (("order", self.order, ORDERS), ("schedule", self.schedule, SCHEDULES)):
            if value not in known:
                raise ConfigError(f"Unknown {kind} {value!r}.", nearest(value, known))
        counts = (("batch_size", self.batch_size), ("limit", self.limit), ("block", self.block))
        for kind, number in (*counts, ("visits", self.visits), ("imbalance", self.imbalance)):
            if number is not None and number < 1:
                raise ConfigError(f"{kind} is {number}.", "It must be at least 1.")
        steps = 2 * max(self.severities, default=1) if self.schedule in ("ramp", "pairs") else len(self.severities)
        domains = self.visits * max(1, len(self.corruptions)) * max(1, steps)
        if domains > MOST_DOMAINS:
            raise ConfigError(
                f"This stream would visit {domains:,} domains, and at most {MOST_DOMAINS:,} are taken.",
                "Give fewer visits, or the severities that the corruptions have.",
            )
        if self.concentration is not None and not self.concentration > 0:
            raise ConfigError(f"concentration is {self.concentration}.", "It must be above 0.")
        if not self.corruptions and (self.block is not None or self.schedule != "sequence"):
            asked = "block" if self.block is not None else f"schedule={self.schedule!r}"
            raise ConfigError(f"{asked} needs a corruption.", "Add corruption=..., one name or several.")
        if self.schedule == "mixed" and self.visits > 1:
            raise ConfigError(f"visits is {self.visits}, and all is mixed.", "Leave visits out, or the schedule.")
        if self.schedule == "pairs" and (len(self.corruptions) < 2 or self.imbalance is not None):
            raise ConfigError(
                f"Pairs of {len(self.corruptions)} corruption{'s' * (len(self.corruptions) != 1)}, imbalance "
                f"{self.imbalance}.",
                "Name at least two corruptions, and leave imbalance out.",
            )

    def stages(self) -> list[Stage]:
        """Return the domains in the order of their visits; a ramp comes back to some, and further visits to all."""
        if not self.corruptions:
            return [Stage(CLEAN, None, 0)] * self.visits
        severities = list(self.severities)
        if self.schedule in ("ramp", "pairs"):
            if len(severities) != 1:
                raise ConfigError(
                    f"A schedule of {self.schedule} has one peak, got severities {severities}.",
                    "Give its highest severity.",
                )
            if self.schedule == "pairs":
                return self._pairs(severities[0]) * self.visits
            severities = [*range(1, severities[0]), *range(severities[0], 0, -1)]
        return [Stage(f"{c}/{s}", c, s) for c in self.corruptions for s in severities] * self.visits

    def _pairs(self, peak: int) -> list[Stage]:
        """Return each corruption at its peak, and the pairs by which it gives way to the next, the last to the first.

        The two severities of a pair add up to the peak.
        """
        found = []
        for first, second in zip(self.corruptions, self.corruptions[1:] + self.corruptions[:1], strict=True):
            found.append(Stage(f"{first}/{peak}", first, peak))
            found += [
                Stage(f"{first}/{peak - grown}+{second}/{grown}", second, grown, (first, peak - grown))
                for grown in range(1, peak)
            ]
        return found


def _several(value: Any, kind: str, verb: str) -> tuple[Any, ...]:
    """Return one value or several as a tuple without repeats; none given is none."""
    if value is None:
        return ()
    values = (value,) if isinstance(value, (str, int)) else tuple(value)
    words = kind == "corruptions"
    if not values or any(isinstance(each, str) != words for each in values) or len(set(values)) < len(values):
        raise ConfigError(f"The {kind} are {list(values)}.", f"{verb} at least one, and each once.")
    return values
