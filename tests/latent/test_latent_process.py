"""Processes keep what they promise: support, distance, y from c alone, sparse influence, invertibility, ceilings."""

import pytest
import torch

from offsupport.core.errors import ConfigError
from offsupport.latent.process.draws import draw, oracle
from offsupport.latent.process.generator import bounded_matrix, jacobian, uniform_matrix
from offsupport.latent.process.process import Process, preset

SEEDS = range(1_000_000, 1_000_003)


def latents(draws):
    return torch.cat([draws.c, draws.s], -1)


@pytest.mark.parametrize("shift", ["dense", "sparse"])
@pytest.mark.parametrize("shape", ["ball", "box"])
def test_source_inside_support_and_target_at_distance(shift, shape):
    process = Process(shift=shift, shape=shape, n_source=500, radius=1.5)
    draws = draw(process, SEEDS, [5, 12], n_targets=4)
    assert process.in_support(draws.s).all()
    assert draws.s.abs().max() > 0.8
    assert torch.allclose(draws.s_tgt.norm(dim=-1), torch.tensor([5.0, 12.0])[None, :, None].expand(3, 2, 4))


@pytest.mark.parametrize(
    "changes",
    [{}, {"shift": "sparse", "permute": True}, {"shift": "sparse", "influence": "varying"}, {"task": "regression"}],
)
def test_run_is_the_same_alone_in_a_batch_and_beside_other_distances(changes):
    process = Process(n_source=50, noise=0.1, **changes)
    batch = draw(process, SEEDS, [5, 12], n_targets=2)
    alone = draw(process, [SEEDS[1]], [12], n_targets=2)
    for name in ("x", "y", "c", "s"):
        assert torch.equal(getattr(batch, name)[1], getattr(alone, name)[0])
    assert torch.equal(batch.x_tgt[1, 1], alone.x_tgt[0, 0])
    single = draw(process, [SEEDS[1]], [12])
    for name in ("x_tgt", "y_tgt", "c_tgt", "s_tgt"):
        assert torch.equal(getattr(single, name)[0, 0, 0], getattr(alone, name)[0, 0, 0])
    picked = batch.select(slice(1, 2))
    assert torch.equal(picked.g(latents(picked)), alone.g(latents(alone)))


def test_x_is_g_of_z_and_leaky_generator_is_invertible():
    draws = draw(Process(n_source=200), SEEDS, [12], dtype=torch.float64)
    z = latents(draws)
    assert torch.allclose(draws.g(z), draws.x)
    assert torch.allclose(draws.g.inverse(draws.x), z, atol=1e-9)
    with pytest.raises(ConfigError, match="closed-form"):
        draw(Process(n_source=2, activation="relu"), SEEDS).g.inverse(draws.x)


def test_relu_generator_of_width_6_loses_rank_and_leaky_does_not():
    for activation, full in (("relu", False), ("leaky", True), ("smooth", True)):
        draws = draw(Process(n_source=50, activation=activation), SEEDS, dtype=torch.float64)
        rank = torch.linalg.matrix_rank(jacobian(draws.g, latents(draws)), rtol=1e-9)
        assert bool((rank == 6).all()) is full


def test_jacobian_matches_finite_differences():
    draws = draw(Process(n_source=5, activation="smooth"), SEEDS, dtype=torch.float64)
    z, J = latents(draws), jacobian(draws.g, latents(draws))
    for j, step in enumerate(1e-6 * torch.eye(6, dtype=torch.float64)):
        slow = (draws.g(z + step) - draws.g(z - step)) / 2e-6
        assert torch.allclose(J[..., j], slow, atol=1e-7)


@pytest.mark.parametrize("changes", [{}, {"permute": True}, {"influence": "varying"}, {"d_h": 8}])
def test_sparse_influence_is_where_the_jacobian_says(changes):
    process = Process(shift="sparse", n_source=200, **changes)
    draws = draw(process, SEEDS, dtype=torch.float64)
    z = latents(draws)
    touched = jacobian(draws.g, z)[..., process.d_c :].abs().amax(-1) > 0
    mask = draws.g.influence(z)
    assert torch.equal(touched, mask)
    assert (mask.sum(-1) == process.d_s).all()
    assert (mask.float().std(1).sum() > 0) == (process.influence == "varying")
    assert process.d_x == draws.x.shape[-1]


