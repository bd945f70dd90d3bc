"""Weights from anywhere: safetensors, or a PyTorch file of tensors; nothing in a file is ever executed."""

from __future__ import annotations

import argparse
import pickle
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from offsupport.core.checkpoints import parse_manifest
from offsupport.core.errors import FileError

WRAPPERS = ("model", "state_dict", "net", "model_state_dict")
"""Under these names training scripts keep the weights inside a checkpoint."""
_PAGES = (b"<!doctype", b"<html", b"<?xml", b"<head")
_WHOLE_REMEDY = (
    "If it is a whole model, save model.state_dict() instead, or let a function of yours load it: on the command line "
    "--model module:function --allow-code."
)
_HARMLESS = ("torch.", "numpy.", "builtins.", "collections.")
"""What is no network of somebody's."""
_SAFE_REMEDY = "Get it again from its source, or save its state dict as safetensors."


def read_weights(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the named tensors of a file and what else its header says (the manifest of our own files).

    Args:
        path: A safetensors file, or what ``torch.save`` made of tensors: a state dict, or a dictionary that holds one
            under a usual name beside numbers and text.
    """
    path = Path(path)
    if not path.is_file():
        raise FileError(f"There is no file {path}.", "Check the path.")
    with path.open("rb") as file:
        start = file.read(256)
    if start.lstrip().lower().startswith(_PAGES):
        raise FileError(f"{path} is a web page, not weights.", "Download the file itself, not the page about it.")
    if start.startswith(b"version https://git-lfs"):
        raise FileError(f"{path} is a Git LFS pointer, not weights.", "Fetch the file it points to: git lfs pull.")
    _refuse_programs(path, start)
    if start[8:9] == b"{":  # a safetensors file is a length of eight bytes and a JSON header
        return _read_safetensors(path)
    return _state_dict(_read_torch(path), path), {}


def _refuse_programs(path: Path, start: bytes) -> None:
    """Refuse files that hold a computation rather than weights, by what they are."""
    names = _archived(path) if start.startswith(b"PK") else []
    folders = {name.partition("/")[2].partition("/")[0] for name in names}
    if "constants.pkl" in folders and "code" in folders:
        what = "a TorchScript program"
    elif folders & {"archive_format", "archive_version"} or "serialized_exported_program.json" in names:
        what = "an exported program"
    elif path.suffix.lower() == ".onnx":
        what = "an ONNX graph"
    else:
        return
    raise FileError(
        f"{path} is {what}: it shows no layers that could adapt.",
        "Save the state dict of the network it was made of: torch.save(model.state_dict(), path).",
    )


def _archived(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as file:
            return file.namelist()
    except (OSError, zipfile.BadZipFile, ValueError):
        return []


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            # Copied, as they lie in the file otherwise: whoever writes into that would change them, or end the process.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (safetensors.SafetensorError, OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} is a damaged safetensors file ({error}).", _SAFE_REMEDY) from error
    return tensors, parse_manifest(header.get("manifest", "{}"), path, _SAFE_REMEDY)


def _read_torch(path: Path) -> Any:
    try:
        # Training scripts keep their command line beside the weights; a namespace is data.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about formats, which the caller cannot change
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        asked = str(error).partition("GLOBAL ")[2].split(" ", 1)[0]
        what = f"that would run code ({asked})" if asked else "of more than tensors"
        remedy = _WHOLE_REMEDY if asked and not asked.startswith(_HARMLESS) else _SAFE_REMEDY
        raise FileError(f"{path} is a pickle {what}; nothing in it was executed.", remedy) from error
    except Exception as error:  # a file that is no checkpoint can fail in any way
        reason = str(error).partition("\n")[0]
        raise FileError(f"{path} is not a file of weights ({reason}).", _SAFE_REMEDY) from error


def _state_dict(found: Any, path: Path) -> dict[str, Tensor]:
    for name in WRAPPERS:  # one may lie inside another
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    tensors = found.items() if isinstance(found, Mapping) else ()
    if not tensors or not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in tensors):
        raise FileError(
            f"{path} holds no state dict, neither by itself nor under {', '.join(WRAPPERS)}.",
            "Save model.state_dict().",
        )
    return dict(tensors)


# What a file must hold before anything is changed by it.


def require_names(given: Mapping[str, Tensor], wanted: Iterable[str], where: str, remedy: str) -> None:
    """Refuse tensors that are not those of ``wanted``, name by name.

    Args:
        given: The tensors of a file.
        wanted: The names there must be.
        where: The file.
        remedy: What to do about another one.
    """
    names = list(wanted)
    for problem, found in (
        ("lacks", [name for name in names if name not in given]),
        ("also holds", sorted(set(given) - set(names))),
    ):
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise FileError(f"{where} {problem} {found[0]}{more}.", remedy)


def require_values(
    given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str, owner: str, remedy: str
) -> None:
    """Refuse tensors that cannot take the place of those of the same name: by shape, type, and finiteness.

    Copying would stretch a single number over a whole tensor, read truth values as zeros and ones, and take NaN.

    Args:
        given: The tensors of a file.
        wanted: What they are to replace; names that are not given are left out.
        where: The file.
        owner: What has the wanted ones, for the error.
        remedy: What to do about another shape.
    """
    for name, value in wanted.items():
        if name not in given:
            continue
        tensor = given[name]
        if tensor.shape != value.shape:
            raise FileError(
                f"{where} holds {name} of shape {tuple(tensor.shape)}, and {owner} has {tuple(value.shape)}.",
                remedy,
            )
        if tensor.layout != torch.strided or tensor.is_quantized or _sort(tensor) != _sort(value):
            raise FileError(
                f"{where} holds {name} as {_said(tensor)}, and {owner} has {_said(value)}.",
                "Save it as it was trained, without converting or quantising it.",
            )
        # Masks of minus infinity are a model's own, and come back as they went.
        if value.is_meta or _finite(value).all():
            require_finite({name: tensor.to(value.dtype)}, where)


ORDINARY = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
)
"""Types in which every operation is there."""


def require_ordinary(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse tensors of types that only some operations know, such as complex numbers and floats of eight bits."""
    odd = [name for name, tensor in tensors.items() if tensor.dtype not in ORDINARY]
    if odd:
        raise FileError(f"{where} holds {odd[0]} as {tensors[odd[0]].dtype}.", "Make it again.")


def require_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse tensors with NaN or infinity among their values, by name."""
    for name, tensor in tensors.items():
        finite = _finite(tensor)
        if not finite.all():
            count = int((~finite).sum())
            raise FileError(
                f"{where} holds {count} non-finite of {tensor.numel()} values in {name}.",
                "Take weights of a training that did not diverge; nothing was changed.",
            )


def _finite(tensor: Tensor) -> Tensor:
    # Floating types of eight bits and less know no isfinite.
    return torch.isfinite(tensor.float() if tensor.is_floating_point() and tensor.element_size() < 2 else tensor)


def _sort(tensor: Tensor) -> str:
    if tensor.is_floating_point():
        return "floating"
    return "complex" if tensor.is_complex() else "bool" if tensor.dtype == torch.bool else "integer"


def _said(tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return kind if tensor.layout == torch.strided else f"{kind} in the layout {tensor.layout}"
