"""A folder of images in, predictions out: adapt a model to the folder, batch by batch, and say what happened."""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    Spelling,
    as_keyword,
)
from offsupport.core.escaping import escape, escape_cell
from offsupport.core.files import require_folder, sha256_bytes, sha256_file, write_json, write_text
from offsupport.core.ownership import foreign, is_own_json, read_head, require_own
from offsupport.core.progress import progress
from offsupport.data.folders import match_classes, sub_folders
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
from offsupport.functional import wilson
from offsupport.methods import METHODS, adapt, source_stats
from offsupport.monitor import Estimate, Interval
from offsupport.serving.image_files import ImageFiles, first_frames, shuffle_files, square, walk_images
from offsupport.serving.source_model import SourceModel, as_source_model, logits_of

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
        source_label: Number of the class that the model gives it without adapting.
        source_name: Its name.
        source_confidence: Probability of that class, by the model as it came.
        top: The likeliest classes of the adapted model, by name or else by number, with their probabilities.
        truth: Number of the class whose folder it lies in; None where folders are no classes.
    """

    file: str
    label: int
    name: str
    confidence: float
    guard: str
    source_label: int | None = None
    source_name: str = ""
    source_confidence: float | None = None
    top: Sequence[tuple[str, float]] = ()
    truth: int | None = None

    @property
    def changed(self) -> bool:
        """Whether adapting changed the class."""
        return self.source_label is not None and self.source_label != self.label

    def values(self) -> dict[str, Any]:
        """Return the prediction as plain values, as in the file: ``label`` is called ``class``, names are escaped."""
        shown = {**asdict(self), **{name: escape(vars(self)[name]) for name in ("file", "name", "source_name")}}
        shown["top"] = [{"class": escape(name), "confidence": p} for name, p in self.top]
        return {_COLUMNS.get(name, name): value for name, value in shown.items()}


_COLUMNS = {"label": "class", "source_label": "source_class"}
"""What fields are called in the file, where that is not their name."""


@dataclass(frozen=True)
class FolderAccuracy:
    """How often both models are right, by the class folders that the images lie in.

    Args:
        source: Of the model as it came, with the 95 % Wilson interval.
        adapted: Of the adapted one.
        n: How many images that is of.
    """

    source: Interval
    adapted: Interval
    n: int


@dataclass(frozen=True, kw_only=True)
class FolderResult:
    """The predictions of a folder, and all that is known about them.

    Args:
        model: Name of the source model.
        weights_sha256: Hash of its weights.
        method: How it was adapted.
        config: The hyper-parameters of the method.
        batch_size: Images per batch.
        seed: Of the method's draws, of the shuffled order and of the choice of source images.
        size: Side of the square that every image was cut to; None for images as they are.
        shuffle: Whether the images came in an order drawn from the seed.
        episodic: Whether every batch began with the source model.
        predictions: One for each image that could be read, sorted by file.
        skipped: The files that could not be read, and why.
        animated: The files that have more frames than the first, which was read.
        resize: What the shorter side was brought to before; None for ``size``.
        events: How often the guard intervened, by kind.
        passes: Forward and backward passes.
        notes: What a person should know, as sentences.
        diagnosis: How the images differ from the source; None where that cannot be said, and then a note says why.
        accuracy: Of both models, where the folders of the images are classes; else None.
        estimate: What can be said of both models without labels, about the last images in the order they were visited.
        folder: Where the images are.
    """

    model: str
    weights_sha256: str
    method: str
    config: Mapping[str, Any]
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
    resize: int | None = None
    accuracy: FolderAccuracy | None = None
    estimate: Estimate | None = None
    folder: Path = Path()

    @property
    def changed(self) -> list[Prediction]:
        """The predictions that adapting changed, sorted by file."""
        return [row for row in self.predictions if row.changed]

    def __str__(self) -> str:
        """Return what it came to in a few lines; the predictions are in ``predictions``."""
        lines = [f"{self.method}: {len(self.predictions)} images, {len(self.changed)} predictions changed"]
        if self.accuracy is not None:
            lines += [f"accuracy by the class folders: {self.accuracy.source} alone, {self.accuracy.adapted} adapted"]
        if self.estimate is not None:
            lines += [f"without labels: {self.estimate}"]
        events = ", ".join(f"{name} {count}" for name, count in self.events.items() if count)
        return "\n".join([*lines, f"guard: {events or 'nothing to do'}", *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the single predictions as plain JSON values."""
        about = {field.name: getattr(self, field.name) for field in fields(self)}
        about["predictions"] = len(self.predictions)
        about["changed"] = len(self.changed)
        about["notes"] = list(self.notes)
        about["folder"] = escape(self.folder)
        about["accuracy"] = None if self.accuracy is None else asdict(self.accuracy)
        about["estimate"] = None if self.estimate is None else asdict(self.estimate)
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
        top = "; ".join(f"{name} {p:.3f}" for name, p in row.top)
        source = [] if row.source_confidence is None else [f"{row.source_confidence:.6f}"]
        lines.writerow(
            [
                *(escape_cell(row.file), row.label, escape_cell(row.name), f"{row.confidence:.6f}", row.guard),
                *(_number(row.source_label), escape_cell(row.source_name), *(source or [""])),
                *(escape_cell(top), _number(row.truth)),
            ]
        )
    return buffer.getvalue()


