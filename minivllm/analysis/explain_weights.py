"""Owns how a checkpoint's tensors became our parameters: which rows of which product each one fills, and its bytes."""

from __future__ import annotations

from typing import Any

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.explain_answer import Ask, Explanation, Table, shape_of, share_text, size_text, summed
from minivllm.maps.wording import Words
from minivllm.trace.reader import Log

_OURS = "minivllm.models.loader:ModelLoader.load"
_VLLM = "vllm/model_executor/models/llama.py::LlamaForCausalLM.load_weights"
_PARTS = (("embedding", "embed_tokens"), ("attention", "self_attn"), ("MLP", "mlp"), ("head", "lm_head"))

_COLUMNS = ("in_checkpoint", "stored", "our_parameter", "layers", "bytes")


def weights(log: Log, ask: Ask) -> Explanation:
    """Which tensor went where.

    Raises:
        CannotKnowError: The header does not hold the model's shape, or no tensors.
    """
    words = ask.words()
    shape = shape_of(log)
    if not shape.get("tensors"):
        raise CannotKnowError("the log cannot say: its header does not hold where tensors went (model_shape.tensors)")
    number, tensors = shape["bytes_per_number"], shape["tensors"]
    parts: dict[str, int] = {}
    rows = []
    for name, stored, ours, first, count, columns, times in tensors:
        bytes_ = count * (columns or 1) * times * number
        parts[_part(ours)] = parts.get(_part(ours), 0) + bytes_
        rows.append((name, stored or "random", _place(tensors, ours, first, count), _times(times), size_text(bytes_)))
    total = sum(parts.values())
    fused = sorted({row[2] for row in tensors if sum(other[2] == row[2] for other in tensors) > 1})
    became = {"size": size_text(total), "dtype": shape["dtype"]}
    explanation = Explanation(
        "weights",
        words("became", count=sum(row[6] for row in tensors), model=log.header.model, **became),
        "bytes = sum(rows * columns * layers * bytes per number)",
        f"bytes = ({summed([v // number for v in parts.values()])}) * {number} = {total}",
        {
            "parts": parts,
            "bytes_per_number": number,
            "tensors": sum(row[6] for row in tensors),
            "tie_word_embeddings": shape["tie_word_embeddings"],
            "fused": fused,
        },
        total,
        _OURS,
        _VLLM,
        tables=[
            Table(words("tensors"), tuple(map(words, _COLUMNS)), rows),
            Table(words("bytes_by_part"), tuple(map(words, ("part", "bytes", "share"))), _shares(parts, total)),
        ],
        hint="explain memory",
    )
    explanation.more = [*_fused(fused, tensors, words), words("tied" if shape["tie_word_embeddings"] else "own_head")]
    if total != shape["weight_bytes"]:
        explanation.more.append(words("weights_contradiction", count=shape["weight_bytes"]))
    return explanation


def _part(ours: str) -> str:
    return "norms" if "norm" in ours else next((name for name, mark in _PARTS if mark in ours), "other")


def _place(tensors: list[list[Any]], ours: str, first: int, count: int) -> str:
    whole = sum(row[2] == ours for row in tensors) == 1
    return ours if whole else f"{ours} [{first}:{first + count}]"


def _times(times: int) -> str:
    return "" if times == 1 else f"x {times}"


def _shares(parts: dict[str, int], total: int) -> list[tuple[str, ...]]:
    return [(name, size_text(bytes_), share_text(bytes_ / total)) for name, bytes_ in parts.items()]


def _fused(fused: list[str], tensors: list[list[Any]], words: Words) -> list[str]:
    sentences = []
    for ours in fused:
        names = list(dict.fromkeys(row[0].rsplit(".", 2)[-2] for row in tensors if row[2] == ours))
        sentences.append(words("fused", ours=ours, names=words.names(names), count=len(names)))
    return sentences
