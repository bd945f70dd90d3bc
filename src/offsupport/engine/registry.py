"""All methods by name, and the one-line calls: adapt a model, list the methods, summarise source data.

A method's file registers it when it is imported; an installed package may add one through the entry points of the group
``offsupport.methods``. ``+sc`` behind a name is not in the table: the module that implements a suffix registers how one
method is made of another (:meth:`Methods.register_suffix`), so that this module need not import it.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, overload

import torch
from torch import Tensor, nn

from offsupport.core.config import build
from offsupport.core.errors import ConfigError, InputError, ModelError, SourceStatsError, nearest
from offsupport.core.registry import Registry
from offsupport.core.weights import require_values
from offsupport.engine.adapter import Adapter, StepRejected, check_input, check_model
from offsupport.engine.config import PIXELS, CollapseAction, MethodConfig, MethodInfo, Options, Range
from offsupport.engine.guard import FirstNorm, channel_moments
from offsupport.engine.minimal_statistics import MOMENT_SHAPES, MinimalStatistics
from offsupport.engine.source_stats import Sample, SourceImages, SourceStats, Transform
from offsupport.engine.state import model_sha256, saved_set_up
from offsupport.monitor import calibrate
from offsupport.monitor.calibration import BATCH
from offsupport.nn.inspect import find_head

PUBLISHED, NARROW = "cifar10", "cifar10-small"
"""The preset published for CIFAR-10, and the one for narrow networks, for which that is not always the best.

