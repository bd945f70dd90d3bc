"""A folder of images in, predictions out: adapt a model to the folder, batch by batch, and say what happened."""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offsupport.core.errors import (
    ConfigError,
    DataMissingError,
    InputError,
    ModelError,
    OffsupportError,
    ShapeError,
    Spelling,
    as_keyword,
)
from offsupport.core.escaping import escape, escape_cell
from offsupport.core.files import require_folder, sha256_bytes, sha256_file, write_json, write_text
from offsupport.core.ownership import foreign, is_own_json, read_head, require_own
from offsupport.core.progress import progress
from offsupport.data.folders import sub_folders
from offsupport.diagnosis.network import (
    FIGURE_MARKS,
    MOST_SOURCE,
    MOST_TARGETS,
    ModelDiagnosis,
    diagnose_model,
    figure_files,
    save_figure,
)
from offsupport.engine.adapter import Adapter
from offsupport.engine.source_stats import SourceStats
from offsupport.engine.state import model_sha256
from offsupport.methods import METHODS, adapt, source_stats
from offsupport.serving.image_files import ImageFiles, first_frames, shuffle_files, walk_images
from offsupport.serving.source_model import SourceModel, as_source_model

SOURCE_IMAGES = 2000
"""Source statistics are taken from so many images at most, as in the bench."""
_ABOUT = ("weights_sha256", "events", "passes")
"""What the file about predictions says in every version: by it, it is known as ours."""


@dataclass(frozen=True)
class Prediction:
    """What the adapted model says of one image.

    Args:
        file: Path relative to the folder of images.
        label: Number of the class.
        name: Its name, where names are known.
        confidence: Probability of the class.
        guard: Interventions of the guard in the batch of this image, separated by spaces.
    """

    file: str
    label: int
    name: str
    confidence: float
    guard: str

    def values(self) -> dict[str, Any]:
        """Return the prediction as plain values, as in the file: ``label`` is called ``class``, names are escaped."""
        shown = {**asdict(self), "file": escape(self.file), "name": escape(self.name)}
        return {"class" if name == "label" else name: value for name, value in shown.items()}


@dataclass(frozen=True, kw_only=True)
class FolderResult:
    """The predictions of a folder, and all that is known about them.

    Args:
        model: Name of the source model.
        weights_sha256: Hash of its weights.
        method: How it was adapted.
        config: The hyper-parameters of the method, as text.
        batch_size: Images per batch.
        seed: Of the method's draws, of the shuffled order and of the choice of source images.
        size: What the shorter side of every image was brought to; None for images as they are.
        shuffle: Whether the images came in an order drawn from the seed.
        episodic: Whether every batch began with the source model.
        predictions: One for each image that could be read, sorted by file.
        skipped: The files that could not be read, and why.
        animated: The files that have more frames than the first, which was read.
        events: How often the guard intervened, by kind.
        passes: Forward and backward passes.
        notes: What a person should know, as sentences.
        diagnosis: How the images differ from the source; None where that cannot be said, and then a note says why.
    """

    model: str
    weights_sha256: str
    method: str
    config: str
    batch_size: int
    seed: int
    size: int | None
    shuffle: bool
    episodic: bool
    predictions: Sequence[Prediction]
    skipped: dict[str, str]
    events: dict[str, int]
    passes: dict[str, int]
    notes: Sequence[str]
    diagnosis: ModelDiagnosis | None
    animated: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the single predictions as plain JSON values."""
        about = {field.name: getattr(self, field.name) for field in fields(self)}
        about["predictions"] = len(self.predictions)
        about["notes"] = list(self.notes)
        about["skipped"] = {escape(file): why for file, why in self.skipped.items()}
        about["animated"] = [escape(file) for file in self.animated]
        if self.diagnosis is not None:  # without its maps of patches, which are in the picture
            found = self.diagnosis.to_dict()
            about["diagnosis"] = {name: value for name, value in found.items() if name != "patch_quantile"}
        return {"images" if name == "predictions" else name: value for name, value in about.items()}

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Write the predictions as CSV; beside them all else as .json, and the picture of the diagnosis if any.

        Args:
            path: Where the predictions go. What offsupport did not write is never replaced.
            overwrite: Replace predictions of ours that were changed since.
        """
        files = _Outputs.at(Path(path))
        files.check(overwrite)
        text = csv_text(self.predictions)
        write_text(files.predictions, text)
        write_json(files.about, {**self.to_dict(), _SHA256: sha256_bytes(text.encode())})
        if self.diagnosis is not None:
            save_figure(self.diagnosis.plot(), files.figure)


