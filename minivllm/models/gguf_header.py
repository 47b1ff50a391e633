"""Owns the header of a GGUF file: metadata and the directory of tensors. The tensors themselves are not touched.

    "GGUF"  version  number of tensors  number of metadata entries
    entries: key, type, value          ("tokenizer.ggml.tokens", array, [...])
    tensors: name, dimensions, type, offset
    padding to the alignment, then the tensors' bytes

Little-endian throughout; a string is its length and its bytes. Read here in one pass: a vocabulary is 100,000 strings,
and an object for each of them would take longer to make than the weights take to load.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minivllm.models.errors import ModelError

# Metadata types 0 to 12, as struct formats. Two are not of fixed size.
_FORMATS = ("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor is. `shape` is in our order, slowest dimension first; ggml writes it the other way round."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int  # in the file


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Everything before the weights."""

    metadata: dict[str, Any]
    tensors: list[GGUFTensor]


def read_header(path: Path) -> GGUFHeader:
    """Read a file's header. Raises ModelError if it is not GGUF, or ends too early."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Cursor(data))
    except (ValueError, OverflowError, IndexError, MemoryError, OSError, struct.error) as error:
        raise ModelError(f"{path}: not a complete GGUF file ({error}); download it again") from None


class _Cursor:
    """A position in the file's bytes."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return value

    def string(self) -> str:
        end = self.at + 8 + self.number("Q")
        text = self.data[self.at : end]
        if end > len(self.data):
            raise ValueError("a string reaches past the end of the file")
        self.at = end
        return text.decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item_kind, length = self.number("I"), self.number("Q")
            if item_kind == _STRING:
                return [self.string() for _ in range(length)]
            return self._numbers(_format(item_kind), length)
        return self.number(_format(kind))

    def _numbers(self, form: str, length: int) -> list[Any]:
        form = f"<{length}{form}"
        values = list(struct.unpack_from(form, self.data, self.at))
        self.at += struct.calcsize(form)
        return values


def _format(kind: int) -> str:
    form = _FORMATS[kind] if kind < len(_FORMATS) else None
    if form is None:
        raise ValueError(f"metadata of unknown type {kind}")
    return form


def _parse(cursor: _Cursor) -> GGUFHeader:
    if cursor.data[:4] != b"GGUF":
        raise ValueError(f"it begins with {cursor.data[:4]!r}, not with b'GGUF'")
    cursor.at = 4
    version = cursor.number("I")
    if version not in _VERSIONS:
        raise ValueError(f"GGUF version {version} is not supported, only {_VERSIONS}")
    num_tensors, num_entries = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.number("I"))
    directory = []
    for _ in range(num_tensors):
        name, dimensions = cursor.string(), cursor.number("I")
        if not 1 <= dimensions <= 4:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(cursor.number("Q") for _ in range(dimensions))
        directory.append((name, shape[::-1], cursor.number("I"), cursor.number("Q")))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment must be an integer of at least 1, got {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    return GGUFHeader(
        metadata, [GGUFTensor(name, shape, kind, start + offset) for name, shape, kind, offset in directory]
    )