What the second changes was chosen by ``offsupport reproduce tuning --scale small``: on the zoo's ResNet-18 of width 16
and the four extra corruptions, four candidates for each method. Where nothing better was found, it is the first.
"""

A = TypeVar("A", bound=type[Adapter])
Variant = Callable[[type[Adapter]], type[Adapter]]
V = TypeVar("V", bound=Variant)


class Suffix(NamedTuple):
    """How the methods behind a suffix are made."""

    make: Variant
    applies: Callable[[type[Adapter]], bool]


class Methods(Registry[type[Adapter]]):
    """Methods by name; a suffix behind a name makes another method of it when asked for, which is not listed."""

    def __init__(self) -> None:
        super().__init__("method", group="offsupport.methods")
        self._suffixes: dict[str, Suffix] = {}

    def register_suffix(self, suffix: str, applies: Callable[[type[Adapter]], bool]) -> Callable[[V], V]:
        """Return a decorator for the function that makes a method of another, for names that end in ``suffix``.

        Args:
            suffix: What stands behind the name of the other method.
            applies: Which methods it can be made of, for errors to name what there is; the function itself refuses.
        """

        def store(make: V) -> V:
            self._suffixes[suffix] = Suffix(make, applies)
            return make

        return store

    def known(self) -> list[str]:
        """Return the names of all methods, also of those made when asked for."""
        names = list(self)  # before what is registered is looked at: this lets other packages register theirs
        made = ((name, suffix) for suffix, how in self._suffixes.items() for name in names if how.applies(self[name]))
        return [*names, *(name + suffix for name, suffix in made)]

    def __getitem__(self, name: str) -> type[Adapter]:
        if not isinstance(name, str):
            raise ConfigError(f"A method is named by a word, not by {name!r}.", 'Write adapt(model, "auto").')
        plain = self.plain(name)
        method = super().__getitem__(plain)
        return method if plain == name else self._suffixes[name.removeprefix(plain)].make(method)

    def plain(self, name: str) -> str:
        """Return the name of the method without a suffix; what it keeps of source data serves both."""
        if name in self:  # a method may be called as if it had one
            return name
        return next((name.removesuffix(suffix) for suffix in self._suffixes if name.endswith(suffix)), name)


METHODS = Methods()


def register_method(info: MethodInfo, config: type[MethodConfig]) -> Callable[[A], A]:
    """Make an :class:`Adapter` known under ``info.name``, with ``config`` as its hyper-parameters.

    A decorator of the class. In a package of its own it is found by an entry point of the group ``offsupport.methods``
    with the same name, whose module holds the class.
    """

    def store(cls: A) -> A:
        cls.info = info
        cls.config_class = config
        if PUBLISHED in cls.presets and NARROW not in cls.presets:
            cls.presets = {**cls.presets, NARROW: dict(cls.presets[PUBLISHED])}
        METHODS.register(info.name)(cls)
        return cls

    return store


_BESIDE = ("preset", "source", *(field.name for field in dataclasses.fields(Options)))
"""What adapt() takes beside hyper-parameters."""


def adapt(
    model: nn.Module,
    method: str = "auto",
    *,
    preset: str | None = None,
    source: SourceStats | None = None,
    logits: Callable[[Any], Tensor] | None = None,
    head: str | bool | None = None,
    window: int = 0,
    collapse: CollapseAction = "warn",
    seed: int = 0,
    inplace: bool = False,
    input_range: Range | None = PIXELS,
    monitor: bool | None = None,
    trusted: bool = True,
    reset_every: int | None = None,
    **hyper: Any,
) -> Adapter:
    """Wrap a trained classifier so that it adapts to the data it is given as it predicts.

    Args:
        model: Any ``nn.Module`` from images in [0, 1] to logits (N, K) or dense logits (N, K, H, W). It is not touched.
        method: One of :func:`list_methods`; ``auto`` chooses by the evidence. ``+sc`` behind one that takes steps adds
            the sparsity constraint.
        preset: ``cifar10``, ``cifar100`` or ``imagenet``: the published hyper-parameters for such data;
            ``cifar10-small``: those we chose for narrow networks on CIFAR-10.
        source: Source statistics, for the methods that use them, and what the monitor knows of clean images; see
            :func:`source_stats`.
        logits: Where the logits are in what the model returns, if it returns an object.
        head: Name of the classifier layer; by default the last ``nn.Linear``. With ``+sc``, True or False stands for
            the hyper-parameter ``train_head``.
        window: Fill smaller batches up to this size with past images; a step is taken once per window of new images.
        collapse: What to do when predictions fall into one class: ``warn``, ``reset`` or ``off``. Alarms of an order of
            the images and of disagreement with the source model warn, too, unless it is ``off``.
        seed: Seed of the method's own random draws.
        inplace: Adapt the given model itself instead of a copy; its batch-norm layers go on
            normalising by what adapters tell them, and with ``+sc`` its layers keep their updates.
        input_range: The range of pixels in batches (N, C, H, W). A sample outside is predicted by the source weights,
            left out of all statistics and losses, and counted (``out_of_range``); a batch wholly outside is an error.
            None where the model takes anything else. Inputs of another rank have no range.
        monitor: Watch the source model beside the adapted one, for :meth:`Adapter.estimate`; one more pass per batch.
            None is what the method does by itself: ``auto`` watches one batch of four, others none.
        trusted: False where strangers can send images: only methods that bound what one image can do are taken, and
            they move half as far.
        reset_every: Go back to the source before the next batch once so many images were served since the last time
            (Press et al., 2023); counted as ``reset``. 0 is never; None what the method says, which is never for all
            but ``rdumb``.
        **hyper: Hyper-parameters of the method; they override the preset.

    Example:
        >>> import torch
        >>> from offsupport.nn import resnet18
        >>> adapted = adapt(resnet18(width=8), "tent", lr=1e-3)
        >>> adapted(torch.rand(16, 3, 32, 32)).shape
        torch.Size([16, 10])
    """
    cls = METHODS[method]
    if isinstance(model, Adapter):
        raise ModelError("This model is adapted already.", "Pass the model inside: adapted.model.")
    hyper, head = _split_head(hyper, head)
    config = method_config(method, preset, hyper)
    given: dict[str, Any] = {"logits": logits, "head": head, "window": window, "collapse": collapse, "seed": seed}
    watching = cls.watches > 1 if monitor is None else monitor
    given |= {"inplace": inplace, "input_range": input_range, "trusted": trusted, "monitor": watching}
    given |= {"reset_every": reset_every}
    options = build(Options, given, "adapt()")
    check_model(model, cls.info)
    if not trusted and not (cls.info.bounded or config.bounded):
        raise ConfigError(
            f"The method {method!r} sets no bound to what one image can do to the others, and trusted is False.",
            "Use 'minimal', or 'source', or keep strangers' images away and leave trusted out.",
        )
    source = _moments_apart(config, source)
    _check_source(cls.info, model, source, head)
    adapter = cls(model, config, options, source)
    adapter.announce()
    return adapter


def method_config(method: str, preset: str | None = None, hyper: Mapping[str, Any] | None = None) -> MethodConfig:
    """Return the hyper-parameters that :func:`adapt` would use: defaults, what a preset changes, and what is given."""
    cls = METHODS[method]
    if preset is not None and preset not in cls.presets:
        raise ConfigError(f"Unknown preset {preset!r} for method {method!r}.", nearest(preset, cls.presets))
    wanted = {**(cls.presets[preset] if preset else {}), **(hyper or {})}
    return build(cls.config_class, wanted, f"method {method!r}", beside=_BESIDE)


def load_adapted(model: nn.Module, path: Path | str, **options: Any) -> Adapter:
    """Wrap ``model`` with what :meth:`Adapter.save` wrote, and continue from there.

    Args:
        model: The model it was saved from; other weights are refused.
        path: The saved file.
        **options: Options of :func:`adapt` that are not part of the file: ``logits``, ``source``, ``inplace``, and of
            files of 0.2.0 ``input_range``.
    """
    adapter = adapt(model, **{**saved_set_up(path), **options})
    adapter.load(path)
    return adapter


@overload
def list_methods(details: Literal[False] = False) -> list[str]: ...
@overload
def list_methods(details: Literal[True]) -> list[MethodInfo]: ...
def list_methods(details: bool = False) -> list[str] | list[MethodInfo]:
    """Return the names of all methods, or their cards."""
    return [METHODS[name].info for name in METHODS] if details else list(METHODS)


def source_stats(
    model: nn.Module,
    loader: Iterable[Tensor | Sequence[Any]],
    method: str,
    *,
    preset: str | None = None,
    transform: Transform = "none",
    provenance: Mapping[str, Any] | None = None,
    labels: Tensor | Sequence[int] | None = None,
    monitor: bool = False,
    **options: Any,
) -> SourceStats:
    """Compute what ``method`` must know of the source data, from images alone, in one pass.

    Args:
        model: The model that will be adapted.
        loader: Batches of source images, or of tuples that start with them; the monitor takes what stands second for
            the labels.
        method: The method the statistics are for.
        preset: The preset that :func:`adapt` will be given; ``imagenet`` keeps class covariances of TTAC as diagonals.
        transform: ``crop`` takes a random crop (20 to 100 % of the area) of each image and flips every other one, as
            published statistics of TTAC and TTT++ do.
        provenance: What the images are, kept with the statistics; streams of :mod:`offsupport.data` say it themselves.
        labels: Labels of the images in the order of the loader; given, the monitor is calibrated.
        monitor: Learn of the images what :meth:`Adapter.estimate` needs. They should be images the model was not
            trained on: on those it is surer than on any others. Up to 512 of them are kept for the time of the call.
        **options: What :func:`adapt` will be given: options about the model (``logits``, ``head``), hyper-parameters;
            what is about the stream changes nothing here.
    """
    hyper, head = _split_head(options, options.pop("head", None))
    given = {"head": head, "logits": hyper.pop("logits", None), "collapse": "off"}
    hyper = {name: value for name, value in hyper.items() if name not in _BESIDE}  # of the stream, not of the source
    config = method_config(method, preset, hyper)
    method = METHODS.plain(method)  # the constrained form is for the stream; both have the same statistics
    cls = METHODS[method]
    make = functools.partial(cls, model, config, build(Options, given, "source_stats()"))
    monitor = monitor or labels is not None or cls.watches > 1
    images = SourceImages(loader, transform, Sample(labels) if monitor else None)
    adapter = make()
    with FirstNorm.collecting(adapter.model) as sums:
        tensors, statistics = _collect(adapter, images, monitor)
    if not images.samples:
        raise InputError("The loader of source images is empty.", "Give it at least one batch.")
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise InputError("The source statistics are not finite.", "Give more source images, in larger batches.")
    known = {**images.provenance(), **(provenance or {})}
    head = _features_of(cls.info, model, head)
    moments = channel_moments(sums[0])
    stats = SourceStats(method, model_sha256(model), images.samples, tensors, known, head, moments, {}, statistics)
    if images.sample is None:
        return stats
    x, truth = images.sample.drawn(adapter.device)
    stats = dataclasses.replace(stats, tensors=tensors | make(stats).tune(x, truth))
    subject = _Subject(make(stats))
    return dataclasses.replace(stats, calibration=calibrate(subject, method, x, truth).tensors())


class _Subject(NamedTuple):
    """An adapter, as calibration sees it."""

    adapter: Adapter

    @property
    def mixes(self) -> bool:
        """Whether the method answers by the mean of several predictions where images are shifted, and else by one."""
        return self.adapter.mixes

    def look(self, x: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """Return logits of the source model, what its layers see, and the layers' widths."""
        return self.adapter.source_view(x)

    def answer(self, x: Tensor) -> Tensor:
        """Return the logits of the method, from its start."""
        self.adapter.reset()
        return torch.cat([self.adapter(batch) for batch in torch.split(x, BATCH)])


