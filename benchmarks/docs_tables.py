"""Write the tables of the pages of docs/ and of README.md from the results stored under results/.

    python benchmarks/docs_tables.py [--check]

Each table stands between two comments that name it, ``<!-- table1 dense -->`` and ``<!-- /table1 dense -->``: a folder
under results/ and a group of columns; with the names of rows where only some are shown, ``<!-- table1 dense: vae -->``.
Instead of a group, ``claims`` lists the claims, ``numbers`` every number on a line of its own, and ``printed`` puts
what the paper prints behind what was measured, columns downwards; ``averages`` has the columns ``.../avg`` with passes
and seconds from the cells and memory from results/memory.json; ``gates`` has them with gates and ranks of the sparsity
constraint; ``candidates`` has what was tried for each method. The name of a listing (``<!-- regret summary -->``) has
its lines, with ``: NAMES`` behind it those that begin with one of the names; ``harm`` says in two sentences what
`auto` came to beside the model alone.
``<!-- protocols overview -->`` has errors by protocol, the best in bold, and ``<!-- protocols boards -->`` a heading,
a command and a table for each protocol that was run.
``<!-- overhead_peers rows -->`` has times over those of bare passes,
``<!-- changing_stream errors -->`` has the stages of a stream, ``<!-- estimate streams -->`` accuracy without labels,
``<!-- dense_attempts attempts -->`` attempts on dense shifts, ``<!-- readings vae -->`` the readings of one estimator,
``<!-- norm_statistics streams -->`` methods on other statistics, ``<!-- minimal_rule errors -->`` what `minimal`
carries images back to, ``<!-- minimal_attempts errors -->`` bolder rules of it, ``<!-- auto_rule errors -->`` the
predictions of `auto`, ``<!-- no_clean_images errors -->`` `auto` without clean images, ``<!-- paper_cost hours -->``
GPU hours, ``<!-- shift_score goals -->`` what is called off the support, ``<!-- streaming ratios -->`` single images
beside the plain model, ``<!-- fig3_map lines -->`` maps of Figure 3, and ``<!-- method table -->`` the methods of the
registry.
--check changes nothing and fails if a table is not what the results say.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from offsupport import list_methods
from offsupport.bench.store import Record, Store
from offsupport.report.figures import update_means
from offsupport.studies.errors import parts_of

ROOT = Path(__file__).parents[1]
PAGES = (
    *(
        ROOT / "docs" / name
        for name in (
            "extrapolate.md",
            "mae.md",
            "findings.md",
            "scales.md",
            "augment.md",
            "reliability.md",
            "monitor.md",
            "auto.md",
            "methods.md",
            "readings.md",
            "leaderboard.md",
        )
    ),
    ROOT / "README.md",
)
MARKED = re.compile(r"(<!-- (\S+) (.+?) -->\n)(.*?)(<!-- /\2 \3 -->)", re.DOTALL)
GAINS = (("extrapolator", "only-source"), ("extrapolator", "trimmed-nn"))


def write_tables(text: str, results: Path = ROOT / "results") -> str:
    """Return a page whose marked tables are those of the results."""

    def table(found: re.Match[str]) -> str:
        before, name, what, _, after = found.groups()
        group, _, methods = what.partition(": ")
        if (name, group) in OF_FILES:
            file = results / f"{name}.json"
            payload = json.loads(file.read_text()) if file.is_file() else {}
            return before + "".join(f"{line}\n" for line in OF_FILES[name, group](payload)) + after
        if not (results / name / f"{name}.json").is_file():
            return found.group()  # a table of something else
        payload = stored(results / name)
        if group in BY_CELL:
            return before + "".join(f"{line}\n" for line in BY_CELL[group](payload["rows"], results, name)) + after
        if name == "protocols" and group in BOARDS:
            return before + "".join(f"{line}\n" for line in BOARDS[group](payload)) + after
        if group in payload and group not in ("rows", "claims"):
            return before + "".join(f"{line}\n" for line in _listed(payload[group], methods)) + after
        if group == "harm":
            return f"{before}{_harm(payload, stored(results / 'regret-photographs'))}\n{after}"
        if methods:
            shown = methods.split(", ")
            payload = {"rows": [row for row in payload["rows"] if row["method"] in shown], "claims": []}
        return before + "".join(f"{line}\n" for line in lines(payload, group)) + after

    return MARKED.sub(table, text)


def stored(folder: Path) -> dict[str, Any]:
    """Return rows and claims as ``offsupport report FOLDER --json`` printed them."""
    found: dict[str, Any] = json.loads((folder / f"{folder.name}.json").read_text())
    return found


def _harm(small: dict[str, Any], photographs: dict[str, Any]) -> str:
    """Return what ``auto`` came to beside the model alone, in two sentences."""
    every = {row["method"]: row for row in small["summary"] if row["network"] == "all"}
    large = {row["method"]: row for row in photographs["summary"]}
    networks = len({row["network"] for row in small["summary"]} - {"all"})
    alone, adapted, wide = every["source"], every["auto"], large["auto"]
    return (
        f"**It does little harm.** Over {adapted['conditions']} conditions of {networks} networks (clean and "
        "shifted, in random order and sorted, single images, mixed\nand poisoned streams) the model alone errs on "
        f"{alone['error']:.1f} % of the images, adapted on {adapted['error']:.1f} %, and where it does worst it errs "
        f"{adapted['worst harm']:.1f} points\nmore often than the model alone. Over {wide['conditions']} conditions of "
        f"photographs with a thousand classes these are {large['source']['error']:.1f} %, {wide['error']:.1f} % and\n"
        f"{wide['worst harm']:.1f} points ([all of it](docs/auto.md#how-good-it-is), `offsupport reproduce regret`)."
    )


def _listed(listing: list[dict[str, Any]], names: str) -> list[str]:
    """Return the lines of a listing, or those whose first value is named; one name that all share is left out."""
    shown = names.split(", ") if names else []
    found = [line for line in listing if not shown or next(iter(line.values())) in shown]
    if not found:
        return ["Nothing of it is stored yet."]
    heads = list(listing[0])[len(shown) == 1 :]
    body = [["" if line[head] is None else str(line[head]) for head in heads] for line in found]
    return _markdown(heads, body)


def _estimates(summary: dict[str, Any]) -> list[str]:
    """Return how good accuracy without labels was, by the order of the streams and by network."""

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.0f} %"

    heads = [
        "streams",
        "how many",
        "error of `source`, points",
        "of `adapted`",
        "interval holds, `source`",
        "`adapted`",
    ]
    heads += ["`harms` said where it costs over 3 points", "elsewhere", "alarm `order`"]
    body = []
    for order, words in (("iid", "random order"), ("sorted", "sorted by label"), ("dirichlet", "in bursts")):
        for name in sorted(
            (name for name in summary if name.partition(", ")[0] == order), key=lambda name: name != order
        ):
            found = summary[name]
            shares = [percent(found[key]) for key in ("source_covered", "adapted_covered")]
            said = [f"{percent(found['harms_said_where_worse'])} of {found['worse']}"]
            said += [percent(found["harms_said_elsewhere"]), percent(found["order_alarms"])]
            errors = [f"{found['source_error']:.1f}", f"{found['adapted_error']:.1f}"]
            body.append([name.replace(order, words, 1), str(found["streams"]), *errors, *shares, *said])
    return _markdown(heads, body)


def _statistics(summary: list[dict[str, Any]]) -> list[str]:
    """Return the errors of methods by what batch norm normalises by."""
    orders = {"iid": "random", "sorted": "sorted"}
    heads = [
        "method",
        "networks",
        "images",
        "order",
        "batch",
        "streams",
        "`batch`",
        "`minimal`",
        "`minimal`, `source=`",
    ]
    body = [
        [f"`{found['method']}`", found["networks"], found["images"], orders[found["order"]]]
        + [str(found["size"]), str(found["streams"])]
        + [f"{found[word]:.1f}" for word in ("batch", "minimal", "minimal, source")]
        for found in summary
    ]
    return _markdown(heads, body)


def lines(payload: dict[str, Any], group: str) -> list[str]:
    """Return the lines of the table of one group of columns: methods downwards, distances to the right."""
    rows = [row for row in payload["rows"] if row["column"].rpartition("-")[0] == group]
    if not rows:
        return _plain(payload, group)
    columns = list(dict.fromkeys(row["column"] for row in rows))
    unit = ", %" if rows[0].get("unit") == "percent" else ""
    heads = [f"{group}: {rows[0]['metric']}{unit}", *(column.rpartition("-")[2] for column in columns), "predictions"]
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        found = {row["column"]: row for row in rows if row["method"] == method}
        counts = sorted({row["n"] for row in found.values()})
        body.append(
            [method, *(_number(found.get(column)) for column in columns), " to ".join(f"{n:,}" for n in counts)]
        )
        printed = {column: row["paper"] for column, row in found.items() if row["paper"] is not None}
        if printed:
            body.append([f"{method}, as printed", *(f"{printed[c]:.2f}" if c in printed else "" for c in columns), ""])
    return _markdown(heads, [*body, *_gains(payload, columns)])


def _gains(payload: dict[str, Any], columns: list[str]) -> list[list[str]]:
    """How much less the extrapolator errs than others, paired by run and target."""
    body = []
    for ours, theirs in GAINS:
        pattern = re.compile(rf"{ours} has a lower (squared )?error than {theirs} at (.+)")
        found = {m.group(2): c for c in payload["claims"] if (m := pattern.fullmatch(c["claim"]))}
        if any(column in found for column in columns):
            gains = [_gain(found[column]) if column in found else "" for column in columns]
            points = next(iter(found.values()))["evidence"]["unit"] == "percentage points"
            body.append([f"gain over {theirs}" + (", points" if points else ""), *gains, ""])
    return body


def _gain(claim: dict[str, Any]) -> str:
    evidence = claim["evidence"]
    digits = 1 if evidence["unit"] == "percentage points" else 2
    return f"{-evidence['value']:+.{digits}f} ({-evidence['high']:+.{digits}f} to {-evidence['low']:+.{digits}f})"


def _plain(payload: dict[str, Any], group: str) -> list[str]:
    """A table without distances, or the list of claims."""
    if group == "claims":
        body = [[c["verdict"].replace("-", " "), c["claim"], _evidence(c["evidence"])] for c in payload["claims"]]
        return _markdown(["verdict", "claim", "measured"], body)
    if group in LAYOUTS:
        return LAYOUTS[group](payload["rows"])
    if any(row["method"].startswith(f"{group}: ") for row in payload["rows"]):
        return _readings(payload["rows"], group)
    rows = [row for row in payload["rows"] if row["column"].startswith(f"{group}, ")]
    columns = list(dict.fromkeys(row["column"] for row in rows))
    cells = {(row["method"], row["column"]): row for row in rows}
    body = [[m, *(_number(cells.get((m, c)), True) for c in columns)] for m in dict.fromkeys(r["method"] for r in rows)]
    return _markdown([f"{group}: {rows[0]['metric']}", *(c.partition(", ")[2] for c in columns)], body)


def _numbers(rows: list[dict[str, Any]]) -> list[str]:
    """Every number with its interval, its deviation over seeds, and what the paper prints."""
    heads = [f"{rows[0]['metric']}, %", "measured", "95 % interval", "deviation over seeds", "printed", "predictions"]
    several = len({row["method"] for row in rows}) > 1
    body = [
        [
            f"{row['method']}, {row['column']}" if several else row["column"],
            f"{row['value']:.1f}",
            f"{row['low']:.1f} to {row['high']:.1f}",
            "" if row.get("deviation") is None else f"{row['deviation']:.1f}",
            "" if row["paper"] is None else f"{row['paper']:.1f}",
            f"{row['n']:,}",
        ]
        for row in rows
    ]
    return _markdown(heads, body)


def _printed(rows: list[dict[str, Any]]) -> list[str]:
    """Columns downwards, methods to the right: measured / printed."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = {(row["column"], row["method"]): row for row in rows}
    body = [
        [column.rpartition("/")[2].replace("_", " "), *(_measured_printed(cells[column, method]) for method in methods)]
        for column in dict.fromkeys(row["column"] for row in rows)
    ]
    return _markdown([f"{rows[0]['metric']}, %: measured / printed", *methods], body)


