"""The dense half of the extrapolator: a flow fitted by maximum likelihood, and Bayes' rule in its latent space.

In this order: the flow and its likelihood, how it is fitted (`fit_flow`), where fits are kept (`fitted_flow`), and the
model that answers with it (`DenseModel`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from offsupport import __version__
from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import FileError
from offsupport.core.files import file_lock, sha256_bytes
from offsupport.core.progress import progress
from offsupport.latent.inputs import Source

# Invertible piecewise-linear flows and their likelihood: the inverse of a leaky-ReLU network is one.
#
# z = A_L f(... f(A_1 x + b_1) ...) + b_L with f(u) = u for u >= 0 and exp(rho) u below, z | y ~ N(means y, I). The
# kink is smoothed over a width: a hard one has no gradient of the log-determinant where it matters, at the kink. M
# flows are evaluated together in the layout (M, d, batch); the gradient is written out because it is the hot path of
# the dense estimator (a test compares it with automatic differentiation).


Width = float | Tensor
"""Half the ramp of a kink: one number per layer, or (M, d, 1) per unit."""


@dataclass(frozen=True)
class FlowShape:
    """Sizes of a flow: ``layers`` linear maps of R^d, ``labels`` features of y."""

    d: int
    layers: int
    labels: int

    @property
    def count(self) -> int:
        """Number of parameters."""
        return self.layers * self.d * (self.d + 1) + (self.layers - 1) * self.d + self.d * self.labels


@dataclass(frozen=True)
class FlowViews:
    """The parameters of M flows by name, as views of one (M, count) tensor."""

    A: list[Tensor]  # (M, d, d) per layer
    b: list[Tensor]  # (M, d, 1) per layer
    rho: list[Tensor]  # (M, d, 1) per kink: log of the slope for negative inputs
    means: Tensor  # (M, d, labels)


def views(flat: Tensor, shape: FlowShape) -> FlowViews:
    """Name the parts of a flat parameter (or gradient) tensor."""
    d, L = shape.d, shape.layers
    sizes = [d * d] * L + [d] * (2 * L - 1) + [d * shape.labels]
    parts = torch.split(flat, sizes, dim=-1)
    b = [torch.unflatten(part, -1, (d, 1)) for part in parts[L : 3 * L - 1]]
    A = [torch.unflatten(part, -1, (d, d)) for part in parts[:L]]
    return FlowViews(A, b[:L], b[L:], torch.unflatten(parts[-1], -1, (d, -1)))


def kink(u: Tensor, rho: Tensor, width: Width) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return f(u), its derivative, and the two pieces its parameter gradients need.

    The derivative goes from 1 to exp(rho) on a ramp r from u = width to u = -width; f(u) = u + (exp(rho) - 1) m(u) with
    m' = r and m(u) = u beyond the ramp.
    """
    k = torch.expm1(rho)
    r = (u * (-0.5 / width)).add_(0.5).clamp_(0, 1)
    m = (u + width).clamp_(max=0).sub_(r.square().mul_(width))
    return torch.addcmul(u, k, m), torch.addcmul(torch.ones((), dtype=u.dtype), k, r), r, m


def transform(flows: FlowViews, x: Tensor, widths: Sequence[Width]) -> tuple[Tensor, Tensor]:
    """Return z (M, d, n) and log |det dz/dx| (M, n) for x (M, d, n)."""
    log_det = torch.stack([torch.linalg.slogdet(A)[1] for A in flows.A]).sum(0)[:, None]
    for layer, (A, b) in enumerate(zip(flows.A, flows.b, strict=True)):
        x = torch.baddbmm(b, A, x)
        if layer < len(widths):
            x, slope, _, _ = kink(x, flows.rho[layer], widths[layer])
            log_det = log_det + slope.log().sum(1)
    return x, log_det


def log_density(flows: FlowViews, x: Tensor, labels: Tensor, widths: Sequence[Width]) -> Tensor:
    """Return log p(x | y), (M, n), for features of y ``labels`` (M, labels, n)."""
    z, log_det = transform(flows, x, widths)
    residual = z - flows.means @ labels
    return log_det - 0.5 * residual.square().sum(1) - 0.5 * z.shape[1] * math.log(2 * math.pi)


