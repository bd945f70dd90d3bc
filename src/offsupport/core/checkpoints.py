"""Tensors on disk: safetensors with a manifest in the header, and a checksum over both."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from offsupport.core.errors import FileError
from offsupport.core.files import canonical_json, parse_json, write_bytes
from offsupport.core.ownership import require_own

SCHEMA = 1
_MARKS = (b'{"__metadata__":{"manifest":', b'{"__metadata__":{"sha256":')
"""How the header of a file of ours begins; weights of others have other words there, or none."""
_STRIDES = "strides"
"""In a manifest: the layout of the tensors that are not laid out row by row."""


def save_tensors(path: Path | str, tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> None:
    """Write tensors and a manifest of plain JSON values to one file, whole or not at all.

    A file that is there is replaced only if it was written so, too.
    """
    require_own(Path(path), *_MARKS)
    # The format holds rows only, so other layouts are written down beside it.
    body = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    strides = {name: tensor.stride() for name, tensor in tensors.items() if tensor.stride() != _by_rows(tensor)}
    text = canonical_json({"schema": SCHEMA, **manifest, **({_STRIDES: strides} if strides else {})})
    header = {"manifest": text, "sha256": _checksum(body, text)}
    write_bytes(path, safetensors.torch.save(body, metadata=header))


def load_tensors(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`save_tensors` wrote, bit for bit and in the memory layout it had. Runs no code.

    Damage of any kind is an error that names the file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileError(f"There is no file {path}.", "Check the path.")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            # Copied, as they lie in the file otherwise: whoever writes into that would change them, or end the process.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (safetensors.SafetensorError, OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} is not a safetensors file ({error}).", "Save it again.") from error
    text = header.get("manifest", "")
    if header.get("sha256") != _checksum(tensors, text):
        raise FileError(f"{path} is damaged or was not written by offsupport.", "Save it again.")
    manifest = parse_manifest(text, path, "Save it again.")
    if manifest.pop("schema", None) != SCHEMA:
        raise FileError(f"{path} was written by another version of offsupport.", "Save it again with this one.")
    strides = manifest.pop(_STRIDES, {})
    if not isinstance(strides, dict):
        raise FileError(f"The manifest of {path} has no layouts under {_STRIDES!r}.", "Save it again.")
    return {name: _laid_out(tensor, strides.get(name)) for name, tensor in tensors.items()}, manifest


def parse_manifest(text: str, path: Path, remedy: str) -> dict[str, Any]:
    """Return the manifest in the header of a file; whoever made the file may have written anything there."""
    try:
        manifest = parse_json(text)
    except ValueError as error:
        raise FileError(f"The manifest of {path} is not valid JSON ({error}).", remedy) from error
    if not isinstance(manifest, dict):
        raise FileError(f"The manifest of {path} is not a mapping.", remedy)
    return manifest


def _by_rows(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor as it is read back; axes of length 1 may have others and still be contiguous."""
    return torch.empty(tensor.shape, device="meta").stride()


def _laid_out(tensor: Tensor, strides: Any) -> Tensor:
    """Return a tensor in the memory layout it had: in another one the same numbers are rounded by other kernels."""
    whole = isinstance(strides, list) and all(type(stride) is int for stride in strides)
    if not whole or not _dense(tensor.shape, strides):
        return tensor
    return torch.empty_strided(tuple(tensor.shape), tuple(strides), dtype=tensor.dtype).copy_(tensor)


def _dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a layout is a permutation of rows, without gaps or overlaps."""
    if len(shape) != len(strides):
        return False
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return all(0 <= stride <= expected for stride in strides)


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Return a sha256 over the names, shapes, types and bytes of tensors: the identity of a set of weights."""
    return _checksum(tensors, "")


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    sha = hashlib.sha256(text.encode())
    for name in sorted(tensors):  # files keep no order
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