def _readings(rows: list[dict[str, Any]], estimator: str) -> list[str]:
    """What is printed for an estimator, and below it what each reading gave; columns to the right."""
    rows = [row for row in rows if row["method"].startswith(f"{estimator}: ")]
    columns = {row["column"]: row["paper"] for row in rows}
    cells = {(row["method"], row["column"]): row for row in rows}
    body = [["as printed", *("" if paper is None else f"{paper:.2f}" for paper in columns.values())]]
    for method in dict.fromkeys(row["method"] for row in rows):
        found = (cells.get((method, column)) for column in columns)
        words = ["" if row is None else f"{row['value']:.2f} ({row['low']:.2f} to {row['high']:.2f})" for row in found]
        body.append([method.partition(": ")[2], *words])
    return _markdown([f"{estimator}: {rows[0]['metric']}", *(c.replace("-", " ") for c in columns)], body)


def _measured_printed(row: dict[str, Any]) -> str:
    return f"{row['value']:.1f}" + ("" if row["paper"] is None else f" / {row['paper']:.1f}")


def _averages(rows: list[dict[str, Any]], results: Path, name: str) -> list[str]:
    """Average errors with intervals, and what a method costs."""
    memory = {line["method"]: line["megabytes"] for line in json.loads((results / "memory.json").read_text())}
    body = []
    for row, cells in _with_cells(rows, results / name):
        # The median: a cell may have waited for others, or for a machine that was put to sleep.
        seconds = statistics.median(cell.timing["seconds"] / cell.deterministic["n"] for cell in cells)
        batches = sum(len(cell.deterministic["trace"]) for cell in cells)
        passes = [sum(cell.deterministic["passes"][way] for cell in cells) / batches for way in ("forward", "backward")]
        plain = row["method"].partition(" ")[0]
        body.append(
            [
                f"`{row['method']}`",
                f"{row['value']:.2f}",
                f"{row['low']:.2f} to {row['high']:.2f}",
                "" if row["paper"] is None else f"{row['paper']:.1f}",
                str(len({cell.cell.config["seed"] for cell in cells})),
                f"{passes[0]:.1f} + {passes[1]:.1f}",
                f"{1000 * seconds:.1f}",
                f"{memory[plain]:.0f}" if plain in memory else "",
            ]
        )
    heads = ["method", "error, %", "95 % interval", "printed", "seeds", "passes per batch", "ms per image", "MB"]
    return _markdown(heads, body)


