"""FOA: prompt tokens of a vision transformer are sought by evolution, in forward passes alone."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from offsupport.core.errors import ModelError
from offsupport.engine.adapter import Adapter, require_whole
from offsupport.engine.config import BatchConfig, MethodInfo, require
from offsupport.engine.guard import blank
from offsupport.engine.registry import register_method
from offsupport.functional import entropy
from offsupport.nn.inspect import capture_input, single

_SEARCH = ("search/mean", "search/variance", "search/path", "search/length_path", "search/sigma", "search/count")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoaConfig(BatchConfig):
    """Hyper-parameters of FOA."""

    min_batch: int | None = None
    """Smaller batches are predicted by the best prompts so far; None is 16, as deviations need a batch."""
    prompts: int = 3
    """Tokens that are put behind the class token."""
    population: int = 27
    """Prompts that are tried on a batch, beside the best so far; each is a forward pass."""
    sigma: float = 1.0
    """How far the first prompts lie from zero."""
    weight: float = 0.4
    """Weight of the distance of the class tokens' moments from the source's beside the entropy, for 64 images."""
    shift_decay: float = 0.9
    """How much of the running mean of features one batch keeps; they are moved to the source's mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("prompts", self.prompts >= 1, "at least 1")
        require("population", self.population >= 2, "at least 2")
        require("sigma", self.sigma > 0, "above 0")
        require("weight", self.weight >= 0, "at least 0")
        require("shift_decay", 0 <= self.shift_decay < 1, "in [0, 1)")


class Tried(NamedTuple):
    """One forward pass: what it answers, its penultimate features, and how good it is (low is good)."""

    logits: Tensor
    features: Tensor
    fitness: float


