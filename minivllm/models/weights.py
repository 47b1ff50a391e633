"""Owns the interface to weights on disk, and folders of safetensors files.

A model says which tensors it wants and where they go; a `WeightFile` says which it has and copies one at a time, so
that loading needs hardly more memory than the weights themselves.

Upstream: vllm/model_executor/model_loader/weight_utils.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from minivllm.models.config import read_json
from minivllm.models.errors import ModelError
from minivllm.models.safetensors_file import SafetensorsFile

INDEX_FILE = "model.safetensors.index.json"


class WeightFile(Protocol):
    """Tensors by their Hugging Face names."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor, without reading any."""
        ...

    def stored(self) -> dict[str, tuple[str, str]]:
        """Of each tensor: its name in the file, and its type there."""
        ...

    def file_of(self, name: str) -> Path:
        """The file that holds (or should hold) a tensor: for messages."""
        ...

    def copy_into(self, name: str, slot: torch.Tensor) -> None:
        """Copy one tensor into memory of the same shape; precision and device follow the slot."""
        ...


def check_finite(file: Path, name: str, numbers: torch.Tensor) -> None:
    """Refuse weights that would turn every output into NaN. One sum is cheap, and any NaN or infinity shows in it."""
    if not torch.isfinite(numbers.sum(dtype=torch.float32)):
        raise ModelError(f"{file}: tensor {name}: expected numbers, got NaN or infinity; download it again")


class SafetensorsWeights:
    """model.safetensors, or the shards named by its index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        file_of = _weight_map(folder)
        self._files = {file: _open(folder / file) for file in sorted(set(file_of.values()) or {"model.safetensors"})}
        for name, file in file_of.items():
            if name not in self._files[file].tensors:
                raise ModelError(f"{folder / file}: tensor {name} is missing: {INDEX_FILE} says that it is here")
        self._file_of = {name: file for file in self._files.values() for name in file.tensors}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: file.tensors[name].shape for name, file in self._file_of.items()}

    def stored(self) -> dict[str, tuple[str, str]]:
        return {name: (name, file.tensors[name].dtype) for name, file in self._file_of.items()}

    def file_of(self, name: str) -> Path:
        return self._file_of[name].path if name in self._file_of else self._folder / next(iter(self._files))

    def copy_into(self, name: str, slot: torch.Tensor) -> None:
        file, flat, start = self._file_of[name], slot.view(-1), 0
        for numbers in file.pieces(name):
            check_finite(file.path, name, numbers)
            flat[start : start + len(numbers)].copy_(numbers)
            start += len(numbers)


def _weight_map(folder: Path) -> dict[str, str]:
    """The file of each tensor according to the index; empty if there is one file without an index."""
    if (folder / INDEX_FILE).exists():
        return _read_index(folder / INDEX_FILE)
    if (folder / "model.safetensors").exists():
        return {}
    pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickles:
        raise ModelError(
            f"{folder / pickles[0]}: pickled weights can run code when they are loaded, so they are refused; "
            "convert them to safetensors"
        )
    raise ModelError(f"{folder}: no weights here: expected model.safetensors or {INDEX_FILE}")


def _read_index(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values() or [None]):
        raise ModelError(f"{index}: key 'weight_map' must name the file of each tensor")
    for name, file in weight_map.items():
        if not file or Path(file).name != file or file in (".", "..") or "\\" in file:
            raise ModelError(f"{index}: tensor {name}: expected a file beside the index, got {file!r}")
    return weight_map


def _open(file: Path) -> SafetensorsFile:
    if not file.exists():
        raise ModelError(f"{file}: named by {INDEX_FILE}, and not there; download the model again")
    return SafetensorsFile(file)