def _gates(rows: list[dict[str, Any]], results: Path, name: str) -> list[str]:
    """Average errors with intervals, and what the updates of the sparsity constraint are at the end of a stream."""
    body = []
    for row, cells in _with_cells(rows, results / name):
        found = [cell.deterministic["findings"] for cell in cells if "findings" in cell.deterministic]
        interval = f"{row['low']:.2f} to {row['high']:.2f}"
        words = _update_words(found) if found else [""] * 3
        body.append([f"`{row['method']}`", f"{row['value']:.2f}", interval, *words])
    heads = ["method", "error, %", "95 % interval", "gates at zero, %", "effective rank", "change of the weights, %"]
    return _markdown(heads, body)


def _update_words(found: list[dict[str, Any]]) -> list[str]:
    """Means over streams and layers, as the report has them."""
    zeros, rank, change = update_means(found)
    gated = any(each["gates"] for each in found)
    return [f"{100 * zeros:.0f}" if gated else "no gates", f"{rank:.1f}", f"{100 * change:.1f}"]


def _with_cells(rows: list[dict[str, Any]], folder: Path) -> list[tuple[dict[str, Any], list[Record]]]:
    """Return the rows of averages, each with the results it is made of."""
    store = Store(folder)
    read = [store.read(cell.key) for cell in store.grid()]
    found = parts_of(record for record in read if isinstance(record, Record))
    averages = [row for row in rows if row["column"].endswith("/avg")]
    return [(row, [part.record for part in found if part.method == row["method"]]) for row in averages]


