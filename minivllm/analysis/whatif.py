"""Owns saying what a setting changed: which limit it moved, whom that held back, and what came of it.

Both runs are given; nothing is planned here. Each sentence takes its numbers from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minivllm.analysis.diff import Diff
from minivllm.analysis.diff_said import sides_of
from minivllm.analysis.diff_words import consequences
from minivllm.analysis.whatif_knobs import KNOBS
from minivllm.analysis.words_diff import DIFF_WORDS
from minivllm.maps.wording import Words
from minivllm.trace.reader import Log


def effects(diff: Diff, a: Log, b: Log, old: Mapping[str, Any], new: Mapping[str, Any], lang: str = "en") -> list[str]:
    """Cause and effect of changed settings, then all that differs between the runs.

    Args:
        diff: The recorded run and the new one, side by side.
        a, b: Their logs.
        old, new: The changed settings by name, before and after.
        lang: "en" or "zh".
    """
    words = Words(lang, DIFF_WORDS)
    said = [_effect(name, old[name], new[name], diff, words) for name in new]
    if diff.equal:
        return [*said, *_instead(diff, words), words("nothing_changes")]
    if len(new) > 1:
        said.append(words("together"))
    told = frozenset(number for name in new for number in _TOLD.get(name, ()))
    return said + consequences(diff, a, b, sides_of(lang, "as_recorded", "with_the_change"), told)


def _effect(name: str, old: Any, new: Any, diff: Diff, words: Words) -> str:
    if old == new:
        return words("already", name=name, value=_value(old))
    how = _EFFECTS.get(name, _limit)(name, old, new, diff, words)
    return words("effect", name=name, old=_value(old), new=_value(new), how=how)


def _instead(diff: Diff, words: Words) -> list[str]:
    """The rules that took the place of one that let go."""
    times = {r: (diff.a.times_held_back([r]), diff.b.times_held_back([r])) for r in diff.b.held_back}
    more = {r: after for r, (before, after) in times.items() if after > before}
    if not more:
        return []
    rules = [words("rule_times", rule=_rule(r, words), count=n) for r, n in more.items()]
    return [words("instead", rules=words("semicolon" if words.lang == "zh" else "comma").join(rules))]


def _rule(reason: str, words: Words) -> str:
    """What a rule is called when it holds somebody back; one without a name by its code."""
    return words(f"rule_{reason}") if f"rule_{reason}" in DIFF_WORDS[words.lang] else reason


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _held_back(name: str, diff: Diff) -> tuple[int, int]:
    """Iterations in which the rules of a setting held somebody back, in each run."""
    reasons = KNOBS[name].reasons
    return diff.a.times_held_back(reasons), diff.b.times_held_back(reasons)


def _limit(name: str, old: Any, new: Any, diff: Diff, words: Words) -> str:
    a, b = _held_back(name, diff)
    named = (reason for reason in KNOBS[name].reasons if f"rule_{reason}" in DIFF_WORDS[words.lang])
    rule = next((words(f"rule_{reason}") for reason in named), words("it"))
    if not a and not b:
        return words("held_nobody", rule=rule)
    return words("held_back", rule=rule, count=a, now=b)


def _two(words: Words, first: str, second: str) -> str:
    return f"{first}{words('semicolon')}{second}"


def _budget(name: str, old: int, new: int, diff: Diff, words: Words) -> str:
    used = words("budget_used", before=diff.a.fullest, old=old, after=diff.b.fullest, new=new)
    return _two(words, _limit(name, old, new, diff, words), used)


def _places(name: str, old: int, new: int, diff: Diff, words: Words) -> str:
    running = words("places_used", before=diff.a.most_running, after=diff.b.most_running)
    return _two(words, _limit(name, old, new, diff, words), running)


def _blocks(name: str, old: int, new: int, diff: Diff, words: Words) -> str:
    a, b = diff.a, diff.b
    use = words("blocks_used", before=a.peak_blocks, old=a.blocks, after=b.peak_blocks, new=b.blocks)
    short_a, short_b = _held_back(name, diff)
    return _two(words, use, words("blocks_short", count=short_a, now=short_b))


def _block_size(name: str, old: int, new: int, diff: Diff, words: Words) -> str:
    a, b = diff.a, diff.b
    pool = words("pool_holds", now=b.blocks * new, before=a.blocks * old)
    return _two(words, pool, words("hits_whole", new=new, old=old, before=a.hit, after=b.hit))


def _caching(name: str, old: bool, new: bool, diff: Diff, words: Words) -> str:
    a, b = diff.a, diff.b
    return words("caching", hit=a.hit, hit_now=b.hit, computed=a.computed, computed_now=b.computed)


def _policy(name: str, old: str, new: str, diff: Diff, words: Words) -> str:
    before, after = (words.names(run.admitted[:8]) for run in (diff.a, diff.b))
    if diff.a.admitted == diff.b.admitted:
        return words("same_order", names=before)
    return words("other_order", before=before, after=after)


def _chunks(name: str, old: bool, new: bool, diff: Diff, words: Words) -> str:
    return words("may_be_cut" if new else "waits_for_whole", limit=_limit(name, old, new, diff, words))


def _watermark(name: str, old: float, new: float, diff: Diff, words: Words) -> str:
    blocks = diff.b.blocks + 1
    rest = _blocks(name, 0, 0, diff, words)
    return words("watermark", before=int(old * blocks), after=int(new * blocks), blocks=rest)


def _async(name: str, old: bool, new: bool, diff: Diff, words: Words) -> str:
    vain = words("in_vain", count=diff.a.in_vain, now=diff.b.in_vain)
    return words("plans_ahead" if new else "plans_after", vain=vain)


_EFFECTS: dict[str, Callable[[str, Any, Any, Diff, Words], str]] = {
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