def test_dense_influence_is_everywhere():
    draws = draw(Process(n_source=20), SEEDS, dtype=torch.float64)
    touched = jacobian(draws.g, latents(draws))[..., 4:].abs().amax(-1) > 0
    assert torch.equal(touched, draws.g.influence(latents(draws)))


def test_ceilings_and_constant_predictor():
    draws = draw(Process(), SEEDS)
    assert (oracle(draws, draws.c) == draws.y).float().mean() == pytest.approx(0.977, abs=0.004)
    draws = draw(Process(task="regression"), SEEDS)
    assert ((oracle(draws, draws.c) - draws.y) ** 2).mean() == pytest.approx(0.19, abs=0.01)
    assert ((2 - draws.y) ** 2).mean() == pytest.approx(4 / 3, abs=0.03)


def test_fixed_embeddings_are_two_points_and_continuous_part_is_not():
    draws = draw(Process(n_source=100, embedding="fixed"), SEEDS, [12])
    assert all(len(run.unique(dim=0)) == 2 for run in draws.c)
    assert torch.equal(oracle(draws, draws.c), draws.y)
    assert torch.equal(oracle(draws, draws.c_tgt), draws.y_tgt)
    mixed = draw(Process(n_source=100, embedding="fixed", d_continuous=1), SEEDS)
    assert all(len(run[:, :3].unique(dim=0)) == 2 and len(run[:, 3].unique()) == 100 for run in mixed.c)
    assert torch.equal(oracle(mixed, mixed.c), mixed.y)


def test_y_depends_on_c_alone_unless_asked():
    for dependence, correlated in ((0.0, False), (0.8, True)):
        draws = draw(Process(n_source=4000, dependence=dependence), SEEDS)
        r = torch.corrcoef(torch.stack([draws.s[0, :, 0], draws.y[0].float()]))[0, 1].abs()
        assert bool(r > 0.1) is correlated


def test_every_remaining_option_has_an_effect():
    base = draw(Process(n_source=20), SEEDS, [12]).x_tgt
    options = {"s_sd": 2.0, "direction": "axis", "layers": 2, "width": 9, "activation": "smooth", "slope": 0.5}
    options |= {"weights": "uniform", "condition": 1.0, "bias": 0.0, "noise": 0.2, "d_continuous": 1}
    for name, value in options.items():
        changed = draw(Process(n_source=20, **{name: value}), SEEDS, [12])
        same = name == "s_sd"
        assert torch.equal(changed.x_tgt, base) is same, name
        assert not torch.equal(changed.x, draw(Process(n_source=20), SEEDS).x) or name == "direction"
    diagonal = draw(Process(n_source=20, direction="diagonal"), SEEDS, [12]).s_tgt
    assert torch.allclose(diagonal, torch.tensor(12 / 2**0.5))


def test_weight_matrices_are_well_conditioned():
    rng = torch.Generator().manual_seed(0)
    bounded = torch.stack([bounded_matrix(6, 6, 3.0, rng) for _ in range(100)])
    values = torch.linalg.svdvals(bounded)
    assert values.max() <= 1.5
    assert values.min() >= 0.5
    assert torch.allclose(uniform_matrix(6, 4, rng).norm(dim=0), torch.ones(4, dtype=torch.float64))


def test_presets_and_bad_options():
    assert preset("paper", "sparse").activation == "relu"
    assert preset("assumptions", "sparse").d_x == 11
    assert preset("assumptions", "dense", radius=2.0).embedding == "fixed"
    with pytest.raises(ConfigError, match="Did you mean 'paper'"):
        preset("papr")
    with pytest.raises(ConfigError, match="radius"):
        preset("paper", "dense", radious=3)
    for bad in ({"d_c": 0}, {"condition": 0.5}, {"d_continuous": 4}, {"shift": "sparse", "d_h": 1}):
        with pytest.raises(ConfigError):
            Process(**bad)