def gradient(flat: Tensor, shape: FlowShape, x: Tensor, labels: Tensor, widths: Sequence[Width], out: Tensor) -> None:
    """Write the gradient of the mean of -log p(x | y) over the batch into ``out``, for every flow."""
    flows, grads = views(flat, shape), views(out, shape)
    d, L, n = shape.d, shape.layers, x.shape[-1]
    inverse = torch.linalg.inv(flat[:, : L * d * d].reshape(-1, L, d, d))
    inputs, kinks = [], []
    for layer in range(L):
        inputs.append(x)
        x = torch.baddbmm(flows.b[layer], flows.A[layer], x)
        if layer < L - 1:
            x, slope, r, m = kink(x, flows.rho[layer], widths[layer])
            kinks.append((slope, r, m))
    g = torch.baddbmm(x, flows.means, labels, alpha=-1).div_(n)  # the residual: gradient by z
    grads.means.copy_(torch.bmm(g, labels.mT).neg_())
    for layer in range(L - 1, -1, -1):
        if layer < L - 1:
            slope, r, m = kinks[layer]
            k = torch.expm1(flows.rho[layer])
            per_slope = (-1 / n) / slope  # gradient by the slope, from the log-determinant
            grads.rho[layer].copy_((g * m).addcmul_(per_slope, r).sum(-1, keepdim=True) * (k + 1))
            on_ramp = ((r > 0) & (r < 1)).to(g.dtype)
            g = (g * slope).addcmul_(per_slope.mul_(on_ramp), k * (-0.5 / widths[layer]))
        grads.A[layer].copy_(torch.bmm(g, inputs[layer].mT)).sub_(inverse[:, layer].mT)
        grads.b[layer].copy_(g.sum(-1, keepdim=True))
        if layer:
            g = torch.bmm(flows.A[layer].mT, g)


# Maximum likelihood for the piecewise-linear flow, layer by layer from the outside in, best of several starts.
#
# Plain training finds the outermost kinks (they are hyperplanes in x across which the density jumps) and gets stuck
# with wrong inner ones. So the fit goes in stages: train everything; keep the outer layer of the best start, start
# the inner layers anew on the representation it gives, train again; the same with two outer layers kept; repeat, and
# accept a round only where the source likelihood rises. What plain training misses most are outer kinks: units of the
# outer layer whose slope stayed near 1 explain nothing, so every round draws them anew. Nothing here sees a target.


SHARP = 0.01  # width at which kinks end, in units of the representation's standard deviation
KEPT = 0.05  # width of kinks that a stage keeps
POLISHED = 0.1  # width of kinks at the start of the last stage
STRAIGHT = 0.3  # log slopes below this in size bend nothing
MONITORED = 4000  # source samples the starts are compared on
TOLD_EVERY = 50  # steps between two reports of progress: telling costs as much as a step


@dataclass(frozen=True, kw_only=True)
class FlowConfig:
    """How a flow is fitted; chosen on development seeds by source likelihood."""

    layers: int = 4
    """Linear layers; kinks stand between them."""
    starts: int = 4
    """Random starts per stage."""
    rounds: int = 6
    """Repetitions of the inner stages."""
    steps: int = 2000
    """Steps of the first stage."""
    inner_steps: int = 3000
    """Steps of the stage that keeps one layer; those that keep more take half."""
    polish_steps: int = 2500
    """Steps of the last stage: all layers, kinks sharp already."""
    polish_batch: int = 500
    """Samples per step of the last stage: small batches end above the likelihood that is there to be had."""
    batch_size: int = 64
    """Samples per step of the others."""
    lr: float = 0.05
    """Largest step size of a stage; the last stage takes two fifths."""
    kept_lr: float = 0.2
    """Step size of kept layers, relative."""

    def stage_steps(self, kept: int) -> int:
        """Return the steps of the inner stage that keeps so many layers."""
        return self.inner_steps if kept == 1 else self.inner_steps // 2

    def total_steps(self) -> int:
        """Return the steps of all stages."""
        inner = sum(self.stage_steps(kept) for kept in range(1, self.layers - 1))
        return self.steps + self.rounds * inner + self.polish_steps


@dataclass(frozen=True)
class Problem:
    """Whitened source samples (R, d, n), features of their labels (R, q, n), and the shape of the flow."""

    x: Tensor
    labels: Tensor
    shape: FlowShape

    def nll(self, flat: Tensor, starts: int, count: int | None = None) -> Tensor:
        """Return the mean negative log-likelihood (R, starts) at sharp kinks."""
        x, labels = (t[..., :count].repeat_interleave(starts, 0) for t in (self.x, self.labels))
        sharp = [SHARP] * (self.shape.layers - 1)
        return -log_density(views(flat, self.shape), x, labels, sharp).mean(1).view(-1, starts)


