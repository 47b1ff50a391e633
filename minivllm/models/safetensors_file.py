"""Owns the safetensors format: a header that says where each tensor lies, checked as a whole before any is read.

    8 bytes   length of the header, little-endian
    JSON      {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
    bytes     the tensors, end to end

Tensors are read a few MB at a time. A mapped file would be simpler, but each page of it that was read counts as memory
of this process, so that loading would need the weights twice.

Upstream: the safetensors library, which vLLM uses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minivllm.models.errors import ModelError

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000  # bytes: the format's own limit
_BYTES_AT_ONCE = 4 * 2**20


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where one tensor lies: bytes `start` to `end` of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile:
    """One .safetensors file. Raises ModelError if its header does not describe exactly the bytes that follow it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors = self._read_header()

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        """A tensor's numbers in order, a few MB at a time: (numbers,) each."""
        place = self.tensors[name]
        if place.dtype not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise ModelError(f"{self.path}: tensor {name} has type {place.dtype}; supported are {known}")
        with self.path.open("rb") as file:
            file.seek(place.start)
            for start in range(place.start, place.end, _BYTES_AT_ONCE):
                count = min(_BYTES_AT_ONCE, place.end - start)
                raw = np.fromfile(file, np.uint8, count)
                if len(raw) != count:
                    raise ModelError(f"{self.path}: tensor {name}: expected {count} bytes at {start}, got {len(raw)}")
                yield torch.from_numpy(raw).view(_DTYPES[place.dtype])

    def _read_header(self) -> dict[str, TensorPlace]:
        try:
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _LONGEST_HEADER):
                    raise ValueError(f"its header is said to have {length} bytes")
                header = json.loads(file.read(length), object_pairs_hook=_no_duplicates)
            return _places(header, _LENGTH_BYTES + length, size)
        except (ValueError, RecursionError) as error:  # broken JSON and broken UTF-8 are ValueErrors
            reason = " ".join(str(error).split())
            raise ModelError(
                f"{self.path}: not a complete safetensors file ({reason}); it has {size} bytes; download it again"
            ) from None
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be read ({error.strerror})") from None


def _places(header: Any, data_start: int, size: int) -> dict[str, TensorPlace]:
    """Check that the tensors fill the file from the header to the end, without holes and overlaps."""
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    header.pop("__metadata__", None)
    places = {name: _place(name, entry, data_start) for name, entry in header.items()}
    end = data_start
    for name, place in sorted(places.items(), key=lambda item: (item[1].start, item[1].end)):
        if place.start != end:
            raise ValueError(f"tensor {name}: expected to start at byte {end}, got {place.start}")
        end = place.end
        if end > size:
            raise ValueError(f"tensor {name}: expected to end at byte {end}, and the file is shorter")
    if end != size:
        raise ValueError(f"its tensors end at byte {end}")
    return places


def _place(name: str, entry: Any, data_start: int) -> TensorPlace:
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = all(type(number) is int and number >= 0 for number in (*shape, start, end))
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole or not isinstance(dtype, str):
        raise ValueError(f"tensor {name}: expected dtype, shape and data_offsets, got {str(entry)[:100]}")
    if dtype in _DTYPES and end - start != math.prod(shape) * _DTYPES[dtype].itemsize:
        raise ValueError(f"tensor {name}: {dtype} of shape {tuple(shape)} does not fill {end - start} bytes")
    return TensorPlace(dtype, tuple(shape), data_start + start, data_start + end)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name stands twice in its header")
    return entries
