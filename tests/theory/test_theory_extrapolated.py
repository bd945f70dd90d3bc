"""A fitted Extrapolator seen as a generator: decoding undoes encoding, and the diagnosis needs no extra arguments."""

import numpy as np
import pytest
import torch

from offsupport.latent.extrapolator.dense import FlowConfig
from offsupport.latent.extrapolator.estimator import Extrapolator
from offsupport.latent.process.draws import draw
from offsupport.latent.process.process import Process
from offsupport.theory import diagnose
from offsupport.theory.subject import source_of, view


def run(shift, **options):
    draws = draw(Process(shift=shift, n_source=300), [0], [18])
    X, y = draws.x[0].numpy(), draws.y[0].numpy()
    return Extrapolator(shift=shift, d_c=4, d_s=2, **options).fit(X, y), X, y, draws.x_tgt[0, 0, 0].numpy()


@pytest.fixture(scope="module")
def dense():
    return run("dense", flow=FlowConfig(starts=1, rounds=1, steps=40, inner_steps=40, polish_steps=80))


@pytest.fixture(scope="module")
def sparse():
    return run("sparse")


def latents(seen, X):
    return torch.as_tensor(np.hstack(seen.latents(X)), dtype=torch.float64)


def test_flow_backwards_is_the_inverse(dense):
    estimator, X, _, x_tgt = dense
    seen = view(estimator, x_tgt)
    back = seen.decode(latents(seen, X))
    assert back.shape == X.shape
    gap = (back - estimator.source_.standardise(X)[0]).abs()
    assert float(gap.median()) < 1e-4
    assert float(gap.max()) < 0.05  # the flow's kinks are ramps of width 0.01


def test_sparse_view_moves_the_planted_columns_and_decodes_the_others_from_c(sparse):
    estimator, X, _, x_tgt = sparse
    seen = view(estimator, x_tgt)
    assert seen.moved.tolist() == [False] * 4 + [True] * 2
    x = estimator.source_.standardise(X)[0].double()
    z = latents(seen, X)
    assert torch.allclose(seen.decode(z)[:, 4:], x[:, 4:], atol=1e-4)
    assert float((seen.decode(z) - x)[:, :4].square().mean()) < 0.5 * float(x[:, :4].square().mean())
    # s_hat enters the moved columns alone and one to one; what is decoded without it comes from c_hat
    shifted = z.clone()
    shifted[:, 4:] += torch.tensor([3.0, -2.0], dtype=torch.float64)
    change = seen.decode(shifted) - seen.decode(z)
    expected = torch.tensor([0.0, 0, 0, 0, 3, -2], dtype=torch.float64)
    assert torch.allclose(change, expected.expand_as(change), atol=1e-9)
    without = torch.cat([z[:, :4], torch.zeros_like(z[:, 4:])], -1)
    correlation = torch.corrcoef(torch.stack([seen.decode(without)[:, 4], x[:, 0]]))[0, 1]
    assert float(correlation) > 0.5  # column 4 copies column 0 before s is added


def test_diagnosis_of_several_targets_does_not_depend_on_their_order(sparse):
    estimator, X, y, x_tgt = sparse
    other = X[0].copy()
    other[1] += 40.0
    fresh = Extrapolator(shift="sparse", d_c=4, d_s=2).fit(X, y)
    first = diagnose(fresh, other, points=16).to_dict()
    diagnose(estimator, x_tgt, points=16)
    assert diagnose(estimator, other, points=16).to_dict() == first


def test_class_manifolds_are_diagnosed_by_their_planes():
    draws = draw(Process(embedding="fixed", activation="smooth", n_source=1000), [0], [20.0])
    estimator = Extrapolator(shift="dense", d_c=4, d_s=2).fit(draws.x[0].numpy(), draws.y[0].numpy())
    found = diagnose(estimator, draws.x_tgt[0, 0, 0].numpy(), points=32)
    assert "manifolds" in found.subject
    assert estimator.dense_ is None
    assert found.distance > 0
    assert found.separation.boundary > 0


def test_source_is_remembered_and_diagnosis_needs_only_the_target(dense, sparse):
    for estimator, X, y, x_tgt in (dense, sparse):
        remembered, labels = source_of(estimator)
        assert np.allclose(remembered, X, atol=1e-4)
        assert np.array_equal(labels, y)
        found = diagnose(estimator, x_tgt, points=32)
        assert found.distance > 1  # off the support, in standard deviations of an unfinished fit
        assert not found.known
        assert "holds" not in {c.status for v in (found.theorem1, found.theorem2) for c in v.conditions}
    assert found.influence.s_size == (2, 2)
