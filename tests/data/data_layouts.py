"""Writes tiny data sets in the official layouts, for tests."""

import json
import pickle
import struct

import numpy as np
from PIL import Image

from offsupport.data.folders import IMAGENET100


def cifar_pixels(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)


def flat(images):
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2).reshape(len(images), -1))


def write_cifar10(root, n=20, protocol=4):
    """Write test and train batches of n images each; returns the test images."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for number, name in enumerate(["test_batch", *(f"data_batch_{i}" for i in range(1, 6))]):
        batch = {
            b"batch_label": name.encode(),
            b"data": flat(cifar_pixels(n, number)),
            b"labels": [(i + number) % 10 for i in range(n)],
            b"filenames": [b"x.png"] * n,
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol))
    meta = {b"label_names": [f"class{i}".encode() for i in range(10)], b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol))
    return cifar_pixels(n, 0)


def write_cifar100(root, n=20):
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for number, name in enumerate(["test", "train"]):
        batch = {
            "data": flat(cifar_pixels(n, number)),
            "fine_labels": [5 * i % 100 for i in range(n)],
            "coarse_labels": [i % 20 for i in range(n)],
        }
        (folder / name).write_bytes(pickle.dumps(batch, 2))
    names = {"fine_label_names": [f"fine{i}" for i in range(100)], "coarse_label_names": ["c"] * 20}
    (folder / "meta").write_bytes(pickle.dumps(names, 2))
    return cifar_pixels(n, 0)


def write_tiny100(root, n=20):
    folder = root / "tiny100"
    folder.mkdir(parents=True)
    for number, split in enumerate(["test", "train"]):
        np.save(folder / f"{split}_images.npy", cifar_pixels(n, number))
        np.save(folder / f"{split}_labels.npy", np.arange(n, dtype=np.uint8) * 5 % 100)
    (folder / "classes.json").write_text(json.dumps([f"class {i}" for i in range(100)]))
    return cifar_pixels(n, 0)


def python2_batch(images, labels):
    """Return a CIFAR batch as Python 2 wrote it: protocol 2, 8-bit strings, pre-2.0 module names of NumPy."""

    def string(data):
        return (b"U" + bytes([len(data)]) if len(data) < 256 else b"T" + struct.pack("<i", len(data))) + data

    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85" + string(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = (
        b"(K\x01K" + bytes([len(images)]) + b"M\x00\x0c\x86" + dtype + b"\x89" + string(flat(images).tobytes()) + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}q\x03(" + string(b"data") + array + state + string(b"labels") + numbers + b"u."


def write_sparse_cifar_c(folder, names, rows=50_000):
    """Write full-size .npy files that take no space on disk: zeros, with each row's severity in its first pixel."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "labels.npy", np.tile(np.arange(rows // 5) % 10, 5).astype(np.uint8))
    for name in names:
        file = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, (rows, 32, 32, 3))
        file[:: rows // 50, 0, 0, 0] = np.arange(50) // 10 + 1
        file.flush()


def write_picture(path, colour=(120, 60, 30), size=(32, 32)):
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(sum(colour) + size[0])
    pixels = np.clip(np.asarray(colour) + rng.normal(0, 20, (size[1], size[0], 1)), 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)


def write_imagenet100(root, size=(40, 50)):
    """Write one small picture per class of ImageNet-100, and one class that does not belong to it."""
    for number, wnid in enumerate((*IMAGENET100, "n00000000")):
        write_picture(root / "val" / wnid / f"ILSVRC2012_val_{number:08d}.JPEG", (number * 2, 90, 255 - number), size)
