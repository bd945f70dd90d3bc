"""TeSLA as a plain loop: a second network in training mode as teacher, images augmented one by one."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from parity_check import BATCH_NORM, MIN_BATCH, NORM, forward, make_optimizer, too_small
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.nn import functional as F

from offsupport.augment import Policy, weak_views


def images(sizes, seed=0) -> list[Tensor]:
    """Pictures in [0, 1] whose brightness differs and drifts."""
    generator = torch.Generator().manual_seed(seed)
    stream = []
    for t, size in enumerate(sizes):
        noise = torch.randn(size, 3, 8, 8, generator=generator, dtype=torch.float64)
        colour = torch.randn(size, 3, 1, 1, generator=generator, dtype=torch.float64)
        stream.append((noise + colour + 0.3 * math.sin(t)).sigmoid())
    return stream


class Reference:
    def __init__(self, net: nn.Sequential, **options):
        self.o = {
            "lr": 1e-3,
            "optimizer": "adam",
            "decay": 0.99,
            "views": 4,
            "lambda_kl": 1.0,
            "lambda_norm": 1.0,
            "queue": 0,
            "neighbours": 1,
            "policy_length": 2,
            "policy_lr": 0.1,
            "rotation": "constant",
            "sampling": "uniform",
            "score_stats": "batch",
            "bn_momentum": 0.1,
            "align_weight": 0.05,
            "moment_window": 1280,
            **options,
        }
        self.net = net
        self.teacher = copy.deepcopy(net).train().requires_grad_(False)
        for layer in self.teacher:
            if isinstance(layer, BATCH_NORM):
                layer.momentum = self.o["bn_momentum"]
        names = [name for name, _ in net.named_parameters() if not name.startswith("head.")]
        self.adapted = [net.get_parameter(name) for name in names]
        self.opt = make_optimizer(self.o["optimizer"], self.adapted, self.o["lr"])
        self.policy = Policy(self.o["policy_length"], self.o["rotation"])
        count = len(self.policy.members)
        self.selection = nn.Parameter(torch.zeros(count, dtype=torch.float64))
        self.magnitudes = nn.Parameter(torch.zeros(count, self.o["policy_length"], dtype=torch.float64))
        self.policy_opt = torch.optim.Adam([self.selection, self.magnitudes], lr=self.o["policy_lr"], foreach=False)
        self.generator = torch.Generator().manual_seed(0)
        self.past: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.source: tuple[Tensor, Tensor] | None = None
        self.moments = (torch.zeros(()), torch.zeros(()), 0)

    def see_source(self, stream: list[Tensor]) -> None:
        with torch.no_grad():
            z = torch.cat([forward(self.net[:-1], x, "source") for x in stream])
        self.source = z.mean(0), torch.cov(z.T)

    def run(self, stream: list[Tensor]) -> Iterator[Tensor]:
        for x in stream:
            if len(x) < MIN_BATCH:
                statistics = "blend" if too_small(self.net, x) else "batch"
                yield forward(self.teacher, x, statistics).detach()
            else:
                yield self.batch(x).detach()

    def batch(self, x: Tensor) -> Tensor:
        views = [x, *weak_views(x, self.o["views"], self.generator)]
        x_b = views[int(torch.randint(len(views), (), generator=self.generator))]
        self.optimise_policy(x_b)
        with torch.no_grad():
            draw = self.policy.draw(len(x), self.generator, self.selection)
            x_a = self.augment(x_b, draw)
            q = self.pseudo_labels(views)
        self.net.zero_grad()
        z = forward(self.net[:-1], x_b)
        p = self.net[-1](z).softmax(1)
        loss = -(p * q.log()).sum(1).mean() + (p.mean(0) * p.mean(0).log()).sum()
        (loss + self.alignment(z)).backward()
        p_a = forward(self.net, x_a).softmax(1)
        (self.o["lambda_kl"] * (q * (q / p_a).log()).sum(1).mean()).backward()
        self.step()
        for (name, slow), fast in zip(self.teacher.named_parameters(), self.net.parameters(), strict=True):
            d = self.decay(name)
            slow.data = d * slow.data + (1 - d) * fast.data
        return forward(self.teacher, x, "batch" if self.o["score_stats"] == "batch" else "source")

    def step(self) -> None:
        self.opt.step()

    def decay(self, name: str) -> float:
        return self.o["decay"]

    def optimise_policy(self, x: Tensor) -> None:
        _, clean = self.teach(x)
        law = self.selection if self.o["sampling"] == "learned" else None
        draw = self.policy.draw(len(x), self.generator, law)
        logits, seen = self.teach(self.augment(x, draw))
        p = logits.softmax(1)
        h = -(p * p.log()).sum(1)
        change = torch.zeros(len(x), dtype=x.dtype)
        for a, b in zip(seen, clean, strict=True):
            change = change + ((a - b.detach()) ** 2).mean(1) / len(seen)
        self.policy_opt.zero_grad()
        (change - h).mean().backward()
        pi = self.selection.softmax(0)[draw.rows]
        ((self.o["lambda_norm"] * change - h).detach() * pi.log()).mean().backward()
        self.policy_opt.step()

    def augment(self, x: Tensor, draw) -> Tensor:
        out = []
        for image, row, signs in zip(x, draw.rows.tolist(), draw.signs, strict=True):
            image = image[None]
            for slot, index in enumerate(self.policy.members[row].tolist()):
                m = self.magnitudes[row, slot].sigmoid()[None]
                image = self.policy.operations[index](image.clamp(0, 1), m, signs[slot][None].to(x))
            out.append(image)
        return torch.cat(out)

    def teach(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run the teacher in training mode; return logits and the mean input of each norm layer per image."""
        means = []
        for layer in self.teacher:
            if isinstance(layer, NORM):
                means.append(x.mean((2, 3)) if x.dim() == 4 else x)
            x = layer(x)
        return x, means

    def pseudo_labels(self, views: list[Tensor]) -> Tensor:
        probabilities, features = [], []
        for view in reversed(views):
            z = self.teacher[:-1](view)
            features.append(z)
            probabilities.append(self.teacher[-1](z).softmax(1))
        q, z = sum(probabilities) / len(views), sum(features) / len(views)
        return self.refine(q, z) if self.o["queue"] else q

    def refine(self, q: Tensor, z: Tensor) -> Tensor:
        for row, feature in zip(q, z, strict=True):
            line = self.past.setdefault(int(row.argmax()), [])
            line.append((feature, row))
            del line[: -self.o["queue"]]
        everything = [entry for line in self.past.values() for entry in line]
        refined = []
        for feature in z:
            cosines = [float(F.cosine_similarity(feature, other, dim=0)) for other, _ in everything]
            nearest = sorted(range(len(cosines)), key=lambda i: -cosines[i])[: self.o["neighbours"]]
            refined.append(sum(everything[i][1] for i in nearest) / len(nearest))
        return torch.stack(refined)

    def alignment(self, z: Tensor) -> Tensor | float:
        if self.source is None:
            return 0.0
        mean, cov, n = self.moments
        n += len(z)
        a = 1 / min(n, self.o["moment_window"])
        centred = z - mean
        delta = a * centred.sum(0)
        cov = cov + a * (centred.T @ centred - len(z) * cov) - torch.outer(delta, delta)
        mean = mean + delta
        self.moments = (mean.detach(), cov.detach(), n)
        ridge = self.source[1].max() * self.o.get("ridge", 1 / 30) * torch.eye(len(mean), dtype=z.dtype)
        source = MultivariateNormal(self.source[0], self.source[1] + ridge)
        target = MultivariateNormal(mean, cov + ridge)
        return self.o["align_weight"] * (kl_divergence(source, target) + kl_divergence(target, source))
