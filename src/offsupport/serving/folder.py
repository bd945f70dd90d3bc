"""What ``offsupport adapt`` is given: a model, images in an order, source images, names of the classes."""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from offsupport import zoo
from offsupport.core.errors import ConfigError, DataMissingError, FileError, InputError, ModelError, OffsupportError
from offsupport.core.progress import progress
from offsupport.core.seeds import derive_seed
from offsupport.data.folders import sub_folders
from offsupport.engine.adapter import Adapter
from offsupport.engine.state import model_sha256
from offsupport.methods import METHODS, adapt, source_stats

if TYPE_CHECKING:
    from torch import Tensor

    from offsupport.data.dataset import Images
    from offsupport.diagnosis.network import ModelDiagnosis


MOST_SOURCE, MOST_TARGETS = 400, 200
"""A diagnosis looks at so many images at most."""
SOURCE_IMAGES = 2000
"""Source statistics are taken from so many images at most, as in the bench."""
OWN_OPTIONS = {"seed": "--seed", "preset": "--preset", "source": "--source"}
"""What belongs to an option of its own and not behind --hyper."""
NEEDS_PYTHON = ("logits", "inplace")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for; the fields are the options of the verb, ``folder`` is where the predictions go."""

    model: str
    images: Path
    method: str
    batch_size: int
    hyper: Mapping[str, Any]
    preset: str | None
    source: Path | None
    size: int | None
    network: str | None
    normalization: str | None
    classes: Path | None
    shuffle: bool
    episodic: bool
    seed: int
    threads: int
    folder: Path


def load(request: Request) -> nn.Module:
    """Return the source model by any of its names."""
    if request.network is None and request.normalization is None:
        from offsupport.studies.models import source_model

        return source_model(request.model, request.folder)
    if not request.model.startswith("file:"):
        raise ConfigError(
            f"{request.model} says itself which network it is.", "Leave --network and --normalization out."
        )
    from offsupport.nn.loading import load_model as load_file

    return load_file(request.model, network=request.network, normalization=request.normalization)


def check_request(request: Request) -> None:
    """Refuse what cannot work before anything is loaded."""
    info = METHODS[request.method].info
    if info.source == "required" and request.source is None:
        raise ConfigError(
            f"The method {request.method!r} needs to know the source data.",
            "Give a folder of images the model was trained on: --source DIR.",
        )
    for name in request.hyper:
        if name in OWN_OPTIONS:
            raise ConfigError(f"--hyper cannot set {name!r}.", f"Use {OWN_OPTIONS[name]}.")
        if name in NEEDS_PYTHON:
            raise ConfigError(f"--hyper cannot set {name!r}.", "Use offsupport.adapt in Python.")


def target_files(request: Request) -> ImageFiles:
    """Return the images to predict, sorted or in an order drawn from the seed."""
    files = find_images(request.images)
    ordered = _shuffled(files, request.seed, "images") if request.shuffle else files
    return ImageFiles(request.images, ordered, request.size, _expected_side(request.model))


def source_files(request: Request) -> ImageFiles | None:
    """Return source images in a random order, at most as many as statistics need."""
    if request.source is None:
        return None
    files = _shuffled(find_images(request.source), request.seed, "source")[:SOURCE_IMAGES]
    return ImageFiles(request.source, files, request.size, _expected_side(request.model))


def class_names(request: Request) -> tuple[list[str], bool]:
    """Return the names of the classes, and whether the user gave them; else they are those of the source's folders."""
    if request.classes is None:
        return (sub_folders(request.source) if request.source is not None else []), False
    path = request.classes
    if not path.is_file():
        raise DataMissingError(f"There is no file {path}.", "Give a text file with a name per line: --classes FILE.")
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()], True
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file in UTF-8 ({error}).", "Write one class name per line.") from error


def _shuffled(files: Sequence[str], seed: int, what: str) -> list[str]:
    generator = torch.Generator().manual_seed(derive_seed("adapt", what, seed))
    return [files[row] for row in torch.randperm(len(files), generator=generator).tolist()]


def _expected_side(model: str) -> int | None:
    """Return the side of the images a model of ours was trained on; None where it is not known."""
    kind, _, name = model.partition(":")
    data = zoo.card(name.partition("@")[0])["recipe"]["dataset"] if kind == "zoo" else kind.partition("-")[0]
    return 32 if data in ("digits", "cifar10", "cifar100") else None


# A folder of image files as a stream of batches: always in the same order, without those that cannot be read.


