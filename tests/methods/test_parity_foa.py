"""FOA against a plain loop over candidates, and its search against a function with a known minimum."""

from __future__ import annotations

import math

import pytest
import torch
from parity_check import assert_close, entropy
from tesla_reference import images
from torch import Tensor, nn

import offsupport
from offsupport.core.errors import ModelError
from offsupport.methods.foa import Search, find_blocks

DIM, PROMPTS = 6, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.mT / DIM**0.5).softmax(-1) @ v)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = (
            *(nn.LayerNorm(DIM), Attention()),
            *(nn.LayerNorm(DIM), nn.Linear(DIM, DIM)),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x)).relu()


class Vit(nn.Module):
    """A transformer that can also be run with prompts, as the reference needs."""

    def __init__(self, depth=2, classes=5):
        super().__init__()
        self.embed, self.token = nn.Conv2d(3, DIM, 4, stride=4), nn.Parameter(torch.randn(1, 1, DIM))
        self.blocks = nn.ModuleList([Block() for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, classes)

    def forward(self, x):
        return self.run(x)[0]

    def run(self, x, prompts=None):
        x = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x).flatten(2).mT], 1)
        if prompts is not None:
            x = torch.cat([x[:, :1], prompts.view(1, PROMPTS, DIM).expand(len(x), -1, -1), x[:, 1:]], 1)
        tokens = []
        for block in self.blocks:
            x = block(x)
            token = x[:, 0]
            centred = token - token.mean(1, keepdim=True)
            tokens.append(centred / (token.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt())
        z = self.norm(x[:, 0])
        return self.head(z), z, torch.cat(tokens, 1)


def vit():
    torch.manual_seed(0)
    return Vit().double().eval()


@torch.no_grad()
def reference(net: Vit, stream: list[Tensor], clean: list[Tensor], population: int, weight: float = 0.4):
    found = [net.run(x) for x in clean]
    tokens, home = torch.cat([each[2] for each in found]), torch.cat([each[1] for each in found]).mean(0)
    search = Search(
        *(torch.zeros(PROMPTS * DIM).double() for _ in range(4)), torch.tensor(1.0).double(), torch.tensor(0)
    )
    search = search._replace(variance=torch.ones(PROMPTS * DIM).double())
    generator, best, history = torch.Generator().manual_seed(0), None, None
    for x in stream:
        shift = 0 if history is None else net.head.weight @ (home - history)
        if len(x) < 16:
            yield net.run(x, best)[0] + shift
            continue
        candidates = [*search.ask(population, generator)] + ([] if best is None else [best])
        scored = []
        for candidate in candidates:
            logits, z, token = net.run(x, candidate)
            gap = (token.mean(0) - tokens.mean(0)).pow(2).sum() + (token.std(0) - tokens.std(0)).pow(2).sum()
            fitness = entropy(logits + shift).sum() + weight * gap * len(x) / 64
            scored.append((fitness.item(), len(scored), logits + shift, z))
        scored.sort(key=lambda each: each[:2])
        search = search.tell(torch.stack([candidates[each[1]] for each in scored]))
        best, z = candidates[scored[0][1]], scored[0][3]
        history = z.mean(0) if history is None else 0.9 * history + 0.1 * z.mean(0)
        yield scored[0][2]


def test_foa():
    net, stream, clean = vit(), images((20, 31, 16, 3, 24, 17, 1, 20, 18, 24, 20, 28)), images((40, 30), seed=3)
    stats = offsupport.source_stats(net, clean, "foa", prompts=PROMPTS)
    adapted = offsupport.adapt(net, "foa", source=stats, prompts=PROMPTS, population=5, collapse="off")
    for t, (x, expected) in enumerate(zip(stream, reference(net, stream, clean, 5), strict=True)):
        assert_close(adapted(x), expected, f"logits of batch {t}")
    assert adapted.passes["backward"] == 0
    assert adapted.passes["forward"] == 10 * 6 - 1 + 2


def test_the_search_finds_a_minimum_and_adapts_its_scales():
    centre, scale = torch.linspace(-2, 2, 10).double(), torch.logspace(0, 2, 10).double()
    zero = torch.zeros(10).double()
    search, generator = (
        Search(zero, zero + 1, zero, zero, torch.tensor(1.0).double(), torch.tensor(0)),
        torch.Generator(),
    )
    for _ in range(250):
        candidates = search.ask(12, generator.manual_seed(int(search.generation)))
        search = search.tell(candidates[((candidates - centre).square() * scale).sum(1).argsort()])
    assert float(((search.mean - centre).square() * scale).sum()) < 1e-6
    assert float(search.variance[-1]) < float(search.variance[0])
    assert math.isfinite(float(search.sigma))


def test_blocks_are_found_by_what_they_hold():
    net = vit()
    assert find_blocks(nn.Sequential(nn.Identity(), net)) == list(net.blocks)
    with pytest.raises(ModelError, match="use 'neo'"):
        find_blocks(nn.Sequential(nn.Conv2d(3, 4, 3), nn.LayerNorm(4)))