def _collect(adapter: Adapter, images: SourceImages, monitor: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Let a method collect its statistics under the gradient mode and the batch-norm statistics of a step.

    Also returns the moments of clean images, where the statistics of batch norm are to move away from these.
    """
    policy, gathered = adapter.statistics_policy, []

    def each() -> Iterator[Tensor]:
        for batch in images:
            x = check_input(adapter.to_device(batch), adapter.model)
            if isinstance(policy, MinimalStatistics) and adapter.config.wants_moments:
                gathered.append(policy.gather(x, adapter.network))
            yield x

    if (monitor or adapter.config.wants_moments) and adapter.info.source == "none":
        collections.deque(each(), maxlen=0)
        return {}, policy.describe(gathered) if isinstance(policy, MinimalStatistics) else {}
    with torch.inference_mode(False), torch.enable_grad(), adapter.norm_statistics.using(policy.kind):
        try:
            tensors = adapter.collect(each())
        except StepRejected:
            raise InputError(
                "The source images give non-finite losses or gradients.", "Remove images with NaN or infinity."
            ) from None
    return tensors, policy.describe(gathered) if isinstance(policy, MinimalStatistics) else {}


def _split_head(hyper: dict[str, Any], head: str | bool | None) -> tuple[dict[str, Any], str | None]:
    """Take ``head=True`` or False for the hyper-parameter of the sparsity constraint that it stands for."""
    return ({"train_head": head, **hyper}, None) if isinstance(head, bool) else (hyper, head)


def _features_of(info: MethodInfo, model: nn.Module, head: str | None) -> str:
    """Return the name of the layer whose inputs a method aligns; none where it aligns nothing."""
    return find_head(model, head)[0] if info.source == "required" else ""


def _moments_apart(config: MethodConfig, source: SourceStats | None) -> SourceStats | None:
    """Take what was collected for the method ``minimal`` for the moments that its statistics move away from."""
    if config.wants_moments and isinstance(source, SourceStats) and source.method == "minimal":
        return dataclasses.replace(source, tensors={}, statistics=source.tensors)
    return source


def _check_source(info: MethodInfo, model: nn.Module, source: SourceStats | None, head: str | None) -> None:
    if source is None:
        if info.source == "required":
            raise SourceStatsError(
                f"The method {info.name!r} needs source statistics.",
                f'Add: stats = offsupport.source_stats(model, source_loader, method="{info.name}"); '
                f'offsupport.adapt(model, "{info.name}", source=stats)',
            )
        return
    if not isinstance(source, SourceStats):
        raise SourceStatsError(
            f"source is {type(source).__name__}, not source statistics.",
            f'Make them: offsupport.source_stats(model, source_loader, method="{info.name}").',
        )
    if info.source == "none" and not source.calibration and not source.statistics:
        raise SourceStatsError(f"The method {info.name!r} uses no source statistics.", "Leave source out.")
    # What the monitor knows serves any method; what a method knows serves that method.
    method = source.method if info.source == "none" or not source.tensors else METHODS.plain(info.name)
    if info.source == "required":
        method = METHODS.plain(info.name)
    source.require(method, model_sha256(model), _features_of(info, model, head))
    remake = "Make them again with the model that is adapted."
    require_values(source.tensors, dict(model.named_parameters()), "The file of source statistics", "the model", remake)
    if source.tensors:
        source.require_shapes(METHODS[info.name].source_shapes)
    if source.statistics:
        dataclasses.replace(source, tensors=source.statistics).require_shapes(MOMENT_SHAPES)
