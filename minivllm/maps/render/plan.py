"""Owns drawing the plan map in a terminal: sentences first, then the plan, then what the worker made of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from minivllm.maps.folding import Folded, Folding
from minivllm.maps.render.style import ASCII, UNICODE, Glyphs, printable, ranges, request_colours, to_ascii
from minivllm.sourcemap.locate import shown
from minivllm.trace.events import Header

_NARROW = 80
# Below, columns have short names, and numbers that do not follow one another are cut short.
_ROOM_FOR_NAMES, _ROOM_FOR_WORDS = 100, 136
_MAX_REQUESTS = 16
# A longer prompt is shown by its end, where the answer goes on.
_MAX_PROMPT, _END_OF_PROMPT = 280, 60
_BATCH_NAMES = {"slots": "slot", "rows": "row"}


class PlanRenderer:
    """Draws iterations of a plan map.

    Args:
        plan: What `plan_map` made of a log.
        header: That log's header.
        console: Where to draw; its width decides the layout.
        ascii_only: Use no character beyond ASCII.
        request: One that was asked for: where many have much in common, nothing of it is left out.
    """

    def __init__(
        self,
        plan: dict[str, Any],
        header: Header,
        console: Console,
        *,
        ascii_only: bool = False,
        request: str | None = None,
    ) -> None:
        self._requests = {request["request"]: request for request in plan["requests"]}
        self._colours = request_colours(list(self._requests))
        # Longest first, so that R10 is never taken for R1.
        ids = sorted(map(re.escape, self._requests), key=len, reverse=True)
        self._any_request = re.compile(rf"(?<!\w)(?:{'|'.join(ids)})(?!\w)") if ids else None
        self._request = request
        self._folding = Folding(list(self._requests), plan.get("lang", "en"), request)
        self._header = header
        self._console = console
        self._width = console.width
        self._glyphs: Glyphs = ASCII if ascii_only else UNICODE
        self._ascii_only = ascii_only
        # By request, when it was admitted, and with how large a hit: one that is preempted and comes back has several.
        self._hits: dict[str, list[tuple[int, int]]] = {}
        for iteration in plan["iterations"]:
            for entry in iteration["scheduled"]:
                if entry["kind"] != "running":
                    hit = (iteration["iteration"], entry["num_cached"])
                    self._hits.setdefault(entry["request"], []).append(hit)

    def draw_header(self) -> None:
        """One line that says what ran."""
        config = self._header.config
        is_async = config.get("scheduler_config", {}).get("async_scheduling", False)
        parts = [
            self._header.scenario or "prompts",
            self._header.model,
            self._header.device,
            "async scheduling" if is_async else "sync",
            str(config.get("batch", "")),
        ]
        self._print(Text(f" {self._glyphs.dot} ".join(part for part in parts if part), style="bold"))

    def draw(self, iteration: dict[str, Any], *, with_plan: bool = True) -> None:
        """One iteration: its story, and unless only that is wanted its plan and its batch."""
        self._print(self._rule(iteration))
        for sentence in self._folding.sentences(iteration["narration"]):
            self._print(_indented(self._sentence(sentence)))
        if not with_plan:
            self._print(Text(""))
            return
        if iteration["scheduled"] or iteration["not_scheduled"]:
            self._print(self._place("PLAN", iteration["source"].get("schedule")))
            self._print(self._plan_table(iteration))
        if iteration["batch"] is not None:
            self._print(self._place("BATCH", iteration["source"].get("prepare_inputs")))
            self._print(self._batch_table(iteration))
            for line in self._batch_lines(iteration):
                self._print(_indented(line))
        self._print(Text(""))

    def draw_left_out(self, iterations: list[dict[str, Any]]) -> None:
        """One line for several iterations in which nothing but plain decoding happened."""
        first, last, count = iterations[0]["iteration"], iterations[-1]["iteration"], len(iterations[0]["scheduled"])
        who = "1 request decoded one token in each" if count == 1 else f"in each, {count} requests decoded one token"
        if waiting := len(iterations[0]["not_scheduled"]):
            who += f", and {waiting} waited as before"
        self._draw_more(f"iterations {first} to {last}: {who} (see --iteration all)")

    def draw_rest(self, iterations: list[dict[str, Any]]) -> None:
        """One line for the iterations that are too many to be told here."""
        first, last = iterations[0]["iteration"], iterations[-1]["iteration"]
        self._draw_more(f"iterations {first} to {last}: see --iteration N, --iteration {first}:{last}, or --request ID")

    def _draw_more(self, text: str) -> None:
        self._print(Text(f"{self._glyphs.more} {text}", style="dim"))
        self._print(Text(""))

    def draw_requests(self) -> None:
        """How each request ended, and what it says; of many only the first, and the one that was asked for."""
        ids = list(self._requests)
        shown = ids if len(ids) <= _MAX_REQUESTS else ids[:_MAX_REQUESTS]
        if self._request in ids and self._request not in shown:
            shown = [*shown, str(self._request)]
        for request_id in shown:
            self._print(_indented(self._ending(self._requests[request_id])))
        if left_out := len(ids) - len(shown):
            self._print(Text(f"  {self._glyphs.more} and {left_out} more requests (see --request)", style="dim"))

    def _ending(self, request: dict[str, Any]) -> Text:
        line = Text()
        line.append(f"{request['request']:<4}", style=f"bold {self._colours[request['request']]}")
        if request["prompt"] is not None and len(request["prompt"]) <= _MAX_PROMPT:
            line.append(f" {printable(request['prompt'])}", style="dim")
        elif request["num_prompt_tokens"]:
            line.append(f" [{request['num_prompt_tokens']} prompt tokens] ", style="dim")
            if request["prompt"] is not None:
                line.append(f"{self._glyphs.more}{printable(request['prompt'][-_END_OF_PROMPT:])}", style="dim")
        line.append(printable(request["text"]))
        reason = request["finish_reason"] or "not finished"
        count = request["num_output_tokens"]
        line.append(f"  ({count} {'token' if count == 1 else 'tokens'}, {reason})", style="dim")
        return line

    def draw_note(self, note: str) -> None:
        """A remark under the picture."""
        self._print(_indented(Text(note, style="italic")))

    def _print(self, renderable: RenderableType) -> None:
        if not self._ascii_only:
            self._console.print(renderable)
            return
        with self._console.capture() as capture:
            self._console.print(renderable)
        self._console.file.write(to_ascii(capture.get()))

    def _rule(self, iteration: dict[str, Any]) -> Text:
        glyphs = self._glyphs
        left = f"{glyphs.rule * 2} iteration {iteration['iteration']} "
        right = ""
        if iteration["budget"] is not None:
            budget = iteration["budget"]
            right = (
                f" {budget['used']} of {budget['tokens']} tokens {glyphs.dot} "
                f"{iteration['num_running']} of {budget['max_num_seqs']} running {glyphs.rule * 2}"
            )
        fill = glyphs.rule * max(self._width - len(left) - len(right), 2)
        return Text(left + fill + right, style="bold", no_wrap=True, overflow="crop")

    def _sentence(self, sentence: str) -> Text:
        text = Text(printable(sentence))
        for named in self._any_request.finditer(text.plain) if self._any_request else ():
            text.stylize(f"bold {self._colours[named[0]]}", *named.span())
        return text

    def _place(self, name: str, source: dict[str, str] | None) -> Text:
        """Where this part of the map is, here and in vLLM; vLLM's only where there is room for it."""
        text = Text(f"{name:<6}", style="bold")
        if source is not None:
            qualname = source["ours"].partition(":")[2]
            text.append(f" {qualname}   {shown(source['ours'])}", style="not bold")
            if len(text) + len(source["vllm"]) + 3 <= self._width:
                text.append(f"   {source['vllm']}", style="not bold dim")
        return text

    def _plan_table(self, iteration: dict[str, Any]) -> Table:
        glyphs = self._glyphs
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 1), show_edge=False, expand=False)
        for name in ("request", "kind"):
            table.add_column(name, no_wrap=True)
        for name in ("before", "now", "known"):
            table.add_column(name, justify="right", no_wrap=True)
        bar_width = max(min(self._width - 74, 60), 6) if self._width >= _NARROW else 0
        if bar_width:
            legend = f"{glyphs.cached} cached {glyphs.computed} computed {glyphs.now} now {glyphs.owed} owed"
            short = f"{glyphs.cached}hit {glyphs.computed}done {glyphs.now}now {glyphs.owed}owed"
            table.add_column(legend if self._width >= 100 else short, no_wrap=True, min_width=bar_width)
        table.add_column("new blocks" if self._width >= _NARROW else "", no_wrap=True, overflow="ellipsis")
        ends = (max(e["num_tokens_known"], e["num_computed_before"] + e["num_tokens"]) for e in iteration["scheduled"])
        longest = max(ends, default=1)
        for entry in self._folding.rows(iteration["scheduled"], itemgetter("kind"), itemgetter("request")):
            if isinstance(entry, Folded):
                tokens = sum(e["num_tokens"] for e in entry.entries)
                table.add_row(*self._folded(entry.entries), glyphs.dash, str(tokens), glyphs.dash, style="dim")
                continue
            i, before, now, known = (
                entry[k] for k in ("request", "num_computed_before", "num_tokens", "num_tokens_known")
            )
            row: list[RenderableType] = [Text(i, style=f"bold {self._colours[i]}"), entry["kind"]]
            row += [str(before), Text(str(now), style="bold"), str(known)]
            if bar_width:
                hits = [tokens for number, tokens in self._hits.get(i, ()) if number <= iteration["iteration"]]
                cached = min(hits[-1], before) if hits else 0
                row.append(Text(self._bar(cached, before, now, known, bar_width, longest), style=self._colours[i]))
            blocks = iteration["blocks"]["allocated"].get(i, [])
            row.append(f"#{self._ranges(blocks)}" if blocks else glyphs.dash)
            table.add_row(*row)
        for entry in self._folding.rows(iteration["not_scheduled"], itemgetter("reason"), itemgetter("request")):
            if isinstance(entry, Folded):
                table.add_row(*self._folded(entry.entries), *[glyphs.dash] * 3, style="dim")
                continue
            i = entry["request"]
            dashes = [glyphs.dash] * 2 + [str(self._requests[i]["num_prompt_tokens"])]
            row = [Text(i, style=f"bold {self._colours[i]}"), "waits", *dashes]
            row += [Text(entry["reason"], style="dim")] if bar_width else []
            table.add_row(*row, glyphs.dash if bar_width else entry["reason"])
        return table

    def _folded(self, entries: list[dict[str, Any]]) -> list[str]:
        """The first cells of a line that stands for many: how many, and whom."""
        return [f"{self._glyphs.more} {len(entries)} more", self._folding.names([e["request"] for e in entries])]

    def _bar(self, cached: int, before: int, now: int, known: int, width: int, longest: int) -> str:
        """Tokens drawn to one scale for all requests; what happens now is never too small to see."""
        scale = min(width / max(longest, 1), 1.0)
        # Where each part ends is rounded, not its length: then all parts together have the length of the whole.
        end_cached, end_before, end_now, end = (
            round(tokens * scale) for tokens in (cached, before, before + now, max(known, before + now))
        )
        if end_now == end_before:
            end_now = min(end_before + 1, max(end, 1))
            end_before = end_now - 1
            end_cached = min(end_cached, end_before)
        glyphs = self._glyphs
        return (
            glyphs.cached * end_cached
            + glyphs.computed * (end_before - end_cached)
            + glyphs.now * (end_now - end_before)
            + glyphs.owed * (end - end_now)
        )

    def _batch_table(self, iteration: dict[str, Any]) -> Table:
        batch, dash = iteration["batch"], self._glyphs.dash
        place_name = _BATCH_NAMES.get(self._header.config.get("batch", ""), "place")
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 1), show_edge=False)
        table.add_column(place_name, justify="right", no_wrap=True)
        table.add_column("request", no_wrap=True)
        is_narrow = self._width < _NARROW
        table.add_column("query" if self._width < _ROOM_FOR_NAMES else "query_start_loc", no_wrap=True)
        table.add_column("seq_len", justify="right", no_wrap=True)
        if not is_narrow:
            table.add_column("positions", no_wrap=True)
            table.add_column("slots", no_wrap=True, overflow="ellipsis")
        table.add_column("logits row", overflow="ellipsis", no_wrap=True)
        not_sampled = ", thrown away" + (": more of it is still to compute" if self._width >= _ROOM_FOR_WORDS else "")
        kinds = {e["request"]: e["kind"] for e in iteration["scheduled"]}
        places = list(enumerate(batch["order"]))
        for entry in self._folding.rows(places, lambda place: kinds.get(place[1]), itemgetter(1)):
            if isinstance(entry, Folded):
                (first, _), (last, _) = entry.entries[0], entry.entries[-1]
                query = f"[{batch['query_start_loc'][first]}, {batch['query_start_loc'][last + 1]})"
                names = self._folding.names([request_id for _, request_id in entry.entries])
                table.add_row(self._glyphs.more, f"{len(entry.entries)} more: {names}", query, style="dim")
                continue
            k, request_id = entry
            start, end = batch["query_start_loc"][k : k + 2]
            rows = [row for row in batch["logits_indices"] if start <= row < end]
            cells: list[RenderableType] = [
                str(batch["places"][k]),
                Text(request_id, style=f"bold {self._colours[request_id]}"),
                f"[{start}, {end})",
                str(batch["seq_lens"][k]),
            ]
            if not is_narrow:
                cells.append(self._ranges(batch["positions"][start:end]))
                cells.append(self._ranges(batch["slot_mapping"][start:end]))
            is_sampled = bool(iteration["sampled"].get(request_id))
            table.add_row(*cells, ranges(rows, dash) + ("" if is_sampled else not_sampled))
        return table

    def _batch_lines(self, iteration: dict[str, Any]) -> Iterator[Text]:
        batch, dot = iteration["batch"], self._glyphs.dot
        tokens = "1 token" if batch["num_tokens"] == 1 else f"{batch['num_tokens']} tokens"
        mode = "eager" if batch["graph_mode"] == "NONE" else batch["graph_mode"]
        yield Text(
            f"query_start_loc {self._numbers(batch['query_start_loc'])} {dot} "
            f"{tokens} {dot} {mode} {dot} {batch['attention_backend']} attention",
            overflow="fold",
        )
        if self._header.config.get("batch") == "rows" and not any(e["num_drafts"] for e in iteration["scheduled"]):
            order, starts = _slot_order(iteration)
            if order != batch["order"]:
                text = f"kept in slots instead of rows, the order would be {', '.join(order)}: {self._numbers(starts)}"
                yield Text(text, style="dim")

    def _ranges(self, numbers: list[int]) -> str:
        """Numbers in as few characters as there is room for: "3, 7–12 and 4 more", or only "3 …"."""
        if self._width >= _ROOM_FOR_NAMES:
            return ranges(numbers, self._glyphs.dash, 3)
        return re.sub(r" and \d+ more$", f" {self._glyphs.more}", ranges(numbers, self._glyphs.dash, 1))

    def _numbers(self, numbers: list[int], limit: int = 12) -> str:
        more = [self._glyphs.more] if len(numbers) > limit else []
        return f"[{', '.join([*map(str, numbers[:limit]), *more])}]"


def _indented(text: Text) -> Padding:
    """A paragraph whose every line is set in, however often it is wrapped."""
    return Padding(text, (0, 0, 0, 2), expand=False)


def _slot_order(iteration: dict[str, Any]) -> tuple[list[str], list[int]]:
    """The order of a slot-based batch: uniform decodes first, then by length."""
    scheduled = sorted(iteration["scheduled"], key=lambda e: (e["num_tokens"] != 1, e["num_tokens"]))
    starts = [0]
    for entry in scheduled:
        starts.append(starts[-1] + entry["num_tokens"])
    return [entry["request"] for entry in scheduled], starts
