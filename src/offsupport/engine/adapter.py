"""The base of every method: it owns the ritual of a batch, a method owns its mathematics.

What a batch goes through, in the order of :meth:`Adapter.forward`:

1. It is checked; a batch the model cannot take is refused with a remedy.
2. Samples with non-finite values, outside the declared range, or with moments that no source image has are set apart
   (guard.py). The source weights predict them, and nothing else sees them.
3. With ``window=N`` past images fill it up; a step is due once per N new images.
4. A batch below ``min_batch`` is predicted without a step, by blended batch-norm statistics.
5. Otherwise the method's :meth:`Adapter.step` runs under a guard: a non-finite loss, gradient or parameter undoes it.
6. Logits are never non-finite, and alarms tell of an order of the images and of a collapse into one class.

One call at a time: threads wait for each other. A call that fails, by whatever error, leaves all adaptive state as it
was. Below the classes stand how bad steps are undone and what is refused.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import dataclasses
import functools
import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from offsupport.core.errors import ConfigError, InputError, ModelError, ShapeError, SourceStatsError
from offsupport.core.seeds import derive_seed
from offsupport.engine.config import EVENTS, PIXELS, BatchConfig, MethodConfig, MethodInfo, Options, StepConfig
from offsupport.engine.guard import (
    FirstNorm,
    Implausible,
    absurd,
    all_in_range,
    blank,
    chosen,
    finite_rows,
    refuse_moments,
    refuse_range,
    repair,
    sort_samples,
)
from offsupport.engine.minimal_statistics import MinimalConfig, MinimalStatistics
from offsupport.engine.precision import SCALE, Autocast, refuse_half, single_norms
from offsupport.engine.source_stats import SourceStats
from offsupport.engine.state import Lifecycle, Memory, Turn
from offsupport.engine.statistics_policy import (
    FixedShare,
    MomentumStatistics,
    RunningStatistics,
    StatisticsPolicy,
)
from offsupport.functional import as_rows
from offsupport.monitor import Alarms, Calibration, Estimate, LastAnswers
from offsupport.monitor.alarms import on, tell
from offsupport.monitor.shift import seen_by_layers
from offsupport.nn.inspect import capture_input, find_head, input_rank, single, typical_parameter
from offsupport.nn.norm import (
    AdaptiveStatistics,
    NormStatistics,
    Seen,
    Statistics,
    adopt_batch_norm,
    affine_parameters,
    capture_means,
    norm_layers,
    protect_group_norm,
    release_batch_norm,
)

WIDEST = 8192
"""Features with more coordinates have a covariance of more than 256 MB: they are refused."""


class Adapter(Lifecycle, abc.ABC):
    """Wraps a classifier; called on a batch, it adapts and returns logits.

    A subclass declares its hyper-parameters (``config_class``), chooses parameters (:meth:`trainable`), declares what
    it remembers (:meth:`initial_memory`) and writes one :meth:`step`. Checks, gradient mode, the guard, the optimiser,
    resetting and saving are the same for all and live here.
    """

    info: ClassVar[MethodInfo]
    """The card of the method; ``register_method`` puts it here."""
    config_class: ClassVar[type[MethodConfig]]
    """The class of its hyper-parameters, from there too."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {"cifar10": {}, "cifar100": {}, "imagenet": {}}
    """Hyper-parameters by the name of the preset; ``cifar10-small``, if it is not said, is ``cifar10``."""
    sparse_presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """What the sparsity constraint changes in them, where that is not the same for all methods."""
    sparse_defaults: ClassVar[dict[str, Any]] = {}
    """The defaults of the sparsity constraint on this method, where they are not those of all."""
    statistics: ClassVar[Statistics] = "batch"
    """What batch norm normalises by when the method is called, unless its hyper-parameter ``statistics`` says."""
    small_batch_with_norm: ClassVar[int] = 16
    """The default of ``min_batch`` where there is batch norm, whose statistics need a batch."""
    small_batch_without: ClassVar[int] = 1
    """The default of ``min_batch`` where there is none."""
    augments: ClassVar[bool] = False
    """Whether the method augments images, so that it must know what a pixel is: [0, 1] and nothing else."""

    watches: ClassVar[int] = 1
    """Of so many batches the monitor looks at one."""
    images_per_reset: ClassVar[int] = 0
    """After how many images the method goes back to the source where the user does not say; 0 is never."""
    any_order: ClassVar[bool] = False
    """Whether the order of the images does it no harm, so that a sorted stream is no cause for alarm."""
    counts_itself: ClassVar[bool] = False
    """Whether its step counts the batch by :meth:`serve`, so that nobody else needs to."""
    steps_at_will: ClassVar[bool] = False
    """Whether it leaves steps out where it sees no reason for them."""
    mixes: ClassVar[bool] = False
    """Whether it answers by the mean of several predictions where images are shifted, and else by one."""
    source_shapes: ClassVar[dict[str, str]] = {}
    """The source statistics it reads, with a letter for each side of them: equal letters are equal lengths."""

    config: MethodConfig
    unreached: frozenset[str] | set[str] = frozenset()
    """Adapted parameters that the last loss did not depend on; neither momentum nor a penalty may move them."""

    @torch.inference_mode(False)
    def __init__(
        self, model: nn.Module, config: MethodConfig, options: Options, source: SourceStats | None = None
    ) -> None:
        super().__init__()
        check_model(model, self.info)
        if self.augments:
            require_pixels(options, self.info.name)
        self.turn = Turn()
        self.config = config
        self.options = options
        self.model = (model if options.inplace else copy.deepcopy(model)).eval()
        # What only the monitor uses is no source statistics to the method.
        self.source = None if source is None or not source.tensors else source.to(self.device)
        self.clean_moments = {} if source is None else source.to(self.device).statistics
        known = None if source is None else Calibration.of(source.calibration, source.method)
        self.answers = LastAnswers(known, self.any_order)
        self.autocast = Autocast()
        self._returned = torch.get_default_dtype()
        self.norm_statistics = adopt_batch_norm(self.model)
        protect_group_norm(self.model)
        self.first_norm = FirstNorm.of(self.model, None if source is None else source.first_norm)
        self._unseen: Tensor | None = None
        self._looks_before = self.augments
        self.parameters_adapted = self._select()
        single_norms(self.model)
        self._set_up_batches()
        self.statistics_policy = self.choose_statistics()
        # Names in the memory are names in saved files.
        self.alarms = Alarms()
        watched = self.alarms.initial() | (LastAnswers.initial() if options.monitor else {})
        watched |= {"unwatched": torch.zeros((), dtype=torch.long)} if options.monitor and self.watches > 1 else {}
        wanted = options.reset_every
        self.reset_every = self.images_per_reset if wanted is None else wanted
        watched |= {"since_reset": torch.zeros((), dtype=torch.long)} if self.reset_every else {}
        watched |= initial_window() | self.statistics_policy.initial_memory()
        self.memory = self.statistics_policy.memory = Memory(watched | self.initial_memory())
        self._pending: Tensor | None = None
        self._recorded: tuple[Seen, Tensor] | None = None
        self.generator = torch.Generator().manual_seed(options.seed)
        self.events = dict.fromkeys(EVENTS, 0)
        self.passes = {"forward": 0, "backward": 0}
        self._taken: set[tuple[int, ...]] = set()
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

    def tune(self, x: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        """Return what else the method learns of some clean images, their labels if known; nothing by default."""
        return {}

    def decays(self) -> dict[str, float]:
        """Return how much of each adapted parameter a teacher keeps at a step, by name; a method without one: nothing.

        A method that overrides this has a teacher, and its constrained form takes ``teacher_decay``.
        """
        return {}

    def choose_statistics(self) -> StatisticsPolicy:
        """Return what batch norm normalises by: as the hyper-parameter says, or else as the method was published."""
        word = self.config.statistics if isinstance(self.config, BatchConfig) else None
        if word is None or not isinstance(self.config, BatchConfig):
            return StatisticsPolicy(self.statistics, self.norm_statistics)
        if word in ("batch", "source", "blend"):
            return StatisticsPolicy(word, self.norm_statistics)
        if word == "alpha":
            return FixedShare(self.norm_statistics, self.config.rate)
        if not self.norm_statistics.layers:
            raise ModelError(
                f"This model has no batch-norm layer, so no statistics follow the stream, and statistics is {word!r}.",
                "Leave statistics out: group and layer norm have none.",
            )
        if word == "running":
            return RunningStatistics(self.model, self.norm_statistics, self.config.prior)
        if word == "minimal":
            clean, trusted = self.clean_moments, self.options.trusted
            return MinimalStatistics(self.model, self.norm_statistics, clean, MinimalConfig(), trusted)
        return MomentumStatistics(self.model, self.norm_statistics, self.config.rate, decaying=word == "dua")

    def never_updated(self) -> list[nn.Module]:
        """Return the modules that a sparsity constraint must leave alone, too; none by default."""
        return []

    def misfit(self, memory: Mapping[str, Tensor]) -> str | None:
        """Return the name of something in a memory that no stream leaves there; None where there is nothing."""
        past = memory["window_moments"]
        if past.numel() and (past.dim() != 3 or past.shape[::2] != (2, self.norm_statistics.channels)):
            return "window_moments"
        answers = self.answers.misfit(memory) if self.options.monitor else None
        return self.alarms.misfit(memory) or answers or self.statistics_policy.misfit(memory)

    def announce(self) -> None:
        """Tell the user, once, what they should know about this set-up; nothing by default."""

    # What a method may use -------------------------------------------------------------------------------------------

    def network(self, x: Tensor, tensors: dict[str, Tensor] | None = None) -> Tensor:
        """Run the model, with ``tensors`` in place of its own where given, and return its logits (N, K, ...)."""
        company = self.norm_statistics.company
        self.statistics_policy.use(len(x) if company is None or len(x) != company.images else company.size)
        if x is not self._pending or self._recorded is not None:
            return self._looked_at(x, tensors)
        with self.norm_statistics.recording() as seen:
            logits = self._looked_at(x, tensors)
        self._recorded = seen, logits.detach()
        return logits

    def _looked_at(self, x: Tensor, tensors: dict[str, Tensor] | None) -> Tensor:
        """Run the model; the first pass of a batch nobody has looked at says whether its moments are plausible."""
        batch, self._unseen = self._unseen, None
        if batch is None or self.first_norm.layer is None:
            return self._run(x, tensors)
        if x is not batch:
            # Augmented copies come first. From now on a look goes before the step, out of the way of its hooks.
            self._looks_before = True
            raise Implausible
        logits, odd = self.first_norm.judged(lambda: self._run(x, tensors), self.norm_statistics.seen)
        if odd:
            raise Implausible
        return logits

    def _run(self, x: Tensor, tensors: dict[str, Tensor] | None = None) -> Tensor:
        self.passes["forward"] += 1
        if self.norm_statistics.company is not None:
            self.norm_statistics.company.begin(len(x))
        with self.autocast.again() if self.autocast.wanted else contextlib.nullcontext():
            out = self.model(x) if tensors is None else torch.func.functional_call(self.model, tensors, (x,))
        logits = check_output(out if self.options.logits is None else self.options.logits(out), len(x))
        self._returned = logits.dtype
        return single(logits)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of ``x`` without a step: a forward pass that keeps no graph."""
        return self.network(x)

    def serve(self, x: Tensor) -> Tensor:
        """Predict ``x`` without a step, and let the statistics that follow the stream count it."""
        before, passed = self.passes["forward"], 0

        def predict(part: Tensor) -> Tensor:
            nonlocal passed
            passed += len(part)
            return self.predict(part)

        logits = self.statistics_policy.serve(x, predict)
        # The groups of a batch are one pass over it together.
        self.passes["forward"] = before + -(-passed // len(x))
        return logits

    @torch.no_grad()
    def source_features(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features (N, D) and logits (N, K) of each batch, by the weights and statistics the model came with."""
        for x in batches:
            with self.norm_statistics.using("source"), capture_input(self.classifier) as features:
                logits = self.network(x)
            z = as_rows(features[0])
            if z.shape[1] > WIDEST:
                raise ModelError(
                    f"The features have {z.shape[1]} coordinates, and their covariance does not fit into memory.",
                    "Name a layer with fewer inputs: head='name of the module'.",
                )
            if not (z.isfinite().all() and logits.isfinite().all()):
                raise InputError("The source images give non-finite features.", "Remove images with NaN or infinity.")
            yield z, as_rows(logits)

    def without_step(self, x: Tensor) -> Tensor:
        """Return the logits of a batch whose step was undone."""
        return self.predict(x)

    @property
    def source_parameters(self) -> dict[str, Tensor]:
        """The adapted parameters as they came, by name."""
        return self._start.parameters

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Return the gradients of ``loss`` by the adapted parameters; where anything is non-finite, reject the step."""
        require_finite_loss(loss)
        require_graph(loss)
        self.passes["backward"] += 1
        parameters = list(self.parameters_adapted.values())
        # Not loss.backward(): that adds up in .grad, where a step that is rejected would leave it.
        scale = SCALE if self._returned == torch.float16 else None
        scaled = loss if scale is None else loss * scale
        found = torch.autograd.grad(scaled, parameters, allow_unused=True, materialize_grads=True)
        found = found if scale is None else tuple(gradient / scale for gradient in found)
        if not all_finite(list(found)):
            raise StepRejected("bad_grad")
        return list(found)

    def apply_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Take one step of the optimiser along ``gradients``; parameters that end up non-finite reject the step."""
        assert self.optimizer is not None  # noqa: S101 (a method with a step declares trainable parameters)
        for parameter, gradient in zip(self.parameters_adapted.values(), gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()
        if not all_finite([parameter.detach() for parameter in self.parameters_adapted.values()]):
            raise StepRejected("bad_param")

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

    def reset(self) -> None:
        """Go back to the start, bit for bit, whatever happened: state, counters, and what batch norm normalises by."""
        with self.turn:
            super().reset()
            self.norm_statistics.kind = "source"

    @torch.inference_mode(False)
    def merge(self) -> nn.Module:
        """Return a copy of the network that predicts, a teacher where there is one; its batch norm is as it came."""
        merged = copy.deepcopy(self.model)
        parameters = dict(merged.named_parameters())
        with torch.no_grad():
            for name, value in self.predicting_parameters().items():
                parameters[name].copy_(value)
        return merged

    @torch.inference_mode(False)
    def freeze(self, images: Tensor | None = None) -> nn.Module:
        """Return a plain network that learns nothing more: weights and batch-norm statistics as they are now.

        It can be exported as any network. What a method does beside the network, such as the second prediction of
        ``auto`` or a correction of the logits, is not in it.

        Args:
            images: A batch of the stream, for methods that normalise by the batch: its statistics are kept.
        """
        if self.config.independent and self.info.name != "source":
            raise ModelError(
                f"The method {self.info.name!r} learns anew for each image, so there is nothing to keep.",
                "Export the model itself.",
            )
        with self.turn:
            return release_batch_norm(self.merge(), self._moments_kept(images)).requires_grad_(False).eval()

    @torch.no_grad()
    def _moments_kept(self, images: Tensor | None) -> dict[str, tuple[Tensor, Tensor]]:
        """Return mean and variance of each batch-norm layer as it normalises now, by name."""
        layers = {name: layer for name, layer in self.model.named_modules() if isinstance(layer, AdaptiveStatistics)}
        if self.statistics_policy.follows:
            self.statistics_policy.use(1)
            followed = {name: layer.place for name, layer in layers.items() if layer.place is not None}
            return {name: self.norm_statistics.part(place.start) for name, place in followed.items()}
        if self.statistics_policy.kind == "source" or not layers:
            return {}
        if images is None:
            raise ModelError(
                f"The method {self.info.name!r} normalises by the batch, and a plain network needs statistics of its "
                "own.",
                "Give a batch of the stream whose statistics it keeps: adapted.freeze(images).",
            )
        check_input(images, self.model, self._intake)
        found: dict[str, tuple[Tensor, Tensor]] = {}

        def keep(name: str, given: Tensor) -> None:
            var, mean = torch.var_mean(given.float(), [axis for axis in range(given.dim()) if axis != 1], correction=0)
            found[name] = mean, var

        with contextlib.ExitStack() as hooks, self.norm_statistics.using("batch"):
            for name in layers:
                layer = self.model.get_submodule(name)
                handle = layer.register_forward_pre_hook(lambda _, given, name=name: keep(name, given[0]))
                hooks.callback(handle.remove)
            passes = dict(self.passes)
            self._run(images, dict(self.predicting_parameters()))
            self.passes = passes
        return found

    def __getattr__(self, name: str) -> Any:
        """Let what an adapter does not have be that of the model it wraps: ``adapted.forward_features``."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            model = self.__dict__.get("_modules", {}).get("model")
            if model is None or name.startswith("_"):
                raise
            return getattr(model, name)

    # The ritual ------------------------------------------------------------------------------------------------------

    @final  # type: ignore[misc]
    def forward(self, x: Tensor | None = None, **named: Tensor) -> Tensor:
        """Adapt to ``x`` and return its logits; also inside ``torch.no_grad()`` and ``torch.inference_mode()``.

        A batch may have a name, as ``pixel_values=x``; nothing else is taken beside it.
        """
        batch = the_batch(x, named) if x is None or named else x
        with self.turn:
            return self._forward(batch)

    def _forward(self, x: Tensor) -> Tensor:
        intake = self._intake
        # Before the check, which may run the model: in training mode Dropout would draw from the global generator.
        if any([layer.training for layer in intake.layers]):  # noqa: C419 (twice as fast as a generator)
            self.model.eval()
        check_input(x, self.model, intake)
        if self.augments:
            require_images(x, self.info.name)
        modes = (torch.inference_mode(False), torch.enable_grad(), self.autocast.suspended(x.device.type))
        with modes[0], modes[1], modes[2], self.norm_statistics.using(self.statistics_policy.kind):
            first = not self._taken
            if tuple(x.shape[1:]) not in self._taken:
                with self.autocast.again():
                    require_taken(self.model, x)  # before anything of it is counted or remembered
                self._taken.add(tuple(x.shape[1:]))
            logits = self._answer(x.clone() if x.is_inference() else x.detach()).detach()
        if first and probabilities(logits):
            warnings.warn(_PROBABILITIES, stacklevel=4)
        return logits.to(self._returned)  # as the model itself returns them

    def _answer(self, x: Tensor) -> Tensor:
        """Serve the good samples as if the others were not there; the source weights predict those."""
        if not len(x):
            # One sample of zeros tells the shape of the logits.
            return self._source_logits(x.new_zeros(1, *x.shape[1:]))[:0]
        passes = dict(self.passes)
        looks_later = not self._looks_before and all_in_range(x, self.options.input_range)
        if looks_later:
            with contextlib.suppress(Implausible):
                return self._serve(x, looked=False)
        finite, good = sort_samples(x, self.options.input_range)
        good, served = self._serve_good(x, good, tried=looks_later)
        if served is not None and len(served) == len(x):
            return served
        if served is None and bool(finite.any()) and (len(x) > 1 or not passes["forward"]):
            # All of them: the unit is wrong. One sample after good ones says nothing of the unit.
            self.passes = passes
            self._refuse(x[finite])
        for event, happened in (("bad_input", ~finite), ("out_of_range", finite & ~good)):
            if bool(happened.any()):
                self.count(event)
        repaired, usable = repair(x[~good])
        fallback = self._source_logits(repaired)
        fallback[~usable] = 0.0
        logits = fallback.new_empty(len(x), *fallback.shape[1:])
        logits[~good] = fallback
        if served is not None:
            logits[good] = served
        return logits

    def _serve_good(self, x: Tensor, good: Tensor, tried: bool) -> tuple[Tensor, Tensor | None]:
        """Serve the good samples; return which they are after a look at their moments, and their logits."""
        if not tried and not self._looks_before and bool(good.any()):
            with contextlib.suppress(Implausible):
                return good, self._serve(chosen(x, good), looked=False)
        if bool(good.any()):
            good = good.masked_scatter(good, self._plausible(chosen(x, good)))
        return good, self._serve(chosen(x, good), looked=True) if bool(good.any()) else None

    def _plausible(self, x: Tensor) -> Tensor:
        """Return for each sample whether its moments are ones that a source image could have, (N,)."""
        if self.first_norm.layer is None:
            return torch.ones(len(x), dtype=torch.bool, device=x.device)
        odd = absurd(self._spread(x))
        if bool(odd.all()) and x.dim() == 4 and self.options.input_range is not None:
            # Images in the declared range, all of them: rather the layer's statistics are none of the source.
            odd = ~odd
        return ~odd

    def _spread(self, x: Tensor) -> Tensor:
        """Return how far the first norm layer sees each sample spread, by the source weights, (N,)."""
        passes = dict(self.passes)
        with self.norm_statistics.using("source"):
            spread = self.first_norm.look(x, lambda each: self._run(each, self.source_parameters))
        self.passes = passes  # these end with the first layers
        return spread

    def _refuse(self, x: Tensor) -> None:
        """Refuse finite samples of which none can be served."""
        declared = self.options.input_range
        if declared is not None and not bool(sort_samples(x, declared)[1].any()):
            refuse_range(x, declared)
        refuse_moments(self._spread(x))

    def _serve(self, x: Tensor, looked: bool) -> Tensor:
        memory, events = self.memory.copy(), dict(self.events)
        before = self.snapshot() if self._reset_is_due() else None
        try:
            self._count_towards_reset(len(x))
            batch, due = self._with_past(x)
            self._unseen = None if looked else batch
            return self._serve_batch(batch, due, x)
        except BaseException:
            if before is not None:
                self.restore(before)
            self.memory.update(memory)
            self.events = events
            raise
        finally:
            self._unseen = None

    def _reset_is_due(self) -> bool:
        return bool(self.reset_every) and int(self.memory["since_reset"]) >= self.reset_every

    def _count_towards_reset(self, images: int) -> None:
        """Go back to the source when that is due, before the next batch rather than after the last one."""
        if self._reset_is_due():
            self.recover()
        if self.reset_every:
            self.memory["since_reset"] = self.memory["since_reset"] + images

    def _serve_batch(self, batch: Tensor, due: bool, x: Tensor) -> Tensor:
        if len(batch) < self.min_batch:
            self.count("small_batch")
            logits = self._predict_small(batch, due, x)
        elif due and self.parameters_adapted and blank(batch):
            # A covered camera gives certain predictions and gradients all the same: a method would learn darkness.
            self.count("empty_selection")
            logits = self._predict_newest(batch, x)
        elif due:
            logits = self._in_company(batch, torch.empty(2, 0, 0), lambda: self._guarded_step(batch))
        else:
            logits = self._predict_newest(batch, x)
        # The newest images stand last in the window; only they are answered.
        logits = self._finite_logits(logits[-len(x) :].detach(), x)
        self._watch(x, logits)
        return logits

    def _predict_small(self, batch: Tensor, due: bool, x: Tensor) -> Tensor:
        """Predict what is too small for a step."""
        if self.statistics_policy.follows:
            # With a window, images are counted once: when it is full.
            return self.serve(batch) if due else self._predict_newest(batch, x)
        with self.norm_statistics.using("source" if self.statistics_policy.kind == "source" else "blend"):
            return self._predict_newest(batch, x)

    def _with_past(self, x: Tensor) -> tuple[Tensor, bool]:
        """Fill the batch up with past images to the size of the window; a step is due once per window of new images."""
        size = self.options.window
        if not size:
            return x, True
        past = self.memory["window"]
        # Images of another size cannot share a batch: the window starts anew.
        fits = past.shape[1:] == x.shape[1:] and len(x) < size
        batch = torch.cat([past[max(0, len(past) + len(x) - size) :], x]) if fits else x
        fresh = self.memory["fresh"] + len(x)
        due = bool(fresh >= size)
        # A model may change what it is given; where no step is due it is given the new images alone.
        self.memory["window"] = batch[-size:].clone() if due or not fits else batch
        self.memory["fresh"] = torch.zeros(()) if due else fresh
        return batch, due

    def _predict_newest(self, batch: Tensor, x: Tensor) -> Tensor:
        """Predict ``x``, the newest images of a batch, without a step.

        Past images are not passed again: at each batch-norm layer the moments they had stand in for them.
        """
        if batch is x and not self.options.window:
            return self.predict(x)
        past, wanted = self.memory["window_moments"], len(batch) - len(x)
        if self._shares and (past.shape[1] if past.numel() else 0) < wanted:
            whole = batch.clone()  # as above
            self._unseen = None if self._unseen is None else whole
            return self._in_company(whole, torch.empty(2, 0, 0), lambda: self.predict(whole))
        self._unseen = None if self._unseen is None else x
        if not self._shares:
            return self.predict(x)
        past = past[:, past.shape[1] - wanted :] if wanted else torch.empty(2, 0, 0)
        return self._in_company(x, past, lambda: self.predict(x))

    @property
    def _shares(self) -> bool:
        """Whether images of one batch have a say in each other's predictions."""
        by_batch = self.norm_statistics.layers > 0 and self.statistics_policy.kind in ("batch", "blend")
        return by_batch and not self.config.independent

    def _in_company(self, x: Tensor, past: Tensor, answer: Callable[[], Tensor]) -> Tensor:
        """Return the logits of ``x`` in the company of past images, and remember the moments of all of them."""
        if not self.options.window or not self._shares:
            return answer()
        with self.norm_statistics.together(past, len(x)) as company:
            logits = answer()
        found = company.moments(self.norm_statistics.channels)
        if found is None:
            self.memory["window_moments"] = torch.empty(0)
        else:
            found = torch.cat([past, found], 1) if past.shape[1] else found
            self.memory["window_moments"] = found[:, -self.options.window :]
        return logits

    def _guarded_step(self, x: Tensor) -> Tensor:
        before = self.snapshot()  # a method may have moved parameters, memory and generator before it fails
        try:
            return self._counted_step(x)
        except StepRejected as rejected:
            self.restore(before)
            self.count(rejected.event)
            return self._counted_without_step(x) if self.statistics_policy.follows else self.without_step(x)
        except BaseException:
            self.restore(before)
            raise

    def _counted_step(self, x: Tensor) -> Tensor:
        """Take a step by what is known of the stream, and count the batch: its first pass tells its moments."""
        policy = self.statistics_policy
        if not policy.follows or self.counts_itself or policy.prepare(x, self._before_step):
            return self.step(x)
        self._pending, self._recorded = x, None
        try:
            logits = self.step(x)
            self._pending, recorded = None, self._recorded
            if recorded is None:  # it looked at augmented copies alone
                self.serve(x)
            else:
                policy.count(x, *recorded)
            return logits
        finally:
            self._pending = self._recorded = None

    def _counted_without_step(self, x: Tensor) -> Tensor:
        """Predict a batch as a step of length nothing would, and count it."""
        if not self.counts_itself and self.statistics_policy.prepare(x, self._before_step):
            return self.predict(x)
        return self.serve(x)

    def _before_step(self, x: Tensor) -> Tensor:
        if self._unseen is not None and x is not self._unseen:
            raise Implausible  # parts of a batch go through before it: the look goes before them
        return self.predict(x)

    @torch.no_grad()
    def _source_logits(self, x: Tensor) -> Tensor:
        """Predict with the weights and statistics the model came with; uniformly where they give no finite logits."""
        with self.norm_statistics.using("source"):
            logits = self._run(x, self.source_parameters).clone()
        logits[~finite_rows(logits)] = 0.0
        return logits

    def _finite_logits(self, logits: Tensor, x: Tensor) -> Tensor:
        """Never return a non-finite logit: such samples get the source prediction, or the uniform one."""
        if math.isfinite(float(logits.sum())):  # a sum is finite only where all its terms are
            return logits
        broken = ~finite_rows(logits)
        if not broken.any():
            return logits
        self.count("bad_input")
        logits = logits.clone()
        logits[broken] = self._source_logits(x[broken])
        return logits

    def _watch(self, x: Tensor, logits: Tensor) -> None:
        """Remember the answers for an estimate, and tell once per episode what is wrong with the stream."""
        if self.watched:
            self.memory.update(self.answers.add(self.memory, x, logits, *self.source_view(x)))
        if self.options.monitor and self.watches > 1:
            self.memory["unwatched"] = (self.memory["unwatched"] + 1) % self.watches
        if self.options.collapse == "off" or self.config.independent:
            return
        before = on(self.memory["fired"])
        watched, alarms = self.alarms.observe(self.memory, logits, x, self._quarrels)
        self.memory.update(watched)
        resets = self.options.collapse == "reset"
        for alarm in alarms:
            if alarm == "order" and (self.any_order or self.config.bounded):
                continue
            if alarm not in before:  # once for each episode, not for each batch of it
                self.count(alarm)
                told = tell(alarm, self.info.name, self.alarms.collapse.window, resets)
                warnings.warn(told, stacklevel=6)
        if resets and "collapse" in alarms:
            self.recover()

    @property
    def watched(self) -> bool:
        """Whether the monitor looks at this batch."""
        return self.options.monitor and (self.watches == 1 or not int(self.memory["unwatched"]))

    def _quarrels(self) -> bool:
        return self.options.monitor and self.answers.quarrel(self.memory)

    @torch.no_grad()
    def source_view(self, x: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """Return logits of the source model, and what its layers see: channel means (N, C), and the layers' widths."""
        with capture_means(self.model) as means:
            logits = self._source_logits(x)
        return logits, *seen_by_layers(means, logits)

    def estimate(self) -> Estimate:
        """Say how often the source model and the adapted one are right on the last images, without labels.

        Needs ``adapt(..., monitor=True)``; accuracies need ``source=source_stats(..., labels=labels)``, too.
        """
        if not self.options.monitor:
            raise ConfigError(
                "This adapter does not watch the source model, so there is nothing to compare with.",
                f'Make it with offsupport.adapt(model, "{self.info.name}", monitor=True).',
            )
        with self.turn:
            memory = self.memory.copy()
        return self.answers.estimate(memory)  # takes a while, in which others are served

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Lifecycle:
        with self.turn:
            super()._apply(fn, recurse)
            self.statistics_policy.start(self.model)  # from the model as it is now
        return self

    # Set-up ----------------------------------------------------------------------------------------------------------

    def head(self) -> tuple[str, nn.Module]:
        """Return the name and module of the classifier layer."""
        return find_head(self.model, self.options.head)

    @functools.cached_property
    def classifier(self) -> nn.Module:
        """The classifier layer; its inputs are the features."""
        return self.head()[1]

    @functools.cached_property
    def _intake(self) -> Intake:
        return Intake.of(self.model)

    @property
    def policy(self) -> NormStatistics:
        """The old name of ``norm_statistics``."""
        warnings.warn(
            "Adapter.policy is now Adapter.norm_statistics. The old name goes with version 0.4.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.norm_statistics

    def summary(self) -> str:
        """Say in a few lines what adapts, and how."""
        count = sum(parameter.numel() for parameter in self.parameters_adapted.values())
        names = ", ".join(self.parameters_adapted) or "none"
        return (
            f"{self.info.name}: {self.info.summary}\n{self.config}\n"
            f"batches below {self.min_batch} are predicted without a step; "
            f"{self.norm_statistics.layers} batch-norm layers use {self._word()} statistics\n"
            f"{count} values adapted in {len(self.parameters_adapted)} tensors: {names}"
        )

    def _word(self) -> str:
        own = self.config.statistics if isinstance(self.config, BatchConfig) else None
        return own or self.statistics_policy.kind

    def _select(self) -> dict[str, nn.Parameter]:
        """Switch gradients on for the parameters to adapt and off for all others."""
        chosen = self.trainable()
        refuse_half(self.info.name, self.model, chosen)
        self.model.requires_grad_(False)
        for parameter in chosen.values():
            parameter.requires_grad_(True)
        return chosen

    def _set_up_batches(self) -> None:
        self.min_batch = 1
        self.optimizer: torch.optim.Optimizer | None = None
        if isinstance(self.config, BatchConfig):
            needs_batch = self.norm_statistics.layers and self.config.statistics in (None, "batch")
            default = self.small_batch_with_norm if needs_batch else self.small_batch_without
            self.min_batch = default if self.config.min_batch is None else self.config.min_batch
            self.norm_statistics.prior = self.config.prior
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


def initial_window() -> dict[str, Tensor]:
    """Return what a window remembers, at its start: images, their moments, how many came since the last step."""
    return {"window": torch.empty(0), "window_moments": torch.empty(0), "fresh": torch.zeros(())}


# The base of methods that augment images: they must know what a pixel is.


class PixelAdapter(Adapter):
    """An adapter of classifiers of images in [0, 1]; what lies a little outside is clipped before every pass."""

    augments: ClassVar[bool] = True

    def images(self, x: Tensor) -> Tensor:
        """Return ``x`` clipped to [0, 1]."""
        return x.clamp(*PIXELS)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of ``x`` without a step."""
        return self.network(self.images(x))

    def network(self, x: Tensor, tensors: dict[str, Tensor] | None = None) -> Tensor:
        """Run the model on clipped images and return its logits, (N, K)."""
        return require_whole(super().network(x.clamp(*PIXELS), tensors), self.info.name)


# Random draws that belong to an image: the same wherever it stands in a stream, and in whatever company.


def draws_for(x: Tensor, purpose: str, seed: int) -> torch.Generator:
    """Return a generator that depends on purpose, seed and the pixels of ``x`` alone.

    So the same numbers come out however a stream is split over workers, and methods that share a purpose and a seed
    share their draws.
    """
    content = hashlib.sha256(x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
    return torch.Generator().manual_seed(derive_seed(purpose, seed, content))


# The guard of steps: bad ones are undone.


class StepRejected(Exception):  # noqa: N818 (control flow between a method's step and the base, never the user's error)
    """Raised inside a step to have it undone; carries the event to count."""

    def __init__(self, event: str) -> None:
        super().__init__(event)
        self.event = event


def require_finite_loss(loss: Tensor) -> None:
    """Reject the step when the loss is not a finite number."""
    if not torch.isfinite(loss).all():
        raise StepRejected("bad_loss")


def require_graph(loss: Tensor) -> None:
    """Refuse a loss that no gradient can be taken of: the model's doing, so no event of the stream."""
    if not loss.requires_grad:
        raise ModelError(
            "The model computes its logits without gradients, so no step can be taken.",
            "Remove torch.no_grad() or detach() from its forward, or use 'bn' or 'source'.",
        )


def all_finite(tensors: list[Tensor]) -> bool:
    """Tell whether every value of every tensor is finite, in one pass over them all.

    A sum is finite only where all its terms are; they are looked at one by one only where a sum is not, since large but
    finite terms overflow too.
    """
    if not tensors:
        return True
    # One answer for all: `bool` of each would wait for the device, and `isfinite` makes a copy of each.
    sums = torch.stack([tensor.sum().to(tensors[0].device) for tensor in tensors])
    return bool(sums.isfinite().all()) or all(bool(tensor.isfinite().all()) for tensor in tensors)


# Refusals with a reason: of models a method cannot adapt, of inputs and outputs that are not what they should be.


def check_model(model: nn.Module, info: MethodInfo) -> None:
    """Refuse what cannot be adapted by this method, before the first batch."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"adapt() takes a torch.nn.Module, not {type(model).__name__}.", "Pass the network itself.")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            "A traced or scripted model shows no layers that could adapt.",
            "Adapt the nn.Module it was made of, and export afterwards: torch.jit.trace(adapted.freeze(x), x).",
        )
    if isinstance(model, nn.DataParallel):
        raise ModelError(
            "DataParallel copies a model for every batch, and what adapts would be lost with the copies.",
            "Adapt the network inside it, model.module, one adapter per GPU.",
        )
    if any(nn.parameter.is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise ModelError(
            "Some layers of this model are lazy and have no weights yet.",
            "Pass a batch of images through the model once, or load its weights, before you adapt it.",
        )
    batch_norm = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for _, layer in norm_layers(model))
    if info.norm == "batch" and not batch_norm:
        raise ModelError(
            f"The method {info.name!r} re-estimates batch-norm statistics, and this model has no batch-norm layer.",
            "Use 'sar' for group or layer norm, 'shot' for a model without normalisation.",
        )
    if info.norm == "any" and not affine_parameters(model):
        raise ModelError(
            f"The method {info.name!r} adapts the scale and shift of normalisation layers, and this model has none.",
            "Use 'shot', which adapts all layers before the classifier.",
        )


@dataclasses.dataclass(frozen=True)
class Intake:
    """What a batch is held against, found once: to walk through a model costs as much as a small layer."""

    layers: list[nn.Module]
    """All of them."""
    parameter: Tensor
    """One that is where the model is, of the type it computes in; it stays the same when the model is moved."""
    rank: int | None
    """The rank of the batches it takes; None where that is open."""

    @staticmethod
    def of(model: nn.Module) -> Intake:
        """Return that of a model."""
        return Intake(list(model.modules()), typical_parameter(model), input_rank(model))


def the_batch(x: Tensor | None, named: Mapping[str, Tensor]) -> Tensor:
    """Return the only thing that an adapter was given, by position or by name; refuse more, or nothing."""
    given = [*([] if x is None else [x]), *named.values()]
    if len(given) != 1:
        what = f" and {', '.join(named)}" if named and x is not None else f": {', '.join(named)}" if named else ""
        raise InputError(
            f"An adapter takes one batch, and got {len(given) or 'none'}{what}.",
            "Call adapted(x) or adapted(pixel_values=x). What else the model takes, let a module around it fill in.",
        )
    return given[0]


_PROBABILITIES = (
    "The model seems to return probabilities, not logits: methods would take their softmax once more. "
    "Leave its softmax out, or say adapt(..., logits=lambda out: out.clamp_min(1e-12).log())."
)


def probabilities(logits: Tensor) -> bool:
    """Tell whether logits are probabilities already: none is negative, and those of a sample sum to one."""
    if not len(logits) or bool((logits < 0).any()):
        return False
    return bool(((logits.float().sum(1) - 1).abs() < 1e-3).all())


def check_input(x: Tensor, model: nn.Module, intake: Intake | None = None) -> Tensor:
    """Return ``x`` when it is a batch that the model can take; refuse it otherwise."""
    if not isinstance(x, Tensor):
        raise InputError(f"A batch is a torch.Tensor, not {type(x).__name__}.", "Convert it: torch.as_tensor(x).")
    if x.layout != torch.strided:
        raise InputError(f"The batch has the layout {x.layout}.", "Convert it: x.to_dense().")
    intake = intake or Intake.of(model)
    device, dtype = intake.parameter.device, intake.parameter.dtype
    if x.dtype != dtype:
        if not x.is_floating_point() and any(isinstance(layer, nn.Embedding) for layer in intake.layers):
            raise InputError(
                f"The batch is {x.dtype}: token ids, which cannot be adapted to.",
                "Adapt the part of the model behind its embedding, and pass it embedded tokens.",
            )
        how = "x.float() / 255" if x.dtype == torch.uint8 else f"x.to({dtype})"
        raise InputError(f"The model computes in {dtype} and the batch is {x.dtype}.", f"Convert it: {how}.")
    if x.device != device:
        raise InputError(f"The model is on {device} and the batch on {x.device}.", f'Move it: x.to("{device}").')
    rank = intake.rank
    if x.dim() < 2 or (rank not in (None, x.dim()) and not _takes(model, x)):
        wanted = f"{rank} dimensions" if rank else "at least 2 dimensions"
        raise InputError(
            f"The model takes batches with {wanted}, and this one has shape {tuple(x.shape)}.",
            "Add the batch dimension: x[None].",
        )
    return x


def require_images(x: Tensor, method: str) -> None:
    """Refuse what are no images, before a method augments them."""
    if x.dim() != 4:
        raise InputError(
            f"The method {method!r} augments images (N, C, H, W), and this batch has shape {tuple(x.shape)}.",
            "Use a method that does not augment, such as 'tent'.",
        )


def require_pixels(options: Options, method: str) -> None:
    """Refuse another declared range than [0, 1], before a method augments images of it."""
    if options.input_range != PIXELS:
        raise ConfigError(
            f"The method {method!r} augments images in [0, 1], and input_range is {options.input_range}.",
            "Let the model standardise: offsupport.nn.Normalized(model, mean, std), and pass plain images.",
        )


@torch.no_grad()
def _takes(model: nn.Module, x: Tensor) -> bool:
    """Tell whether a model takes ``x`` although its first layer expects another rank, as one that reshapes does."""
    first = x[:1]
    try:
        out = model(first)
    except (InputError, RuntimeError, ValueError, IndexError):
        return False
    # Where the logits are in another kind of output is not known here.
    return not isinstance(out, Tensor) or (out.dim() > 0 and len(out) == len(first))


@torch.no_grad()
def require_taken(model: nn.Module, x: Tensor) -> None:
    """Refuse samples that a model cannot take, by trying the first; what it returns is another matter."""
    shape = tuple(x.shape[1:])
    last = len(shape) == 3 and shape[2] in (1, 3) and shape[0] not in (1, 3)
    try:
        model(x[:1] if len(x) else x.new_zeros(1, *shape))
    except (RuntimeError, ValueError, IndexError) as error:
        raise ShapeError(
            f"The model does not take samples of shape {shape} ({str(error).partition(chr(10))[0]}).",
            "Put the channels second: x.permute(0, 3, 1, 2)."
            if last
            else "Give what it was trained on, such as images (N, channels, height, width).",
        ) from error


def check_output(out: Any, samples: int) -> Tensor:
    """Return ``out`` when it is logits (N, K) or dense logits (N, K, ...); refuse anything else."""
    if not isinstance(out, Tensor):
        raise ModelError(
            f"The model returns {type(out).__name__}, not a tensor of logits.",
            f"Say where they are: adapt(..., logits=lambda out: {_logits_of(out)}).",
        )
    if out.dim() < 2 or len(out) != samples or out.shape[1] == 0:
        raise ModelError(
            f"The model returns shape {tuple(out.shape)} for {samples} samples.",
            "It must return logits of shape (samples, classes), with at least two classes.",
        )
    if not out.is_floating_point() or out.layout != torch.strided:
        what = out.dtype if out.layout == torch.strided else out.layout
        raise ModelError(
            f"The model returns {what}, and logits are plain floating-point numbers.",
            "Return what its last layer gives, before any argmax, comparison or conversion.",
        )
    if out.shape[1] == 1:
        raise ModelError(
            "The model returns a single logit per sample, and one class is always certain.",
            "Make it two: adapt(..., logits=lambda out: torch.cat([torch.zeros_like(out), out], 1)).",
        )
    return out


def require_whole(logits: Tensor, method: str) -> Tensor:
    """Return logits (N, K) as they are; refuse those of every position, for a method of whole images."""
    if logits.dim() > 2:
        raise ModelError(
            f"The method {method!r} compares whole images, and this model predicts every position: its logits have "
            f"shape {tuple(logits.shape)}.",
            "Use 'tent' or 'sar' for dense predictions.",
        )
    return logits


def _logits_of(out: Any) -> str:
    if isinstance(out, Mapping):
        return f"out[{next((key for key in out if 'logit' in str(key)), next(iter(out), 'logits'))!r}]"
    return "out[0]" if isinstance(out, (tuple, list)) else "out.logits"