def fit_flow(x: Tensor, labels: Tensor, config: FlowConfig, rng: Callable[[str], torch.Generator]) -> Tensor:
    """Fit one flow per run.

    Args:
        x: (R, d, n) whitened source samples.
        labels: (R, q, n) features of y; the class-conditional means are linear in them.
        config: How to fit.
        rng: Gives the generator of a named part; the runs share all draws.

    Returns:
        The flat parameters, (R, count).
    """
    with progress("Fitting the dense model", config.total_steps()) as advance:
        problem = Problem(x, labels, FlowShape(x.shape[1], config.layers, labels.shape[1]))
        return _fit_stages(problem, config, rng, advance)


def _fit_stages(
    problem: Problem, config: FlowConfig, rng: Callable[[str], torch.Generator], advance: Callable[[int], None]
) -> Tensor:
    starts, x = config.starts, problem.x
    flat = torch.zeros(len(x) * starts, problem.shape.count, dtype=x.dtype)
    restart(problem, flat, starts, 0, rng("start"))
    train(problem, flat, starts, config.steps, Stage(0), config, rng("first"), advance)
    best, best_nll = _best(problem, flat, starts)
    for step in range(config.rounds):
        trial, nll = best, best_nll
        for kept in range(1, config.layers - 1):
            name = f"{step}-{kept}"
            flat = trial.repeat_interleave(starts, 0)
            fresh = reseed(problem, flat, starts, rng(f"kinks-{name}")) if kept == 1 else None
            restart(problem, flat, starts, kept, rng(f"start-{name}"))
            stage = Stage(kept, fresh)
            train(problem, flat, starts, config.stage_steps(kept), stage, config, rng(f"order-{name}"), advance)
            trial, nll = _best(problem, flat, starts)
        better = (nll < best_nll)[:, None]
        best, best_nll = torch.where(better, trial, best), torch.minimum(nll, best_nll)
    polished = best.clone()
    train(problem, polished, 1, config.polish_steps, Stage(config.layers - 1), config, rng("polish"), advance)
    # The monitor saw part of the source; whether polishing paid is judged on all of it.
    return torch.where(problem.nll(polished, 1) < problem.nll(best, 1), polished, best)


def _best(problem: Problem, flat: Tensor, starts: int) -> tuple[Tensor, Tensor]:
    nll = problem.nll(flat, starts, MONITORED).nan_to_num(math.inf)
    lowest, index = nll.min(1)
    return flat.view(len(nll), starts, -1)[torch.arange(len(nll)), index], lowest


def restart(problem: Problem, flat: Tensor, starts: int, kept: int, rng: torch.Generator) -> None:
    """Start the layers from ``kept`` on anew, in place: whitening, random rotations, slopes e, means 0."""
    flows = views(flat, problem.shape)
    h = problem.x[..., :MONITORED].repeat_interleave(starts, 0)
    for layer in range(kept):
        h = kink(torch.baddbmm(flows.b[layer], flows.A[layer], h), flows.rho[layer], SHARP)[0]
    mean = h.mean(-1, keepdim=True)
    white = whitening((h - mean) @ (h - mean).mT / h.shape[-1])
    d = problem.shape.d
    for layer in range(kept, problem.shape.layers):
        drawn = torch.randn(starts, d, d, generator=rng, dtype=torch.float64)
        rotation = torch.linalg.qr(drawn)[0].to(h.dtype).repeat(len(problem.x), 1, 1)
        first = layer == kept
        flows.A[layer].copy_(rotation @ white if first else rotation)
        flows.b[layer].copy_(-(flows.A[layer] @ mean) if first else torch.zeros_like(mean))
        if layer < problem.shape.layers - 1:
            flows.rho[layer].fill_(1.0)
    flows.means.zero_()


def reseed(problem: Problem, flat: Tensor, starts: int, rng: torch.Generator) -> Tensor:
    """Draw the units of the outer layer that bend nothing anew, in place; return which, (R * starts, d, 1)."""
    flows, d = views(flat, problem.shape), problem.shape.d
    fresh = flows.rho[0].abs() < STRAIGHT
    rows = torch.nn.functional.normalize(torch.randn(starts, d, d, generator=rng, dtype=torch.float64), dim=-1)
    offsets = 0.7 * torch.randn(starts, d, 1, generator=rng, dtype=torch.float64)  # x is white: within its bulk
    for part, drawn in ((flows.A[0], rows), (flows.b[0], offsets), (flows.rho[0], torch.ones_like(offsets))):
        part.copy_(torch.where(fresh, drawn.to(part.dtype).repeat(len(problem.x), 1, 1), part))
    return fresh