BY_CELL = {"averages": _averages, "gates": _gates}


def _hours(payload: dict[str, Any]) -> list[str]:
    """Operations over those of one prediction, and GPU hours, by method and data set."""
    lines, totals = payload["lines"], payload["hours"]
    hours = {(line["method"], line["dataset"]): line["gpu_hours"] for line in lines}
    body = [
        [method, f"{ratio:.1f}", *(f"{hours[method, d]:.2f}" if (method, d) in hours else "" for d in totals)]
        for method, ratio in {line["method"]: line["ratio"] for line in lines}.items()
    ]
    whole = [f"all: {payload['all']:.1f}", "", *(f"{total:.1f}" for total in totals.values())]
    return _markdown(["GPU hours", "passes", *totals], [*body, whole])


def _overview(payload: dict[str, Any]) -> list[str]:
    """Return errors by protocol; in bold those that lead, or err by so little more that it could be chance."""
    columns = list(payload["overview"][0])
    usual = Counter(line["network"] for line in payload["leaderboard"]).most_common(1)[0][0]
    leads = {
        (line["method"], line["protocol"] + (f", {line['network']}" if line["network"] != usual else ""))
        for line in payload["leaderboard"]
        if line["leads"]
    }
    body = []
    for line in payload["overview"]:
        words = {column: _short(line[column], 2 if column.startswith("ms") else 1) for column in columns}
        words |= {column: f"**{words[column]}**" for column in columns if (line["method"], column) in leads}
        body.append([f"`{words['method']}`", *(words[column] for column in columns[1:])])
    return _markdown([column.replace("-", " ") for column in columns], body)