@register_method(
    MethodInfo(
        name="foa",
        summary="Seeks prompt tokens of a vision transformer by evolution, and moves its features home.",
        paper="Niu et al. 2024",
        adapts="prompt tokens, the mean of the features",
        scored="the best of the prompts tried",
        norm="none",
        source="required",
        needs="a vision transformer",
        single="the best prompts so far (deviations need a batch)",
        passes="28F",
    ),
    FoaConfig,
)
class Foa(Adapter):
    """Tries a population of prompts on each batch; no gradients, no weight changes."""

    config: FoaConfig
    small_batch_without: ClassVar[int] = 16
    small_batch_with_norm: ClassVar[int] = 16
    source_shapes: ClassVar[dict[str, str]] = {"token_mean": "LD", "token_std": "LD", "feature_mean": "F"}

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the search, the best prompts so far, and the running mean of features."""
        name, head = self.head()
        if not isinstance(head, nn.Linear):
            raise ModelError(
                f"The method 'foa' shifts the inputs of a linear classifier, and {name!r} is {type(head).__name__}.",
                'Name the nn.Linear that gives the logits: head="name of the module".',
            )
        self.blocks = find_blocks(self.model)
        width = next(layer for layer in self.blocks[0].modules() if isinstance(layer, nn.LayerNorm)).normalized_shape[0]
        zero = torch.zeros(self.config.prompts * width, dtype=torch.float64)
        start = (
            zero,
            torch.ones_like(zero),
            zero,
            zero,
            torch.tensor(self.config.sigma).double(),
            torch.zeros(()).long(),
        )
        search = dict(zip(_SEARCH, (tensor.clone() for tensor in start), strict=True))
        return search | {"best": torch.empty(0), "features": torch.empty(0)}

    @torch.no_grad()
    def step(self, x: Tensor) -> Tensor:
        """Try prompts on the batch, answer by the best, and let the search learn from all."""
        if blank(x):
            self.count("empty_selection")
            return self.predict(x)
        search = Search(*(self.memory[name] for name in _SEARCH))
        candidates = [*search.ask(self.config.population, self.generator)]
        if self.memory["best"].numel():
            candidates.append(self.memory["best"])
        tried = [self._try(x, candidate) for candidate in candidates]
        order = sorted(range(len(tried)), key=lambda i: tried[i].fitness)
        best = tried[order[0]]
        if math.isfinite(best.fitness):
            after = search.tell(torch.stack([candidates[i] for i in order]))
            self.memory.update(dict(zip(_SEARCH, after, strict=True)) | {"best": candidates[order[0]]})
            past, mean = self.memory["features"], best.features.mean(0)
            self.memory["features"] = mean if not past.numel() else mean.lerp(past, self.config.shift_decay)
        return best.logits

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Answer by the best prompts so far; before there are any, by none."""
        with self._prompted(self.memory["best"]):
            return require_whole(self.network(x), self.info.name) + self._correction()

    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return mean and deviation of the class token behind each block, and the mean feature, without prompts."""
        tokens: list[Tensor] = []
        features: list[Tensor] = []
        for x in batches:
            with torch.no_grad(), self._tokens() as seen, capture_input(self.classifier) as z:
                self.network(x)
            tokens.append(torch.stack(seen, 1))
            features.append(z[0].flatten(1))
        every = torch.cat(tokens)
        std = every.std(0) if len(every) > 1 else torch.zeros_like(every[0])
        return {"token_mean": every.mean(0), "token_std": std, "feature_mean": torch.cat(features).mean(0)}

    def _try(self, x: Tensor, prompts: Tensor) -> Tried:
        """Answer with these prompts, and say how sure and how like the source it is."""
        assert self.source is not None  # noqa: S101 (adapt() refuses this method without source statistics)
        with self._prompted(prompts), self._tokens() as seen, capture_input(self.classifier) as features:
            logits = require_whole(self.network(x), self.info.name) + self._correction()
        std, mean = torch.std_mean(torch.stack(seen, 1), 0)
        home = [self.source.tensors[name].to(mean) for name in ("token_mean", "token_std")]
        gap = (mean - home[0]).square().sum() + (std - home[1]).square().sum()
        fitness = float(entropy(logits).sum() + self.config.weight * gap * len(x) / 64)
        return Tried(logits, features[0].flatten(1), fitness if math.isfinite(fitness) else math.inf)

    def _correction(self) -> Tensor:
        """Return what moving the features to the source's mean does to the logits, (K,); at first nothing."""
        assert self.source is not None  # noqa: S101 (as above)
        assert isinstance(self.classifier, nn.Linear)  # noqa: S101 (others are refused when wrapping)
        weight, past = single(self.classifier.weight), self.memory["features"]
        if not past.numel():
            return weight.new_zeros(len(weight))
        return weight @ (self.source.tensors["feature_mean"].to(past) - past)

    @contextlib.contextmanager
    def _prompted(self, prompts: Tensor) -> Iterator[None]:
        """Put prompts, flat, behind the class token of what the first block is given; the last one's go no further."""
        if not prompts.numel():
            yield
            return

        def put(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            tokens = arguments[0]
            extra = prompts.to(tokens).view(1, self.config.prompts, -1).expand(len(tokens), -1, -1)
            return (torch.cat([tokens[:, :1], extra, tokens[:, 1:]], 1), *arguments[1:])

        def take(_: nn.Module, __: Any, out: Any) -> Any:
            tokens = out[0] if isinstance(out, tuple) else out
            rest = torch.cat([tokens[:, :1], tokens[:, 1 + self.config.prompts :]], 1)
            return (rest, *out[1:]) if isinstance(out, tuple) else rest

        handles = (self.blocks[0].register_forward_pre_hook(put), self.blocks[-1].register_forward_hook(take))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextlib.contextmanager
    def _tokens(self) -> Iterator[list[Tensor]]:
        """Collect the class token behind each block, standardised, (N, D) each."""
        seen: list[Tensor] = []

        def keep(_: nn.Module, __: Any, out: Any) -> None:
            token = single((out[0] if isinstance(out, tuple) else out)[:, 0])
            seen.append(nn.functional.layer_norm(token, token.shape[-1:]))

        handles = [block.register_forward_hook(keep) for block in self.blocks]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a vision transformer: the first list in it whose members all attend."""
    for blocks in model.modules():
        if isinstance(blocks, (nn.ModuleList, nn.Sequential)) and len(blocks) and all(map(_attends, blocks)):
            return list(blocks)
    raise ModelError(
        "The method 'foa' puts prompt tokens into a vision transformer, and this model has no list of blocks with "
        "attention and layer norm.",
        "For other networks use 'neo', which shifts features alone.",
    )


def _attends(block: nn.Module) -> bool:
    parts = [type(part).__name__.lower() for part in block.modules()]
    return any("attention" in part for part in parts) and any(part == "layernorm" for part in parts)


# Evolution of a mean and a variance per number: CMA-ES with a diagonal covariance (Ros and Hansen, 2008).


class Search(NamedTuple):
    """Where a search is: mean and variances (n,), two paths (n,), step size and number of generations."""

    mean: Tensor
    variance: Tensor
    path: Tensor
    length_path: Tensor
    sigma: Tensor
    generation: Tensor

    def ask(self, population: int, generator: torch.Generator) -> Tensor:
        """Draw candidates (population, n)."""
        draw = torch.randn(population, len(self.mean), generator=generator, dtype=torch.float64).to(self.mean)
        return self.mean + self.sigma * self.variance.sqrt() * draw

    def tell(self, ranked: Tensor) -> Search:
        """Return the search after candidates (m, n), the best first."""
        n, m = len(self.mean), len(ranked) // 2
        weights = (math.log(m + 0.5) - torch.arange(1, m + 1, dtype=torch.float64).log()).to(self.mean)
        weights = weights / weights.sum()
        mass = float(1 / weights.square().sum())
        c_sigma, c_path = (mass + 2) / (n + mass + 5), (4 + mass / n) / (n + 4 + 2 * mass / n)
        damping = 1 + 2 * max(0.0, math.sqrt((mass - 1) / (n + 1)) - 1) + c_sigma
        c_one = 2 / ((n + 1.3) ** 2 + mass)
        c_mass = min(1 - c_one, 2 * (mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass))
        # With a diagonal alone there is less to learn, so that it is learned faster.
        c_one, c_mass = c_one * (n + 2) / 3, min(1 - c_one * (n + 2) / 3, c_mass * (n + 2) / 3)
        steps = (ranked[:m] - self.mean) / self.sigma
        move = weights @ steps
        length_path = (1 - c_sigma) * self.length_path
        length_path = length_path + math.sqrt(c_sigma * (2 - c_sigma) * mass) * move / self.variance.sqrt()
        expected = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
        count = int(self.generation) + 1
        ratio = float(length_path.norm()) / math.sqrt(1 - (1 - c_sigma) ** (2 * count)) / expected
        on = float(ratio < 1.4 + 2 / (n + 1))
        path = (1 - c_path) * self.path + on * math.sqrt(c_path * (2 - c_path) * mass) * move
        stalled = (1 - on) * c_path * (2 - c_path)
        variance = (1 - c_one - c_mass) * self.variance + c_one * (path.square() + stalled * self.variance)
        variance = variance + c_mass * (weights @ steps.square())
        sigma = self.sigma * math.exp(min(1.0, (c_sigma / damping) * (float(length_path.norm()) / expected - 1)))
        return Search(self.mean + self.sigma * move, variance, path, length_path, sigma, torch.tensor(count))
