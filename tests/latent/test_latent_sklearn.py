"""The Extrapolator among scikit-learn's tools: its own checks, pipelines, searches, calibration, names of columns."""

import numpy as np
import pytest
import sklearn.utils.validation
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from offsupport.core.errors import InputError
from offsupport.latent import Extrapolator, OnlySource
from offsupport.latent.extrapolator.sparse import SparseConfig


def labelled(n=150, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_scikit_learns_own_checks_pass(task):
    results = check_estimator(Extrapolator(task=task, together=False), on_skip=None, on_fail="raise")
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    assert len(results) > 50


def test_checks_that_need_no_kind_pass_for_the_one_that_chooses_by_y():
    assert check_estimator(Extrapolator(), on_skip=None, on_fail="raise")


def test_kind_is_known_from_the_task_or_from_the_fit():
    X, y = labelled()
    assert is_classifier(Extrapolator(task="classification"))
    assert is_regressor(Extrapolator(task="regression"))
    assert not hasattr(Extrapolator(task="regression"), "predict_proba")
    chooses = Extrapolator()
    assert not is_classifier(chooses)
    assert not is_regressor(chooses)
    assert is_classifier(chooses.fit(X, y))
    assert is_regressor(chooses.fit(X, X[:, 0]))


def test_clones_have_the_settings_and_none_of_the_fit():
    X, y = labelled()
    fitted = Extrapolator(shift="sparse", d_s=2, masked=SparseConfig(sets=2)).fit(X, y)
    other = clone(fitted)
    assert other.get_params() == fitted.get_params()
    assert not hasattr(other, "source_")
    np.testing.assert_array_equal(other.fit(X, y).predict_proba(X), fitted.predict_proba(X))
    assert other.set_params(d_s=1).d_s == 1


@pytest.mark.parametrize("estimator", [Extrapolator(), Extrapolator(task="classification"), OnlySource(epochs=100)])
def test_pipelines_scores_and_searches(estimator):
    X, y = labelled()
    piped = make_pipeline(StandardScaler(), estimator)
    scores = cross_val_score(piped, X, y, cv=3)
    assert scores.shape == (3,)
    assert scores.mean() > 0.8
    if isinstance(estimator, Extrapolator):
        search = GridSearchCV(piped, {"extrapolator__d_s": [1, 2]}, cv=2).fit(X, y)
        assert search.best_params_["extrapolator__d_s"] in (1, 2)
        assert search.best_score_ > 0.8


def test_score_is_accuracy_or_r2():
    X, y = labelled()
    classes = Extrapolator().fit(X, y)
    assert classes.score(X, y) == (classes.predict(X) == y).mean()
    numbers = Extrapolator().fit(X, X[:, 0])
    residual = ((numbers.predict(X) - X[:, 0]) ** 2).mean() / X[:, 0].var()
    assert numbers.score(X, X[:, 0]) == pytest.approx(1 - residual)


@pytest.mark.parametrize("task", ["auto", "classification"])
def test_it_can_be_calibrated(task):
    X, y = labelled(240)
    calibrated = CalibratedClassifierCV(Extrapolator(task=task, shift="sparse"), cv=3).fit(X, y)
    assert calibrated.predict_proba(X).shape == (240, 2)
    assert (calibrated.predict(X) == y).mean() > 0.85


def test_alone_every_sample_is_answered_as_if_nobody_else_had_asked():
    X, y = load_wine(return_X_y=True)
    asked = X[::9].copy()
    asked[::3, 2] += 40  # some moved in one column, some in two, some not at all
    asked[::4, 5] -= 40
    alone = Extrapolator(together=False).fit(X, y)
    together = Extrapolator().fit(X, y)
    rows = [slice(i, i + 1) for i in range(len(asked))]
    for method in ("predict_proba", "distrust", "latents"):
        each = [getattr(together, method)(asked[row]) for row in rows]
        at_once = getattr(alone, method)(asked)
        if method == "latents":
            each, at_once = [s_hat for _, s_hat in each], at_once[1]
        np.testing.assert_allclose(at_once, np.concatenate(each), atol=1e-6)
    explained = alone.explain(asked)
    assert len({found.d_s for found in explained}) > 1
    assert [found.d_s for found in explained] == [together.explain(asked[row]).d_s for row in rows]
    assert not np.allclose(together.predict_proba(asked), alone.predict_proba(asked), atol=1e-6)


class Frame:
    """Columns with names, as far as an estimator can see."""

    def __init__(self, X, names):
        self.X, self.names, self.shape = X, names, X.shape

    def __array__(self, dtype=None, copy=None):
        return np.array(self.X, dtype=dtype)

    def __len__(self):
        return len(self.X)


def test_columns_in_another_order_are_refused(monkeypatch):
    names = lambda X: np.array(X.names, dtype=object) if isinstance(X, Frame) else None  # noqa: E731
    monkeypatch.setattr(sklearn.utils.validation, "_get_feature_names", names)
    X, y = labelled()
    estimator = Extrapolator().fit(Frame(X, list("abcd")), y)
    assert estimator.n_features_in_ == 4
    assert list(estimator.feature_names_in_) == list("abcd")
    np.testing.assert_array_equal(estimator.predict(Frame(X, list("abcd"))), Extrapolator().fit(X, y).predict(X))
    with pytest.raises(InputError, match="same order"):
        estimator.predict(Frame(X[:, ::-1], list("dcba")))
    pushed = X[:5] + np.array([0, 0, 50, 0])
    assert estimator.explain(Frame(pushed, list("abcd"))).columns == ("c",)
    assert not hasattr(estimator.fit(X, y), "feature_names_in_")


def test_a_real_frame_in_another_order_is_refused():
    pandas = pytest.importorskip("pandas")
    X, y = labelled()
    frame = pandas.DataFrame(X, columns=list("abcd"))
    estimator = Extrapolator().fit(frame, y)
    with pytest.raises(InputError, match="same order"):
        estimator.predict(frame[list("dcba")])
