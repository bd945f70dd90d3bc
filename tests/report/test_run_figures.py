"""Which drawings a run gets follows from what its results hold."""

import xml.etree.ElementTree as ET

from html_check import read
from run_maker import make_run

from offsupport.bench.runs import status
from offsupport.bench.store import Record
from offsupport.report.figures import (
    constraint_sections,
    curve_figures,
    few_at_a_time,
    on_axes,
    stream_figures,
    theory_sections,
)
from offsupport.report.run_page import _intervals, write_report
from offsupport.results import Row
from offsupport.studies.guarantee_runs import GuaranteeConfig
from offsupport.studies.latent_runs import RadiusConfig


def row(method, column, value=10.0):
    return Row(method=method, column=column, metric="error", unit="percent", value=value, low=9, high=11, n=100)


def words(drawing):
    return {element.text for element in ET.fromstring(drawing.svg).iter("{http://www.w3.org/2000/svg}text")}


def test_one_line_per_block_in_one_drawing_per_method():
    rows = [row(m, f"block-{b}/severity-{s}") for m in ("source", "tent") for b in (8, 32) for s in (1, 2)]
    assert on_axes(rows)
    drawings = curve_figures(rows, [])
    assert [drawing.caption.split(" ")[0] for drawing in drawings] == ["source", "tent"]
    assert {"block-8", "block-32", "severity"} <= words(drawings[0])


def test_numbers_of_images_stand_one_step_apart_and_end_with_all():
    rows = [row(m, f"digits-c/n-{n}") for m in ("bn", "tent") for n in ("all", "1", "16", "4")]
    (drawing,) = curve_figures(rows, [])
    texts = [e.text for e in ET.fromstring(drawing.svg).iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in ("1", "4", "16", "all")] == ["1", "4", "16", "all"]


def test_severities_that_differ_become_curves_and_their_average(tmp_path):
    folder = make_run(tmp_path, method=["source", "bn"], corruption=["fog", "snow"], severity=[1, 5])
    path, data = write_report(folder)
    assert on_axes(data.rows)
    captions = [drawing.caption for drawing in curve_figures(data.rows, status(folder).done)]
    assert captions[0].startswith("The average over corruptions")
    assert [caption.split(" ")[0] for caption in captions[1:]] == ["digits-c/fog", "digits-c/snow"]
    assert read(path.read_text()).findings == []


def test_columns_of_one_name_in_two_data_sets_are_drawn_apart():
    rows = [row("bn", "digits/clean"), row("bn", "cifar10/clean")]
    assert {"digits/clean", "cifar10/clean"} <= words(_intervals(rows, [])[0])
    assert "clean" in words(_intervals(rows[:1], [])[0])


def test_plain_columns_are_no_curve():
    assert not on_axes([row("bn", "digits-c/fog"), row("bn", "digits-c/n-4")])


def test_gates_and_ranks_appear_with_constrained_methods_only(tmp_path):
    records = status(make_run(tmp_path, method=["bn", "tent+sc"], corruption=["fog"])).done
    (section,) = constraint_sections(records)
    assert [cells[0] for cells in section.tables[0].rows] == ["tent+sc"]
    assert section.tables[0].rows[0][1:3] == ["25.0", "2.00"]
    assert {"layer1.conv", "effective rank"} <= words(section.figures[0])
    assert constraint_sections([record for record in records if record.cell.config["method"] == "bn"]) == []


def test_streams_are_drawn_by_data_set_and_length(tmp_path):
    records = status(make_run(tmp_path, method=["source", "bn"], corruption=["fog", "snow"])).done
    (drawing,) = stream_figures(records)
    assert {"source", "bn", "batches seen"} <= words(drawing)
    records[0].deterministic["trace"] = [0.5, 0.5]
    assert len(stream_figures(records)) == 2


def test_episodes_are_no_stream(tmp_path):
    run = {"method": ["source", "bn"], "corruption": ["fog"]}
    records = status(make_run(tmp_path, **run, protocol=["online", "episodic"])).done
    (drawing,) = stream_figures(records)
    assert {"source", "bn"} <= words(drawing)  # named without the protocol, which they share


def test_theory_tells_radii_scores_and_witnesses():
    cells = RadiusConfig(shift="dense", runs=3).cell(), GuaranteeConfig(study="gap", runs=4).cell()
    found = (
        {"radius": {"certified": [0.1, 0.2, 0.9]}},
        {"accuracy": {}, "scores": {"gap": [1.0, 2.0, 3.0, 4.0]}, "failing": {"i smooth": 3}},
    )
    records = [Record(cell.key, cell, told, {}, {}) for cell, told in zip(cells, found, strict=True)]
    (section,) = theory_sections(records)
    radius, gap, failing = (table.rows[0] for table in section.tables)
    assert radius[:2] == ["dense: certified", "0.200"]
    assert gap[1:] == ["2.500", "1.750 to 3.250", "4"]
    assert failing == ["i smooth", "75", "4"]
    assert theory_sections([]) == []


def test_files_beside_the_page_are_what_it_offers(tmp_path):
    path, data = write_report(make_run(tmp_path, method=["source", "bn"], corruption=["fog", "snow"]))
    links = [attrs for tag, attrs in read(path.read_text()).tags if tag == "a" and "download" in attrs]
    assert [link["download"] for link in links] == ["report.csv", "report.tex"]
    assert (tmp_path / "report.csv").read_text().count("\n") == 1 + len(data.rows)
    assert r"\begin{tabular}" in (tmp_path / "report.tex").read_text()


def test_no_drawing_has_more_lines_than_colours():
    lines = {f"m{i}": i for i in range(16)}
    groups = few_at_a_time(lines)
    assert list(groups) == [" (m0 to m6)", " (m7 to m13)", " (m14 to m15)"]
    assert {name: value for group in groups.values() for name, value in group.items()} == lines
    assert few_at_a_time({"a": 1}) == {"": {"a": 1}}
    eight = [row(f"m{i}", f"digits-c/c{j}") for i in range(8) for j in range(7)]
    parts = _intervals(eight, [])
    assert [part.caption for part in parts] == [
        "Every column (m0 to m6) with its 95 % interval.",
        "Every column (m7) with its 95 % interval.",
    ]
    assert "m7" not in words(parts[0])