def whitening(covariance: Tensor) -> Tensor:
    """Return the symmetric inverse square root of covariances (M, d, d), in double precision inside."""
    values, vectors = torch.linalg.eigh(covariance.double())
    floor = 1e-8 * values[..., -1:]
    white: Tensor = (vectors * values.clamp_min(floor).rsqrt()[..., None, :]) @ vectors.mT
    return white.to(covariance.dtype)


@dataclass(frozen=True)
class Stage:
    """What a stage of training keeps.

    Attributes:
        kept: Outer layers whose kinks are sharp already and which move slower.
        fresh: (M, d, 1) units of the outer layer that are new and treated like those of the inner layers.
    """

    kept: int
    fresh: Tensor | None = None

    def widths(self, layers: int) -> list[Width]:
        """Return the widths of the kinks to begin with."""
        begin: list[Width] = [KEPT if layer < self.kept else 1.0 for layer in range(layers - 1)]
        if self.fresh is not None:
            begin[0] = torch.where(self.fresh, 1.0, KEPT)
        return begin

    def speeds(self, shape: FlowShape, slow: float, flat: Tensor) -> Tensor:
        """Return the relative step sizes, (M, count) or (1, count): ``slow`` in the kept layers."""
        speed = torch.ones_like(flat[:1] if self.fresh is None else flat)
        parts = views(speed, shape)
        for layer in range(self.kept):
            for tensor in (parts.A[layer], parts.b[layer], parts.rho[layer]):
                tensor.fill_(slow)
                if layer == 0 and self.fresh is not None:
                    tensor.masked_fill_(self.fresh, 1.0)
        return speed