def find_images(folder: Path) -> list[str]:
    """Return the image files in a folder and all folders below it, as sorted relative paths; hidden ones aside."""
    from offsupport.data.folders import list_images

    if not folder.is_dir():
        raise DataMissingError(f"{folder} is not a folder.", "Give the folder that holds the images.")
    found = list_images(folder, "")
    for place, subs, _ in os.walk(folder):
        subs[:] = [sub for sub in subs if not sub.startswith(".")]
        for sub in subs:
            found += list_images(folder, (Path(place) / sub).relative_to(folder).as_posix())
    if not found:
        raise DataMissingError(f"There are no images in {folder}.", "Give a folder of .png, .jpg or other image files.")
    return sorted(found)


@dataclass
class ImageFiles:
    """Image files that are read when asked for.

    Args:
        folder: Where they are.
        files: Their paths relative to the folder, in the order of the stream.
        size: Bring the shorter side to this length and cut out the centred square; None leaves all as they are.
        expected: The only size (width and height) that is right for the model, where that is known.
        skipped: Filled while reading: files that cannot be read, and why.
    """

    folder: Path
    files: Sequence[str]
    size: int | None = None
    expected: int | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    _shape: tuple[int, ...] | None = None

    def batches(self, batch_size: int) -> Iterator[tuple[list[str], Tensor]]:
        """Yield names and images (N, 3, H, W) in [0, 1]; an unreadable file leaves no gap in its batch."""
        names: list[str] = []
        pictures: list[Images] = []
        for name in self.files:
            picture = self._read(name)
            if picture is None:
                continue
            names.append(name)
            pictures.append(picture)
            if len(names) == batch_size:
                yield names, _tensor(pictures)
                names, pictures = [], []
        if names:
            yield names, _tensor(pictures)

    def _read(self, name: str) -> Images | None:
        from offsupport.data.pictures import read_picture

        try:
            picture = read_picture(self.folder / name, self.size, self.size)
        except FileError as error:
            self.skipped[name] = error.message
            return None
        self._check(picture.shape, name)
        return picture

    def _check(self, shape: tuple[int, ...], name: str) -> None:
        height, width = shape[:2]
        if self.size is None and self.expected is not None and (height, width) != (self.expected, self.expected):
            raise InputError(
                f"The model takes images of {self.expected}x{self.expected}, and {name} is {width}x{height}.",
                f"Give --size {self.expected}: the shorter side is brought to it, and the centred square is taken.",
            )
        if self._shape is not None and shape != self._shape:
            raise InputError(
                f"The images in {self.folder} have several sizes: {name} is {width}x{height}, and those before it are "
                f"{self._shape[1]}x{self._shape[0]}.",
                "Give --size N: the shorter side is brought to N pixels, and the centred square is taken.",
            )
        self._shape = shape


def _tensor(pictures: list[Images]) -> Tensor:
    import numpy as np
    import torch

    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous().float().div_(255)


# Predictions as rows, and as a CSV file that a spreadsheet can open without running anything.


_FORMULA = tuple("=+-@\t\r\n＝＋－＠")  # noqa: RUF001 - spreadsheets take the wide signs for the usual ones
"""What a spreadsheet takes for the beginning of a formula, or strips before it looks for one."""


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
        """Return the prediction as plain values; ``label`` is called ``class``, as in the file."""
        return {"class" if name == "label" else name: value for name, value in asdict(self).items()}


def csv_text(predictions: Sequence[Prediction]) -> str:
    """Return the CSV file: a header, then a line per image, sorted by file; the same for the same predictions.

    A text that begins like a formula gets an apostrophe in front, which spreadsheets show as the text it is.
    """
    buffer = io.StringIO()
    lines = csv.writer(buffer, lineterminator="\n")
    lines.writerow("class" if field.name == "label" else field.name for field in fields(Prediction))
    for row in sorted(predictions, key=lambda row: row.file):
        lines.writerow([_plain(row.file), row.label, _plain(row.name), f"{row.confidence:.6f}", row.guard])
    return buffer.getvalue()


def _plain(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula, and that UTF-8 can hold whatever the file system says."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return f"'{text}" if text.startswith(_FORMULA) else text


# The work of ``offsupport adapt``: wrap a model, predict a folder batch by batch, diagnose the shift.


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
    from offsupport.diagnosis import diagnose_model

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
    return adapter.config.independent


def _values(diagnosis: ModelDiagnosis) -> dict[str, Any]:
    """Return the diagnosis without its maps of patches, which are in the picture."""
    return {name: value for name, value in diagnosis.to_dict().items() if name != "patch_quantile"}


def embedded_source(model: str) -> Tensor:
    """Return the embedded digits for a network that was trained on them; ask for a folder for any other."""
    import numpy as np

    from offsupport.data import load

    if not model.startswith("digits"):
        raise ConfigError(
            "What is usual for this network is not known.", "Give a folder of images it was trained on: --source DIR."
        )
    digits = load("digits", split="train")
    return digits.tensor(np.arange(min(len(digits), MOST_SOURCE)))
