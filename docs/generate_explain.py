"""Writes the blocks of docs/explain.md: each is what its command prints. A test fails when one is not.

python docs/generate_explain.py
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explain.md"
# A fenced block whose first line is "$ minivllm explain ..." holds that command's output.
_BLOCK = re.compile(r"^```text\n\$ minivllm (?P<command>explain [^\n]*)\n.*?^```$", re.M | re.S)


def output_of(command: str) -> str:
    """What a command prints, as on a pipe."""
    quiet = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS", "NO_COLOR")}
    arguments = [sys.executable, "-m", "minivllm", *shlex.split(command)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT, env=quiet)
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())


def filled(text: str) -> str:
    """The page with every block as its command prints it."""
    return _BLOCK.sub(lambda b: f"```text\n$ minivllm {b['command']}\n{output_of(b['command'])}\n```", text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}")