def _number(label: int | None) -> str:
    return "" if label is None else str(label)


_HEADER = ",".join(_COLUMNS.get(field.name, field.name) for field in fields(Prediction)) + "\n"


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
    resize: int | None = None,
    classes: Sequence[str] | Path | str | None = None,
    shuffle: bool | None = None,
    episodic: bool = False,
    seed: int = 0,
    top: int = 3,
    spell: Spelling = as_keyword,
    **hyper: Any,
) -> FolderResult:
    """Adapt a model to a folder of images and predict them; images that cannot be read are named and left out.

    Class folders are recognised as labels where they have the names of the model's classes, or their numbers, or where
    there is one for each class of a model that names none (sorted, as is usual): then accuracies are measured as well.

    Args:
        model: A classifier of images in [0, 1], or a name that :func:`offsupport.load_model` knows. It is not touched.
        images: The folder; folders inside it count.
        method: How to adapt, as in :func:`offsupport.adapt`.
        out: Where to write the predictions (.csv); what else is known goes beside them. None writes nothing. A file
            that offsupport did not write is never replaced.
        overwrite: Replace predictions of ours in ``out`` that were changed since.
        batch_size: Images per batch: what the model adapts to at a time.
        preset: Hyper-parameters, as in :func:`offsupport.adapt`.
        source: Folder of images as the model was trained on: for methods that need to know them, for the diagnosis, and
            for names of classes if there is a folder for each. In class folders they calibrate the estimate of
            accuracy, at best with images that were kept from training.
        size: Bring the shorter side of every image to this length and cut out the centred square. A model of ImageNet
            takes photographs of any size: 256 and 224 unless told otherwise.
        resize: Bring the shorter side to this length instead, before the square of ``size`` is cut out.
        classes: Names of the classes, or a text file with one per line.
        shuffle: Visit the images in an order drawn from the seed, or else sorted. None: in a drawn order where they
            lie in several folders, so that the model does not meet one class after the other.
        episodic: Start anew from the source model for each batch.
        seed: Of the method's draws, of the shuffled order and of the choice of source images.
        top: So many of the likeliest classes are written for each image.
        spell: How remedies write arguments; the command line writes its options.
        **hyper: Hyper-parameters of the method and options of :func:`offsupport.adapt`.
    """
    given, images = as_source_model(model), Path(images)
    source = None if source is None else Path(source)
    _check_request(method, source, hyper, spell)
    _check_out(out, overwrite, spell)
    names = class_names(classes, source, given)
    size, resize = square(size, resize, given.cut, spell)
    drawn = [] if out is None else _Outputs.at(Path(out)).pictures  # an earlier run may have put them among the images
    files = walk_images(images, drawn)
    order = _Order.of(files, shuffle, seed)
    targets = ImageFiles(images, order.files, size, given.side, spell, resize)
    reference = None
    if source is not None:
        some = shuffle_files(walk_images(source, drawn), seed, "source")[:SOURCE_IMAGES]
        reference = ImageFiles(source, some, size, given.side, spell, resize)
    first = targets.first(1)  # the wrong size, or nothing to read, is said before a model is loaded or even trained
    network = given.load()
    k = _logits(adapt(network, "source", logits=hyper.get("logits")), first, spell).shape[1]
    truth = class_folders(files, names, k)
    labels = _Labels(names.fit(k, truth), truth, top)
    # Warnings are part of the answer: whoever reads the file later did not see the terminal.
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        clean = None if reference is None else labelled_batches(reference, names, k, batch_size)
        stats = _source_stats(network, clean, source, method, preset=preset, **hyper)
        adapter = adapt(network, method, preset=preset, source=stats, seed=seed, **hyper)
        seen = _predict(adapter, targets, batch_size, episodic, labels, spell)
    diagnosis, why_not = _diagnose(network, given, targets, reference, spell)
    notes = [*_left_out(targets, reference), *order.notes(seed, episodic or _treats_images_alone(adapter), spell)]
    if source is None and adapter.info.source == "optional":
        lacking = _NO_CLEAN_IMAGES.format(spell("source", "DIR"), method)
        # It is that folder that the diagnosis lacks, too, unless images came with the model.
        why_not = [*why_not, lacking] if given.brings_images else [f"{lacking} {_NO_REFERENCE}"]
    notes += [*dict.fromkeys(str(warning.message) for warning in said), *why_not]
    result = FolderResult(
        model=given.name, weights_sha256=model_sha256(network), method=method, config=asdict(adapter.config),
        batch_size=batch_size, seed=seed, size=size, shuffle=order.shuffled, episodic=episodic, predictions=seen.rows,
        skipped=targets.skipped, events=seen.events, passes=seen.passes, notes=notes, diagnosis=diagnosis,
        animated=sorted(targets.animated), resize=resize, accuracy=_accuracy(seen.rows), estimate=seen.estimate,
        folder=images,
    )  # fmt: skip
    if out is not None:
        result.save(out, overwrite=overwrite)
    return result


