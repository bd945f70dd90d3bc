"""Separation and radius: closed forms for linear g, a fine grid for a nonlinear one, the order of the three ways."""

import math

import pytest
import torch

from offsupport.latent.process.draws import draw
from offsupport.latent.process.process import preset
from offsupport.theory.jacobian import bounds
from offsupport.theory.radius import attained, certified, radius, sampled_norms, segment_norms, separation
from offsupport.theory.support import Support

BALL = Support("ball", 1.5, 2)


def linear(offset_in_plane, offset_across):
    """x = A c + B s: two discs of radius 1.5 in parallel planes; c is a scalar."""
    A = torch.tensor([offset_in_plane, 0.0, offset_across], dtype=torch.float64)
    B = torch.eye(3, 2, dtype=torch.float64)
    return lambda z: z[:, :1] * A + z[:, 1:] @ B.T


@pytest.mark.parametrize(
    ("in_plane", "across", "edge", "inside"),
    [(5.0, 0.0, 2.0, 2.0), (5.0, 1.0, math.hypot(2, 1), math.hypot(2, 1)), (1.0, 0.7, 0.7, 0.7), (0.0, 2.0, 2.0, 2.0)],
)
def test_linear_manifolds(in_plane, across, edge, inside):
    g = linear(in_plane, across)
    c1, c2 = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    found = separation(g, c1, c2[None], BALL, rng, (1.0, 0.0))
    assert found.boundary == pytest.approx(edge, rel=1e-4)
    assert found.whole == pytest.approx(inside, rel=1e-3)
    assert 0.97 * edge <= found.certified <= edge * (1 + 1e-9)
    x = [float((g(torch.cat([c, s])[None])).norm()) for c, s in zip((c1, c2), found.s_pair, strict=True)]
    assert all(math.isfinite(v) for v in x)
    assert torch.allclose(found.s_pair.norm(dim=-1), torch.full((2,), 1.5, dtype=torch.float64))


def test_linear_radius_is_half_the_separation_over_the_norm():
    g = lambda z: linear(5.0, 0.0)(z) * 3  # noqa: E731
    c = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    s_tgt = torch.tensor([2.0, 0.0], dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    full = math.sqrt(9 * (1 + 25))  # singular values of [5 e1, e1, e2] times 3
    J_u, J_u_s = sampled_norms(g, c.repeat(8, 1), BALL.sample(16, rng), s_tgt, BALL.nearest, rng)
    assert (J_u, J_u_s) == (pytest.approx(full), pytest.approx(3.0))
    assert segment_norms(g, c, BALL.nearest(s_tgt), s_tgt) == (pytest.approx(full), pytest.approx(3.0))
    found = radius("sampled", 6.0, J_u, J_u_s, distance=0.5)
    assert (found.radius_s, found.ratio_s) == (pytest.approx(1.0), pytest.approx(0.5))
    assert found.radius == pytest.approx(3 / full)
    assert radius("sampled", 0.0, 1.0, 1.0, distance=0.0).ratio == 0
    assert radius("sampled", 0.0, 1.0, 1.0, distance=0.1).ratio == math.inf


@pytest.mark.parametrize("shape", ["ball", "box"])
def test_nonlinear_separation_agrees_with_a_fine_grid(shape):
    draws = draw(preset("assumptions", n_source=10), [3], dtype=torch.float64)
    support = Support(shape, 3.0, 2)
    c1, c2 = draws.embeddings[0]
    constants = bounds(draws.g, 4)

    def g(z):
        return draws.g(z[None])[0]

    t = torch.linspace(0, support.perimeter, 2000, dtype=torch.float64)
    x1, x2 = (g(torch.cat([c.expand(2000, -1), support.curve(t)], -1)) for c in (c1, c2))
    grid = float(torch.cdist(x1, x2, compute_mode="donot_use_mm_for_euclid_dist").min())
    found, _ = attained(g, c1, c2, support, torch.Generator().manual_seed(0))
    proven = certified(g, c1, c2, support, constants.upper_s)
    assert found == pytest.approx(grid, rel=1e-3)
    assert proven <= min(grid, found)
    assert proven >= 0.97 * grid


@pytest.mark.parametrize("seed", range(4))
def test_certified_is_below_sampled_and_below_half_the_distance_of_the_embeddings(seed):
    draws = draw(preset("assumptions", n_source=10), [seed], [4.0], dtype=torch.float64)
    support, (c1, c2) = Support("ball", 3.0, 2), draws.embeddings[0]
    known, s_tgt = bounds(draws.g, 4), draws.s_tgt[0, 0, 0]

    def g(z):
        return draws.g(z[None])[0]

    rng = torch.Generator().manual_seed(0)
    apart = separation(g, c1, c2[None], support, rng, (known.upper_s, known.lower))
    found = sampled_norms(g, draws.embeddings[0].repeat(32, 1), support.sample(64, rng), s_tgt, support.nearest, rng)
    line = segment_norms(g, draws.embeddings[0], support.nearest(s_tgt), s_tgt)
    assert apart.whole <= apart.boundary
    assert found[0] <= known.upper
    assert found[1] <= min(known.upper_s, found[0])
    assert line[1] <= known.upper_s
    proven = radius("certified", apart.certified, known.upper, known.upper_s, 1.0)
    sampled = radius("sampled", apart.boundary, *found, 1.0)
    assert 0 < proven.radius <= sampled.radius
    assert proven.radius_s <= sampled.radius_s
    # Mean value: D <= J_u |c1 - c2|, so no radius can exceed half the distance of the embeddings.
    assert proven.radius <= float((c1 - c2).norm()) / 2
