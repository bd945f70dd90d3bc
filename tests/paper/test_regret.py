"""The table of regret: what its design covers, what streams it makes, and what follows from made-up results."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from record_maker import make_record
from torch import nn

import offsupport
from offsupport import zoo
from offsupport.bench.cell import Place
from offsupport.bench.store import Record
from offsupport.core.errors import ConfigError, DataMissingError
from offsupport.data import STANDARD, Arrays
from offsupport.report.figures import SHOWN_METHODS, heat_map, regret_sections
from offsupport.results.correctness import pack, unpack
from offsupport.studies.adaptation import AdaptConfig, stats_of
from offsupport.studies.errors import parts_of
from offsupport.studies.ours import regret
from offsupport.studies.ours.regret import RegretConfig, Walk, stream_of_stages
from offsupport.studies.tables import TABLES, Request, TableOptions
from offsupport.training.run import held_out_rows, split

TABLE = TABLES["regret"]
NOWHERE = Place(Path("nowhere"))


def conditions(*parts):
    return [condition for part in parts for condition in regret.PARTS["small"][part][1]()]


# The design.


def test_the_design_covers_every_level_of_every_factor():
    found = conditions("core", "rest")
    names = [condition.name for condition in found]
    assert len(set(names)) == len(names) == 15 + 41
    alone = {each.stages[0] for each in found if len(each.stages) == 1}
    assert alone == {"clean", *(f"{name}/{level}" for name in STANDARD for level in (2, 5))}
    settings = {(order, size) for order in ("iid", "sorted", "dirichlet") for size in (1, 16, 128)}
    usual = [each for each in found if not each.episode]
    assert {(each.order, each.batch_size) for each in usual} == settings
    assert {(each.order, each.batch_size) for each in usual if each.stages == ("clean",)} == settings
    assert {each.episode for each in found} == {0, 1, 4, 16, 64}
    assert {each.attack for each in found} == {"none", "binary", "inverted", "repeat"}
    assert any(each.cycles == 5 and len(each.stages) == 15 for each in found)
    assert any(each.mixed for each in found)
    assert all(each.limit >= 1000 for each in found)


def test_the_core_comes_first_and_has_every_factor_too():
    core = conditions("core")
    assert {each.batch_size for each in core} == {1, 16, 128}
    assert {each.order for each in core} == {"iid", "sorted", "dirichlet"}
    assert any(each.cycles > 1 for each in core)
    assert any(each.attack != "none" for each in core)
    cells = TABLE.cells("small", TableOptions(parts=("core",), methods=("source", "bn")))
    assert len(cells) == 2 * 2 * len(core)
    assert {cell.config["source_split"] for cell in cells} == {"held-out"}
    assert {cell.config["source_images"] for cell in cells} == {500}


def test_methods_that_need_batch_norm_are_left_out_where_there_is_none(monkeypatch):
    cells = TABLE.cells("small", TableOptions(parts=("vit",), methods=("source", "bn", "tent")))
    assert {cell.config["method"] for cell in cells} == {"source", "tent"}
    monkeypatch.setattr(zoo, "names", lambda: ["cifar10-mae-tiny-finetune"])
    with pytest.raises(DataMissingError, match="gn yet"):
        TABLE.cells("small", TableOptions(parts=("group-norm",), methods=("source",)))


def test_a_part_that_is_none_is_refused_and_parts_are_remembered():
    with pytest.raises(ConfigError, match="no part 'cor'") as refused:
        TABLE.cells("small", TableOptions(parts=("cor",)))
    assert "core" in refused.value.remedy
    asked = Request("regret", "small", TableOptions(parts=("core",), methods=("bn",)))
    assert Request.of(json.loads(json.dumps(asked.to_dict()))) == asked


def test_by_default_it_runs_what_is_registered():
    names = {cell.config["method"] for cell in TABLE.cells("smoke", TableOptions())}
    assert names == set(regret.METHODS) & set(offsupport.list_methods())


# Streams.


def config(**settings):
    return RegretConfig(dataset="digits-c", method="source", condition="any", **{"limit": 60, **settings})


def order_of(stream):
    return stream.plan.rows.tolist(), [stream.domains[i].name for i in stream.plan.domain]


def test_single_images_come_in_the_order_of_batches():
    streams = [stream_of_stages(config(stages=["fog/5"], batch_size=size), NOWHERE)[0] for size in (1, 32)]
    assert order_of(streams[0]) == order_of(streams[1])
    assert [len(stream) for stream in streams] == [60, 2]


def test_stages_follow_each_other_and_no_image_comes_twice():
    stages = ["clean", "contrast/5", "clean"]
    stream, starts = stream_of_stages(config(stages=stages, order="sorted", batch_size=16), NOWHERE)
    rows, names = order_of(stream)
    assert len(set(rows)) == 60
    assert names == ["clean"] * 20 + ["contrast/5"] * 20 + ["clean"] * 20
    assert starts == {0, 2, 4}
    labels = stream.domains[0].dataset.labels[rows]
    assert all((np.diff(labels[first : first + 20]) >= 0).all() for first in (0, 20, 40))
    assert [len(batch.x) for batch in stream] == [16, 4] * 3


def test_cycles_visit_every_stage_again():
    stream, _ = stream_of_stages(config(stages=["clean", "contrast/5"], cycles=3, batch_size=10), NOWHERE)
    assert order_of(stream)[1] == (["clean"] * 10 + ["contrast/5"] * 10) * 3


def test_short_streams_begin_anew_with_another_stage():
    settings = {"stages": ["clean", "contrast/5"], "episode": 4, "batch_size": 4, "limit": 20}
    stream, starts = stream_of_stages(config(**settings), NOWHERE)
    assert starts == {0, 1, 2, 3, 4}
    assert order_of(stream)[1][::4] == ["clean", "contrast/5", "clean", "contrast/5", "clean"]


def test_mixed_images_differ_from_neighbour_to_neighbour():
    stream, starts = stream_of_stages(config(stages=["clean", "contrast/5"], mixed=True, batch_size=16), NOWHERE)
    names = order_of(stream)[1]
    assert set(names[:16]) == {"clean", "contrast/5"}
    assert starts == {0}


# Clean images for the calibration.


def test_held_out_images_are_those_that_no_recipe_trains_on():
    data = Arrays(np.zeros((20, 4, 4, 3), np.uint8), np.arange(20), name="any")
    rows = held_out_rows(data, 5).tolist()
    trained, kept_back = split(data, 5)
    assert kept_back.labels.tolist() == rows
    assert sorted([*trained.labels.tolist(), *rows]) == list(range(20))


def test_held_out_images_of_a_network_that_held_none_out_are_refused():
    asked = AdaptConfig(dataset="digits-c", method="minimal", source_split="held-out")
    with pytest.raises(ConfigError, match="held out"):
        stats_of(asked, nn.Identity(), NOWHERE, labelled=True)


def test_source_statistics_name_a_row_only_where_a_method_has_several():
    ours = make_record("minimal", "fog", [True], source_split="held-out", source_images=500)
    assert {part.method for part in parts_of([make_record("bn", "fog", [True]), ours])} == {"bn", "minimal"}
    both = parts_of([make_record("minimal", "fog", [True], source_images=500), ours])
    assert {part.method for part in both} == {"minimal (source_split=held-out)", "minimal (source_split=train)"}


# One walk along a stream.


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3)]
    model = nn.Sequential(*layers)
    model(torch.rand(256, 3, 8, 8))  # running statistics
    with torch.no_grad():
        layers[-1].weight.mul_(20)
    return model.eval()


@pytest.fixture(scope="module")
def calibrated():
    model, draw = network(), torch.Generator().manual_seed(1)
    x = torch.rand(128, 3, 8, 8, generator=draw)
    labels = model(x).argmax(1).where(torch.rand(128, generator=draw) > 0.3, torch.randint(3, (128,), generator=draw))
    return model, offsupport.source_stats(model, x.split(64), "tent", labels=labels.tolist())


def batches(count=2, size=64):
    draw = torch.Generator().manual_seed(2)
    return [
        (torch.rand(size, 3, 8, 8, generator=draw), torch.randint(3, (size,), generator=draw)) for _ in range(count)
    ]


def walked(walk, given):
    for number, (x, y) in enumerate(given):
        walk.take(x, y, torch.arange(len(x)) + len(x) * number, fresh=False)
    return walk


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_watched_from_outside_is_what_the_monitor_says(calibrated):
    model, stats = calibrated
    given = batches()
    outside = walked(Walk(offsupport.adapt(model, "tent", source=stats)), given)
    inside = walked(Walk(offsupport.adapt(model, "tent", source=stats, monitor=True)), given)
    assert outside.judged() == inside.judged()
    assert outside.judged()["n"] == 128
    assert outside.judged()["source"] is not None
    assert outside.correct == inside.correct
    # One image to see what the model takes, its own pass, and one of the source model where the adapter watches that.
    assert outside.passes == {"forward": 1 + 128, "backward": 128}
    assert inside.passes["forward"] == 1 + 2 * 128


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_new_stream_starts_from_the_source_model(calibrated):
    model, _ = calibrated
    (x, y), rows = batches(1)[0], torch.arange(64)
    walk = Walk(offsupport.adapt(model, "tent", lr=1.0), watched=False)
    for fresh in (False, True):
        walk.take(x, y, rows, fresh=fresh)
    assert walk.correct[:64] == walk.correct[64:]


# Rows, listings and claims from made-up results.


def record(method, condition, wrong, n=1000, network="supervised", estimate=None, **settings):
    given = {"order": "iid", "stages": ["fog/5"], "source_split": "held-out", **settings}
    cell = RegretConfig(
        dataset="cifar10-c", model=regret.NETWORKS[network].model, method=method, condition=condition, **given
    ).cell()
    right = np.arange(n) >= wrong
    images = {"images": pack(np.arange(n), right)}
    if estimate:
        estimate = {**estimate, "n": n, "images": images["images"]}
    found = {
        "error": wrong / n,
        "n": n,
        "domains": {"stream": images, "settled": images},
        "estimate": estimate,
        "trace": [0.1, 0.2],
        "passes": {"forward": 1.0, "backward": 0.5},
    }
    return Record(cell.key, cell, found, {}, {"cpu_seconds": 2.0})


def said(source, adapted, verdict="unknown", width=0.05):
    spans = {"source": source, "adapted": adapted}
    return {**{name: [v, v - width, v + width] for name, v in spans.items()}, "verdict": verdict}


THREE = [
    *(record(method, "a, iid, 128", wrong) for method, wrong in (("source", 300), ("bn", 200), ("minimal", 210))),
    *(record(method, "clean, sorted, 16", wrong) for method, wrong in (("source", 80), ("bn", 600), ("minimal", 82))),
]


def test_regret_is_to_the_best_of_each_condition_and_harm_to_the_source():
    values = {(row.method, row.column): row.value for row in TABLE.rows(THREE)}
    assert values["bn", "grid/regret-mean"] == pytest.approx((0 + 52) / 2)
    assert values["bn", "grid/regret-worst"] == pytest.approx(52)
    assert values["minimal", "grid/regret-mean"] == pytest.approx((1 + 0.2) / 2)
    assert values["minimal", "grid/harm-worst"] == pytest.approx(0.2)
    assert values["minimal", "grid/harm-mean"] == pytest.approx((-9 + 0.2) / 2)
    assert values["source", "grid/regret-worst"] == pytest.approx(10)
    for row in TABLE.rows(THREE):
        assert row.low <= row.value <= row.high


def test_goals_are_judged_where_the_method_is():
    verdicts = {claim.claim: claim.verdict for claim in TABLE.claims(THREE)}
    assert verdicts["minimal errs at most 1 point more than source in every condition of 1,000 images"] == "holds"
    assert verdicts["minimal errs at most 1 point more than source on clean images sorted by label"] == "holds"
    assert verdicts["the mean regret of minimal is at most 0.7 points"] == "undecided"
    bad = [record("minimal", "clean, sorted, 16", 300), *(each for each in THREE if each is not THREE[-1])]
    verdicts = {claim.claim: claim.verdict for claim in TABLE.claims(bad)}
    assert set(verdicts.values()) == {"does-not-hold"}
    assert not list(TABLE.claims(THREE[:2]))


def test_short_streams_decide_nothing_about_the_worst_harm():
    made = [record("source", "streams of 4", 10, n=96), record("minimal", "streams of 4", 40, n=96)]
    assert not [claim for claim in TABLE.claims(made) if "every condition" in claim.claim]


def test_single_images_are_held_against_the_largest_batches_of_the_same_stream():
    sizes = {1: 220, 16: 100, 128: 200}
    made = [record("minimal", f"fog 5, iid, {size}", wrong) for size, wrong in sizes.items()]
    (found,) = (claim for claim in TABLE.claims(made) if "single images" in claim.claim)
    assert found.evidence.value == pytest.approx(2.0 - 0.5)
    assert found.verdict == "does-not-hold"


def test_the_summary_says_where_it_was_worst_and_what_it_cost():
    summary, errors, _ = TABLE.summaries(THREE)
    lines = {line["method"]: line for line in summary.to_dicts()}
    assert lines["bn"]["regretted most in"] == lines["bn"]["harmed most in"] == "clean, sorted, 16"
    assert (lines["bn"]["harmed by over 1 point in"], lines["minimal"]["harmed by over 1 point in"]) == (1, 0)
    assert lines["bn"]["ms of one core per image"] == pytest.approx(2.0)
    assert lines["bn"]["backward passes per image"] == pytest.approx(0.5)
    assert errors.to_dicts()[0] == {
        "network": "supervised",
        "condition": "a, iid, 128",
        "images": 1000,
        "source": 30.0,
        "bn": 20.0,
        "minimal": 21.0,
    }


def test_a_method_that_lacks_a_network_is_compared_where_it_is():
    more = [record("source", "a, iid, 128", 100, network="vit"), *THREE]
    lines = {(line["network"], line["method"]): line for line in TABLE.summaries(more)[0].to_dicts()}
    assert lines["all", "source"]["conditions"] == 3
    assert lines["all", "bn"]["conditions"] == 2
    assert lines["all", "bn"]["harmed most in"] == "supervised: clean, sorted, 16"


def test_estimates_are_held_against_both_models_on_the_same_images():
    made = [
        record("source", "a, iid, 128", 300, estimate=said(0.72, 0.72)),
        record("bn", "a, iid, 128", 400, estimate=said(0.72, 0.5, "harms")),
        record("auto", "a, iid, 128", 250, estimate=said(0.72, 0.74, "harms")),
    ]
    bn = next(each for each in regret.judgements(made) if each.method == "bn")
    assert bn.truth == pytest.approx({"source": 0.7, "adapted": 0.6})
    assert bn.errors() == pytest.approx([0.02, 0.1])
    assert bn.inside() == [True, False]
    assert bn.harmed
    lines = {(line["method"], line["streams"]): line for line in TABLE.summaries(made)[2].to_dicts()}
    every = lines["all", "iid"]
    assert (every["how many"], every["harmed"], every["harms said there"]) == (2, 1, 1)  # without the source model
    assert every["harms said elsewhere"] == "1 of 1"
    assert every["error of adapted estimate"] == pytest.approx((10 + 1) / 2, abs=0.01)
    assert lines["bn", "all"]["adapted covered (%)"] == 0


def test_the_window_of_an_estimate_is_looked_up_in_the_source_result():
    source = record("source", "a, iid, 128", 300)
    other = record("bn", "a, iid, 128", 0, estimate=said(0.0, 1.0))
    window = pack(np.arange(200, 400), np.ones(200, bool))
    found = {**other.deterministic, "estimate": {**other.deterministic["estimate"], "images": window}}
    (judged,) = regret.judgements([source, dataclasses.replace(other, deterministic=found)])
    assert judged.truth == pytest.approx({"source": 0.5, "adapted": 1.0})
    assert len(unpack(window)[0]) == 200


@pytest.mark.parametrize(
    ("off", "said_where", "verdicts"),
    [(0.0, "harms", {"holds"}), (0.2, "helps", {"does-not-hold"})],
)
def test_claims_about_estimates_follow_from_streams(off, said_where, verdicts):
    made = []
    for seed in range(60):
        made.append(record("source", "a, iid, 128", 300, seed=seed))
        worse = record("auto", "a, iid, 128", 400, seed=seed, estimate=said(0.7 - off, 0.6 - off, said_where))
        made.append(worse)
    found = [claim for claim in TABLE.claims(made) if claim.claim.endswith(("of auto", "cases", "streams"))]
    wanted = [claim for claim in found if "of auto" in claim.claim]
    assert len(wanted) == 3
    assert {claim.verdict for claim in wanted} == verdicts


# The page.


def test_the_page_maps_harm_and_regret_with_few_columns():
    many = [record(f"m{i}", "a, iid, 128", 100 + i) for i in range(9)] + THREE
    (section,) = regret_sections(many)
    assert [drawing.caption.split()[0] for drawing in section.figures] == ["Harm", "Regret"]
    assert f"{SHOWN_METHODS} of 12 methods" in section.figures[1].caption
    assert ">m0<" in section.figures[1].svg
    assert ">m8<" not in section.figures[1].svg
    assert regret_sections([]) == []


def test_a_changing_stream_is_drawn_along_the_way():
    stages = ["clean", "fog/5", "clean"]
    made = [record(method, "clean > fog 5 > clean, iid, 16", 100, stages=stages) for method in ("source", "bn")]
    (section,) = regret_sections(made)
    assert "Along the stream" in section.figures[-1].caption


def test_a_map_writes_every_number():
    drawn = heat_map({"line": {"a": 12.3, "b": -0.4}}, "points")
    assert "12.3" in drawn
    assert "0.4" in drawn


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        *(
            ({"stages": stages}, "The stages are")
            for stages in ([], ["fog"], ["fog/x"], ["a/b/5"], [None], [["fog/5"]])
        ),
        ({"cycles": 10**9}, "cycles is 1000000000"),  # a list of visits that no memory holds
        ({"cycles": 0}, "cycles is 0"),
        ({"episode": -1}, "episode is -1"),
        ({"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_a_cell_that_no_grid_of_ours_says_is_refused(settings, word):
    with pytest.raises(ConfigError, match=word):
        RegretConfig(method="bn", condition="x", dataset="digits-c", **settings)