@dataclass(frozen=True)
class _Order:
    """The order in which images are visited.

    Args:
        files: The files in it.
        shuffled: Whether it was drawn from the seed.
        asked: Whether somebody said so, or said otherwise.
        several: Whether the images lie in several folders.
    """

    files: Sequence[str]
    shuffled: bool
    asked: bool
    several: bool

    @staticmethod
    def of(files: Sequence[str], shuffle: bool | None, seed: int) -> _Order:
        """Return the order that was asked for, or else one in which folders do not follow each other."""
        several = len({_folder_of(file) for file in files}) > 1
        shuffled = several if shuffle is None else shuffle
        order = shuffle_files(files, seed, "images") if shuffled else files
        return _Order(order, shuffled, shuffle is not None, several)

    def notes(self, seed: int, harmless: bool, spell: Spelling) -> list[str]:
        """Return what a person should know of it; ``harmless`` is an order to a method that treats images alone."""
        if self.several and self.shuffled and not self.asked:
            return [_MIXED.format(seed, spell("shuffle", "False"))]
        misled = self.several and not (self.shuffled or harmless)
        return [_ORDER_MISLEADS.format(spell("shuffle", ""))] if misled else []


_MIXED = (
    "The images lie in several folders and were visited in an order drawn from seed {}, not one folder after the "
    "other; {} visits them as they lie."
)
_NO_CLEAN_IMAGES = (
    "No clean images were given: a few hundred of those the model was made for ({}) usually make {} right more often, "
    "and in a folder for each class they make an estimate of accuracy possible."
)
_NO_REFERENCE = "They also tell how these images differ from those: without them there is no diagnosis."
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
class ClassNames:
    """Names of the classes, and the file or argument they were given in; those of source folders were not given.

    Args:
        names: One for each class.
        where: Where they were given, if anywhere.
        also: For each class all the names it goes by, where it has several.
    """

    names: Sequence[str]
    where: str = ""
    also: Sequence[Sequence[str]] = ()

    def fit(self, classes: int, folders: Mapping[str, int] | None = None) -> Sequence[str]:
        """Return a name for each class of a model; where nothing else names them, their folders do.

        Args:
            classes: How many the model has.
            folders: The class of each folder of images, where they are classes.
        """
        if len(self.names) == classes:
            return self.names
        if self.where:
            raise ConfigError(
                f"{self.where} has {len(self.names)} names, and the model {classes} classes.",
                "Write one name per line.",
            )
        named = {number: folder for folder, number in (folders or {}).items()}
        return [named[number] for number in range(classes)] if len(named) == classes else [""] * classes