_SHA256 = "predictions_sha256"
_FIRST_LINE = b"file,class,"
"""How predictions begin in every version."""


@dataclass(frozen=True)
class _Outputs:
    """The files that predictions are written to, with names that neither ``predictions`` nor an image beside it has.

    Args:
        predictions: The CSV file.
        about: What else is known.
        figure: The picture of the diagnosis, without .png and .svg.
    """

    predictions: Path
    about: Path
    figure: Path

    @staticmethod
    def at(path: Path) -> _Outputs:
        stem = path.name.removesuffix(".csv")
        return _Outputs(path, path.with_name(f"{stem}.json"), path.with_name(f"{stem}.diagnosis"))

    @property
    def pictures(self) -> list[Path]:
        return figure_files(self.figure)

    def check(self, overwrite: bool, spell: Spelling = as_keyword) -> None:
        """Refuse to replace what is not ours, or what is and was changed since, unless that was asked for."""
        for picture in self.pictures:
            require_own(picture, *FIGURE_MARKS)
        if os.path.lexists(self.about) and not is_own_json(self.about, _about_predictions):
            raise foreign(self.about, "Move it, or choose another name.")
        if not os.path.lexists(self.predictions):
            return
        if not read_head(self.predictions).startswith(_FIRST_LINE):
            raise foreign(self.predictions, "Move it, or choose another name.")
        if not overwrite and not is_own_json(self.about, self._vouches):
            raise ConfigError(
                f"{escape(self.predictions)} was changed since offsupport wrote it.",
                f"Choose another name, or replace it: {spell('overwrite', '')}.",
            )

    def _vouches(self, about: Mapping[str, object]) -> bool:
        """Tell whether the predictions are as they were written; 0.2 did not note that."""
        return about.get(_SHA256) in (None, sha256_file(self.predictions))


def _about_predictions(about: Mapping[str, object]) -> bool:
    return all(key in about for key in _ABOUT)


def about_file(path: Path) -> Path:
    """Return the file beside the predictions at ``path`` that has all else."""
    return _Outputs.at(path).about


def csv_text(predictions: Sequence[Prediction]) -> str:
    """Return the CSV file: a header, then a line per image, sorted by file; the same for the same predictions.

    A text that begins like a formula gets an apostrophe in front, which spreadsheets show as the text it is.
    """
    buffer = io.StringIO()
    lines = csv.writer(buffer, lineterminator="\n")
    buffer.write(_HEADER)
    for row in sorted(predictions, key=lambda row: row.file):
        lines.writerow([escape_cell(row.file), row.label, escape_cell(row.name), f"{row.confidence:.6f}", row.guard])
    return buffer.getvalue()


_HEADER = ",".join("class" if field.name == "label" else field.name for field in fields(Prediction)) + "\n"


