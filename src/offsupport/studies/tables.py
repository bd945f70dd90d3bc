"""How a table or figure is declared: what to run, what was printed, what was claimed; and the register of them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from offsupport.bench.cell import Cell, require_few
from offsupport.bench.store import Record
from offsupport.core.config import build
from offsupport.core.errors import ConfigError, FileError, nearest
from offsupport.core.registry import Registry
from offsupport.results.rows import Claim, Listing, Measured, Row
from offsupport.studies.errors import error_rows

SCALES = ("smoke", "small", "paper")
FEW = 1000
"""Seeds or runs whose cells need not be counted before they are made."""


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What a user may change about a table; None leaves it to the table."""

    runs: int | None = None
    """Independent data sets, for synthetic tables."""
    seeds: int | None = None
    """Seeds 0, 1, ... of each cell."""
    methods: tuple[str, ...] | None = None
    """Only these."""
    parts: tuple[str, ...] | None = None
    """Only these parts, of tables that are run part by part."""


def _no_claims(records: Sequence[Record]) -> list[Claim]:
    return []


def _no_listings() -> list[Listing]:
    return []


def _no_summaries(records: Sequence[Record]) -> list[Listing]:
    return []


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table or figure.

    Args:
        name: What ``reproduce`` is given.
        title: One line for people.
        grid: The cells of a scale.
        rows: The numbers; from whatever results are there. By default the error of each method on each corruption.
        claims: The claims that can be checked with these results.
        listings: What else ``reproduce --json`` prints; follows from the package alone.
        summaries: The same, where it follows from the results.
        asked: Given, its page shows all that its folder holds instead of what was asked for last; it returns the
            options that ask for some results alone.
        scales: The scales it can run at, with a line about each.
        options: The fields of :class:`TableOptions` it knows.
        record: Whether it records how settings were chosen, or what a result is sensitive to, rather than being
            something a user would look for; lists show such tables apart.
    """

    name: str
    title: str
    grid: Callable[[str, TableOptions], list[Cell]]
    rows: Callable[[Sequence[Record]], list[Row]] = error_rows
    claims: Callable[[Sequence[Record]], list[Claim]] = _no_claims
    listings: Callable[[], list[Listing]] = _no_listings
    summaries: Callable[[Sequence[Record]], list[Listing]] = _no_summaries
    asked: Callable[[Sequence[Record]], TableOptions] | None = None
    scales: Mapping[str, str] = field(default_factory=lambda: {"smoke": "as declared"})
    options: frozenset[str] = frozenset()
    record: bool = False

    def cells(self, scale: str, options: TableOptions | None = None) -> list[Cell]:
        """Return the cells of a scale; a scale or an option it does not have is an error that says what there is."""
        options = options or TableOptions()
        if scale not in self.scales:
            remedy = nearest(scale, self.scales) if scale not in SCALES else f"It has: {', '.join(self.scales)}."
            raise ConfigError(f"{self.name} has no scale {scale!r}.", remedy)
        for name, value in asdict(options).items():
            if value is not None and name not in self.options:
                known = ", ".join(f"--{option}" for option in sorted(self.options)) or "no options"
                raise ConfigError(f"{self.name} takes no --{name}.", f"It takes: {known}.")
        self._require_few(scale, options)
        return self.grid(scale, options)

    def _require_few(self, scale: str, options: TableOptions) -> None:
        """Refuse numbers of seeds and runs that make too many cells, by what one of each makes."""
        many = max(options.seeds or 1, options.runs or 1)
        if many > FEW:
            one = replace(options, seeds=options.seeds and 1, runs=options.runs and 1)
            require_few(many * len(self.grid(scale, one)))

    def measure(self, scale: str, records: Sequence[Record]) -> Measured:
        """Return rows, claims and listings; every interval is computed here, and once."""
        return Measured(
            rows=self.rows(records),
            claims=self.claims(records),
            listings=[*self.listings(), *self.summaries(records)],
            table=self.name,
            scale=scale,
        )


TABLES: Registry[Table] = Registry("table", group="offsupport.tables")


def register_table(table: Table) -> Table:
    """Make a table known to ``offsupport list tables`` and ``offsupport reproduce``.

    A package makes its tables known by an entry point: in the group ``offsupport.tables``, the table's name, and the
    module that calls this.

    Example:
        >>> from offsupport.studies import Table, expand
        >>> mine = Table(
        ...     name="fog-only",
        ...     title="Fog on the embedded digits",
        ...     grid=lambda scale, options: expand({"method": ["source", "bn"]}, dataset="digits-c", corruption="fog"),
        ... )
        >>> register_table(mine) is TABLES["fog-only"]
        True
    """
    return TABLES.register(table.name)(table)


@dataclass(frozen=True, kw_only=True)
class _StoredOptions:
    """:class:`TableOptions` as a file holds them."""

    runs: int | None = None
    seeds: int | None = None
    methods: list[Any] | None = None
    parts: list[Any] | None = None


@dataclass(frozen=True)
class Request:
    """What a run was asked for; its folder keeps it, so that a report can be made later.

    Args:
        table: Name of the table; empty for a grid of the user's own.
        scale: The scale of the table.
        options: What the user changed about it.
    """

    table: str = ""
    scale: str = ""
    options: TableOptions = TableOptions()

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Request:
        """Return what :meth:`to_dict` wrote; what was not written by it is an error."""
        if stored.get("verb") != "reproduce":
            return cls()
        table, scale, options = (stored.get(name) for name in ("table", "scale", "options"))
        if not isinstance(table, str) or not isinstance(scale, str) or not isinstance(options, dict):
            raise FileError("This run folder does not say what was asked for.", "Run its table again.")
        given = build(_StoredOptions, options, "what was asked for")
        # JSON has no tuples.
        methods, parts = (tuple(map(str, names or ())) or None for names in (given.methods, given.parts))
        return cls(table, scale, TableOptions(runs=given.runs, seeds=given.seeds, methods=methods, parts=parts))

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        if not self.table:
            return {"verb": "bench"}
        return {"verb": "reproduce", "table": self.table, "scale": self.scale, "options": asdict(self.options)}
