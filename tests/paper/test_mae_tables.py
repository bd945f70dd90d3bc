"""Tables 3 and 4 from made-up results: arms, averages, deviations, claims and the paper's own arithmetic."""

import dataclasses

import numpy as np
import pytest
from record_maker import make_record

from offsupport import zoo
from offsupport.data import EXTRA, STANDARD
from offsupport.studies import TABLES, TableOptions
from offsupport.studies.mae_arms import (
    APART,
    BATCHED,
    CHOSEN_ON,
    SCALES,
    SHIFTS,
    Arm,
    adapted_models,
    by_arm,
    config_of,
)
from offsupport.studies.paper.table3 import PRINTED

MODELS = SCALES["smoke"].models
RATES = {None: 0.4, 0: 0.5, 1: 0.7, 2: 0.7, 3: 0.6}
METHODS = {None: "source", 0: "mae-ttt"}


def record(arm, corruption, rate, seed):
    rng = np.random.default_rng([seed, (*STANDARD, *SHIFTS, *APART).index(corruption)])
    correct = rng.permutation(40) < 40 * rate  # the same images are easy for every arm
    hyper = {"em_steps": arm.em_steps} if arm.em_steps else {}
    hyper |= {} if arm.reconstructs else {"recon_steps": 0}
    method = METHODS.get(arm.em_steps, "mae-ttt+em")
    return make_record(method, corruption, correct, "digits-c", hyper=hyper, model=MODELS[arm.model], seed=seed)


def records(arms, seeds=2, shifts=STANDARD):
    return [record(arm, c, rate + 0.1 * s, s) for arm, rate in arms.items() for c in shifts for s in range(seeds)]


def test_table4_has_a_column_per_number_of_steps():
    found = TABLES["table4"].measure("smoke", records({Arm("probe", k): rate for k, rate in RATES.items()})).to_dict()
    rows = {row["column"]: row for row in found["rows"]}
    assert list(rows) == ["source", "em-0", "em-1", "em-2", "em-3"]
    assert [row["value"] for row in rows.values()] == pytest.approx([45, 55, 75, 75, 65])
    assert rows["em-1"]["paper"] == 63.99
    assert rows["em-1"]["deviation"] == pytest.approx(np.std([70, 80], ddof=1))
    assert rows["em-1"]["n"] == 15 * 2 * 40
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows.values())
    verdicts = [claim["verdict"] for claim in found["claims"]]
    assert verdicts == ["holds", "holds", "undecided", "does-not-hold"]
    assert {row["metric"] for row in rows.values()} == {"accuracy"}


def test_table4_shows_the_joint_model_where_it_was_adapted():
    both = {Arm(model, k): rate for model in ("probe", "joint") for k, rate in RATES.items()}
    methods = {row["method"] for row in TABLES["table4"].measure("smoke", records(both)).to_dict()["rows"]}
    assert methods == {"mae-ttt+em", "mae-ttt+em (joint)"}


def test_table3_compares_regimes_per_corruption():
    arms = {Arm("joint"): 0.3, Arm("finetune"): 0.4, Arm("probe"): 0.4, Arm("probe", 0): 0.5, Arm("probe", 1): 0.7}
    made = [r for r in records(arms, seeds=1) if not (r.cell.config["corruption"] == "fog" and r.cell.config["hyper"])]
    made.append(record(Arm("probe", 1), "fog", 0.2, 0))
    found = TABLES["table3"].measure("smoke", made).to_dict()
    rows = {(row["method"], row["column"]): row for row in found["rows"]}
    assert len(rows) == 5 * 16
    assert rows["joint-train", "digits-c/avg"]["value"] == pytest.approx(30)
    assert rows["mae-ttt", "digits-c/avg"]["paper"] == 43.25
    assert rows["mae-ttt+em", "digits-c/fog"]["paper"] == 47.8
    verdicts = {claim["claim"]: claim["verdict"] for claim in found["claims"]}
    assert verdicts["entropy steps lower the error of MAE-TTT"] == "holds"
    assert verdicts["entropy steps lower the error of MAE-TTT on fog"] == "does-not-hold"
    assert verdicts["entropy steps lower the error of MAE-TTT on snow"] == "holds"


def test_averages_are_those_of_the_printed_entries():
    averages = {method: values["avg"] for method, values in PRINTED.items()}
    assert averages["mae-ttt"] == 43.25  # 45.92 is printed
    assert averages["mae-ttt+em"] == 47.75  # 47.77 is printed
    assert averages["joint-train"] == pytest.approx(26.88, abs=0.01)
    assert averages["fine-tune"] == pytest.approx(34.45, abs=0.01)
    assert averages["vit-probe"] == pytest.approx(32.06, abs=0.01)
    assert all(len(values) == 16 and set(values) - {"avg"} == set(STANDARD) for values in PRINTED.values())


