"""Tensors on disk: safetensors with a manifest in the header, and a checksum over both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from offsupport.core.errors import FileError
from offsupport.core.files import canonical_json, write_bytes

SCHEMA = 1


def save_tensors(path: Path | str, tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> None:
    """Write tensors and a manifest of plain JSON values to one file, whole or not at all."""
    body = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = canonical_json({"schema": SCHEMA, **manifest})
    header = {"manifest": text, "sha256": _checksum(body, text)}
    write_bytes(path, safetensors.torch.save(body, metadata=header))


def load_tensors(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`save_tensors` wrote; damage of any kind is an error that names the file. Runs no code."""
    path = Path(path)
    if not path.is_file():
        raise FileError(f"There is no file {path}.", "Check the path.")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (safetensors.SafetensorError, OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} is not a safetensors file ({error}).", "Save it again.") from error
    text = header.get("manifest", "")
    if header.get("sha256") != _checksum(tensors, text):
        raise FileError(f"{path} is damaged or was not written by offsupport.", "Save it again.")
    manifest = json.loads(text)
    if manifest.pop("schema") != SCHEMA:
        raise FileError(f"{path} was written by another version of offsupport.", "Save it again with this one.")
    return tensors, manifest


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Return a sha256 over the names, shapes, types and bytes of tensors: the identity of a set of weights."""
    return _checksum(tensors, "")


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    sha = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
