"""Estimators as a user meets them: labels of any kind, bad input, one run or many, end to end on a small problem."""

import dataclasses

import numpy as np
import pytest
import torch

from offsupport.core.errors import ConfigError, InputError, ModelError
from offsupport.latent import Extrapolator, Imsda, OnlySource, TrimmedNN, Vae
from offsupport.latent.extrapolator import dense as memory
from offsupport.latent.extrapolator.dense import FlowConfig, fit_flow
from offsupport.latent.process.draws import draw
from offsupport.latent.process.process import Process

QUICK = FlowConfig(layers=2, starts=1, rounds=0, steps=60, polish_steps=20)


@pytest.fixture(scope="module")
def sparse_run():
    draws = draw(Process(shift="sparse", n_source=4000), [1_000_000], [24], n_targets=60)
    return draws.x[0].numpy(), draws.y[0].numpy(), draws.x_tgt[0, 0].numpy(), draws.y_tgt[0, 0].numpy()


@pytest.fixture(scope="module")
def fitted(sparse_run):
    X, y, _, _ = sparse_run
    return Extrapolator(flow=QUICK).fit(X, np.array(["cat", "dog"])[y])


def small_problem(n=200, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, (X[:, 0] + X[:, 1] > 0).astype(int)


def test_extrapolator_end_to_end_on_a_sparse_shift(fitted, sparse_run):
    _, _, x_tgt, y_tgt = sparse_run
    names = np.array(["cat", "dog"])[y_tgt]
    accuracy = (fitted.predict(x_tgt) == names).mean()
    X, y, _, _ = sparse_run
    plain = OnlySource(epochs=10).fit(X, np.array(["cat", "dog"])[y])
    assert accuracy >= 0.9
    assert accuracy > (plain.predict(x_tgt) == names).mean()
    found = fitted.explain(x_tgt)
    assert (found.shift, found.half) == ("sparse", "sparse")
    assert "look like the source" in str(found)
    probabilities = fitted.predict_proba(x_tgt)
    assert probabilities.shape == (60, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert (fitted.confidence(x_tgt) >= 0.5).all()


def test_distrust_points_at_the_columns_that_moved(fitted, sparse_run):
    _, _, x_tgt, _ = sparse_run
    distrust = fitted.distrust(x_tgt)
    far = np.abs(x_tgt) > 5
    assert distrust[far].mean() > 0.95
    assert distrust[:, :4].mean() < 0.1


def test_latents_have_the_dimensions_asked_for_and_follow_c(sparse_run):
    X, y, x_tgt, _ = sparse_run
    estimator = Extrapolator(shift="sparse", d_c=4, d_s=2).fit(X, y)
    c_hat, s_hat = estimator.latents(x_tgt)
    again, _ = estimator.latents(x_tgt + np.array([0, 0, 0, 0, 100.0, 100.0]))
    assert c_hat.shape == (60, 4)
    assert s_hat.shape == (60, 6)
    moved = np.abs(x_tgt[:, 4:]).min(1) > 5  # both copies are off support already: moving them further changes nothing
    np.testing.assert_allclose(c_hat[moved], again[moved], atol=1e-4)


def test_dense_estimator_predicts_and_splits_latents():
    draws = draw(Process(n_source=500), [1_000_000], [5], n_targets=5)
    estimator = Extrapolator(shift="dense", flow=QUICK, d_c=4, d_s=2).fit(draws.x[0], draws.y[0])
    c_hat, s_hat = estimator.latents(draws.x_tgt[0, 0])
    assert c_hat.shape == (5, 4)
    assert s_hat.shape == (5, 2)
    assert np.isfinite(estimator.predict_proba(draws.x_tgt[0, 0])).all()
    found = estimator.explain(draws.x_tgt[0, 0])
    assert (found.shift, found.reason, found.half, found.distrust) == ("dense", "given.", "flow", None)
    assert found.dense.startswith("A dense model, as asked for: 500 samples")


def test_targets_that_no_few_columns_explain_are_called_dense(fitted):
    rng = np.random.default_rng(0)
    found = fitted.explain(rng.normal(size=(20, 6)) * 40)
    assert (found.shift, found.half) == ("dense", "flow")


@pytest.mark.parametrize("estimator", [OnlySource(epochs=2), TrimmedNN(), Extrapolator(shift="sparse")], ids=repr)
def test_many_runs_equal_one_by_one(estimator):
    draws = draw(Process(shift="sparse", n_source=300), [1_000_000, 1_000_001], [18], n_targets=4)
    both = estimator.fit(draws.x, draws.y).predict_proba(draws.x_tgt[:, 0])
    one = estimator.fit(draws.x[1], draws.y[1]).predict_proba(draws.x_tgt[1, 0])
    np.testing.assert_allclose(both[1], one, atol=1e-4)


@pytest.mark.parametrize("kind", [OnlySource, Vae, Imsda, TrimmedNN, Extrapolator])
def test_regression_predicts_numbers_in_the_units_of_y(kind):
    X, _ = small_problem()
    y = 100 + 5 * X[:, 0] + 0.1
    options = {"epochs": 3} if kind in (OnlySource, Vae, Imsda) else {}
    if kind is Extrapolator:
        options = {"flow": QUICK}
    estimator = kind(**options).fit(X, y, X[:3])
    predicted = estimator.predict(X[:3])
    assert predicted.shape == (3,)
    assert (np.abs(predicted - 100) < 30).all()
    with pytest.raises(ModelError, match="no class probabilities"):
        estimator.predict_proba(X[:3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (np.where(np.arange(4) == 1, np.nan, X), y), "NaN"),
        (lambda X, y: (X[:6], y[:6]), "6 samples"),
        (lambda X, y: (X, np.zeros_like(y)), "1 class"),
        (lambda X, y: (np.ones_like(X), y), "constant"),
        (lambda X, y: (X, y[:-1]), "shape"),
        (lambda X, y: (X.astype(str) + "a", y), "numbers"),
        (lambda X, y: (X, np.where(y > 0, np.nan, 0.5)), "y has values"),
    ],
)
def test_bad_source_is_a_clear_error(change, message):
    with pytest.raises(InputError, match=message) as caught:
        Extrapolator(flow=QUICK).fit(*change(*small_problem()))
    assert caught.value.remedy


def test_bad_targets_and_bad_order_of_calls():
    X, y = small_problem()
    with pytest.raises(ModelError, match="not fitted"):
        Extrapolator().predict(X)
    with pytest.raises(InputError, match="trains on its targets"):
        Vae().fit(X, y)
    estimator = TrimmedNN().fit(X, y)
    with pytest.raises(InputError, match=r"3 features, .* expecting 4 features"):
        estimator.predict(X[:, :3])
    with pytest.raises(InputError, match="NaN"):
        estimator.predict(X * np.nan)
    with pytest.raises(ModelError, match="no latent variables"):
        estimator.latents(X)
    for bad in ({"shift": "spares"}, {"d_c": 9}, {"task": "ranking"}):
        with pytest.raises(ConfigError):
            Extrapolator(**bad).fit(X, y)


def test_constant_and_collinear_columns_never_give_nan():
    X, y = small_problem()
    X = np.column_stack([X, np.full(len(X), 3.0), X[:, 0] + X[:, 1]])
    for shift in ("dense", "sparse"):
        estimator = Extrapolator(shift=shift, flow=QUICK).fit(X, y)
        assert np.isfinite(estimator.predict_proba(X[:10] + 20)).all()
    assert estimator.distrust(X[:10]).shape == (10, 6)


def test_scales_past_enumeration():
    rng = np.random.default_rng(0)
    c = rng.normal(size=(1500, 3))
    X = c @ rng.normal(size=(3, 30)) + 0.3 * rng.normal(size=(1500, 30))
    y = (c[:, 0] > 0).astype(int)
    estimator = Extrapolator(shift="sparse", d_s=6).fit(X[:1400], y[:1400])
    pushed = X[1400:1440].copy()
    pushed[:, :6] += 60
    assert (estimator.distrust(pushed)[:, :6] > 0.9).all()
    assert (estimator.predict(pushed) == y[1400:1440]).mean() > 0.85


def test_classes_that_are_manifolds_are_continued_by_their_tangent_planes():
    draws = draw(
        Process(embedding="fixed", activation="smooth", n_source=3000), [1_000_000, 1_000_001], [4], n_targets=30
    )
    estimator = Extrapolator(shift="dense").fit(draws.x, draws.y)
    assert estimator.thin_.all()
    assert (estimator.predict(draws.x_tgt[:, 0]) == draws.y_tgt[:, 0].numpy()).mean() > 0.97
    thick = draw(Process(n_source=3000), [1_000_000])
    assert not Extrapolator(shift="dense", flow=QUICK).fit(thick.x, thick.y).thin_.any()


@pytest.mark.parametrize("value", [1e20, 1e36, -1e36])
def test_far_away_targets_never_give_nan(value):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = (X[:, 0] > 0).astype(int)
    est = Extrapolator(shift="sparse", d_s=2).fit(X, y)
    x_tgt = X[:3].copy()
    x_tgt[0, 4] = value
    x_tgt[1] = value
    assert np.isfinite(est.predict_proba(x_tgt)).all()


def test_columns_far_from_zero_keep_their_digits():
    X, y = small_problem()
    plain, far = (Extrapolator(shift="sparse", d_s=1).fit(data, y) for data in (X, X + 1e7))
    assert float((far.source_.x - plain.source_.x).abs().max()) < 1e-5
    np.testing.assert_allclose(far.predict_proba(X[:20] + 1e7), plain.predict_proba(X[:20]), atol=1e-3)
    numbers = Extrapolator(shift="sparse", d_s=1).fit(X, 1e7 + X[:, 0])
    assert np.abs(numbers.predict(X) - 1e7 - X[:, 0]).mean() < 0.1


def test_latents_do_not_depend_on_what_was_asked_before(sparse_run):
    X, y, x_tgt, _ = sparse_run
    first = Extrapolator(shift="sparse", d_c=4, d_s=2).fit(X[:600], y[:600])
    second = Extrapolator(shift="sparse", d_c=4, d_s=2).fit(X[:600], y[:600])
    other = X[:5].copy()
    other[:, :2] += 50.0
    first.latents(other)
    for after, fresh in zip(first.latents(x_tgt), second.latents(x_tgt), strict=True):
        np.testing.assert_array_equal(after, fresh)


def test_s_hat_is_what_c_does_not_explain():
    draws = draw(Process(shift="sparse", n_source=6000), [1_000_000], [18], n_targets=200)
    estimator = Extrapolator(shift="sparse", d_c=4, d_s=2).fit(draws.x[0], draws.y[0])
    _, s_hat = estimator.latents(draws.x_tgt[0, 0])
    scale = estimator.source_.scale[0, 0, 4:].numpy()
    moved = np.abs(s_hat[:, 4:]).min(1) > 0  # both copies were distrusted
    gap = s_hat[moved][:, 4:] * scale - draws.s_tgt[0, 0].numpy()[moved]
    spread = draws.x[0, :, 4:].std(0).numpy()
    assert moved.mean() > 0.5
    assert (gap.std(0) < 0.5 * spread).all()  # what is left over is neither s nor what c says of these columns


def test_latents_of_class_manifolds_come_from_the_manifolds():
    draws = draw(Process(embedding="fixed", activation="smooth", n_source=2000), [1_000_000], [4], n_targets=20)
    estimator = Extrapolator(shift="dense").fit(draws.x[0], draws.y[0])
    c_hat, s_hat = estimator.latents(draws.x[0, :50])
    assert estimator.explain(draws.x[0, :50]).half == "manifold"
    assert estimator.dense_ is None
    assert (estimator.classes_[c_hat.argmax(1)] == estimator.predict(draws.x[0, :50])).all()
    assert s_hat.shape == (50, 2)
    z = torch.as_tensor(np.hstack([c_hat, s_hat]), dtype=torch.float64)
    back = estimator.manifolds_.decode(z[:, :2], z[:, 2:], 0)
    gap = (back - estimator.source_.standardise(draws.x[0, :50])[0]).norm(dim=-1)
    assert float(gap.median()) < 0.1


@pytest.mark.parametrize("shift", ["sparse", "dense"])
def test_intervals_hold_new_source_samples_as_often_as_they_say(shift):
    draws = draw(Process(shift=shift, task="regression", n_source=3000), [1_000_000], [18], n_targets=300)
    X, y = draws.x[0], draws.y[0]
    flow = FlowConfig(layers=2, starts=1, rounds=0, steps=300, polish_steps=100)
    estimator = Extrapolator(shift=shift, d_c=4, d_s=2, flow=flow).fit(X[:2500], y[:2500])
    narrow = estimator.predict_interval(X[2500:], level=0.5)
    wide = estimator.predict_interval(X[2500:], level=0.9)
    assert wide.shape == (500, 2)
    assert (wide[:, 1] - wide[:, 0] > narrow[:, 1] - narrow[:, 0]).all()
    np.testing.assert_allclose(wide.mean(1), estimator.predict(X[2500:]), rtol=1e-4, atol=1e-4)
    for level, ends in ((0.5, narrow), (0.9, wide)):
        assert abs(covered(ends, y[2500:].numpy()) - level) < 0.1
    if shift == "sparse":
        assert covered(estimator.predict_interval(draws.x_tgt[0, 0]), draws.y_tgt[0, 0].numpy()) > 0.8


def covered(ends, y):
    return ((ends[:, 0] <= y) & (y <= ends[:, 1])).mean()


def test_classes_have_confidences_and_numbers_have_intervals():
    X, y = small_problem()
    with pytest.raises(ModelError, match="Classes have no interval"):
        Extrapolator(shift="sparse").fit(X, y).predict_interval(X)
    numbers = Extrapolator(shift="sparse").fit(X, X[:, 0])
    with pytest.raises(ModelError, match="no class probabilities") as caught:
        numbers.confidence(X)
    assert "predict_interval" in caught.value.remedy
    with pytest.raises(ConfigError, match="level"):
        numbers.predict_interval(X, level=90)


def test_the_published_target_likelihood_puts_c_hat_between_the_classes():
    draws = draw(Process(shift="sparse", n_source=1500), range(1_000_000, 1_000_003), [18])
    size = {}
    for weight in (0.1, 0.0):
        model = Vae(shift="sparse", kl=0.1, batch_size=64, likelihood=weight).fit(draws.x, draws.y, draws.x_tgt[:, 0])
        c_src, y = model.latents(draws.x)[0], draws.y.numpy()
        means = np.stack([[c[label == k].mean(0) for k in (0, 1)] for c, label in zip(c_src, y, strict=True)])
        apart = np.linalg.norm(means[:, 1] - means[:, 0], axis=-1)
        size[weight] = np.linalg.norm(model.latents(draws.x_tgt[:, 0])[0][:, 0], axis=-1) / apart
    assert (size[0.1] < 0.25).all()  # at the origin, which is where N(0, I) is largest
    assert (size[0.0] > 1).all()


def test_flows_are_read_from_memory_where_everything_they_depend_on_is_the_same(tmp_path, monkeypatch):
    fits = []
    monkeypatch.setattr(memory, "fit_flow", lambda *given: fits.append(1) or fit_flow(*given))
    X, y = small_problem()
    far = X[:5] + 9

    def answers(X=X, y=y, **changes):
        settings = {"shift": "dense", "flow": QUICK, "memory": str(tmp_path), **changes}
        return Extrapolator(**settings).fit(X, y).predict_proba(far)

    first = answers()
    assert len(fits) == 1
    assert np.array_equal(first, answers(memory=None))  # kept or not, the same
    assert np.array_equal(first, answers(d_s=1))  # the flow does not depend on d_s
    assert len(fits) == 2
    others = [{"random_state": 1}, {"flow": dataclasses.replace(QUICK, lr=0.01)}, {"y": 1 - y}, {"X": X * 1.5 + X**2}]
    for count, other in enumerate(others, 3):
        assert not np.array_equal(first, answers(**other))
        assert len(fits) == count
    for path in tmp_path.glob("flow-*.safetensors"):
        path.write_bytes(path.read_bytes()[:-9])
    assert np.array_equal(first, answers())
    assert len(fits) == 7
