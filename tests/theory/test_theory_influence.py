"""Influence sets of planted generators, contrast, informativeness."""

import pytest
import torch

from offsupport.latent.process.draws import draw
from offsupport.latent.process.process import Process
from offsupport.theory.dependence import influence, informativeness
from offsupport.theory.jacobian import jacobian


def test_planted_matrix():
    J = torch.tensor([[[1.0, 0, 0], [0, 2, 0], [1, 0, 3], [0, 0, 1], [0, 0, 0]]], dtype=torch.float64)
    found = influence(J, 2)
    assert found.s[0].tolist() == [False, False, True, True, False]
    assert found.c[0].tolist() == [True, True, True, False, False]
    assert found.exclusive[0].tolist() == [True, True, False, False, False]
    assert float(found.contrast[0]) == pytest.approx(3.0)
    assert found.sparse(2).tolist() == [True]
    assert found.sparse(1).tolist() == [False]
    disjoint = influence(J[:, [0, 1, 3]].expand(4, -1, -1), 2)
    assert disjoint.sparse(0).all()
    assert float(disjoint.contrast.abs().max()) == 0


@pytest.mark.parametrize("changes", [{"permute": True}, {"influence": "varying"}, {"d_h": 9, "activation": "smooth"}])
def test_sets_of_sparse_processes_are_the_planted_ones(changes):
    draws = draw(Process(shift="sparse", n_source=100, **changes), [0, 1], dtype=torch.float64)
    z = torch.cat([draws.c, draws.s], -1)
    for run in (0, 1):
        g = draws.g.select(slice(run, run + 1))
        found = influence(jacobian(lambda z, g=g: g(z[None])[0], z[run]), 4)
        assert torch.equal(found.s, g.influence(z[run : run + 1])[0])
        assert found.sparse(2).all()


def test_threshold_is_relative():
    J = torch.tensor([[[1.0, 1e-3], [1.0, 1.0]]], dtype=torch.float64)
    for scale in (1.0, 1e8):
        assert influence(J * scale, 1, tau=1e-2).s[0].tolist() == [False, True]
        assert influence(J * scale, 1, tau=1e-4).s[0].tolist() == [True, True]


def test_informativeness_of_linear_generators():
    rng = torch.Generator().manual_seed(0)
    A, B = (torch.randn(5, 2, generator=rng, dtype=torch.float64) for _ in range(2))
    B[:3] = 0  # the first three dimensions are c's own
    z = torch.randn(60, 4, generator=rng, dtype=torch.float64)
    found = informativeness(lambda z: z[:, :2] @ A.T + z[:, 2:] @ B.T, z, 2)
    sigma = torch.linalg.svdvals(A[:3])
    assert float(sigma[1]) <= found.ratio <= float(sigma[0])
    assert found.ratio == pytest.approx(float(sigma[1]), rel=0.05)
    assert found.rank == 2
    A[:3, 1] = 2 * A[:3, 0]  # now c's own dimensions see one direction only
    blind = informativeness(lambda z: z[:, :2] @ A.T + z[:, 2:] @ B.T, z, 2)
    assert blind.rank == 1
    assert blind.ratio < 0.05 * found.ratio