def test_table3_takes_what_table4_has_computed():
    four = TABLES["table4"].cells("smoke", TableOptions())
    three = TABLES["table3"].cells("smoke", TableOptions())
    shared = set(four) & set(three)
    assert {cell.config["method"] for cell in shared} == {"source", "mae-ttt", "mae-ttt+em"}
    names = {cell.config["model"].partition("@")[0] for cell in set(three) - shared}
    assert names == {"digits-mae-joint", "digits-mae-finetune"}
    assert sum(cell.kind == "episode" for cell in three) == 1


@pytest.mark.parametrize(("accuracy", "models"), [(0.5, ["probe", "joint"]), (0.7, ["probe"])])
def test_a_weak_probe_brings_the_joint_model_in(accuracy, models, monkeypatch):
    monkeypatch.setattr(zoo, "names", lambda: ["cifar10-mae-tiny", "cifar10-mae-tiny-joint"])
    monkeypatch.setattr(zoo, "card", lambda name: {"test": {"accuracy": accuracy}, "file_sha256": "ab" * 32})
    assert adapted_models(SCALES["small"]) == models
    cells = TABLES["table4"].cells("small", TableOptions())
    assert len(cells) == 3 * 15 * 5 * len(models) + 1
    assert {cell.config.get("limit") for cell in cells if cell.kind == "adapt"} == {34}
    assert len(TABLES["table4"].cells("small", TableOptions(seeds=1))) == 15 * 5 * len(models) + 1


def test_arms_are_found_again_whatever_the_hash_of_the_weights():
    made = make_record("source", "fog", [1, 0], model="zoo:cifar10-mae-tiny@abcdefabcdef")
    assert list(by_arm([made])) == [Arm("probe", None)]
    assert dataclasses.replace(Arm("probe"), em_steps=0) == Arm("probe", 0)


def test_what_was_chosen_is_for_its_regime_and_method():
    scale = dataclasses.replace(SCALES["small"], chosen={("probe", "mae-ttt"): {"lr": 0.5, "masks": 7}})
    arms = (Arm("probe", 0), Arm("joint", 0), Arm("probe", 1), Arm("probe"))
    hypers = [config_of(scale, arm, "fog", seed=0).hyper for arm in arms]
    assert [(hyper.get("lr"), hyper.get("masks")) for hyper in hypers] == [
        (0.5, 7),
        (None, 32),
        (None, 32),
        (None, None),
    ]


def test_step_sizes_are_tuned_on_corruptions_that_are_not_reported():
    cells = TABLES["tuning-mae"].cells("smoke", TableOptions())
    assert len(cells) == len(set(cells)) == (3 + 9) * len(EXTRA)
    assert {cell.config["corruption"] for cell in cells} == set(CHOSEN_ON)
    assert {c.config["hyper"]["em_tune"] for c in cells if c.config["method"] == "mae-ttt+em"} == {
        "norms",
        "encoder",
        "encoder-and-head",
    }
    cells = TABLES["tuning-mae"].cells("small", TableOptions())
    assert {cell.config["corruption"] for cell in cells} == set(EXTRA)
    budget = {m: {c.config["hyper"]["lr"] for c in cells if c.config["method"] == m} for m in ("mae-ttt", "mae-ttt+em")}
    assert budget["mae-ttt"] == budget["mae-ttt+em"] == {0.0017, 0.005, 0.015, 0.05}


def test_candidates_are_averaged_over_corruptions():
    def made(rate, corruption, correct):
        hyper = {"lr": rate, "em_steps": 1}
        return make_record("mae-ttt+em", corruption, correct, "digits-c", hyper=hyper, model=MODELS["probe"])

    results = [made(0.1, name, [1, 1, 0, 0]) for name in EXTRA] + [made(0.2, name, [1, 1, 1, 0]) for name in EXTRA[:2]]
    found = TABLES["tuning-mae"].measure("smoke", results).to_dict()["rows"]
    averages = {row["method"]: row["value"] for row in found if row["column"] == "digits-c/avg"}
    assert averages == {"mae-ttt+em (probe, lr=0.1)": 50.0}  # the other lacks two corruptions
    assert sum(row["method"] == "mae-ttt+em (probe, lr=0.2)" for row in found) == 2


DIGITS = {Arm("probe"): 0.4, Arm("probe", 0): 0.5, Arm("probe", 1): 0.6, Arm("probe", 2): 0.7, Arm("probe", 3): 0.8}
DIGITS |= {Arm("probe", 1, reconstructs=False): 0.5, Arm("probe", 3, reconstructs=False): 0.7}


def test_digits_are_three_networks_under_the_same_shifts():
    cells = [cell for cell in TABLES["table4"].cells("digits", TableOptions()) if cell.kind == "adapt"]
    assert len(cells) == len(set(cells)) == 3 * 22 * 7
    networks = {(cell.config["seed"], cell.config["model"].partition("@")[0]) for cell in cells}
    assert networks == {(0, "zoo:digits-mae"), (1, "digits-mae-seed1"), (2, "digits-mae-seed2")}
    assert not {cell.config["corruption"] for cell in cells} & set(CHOSEN_ON)
    assert {cell.config["batch_size"] for cell in cells} == {32}
    three = [cell for cell in TABLES["table3"].cells("digits", TableOptions()) if cell.kind == "adapt"]
    assert len(set(three) - set(cells)) == 2 * 22  # joint and fine-tuned, one network each
    assert len(TABLES["table4"].cells("digits", TableOptions(seeds=1))) == 22 * 7 + 1


