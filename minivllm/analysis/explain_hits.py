"""Owns what the prefix cache's hit rate counts: tokens of newly admitted requests, found in whole blocks.

A request that comes back from a preemption looks up again, and finds what it computed itself: it is counted apart.
"""

from __future__ import annotations

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.explain_answer import Ask, Explanation, Table, plans, settings, summed
from minivllm.maps.wording import Words
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

_OURS = "minivllm.core.kv_cache_manager:KVCacheManager.record_prefix_cache_stats"
_VLLM = "vllm/v1/core/kv_cache_manager.py::KVCacheManager.record_prefix_cache_stats"

_COLUMNS = ("iteration", "request", "tokens", "found", "blocks", "and_then")


def hit_rate(log: Log, ask: Ask) -> Explanation:
    """Hits over queries, in tokens, of the whole run (or up to an iteration), or of one request.

    Raises:
        CannotKnowError: The log does not hold plans, or does not hold the look-ups that they rest on.
        ValueError: Nobody looked anything up.
    """
    words = ask.words()
    cache = settings(log, "cache_config")
    if not cache["enable_prefix_caching"]:
        raise ValueError("prefix caching is off in this run: nobody looked anything up")
    every = [
        (event, who, queries, hits)
        for event in plans(log)
        if ask.iteration is None or event.step <= ask.iteration
        for who, queries, hits in event.data["prefix_cache"]
        if ask.request in (None, who)
    ]
    if not every:
        raise ValueError(f"{ask.request or 'nobody'} was not admitted in this run: nothing was counted")
    size = cache["block_size"]
    first_missing = _first_missing(log, {(who, event.step) for event, who, _, _ in every}, words)
    rows = [(*_cells(count, words), str(count[3] // size), first_missing[count[1], count[0].step]) for count in every]
    counts, back = [c for c in every if not _came_back(c)], [c for c in every if _came_back(c)]
    queries, hits = sum(c[2] for c in counts), sum(c[3] for c in counts)
    if not counts:
        raise ValueError(f"{ask.request or 'nobody'} was not newly admitted in what you ask for: only new ones count")
    of = words("of_request", request=ask.request) if ask.request else ""
    percent = f"{hits / queries * 100:.1f}"
    explanation = Explanation(
        "hit-rate",
        words("hit_rate", hits=hits, queries=queries, of=of, percent=percent, count=len(counts)),
        "hit rate = tokens found / tokens looked up, over all admissions of new requests",
        f"hit rate = ({summed([c[3] for c in counts])}) / ({summed([c[2] for c in counts])}) = {hits} / {queries}",
        {
            "queries": queries,
            "hits": hits,
            "lookups": len(counts),
            "preempted_queries": sum(c[2] for c in back),
            "preempted_hits": sum(c[3] for c in back),
            "preempted_lookups": len(back),
            "block_size": size,
        },
        hits / queries,
        _OURS,
        _VLLM,
        request=ask.request,
        iteration=ask.iteration,
        tables=[Table(words("lookups"), tuple(map(words, _COLUMNS)), rows)],
        hint=f"why {every[-1][1]} no-hit",
    )
    explanation.more = [
        words("whole_blocks", size=size),
        words("queries_are"),
        *_comebacks(back, hits, queries, words),
        _uncounted(log, {(who, event.step) for event, who, _, _ in every}, ask, words),
    ]
    explanation.more = [sentence for sentence in explanation.more if sentence]
    return explanation


def _first_missing(log: Log, admissions: set[tuple[str, int]], words: Words) -> dict[tuple[str, int], str]:
    """Why each look-up went no further. A look-up that gives the same as the one before is not in the log again."""
    last: dict[str, str] = {}
    found: dict[tuple[str, int], str] = {}
    admitted: dict[int, list[str]] = {}
    for who, step in admissions:
        admitted.setdefault(step, []).append(who)
    for event in log.events:
        if event.kind == "kv.lookup" and event.request is not None:
            missing = event.data["first_missing"]
            last[event.request] = words("next_block", index=missing["index"], why=words(missing["why"]))
        if event.kind == "schedule":
            found |= {(who, event.step): last.get(who, "") for who in admitted.get(event.step, [])}
    unknown = sorted(who for (who, _), text in found.items() if not text)
    if unknown and log.window is None:
        raise CannotKnowError(f"the log cannot say: it does not hold the look-up (kv.lookup) of {', '.join(unknown)}")
    return found


def _came_back(count: tuple[Event, str, int, int]) -> bool:
    event, who, _, _ = count
    return who in event.data["resumed"]


def _cells(count: tuple[Event, str, int, int], words: Words) -> tuple[str, str, str, str]:
    event, who, queries, hits = count
    name = words("again", request=who) if _came_back(count) else who
    return str(event.step), name, str(queries), str(hits)


def _comebacks(back: list[tuple[Event, str, int, int]], new_hits: int, new_queries: int, words: Words) -> list[str]:
    """What was looked up by requests that came back from a preemption."""
    if not back:
        return []
    queries, hits = sum(b[2] for b in back), sum(b[3] for b in back)
    return [
        words("not_among", count=len(back), hits=hits, queries=queries),
        words("of_everything", hits=new_hits + hits, queries=new_queries + queries),
    ]


def _uncounted(log: Log, admitted: set[tuple[str, int]], ask: Ask, words: Words) -> str:
    """Look-ups of requests that could not be admitted then."""
    tried = [
        (event.request, event.step)
        for event in log.events
        if event.kind == "kv.lookup" and ask.request in (None, event.request)
    ]
    repeats = [pair for pair in tried if pair not in admitted]
    if not repeats:
        return words("each_counts")
    return words("no_admission", count=len(repeats))
