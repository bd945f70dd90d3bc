"""Jacobians agree with finite differences; certified constants bound every secant and are exact for linear maps."""

import math

import pytest
import torch

from offsupport.latent.process.draws import draw
from offsupport.latent.process.generator import Mlp
from offsupport.latent.process.process import Process, preset
from offsupport.theory.jacobian import (
    bounds,
    collision,
    jacobian,
    kink,
    mlp_bounds,
    norms,
    ranks,
    secant_bound,
    slopes,
    tear,
)
from offsupport.theory.radius import climb

PROCESSES = [
    Process(n_source=200),
    Process(n_source=200, activation="smooth", slope=0.4, layers=3),
    Process(n_source=200, activation="relu", width=16),
    Process(n_source=200, shift="sparse", activation="smooth", d_h=9, permute=True),
    Process(n_source=200, shift="sparse", d_c=3, d_continuous=1, d_s=3),
]


def one(process, seed=0):
    draws = draw(process, [seed], [5.0], dtype=torch.float64)
    return draws, (lambda z: draws.g(z[None])[0]), torch.cat([draws.c[0], draws.s[0]], -1)


@pytest.mark.parametrize("process", PROCESSES)
def test_jacobian_matches_central_differences(process):
    _, g, z = one(process)
    z, h = z[:20], 1e-6
    steps = h * torch.eye(z.shape[-1], dtype=torch.float64)
    differences = torch.stack([(g(z + e) - g(z - e)) / (2 * h) for e in steps], -1)
    assert torch.allclose(jacobian(g, z), differences, atol=1e-7)


@pytest.mark.parametrize("process", PROCESSES)
def test_certified_constants_bound_every_secant_and_sampled_norms(process):
    draws, g, z = one(process)
    split = process.d_c - process.d_continuous
    certified = bounds(draws.g, split)
    J = jacobian(g, z)
    assert float(norms(J).max()) <= certified.upper * (1 + 1e-12)
    assert float(norms(J[..., split:]).max()) <= certified.upper_s * (1 + 1e-12)
    assert float(torch.linalg.svdvals(J)[:, -1].min()) >= certified.lower * (1 - 1e-12)
    other = 5 * torch.randn(len(z), z.shape[-1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    stretch = (g(z) - g(other)).norm(dim=-1) / (z - other).norm(dim=-1)
    assert certified.lower * (1 - 1e-12) <= float(stretch.min())
    assert float(stretch.max()) <= certified.upper * (1 + 1e-12)
    same_c = torch.cat([z[:, :split], other[:, split:]], -1)
    stretch = (g(z) - g(same_c)).norm(dim=-1) / (z - same_c).norm(dim=-1)
    assert float(stretch.max()) <= certified.upper_s * (1 + 1e-12)


def test_exclusive_dimensions_keep_c_apart_at_the_certified_rate_and_tall_layers_certify_none():
    tall = next(process for process in PROCESSES if process.shift == "sparse" and process.hidden > process.d_c)
    assert bounds(one(tall)[0].g, tall.d_c).lower_exclusive == 0
    draws, g, z = one(Process(shift="sparse", activation="smooth"))
    kept = ~draws.g.influence(z[None])[0, 0]
    rate = bounds(draws.g, 4).lower_exclusive
    few = z[:2000]  # two million pairs
    x, c = g(few)[:, kept], few[:, :4]
    assert rate > 0
    assert float((torch.pdist(x) / torch.pdist(c)).min()) >= rate


def test_secant_bound_lies_between_attained_products_and_the_product_of_norms():
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        weights = [torch.randn(5, 5, generator=rng, dtype=torch.float64) for _ in range(4)]
        low, high = sorted((torch.rand(2, generator=rng) * 2).tolist())
        bound = secant_bound(weights, low, high)
        product_of_norms = math.prod(float(norms(W)) for W in weights) * high ** (len(weights) - 1)
        assert bound <= product_of_norms * (1 + 1e-12)
        for _ in range(20):
            product = weights[0]
            for W in weights[1:]:
                slope = low + (high - low) * torch.rand(5, generator=rng, dtype=torch.float64).round()
                product = W @ (slope[:, None] * product)
            assert float(norms(product)) <= bound * (1 + 1e-12)


def test_linear_generator_has_exact_constants():
    W = torch.randn(1, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mlp = Mlp((W,), (torch.zeros(1, 7, dtype=torch.float64),))
    sigma = torch.linalg.svdvals(W[0])
    assert mlp_bounds(mlp) == pytest.approx((float(sigma[0]), float(sigma[-1])))
    assert slopes(mlp) == (0.2, 1.0)


def test_relu_of_width_6_collides_and_invertible_generators_do_not():
    _, g, z = one(preset("paper", n_source=300))
    found = collision(g, z, jacobian(g, z))
    assert found is not None
    assert found.step >= 2**-16
    assert torch.allclose(g(found.z[None]), g((found.z + found.step * found.direction)[None]), atol=1e-10, rtol=0)
    assert float(ranks(jacobian(g, z)).double().mean()) < 4
    _, g, z = one(Process(n_source=300))
    assert collision(g, z, jacobian(g, z)) is None
    assert int(ranks(jacobian(g, z)).min()) == 6


def test_kinks_and_tears_are_found_where_they_are():
    draws, g, z = one(Process(n_source=300))
    point, jump = kink(g, draws.g.mlp, z, 6)
    switched = draws.g.mlp.weights[0][0] @ point + draws.g.mlp.biases[0][0]
    assert float(switched.abs().min()) < 1e-9
    assert jump > 0.01
    assert tear(g, z, 4) is None
    draws, g, z = one(Process(n_source=300, shift="sparse", influence="varying"))
    point, jump = tear(g, z, 4)
    assert jump == pytest.approx(float(2**0.5 * point[4:].norm()), rel=1e-6)  # s leaves one block, enters another
    draws, g, z = one(Process(n_source=300, activation="smooth"))
    assert kink(g, draws.g.mlp, z, 6) is None


def test_climb_reaches_the_top_inside_the_region_and_never_falls():
    def score(p):
        return -(p - 2).square().sum(-1)

    start = torch.zeros(4, 3, dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    point, value = climb(score, start, rng, project=lambda p: p.clamp(-1, 1), scale=1.0)
    assert torch.allclose(point, torch.ones(3, dtype=torch.float64), atol=1e-2)
    assert float(value) >= float(score(start).max())
