"""Along the stream: how the error of each method develops from batch to batch."""

from __future__ import annotations

from collections.abc import Sequence

from offsupport.bench.results import parts_of
from offsupport.bench.store import Record
from offsupport.report import figures
from offsupport.report.page import Figure

LINES = 10
"""More lines in one drawing cannot be told apart."""
DRAWINGS = 3
Traces = dict[str, list[list[float]]]


def stream_figures(records: Sequence[Record]) -> list[Figure]:
    """Return a drawing for each data set and length of stream, those with most results first.

    Episodes are left out: nothing is carried from one to the next that could develop.
    """
    carried = [record for record in records if record.cell.config.get("protocol") != "episodic"]
    found: dict[tuple[str, int], Traces] = {}
    for (method, dataset), traces in _traces(carried).items():
        for trace in traces:
            if len(trace) > 1:
                found.setdefault((dataset, len(trace)), {}).setdefault(method, []).append(trace)
    most = sorted(found, key=lambda key: -sum(map(len, found[key].values())))[:DRAWINGS]
    return [_drawn(dataset, found[dataset, length], several=len(most) > 1) for dataset, length in most]


def _traces(records: Sequence[Record]) -> dict[tuple[str, str], list[list[float]]]:
    """Traces by method, as the tables name it, and data set; a stream of several domains has one trace."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for part in parts_of(records):
        if len(part.shards) == 1:
            trace = part.record.deterministic["trace"]
            found.setdefault((part.method, part.dataset), {})[part.record.key] = trace
    return {names: list(traces.values()) for names, traces in found.items()}


def _drawn(dataset: str, traces: Traces, several: bool) -> Figure:
    means = {method: [sum(batch) / len(batch) for batch in zip(*own, strict=True)] for method, own in traces.items()}
    series = {method: [100 * value for value in figures.running_mean(mean)] for method, mean in means.items()}
    best = sorted(series, key=lambda method: series[method][-1])[:LINES]
    shown = {method: line for method, line in series.items() if method in best}
    left_out = f" The {LINES} of {len(series)} rows with the lowest error." if len(series) > LINES else ""
    where = f" of {dataset}" if several else ""
    caption = f"Along the stream{where}: mean error of the batches so far, averaged over the streams of each method."
    return Figure(figures.traces(shown), caption + left_out)
