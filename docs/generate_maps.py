"""Writes the pictures and blocks of docs/maps.md and docs/zh/maps.md: what their commands print. A test compares.

python docs/generate_maps.py
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "maps.md", ROOT / "docs" / "zh" / "maps.md")
# A fenced block whose first line is "$ minivllm ..." holds that command's output.
_BLOCK = re.compile(r"^```(?P<lang>\w+)\n\$ minivllm (?P<command>map [^\n]*)\n.*?^```$", re.M | re.S)
# A picture that stands below the command that writes it.
_PICTURE = re.compile(r"^<!-- minivllm (?P<command>map [^\n]*) -o (?P<path>docs/\S+\.svg) -->$", re.M)


def output_of(command: str) -> str:
    """What a command prints, as on a pipe."""
    quiet = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS", "NO_COLOR")}
    arguments = [sys.executable, "-m", "minivllm", *shlex.split(command)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT, env=quiet)
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())


def filled(text: str) -> str:
    """The page with every block as its command prints it."""

    def block(found: re.Match[str]) -> str:
        command = found["command"]
        return f"```{found['lang']}\n$ minivllm {command}\n{output_of(command)}\n```"

    return _BLOCK.sub(block, text)


def pictures(text: str) -> dict[Path, str]:
    """The pictures of the page, by path."""
    return {
        ROOT / found["path"]: output_of(f"{found['command']} --format svg") + "\n" for found in _PICTURE.finditer(text)
    }


if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(filled(text), encoding="utf-8")
        for path, svg in pictures(text).items():
            path.write_text(svg, encoding="utf-8")
            print(f"wrote {path}")