def adapt_folder(
    model: nn.Module | str | SourceModel,
    images: Path | str,
    method: str = "auto",
    *,
    out: Path | str | None = None,
    overwrite: bool = False,
    batch_size: int = 64,
    preset: str | None = None,
    source: Path | str | None = None,
    size: int | None = None,
    classes: Sequence[str] | Path | str | None = None,
    shuffle: bool = False,
    episodic: bool = False,
    seed: int = 0,
    spell: Spelling = as_keyword,
    **hyper: Any,
) -> FolderResult:
    """Adapt a model to a folder of images and predict them; images that cannot be read are named and left out.

    Args:
        model: A classifier of images in [0, 1], or a name that :func:`offsupport.load_model` knows. It is not touched.
        images: The folder; folders inside it count.
        method: How to adapt, as in :func:`offsupport.adapt`.
        out: Where to write the predictions (.csv); what else is known goes beside them. None writes nothing. A file
            that offsupport did not write is never replaced.
        overwrite: Replace predictions of ours in ``out`` that were changed since.
        batch_size: Images per batch: what the model adapts to at a time.
        preset: Hyper-parameters, as in :func:`offsupport.adapt`.
        source: Folder of images the model was trained on: for methods that need to know them, for the diagnosis, and
            for names of classes if there is a folder for each.
        size: Bring the shorter side of every image to this length and cut out the centred square.
        classes: Names of the classes, or a text file with one per line.
        shuffle: Visit the images in an order drawn from the seed, not sorted.
        episodic: Start anew from the source model for each batch.
        seed: Of the method's draws, of the shuffled order and of the choice of source images.
        spell: How remedies write arguments; the command line writes its options.
        **hyper: Hyper-parameters of the method and options of :func:`offsupport.adapt`.
    """
    given, images = as_source_model(model), Path(images)
    source = None if source is None else Path(source)
    _check_request(method, source, hyper, spell)
    _check_out(out, overwrite, spell)
    names = _class_names(classes, source)
    drawn = [] if out is None else _Outputs.at(Path(out)).pictures  # an earlier run may have put them among the images
    files = walk_images(images, drawn)
    targets = ImageFiles(images, shuffle_files(files, seed, "images") if shuffle else files, size, given.side, spell)
    reference = None
    if source is not None:
        some = shuffle_files(walk_images(source, drawn), seed, "source")[:SOURCE_IMAGES]
        reference = ImageFiles(source, some, size, given.side, spell)
    targets.first(1)  # the wrong size, or nothing to read, is said before a model is loaded or even trained
    network = given.load()
    # Warnings are part of the answer: whoever reads the file later did not see the terminal.
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        stats = _source_stats(network, reference, method, batch_size, preset=preset, **hyper)
        adapter = adapt(network, method, preset=preset, source=stats, seed=seed, **hyper)
        rows, events, passes = _predict(adapter, targets, batch_size, episodic, names, spell)
    diagnosis, why_not = _diagnose(network, given, targets, reference, spell)
    notes = _left_out(targets, reference)
    if targets.animated:
        notes.append(first_frames(targets.animated))
    if not (shuffle or episodic or _treats_images_alone(adapter)) and len({_folder_of(file) for file in files}) > 1:
        notes.append(_ORDER_MISLEADS.format(spell("shuffle", "")))
    notes += [*dict.fromkeys(str(warning.message) for warning in said), *why_not]
    result = FolderResult(
        model=given.name, weights_sha256=model_sha256(network), method=method, config=str(adapter.config),
        batch_size=batch_size, seed=seed, size=size, shuffle=shuffle, episodic=episodic, predictions=rows,
        skipped=targets.skipped, events=events, passes=passes, notes=notes, diagnosis=diagnosis,
        animated=sorted(targets.animated),
    )  # fmt: skip
    if out is not None:
        result.save(out, overwrite=overwrite)
    return result


_ORDER_MISLEADS = (
    "The images lie in several folders and are visited one folder after the other. If these are classes, the model "
    "adapts to one class at a time, which misleads most methods: {} mixes them."
)


def _check_request(method: str, source: Path | None, hyper: Mapping[str, Any], spell: Spelling) -> None:
    """Refuse what cannot work before anything is loaded."""
    if METHODS[method].info.source == "required" and source is None:
        raise ConfigError(
            f"The method {method!r} needs to know the source data.",
            f"Give a folder of images the model was trained on: {spell('source', 'DIR')}.",
        )
    if hyper.get("inplace"):  # the diagnosis and the hash are of the source weights
        raise ConfigError("adapt_folder() leaves the model as it is.", "Leave inplace out, or use offsupport.adapt.")


def _check_out(out: Path | str | None, overwrite: bool, spell: Spelling) -> None:
    """Refuse a place where nothing can or may be written before the work is done, not after it."""
    if out is None:
        return
    if Path(out).is_dir():
        raise ConfigError(f"{out} is a folder.", f"Name a file: {spell('out', str(Path(out) / 'predictions.csv'))}.")
    _Outputs.at(Path(out)).check(overwrite, spell)
    require_folder(Path(out).parent)


@dataclass(frozen=True)
class _ClassNames:
    """Names of the classes, and the file or argument they were given in; those of source folders were not given."""

    names: Sequence[str]
    where: str = ""

    def fit(self, classes: int) -> Sequence[str]:
        """Return a name for each class of a model; folders that are not one per class name none."""
        if len(self.names) == classes:
            return self.names
        if self.where:
            raise ConfigError(
                f"{self.where} has {len(self.names)} names, and the model {classes} classes.",
                "Write one name per line.",
            )
        return [""] * classes


