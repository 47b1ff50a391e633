"""Owns the interface to weights on disk, and safetensors files.

A model says which tensors it wants and where they go; a `WeightFile` says which it has and copies one at a time, so
that loading needs hardly more memory than the weights themselves.

Upstream: vllm/model_executor/model_loader/weight_utils.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from minivllm.models.config import read_json
from minivllm.models.errors import ModelError

INDEX_FILE = "model.safetensors.index.json"


class WeightFile(Protocol):
    """Tensors by their Hugging Face names."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor, without reading any."""
        ...

    def file_of(self, name: str) -> Path:
        """The file that holds (or should hold) a tensor: for messages."""
        ...

    def copy_into(self, name: str, slot: torch.Tensor) -> None:
        """Copy one tensor into memory of the same shape; precision and device follow the slot."""
        ...


class SafetensorsWeights:
    """model.safetensors, or the shards named by its index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {file: _open(folder / file) for file in _weight_files(folder)}
        self._file_of = {name: file for file, handle in self._files.items() for name in handle.keys()}  # noqa: SIM118

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(self._files[file].get_slice(name).get_shape()) for name, file in self._file_of.items()}

    def file_of(self, name: str) -> Path:
        return self._folder / self._file_of.get(name, next(iter(self._files)))

    def copy_into(self, name: str, slot: torch.Tensor) -> None:
        try:
            slot.copy_(self._files[self._file_of[name]].get_tensor(name))
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ModelError(f"{self.file_of(name)}: tensor {name} cannot be read ({error})") from None


def _weight_files(folder: Path) -> list[str]:
    if (folder / INDEX_FILE).exists():
        weight_map = read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values() or [None]):
            raise ModelError(f"{folder / INDEX_FILE}: key 'weight_map' must name the file of each tensor")
        return sorted(set(weight_map.values()))
    if (folder / "model.safetensors").exists():
        return ["model.safetensors"]
    pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickles:
        raise ModelError(
            f"{folder / pickles[0]}: pickled weights can run code when they are loaded, so they are refused; "
            "convert them to safetensors"
        )
    raise ModelError(f"{folder}: no weights here: expected model.safetensors or {INDEX_FILE}")


def _open(file: Path) -> Any:
    if not file.exists():
        raise ModelError(f"{file}: named by {INDEX_FILE}, and not there; download the model again")
    try:
        return safe_open(str(file), framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file}: not a complete safetensors file ({error}); it has {file.stat().st_size} bytes; download it again"
        ) from None