def _short(value: str | float | None, digits: int) -> str:
    return value if isinstance(value, str) else "" if value is None else f"{value:.{digits}f}"


def _boards(payload: dict[str, Any]) -> list[str]:
    """Return a heading, a command and a table for each protocol and network that anything was run on."""
    boards: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in payload["leaderboard"]:
        boards.setdefault((line["protocol"], line["network"]), []).append(line)
    text: list[str] = []
    for key, found in boards.items():
        methods = dict.fromkeys(re.findall(r"--methods (\S+)", " ".join(line["command"] for line in found)))
        command = re.sub(r"--methods \S+", f"--methods {','.join(methods)}", found[0]["command"])
        (part,) = re.findall(r"--parts (\S+)", command)
        (stream,) = [line for line in payload["streams"] if (line["protocol"], line["network"]) == key]
        reset = "never reset" if stream["reset"] == "never" else f"reset {stream['reset']}"
        about = f"{stream['images']:,} images in batches of {stream['batch']} for the `{key[1]}` network, {reset}."
        heads = ["method", "error, %", "95 % interval", "forward", "backward", "ms per image", "MB", "frontier"]
        text += ["", f"### {part}", "", about, "", "```", command, "```", ""]
        text += _markdown(heads, [_board_line(line) for line in found])
    return [*text, ""]


def _board_line(line: dict[str, Any]) -> list[str]:
    error, memory = f"{line['error, %']:.1f}", line["MB"]
    costs = (line["forward"], line["backward"], line["ms per image"])
    return [
        f"`{line['method']}`",
        f"**{error}**" if line["leads"] else error,
        line["95 % interval"],
        *(f"{cost:.2f}" for cost in costs),
        "" if memory is None else f"{memory:.0f}",
        line["frontier"],
    ]


BOARDS = {"overview": _overview, "boards": _boards}


