"""The vectorised estimators against the obvious: one run at a time, torch.nn modules, torch.optim.Adam, autograd."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from offsupport.latent import Imsda, Vae
from offsupport.latent.baselines.imsda import INVERSE_SOFTPLUS_1, parameter_count
from offsupport.latent.extrapolator.dense import FlowConfig, FlowShape, Problem, Stage, cycle, train, views
from offsupport.latent.inputs import check_source
from offsupport.latent.networks import batches, init_mlp

RUNS, N, D, TARGETS = 3, 96, 5, 2
SIZES = {"epochs": 2, "batch_size": 32, "d_c": 3, "d_s": 2, "width": 8, "shift": "dense"}


def problem(task):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(RUNS, N, D, generator=rng, dtype=torch.float64)
    y = x[..., 0] * x[..., 1] + 0.01 if task == "regression" else (x[..., 0] > x[..., 1]).long()
    source = check_source(x, y.numpy(), dtype=torch.float64)
    return source, 3 * torch.randn(RUNS, TARGETS, D, generator=rng, dtype=torch.float64)


def fitted(kind, task):
    source, x_tgt = problem(task)
    estimator = kind(**SIZES)
    estimator.source_, estimator._seed = source, 0
    estimator._fit(source, x_tgt)
    return estimator, source, x_tgt


def network(params, run):
    """Return the run's network of batched parameters [W1, b1, ...] as plain modules."""
    layers = []
    for W, b in zip(params[::2], params[1::2], strict=True):
        layer = nn.Linear(W.shape[1], W.shape[2], dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(W[run].T)
            layer.bias.copy_(b[run, 0])
        layers += [layer, nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


def assert_same(params, plain, run):
    linear = [layer for layer in plain if isinstance(layer, nn.Linear)]
    assert len(params) == 2 * len(linear)
    for k, layer in enumerate(linear):
        torch.testing.assert_close(params[2 * k][run].T, layer.weight, rtol=1e-8, atol=1e-11)
        torch.testing.assert_close(params[2 * k + 1][run, 0], layer.bias, rtol=1e-8, atol=1e-11)


def start(estimator, source, head_width):
    """Draw the networks the estimator starts from."""
    rng, d_z = estimator._rng("weights"), estimator.d_c + estimator.d_s
    hidden = [estimator.width] * 3
    sizes = [D, *hidden, 2 * d_z], [d_z, *hidden, D], [head_width, source.n_classes or 1]
    return [init_mlp(size, RUNS, rng, torch.float64) for size in sizes]


def supervised(output, y):
    return functional.mse_loss(output[:, 0], y) if y.is_floating_point() else functional.cross_entropy(output, y)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_vae_is_a_plain_loop_over_runs(task):
    estimator, source, x_tgt = fitted(Vae, task)
    begin = start(estimator, source, estimator.d_c)
    for run in range(RUNS):
        encoder, decoder, head = parts = [network(params, run) for params in begin]
        adam = torch.optim.Adam([p for part in parts for p in part.parameters()], lr=estimator.lr)
        noise = estimator._rng("noise")
        for index in batches(N, 32, 2, estimator._rng("order")):
            adam.zero_grad()
            n = len(index)
            seen = torch.cat([source.x[run, index], x_tgt[run]])
            mu, logvar = encoder(seen).split(estimator.d_c + estimator.d_s, dim=1)
            sd = (logvar.clamp(min=-10) / 2).exp()
            z = mu + sd * torch.randn(mu.shape, generator=noise, dtype=torch.float64)
            prior = torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(sd))
            divergence = torch.distributions.kl_divergence(torch.distributions.Normal(mu, sd), prior)[:n]
            loss = 0.1 * (decoder(z) - seen).square().sum(1).mean() + 0.01 * divergence.sum(1).mean()
            weight = 0.1 if task == "regression" else 1.0
            loss = loss + weight * supervised(head(z[:n, :3]), source.y[run, index])
            loss = loss - 0.1 * prior.log_prob(z)[n:, :3].sum(1).mean() + 0.01 * z[n:, 3:].square().sum(1).mean()
            loss.backward()
            adam.step()
        for params, part in zip((estimator.encoder_, estimator.decoder_, estimator.head_), parts, strict=True):
            assert_same(params, part, run)


def increasing(s, p, offsets, units):
    """Apply the sigmoidal flow of one dimension with parameters p to s (n,)."""
    a, b, w, _, a2, b2, w2, u = p.split([units, units, units, 1, units, units, units, units])
    hidden = torch.sigmoid(functional.softplus(a + INVERSE_SOFTPLUS_1) * s[:, None] + b)
    h = torch.logit(hidden @ (w[:, None] + offsets).softmax(0)) @ u.softmax(0)
    last = torch.sigmoid(functional.softplus(a2 + INVERSE_SOFTPLUS_1) * h[:, None] + b2)
    return torch.logit(last @ w2.softmax(0))


def through(z, flow, offsets, units):
    """Return [c, f(s)] and log |det|, the derivative by automatic differentiation."""
    columns, log_det = [z[:, :3]], 0.0
    for k in range(2):
        s = z[:, 3 + k]
        out = increasing(s, flow[k], offsets, units)
        (slope,) = torch.autograd.grad(out.sum(), s, create_graph=True)
        columns.append(out[:, None])
        log_det = log_det + slope.log()
    return torch.cat(columns, 1), log_det


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_imsda_is_a_plain_loop_over_runs(task):
    estimator, source, x_tgt = fitted(Imsda, task)
    begin, units = start(estimator, source, 5), estimator.flow_units
    for run in range(RUNS):
        rng = estimator._rng("flow")
        domains = nn.Parameter(torch.randn(2, 32, generator=rng, dtype=torch.float64))
        hyper = network(init_mlp([32, 64, 64, 2 * parameter_count(units)], RUNS, rng, torch.float64), run)
        offsets = nn.Parameter((torch.rand(units, units, generator=rng, dtype=torch.float64) * 2 - 1) * 1e-3)
        encoder, decoder, head = parts = [network(params, run) for params in begin]
        weights = [p for part in (*parts, hyper) for p in part.parameters()]
        adam = torch.optim.Adam([*weights, domains, offsets], lr=estimator.lr)
        noise = estimator._rng("noise")
        for index in batches(N, 32, 2, estimator._rng("order")):
            adam.zero_grad()
            n = len(index)
            seen = torch.cat([source.x[run, index], x_tgt[run]])
            mu, logvar = encoder(seen).split(5, dim=1)
            sd = (logvar.clamp(min=-10) / 2).exp()
            z = mu + sd * torch.randn(mu.shape, generator=noise, dtype=torch.float64)
            loss = 0.1 * (decoder(z) - seen).square().sum(1).mean()
            posterior = torch.distributions.Normal(mu, sd).log_prob(z).sum(1)
            flows, outputs = hyper(domains).view(2, 2, -1), []
            for domain, part in enumerate((slice(0, n), slice(n, None))):
                high, log_det = through(z[part], flows[domain], offsets, units)
                prior = torch.distributions.Normal(torch.zeros_like(high), torch.ones_like(high)).log_prob(high).sum(1)
                loss = loss + 0.5 * 0.01 * (posterior[part] - prior - log_det).mean().abs()
                outputs.append(head(high))
            weight = 0.1 if task == "regression" else 1.0
            loss = loss + weight * supervised(outputs[0], source.y[run, index])
            if task == "classification":
                entropy = torch.distributions.Categorical(logits=outputs[1]).entropy()
                sure = entropy[entropy < 0.5]
                loss = loss + 0.1 * (sure.mean() if len(sure) else 0.0)
            loss.backward()
            adam.step()
        for params, part in zip((estimator.encoder_, estimator.decoder_, estimator.head_), parts, strict=True):
            assert_same(params, part, run)
        assert_same(estimator.hyper_, hyper, run)
        torch.testing.assert_close(estimator.offsets_[run], offsets.data, rtol=1e-8, atol=1e-11)
        torch.testing.assert_close(estimator.domains_[run], domains.data, rtol=1e-8, atol=1e-11)


class PlainFlow(nn.Module):
    """A flow of nn.Linear layers with smoothed leaky kinks between them."""

    def __init__(self, flows, run):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3, dtype=torch.float64) for _ in flows.A)
        with torch.no_grad():
            for layer, A, b in zip(self.layers, flows.A, flows.b, strict=True):
                layer.weight.copy_(A[run])
                layer.bias.copy_(b[run, :, 0])
        self.rho = nn.ParameterList(nn.Parameter(rho[run, :, 0].clone()) for rho in flows.rho)
        self.means = nn.Parameter(flows.means[run].clone())

    def nll(self, x, labels, widths):
        log_det = sum(torch.linalg.slogdet(layer.weight)[1] for layer in self.layers)
        for layer, linear in enumerate(self.layers):
            x = linear(x)
            if layer < len(self.rho):
                w, k = widths[layer], self.rho[layer].exp() - 1
                r = (0.5 - x / (2 * w)).clamp(0, 1)
                m = torch.where(x > w, 0.0, torch.where(x < -w, x, -w * r * r))
                log_det = log_det + (1 + k * r).log().sum(1)
                x = x + k * m
        normal = torch.distributions.Normal(labels @ self.means.T, 1.0)
        return -(normal.log_prob(x).sum(1) + log_det).mean()


