"""Owns where logs are kept on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path


def state_home() -> Path:
    """The user's folder for logs: $MINIVLLM_HOME/logs, or minivllm/logs below $XDG_STATE_HOME."""
    if own := os.environ.get("MINIVLLM_HOME"):
        return Path(own) / "logs"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "minivllm" / "logs"


def new_log_path(name: str) -> Path:
    """A path for a new log; names sort by time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = state_home() / f"{stamp}-{name}.jsonl"
    number = 1
    while path.exists():
        number += 1
        path = state_home() / f"{stamp}-{name}-{number}.jsonl"
    return path


def newest_log() -> Path | None:
    """The log that was written last, or None."""
    logs = [path for path in state_home().glob("*.jsonl*") if path.is_file()]
    return max(logs, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)
