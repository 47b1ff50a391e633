"""Writes the import contracts on docs/architecture.md, as a drawing and in words, from pyproject.toml.

python docs/generate_contracts.py
"""

from __future__ import annotations

import re
import tomllib
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
_BLOCK = re.compile(r"(<!-- contracts:begin -->\n).*?(<!-- contracts:end -->)", re.S)

# Sizes of the drawing: a column, what stands left of and above the dots, a row.
_CELL, _LEFT, _TOP, _ROW = 18, 124, 122, 24


def contracts() -> list[dict[str, Any]]:
    """The contracts, as they stand in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return found


def render() -> str:
    """The drawing, then one line a contract."""
    all_contracts = contracts()
    assert all(contract["type"] == "forbidden" for contract in all_contracts), "the drawing knows this kind only"
    words = ["| contract | who | must not import |", "|---|---|---|"]
    for contract in all_contracts:
        who, what = (", ".join(f"`{_short(m)}`" for m in contract[f"{k}_modules"]) for k in ("source", "forbidden"))
        words.append(f"| {contract['name'][0].upper()}{contract['name'][1:]} | {who} | {what} |")
    return _drawing(all_contracts) + "\n" + "\n".join(words) + "\n"


def _short(module: str) -> str:
    return module.removeprefix("minivllm.")


def _drawing(all_contracts: list[dict[str, Any]]) -> str:
    """A table of dots: rows are who, columns are what they must not import."""
    rows = [(_short(source), contract) for contract in all_contracts for source in contract["source_modules"]]
    columns = sorted(
        {module for contract in all_contracts for module in contract["forbidden_modules"]},
        key=lambda module: (not module.startswith("minivllm."), module),
    )
    width, height = _LEFT + _CELL * len(columns) + 40, _TOP + _ROW * len(rows) + 8
    label = "Who must not import what: a dot in the row of one and the column of the other."
    parts = [
        '<div class="mv-drawing">',
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-label="{label}"'
        ' font-family="monospace" font-size="11" fill="currentColor">',
    ]
    for number, module in enumerate(columns):
        x = _LEFT + _CELL * number + _CELL // 2
        parts.append(
            f'<text x="{x}" y="{_TOP - 8}" transform="rotate(-50 {x} {_TOP - 8})">{escape(_short(module))}</text>'
        )
    for number, (source, contract) in enumerate(rows):
        y = _TOP + _ROW * number
        if number % 2 == 0:
            parts.append(f'<rect x="0" y="{y}" width="{width - 40}" height="{_ROW}" opacity="0.07"/>')
        parts.append(f'<text x="6" y="{y + 17}">{escape(source)}</text>')
        for place, module in enumerate(columns):
            if module in contract["forbidden_modules"]:
                x = _LEFT + _CELL * place + _CELL // 2
                title = f"<title>{escape(source)} must not import {escape(_short(module))}</title>"
                parts.append(f'<circle cx="{x}" cy="{y + _ROW // 2}" r="5">{title}</circle>')
    return "\n".join([*parts, "</svg>", "</div>", ""])


def filled(text: str) -> str:
    """The page's text with the contracts replaced."""
    return _BLOCK.sub(lambda match: match[1] + render() + match[2], text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}")