def _class_names(classes: Sequence[str] | Path | str | None, source: Path | None) -> _ClassNames:
    if classes is None:
        return _ClassNames(sub_folders(source) if source is not None else [])
    if not isinstance(classes, Path | str):
        return _ClassNames(classes, "classes")
    path = Path(classes)
    if not path.is_file():
        raise DataMissingError(f"There is no file {path}.", "Give a text file with a name per line.")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file in UTF-8 ({error}).", "Write one class name per line.") from error
    return _ClassNames([line.strip() for line in lines if line.strip()], str(path))


def _source_stats(
    network: nn.Module, reference: ImageFiles | None, method: str, batch_size: int, **options: Any
) -> SourceStats | None:
    unused = METHODS[method].info.source == "none" and options.get("statistics") != "minimal"
    if unused or reference is None:
        return None
    batches = (x for _, x in reference.batches(batch_size))
    return source_stats(network, batches, method, provenance={"folder": str(reference.folder)}, **options)


def _predict(
    adapter: Adapter, targets: ImageFiles, batch_size: int, episodic: bool, names: _ClassNames, spell: Spelling
) -> tuple[list[Prediction], dict[str, int], dict[str, int]]:
    """Predict every image that can be read; return the predictions sorted by file, events and passes."""
    found: list[Prediction] = []
    # Counted batch by batch, because reset() sets the adapter's own counts back.
    events, passes = dict.fromkeys(adapter.events, 0), dict.fromkeys(adapter.passes, 0)
    with progress("Adapting", len(targets.files)) as advance:
        for files, x in targets.batches(batch_size):
            if episodic:
                adapter.reset()
            before = Counter(adapter.events), Counter(adapter.passes)
            logits = _logits(adapter, x, spell)
            new = Counter(adapter.events) - before[0]
            _add(events, new)
            _add(passes, Counter(adapter.passes) - before[1])
            name, guard = names.fit(logits.shape[1]), " ".join(new)
            confidence, label = logits.softmax(1).max(1)
            rows = zip(files, label.tolist(), confidence.tolist(), strict=True)
            found += [Prediction(file, k, name[k], p, guard) for file, k, p in rows]
            advance(len(files))
    return sorted(found, key=lambda row: row.file), events, passes


def _add(total: dict[str, int], new: Mapping[str, int]) -> None:
    for name, count in new.items():
        total[name] += count


def _logits(adapter: Adapter, x: Tensor, spell: Spelling) -> Tensor:
    """Adapt to a batch; a model that cannot take such images is the user's mistake, with a remedy."""
    try:
        logits: Tensor = adapter(x)
    except (RuntimeError, ValueError, AssertionError, ShapeError) as error:
        why = str(error.__cause__ or error).strip().partition("\n")[0]
        raise InputError(
            f"The model does not take colour images of {x.shape[3]}x{x.shape[2]} ({why}).",
            f"Give the size it was made for: {spell('size', 'N')}.",
        ) from error
    if logits.dim() != 2:
        raise ModelError(
            f"The model predicts every position: its logits have shape {tuple(logits.shape)}.",
            "A CSV file holds one class per image; use offsupport.adapt in Python.",
        )
    return logits.float()


def _diagnose(
    network: nn.Module, model: SourceModel, targets: ImageFiles, reference: ImageFiles | None, spell: Spelling
) -> tuple[ModelDiagnosis | None, list[str]]:
    """Compare images with the source under the unadapted model; where that cannot be, say why and what to give."""
    try:
        usual = model.usual_images(MOST_SOURCE, spell) if reference is None else reference.first(MOST_SOURCE)
        # Evenly over the sorted files, not the first ones: those may all be of one class.
        readable = sorted(set(targets.files) - set(targets.skipped))
        rows = torch.linspace(0, len(readable) - 1, min(len(readable), MOST_TARGETS)).long().tolist()
        some = ImageFiles(targets.folder, [readable[row] for row in rows], targets.size)
        return diagnose_model(network, usual, some.first(MOST_TARGETS)), []
    except OffsupportError as error:
        # The predictions stand without it.
        return None, [f"No diagnosis: {error.message} {error.remedy}"]


def _left_out(targets: ImageFiles, reference: ImageFiles | None) -> list[str]:
    skipped = {**targets.skipped, **(reference.skipped if reference is not None else {})}
    return [f"Left out: {why}" for why in skipped.values()]


def _folder_of(file: str) -> str:
    return file.rpartition("/")[0]


def _treats_images_alone(adapter: Adapter) -> bool:
    """Tell whether the order of the images does no harm to a method."""
    return adapter.any_order or adapter.config.independent
