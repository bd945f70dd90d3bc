"""All methods by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from offsupport.core.config import build
from offsupport.core.errors import ConfigError, InputError, ModelError, SourceStatsError, nearest
from offsupport.core.registry import Registry
from offsupport.engine.adapter import Adapter, StepRejected, check_input, check_model
from offsupport.engine.config import CollapseAction, MethodConfig, MethodInfo, Options, StepConfig
from offsupport.engine.source_stats import SourceImages, SourceStats, Transform
from offsupport.engine.state import model_sha256, saved_set_up
from offsupport.nn.inspect import find_head

# Hyper-parameters for narrow networks on CIFAR-10, where those published for wide ones are not the best.
#
# They were chosen by ``offsupport reproduce tuning --scale small``: on the zoo's ResNet-18 of width 16 and the four
# extra corruptions, four candidates for each method. A method that is not here keeps its published ones, and under
# the sparsity constraint those of the method it constrains.


PUBLISHED, NARROW = "cifar10", "cifar10-small"
CHOSEN: dict[str, dict[str, Any]] = {
    "tent": {"lr": 3e-3},
    "shot": {"lr": 1e-2},
    "eata": {"lr": 3e-3},
    "sar": {"lr": 0.1},
    "tttpp": {"lr": 3.3e-3},
    "tesla": {"lr": 3e-3},
    "tesla-s": {"lr": 3e-3},
    "tesla+sc": {},
    "tesla-s+sc": {},
}
"""What the preset for narrow networks changes in the published one, by method."""


def with_narrow(name: str, presets: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the presets of a method with the one for narrow networks, where there is one for CIFAR-10."""
    if PUBLISHED not in presets:
        return dict(presets)
    plain = name.partition("+sc")[0]
    return {**presets, NARROW: presets[PUBLISHED] | CHOSEN.get(name, CHOSEN.get(plain, {}))}


A = TypeVar("A", bound=type[Adapter])

SPARSE = "+sc"
"""Behind the name of a method that takes steps: the method under the sparsity constraint."""


class Methods(Registry[type[Adapter]]):
    """Methods by name; ``tent+sc`` is made from ``tent`` when asked for, and not listed."""

    def known(self) -> list[str]:
        """Return the names of all methods, also of those made when asked for."""
        steps = [name for name, cls in self._items.items() if issubclass(cls.config_class, StepConfig)]
        return [*self, *(name + SPARSE for name in steps)]

    def __getitem__(self, name: str) -> type[Adapter]:
        if name in self or not name.endswith(SPARSE):
            return super().__getitem__(name)
        return self.constrain(super().__getitem__(self.plain(name)))

    @staticmethod
    def constrain(method: type[Adapter]) -> type[Adapter]:
        """Return a method under the sparsity constraint; the module of the constraint puts its own in this place."""
        raise NotImplementedError(f"the sparsity constraint of {method.info.name} is not loaded")

    def plain(self, name: str) -> str:
        """Return the name of the method without the constraint; what it keeps of source data serves both."""
        return name if name in self else name.removesuffix(SPARSE)


METHODS = Methods("method")


def register(info: MethodInfo, config: type[MethodConfig]) -> Callable[[A], A]:
    """Make an :class:`Adapter` known under ``info.name``, with ``config`` as its hyper-parameters."""

    def store(cls: A) -> A:
        cls.info = info
        cls.config_class = config
        cls.presets = with_narrow(info.name, cls.presets)
        METHODS.register(info.name)(cls)
        return cls

    return store


# The one-line entry points: adapt a model, list the methods, summarise source data.


_BESIDE = ("preset", "source", *(field.name for field in dataclasses.fields(Options)))
"""What adapt() takes beside hyper-parameters."""


