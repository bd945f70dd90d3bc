"""Distances to supports: closed forms, metric properties, boundaries, clouds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offsupport.theory.support import Support, hull_distance, knn_distance, quantile_ball, whitening

POINTS = st.lists(st.floats(-20, 20), min_size=3, max_size=3).map(lambda v: torch.tensor(v, dtype=torch.float64))
SUPPORTS = st.builds(Support, st.sampled_from(["ball", "box"]), st.floats(0.1, 10), st.just(3))


@settings(max_examples=100, deadline=None)
@given(SUPPORTS, POINTS, POINTS)
def test_distance_is_zero_inside_one_lipschitz_and_attained_by_the_nearest_point(support, a, b):
    nearest = support.nearest(a)
    assert float(support.distance(nearest)) < 1e-9
    assert float((a - nearest).norm()) == pytest.approx(float(support.distance(a)))
    assert float((support.distance(a) - support.distance(b)).abs()) <= float((a - b).norm()) + 1e-9
    inside = support.nearest(b)  # no point of the support is nearer than the distance says
    assert float((a - inside).norm()) >= float(support.distance(a)) - 1e-9


@settings(max_examples=50, deadline=None)
@given(POINTS, st.floats(0.1, 10))
def test_closed_forms(s, r):
    ball, box = (float(Support(shape, r, 3).distance(s)) for shape in ("ball", "box"))
    assert ball == pytest.approx(max(0.0, float(s.norm()) - r), abs=1e-9)
    assert box == pytest.approx(math.hypot(*(max(0.0, abs(v) - r) for v in s.tolist())), abs=1e-9)


@pytest.mark.parametrize("shape", ["ball", "box"])
def test_boundary_curve_is_on_the_boundary_at_unit_speed(shape):
    support = Support(shape, 1.7, 2)
    t = torch.linspace(0, support.perimeter, 4001, dtype=torch.float64)
    curve = support.curve(t)
    size = curve.norm(dim=-1) if shape == "ball" else curve.abs().amax(-1)
    assert torch.allclose(size, torch.full_like(size, 1.7))
    assert float((curve[1:] - curve[:-1]).norm(dim=-1).sum()) == pytest.approx(support.perimeter, rel=1e-3)
    assert float((curve[1:] - curve[:-1]).norm(dim=-1).max()) <= float(t[1]) * (1 + 1e-9)
    assert torch.allclose(curve[0], curve[-1], atol=1e-9)


@pytest.mark.parametrize("shape", ["ball", "box"])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_samples_are_inside_boundaries_on_the_edge_and_free_directions_unbounded(shape, dim):
    support = Support(shape, 2.0, dim, free=1)
    rng = torch.Generator().manual_seed(0)
    inside, edge = support.sample(500, rng), support.boundary(500, rng)
    assert inside.shape == edge.shape == (500, dim + 1)
    assert float(support.distance(inside).max()) < 1e-12
    assert float(support.distance(edge * torch.tensor([1.0] + [1.001] * dim)).min()) > 0
    far = torch.zeros(dim + 1, dtype=torch.float64)
    far[0] = 100.0
    assert float(support.distance(far)) == 0


def test_whitening_and_quantile_ball_of_a_gaussian_cloud():
    rng = torch.Generator().manual_seed(0)
    mix = torch.tensor([[3.0, 0.0], [1.0, 0.2]], dtype=torch.float64)
    cloud = torch.randn(20_000, 2, generator=rng, dtype=torch.float64) @ mix.T + 5
    white = whitening(cloud)
    w = white(cloud)
    assert torch.allclose(w.T @ w / len(w), torch.eye(2, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(white.back(w), cloud)
    assert quantile_ball(w, 0.9).radius == pytest.approx(math.sqrt(-2 * math.log(0.1)), rel=0.02)  # chi of 2 dimensions
    flat = torch.stack([cloud[:, 0], torch.ones(len(cloud))], -1)
    assert bool(torch.isfinite(whitening(flat)(flat)).all())


def test_hull_and_neighbour_distances():
    corners = torch.tensor([[-1.0, -1], [-1, 1], [1, -1], [1, 1], [0, 0]], dtype=torch.float64)
    for point, expected in (((3.0, 0.0), 2.0), ((2.0, 2.0), math.sqrt(2)), ((0.5, -0.3), 0.0)):
        assert hull_distance(torch.tensor(point), corners) == pytest.approx(expected, abs=1e-4)
    nearest = knn_distance(torch.tensor([[4.0, 1.0]], dtype=torch.float64), corners, k=1)
    assert float(nearest[0]) == pytest.approx(3.0)
    assert float(knn_distance(corners[:1], corners, k=5)[0]) == pytest.approx(math.sqrt(8))
