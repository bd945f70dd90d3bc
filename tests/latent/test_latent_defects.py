"""What once went wrong on other people's tables: odd arrays and labels, a predict that fitted and changed things."""

import dataclasses
import pickle
import time

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

from offsupport.core.errors import ConfigError, InputError
from offsupport.latent import Extrapolator
from offsupport.latent.extrapolator import estimator as module
from offsupport.latent.extrapolator.dense import FlowConfig

QUICK = FlowConfig(layers=2, starts=1, rounds=0, steps=20, polish_steps=10)


def problem(n=200, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, (X[:, 0] + X[:, 1] > 0).astype(int)


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    X, x_tgt, y, y_tgt = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
    return Extrapolator().fit(X, y), X, x_tgt, y_tgt


def test_every_row_of_the_wine_table_is_answered_at_once_and_well(wine):
    estimator, X, x_tgt, y_tgt = wine
    assert len(X) == 124
    predicted, seconds = [], []
    for row in x_tgt:
        started = time.perf_counter()
        predicted.append(estimator.predict(row[None])[0])
        seconds.append(time.perf_counter() - started)
    assert np.median(seconds) < 0.2
    assert (np.array(predicted) == y_tgt).mean() > 0.95
    explained = [estimator.explain(row[None]) for row in x_tgt]
    assert not [found for found in explained if found.shift == "dense"]  # none of them moved
    wrong = [found for found, label, truth in zip(explained, predicted, y_tgt, strict=True) if label != truth]
    assert all(found.confidence[0] < 0.9 for found in wrong)


def test_a_source_that_is_too_small_for_a_flow_says_so_and_answers_at_once(wine):
    estimator, X, _, _ = wine
    assert estimator.dense_ is None
    assert estimator.dense_note_.startswith("No dense model: 124 samples for")
    started = time.perf_counter()
    found = estimator.explain(X[:2] + 1e4)
    assert time.perf_counter() - started < 2
    assert (found.shift, found.half) == ("dense", "sparse")  # all columns did move, and that is seen
    assert found.dense == estimator.dense_note_


def test_the_flow_is_fitted_in_fit_or_not_at_all(monkeypatch):
    fits = []
    plain = module.fit_dense
    monkeypatch.setattr(module, "fit_dense", lambda *given: fits.append(1) or plain(*given))
    X, y = problem(2000)
    far = np.random.default_rng(1).normal(size=(9, 4)) * 40
    estimator = Extrapolator(flow=QUICK).fit(X, y)
    assert len(fits) == 1
    assert estimator.explain(far).half == "flow"
    moved = X[:9] + np.array([0, 0, 30, 0])
    given = Extrapolator(flow=QUICK).fit(X, y, moved)
    assert "targets given to fit" in given.dense_note_
    assert given.dense_ is None
    assert given.needs_flow(far)
    assert not given.needs_flow(moved)
    assert given.explain(far).half == "sparse"
    given.predict(far)
    assert len(fits) == 1


def test_asking_changes_nothing_and_the_last_answer_does_not_matter():
    X, y = problem()
    estimator = Extrapolator().fit(X, y)
    before = pickle.dumps(vars(estimator))
    moved = X[:5] + np.array([0, 30, 0, 0])
    first = estimator.predict_proba(moved), estimator.distrust(moved)
    estimator.predict(X[:5] + 1e3)
    estimator.explain(X[:5] - 1e3)
    estimator.confidence(X)
    assert pickle.dumps(vars(estimator)) == before
    for again, then in zip((estimator.predict_proba(moved), estimator.distrust(moved)), first, strict=True):
        np.testing.assert_array_equal(again, then)


def test_an_explanation_says_what_was_found_and_cannot_be_changed():
    X, y = problem()
    found = Extrapolator().fit(X, y).explain(X[:6] + np.array([0, 30, 0, 0]))
    assert (found.shift, found.half, found.d_s, found.columns) == ("sparse", "sparse", 1, (1,))
    assert found.log_odds > 1
    assert found.distrust.shape == (6, 4)
    assert found.confidence.shape == (6,)
    assert found.spread is None
    for words in ("sparse", "distrusted: 1", "No dense model"):
        assert words in str(found)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.shift = "dense"
    numbers = Extrapolator().fit(X, 100 * X[:, 0]).explain(X[:6])
    assert numbers.confidence is None
    assert (numbers.spread > 0).all()
    assert numbers.spread.max() < 100


@pytest.mark.parametrize(("name", "value"), [("shift_", "undecided"), ("half_", "sparse"), ("d_s_", 2), ("d_c_", 2)])
def test_attributes_that_predict_used_to_set_warn_and_speak_of_the_fit(name, value):
    X, y = problem()
    estimator = Extrapolator().fit(X, y)
    estimator.predict(X[:5] + 1e4)
    with pytest.warns(DeprecationWarning, match=r"explain\(x_tgt\)"):
        found = getattr(estimator, name)
    assert (found.shift if name == "shift_" else found) == value


def test_reversed_views_and_read_only_arrays_are_read():
    X, y = problem()
    plain = Extrapolator().fit(X[::-1].copy(), y[::-1].copy())
    turned = Extrapolator().fit(X[::-1], y[::-1])
    np.testing.assert_array_equal(turned.predict_proba(X[::-1, :]), plain.predict_proba(X[::-1].copy()))
    X.setflags(write=False)
    plain.predict(X)


def test_nothing_in_is_an_error_with_a_remedy():
    X, y = problem()
    estimator = Extrapolator().fit(X, y)
    for ask in (lambda: estimator.predict(X[:0]), lambda: Extrapolator().fit(X[:0], y[:0])):
        with pytest.raises(InputError, match="0 sample") as caught:
            ask()
        assert caught.value.remedy
        assert isinstance(caught.value, ValueError)


def test_labels_of_mixed_kinds_are_an_error_with_a_remedy():
    X, y = problem()
    mixed = np.array([label if label else "none" for label in y.tolist()], dtype=object)
    with pytest.raises(InputError, match="mixes") as caught:
        Extrapolator().fit(X, mixed)
    assert caught.value.remedy
    with pytest.raises(InputError, match="cannot be compared"):
        Extrapolator().fit(X, np.array([label or None for label in y.tolist()], dtype=object))


@pytest.mark.parametrize("factor", [1e300, 3e307, 1e-300])
def test_units_do_not_matter_however_large(factor):
    X, y = problem()
    plain, scaled = Extrapolator().fit(X, y), Extrapolator().fit(X * factor, y)
    asked = X[:50] + np.array([0, 0, 0, 1.0])
    np.testing.assert_allclose(scaled.predict_proba(asked * factor), plain.predict_proba(asked), atol=1e-3)
    assert len(set(scaled.predict(asked * factor))) == 2
    numbers = Extrapolator(task="regression").fit(X * factor, X[:, 0] * factor).predict(X * factor) / factor
    assert np.abs(numbers - X[:, 0]).mean() < 0.1


def test_many_whole_numbers_are_taken_for_classes_aloud():
    X, _ = problem(400)
    y = np.round(20 * X[:, 0]).astype(int)
    with pytest.warns(UserWarning, match="task='regression'"):
        assert len(Extrapolator(shift="sparse").fit(X, y).classes_) > 30
    numbers = Extrapolator(task="regression").fit(X, y)
    assert numbers.classes_ is None
    assert numbers.score(X, y) > 0.8
    with pytest.raises(InputError, match="Unknown label type"):
        Extrapolator(task="classification").fit(X, X[:, 0])


def test_random_states_of_all_kinds():
    X, y = problem()
    asked = X[:20] + np.array([0, 0, 3, 0])

    def answers(state):
        return Extrapolator(random_state=state, shift="sparse").fit(X, y).predict_proba(asked)

    np.testing.assert_array_equal(answers(np.random.RandomState(0)), answers(np.random.RandomState(0)))
    np.testing.assert_array_equal(answers(np.int64(3)), answers(3))
    assert not np.array_equal(answers(np.random.RandomState(0)), answers(np.random.RandomState(1)))
    assert answers(None).shape == (20, 2)


def test_several_runs_decide_together():
    X, y = problem()
    with pytest.raises(ConfigError, match="together"):
        Extrapolator(together=False).fit(np.stack([X, X]), np.stack([y, y]))


def test_fitting_the_flow_shows_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr("offsupport.core.progress.SHOW_AFTER", 0.0)
    X, y = problem(400)
    Extrapolator(shift="dense", flow=QUICK).fit(X, y)
    assert "Fitting the dense model: 30/30" in capsys.readouterr().err