def train(
    problem: Problem,
    flat: Tensor,
    starts: int,
    steps: int,
    stage: Stage,
    config: FlowConfig,
    rng: torch.Generator,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Take Adam steps on the flat parameters in place: one warm-up and cosine cycle, kinks annealed to sharp.

    Args:
        problem: The data.
        flat: (R * starts, count) parameters.
        starts: Flows per run.
        steps: Number of steps.
        stage: What is kept; a stage that keeps all but the last layer polishes: all layers move alike.
        config: Batch sizes and step sizes.
        rng: Draws the order of the samples.
        advance: Told how many steps were taken, now and then.
    """
    polish = stage.kept == problem.shape.layers - 1
    begin = [POLISHED] * stage.kept if polish else stage.widths(problem.shape.layers)
    speed = torch.ones_like(flat[:1]) if polish else stage.speeds(problem.shape, config.kept_lr, flat)
    peak, size, warm = (0.4 * config.lr, config.polish_batch, 0.1) if polish else (config.lr, config.batch_size, 0.3)
    gradients, m, v = (torch.zeros_like(flat) for _ in range(3))
    beta1, beta2 = 0.9, 0.99
    for step in range(steps):
        x, labels = _batch(problem, starts, size, rng)
        widths = [w * (SHARP / w) ** (step / steps) for w in begin]
        gradient(flat, problem.shape, x, labels, widths, gradients)
        m.lerp_(gradients, 1 - beta1)
        v.mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
        lr = peak * cycle(step / steps, warm) / (1 - beta1 ** (step + 1))
        scale = (v / (1 - beta2 ** (step + 1))).sqrt_().add_(1e-8)
        flat.sub_((m / scale).mul_(speed), alpha=lr)
        if step % TOLD_EVERY == 0:
            advance(min(TOLD_EVERY, steps - step))


def cycle(t: float, warm: float = 0.3) -> float:
    """Return the step size at time t in [0, 1]: a cosine up until ``warm``, a cosine down to 0."""
    if t < warm:
        return 0.04 + 0.48 * (1 - math.cos(math.pi * t / warm))
    return 0.5 * (1 + math.cos(math.pi * (t - warm) / (1 - warm)))


def _batch(problem: Problem, starts: int, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    index = torch.randint(problem.x.shape[-1], (size,), generator=rng)
    x, labels = problem.x[..., index], problem.labels[..., index]
    return (x, labels) if starts == 1 else (x.repeat_interleave(starts, 0), labels.repeat_interleave(starts, 0))


# Fitted flows kept in a folder: the slow part of an extrapolator does not depend on what it is asked afterwards.


def fitted_flow(
    folder: str | None, x: Tensor, labels: Tensor, config: FlowConfig, rng: Callable[[str], torch.Generator]
) -> Tensor:
    """Return what :func:`fit_flow` gives; read it if ``folder`` has it, else keep it there.

    The name of a file is a hash of everything the fit depends on, so a flow is never taken for another one; a damaged
    file is fitted again.
    """
    if folder is None:
        return fit_flow(x, labels, config, rng)
    facts = f"{__version__} {astuple(config)} {rng('').initial_seed()} {x.dtype} {tuple(x.shape)}".encode()
    key = sha256_bytes(facts + x.numpy().tobytes() + labels.numpy().tobytes())
    path = Path(folder) / f"flow-{key[:32]}.safetensors"
    with file_lock(path):  # who comes second waits, and reads
        with contextlib.suppress(FileError):
            return load_tensors(path)[0]["flat"]
        flat = fit_flow(x, labels, config, rng)
        path.unlink(missing_ok=True)  # damaged; by its name it can be nothing else
        save_tensors(path, {"flat": flat}, {})
    return flat


GRID = 65  # values of y a regression posterior is computed on: quantiles of the source


@dataclass(frozen=True)
class DenseModel:
    """A flow per run and the label values it can explain a target with.

    Attributes:
        flat: (R, count) parameters of the flows.
        white: (R, d, d) whitening that precedes them.
        features: (R, q, v) features of the v label values; values: (R, v) those values; log_prior: (R, v).
    """

    flat: Tensor
    shape: FlowShape
    white: Tensor
    features: Tensor
    values: Tensor
    log_prior: Tensor

    @property
    def flows(self) -> FlowViews:
        """The parameters by name."""
        return views(self.flat, self.shape)

    def posterior(self, x: Tensor) -> Tensor:
        """Return p(y | x) over the label values, (R, m, v), for standardised samples (R, m, d)."""
        white = (x @ self.white).mT
        terms = []
        for feature, log_prior in zip(self.features.unbind(-1), self.log_prior.unbind(-1), strict=True):
            labels = feature[..., None].expand(-1, -1, white.shape[-1])
            terms.append(log_density(self.flows, white, labels, self._widths()) + log_prior[:, None])
        return torch.stack(terms, -1).softmax(-1)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation (R, m) of the posterior of a regression."""
        posterior = self.posterior(x)
        mean = (posterior * self.values[:, None]).sum(-1)
        square = (posterior * (self.values[:, None] - mean[..., None]).square()).sum(-1)
        return mean, square.sqrt()

    def latents(self, x: Tensor, d_c: Tensor) -> tuple[Tensor, Tensor]:
        """Return z in a basis whose first axes are those the label moves, cut into c_hat and s_hat.

        Args:
            x: (R, m, d) standardised samples.
            d_c: (R,) how many axes are c_hat; where runs differ, the missing coordinates are zero.
        """
        z, _ = transform(self.flows, (x @ self.white).mT, self._widths())
        z = z.mT @ self.basis()
        d = z.shape[-1]
        c = z[..., : int(d_c.max())] * (torch.arange(int(d_c.max())) < d_c[:, None, None])
        rest = d - int(d_c.min())
        s = torch.stack([functional.pad(z[r, :, int(k) :], (0, rest - d + int(k))) for r, k in enumerate(d_c)])
        return c, s

    def basis(self) -> Tensor:
        """Return the (R, d, d) orthogonal basis whose first axes span the means of the labels."""
        means = self.flows.means @ self.features
        basis: Tensor = torch.linalg.svd(means - means.mean(-1, keepdim=True), full_matrices=True)[0]
        return basis

    def _widths(self) -> list[float]:
        return [SHARP] * (self.shape.layers - 1)


def fit_dense(
    source: Source, config: FlowConfig, rng: Callable[[str], torch.Generator], memory: str | None = None
) -> DenseModel:
    """Fit the flow of every run, or read it from the folder ``memory``."""
    white = whitening(source.x.mT @ source.x / source.x.shape[1])
    x = (source.x @ white).mT.contiguous()
    if source.task == "classification":
        labels = functional.one_hot(source.y, source.n_classes).to(x.dtype).mT.contiguous()
        features = torch.eye(source.n_classes, dtype=x.dtype).expand(len(x), -1, -1)
        values = torch.arange(source.n_classes).expand(len(x), -1).to(x.dtype)
        log_prior = labels.mean(-1).log()
    else:
        labels = torch.stack([torch.ones_like(source.y), source.y], 1)
        values = source.y.quantile(torch.linspace(0, 1, GRID, dtype=x.dtype), dim=1).T.contiguous()
        features = torch.stack([torch.ones_like(values), values], 1)
        log_prior = torch.zeros_like(values)
    flat = fitted_flow(memory, x, labels, config, rng)
    return DenseModel(flat, FlowShape(x.shape[1], config.layers, labels.shape[1]), white, features, values, log_prior)