def _candidates(rows: list[dict[str, Any]]) -> list[str]:
    """A line per method: the average error of each of its candidates, the lowest in bold."""
    tried: dict[str, dict[str, float]] = {}
    for row in (row for row in rows if row["column"].endswith("/avg")):
        method, _, settings = row["method"].partition(" ")
        tried.setdefault(method, {})[settings.strip("()") or "as it is"] = row["value"]
    body = []
    for method, found in tried.items():
        best = min(found, key=found.__getitem__)
        words = [f"{settings}: {value:.2f}" for settings, value in found.items()]
        chosen = list(found).index(best)
        words[chosen] = f"**{words[chosen]}**"
        body.append([f"`{method}`", " · ".join(words)])
    return _markdown(["method", f"average {rows[0]['metric']} of the candidates, %"], body)


LAYOUTS = {"numbers": _numbers, "printed": _printed, "candidates": _candidates}


def _evidence(found: dict[str, Any]) -> str:
    return f"{found['value']:+.2f} ({found['low']:+.2f} to {found['high']:+.2f}) {found['unit']}"


def _number(row: dict[str, Any] | None, interval: bool = False) -> str:
    if row is None:
        return ""
    digits = {"accuracy": 3, "error": 1}.get(row["metric"], 2)
    half = f" ({row['low']:.{digits}f} to {row['high']:.{digits}f})" if interval else ""
    return f"{row['value']:.{digits}f}{half}"


def _markdown(heads: list[str], body: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *body)]


def _attempts(payload: dict[str, Any]) -> list[str]:
    """Return what each attempt reached at each distance, and what it cost."""
    attempts = payload["attempts"]
    distances = [name for name in next(iter(attempts.values())) if name not in ("nll", "cost")]
    heads = ["attempt", *(f"accuracy at {d}" for d in distances), "negative log-likelihood", "time, in fits"]
    body = []
    for name, found in attempts.items():
        words = [f"{found[d][0]:.3f} ({found[d][1]:.3f} to {found[d][2]:.3f})" for d in distances]
        body.append([name, *words, f"{found['nll']:.2f}", f"{found['cost']:.1f}"])
    return _markdown(heads, body)


def _methods() -> list[str]:
    """Return the table of methods that the registry has."""
    head = ["| method | adapts | norm layers it needs | source data | scored |", "|---|---|---|---|---|"]
    return head + [f"| `{i.name}` | {i.adapts} | {i.norm} | {i.source} | {i.scored} |" for i in list_methods(True)]


def _stages(payload: dict[str, Any]) -> list[str]:
    """Return errors by method and by stage of a stream."""
    errors = payload["errors"]
    heads = ["error, %", *next(iter(errors.values()))]
    return _markdown(
        heads, [[f"`{name}`", *(f"{value:.1f}" for value in each.values())] for name, each in errors.items()]
    )


def _rules(rows: list[dict[str, Any]]) -> list[str]:
    """Return mean errors by network and order, a column for each rule; a bare number is one of `standardise`."""
    rules = [name for name in rows[0] if name not in ("network", "order") and not name.endswith(", clean")]
    heads = [f"`standardise={name}`" if name[0].isdigit() else f"`{name}`" for name in rules]
    return _markdown(
        ["network, order: error, % (clean images alone)", *heads],
        [
            [f"{row['network']}, {row['order']}", *(f"{row[name]:.1f} ({row[f'{name}, clean']:.1f})" for name in rules)]
            for row in rows
        ],
    )


def _predictions_of_auto(rows: list[dict[str, Any]]) -> list[str]:
    """Return errors of `auto` and of its two predictions by kind of stream and step size, means over networks."""
    names = [name for name in rows[0] if name not in ("network", "lr", "streams")]
    kinds = dict.fromkeys((row["streams"], row["lr"]) for row in rows)
    return _markdown(
        ["streams, step size: error, %", *names],
        [
            [f"{kind}, {lr:g}", *(f"{statistics.fmean(row[name] for row in own):.1f}" for name in names)]
            for kind, lr in kinds
            for own in [[row for row in rows if (row["streams"], row["lr"]) == (kind, lr)]]
        ],
    )


