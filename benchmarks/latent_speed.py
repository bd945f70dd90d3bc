"""Runs per second of the batched trainer and of a plain loop over runs, interleaved in one process on one thread.

The batched side is what the tables use: one program with a leading run axis. The plain side is the same training in the
usual way, `nn.Linear` layers and `torch.optim.Adam`, one run after the other. Both see the same data, the same
network, the same batches and as many steps; a test shows that they give the same numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from offsupport.latent.baselines.vae import gaussian_kl, sample
from offsupport.latent.networks import adam, batches, init_mlp, mlp, supervised_loss
from offsupport.latent.process.draws import draw
from offsupport.latent.process.process import Process

HIDDEN = [32, 32, 32]
RATE = 2e-3


def batched(x: Tensor, y: Tensor, order: list[Tensor]) -> None:
    """Train R classifiers at once."""
    params = init_mlp([x.shape[-1], *HIDDEN, 2], len(x), torch.Generator().manual_seed(0))
    adam(params, lambda i: supervised_loss(mlp(params, x[:, i]), y[:, i]), iter(order), RATE)


def network(sizes: list[int]) -> nn.Sequential:
    """Return a plain multi-layer perceptron with leaky ReLUs."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


def plain(x: Tensor, y: Tensor, order: list[Tensor]) -> None:
    """Train R classifiers one after the other."""
    criterion = nn.CrossEntropyLoss()
    for run in range(len(x)):
        model = network([x.shape[-1], *HIDDEN, 2])
        optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
        for index in order:
            optimiser.zero_grad()
            criterion(model(x[run, index]), y[run, index]).backward()
            optimiser.step()


def batched_vae(x: Tensor, y: Tensor, order: list[Tensor]) -> None:
    """Train R auto-encoders with a classifier at once."""
    rng, d = torch.Generator().manual_seed(0), x.shape[-1]
    encoder, decoder = (init_mlp(s, len(x), rng) for s in ([d, *HIDDEN, 12], [6, *HIDDEN, d]))
    head = init_mlp([4, 2], len(x), rng)

    def loss(index: Tensor) -> Tensor:
        mu, logvar = mlp(encoder, x[:, index]).chunk(2, -1)
        z, _ = sample(mu, logvar, rng)
        squared = (mlp(decoder, z) - x[:, index]).square().sum(-1).mean(1)
        return (
            0.1 * squared + 0.01 * gaussian_kl(mu, logvar).mean(1) + supervised_loss(mlp(head, z[..., :4]), y[:, index])
        )

    adam([*encoder, *decoder, *head], loss, iter(order), RATE)


def plain_vae(x: Tensor, y: Tensor, order: list[Tensor]) -> None:
    """Train R auto-encoders with a classifier one after the other."""
    criterion, d = nn.CrossEntropyLoss(), x.shape[-1]
    for run in range(len(x)):
        encoder, decoder, head = network([d, *HIDDEN, 12]), network([6, *HIDDEN, d]), nn.Linear(4, 2)
        optimiser = torch.optim.Adam([p for part in (encoder, decoder, head) for p in part.parameters()], lr=RATE)
        for index in order:
            optimiser.zero_grad()
            seen = x[run, index]
            mu, logvar = encoder(seen).chunk(2, -1)
            z = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
            kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(-1).mean()
            loss = (
                0.1 * (decoder(z) - seen).square().sum(-1).mean() + 0.01 * kl + criterion(head(z[:, :4]), y[run, index])
            )
            loss.backward()
            optimiser.step()


def seconds(train: Callable[[Tensor, Tensor, list[Tensor]], None], x: Tensor, y: Tensor, order: list[Tensor]) -> float:
    """Return the processor time of one call."""
    start = time.process_time()
    train(x, y, order)
    return time.process_time() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--runs", type=int, default=50, help="runs of the batched side")
    parser.add_argument("--plain-runs", type=int, default=2, help="runs of the plain side, per repetition")
    parser.add_argument("--steps", type=int, default=100, help="training steps per run")
    parser.add_argument("--batch", type=int, default=128, help="samples per step")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repetitions; the best of each side counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    draws = draw(Process(n_source=2000), range(1_000_000, 1_000_000 + options.runs))
    order = [index for index in batches(2000, options.batch, 999, torch.Generator().manual_seed(1)) if len(index) > 1]
    order = order[: options.steps]
    few = options.plain_runs
    result = {"runs": options.runs, "steps": options.steps, "batch": options.batch, "threads": 1}
    for name, fast, slow in (("classifier", batched, plain), ("vae", batched_vae, plain_vae)):
        times = [
            (seconds(fast, draws.x, draws.y, order), seconds(slow, draws.x[:few], draws.y[:few], order))
            for _ in range(options.repeats)
        ]
        batched_s, plain_s = min(t[0] for t in times) / options.runs, min(t[1] for t in times) / few
        result[name] = {
            "batched_seconds_per_run": batched_s,
            "plain_seconds_per_run": plain_s,
            "batched_runs_per_second": 1 / batched_s,
            "plain_runs_per_second": 1 / plain_s,
            "ratio": plain_s / batched_s,
        }
    print(json.dumps(result, indent=1) if options.json else _table(result))


def _table(result: dict) -> str:
    lines = [f"{result['runs']} runs, {result['steps']} steps of {result['batch']} samples, 1 thread"]
    for name in ("classifier", "vae"):
        r = result[name]
        lines.append(
            f"{name:11s} batched {r['batched_seconds_per_run']:.4f} s/run, "
            f"plain {r['plain_seconds_per_run']:.4f} s/run, {r['ratio']:.1f} times"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
