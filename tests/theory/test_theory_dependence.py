"""Mechanistic dependence by the projector equals the definition: all partitions, on hundreds of matrices."""

import itertools

import numpy as np
import pytest
import torch

from offsupport.theory.dependence import dependence, projector, weakest_point
from offsupport.theory.jacobian import jacobian


def rank(A):
    return 0 if not A.size else np.linalg.matrix_rank(A, tol=1e-9)


def connected_by_definition(A):
    """Every split P1 | P2 of the rows has rank A < rank A_P1 + rank A_P2."""
    m = len(A)
    for size in range(1, m // 2 + 1):
        for part in itertools.combinations(range(m), size):
            rest = [i for i in range(m) if i not in part]
            if rank(A) >= rank(A[list(part)]) + rank(A[rest]):
                return False
    return True


def matrices():
    """Sparse and dense integer matrices, products of low rank, planted blocks: 400, m <= 8."""
    rng = np.random.default_rng(0)
    for k in range(400):
        m, n = int(rng.integers(2, 9 if k % 20 == 0 else 7)), int(rng.integers(1, 6))
        A = rng.integers(-3, 4, (m, n)) * (rng.random((m, n)) < rng.choice([0.3, 0.6, 1.0]))
        if k % 3 == 1:
            A = A @ rng.integers(-2, 3, (n, n)) * (rng.random(n) < 0.7)
        if k % 3 == 2:
            A = A @ np.diag(rng.random(n) + 0.5)
        yield A.astype(float)


def test_projector_test_agrees_with_all_partitions():
    verdicts = []
    for A in matrices():
        J = torch.from_numpy(A)[None]
        found = dependence(J, torch.ones(J.shape[:2], dtype=torch.bool))
        expected = connected_by_definition(A)
        assert bool(found.connected()[0]) == expected, A
        verdicts.append(expected)
        if not expected:  # the witness is a split with adding ranks
            side = found.witness[0].numpy()
            assert 0 < side.sum() < len(A)
            assert rank(A) == rank(A[side]) + rank(A[~side])
    assert 50 < sum(verdicts) < 350


def test_only_the_given_rows_count_and_batches_do_not_mix():
    rng = torch.Generator().manual_seed(0)
    J = torch.randn(60, 8, 3, generator=rng, dtype=torch.float64)
    J = J * (torch.rand(60, 8, 3, generator=rng) < 0.6)
    rows = torch.rand(60, 8, generator=rng) < 0.7
    found = dependence(J, rows)
    for i in range(60):
        alone = J[i, rows[i]].numpy()
        assert bool(found.connected()[i]) == (len(alone) < 2 or connected_by_definition(alone))
        assert not bool((found.witness[i] & ~rows[i]).any())


def test_margin_is_the_weakest_link_and_does_not_see_reparameterisation():
    rng = torch.Generator().manual_seed(0)
    blocks = torch.block_diag(*torch.randn(2, 3, 2, generator=rng, dtype=torch.float64))
    link = torch.randn(6, 4, generator=rng, dtype=torch.float64)
    every = torch.ones(1, 6, dtype=torch.bool)
    margins = []
    for strength in (0.0, 0.01, 0.1):
        found = dependence((blocks + strength * link)[None], every)
        margins.append(float(found.margin[0]))
        P = projector(blocks + strength * link).abs()
        sides = [torch.tensor(bits, dtype=torch.bool) for bits in itertools.product((0, 1), repeat=6)][1:-1]
        across = [float(P[side][:, ~side].max()) for side in sides]
        assert margins[-1] == pytest.approx(min(across), abs=1e-12)
        side = found.witness[0]
        assert float(P[side][:, ~side].max()) == pytest.approx(margins[-1], abs=1e-12)
    assert margins[0] < 1e-12 < 1e-4 < margins[1] < margins[2]
    T = torch.randn(4, 4, generator=rng, dtype=torch.float64)
    changed = dependence((blocks + 0.1 * link)[None] @ T, every)
    assert float(changed.margin[0]) == pytest.approx(margins[2], rel=1e-8)


def test_counting_square_generic_is_split_and_one_more_row_is_connected():
    J = torch.randn(20, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    four = torch.tensor([True, True, True, True, False]).expand(20, -1)
    assert not bool(dependence(J, four).connected().any())
    assert bool(dependence(J, torch.ones(20, 5, dtype=torch.bool)).connected().all())


def test_nothing_to_split_in_fewer_than_two_rows():
    J = torch.randn(2, 3, 2, dtype=torch.float64)
    found = dependence(J, torch.tensor([[False, False, False], [False, True, False]]))
    assert torch.isinf(found.margin).all()
    assert found.connected().all()


def planted(z):
    """Rows 1 to 3 are parallel at c = (0.7, -0.4) alone; there row 0 depends on none of them."""
    a, b = z[:, 0] - 0.7, z[:, 1] + 0.4
    return torch.stack([a, b, b + a.square() / 2, 2 * b + a * b, z[:, 2]], -1)


def test_isolated_violation_is_found_where_sampling_sees_none():
    z = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.tensor([True, True, True, True, False])
    assert bool(dependence(jacobian(planted, z), rows.expand(40, -1)).connected().all())
    point = weakest_point(planted, z, rows, 2)
    assert torch.allclose(point[:2], torch.tensor([0.7, -0.4], dtype=torch.float64), atol=1e-6)
    assert float(dependence(jacobian(planted, point[None]), rows[None]).margin[0]) < 1e-8


def test_no_isolated_violation_is_invented():
    W = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = torch.randn(10, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def g(z):
        return torch.cat([z[:, :2] @ W.T, z[:, 2:]], -1)

    assert weakest_point(g, z, torch.tensor([True] * 5 + [False]), 2) is None
