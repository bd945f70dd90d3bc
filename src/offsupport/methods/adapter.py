"""The base of every method: it owns the ritual of a batch, a method owns its mathematics."""

from __future__ import annotations

import abc
import copy
import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from offsupport.core.errors import ConfigError, ModelError, SourceStatsError
from offsupport.methods import guard, state
from offsupport.methods.checks import check_input, check_model, check_output
from offsupport.methods.config import BatchConfig, MethodConfig, MethodInfo, Options, StepConfig
from offsupport.methods.lifecycle import Lifecycle
from offsupport.methods.source_stats import SourceStats
from offsupport.nn.inspect import find_head
from offsupport.nn.norm import Statistics, adopt_batch_norm


class Adapter(Lifecycle, abc.ABC):
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

    @torch.inference_mode(False)
    def __init__(
        self, model: nn.Module, config: MethodConfig, options: Options, source: SourceStats | None = None
    ) -> None:
        super().__init__()
        check_model(model, self.info)
        self.config = config
        self.options = options
        self.model = (model if options.inplace else copy.deepcopy(model)).eval()
        self.source = None if source is None else source.to(self.device)
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

    unreached: frozenset[str] | set[str] = frozenset()
    """Adapted parameters that the last loss did not depend on; neither momentum nor a penalty may move them."""

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

    def network(self, x: Tensor, tensors: dict[str, Tensor] | None = None) -> Tensor:
        """Run the model, with ``tensors`` in place of its own where given, and return its logits (N, K, ...)."""
        self.passes["forward"] += 1
        out = self.model(x) if tensors is None else torch.func.functional_call(self.model, tensors, (x,))
        return check_output(out if self.options.logits is None else self.options.logits(out), len(x))

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of ``x`` without a step: a forward pass that keeps no graph."""
        return self.network(x)

    def without_step(self, x: Tensor) -> Tensor:
        """Return the logits of a batch whose step was undone."""
        return self.predict(x)

    @property
    def source_parameters(self) -> dict[str, Tensor]:
        """The adapted parameters as they came, by name."""
        return self._start.parameters

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Return the gradients of ``loss`` by the adapted parameters; where anything is non-finite, reject the step."""
        guard.require_finite_loss(loss)
        guard.require_graph(loss)
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
        # The window of past images and the random generator go on: they know nothing of what went wrong.
        memory = self._start.memory | {name: self.memory[name] for name in ("window", "fresh")}
        self.restore(dataclasses.replace(self._start, memory=memory, generator=self.generator.get_state()))
        self.count("reset")

    # The ritual ------------------------------------------------------------------------------------------------------

    @final  # type: ignore[misc]
    def forward(self, x: Tensor) -> Tensor:
        """Adapt to ``x`` and return its logits; also inside ``torch.no_grad()`` and ``torch.inference_mode()``."""
        check_input(x, self.model)
        if any(module.training for module in self.model.modules()):
            self.model.eval()
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
                logits = self.predict(batch)
        elif due and self.parameters_adapted and guard.blank(batch):
            self.count("empty_selection")
            logits = self.predict(batch)
        else:
            logits = self._guarded_step(batch) if due else self.predict(batch)
        logits = self._finite_logits(logits[-len(x) :].detach(), x)
        self._watch(logits)
        return logits

    def _with_past(self, x: Tensor) -> tuple[Tensor, bool]:
        """Fill the batch up with past images to the size of the window; a step is due once per window of new images."""
        size = self.options.window
        if not size:
            return x, True
        past = self.memory["window"]
        # Images of another size cannot share a batch: the window starts anew.
        fits = past.shape[1:] == x.shape[1:]
        batch = torch.cat([past, x])[-max(size, len(x)) :] if fits else x
        fresh = self.memory["fresh"] + len(x)
        due = bool(fresh >= size)
        self.memory["window"] = batch[guard.plausible_rows(batch)][-size:].clone()
        self.memory["fresh"] = torch.zeros(()) if due else fresh
        return batch, due

    def _guarded_step(self, x: Tensor) -> Tensor:
        before = self.snapshot()
        try:
            return self.step(x)
        except guard.StepRejected as rejected:
            self.restore(before)
            self.count(rejected.event)
            return self.without_step(x)

    @torch.no_grad()
    def _source_logits(self, x: Tensor) -> Tensor:
        """Predict with the weights and statistics the model came with; uniformly where they give no finite logits."""
        with self.policy.using("source"):
            logits = self.network(x, self.source_parameters).clone()
        logits[~guard.finite_rows(logits)] = 0.0
        return logits

    def _finite_logits(self, logits: Tensor, x: Tensor) -> Tensor:
        """Never return a non-finite logit: such samples get the source prediction, or the uniform one."""
        broken = ~guard.finite_rows(logits)
        if not broken.any():
            return logits
        self.count("bad_input")
        logits = logits.clone()
        logits[broken] = self._source_logits(x[broken])
        return logits

    def _watch(self, logits: Tensor) -> None:
        if self.options.collapse == "off" or not self.parameters_adapted:
            return
        self.memory["collapse"] = self.monitor.observe(self.memory["collapse"], logits)
        collapsed = self.monitor.collapsed(self.memory["collapse"])
        if collapsed and not self.memory["fired"]:
            self.count("collapse")
            advice = "It is reset." if self.options.collapse == "reset" else 'Lower lr, or pass collapse="reset".'
            warnings.warn(
                f"{self.info.name}: nearly all of the last {self.monitor.window} predictions fall into one class: "
                f"the adaptation may have collapsed. {advice}",
                stacklevel=6,
            )
        self.memory["fired"] = torch.tensor(float(collapsed))
        if collapsed and self.options.collapse == "reset":
            self.recover()

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
            if 0 < self.options.window < self.min_batch:
                raise ConfigError(
                    f"A window of {self.options.window} never reaches min_batch={self.min_batch}, so no step is taken.",
                    f"Use window={self.min_batch} or more, or a smaller min_batch.",
                )
        if isinstance(self.config, StepConfig):
            if not self.parameters_adapted:
                raise ModelError(
                    f"The method {self.info.name!r} finds no parameter to adapt in this model.",
                    "Exclude fewer layers, or use another method.",
                )
            self.optimizer = self.config.make_optimizer(self.parameter_groups())

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the adapted parameters as an optimiser takes them."""
        return [{"params": list(self.parameters_adapted.values())}]
