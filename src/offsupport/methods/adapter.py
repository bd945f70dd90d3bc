"""The base of every method: it owns the ritual of a batch, a method owns its mathematics."""

from __future__ import annotations

import abc
import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from offsupport.core.errors import SourceStatsError
from offsupport.methods import guard, persist, state
from offsupport.methods.checks import check_input, check_model, check_output
from offsupport.methods.config import BatchConfig, MethodConfig, MethodInfo, StepConfig
from offsupport.methods.source_stats import SourceStats
from offsupport.nn.inspect import find_head
from offsupport.nn.norm import Statistics, adopt_batch_norm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What a user says about the model and the stream rather than about the method. See :func:`offsupport.adapt`."""

    logits: Callable[[Any], Tensor] | None = None
    head: str | None = None
    window: int = 0
    collapse: guard.CollapseAction = "warn"
    seed: int = 0
    inplace: bool = False


class Adapter(nn.Module, abc.ABC):
    """Wraps a classifier; called on a batch, it adapts and returns logits.

    A subclass declares its hyper-parameters (``config_class``), chooses parameters (:meth:`trainable`), declares what
    it remembers (:meth:`initial_memory`) and writes one :meth:`step`. Checks, gradient mode, the guard, the optimiser,
    resetting and saving are the same for all and live here.
    """

    info: ClassVar[MethodInfo]
    config_class: ClassVar[type[MethodConfig]]
    presets: ClassVar[dict[str, dict[str, Any]]] = {"cifar10": {}, "cifar100": {}, "imagenet": {}}
    statistics: ClassVar[Statistics] = "batch"
    small_batch_with_norm: ClassVar[int] = 16
    small_batch_without: ClassVar[int] = 1

    config: MethodConfig

    def __init__(
        self, model: nn.Module, config: MethodConfig, options: Options, source: SourceStats | None = None
    ) -> None:
        super().__init__()
        check_model(model, self.info)
        self.config = config
        self.options = options
        self.source = source
        self.model = (model if options.inplace else copy.deepcopy(model)).eval()
        self.policy = adopt_batch_norm(self.model)
        self.parameters_adapted = self._select()
        self._set_up_batches()
        self.memory = state.Memory(
            {"collapse": torch.empty(0), "fired": torch.zeros(()), "window": torch.empty(0), "fresh": torch.zeros(())}
            | self.initial_memory()
        )
        self.generator = torch.Generator().manual_seed(options.seed)
        self.monitor = guard.CollapseMonitor()
        self.events = dict.fromkeys(guard.EVENTS, 0)
        self.passes = {"forward": 0, "backward": 0}
        self._start = self.snapshot()

    # What a method may say -------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def step(self, x: Tensor) -> Tensor:
        """Adapt to the batch ``x`` and return its logits. Call :meth:`network`, :meth:`descend`, :meth:`count`."""

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters to adapt by their names in the model; none by default."""
        return {}

    def initial_memory(self) -> dict[str, Tensor]:
        """Return what the method remembers between batches, at its start; an empty tensor stands for "not yet"."""
        return {}

    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return what the method must know of source images; methods that use source statistics override it."""
        raise SourceStatsError(f"The method {self.info.name!r} uses no source statistics.", "Adapt without them.")

    def announce(self) -> None:
        """Tell the user, once, what they should know about this set-up; nothing by default."""

    # What a method may use -------------------------------------------------------------------------------------------

    def network(self, x: Tensor) -> Tensor:
        """Run the model and return its logits, (N, K) or dense (N, K, ...)."""
        self.passes["forward"] += 1
        out = self.model(x)
        return check_output(out if self.options.logits is None else self.options.logits(out), len(x))

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Return the gradients of ``loss`` by the adapted parameters; where anything is non-finite, reject the step."""
        guard.require_finite_loss(loss)
        self.passes["backward"] += 1
        parameters = list(self.parameters_adapted.values())
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        if not guard.all_finite(list(found)):
            raise guard.StepRejected("bad_grad")
        return list(found)

    def apply_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Take one step of the optimiser along ``gradients``; parameters that end up non-finite reject the step."""
        assert self.optimizer is not None  # noqa: S101 (a method with a step declares trainable parameters)
        for parameter, gradient in zip(self.parameters_adapted.values(), gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()
        if not guard.all_finite([parameter.detach() for parameter in self.parameters_adapted.values()]):
            raise guard.StepRejected("bad_param")

    def descend(self, loss: Tensor) -> None:
        """Take one step down ``loss``."""
        self.apply_gradients(self.gradients(loss))

    def count(self, event: str) -> None:
        """Count an intervention of the guard."""
        self.events[event] += 1

    def recover(self) -> None:
        """Put parameters, optimiser and memory back to the start, as an intervention of the guard that is counted."""
        self.restore(self._start)
        self.count("reset")

    # The ritual ------------------------------------------------------------------------------------------------------

    @final  # type: ignore[misc]
    def forward(self, x: Tensor) -> Tensor:
        """Adapt to ``x`` and return its logits; also inside ``torch.no_grad()`` and ``torch.inference_mode()``."""
        check_input(x, self.model)
        with torch.inference_mode(False), torch.enable_grad(), self.policy.using(self.statistics):
            x = x.clone() if x.is_inference() else x.detach()
            good = guard.finite_rows(x)
            if len(x) and good.all():
                return self._serve(x).detach()
            return self._serve_good(x, good).detach()

    def _serve_good(self, x: Tensor, good: Tensor) -> Tensor:
        """Serve the good samples as if the bad ones were not there; the source weights predict those."""
        if not len(x):
            return self._source_logits(x.new_zeros(1, *x.shape[1:]))[:0]
        self.count("bad_input")
        repaired, usable = guard.repair(x[~good])
        fallback = self._source_logits(repaired)
        fallback[~usable] = 0.0
        logits = fallback.new_empty(len(x), *fallback.shape[1:])
        logits[~good] = fallback
        if good.any():
            logits[good] = self._serve(x[good]).detach()
        return logits

    def _serve(self, x: Tensor) -> Tensor:
        batch, due = self._with_past(x)
        if len(batch) < self.min_batch:
            self.count("small_batch")
            with self.policy.using("source" if self.statistics == "source" else "blend"):
                logits = self._predict(batch)
        else:
            logits = self._guarded_step(batch) if due else self._predict(batch)
        logits = self._finite_logits(logits[-len(x) :].detach(), x)
        self._watch(logits)
        return logits

    def _with_past(self, x: Tensor) -> tuple[Tensor, bool]:
        """Fill the batch up with past images to the size of the window; a step is due once per window of new images."""
        size = self.options.window
        if not size:
            return x, True
        past = self.memory["window"]
        batch = torch.cat([past.to(x), x])[-max(size, len(x)) :] if past.numel() else x
        fresh = self.memory["fresh"] + len(x)
        due = bool(fresh >= size)
        self.memory["window"] = batch[-size:].clone()
        self.memory["fresh"] = torch.zeros(()) if due else fresh
        return batch, due

    def _guarded_step(self, x: Tensor) -> Tensor:
        before = self.snapshot()
        try:
            return self.step(x)
        except guard.StepRejected as rejected:
            self.restore(before)
            self.count(rejected.event)
            return self._predict(x)

    @torch.no_grad()
    def _predict(self, x: Tensor) -> Tensor:
        return self.network(x)

    @torch.no_grad()
    def _source_logits(self, x: Tensor) -> Tensor:
        """Predict with the weights and statistics the model came with."""
        with self.policy.using("source"):
            self.passes["forward"] += 1
            out = torch.func.functional_call(self.model, self._start.parameters, (x,))
            return check_output(out if self.options.logits is None else self.options.logits(out), len(x)).clone()

    def _finite_logits(self, logits: Tensor, x: Tensor) -> Tensor:
        """Never return a non-finite logit: such samples get the source prediction, or the uniform one."""
        broken = ~guard.finite_rows(logits)
        if not broken.any():
            return logits
        self.count("bad_input")
        fallback = self._source_logits(x[broken])
        fallback[~guard.finite_rows(fallback)] = 0.0
        logits = logits.clone()
        logits[broken] = fallback
        return logits

    def _watch(self, logits: Tensor) -> None:
        if self.options.collapse == "off" or not self.parameters_adapted:
            return
        self.memory["collapse"] = self.monitor.observe(self.memory["collapse"], logits)
        collapsed = self.monitor.collapsed(self.memory["collapse"])
        if collapsed and not self.memory["fired"]:
            self.count("collapse")
            warnings.warn(
                f"{self.info.name}: nearly all of the last {self.monitor.window} predictions fall into one class. "
                'The adaptation may have collapsed; lower lr, or pass collapse="reset".',
                stacklevel=5,
            )
        self.memory["fired"] = torch.tensor(float(collapsed))
        if collapsed and self.options.collapse == "reset":
            self.recover()

    # State -----------------------------------------------------------------------------------------------------------

    def snapshot(self) -> state.Snapshot:
        """Copy all adaptive state."""
        return state.capture(self.parameters_adapted, self.optimizer, self.memory, self.generator)

    def restore(self, snapshot: state.Snapshot) -> None:
        """Put all adaptive state back to a snapshot."""
        state.restore(snapshot, self.parameters_adapted, self.optimizer, self.memory, self.generator)

    def reset(self) -> None:
        """Go back to the start, bit for bit: parameters, optimiser, memory, random generator, counters."""
        self.restore(self._start)
        self.events = dict.fromkeys(guard.EVENTS, 0)
        self.passes = {"forward": 0, "backward": 0}

    def train(self, mode: bool = True) -> Adapter:
        """Set the flag of the adapter alone: the wrapped model keeps predicting as in evaluation (Dropout is off)."""
        self.training = mode
        return self

    def save(self, path: Path | str) -> None:
        """Write what adaptation changed, with a manifest of what it belongs to, to one safetensors file."""
        persist.save(self, path)

    def load(self, path: Path | str) -> None:
        """Continue where a saved adapter of the same method on the same model stopped."""
        persist.load(self, path)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what the state dict holds beside the model: optimiser, memory, generator, counters."""
        return {**self.snapshot().flat(), "events": dict(self.events), "passes": dict(self.passes)}

    def set_extra_state(self, extra: dict[str, Any]) -> None:
        """Undo :meth:`get_extra_state`."""
        extra = dict(extra)
        self.events, self.passes = dict(extra.pop("events")), dict(extra.pop("passes"))
        self.restore(state.Snapshot.from_flat(extra))

    def summarise(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Run :meth:`collect` under the gradient mode and the statistics of a step."""
        with torch.inference_mode(False), torch.enable_grad(), self.policy.using(self.statistics):
            return self.collect(check_input(x, self.model) for x in batches)

    # Set-up ----------------------------------------------------------------------------------------------------------

    def head(self) -> tuple[str, nn.Module]:
        """Return the name and module of the classifier layer."""
        return find_head(self.model, self.options.head)

    def summary(self) -> str:
        """Say in a few lines what adapts, and how."""
        count = sum(parameter.numel() for parameter in self.parameters_adapted.values())
        names = ", ".join(self.parameters_adapted) or "none"
        return (
            f"{self.info.name}: {self.info.summary}\n{self.config}\n"
            f"batches below {self.min_batch} are predicted without a step; "
            f"{self.policy.layers} batch-norm layers use {self.statistics} statistics\n"
            f"{count} values adapted in {len(self.parameters_adapted)} tensors: {names}"
        )

    def _select(self) -> dict[str, nn.Parameter]:
        """Switch gradients on for the parameters to adapt and off for all others."""
        self.model.requires_grad_(False)
        chosen = self.trainable()
        for parameter in chosen.values():
            parameter.requires_grad_(True)
        return chosen

    def _set_up_batches(self) -> None:
        self.min_batch = 1
        self.optimizer: torch.optim.Optimizer | None = None
        if isinstance(self.config, BatchConfig):
            default = self.small_batch_with_norm if self.policy.layers else self.small_batch_without
            self.min_batch = default if self.config.min_batch is None else self.config.min_batch
            self.policy.prior = self.config.prior
        if isinstance(self.config, StepConfig):
            self.optimizer = self.config.make_optimizer(self.parameters_adapted.values())
