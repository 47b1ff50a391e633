"""Owns how single values of the state map look. What an iteration changed is bold and carries a mark.

The three identities never look alike: a request is bold and has its own colour, `row 2` and `#37` have words and
colours of their own.
"""

from __future__ import annotations

from typing import Any

from rich.text import Text

from minivllm.maps.render.style import ASCII, UNICODE, Glyphs, printable, ranges

MARK = "*"
ROW_STYLE, BLOCK_STYLE = "italic bright_yellow", "bright_blue"
_MAX_IDS = 24


class StateCells:
    """Makes the cells of one request, each from the request's entry of the state map.

    Args:
        colours: Of each request.
        place: What the worker's places are called: "slot" or "row".
        text_width: Columns for the text that is held back.
        ascii_only: Use no character beyond ASCII.
    """

    def __init__(self, colours: dict[str, str], place: str, text_width: int, *, ascii_only: bool) -> None:
        self._colours = colours
        self._place = place
        self._text_width = text_width
        self._ascii_only = ascii_only
        self._glyphs: Glyphs = ASCII if ascii_only else UNICODE
        self._nothing = Text(self._glyphs.dash, style="dim")

    def id(self, request: dict[str, Any]) -> Text:
        """Its id; marked if it has just come."""
        text = Text(request["request"], style=f"bold {self._colours[request['request']]}")
        return text.append(MARK) if request["is_new"] else text

    def text(self, request: dict[str, Any]) -> Text:
        """How many characters its caller has been sent, and what the frontend holds back."""
        frontend = request["frontend"]
        if frontend is None:
            return self._nothing.copy()
        text = _value(f"sent {frontend['sent']}", _differs(frontend, "sent"))
        text.append(", ")
        if frontend["finish_reason"] is not None:
            text.append_text(_value(f"ended: {frontend['finish_reason']}", _differs(frontend, "finish_reason")))
        else:
            text.append_text(_value(f"held {frontend['held']}", _differs(frontend, "held")))
        if frontend["held"]:
            text.append(f" “{printable(frontend['held_text'])}”")
        text.truncate(self._text_width, overflow="ellipsis")
        return text

    def status(self, request: dict[str, Any]) -> Text:
        """vLLM's word for where it stands, or how it ended."""
        scheduler = request["scheduler"]
        reason = scheduler["finish_reason"]
        status = scheduler["status"] if reason is None else f"FINISHED {reason}"
        return _value(status, _differs(scheduler, "status"))

    def progress(self, request: dict[str, Any]) -> Text:
        """Computed and known tokens. What is known at arrival is no change."""
        scheduler = request["scheduler"]
        text = _value(str(scheduler["num_computed_tokens"]), _differs(scheduler, "num_computed_tokens"))
        text.append(" of ")
        has_grown = scheduler["changed"].get("num_tokens") is not None
        return text.append_text(_value(str(scheduler["num_tokens"]), has_grown))

    def num_blocks(self, request: dict[str, Any]) -> Text:
        """How many blocks it holds."""
        scheduler = request["scheduler"]
        count = len(scheduler["block_ids"])
        return _value("1 block" if count == 1 else f"{count} blocks", _differs(scheduler, "block_ids"))

    def block_ids(self, request: dict[str, Any]) -> Text:
        """The scheduler's block table."""
        scheduler = request["scheduler"]
        return self._ids(scheduler["block_ids"], _differs(scheduler, "block_ids"))

    def row(self, request: dict[str, Any]) -> Text:
        """Its place in the worker's batch."""
        worker = request["worker"]
        if worker is None:
            return _value(f"no {self._place}", True) if request["worker_left"] else self._nothing.copy()
        place = f"{self._place} {worker['row']}"
        text = _value(place, _differs(worker, "row"))
        text.stylize(ROW_STYLE, 0, len(place))
        return text

    def mirror(self, request: dict[str, Any]) -> Text:
        """The worker's own counter: what was computed before its last step, and what that step added."""
        worker, now = request["worker"], request["scheduler"]["num_scheduled"]
        if worker is None:
            return Text("")
        text = _value(str(worker["num_computed_tokens"]), _differs(worker, "num_computed_tokens"))
        return text.append(f" +{now}") if now else text

    def copy(self, request: dict[str, Any]) -> Text:
        """Whether the worker's row of the block table is the scheduler's."""
        worker = request["worker"]
        if worker is None:
            return Text("")
        if request["scheduler"]["finish_reason"] is not None:
            return Text("not told yet", style="dim")
        if worker["equal"]:
            return Text("= equal" if self._ascii_only else "✓ equal", style="green")
        return Text("! differs" if self._ascii_only else "✗ differs", style="bold red")

    def bar(self, request: dict[str, Any], width: int, longest: int) -> Text:
        """Known tokens to one scale: computed before, computed now, still owed."""
        scheduler = request["scheduler"]
        computed, now, known = (scheduler[k] for k in ("num_computed_tokens", "num_scheduled", "num_tokens"))
        scale = min(width / max(longest, 1), 1.0)
        before, done, end = (round(n * scale) for n in (computed - min(now, computed), computed, max(known, computed)))
        if now and done == before:  # what happens now is never too small to be seen
            before, done = max(done - 1, 0), max(done, 1)
        glyphs = self._glyphs
        bar = glyphs.computed * before + glyphs.now * (done - before) + glyphs.owed * (max(end, done) - done)
        text = Text(bar, style=self._colours[request["request"]])
        text.stylize("bold", before, done)
        return text

    def _ids(self, block_ids: list[int], changed: bool) -> Text:
        if not block_ids:
            return self._nothing.copy()
        ids = "#" + ranges(block_ids, self._glyphs.dash, 2)
        if len(ids) > _MAX_IDS:
            ids = "#" + ranges(block_ids, self._glyphs.dash, 1)
        text = _value(ids, changed)
        text.stylize(BLOCK_STYLE, 0, len(ids))
        return text


def _differs(place: dict[str, Any], key: str) -> bool:
    """Whether the iteration changed a value. One that was not there before and is nothing now is no news."""
    return key in place["changed"] and (bool(place[key]) or place["changed"][key] is not None)


def _value(text: str, changed: bool) -> Text:
    return Text(text + MARK, style="bold") if changed else Text(text)
