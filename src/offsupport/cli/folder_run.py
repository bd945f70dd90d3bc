"""The work of ``offsupport adapt``: wrap a model, predict a folder batch by batch, diagnose the shift."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from offsupport.cli.diagnose_model import MOST_SOURCE, MOST_TARGETS, embedded_source
from offsupport.cli.folder_inputs import Request, check_request, class_names, load, source_files, target_files
from offsupport.cli.image_files import ImageFiles
from offsupport.cli.predictions import Prediction
from offsupport.core.errors import ConfigError, DataMissingError, InputError, ModelError, OffsupportError
from offsupport.core.progress import progress
from offsupport.methods.adapter import Adapter
from offsupport.methods.factory import adapt, source_stats
from offsupport.methods.persist import model_sha256
from offsupport.methods.registry import METHODS

if TYPE_CHECKING:
    from offsupport.theory.deep import ModelDiagnosis

Counts = dict[str, dict[str, int]]
SORTED = (
    "The images lie in several folders and are visited one folder after the other. If these are classes, the model "
    "adapts to one class at a time, which misleads most methods: --shuffle mixes them."
)


def run(request: Request) -> tuple[list[Prediction], dict[str, Any], ModelDiagnosis | None]:
    """Return the predictions sorted by file, what is known about them as JSON values, and the diagnosis if any."""
    check_request(request)
    names, given = class_names(request)
    targets, reference = target_files(request), source_files(request)
    _first(targets, 1)  # the wrong size, or nothing to read, is said before a model is loaded or even trained
    torch.set_num_threads(request.threads)
    model = load(request)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        adapter = _adapter(request, model, reference)
        predictions, classes, counts = predict(adapter, targets, request.batch_size, request.episodic)
    if given and len(names) != classes:
        raise ConfigError(
            f"{request.classes} has {len(names)} names, and the model {classes} classes.", "Write one name per line."
        )
    if len(names) == classes:
        predictions = [replace(row, name=names[row.label]) for row in predictions]
    diagnosis, why_not = _diagnose(model, request, targets, reference)
    remarks = _remarks(request, adapter, targets, reference)
    notes = [*remarks, *dict.fromkeys(str(warning.message) for warning in said), *why_not]
    about = {
        "model": request.model, "weights_sha256": model_sha256(model), "method": request.method,
        "config": str(adapter.config), "batch_size": request.batch_size, "seed": request.seed, "size": request.size,
        "shuffle": request.shuffle, "episodic": request.episodic, "images": len(predictions),
        "skipped": targets.skipped, **counts, "notes": notes,
        "diagnosis": None if diagnosis is None else _values(diagnosis),
    }  # fmt: skip
    return predictions, about, diagnosis


def predict(
    adapter: Adapter, targets: ImageFiles, batch_size: int, episodic: bool
) -> tuple[list[Prediction], int, Counts]:
    """Predict every image that can be read; return predictions sorted by file, the number of classes, and counts.

    Args:
        adapter: The adapted model.
        targets: The images.
        batch_size: Images per batch.
        episodic: Whether each batch begins with the source model.
    """
    found: list[Prediction] = []
    counters: dict[str, Counter[str]] = {"events": Counter(), "passes": Counter()}
    classes = 0
    with progress("Adapting", len(targets.files)) as advance:
        for files, x in targets.batches(batch_size):
            if episodic:
                adapter.reset()
            before = {name: Counter(getattr(adapter, name)) for name in counters}
            logits = _logits(adapter, x)
            new = {name: Counter(getattr(adapter, name)) - before[name] for name in counters}
            for name, counter in counters.items():
                counter.update(new[name])
            classes, guard = logits.shape[1], " ".join(new["events"])
            confidence, label = logits.softmax(1).max(1)
            rows = zip(files, label.tolist(), confidence.tolist(), strict=True)
            found += [Prediction(file, k, "", p, guard) for file, k, p in rows]
            advance(len(files))
    counts = {name: {key: counter[key] for key in getattr(adapter, name)} for name, counter in counters.items()}
    return sorted(found, key=lambda row: row.file), classes, counts


def _logits(adapter: Adapter, x: Tensor) -> Tensor:
    """Adapt to a batch; a model that cannot take such images is the user's mistake, with a remedy."""
    try:
        logits: Tensor = adapter(x)
    except (RuntimeError, ValueError, AssertionError) as error:
        why = str(error).strip().partition("\n")[0]
        raise InputError(
            f"The model does not take colour images of {x.shape[3]}x{x.shape[2]} ({why}).",
            "Give the size it was made for: --size N.",
        ) from error
    if logits.dim() != 2:
        raise ModelError(
            f"The model predicts every position: its logits have shape {tuple(logits.shape)}.",
            "A CSV file holds one class per image; use offsupport.adapt in Python.",
        )
    return logits.float()


def _adapter(request: Request, model: nn.Module, reference: ImageFiles | None) -> Adapter:
    stats = None
    if METHODS[request.method].info.source != "none" and reference is not None:
        batches = (x for _, x in reference.batches(request.batch_size))
        about = {"folder": str(reference.folder)}
        stats = source_stats(model, batches, request.method, provenance=about, **request.hyper)
    return adapt(model, request.method, preset=request.preset, source=stats, seed=request.seed, **request.hyper)


def _diagnose(
    model: nn.Module, request: Request, targets: ImageFiles, reference: ImageFiles | None
) -> tuple[ModelDiagnosis | None, list[str]]:
    """Compare images with the source under the unadapted model; where that cannot be, say why and what to give."""
    from offsupport.theory import diagnose_model

    try:
        source = embedded_source(request.model) if reference is None else _first(reference, MOST_SOURCE)
        readable = sorted(set(targets.files) - set(targets.skipped))
        rows = torch.linspace(0, len(readable) - 1, min(len(readable), MOST_TARGETS)).long().tolist()
        some = ImageFiles(request.images, [readable[row] for row in rows], request.size)
        return diagnose_model(model, source, _first(some, MOST_TARGETS)), []
    except OffsupportError as error:
        return None, [f"No diagnosis: {error.message} {error.remedy}"]


def _first(files: ImageFiles, most: int) -> Tensor:
    """Return the first images that can be read."""
    for _, x in files.batches(most):
        return x
    why = next(iter(files.skipped.values()))
    raise DataMissingError(f"None of the {len(files.skipped)} images can be read: {why}", "Replace them.")


def _remarks(request: Request, adapter: Adapter, targets: ImageFiles, reference: ImageFiles | None) -> list[str]:
    """Say what a person should know about the images: which were left out, and an order that misleads."""
    left_out = {**targets.skipped, **(reference.skipped if reference is not None else {})}
    remarks = [f"Left out: {why}" for why in left_out.values()]
    in_folders = {file.rpartition("/")[0] for file in targets.files}
    mixing = request.shuffle or request.episodic
    return remarks if mixing or _alone(adapter) or len(in_folders) < 2 else [*remarks, SORTED]


def _alone(adapter: Adapter) -> bool:
    """Tell whether a method treats every image by itself, so that their order does not matter."""
    return adapter.info.name == "source" or getattr(adapter.config, "independent", False)


def _values(diagnosis: ModelDiagnosis) -> dict[str, Any]:
    """Return the diagnosis without its maps of patches, which are in the picture."""
    return {name: value for name, value in diagnosis.to_dict().items() if name != "patch_quantile"}
