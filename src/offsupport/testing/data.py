"""The contracts of corruptions and data sets, as checks for anybody's; what fails names the broken promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from offsupport.core.errors import ConfigError, InputError
from offsupport.data import Dataset, Stream, corrupt, load, stream
from offsupport.data.catalog import CORRUPTED, DATASETS
from offsupport.data.corruptions import CORRUPTIONS, Corruption
from offsupport.data.corruptions.registry import SIDES, Images
from offsupport.data.corruptions.seeding import Streams
from offsupport.testing.case import promise

COUNT = 4
"""Images that a corruption is checked with: enough to be in company, few enough to be quick at 224 pixels."""
ROWS = 24
"""Rows of a data set that are looked at one by one."""


def check_corruption(name: str, sides: Sequence[int] = SIDES) -> None:
    """Put a registered corruption through its contract; an ``AssertionError`` says which promise it breaks, and where.

    It may refuse a size with a :class:`ConfigError` or :class:`InputError` that has a remedy, but not all of them.

    Args:
        name: What it is registered as.
        sides: The sizes of images to check it with.

    Example:
        >>> check_corruption("fog", sides=[32])
    """
    found = CORRUPTIONS[name]
    taken = [side for side in sides if not _refuses(found, side)]
    promise(bool(taken), f"{name} refuses every size: {', '.join(map(str, sides))}.")
    for side in taken:
        made = [_Severity(found, side, number + 1) for number in range(len(found.severities(side)))]
        for severity in made:
            severity.check()
        for first, second in ((a, b) for a in made for b in made if a.number < b.number):
            promise(
                not np.array_equal(first.out, second.out),
                f"{first.where}: severity {second.number} makes the same images.",
            )


def _refuses(found: Corruption, side: int) -> bool:
    """Whether a corruption does not take this size; what its function returns is looked at here, before any use."""
    images = _pictures(side)
    images.flags.writeable = False
    try:
        out = found.function(images, Streams(found.name, 1, 0, index=np.arange(COUNT)), *found.arguments(side, 1))
    except (ConfigError, InputError) as error:
        promise(bool(error.remedy), f"{found.name} refuses {side} px without saying what to do instead.")
        return True
    except ValueError as error:
        promise("read-only" not in str(error), f"{found.name} writes into the images it is given.")
        raise
    promise(isinstance(out, np.ndarray), f"{found.name} returns {type(out).__name__}, not an array.")
    promise(out.dtype == np.uint8, f"{found.name} returns {out.dtype}, not uint8.")
    promise(out.shape == images.shape, f"{found.name} makes {out.shape} from images of shape {images.shape}.")
    return False


class _Severity:
    """One severity at one size, and the images it makes of the same few pictures."""

    def __init__(self, found: Corruption, side: int, number: int) -> None:
        self.found = found
        self.number = number
        self.images = _pictures(side)
        self.index = np.arange(COUNT) * 7 + 3  # ids that are no positions, so that one is not taken for the other
        self.where = f"{found.name}, severity {number}, {side} px"
        self.out = self._apply(self.images, self.index)

    def _apply(self, images: Images, index: NDArray[np.int64], seed: int = 0, block: int | None = None) -> Images:
        return corrupt(images, self.found.name, self.number, seed, index=index, block=block)

    def check(self) -> None:
        promise(np.array_equal(self.images, _pictures(self.images.shape[1])), f"{self.where}: the input is changed.")
        promise(not np.array_equal(self.out, self.images), f"{self.where}: the images come back as they were.")
        again = self._apply(self.images, self.index)
        promise(np.array_equal(again, self.out), f"{self.where}: the same seed makes other images the second time.")
        self._check_company()
        self._check_seed()
        self._check_block()

    def _check_company(self) -> None:
        """An image comes out the same alone, and in any order among others."""
        alone = [self._apply(self.images[row : row + 1], self.index[row : row + 1])[0] for row in range(COUNT)]
        promise(np.array_equal(np.stack(alone), self.out), f"{self.where}: an image depends on its batch.")
        turned = self._apply(self.images[::-1], self.index[::-1])[::-1]
        promise(np.array_equal(turned, self.out), f"{self.where}: an image depends on its place in the batch.")

    def _check_seed(self) -> None:
        """Where random numbers are drawn, another seed makes other images."""
        streams = _Watched(self.found.name, self.number, 0, index=self.index)
        self.found.function(self.images, streams, *self.found.arguments(self.images.shape[1], self.number))
        other = self._apply(self.images, self.index, seed=1)
        changed = not np.array_equal(other, self.out)
        promise(changed or not streams.drawn, f"{self.where}: another seed makes the same images.")
        promise(streams.drawn or not changed, f"{self.where}: chance comes from somewhere else than the streams.")

    def _check_block(self) -> None:
        """With a block, pixels are those of the corruption inside a square and those of the image outside."""
        side = self.images.shape[1]
        out = self._apply(self.images, self.index, block=side // 2)
        changed = (out != self.images).any(axis=3)
        promise(bool(changed.any()), f"{self.where}: nothing is corrupted in a block.")
        promise(bool((out == self.out).all(axis=3)[changed].all()), f"{self.where}: a block has pixels of its own.")
        for axis in (1, 2):
            spans = [np.ptp(np.flatnonzero(row)) for row in changed.any(axis=axis) if row.any()]
            promise(max(spans) < side // 2, f"{self.where}: pixels outside the block are changed.")


class _Watched(Streams):
    """Streams that note whether anything was drawn from them."""

    drawn = False

    def _generators(self, draw: str) -> Iterator[tuple[int, Generator]]:
        self.drawn = True
        yield from super()._generators(draw)


def _pictures(side: int) -> Images:
    """Return coloured pictures with edges, gradients and some grain, so that any corruption has something to change."""
    rng = np.random.default_rng(side)
    ramp = np.linspace(0, 1, side)
    shade = 40 + 150 * (
        ramp[:, None, None] * rng.random((COUNT, 1, 1, 3)) + ramp[:, None] * rng.random((COUNT, 1, 1, 3))
    )
    centre = rng.uniform(0.3, 0.7, (COUNT, 2, 1, 1))
    disc = (ramp[:, None] - centre[:, 0]) ** 2 + (ramp - centre[:, 1]) ** 2 < 0.06
    shade = np.where(disc[..., None], 255 * rng.random((COUNT, 1, 1, 3)), shade)
    return np.clip(shade + rng.normal(0, 6, shade.shape), 0, 255).astype(np.uint8)


def check_dataset(name: str, root: Path | str | None = None) -> None:
    """Put a registered data set through its contract; an ``AssertionError`` says which promise it breaks, and where.

    Every split is opened and read in full once, for its hash. Files that are not there are the usual
    :class:`DataMissingError`, not a broken promise.

    Args:
        name: What it is registered as.
        root: Where the data is; None for ``$OFFSUPPORT_DATA``, or for a data set that needs no files.

    Example:
        >>> check_dataset("digits")
    """
    entry = DATASETS[name]
    promise(bool(entry.about), f"{name} has no line about it.")
    hashes = {}
    for split in entry.splits:
        dataset = load(name, root, split)
        where = f"{name}, split {split}"
        _check_labels(dataset, where)
        _check_rows(dataset, where)
        hashes[split] = dataset.sha256
        same = load(name, root, split).sha256 == dataset.sha256
        promise(same, f"{where}: opened again, it has another hash.")
    promise(len(set(hashes.values())) == len(hashes), f"{name}: two splits are the same data: {', '.join(hashes)}.")
    _check_stream(name, root)


def _check_labels(dataset: Dataset, where: str) -> None:
    promise(len(dataset) > 0, f"{where}: it is empty.")
    promise(dataset.labels.ndim == 1, f"{where}: the labels have shape {dataset.labels.shape}, not one per row.")
    classes = dataset.classes
    promise(all(isinstance(each, str) for each in classes), f"{where}: the names of classes are not text.")
    promise(len(set(classes)) == len(classes), f"{where}: two classes have one name.")
    low, high = int(dataset.labels.min()), int(dataset.labels.max())
    promise(low >= -1, f"{where}: the label {low} is below -1, which stands for none.")
    if classes:
        promise(high < len(classes), f"{where}: the label {high} has no name among {len(classes)} classes.")


def _check_rows(dataset: Dataset, where: str) -> None:
    rows = np.unique(np.linspace(0, len(dataset) - 1, ROWS).astype(np.int64))
    images = dataset.images(rows)
    promise(images.dtype == np.uint8, f"{where}: the images are {images.dtype}, not uint8.")
    shape = (len(rows), *dataset.image_size, 3)
    promise(images.shape == shape, f"{where}: {len(rows)} rows come as {images.shape}, not {shape}.")
    back = dataset.images(rows[::-1])[::-1]
    promise(np.array_equal(back, images), f"{where}: a row depends on which others are read with it, or when.")
    alone = dataset.images([int(rows[-1])])[0]
    promise(np.array_equal(alone, images[-1]), f"{where}: a row read alone has other pixels.")
    tensor = dataset.tensor(rows).numpy()
    promise(tensor.dtype == np.float32, f"{where}: tensors are {tensor.dtype}, not float32.")
    close = tensor.shape == images.transpose(0, 3, 1, 2).shape and bool(
        (np.abs(tensor * 255 - images.transpose(0, 3, 1, 2)) <= 0.51).all()  # floats are kept, bytes are rounded
    )
    promise(close, f"{where}: tensors are not the images in [0, 1], channels first.")


def _check_stream(name: str, root: Path | str | None) -> None:
    dataset = load(name, root)
    clean = stream(name, root, batch_size=7, limit=ROWS)
    promise(_read(clean) == _read(clean), f"{name}: a stream gives other batches the second time.")
    for batch in clean:
        same = np.array_equal(batch.y.numpy(), dataset.labels[batch.index.numpy()])
        promise(same, f"{name}: a stream gives labels of other rows.")
    height, width = dataset.image_size
    if height != width:
        return  # corruptions are for square images
    corrupted = stream(name, root, corruption="contrast", source="generated", batch_size=7, limit=ROWS)
    promise(_read(corrupted) != _read(clean), f"{name}: corrupting it changes nothing.")
    if not name.endswith(CORRUPTED) and f"{name}{CORRUPTED}" in DATASETS:
        twin = stream(f"{name}{CORRUPTED}", root, corruption="contrast", source="generated", batch_size=7, limit=ROWS)
        # The release of some sets stores JPEG files, so their twins may differ in pixels, never in rows.
        promise(
            [batch.y.tolist() for batch in twin] == [batch.y.tolist() for batch in corrupted],
            f"{name}{CORRUPTED}: its labels are not those of {name}.",
        )


def _read(batches: Stream) -> list[tuple[bytes, list[int]]]:
    return [(batch.x.numpy().tobytes(), batch.y.tolist()) for batch in batches]
