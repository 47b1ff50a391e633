"""Writes the outputs on pages that prove what they say: below each command and each program, what it prints.

PYTHONPATH=. python docs/generate_outputs.py

A block of `console` holds commands ("$ minivllm ...", which may end in "| grep WORDS" or "| head -N") and what they
print; a block of `python` that is followed by one of `text` is a program and its output. All run in this process. A
block below "<!-- source: PATH | FIRST LINE | LAST LINE -->" is a piece of our source. A test fails when one is another.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import textwrap
from pathlib import Path
from unittest import mock

DOCS = Path(__file__).parent
PAGES = ("articles.md", "kernels.md", "kv-cache.md", "batch.md")
COLUMNS = 84

_CONSOLE = re.compile(r"^```console\n(?P<body>.*?)^```$", re.M | re.S)
_LINES = r"(?:(?!```).*\n)*"
_PROGRAM = re.compile(rf"^```python\n(?P<code>{_LINES})```\n\n```text\n{_LINES}```$", re.M)
_MARK = r"<!-- source: (?P<path>\S+) \| (?P<first>.+?) \| (?P<last>.+?) -->"
_SOURCE = re.compile(rf"^(?P<mark>{_MARK})\n```python\n{_LINES}```$", re.M)


def filled(text: str) -> str:
    """The page with every output as it is now."""
    text = _SOURCE.sub(lambda b: f"{b['mark']}\n```python\n{piece_of(b['path'], b['first'], b['last'])}```", text)
    text = _CONSOLE.sub(lambda found: f"```console\n{_session(found['body'])}```", text)
    return _PROGRAM.sub(lambda b: f"```python\n{b['code']}```\n\n```text\n{output_of_program(b['code'])}```", text)


def piece_of(path: str, first: str, last: str) -> str:
    """Lines of a file, from the one that starts with `first` to the next one that starts with `last`."""
    lines = (DOCS.parent / path).read_text(encoding="utf-8").splitlines()
    begin = next(number for number, line in enumerate(lines) if line.strip().startswith(first))
    end = next(number for number in range(begin, len(lines)) if lines[number].strip().startswith(last))
    return textwrap.dedent("\n".join(lines[begin : end + 1])) + "\n"


def _session(body: str) -> str:
    commands = [line.removeprefix("$ ") for line in body.splitlines() if line.startswith("$ ")]
    return "".join(f"$ {command}\n{output_of_command(command)}" for command in commands)


def output_of_command(command: str) -> str:
    """What a shell would show of a command of ours, with the two filters that pages use."""
    words = shlex.split(command)
    parts: list[list[str]] = [[]]
    for word in words:
        parts.append([]) if word == "|" else parts[-1].append(word)
    program, *arguments = parts[0]
    assert program == "minivllm", command
    lines = _run(arguments).splitlines()
    for name, *how in parts[1:]:
        lines = _FILTERS[name](lines, *how)
    assert lines, f"prints nothing: {command}"
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _grep(lines: list[str], *how: str) -> list[str]:
    words = [word for word in how if word not in ("-e", "-F")]
    return [line for line in lines if any(word in line for word in words)]


def _head(lines: list[str], how: str) -> list[str]:
    return lines[: int(how.removeprefix("-"))]


def _tail(lines: list[str], how: str) -> list[str]:
    return lines[-int(how.removeprefix("-")) :]


_FILTERS = {"grep": _grep, "head": _head, "tail": _tail}


def _run(arguments: list[str]) -> str:
    from minivllm.entrypoints.cli.main import main

    quiet = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, quiet | {"COLUMNS": str(COLUMNS)}, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        main(arguments)
    return out.getvalue()


def output_of_program(code: str) -> str:
    """What a program prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "<page>", "exec"), {"__name__": "__main__"})
    return out.getvalue()


if __name__ == "__main__":
    for name in PAGES:
        page = DOCS / name
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {page}")