def adapt(
    model: nn.Module,
    method: str,
    *,
    preset: str | None = None,
    source: SourceStats | None = None,
    logits: Callable[[Any], Tensor] | None = None,
    head: str | bool | None = None,
    window: int = 0,
    collapse: CollapseAction = "warn",
    seed: int = 0,
    inplace: bool = False,
    **hyper: Any,
) -> Adapter:
    """Wrap a trained classifier so that it adapts to the data it is given as it predicts.

    Args:
        model: Any ``nn.Module`` from images in [0, 1] to logits (N, K) or dense logits (N, K, H, W). It is not touched.
        method: One of :func:`list_methods`; ``+sc`` behind one that takes steps adds the sparsity constraint.
        preset: ``cifar10``, ``cifar100`` or ``imagenet``: the published hyper-parameters for such data;
            ``cifar10-small``: those we chose for narrow networks on CIFAR-10.
        source: Source statistics, for the methods that use them; see :func:`source_stats`.
        logits: Where the logits are in what the model returns, if it returns an object.
        head: Name of the classifier layer; by default the last ``nn.Linear``. With ``+sc``, True or False stands for
            the hyper-parameter ``train_head``.
        window: Fill smaller batches up to this size with past images; a step is taken once per window of new images.
        collapse: What to do when nearly all predictions fall into one class: ``warn``, ``reset`` or ``off``.
        seed: Seed of the method's own random draws.
        inplace: Adapt the given model itself instead of a copy; its batch-norm layers keep the statistics policy, and
            with ``+sc`` its layers their updates.
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
    given = {"logits": logits, "head": head, "window": window, "collapse": collapse, "seed": seed, "inplace": inplace}
    options = build(Options, given, "adapt()")
    check_model(model, cls.info)
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
        **options: Options of :func:`adapt` that are not part of the file: ``logits``, ``source``, ``inplace``.
    """
    adapter = adapt(model, **saved_set_up(path), **options)
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
    transform: Transform = "none",
    provenance: Mapping[str, Any] | None = None,
    **options: Any,
) -> SourceStats:
    """Compute what ``method`` must know of the source data, from images alone (labels are ignored), in one pass.

    Args:
        model: The model that will be adapted.
        loader: Batches of source images, or of tuples that start with them.
        method: The method the statistics are for.
        transform: ``crop`` takes a random crop (20 to 100 % of the area) of each image and flips every other one, as
            published statistics of TTAC and TTT++ do.
        provenance: What the images are, kept with the statistics; streams of :mod:`offsupport.data` say it themselves.
        **options: What :func:`adapt` will be given: options about the model (``logits``, ``head``), hyper-parameters;
            what is about the stream changes nothing here.
    """
    hyper, head = _split_head(options, options.pop("head", None))
    given = {"head": head, "logits": hyper.pop("logits", None)}
    hyper = {name: value for name, value in hyper.items() if name not in _BESIDE}  # of the stream, not of the source
    config = build(METHODS[method].config_class, hyper, f"method {method!r}")
    method = METHODS.plain(method)
    cls = METHODS[method]
    adapter = cls(model, config, build(Options, given, "source_stats()"))
    images = SourceImages(loader, transform)
    tensors = _collect(adapter, images)
    if not images.samples:
        raise InputError("The loader of source images is empty.", "Give it at least one batch.")
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise InputError("The source statistics are not finite.", "Give more source images, in larger batches.")
    known = {**images.provenance(), **(provenance or {})}
    return SourceStats(method, model_sha256(model), images.samples, tensors, known, _features_of(cls.info, model, head))


def _collect(adapter: Adapter, images: Iterable[Tensor]) -> dict[str, Tensor]:
    """Let a method collect its statistics under the gradient mode and the batch-norm statistics of a step."""
    with torch.inference_mode(False), torch.enable_grad(), adapter.policy.using(adapter.statistics):
        try:
            return adapter.collect(check_input(adapter.brought(x), adapter.model) for x in images)
        except StepRejected:
            raise InputError(
                "The source images give non-finite losses or gradients.", "Remove images with NaN or infinity."
            ) from None


def _split_head(hyper: dict[str, Any], head: str | bool | None) -> tuple[dict[str, Any], str | None]:
    """Take ``head=True`` or False for the hyper-parameter of the sparsity constraint that it stands for."""
    return ({"train_head": head, **hyper}, None) if isinstance(head, bool) else (hyper, head)


def _features_of(info: MethodInfo, model: nn.Module, head: str | None) -> str:
    """Return the name of the layer whose inputs a method aligns; none where it aligns nothing."""
    return find_head(model, head)[0] if info.source == "required" else ""


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
    if info.source == "none":
        raise SourceStatsError(f"The method {info.name!r} uses no source statistics.", "Leave source out.")
    source.require(METHODS.plain(info.name), model_sha256(model), _features_of(info, model, head))
