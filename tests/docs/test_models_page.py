"""The page of models names exactly what the code has."""

from __future__ import annotations

import re
from pathlib import Path

from minivllm.models.gguf_file import quantisations
from minivllm.models.gguf_tokenizer import _PRE
from minivllm.models.registry import ARCHITECTURES

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def test_every_architecture_has_its_row() -> None:
    lines = section("Architectures: Llama, Mistral, Qwen { #architectures }").splitlines()
    rows = [line for line in lines if "ForCausalLM" in line]
    assert len(rows) == len(ARCHITECTURES)
    for row, entry in zip(rows, ARCHITECTURES.values(), strict=True):
        file = f"{entry.module.replace('.', '/')}.py"
        # Without a name of its own in such files, an architecture goes by Llama's.
        assert row.startswith(f"| {entry.name} | {entry.models} | `{file}` | `{entry.gguf or 'llama'}` |")


def test_every_quantisation_is_listed() -> None:
    assert set(re.findall(r"`([A-Z0-9_]+)`", section("Quantisations of GGUF files"))) == set(quantisations())


def test_every_way_to_split_text_is_listed() -> None:
    row = next(line for line in section("Tokenizers").splitlines() if line.startswith("| `gpt2`"))
    assert re.findall(r"`([\w-]+)`", row.split("|")[3]) == list(_PRE)
