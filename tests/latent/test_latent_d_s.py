"""How many columns a sparse shift moved: found in the targets, when nobody says it."""

import numpy as np
import pytest
import torch

from offsupport.latent import Extrapolator
from offsupport.latent.extrapolator.decision import changing_dimension
from offsupport.latent.extrapolator.dense import FlowConfig
from offsupport.latent.extrapolator.sparse import Weighed
from offsupport.latent.process.draws import draw
from offsupport.latent.process.process import Process
from offsupport.theory.subject import view

QUICK = FlowConfig(layers=2, starts=1, rounds=0, steps=20, polish_steps=10)
D = 8


def correlated(n=1200, seed=0):
    """Return observations of three latents in eight columns, and a number that the latents make."""
    rng = np.random.default_rng(seed)
    c = rng.normal(size=(n, 3))
    X = c @ rng.normal(size=(3, D)) + 0.2 * rng.normal(size=(n, D))
    return X, c[:, 0] + c[:, 1]


def pushed(X, columns, by=30.0):
    X = X.copy()
    X[:, columns] += by
    return X


def likeliest_of(sizes):
    """Return samples of one run whose likeliest sets have these sizes."""
    masks = torch.arange(D) < torch.tensor(sizes)[None, :, None, None]
    return Weighed(masks, torch.ones(1, len(sizes), 1), torch.zeros(1, len(sizes), 1), D // 2)


def each(explanations, name):
    return [getattr(explanation, name) for explanation in explanations]


@pytest.mark.parametrize(
    ("sizes", "d_s"),
    [
        ([3], 3),
        ([0], 1),
        ([1, 2, 2, 1, 3], 3),
        ([2] * 9 + [4], 2),
        ([2] * 8 + [4] * 2, 4),
        ([0] * 40 + [3] * 4, 3),
        ([1] * 57 + [4] * 3, 1),
    ],
)
def test_the_largest_set_counts_but_for_one_in_ten_of_the_moved(sizes, d_s):
    assert changing_dimension(likeliest_of(sizes).likeliest().sum(-1)) == [d_s]


@pytest.mark.parametrize(("d_c", "d_s"), [(5, 1), (4, 2), (6, 3)])
def test_the_process_decides_not_the_number_of_columns(d_c, d_s):
    process = Process(shift="sparse", d_c=d_c, d_s=d_s, n_source=4000, permute=True)
    draws = draw(process, range(10_500, 10_504), [24], n_targets=10)
    estimator = Extrapolator(flow=QUICK).fit(draws.x, draws.y)
    assert (estimator.predict(draws.x_tgt[:, 0]) == draws.y_tgt[:, 0].numpy()).mean() >= 0.9
    found = estimator.explain(draws.x_tgt[:, 0])
    assert each(found, "d_s") == [d_s] * 4
    assert max(each(found, "d_c")) <= d_c


@pytest.mark.parametrize("columns", [[5], [0, 3], [1, 2, 7]])
def test_one_target_is_enough_and_the_next_one_counts_anew(columns):
    X, y = correlated()
    estimator = Extrapolator(flow=QUICK).fit(X[:1000], y[:1000])
    for i in range(1000, 1005):
        target = pushed(X[i : i + 1], columns)
        assert abs(estimator.predict(target)[0] - y[i]) < 1
        found = estimator.explain(target)
        assert found.d_s == len(found.columns) == len(columns)
        assert set(np.flatnonzero(estimator.distrust(target)[0] > 0.5)) == set(columns)


def test_runs_of_different_d_s_equal_one_by_one():
    parts = [correlated(320, seed) for seed in range(3)]
    X, y = (np.stack(values) for values in zip(*parts, strict=True))
    moved = [[4], [1, 6, 7], [2]]
    x_tgt = np.stack([pushed(x[300:], columns) for x, columns in zip(X, moved, strict=True)])
    both = Extrapolator(shift="sparse").fit(X[:, :300], y[:, :300])
    found = both.predict(x_tgt), both.predict_interval(x_tgt), both.distrust(x_tgt), both.latents(x_tgt)[1]
    explained = both.explain(x_tgt)
    assert each(explained, "d_s") == [1, 3, 1]
    for r in range(3):
        one = Extrapolator(shift="sparse").fit(X[r, :300], y[r, :300])
        alone = one.predict(x_tgt[r]), one.predict_interval(x_tgt[r]), one.distrust(x_tgt[r]), one.latents(x_tgt[r])[1]
        for together, single in zip(found, alone, strict=True):
            np.testing.assert_allclose(together[r], single, atol=1e-2)
        assert (one.explain(x_tgt[r]).d_s, one.explain(x_tgt[r]).d_c) == (explained[r].d_s, explained[r].d_c)


def test_what_is_inferred_predicts_as_what_is_given():
    X, number = correlated()
    x_tgt = pushed(X[1000:1050], [2, 3])
    for y in (number, np.where(number > 0, "high", "low")):
        given = Extrapolator(shift="sparse", d_s=2).fit(X[:1000], y[:1000])
        inferred = Extrapolator(flow=QUICK).fit(X[:1000], y[:1000])
        np.testing.assert_array_equal(inferred.predict(x_tgt), given.predict(x_tgt))
        assert inferred.explain(x_tgt).d_s == given.explain(x_tgt).d_s == 2


def test_half_of_the_columns_is_the_most_and_stands_where_nothing_is_found():
    X, y = correlated()
    dense = Extrapolator(shift="dense", flow=QUICK).fit(X, y)
    assert dense.explain(X[:3] + 9).d_s == D // 2
    far = 40 * np.random.default_rng(1).normal(size=(10, D))
    found = (
        Extrapolator(flow=FlowConfig(layers=1, starts=1, rounds=0, steps=20, polish_steps=10)).fit(X, y).explain(far)
    )
    assert (found.shift, found.half, found.d_s) == ("dense", "flow", D // 2)
    assert Extrapolator(shift="sparse", d_s=3).fit(X, y).explain(pushed(X[:5], [0])).d_s == 3


def test_a_view_keeps_its_dimensions_when_other_targets_are_asked_about():
    X, number = correlated(300)
    estimator = Extrapolator(shift="sparse").fit(X, number)
    seen = view(estimator, pushed(X[:1], [2])[0])
    before = [part.shape for part in seen.latents(X[:4])]
    estimator.latents(pushed(X[:1], [1, 2, 5, 6]))
    assert estimator.explain(pushed(X[:1], [1, 2, 5, 6])).d_c < before[0][1]
    assert [part.shape for part in seen.latents(X[:4])] == before