def class_folders(files: Sequence[str], names: ClassNames, classes: int) -> dict[str, int]:
    """Return the class of each folder where all images lie in class folders; nothing where they do not.

    Args:
        files: Paths of the images, relative to the folder that holds the folders.
        names: What the classes are called, where that is known.
        classes: How many the model has.
    """
    folders = sorted({file.partition("/")[0] for file in files})
    if not all("/" in file for file in files):
        return {}
    if sorted(folders) == sorted(map(str, range(classes))):
        return {folder: int(folder) for folder in folders}
    if len(names.names) == classes:
        try:
            return dict(zip(folders, match_classes(folders, names.also or [[n] for n in names.names]), strict=True))
        except InputError:  # folders of something else: days, cameras, shifts
            return {}
    return {folder: number for number, folder in enumerate(folders)} if len(folders) == classes else {}


def class_names(classes: Sequence[str] | Path | str | None, source: Path | None, model: SourceModel) -> ClassNames:
    """Return names that were given, those the model knows, or those of the class folders of source images."""
    if classes is None and model.class_names:
        return ClassNames(model.class_names, also=model.class_synonyms)
    if classes is None:
        return ClassNames(sub_folders(source) if source is not None else [])
    if not isinstance(classes, Path | str):
        return ClassNames(classes, "classes")
    path = Path(classes)
    if not path.is_file():
        raise DataMissingError(f"There is no file {path}.", "Give a text file with a name per line.")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file in UTF-8 ({error}).", "Write one class name per line.") from error
    return ClassNames([line.strip() for line in lines if line.strip()], str(path))


def labelled_batches(
    images: ImageFiles, names: ClassNames, classes: int, batch_size: int
) -> Iterator[tuple[Tensor] | tuple[Tensor, Tensor]]:
    """Yield batches of clean images, with their labels where they lie in class folders.

    Args:
        images: The images.
        names: What the classes are called, where that is known.
        classes: How many the model has.
        batch_size: Images per batch.
    """
    truth = class_folders(images.files, names, classes)
    with progress("Clean images", len(images.files)) as advance:
        for files, x in images.batches(batch_size):
            yield (x, torch.tensor([truth[file.partition("/")[0]] for file in files])) if truth else (x,)
            advance(len(files))


def _source_stats(
    network: nn.Module, clean: Iterable[Sequence[Any]] | None, folder: Path | None, method: str, **options: Any
) -> SourceStats | None:
    unused = METHODS[method].info.source == "none" and options.get("statistics") != "minimal"
    if clean is None or (unused and not options.get("monitor")):
        return None
    return source_stats(network, clean, method, provenance={"folder": str(folder)}, **options)


