"""Owns saying what a setting changed: which limit it moved, whom that held back, and what came of it.

Both runs are given; nothing is planned here. Each sentence takes its numbers from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minivllm.analysis.answer import counted
from minivllm.analysis.diff import Diff
from minivllm.analysis.diff_said import Sides
from minivllm.analysis.diff_words import consequences
from minivllm.analysis.whatif_knobs import KNOBS
from minivllm.trace.reader import Log

SIDES = Sides("as recorded", "with the change")
# What a rule is called when it holds somebody back.
_RULES = {
    "token_budget": "the token budget",
    "max_num_seqs": "the number of places",
    "long_prefill_threshold": "the chunk limit",
    "chunked_prefill_off": "the ban on chunks",
    "full_sequence_does_not_fit": "the rule that a whole sequence must fit",
    "no_free_blocks": "too few free blocks",
}


def effects(diff: Diff, a: Log, b: Log, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Cause and effect of changed settings, then all that differs between the runs.

    Args:
        diff: The recorded run and the new one, side by side.
        a, b: Their logs.
        old, new: The changed settings by name, before and after.
    """
    said = [sentence for name in new if (sentence := _effect(name, old[name], new[name], diff))]
    if diff.equal:
        return [*said, *_instead(diff), "Nothing changes: every iteration plans what it planned before."]
    if len(new) > 1:
        said.append("The settings were changed together: to tell their effects apart, change one at a time.")
    told = frozenset(number for name in new for number in _TOLD.get(name, ()))
    return said + consequences(diff, a, b, SIDES, told)


def _effect(name: str, old: Any, new: Any, diff: Diff) -> str:
    if old == new:
        return f"{name} was {_value(old)} already."
    how = _EFFECTS.get(name, _limit)
    return f"{name} {_value(old)} → {_value(new)}: {how(name, old, new, diff)}."


def _instead(diff: Diff) -> list[str]:
    """The rules that took the place of one that let go."""
    times = {r: (diff.a.times_held_back([r]), diff.b.times_held_back([r])) for r in diff.b.held_back}
    more = {r: after for r, (before, after) in times.items() if after > before}
    if not more:
        return []
    rules = ", ".join(f"{_RULES.get(r, r)} in {counted(n, 'iteration')}" for r, n in more.items())
    return [f"Another rule holds them back in its place: {rules}."]


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _held_back(name: str, diff: Diff) -> tuple[int, int]:
    """Iterations in which the rules of a setting held somebody back, in each run."""
    reasons = KNOBS[name].reasons
    return diff.a.times_held_back(reasons), diff.b.times_held_back(reasons)


def _limit(name: str, old: Any, new: Any, diff: Diff) -> str:
    a, b = _held_back(name, diff)
    rule = next((_RULES[reason] for reason in KNOBS[name].reasons if reason in _RULES), "it")
    if not a and not b:
        return f"{rule} held nobody back in either run"
    return f"{rule} held somebody back in {counted(a, 'iteration')} as recorded, in {b} with the change"


def _budget(name: str, old: int, new: int, diff: Diff) -> str:
    used = f"the fullest iteration computes {diff.a.fullest} of {old} tokens as recorded, {diff.b.fullest} of {new} now"
    return f"{_limit(name, old, new, diff)}; {used}"


def _places(name: str, old: int, new: int, diff: Diff) -> str:
    running = f"at most {diff.a.most_running} requests share an iteration as recorded, {diff.b.most_running} now"
    return f"{_limit(name, old, new, diff)}; {running}"


def _blocks(name: str, old: int, new: int, diff: Diff) -> str:
    a, b = diff.a, diff.b
    use = f"at most {a.peak_blocks} of {a.blocks} blocks were in use, now {b.peak_blocks} of {b.blocks}"
    short_a, short_b = _held_back(name, diff)
    short = f"blocks ran short in {counted(short_a, 'iteration')} as recorded, in {short_b} with the change"
    return f"{use}; {short}"


def _block_size(name: str, old: int, new: int, diff: Diff) -> str:
    a, b = diff.a, diff.b
    pool = f"the same number of blocks now holds {b.blocks * new} tokens, not {a.blocks * old}"
    hits = f"prefix hits are whole blocks of {new}, not {old}: {a.hit} tokens found as recorded, {b.hit} now"
    return f"{pool}; {hits}"


def _caching(name: str, old: bool, new: bool, diff: Diff) -> str:
    a, b = diff.a, diff.b
    return (
        f"{counted(a.hit, 'token')} came out of the cache as recorded, {b.hit} with the change, so "
        f"{counted(a.computed, 'token')} had to be computed, and now {b.computed}"
    )


def _policy(name: str, old: str, new: str, diff: Diff) -> str:
    if diff.a.admitted == diff.b.admitted:
        return f"requests get their first tokens in the same order, {', '.join(diff.a.admitted[:8])}"
    orders = [", ".join(run.admitted[:8]) for run in (diff.a, diff.b)]
    return f"requests get their first tokens in the order {orders[0]} as recorded, {orders[1]} now"


def _chunks(name: str, old: bool, new: bool, diff: Diff) -> str:
    if new:
        return f"a prompt may be cut now; {_limit(name, old, new, diff)}"
    whole = "a prompt that does not fit into what is left of the budget waits for a whole one"
    return f"{whole}; {_limit(name, old, new, diff)}"


def _watermark(name: str, old: float, new: float, diff: Diff) -> str:
    blocks = diff.b.blocks + 1
    return (
        f"{int(old * blocks)} blocks were kept free when somebody was admitted beside others, now {int(new * blocks)}; "
        f"{_blocks(name, 0, 0, diff)}"
    )


def _async(name: str, old: bool, new: bool, diff: Diff) -> str:
    if new:
        order = (
            "an iteration is planned before the tokens of the one before it are known, which come one iteration later"
        )
    else:
        order = "an iteration is planned when the tokens of the one before it are known"
    vain = f"{counted(diff.a.in_vain, 'token')} sampled in vain as recorded, {diff.b.in_vain} with the change"
    return f"{order}; {vain}"


_EFFECTS: dict[str, Callable[[str, Any, Any, Diff], str]] = {
    "max_num_batched_tokens": _budget,
    "max_num_seqs": _places,
    "num_gpu_blocks": _blocks,
    "block_size": _block_size,
    "enable_prefix_caching": _caching,
    "policy": _policy,
    "enable_chunked_prefill": _chunks,
    "watermark": _watermark,
    "async_scheduling": _async,
}
# Numbers that the sentence of a setting tells.
_TOLD = {
    "max_num_batched_tokens": ("fullest",),
    "num_gpu_blocks": ("peak_blocks",),
    "block_size": ("hit",),
    "enable_prefix_caching": ("hit", "computed"),
    "watermark": ("peak_blocks",),
}