def test_flow_training_is_a_plain_loop_over_runs_and_starts():
    rng = torch.Generator().manual_seed(0)
    shape, starts, steps = FlowShape(d=3, layers=3, labels=2), 2, 8
    x = torch.randn(RUNS, 3, 200, generator=rng, dtype=torch.float64)
    labels = functional.one_hot(torch.randint(2, (RUNS, 200), generator=rng), 2).double().mT
    flat = 0.5 * torch.randn(RUNS * starts, shape.count, generator=rng, dtype=torch.float64)
    config = FlowConfig(layers=3, batch_size=16, lr=0.03, kept_lr=0.2)
    plain = [PlainFlow(views(flat, shape), m) for m in range(RUNS * starts)]
    train(Problem(x, labels, shape), flat, starts, steps, Stage(1), config, torch.Generator().manual_seed(1))
    for m, flow in enumerate(plain):
        kept = [*flow.layers[0].parameters(), flow.rho[0]]
        free = [p for p in flow.parameters() if all(p is not other for other in kept)]
        adam = torch.optim.Adam([{"params": kept}, {"params": free}], betas=(0.9, 0.99), eps=1e-8)
        order = torch.Generator().manual_seed(1)
        for step in range(steps):
            for group, speed in zip(adam.param_groups, (0.2, 1.0), strict=True):
                group["lr"] = speed * 0.03 * cycle(step / steps)
            widths = [begin * (0.01 / begin) ** (step / steps) for begin in (0.05, 1.0)]
            index = torch.randint(200, (16,), generator=order)
            adam.zero_grad()
            flow.nll(x[m // starts].T[index], labels[m // starts].T[index], widths).backward()
            adam.step()
        found = views(flat, shape)
        for layer, linear in enumerate(flow.layers):
            torch.testing.assert_close(found.A[layer][m], linear.weight.data, rtol=1e-8, atol=1e-10)
            torch.testing.assert_close(found.b[layer][m, :, 0], linear.bias.data, rtol=1e-8, atol=1e-10)
        for rho, expected in zip(found.rho, flow.rho, strict=True):
            torch.testing.assert_close(rho[m, :, 0], expected.data, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(found.means[m], flow.means.data, rtol=1e-8, atol=1e-10)
