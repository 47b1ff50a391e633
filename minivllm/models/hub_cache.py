"""Owns finding a model of the Hugging Face hub in this machine's cache, by its hub name. No network, no torch.

    models--Qwen--Qwen3-0.6B/
        refs/main                     the commit that "main" was when it was downloaded
        snapshots/COMMIT/config.json  links to the files of that commit

Upstream: the huggingface_hub library, which vLLM uses.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from minivllm.models.errors import ModelNotHereError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_name(name: str) -> bool:
    """Whether a name has the form owner/model."""
    return _HUB_NAME.fullmatch(name) is not None


def cache_folder() -> Path:
    """Where downloads of the hub are: $HF_HUB_CACHE, or hub below $HF_HOME, or the user's cache folder."""
    if own := os.environ.get("HF_HUB_CACHE"):
        return Path(own).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface" / "hub"


def find_snapshot(name: str) -> Path:
    """The folder of a model's files, preferring the commit that "main" was. Raises ModelNotHereError without one."""
    repository = cache_folder() / f"models--{name.replace('/', '--')}"
    snapshots = sorted(repository.glob("snapshots/*/config.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    main = repository / "refs" / "main"
    commit = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
    for config in sorted(snapshots, key=lambda file: file.parent.name != commit):
        return config.parent
    raise ModelNotHereError(
        f"model {name!r} is neither a folder nor in the Hugging Face cache {cache_folder()}; run: hf download {name}"
    )
