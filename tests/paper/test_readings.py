"""The readings of Table 1's text: what is run, what choosing by the targets gives, and the options behind them."""

import numpy as np
import pytest
import torch

from offsupport.bench.cell import Place, compute
from offsupport.bench.store import Record
from offsupport.latent import Imsda, OnlySource, Vae
from offsupport.latent.process.generator import draw_mlp
from offsupport.studies.latent_runs import EpochsConfig, run_block
from offsupport.studies.ours.readings import CHOSEN, ELSEWHERE, ONLY_SOURCE, PER_RUN, VAE, WEIGHTS
from offsupport.studies.synthetic import FIRST
from offsupport.studies.tables import TABLES, TableOptions


def epochs_record(reading, right, shift="dense", distance=12.0):
    config = EpochsConfig(
        shift=shift,
        distances=[distance],
        changes=dict(reading.changes),
        options=dict(reading.options),
        first=FIRST,
        runs=len(right),
    )
    cell = config.cell()
    return Record(cell.key, cell, {"right": np.asarray(right)[:, None].tolist()}, {}, {"seconds": 1.0})


def test_every_reading_is_run_on_the_same_seeds():
    cells = TABLES["readings"].cells("small", TableOptions())
    spans = {}
    for cell in cells:
        name = cell.kind, str(cell.config["changes"]), str(cell.config["options"]), cell.config["shift"]
        spans.setdefault(name, []).extend(range(cell.config["first"], cell.config["first"] + cell.config["runs"]))
    assert len(spans) == 2 * (len(ONLY_SOURCE) + len(VAE))
    assert all(sorted(seeds) == list(range(FIRST, FIRST + 100)) for seeds in spans.values())


def test_choosing_by_the_targets_is_the_best_candidate_and_chance_elsewhere():
    rng = np.random.default_rng(0)
    records = [epochs_record(reading, rng.integers(0, 2, size=(100, 25))) for reading in WEIGHTS]
    rows = {row.method.removeprefix("vae: "): row for row in TABLES["readings"].rows(records)}
    right = np.concatenate([np.array(r.deterministic["right"])[:, 0] for r in records], axis=1)
    best = [right[half].mean(0).max() for half in (slice(0, 50), slice(50, 100))]
    assert rows[CHOSEN].value == pytest.approx(np.mean(best))
    assert rows[CHOSEN].value > 0.6
    other = [right[50:, right[:50].mean(0).argmax()], right[:50, right[50:].mean(0).argmax()]]
    assert rows[ELSEWHERE].value == pytest.approx(np.mean(other))
    assert rows[ELSEWHERE].low < 0.5 < rows[ELSEWHERE].high
    assert rows[PER_RUN].value == 1.0
    assert rows[WEIGHTS[0].name].value == pytest.approx(right[:, 24].mean())
    assert rows[WEIGHTS[0].name].paper == 0.78
    verdicts = {claim.claim: claim.verdict for claim in TABLES["readings"].claims(records)}
    assert verdicts[f"vae reaches the printed 0.78 at dense-12 ({WEIGHTS[0].name})"] == "does-not-hold"


def test_a_cell_watches_the_fit_that_the_plain_estimator_makes(tmp_path):
    settings = {"changes": {"n_source": 300}, "options": {"epochs": 3, "batch_size": 128, "kl": 0.01}}
    cell = EpochsConfig(shift="dense", distances=[5.0, 12.0], first=1_000_000, runs=2, **settings).cell()
    right = np.array(compute(cell, Place(tmp_path)).deterministic["right"])
    assert right.shape == (2, 2, 3)
    block = run_block("dense", "classification", "vae", [1_000_000, 1_000_001], [5.0, 12.0], **settings)
    np.testing.assert_array_equal(right[..., -1], block.outcome[..., 0])


def test_generator_starts_as_torch_starts_its_linear_layers():
    weights, biases = draw_mlp([6, 400, 5], torch.Generator().manual_seed(0), weights="torch")
    for W, b, fan_in in zip(weights, biases, (6, 400), strict=True):
        bound = fan_in**-0.5
        assert W.abs().max() <= bound
        assert b.abs().max() <= bound
        assert abs(float(W.std()) - bound / 3**0.5) < 0.03 * bound
    assert [W.shape for W in weights] == [(400, 6), (5, 400)]


@pytest.mark.parametrize("kind", [OnlySource, Vae, Imsda])
def test_units_matter_only_to_those_who_do_not_standardise(kind):
    rng = np.random.default_rng(0)
    X, x_tgt = rng.normal(size=(64, 3)), rng.normal(size=(4, 3))
    y = (X[:, 0] > 0).astype(int)
    said = {}
    for standardise in (True, False):
        for unit in (1.0, 0.01):
            estimator = kind(epochs=2, batch_size=16, width=8, standardise=standardise)
            estimator.fit(unit * X, y, unit * x_tgt)
            said[standardise, unit] = estimator.predict_proba(unit * x_tgt)
    np.testing.assert_allclose(said[True, 1.0], said[True, 0.01], atol=1e-4)
    assert np.abs(said[False, 1.0] - said[False, 0.01]).max() > 1e-3


@pytest.mark.parametrize("kind", [Vae, Imsda])
def test_a_target_that_is_never_seen_changes_nothing(kind):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(64, 3)), np.arange(64) % 2
    fits = [
        kind(epochs=2, batch_size=16, width=8, target_every=every).fit(X, y, np.full((1, 3), far)).predict_proba(X)
        for every in (1000, 4)
        for far in (3.0, 9.0)
    ]
    np.testing.assert_array_equal(fits[0], fits[1])
    assert np.abs(fits[2] - fits[3]).max() > 1e-6