JOINT = {"joint": "zoo:cifar10-mae-tiny-joint", "larger": "zoo:cifar10-mae-tiny"}
"""The zoo may not have the larger one yet; another autoencoder stands for it."""


@pytest.mark.parametrize("scale", ["batches", "online"])
def test_photographs_in_batches_are_put_to_the_joint_networks_alone(scale, monkeypatch):
    monkeypatch.setitem(BATCHED, scale, dataclasses.replace(BATCHED[scale], models=JOINT))
    cells = TABLES["table4"].cells(scale, TableOptions())
    assert len(cells) == len(set(cells)) == 2 * 15 * 7
    assert {cell.config["model"].partition("@")[0] for cell in cells} == set(JOINT.values())
    assert {cell.config["hyper"].get("online", False) for cell in cells if cell.config["hyper"]} == {scale == "online"}
    tried = TABLES["tuning-mae"].cells(scale, TableOptions())
    assert len(tried) == len(set(tried)) == (3 + 9) * len(EXTRA)
    assert {cell.config["corruption"] for cell in tried} == set(EXTRA)
    assert {cell.config["model"].partition("@")[0] for cell in tried} == {JOINT["larger"]}
    assert scale not in TABLES["table3"].scales


@pytest.mark.parametrize("regime", ["joint", "larger"])
def test_every_network_of_photographs_in_batches_has_rows_and_claims(regime, monkeypatch):
    monkeypatch.setitem(MODELS, regime, JOINT[regime])
    monkeypatch.setitem(BATCHED, "online", dataclasses.replace(BATCHED["online"], models=JOINT))
    made = [dataclasses.replace(arm, model=regime) for arm in DIGITS]
    shown = TABLES["table4"].measure("batches", [record(arm, c, 0.5, 0) for arm in made for c in STANDARD]).to_dict()
    assert {row["column"] for row in shown["rows"] if row["method"] == f"mae-ttt+em ({regime})"} >= {"source", "only-3"}
    assert len([claim for claim in shown["claims"] if f"({regime} model)" in claim["claim"]]) == 13


def test_a_network_that_the_zoo_has_not_yet_is_left_out(monkeypatch):
    without = {"joint": JOINT["joint"]}
    monkeypatch.setitem(BATCHED, "batches", dataclasses.replace(BATCHED["batches"], models=without))
    assert len(TABLES["table4"].cells("batches", TableOptions())) == 15 * 7
    tried = TABLES["tuning-mae"].cells("batches", TableOptions())
    assert {cell.config["model"].partition("@")[0] for cell in tried} == {JOINT["joint"]}


def test_averages_leave_out_what_stands_apart():
    made = records(DIGITS, shifts=SHIFTS)
    made += [record(arm, "invert", 0.1 if arm.em_steps is not None else 0.5, s) for arm in DIGITS for s in range(2)]
    found = TABLES["table4"].measure("digits", made).to_dict()
    rows = {(row["method"], row["column"]): row["value"] for row in found["rows"]}
    assert rows["mae-ttt+em", "em-3"] == pytest.approx(85)
    assert rows["mae-ttt+em", "only-3"] == pytest.approx(75)
    assert rows["mae-ttt+em (invert)", "em-0"] == pytest.approx(10)
    verdicts = {claim["claim"]: claim["verdict"] for claim in found["claims"]}
    assert verdicts["MAE-TTT has a lower error than no adaptation (probe model)"] == "holds"
    assert verdicts["MAE-TTT has a lower error than no adaptation on invert (probe model)"] == "does-not-hold"
    assert verdicts["three entropy steps with reconstruction have a lower error than without (probe model)"] == "holds"
    averages = {row["column"]: row["value"] for row in TABLES["table3"].measure("digits", made).to_dict()["rows"]}
    assert averages["digits-c/avg"] == pytest.approx(75)  # of the last row


def test_shifts_drawn_anew_decide_by_the_number_of_shifts():
    """A gain on a few shifts is decided by images, and is not by shifts."""
    few = {"fog": 0.9, "snow": 0.9}
    made = [record(Arm("probe", 0), c, 0.5, 0) for c in STANDARD]
    made += [record(Arm("probe", 3), c, few.get(c, 0.5), 0) for c in STANDARD]
    made += [record(Arm("probe", 1, reconstructs=False), c, 0.5, 0) for c in STANDARD]
    claims = {c.claim: c for c in TABLES["table4"].claims(made)}
    sentence = "three entropy steps have a lower error than none (probe model)"
    images, shifts = claims[sentence], claims[f"{sentence}, over shifts drawn anew"]
    assert images.verdict == "holds"
    assert shifts.verdict == "undecided"
    assert images.evidence.value == pytest.approx(shifts.evidence.value) == pytest.approx(-100 * 0.8 / 15)
    assert images.evidence.n == shifts.evidence.n