def _without_clean(rows: list[dict[str, Any]]) -> list[str]:
    """Return errors on shifted and on clean images by network and order, a column for each method."""
    names = [name.removesuffix(": clean") for name in rows[0] if name.endswith(": clean")]
    heads = [
        "network, order: error, % (on clean images)",
        *(f"`{name.split(',')[0]}`{name.partition(',')[2]}" for name in names),
    ]
    return _markdown(
        [*heads, "distance of clean images"],
        [
            [
                f"{row['network']}, {row['order']}",
                *(f"{row[f'{name}: shifted']:.1f} ({row[f'{name}: clean']:.1f})" for name in names),
                f"{row['distance']:.3f}",
            ]
            for row in rows
        ],
    )


def _shift_scores(models: list[dict[str, Any]]) -> list[str]:
    """Return, by network, which images are called off the support, and how the shift score goes with the error."""
    return _markdown(
        [
            "network",
            "clean images off, %",
            "of one class alone",
            "conditions in which errors double",
            "9 in 10 images off in",
            "each image by itself",
            "rank correlation, severity 2",
            "severity 5",
        ],
        [
            [
                f"`{each['model'].removeprefix('zoo:')}`",
                *(f"{100 * share:.1f}" for share in each["clean"].values()),
                *(str(each[name]) for name in ("doubled", "off_by_90_percent", "off_alone_by_90_percent")),
                *(f"{found['set_shift']:.2f}" for found in each["rank"].values()),
            ]
            for each in models
        ],
    )


def _streaming(rows: list[dict[str, Any]]) -> list[str]:
    """Return what a call of each method costs, in plain forward passes of the same size."""
    return _markdown(
        ["network", "batch", "method", "plain pass, ms", "median", "mean", "longest call"],
        [
            [
                f"{row['network']}, {row['side']} pixels",
                str(row["batch"]),
                f"`{row['method'].partition(',')[0]}`{''.join(row['method'].partition(',')[1:])}",
                f"{1000 * row['plain_cpu_seconds']:.1f}",
                f"{row['ratio_cpu']:.2f}",
                f"{row['ratio_mean']:.2f}",
                f"{row['ratio_max']:.1f}",
            ]
            for row in rows
            if row["method"] != "plain"
        ],
    )


def _over_passes(rows: list[dict[str, Any]]) -> list[str]:
    """Return processor time of methods over that of the passes they make."""
    body = [
        [row["method"], f"{row['passes']['forward']} + {row['passes']['backward']}", f"{row['ratio_cpu']:.2f}"]
        for row in rows
    ]
    return _markdown(["method", "passes of a batch of 128, forward + backward", "time over that of the passes"], body)


OF_FILES = {
    ("overhead_peers", "rows"): _over_passes,
    ("streaming", "ratios"): _streaming,
    ("shift_score", "goals"): lambda payload: _shift_scores(payload["models"]),
    ("method", "table"): lambda _: _methods(),
    ("estimate", "streams"): lambda payload: _estimates(payload["summary"]),
    ("norm_statistics", "streams"): lambda payload: _statistics(payload["summary"]),
    ("minimal_rule", "errors"): lambda payload: _rules(payload["rows"]),
    ("minimal_attempts", "errors"): lambda payload: _rules(payload["rows"]),
    ("auto_rule", "errors"): lambda payload: _predictions_of_auto(payload["rows"]),
    ("no_clean_images", "errors"): lambda payload: _without_clean(payload["rows"]),
    ("changing_stream", "errors"): _stages,
    ("paper_cost", "hours"): _hours,
    ("dense_attempts", "attempts"): _attempts,
    ("fig3_map", "lines"): lambda payload: _listed(payload["lines"], ""),
}
"""Tables of single files under results/, and of the registry."""


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [page for page in PAGES if write_tables(page.read_text()) != page.read_text()]
    for page in stale if not check else ():
        page.write_text(write_tables(page.read_text()))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