@dataclass(frozen=True)
class _Labels:
    """What is written beside a number of a class.

    Args:
        names: A name for each class; empty where it has none.
        folders: The class of each folder, where the folders are classes.
        top: How many of the likeliest classes are named.
    """

    names: Sequence[str]
    folders: Mapping[str, int]
    top: int

    def rows(self, files: Sequence[str], adapted: Tensor, source: Tensor, guard: str) -> Iterator[Prediction]:
        """Yield what both models say of the images of a batch, by their logits."""
        likeliest = adapted.softmax(1).topk(min(max(self.top, 1), adapted.shape[1]), 1)
        before = source.softmax(1).max(1)
        parts = (likeliest.values, likeliest.indices, before.values, before.indices)
        for file, values, labels, p, k in zip(files, *(part.tolist() for part in parts), strict=True):
            best = [(self.names[label] or str(label), value) for label, value in zip(labels, values, strict=True)]
            truth = self.folders.get(file.partition("/")[0])
            name = self.names[labels[0]]
            yield Prediction(file, labels[0], name, values[0], guard, k, self.names[k], p, best[: self.top], truth)


@dataclass
class _Seen:
    """What came of a folder: predictions sorted by file, events, passes, and what the last answers say."""

    rows: list[Prediction]
    events: dict[str, int]
    passes: dict[str, int]
    estimate: Estimate


def _predict(
    adapter: Adapter, targets: ImageFiles, batch_size: int, episodic: bool, labels: _Labels, spell: Spelling
) -> _Seen:
    """Predict every image that can be read, by the adapted model and by the source model."""
    found: list[Prediction] = []
    # Counted batch by batch, because reset() sets the adapter's own counts back.
    events, passes = dict.fromkeys(adapter.events, 0), dict.fromkeys(adapter.passes, 0)
    answers = adapter.answers.initial()
    with progress("Adapting", len(targets.files)) as advance:
        for files, x in targets.batches(batch_size):
            if episodic:
                adapter.reset()
            before = Counter(adapter.events), Counter(adapter.passes)
            logits = _logits(adapter, x, spell)
            new = Counter(adapter.events) - before[0]
            _add(events, new)
            _add(passes, Counter(adapter.passes) - before[1])
            source, means, widths = adapter.source_view(x)  # one more pass, which is not the method's
            answers = adapter.answers.add(answers, x, logits, source, means, widths)
            found += labels.rows(files, logits, source.float(), " ".join(new))
            advance(len(files))
    return _Seen(sorted(found, key=lambda row: row.file), events, passes, adapter.answers.estimate(answers))


def _accuracy(rows: Sequence[Prediction]) -> FolderAccuracy | None:
    known = [row for row in rows if row.truth is not None]
    if not known:
        return None
    n = len(known)
    right = (sum(row.source_label == row.truth for row in known), sum(row.label == row.truth for row in known))
    source, adapted = (Interval(count / n, *wilson(count, n)) for count in right)
    return FolderAccuracy(source, adapted, n)


def _add(total: dict[str, int], new: Mapping[str, int]) -> None:
    for name, count in new.items():
        total[name] += count


def _logits(adapter: Adapter, x: Tensor, spell: Spelling) -> Tensor:
    """Adapt to a batch; a model whose answers a table cannot hold is refused."""
    logits = logits_of(adapter, x, spell)
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
        some = ImageFiles(targets.folder, [readable[row] for row in rows], targets.size, resize=targets.resize)
        return diagnose_model(network, usual, some.first(MOST_TARGETS)), []
    except OffsupportError as error:
        # The predictions stand without it.
        return None, [f"No diagnosis: {error.message} {error.remedy}"]


def _left_out(targets: ImageFiles, reference: ImageFiles | None) -> list[str]:
    skipped = {**targets.skipped, **(reference.skipped if reference is not None else {})}
    notes = [f"Left out: {why}" for why in skipped.values()]
    return [*notes, first_frames(targets.animated)] if targets.animated else notes


def _folder_of(file: str) -> str:
    return file.rpartition("/")[0]


def _treats_images_alone(adapter: Adapter) -> bool:
    """Tell whether the order of the images does no harm to a method."""
    return adapter.any_order or adapter.config.independent
