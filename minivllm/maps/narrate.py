"""Owns the sentences above a map: one for each thing that happened in an iteration, in the order in which it did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minivllm.maps.render.style import printable, ranges
from minivllm.maps.wording import Words, quoted

Facts = dict[str, Any]

# A look-up that found nothing is told if the reason is worth knowing: not of the first one of its kind.
_WORTH_TELLING = ("evicted", "differs", "not_asked")
_UNFINISHED = "\ufffd"


def narrate(iteration: Facts, requests: dict[str, Facts], lang: str = "en") -> list[str]:
    """Tell an iteration of the plan map in plain sentences.

    Args:
        iteration: One entry of `plan_map`'s iterations.
        requests: By id, what is known of each request.
        lang: "en" or "zh".
    """
    return list(_Narrator(iteration, requests, Words(lang)).sentences())


class _Narrator:
    """Tells one iteration."""

    def __init__(self, iteration: Facts, requests: dict[str, Facts], words: Words) -> None:
        self._iteration = iteration
        self._requests = requests
        self._words = words
        self._lookups = {entry["request"]: entry for entry in iteration["lookups"]}
        self._gave_back = {entry["request"]: entry for entry in iteration["gave_back"]}

    def sentences(self) -> Iterator[str]:
        """Everything, in order."""
        facts, words = self._iteration, self._words
        yield from (self._arrived(self._requests[i]) for i in facts["arrived"])
        yield from (words("refused", request=i, message=message) for i, message in facts["refused"])
        yield from self._aborted("before")
        if facts["cache_reset"]:
            yield words("cache_reset")
        if facts["idle"]:
            yield words("idle")
        else:
            yield from self._planned()
        yield from (words("moved", request=i, old=old, new=new) for i, old, new in facts["moved"])
        yield from self._texts()
        yield from self._aborted("mid")
        yield from self._aborted("frontend")
        yield from (self._finished(entry) for entry in facts["finished"] if entry["request"] not in facts["aborted"])

    # ---- coming and going -----------------------------------------------------------------------------------------

    def _arrived(self, request: Facts) -> str:
        values = {"request": request["request"], "count": request["num_prompt_tokens"]}
        if request.get("parent") is None:
            return self._words("arrived", **values)
        return self._words("arrived_child", **values, parent=request["parent"], number=request["index"] + 1)

    def _aborted(self, phase: str) -> Iterator[str]:
        met = {t["request"]: t["stop_reason"] for t in self._iteration["texts"] if t["finish_reason"] == "stop"}
        for entry in self._iteration["aborts"]:
            request = entry["request"]
            if entry["phase"] != phase:
                continue
            freed = self._freed(request)
            if phase == "frontend" and request in met:
                yield self._words(
                    "stop_string", request=request, stop=quoted(printable(str(met[request]))), freed=freed
                )
            else:
                yield self._words(f"aborted_{phase}", request=request, freed=freed)

    def _finished(self, entry: Facts) -> str:
        request, reason, stop = entry["request"], entry["reason"], entry["stop_reason"]
        values: Facts = {"request": request, "freed": self._freed(request)}
        if reason == "length":
            if self._requests[request].get("reached_model_length"):
                return self._words("finished_model_length", **values)
            return self._words("finished_length", **values, count=entry["num_output_tokens"])
        if reason == "stop" and stop is None:
            return self._words("finished_eos", **values)
        if reason == "stop" and isinstance(stop, int):
            texts = self._iteration["stop_texts"]
            shown = f"{stop} ({quoted(printable(texts[request]))})" if texts.get(request) else str(stop)
            return self._words("finished_stop_token", **values, stop=shown)
        if reason == "repetition":
            return self._words("finished_repetition", **values)
        return self._words("finished_other", **values, reason=reason if stop is None else f"{reason} ({stop})")

    def _freed(self, request: str) -> str:
        """What a request that ended gave back, as the end of its sentence."""
        blocks = self._gave_back.get(request)
        if blocks is None or not blocks["num_blocks"]:
            return ""
        count = blocks["num_blocks"]
        if blocks["num_shared"]:
            return self._words("freed_shared", count=count, shared=blocks["num_shared"])
        if blocks["num_cached"]:
            return self._words("freed_cached", count=count, cached=blocks["num_cached"])
        return self._words("freed", count=count)

    # ---- the plan -------------------------------------------------------------------------------------------------

    def _planned(self) -> Iterator[str]:
        facts, words = self._iteration, self._words
        victims = {victim for victim, _, _ in facts["preemptions"]}
        yield from (self._preempted(*preemption) for preemption in facts["preemptions"])
        if not facts["scheduled"] and facts["told_finished"]:
            yield words("only_told", names=words.names(facts["told_finished"]))
        for entry in facts["scheduled"]:
            yield self._scheduled(entry)
            yield from self._blocks(entry["request"])
        for entry in facts["not_scheduled"]:
            if entry["request"] not in victims:
                yield words("waits", request=entry["request"], why=entry["detail"])
        for group in facts["forgotten"]:
            if group["why"] == "taken_back":
                yield words("evicted_taken_back", ids=_ids(group["blocks"]))

    def _preempted(self, victim: str, lost: int, by: str) -> str:
        whys = {entry["request"]: entry["detail"] for entry in self._iteration["not_scheduled"]}
        why = whys.get(victim) or self._words("preempted_why_unknown")
        key = "preempted_self" if by == victim else "preempted"
        return self._words(key, victim=victim, by=by, why=why, lost=lost)

    def _scheduled(self, entry: Facts) -> str:
        words, request = self._words, entry["request"]
        known, before, now = entry["num_tokens_known"], entry["num_computed_before"], entry["num_tokens"]
        to_go = known - before - now
        clauses = [self._head(entry, to_go)]
        cut = next((c for c in self._iteration["cut"] if c["request"] == request), None)
        if cut is not None:
            clauses[0] += words("limit", limit=words(f"limit_{cut['reason']}"))
        if entry["kind"] == "running" and before >= known:
            clauses.append(words("on_its_way"))
        if to_go > 0:
            clauses.append(words("to_go", to_go=to_go))
        return words.sentence(clauses, self._sampled(entry))

    def _head(self, entry: Facts, to_go: int) -> str:
        words, kind, drafts = self._words, entry["kind"], entry["num_drafts"]
        values = {
            "request": entry["request"],
            "now": entry["num_tokens"],
            "before": entry["num_computed_before"],
            "known": entry["num_tokens_known"],
            "cached": entry["num_cached"],
            "drafts": drafts,
        }
        is_past_prompt = values["before"] >= self._requests[entry["request"]]["num_prompt_tokens"]
        if kind == "running" and values["now"] == 1 + drafts and is_past_prompt:
            return words("decoded_drafts" if drafts else "decoded", **values)
        if kind == "running":
            return words("went_on", **values)
        how = "hit" if values["cached"] else "part" if to_go > 0 else ""
        return words("_".join(filter(None, ["entered" if kind == "new" else "came_back", how])), **values)

    def _sampled(self, entry: Facts) -> str:
        words, facts, request = self._words, self._iteration, entry["request"]
        tokens = facts["sampled"].get(request)
        if not tokens:
            return ""
        if request in facts["thrown_away"]:
            return words("thrown_away", request=request)
        texts = facts["token_texts"].get(request)
        shown = " ".join(f'"{printable(text)}"' for text in texts) if texts else " ".join(map(str, tokens))
        if facts["is_late"]:
            return words("sampled_later", tokens=shown)
        if drafts := entry["num_drafts"]:
            return words("sampled_drafts", tokens=shown, right=len(tokens) - 1, drafts=drafts)
        return words("sampled", tokens=shown)

    # ---- blocks and text ------------------------------------------------------------------------------------------

    def _blocks(self, request: str) -> Iterator[str]:
        """What the prefix cache had for a request, and what it lost to it."""
        words = self._words
        if (lookup := self._lookups.get(request)) is not None:
            yield from self._missing(lookup)
        for shared in self._iteration["shared"]:
            blocks = [block for block, count in zip(shared["blocks"], shared["ref_cnt"], strict=True) if count > 1]
            if shared["request"] == request and blocks:
                yield words("shared", request=request, blocks=len(blocks), ids=_ids(blocks))
        for group in self._iteration["forgotten"]:
            if group["request"] == request:
                yield words("evicted_reused", request=request, ids=_ids(group["blocks"]))

    def _missing(self, lookup: Facts) -> Iterator[str]:
        missing, words = lookup["first_missing"], self._words
        if missing is None:
            return
        key = "differs_key" if missing["why"] == "differs" and "token" not in missing else missing["why"]
        why = words(key, other=missing.get("other"), token=missing.get("token"))
        if lookup["hit"]:
            token = lookup["hit"]
            # Not by its number in the sequence: that would be taken for a block id.
            yield words("miss_after_hit", request=lookup["request"], token=token, why=why)
        # All prompts begin with the same mark: to have only that in common is nothing to speak of.
        elif missing["why"] in _WORTH_TELLING and lookup["asked"] and missing.get("token") != 1:
            yield words("miss_first", request=lookup["request"], size=self._iteration["block_size"], why=why)

    def _texts(self) -> Iterator[str]:
        for text in self._iteration["texts"]:
            request, held = text["request"], text["held"] or ""
            if text["finish_reason"] is not None:
                continue
            if held.endswith(_UNFINISHED):
                yield self._words("held_character", request=request)
            elif held:
                yield self._words("held_stop", request=request, count=len(held), text=quoted(printable(held)))
            elif request in self._iteration["was_unfinished"] and text["delta"]:
                yield self._words("released", request=request, text=quoted(printable(text["delta"])))


def _ids(blocks: list[int]) -> str:
    """Blocks as they are named everywhere: "#3–#7"."""
    return "#" + ranges(blocks, "–#", 3).replace(", ", ", #").replace(" and #", " and ")
