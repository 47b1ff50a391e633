"""Owns the words in which a lesson asks its run: each is a function of the log."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from minivllm.learning.run_view import FactError, RunView
from minivllm.trace.reader import read_log

# Of Python's own functions, those that an expression may use.
_BUILTINS = (abs, all, any, dict, enumerate, int, len, list, max, min, range, round, set, sorted, str, sum, zip)


class Facts(RunView):
    """The facts of one run, by the words that a lesson uses.

    Args:
        log: The run.
    """

    # ---- the run as a whole -----------------------------------------------------------------------------------

    def config(self, name: str) -> Any:
        """A setting of the run: `config("max_num_batched_tokens")`."""
        config = self._log.header.config
        for part in ("scheduler_config", "cache_config", "model_config"):
            if name in config.get(part, {}):
                return config[part][name]
        return config[name]

    def model(self, name: str) -> Any:
        """A number of the model's shape or of its cache: `model("num_hidden_layers")`, `model("bytes_per_block")`."""
        shape = dict(self._log.header.model_shape or {}) | dict(self._log.header.kv_cache or {})
        return shape[name]

    def last(self) -> int:
        """The last iteration."""
        return max(self._iterations)

    def happened(self, kind: str, request: str | None = None) -> list[int]:
        """The iterations with an event of a kind: `happened("kv.evicted")`."""
        return [event.step for event in self._events(kind, request)]

    def told(self, kind: str, request: str | None = None) -> list[dict[str, Any]]:
        """What the events of a kind say, in order."""
        return [event.data for event in self._events(kind, request)]

    def told_at(self, kind: str, iteration: int) -> dict[str, Any]:
        """What the first event of a kind in an iteration says."""
        for event in self._events(kind, None):
            if event.step == iteration:
                return event.data
        raise FactError(f"there is no event {kind} in iteration {iteration}")

    def fields(self, message: str) -> list[str]:
        """The fields of a message between processes: `fields("EngineCoreRequest")`."""
        from minivllm.core import messages, scheduler_output

        kind = getattr(messages, message, None) or getattr(scheduler_output, message)
        return list(getattr(kind, "__struct_fields__", None) or kind.__dataclass_fields__)

    def changes(self, request: str | None = None) -> list[tuple[str, str]]:
        """Every kind of change of status that happened, to a request or to anybody: (from, to)."""
        from minivllm.maps.lifecycle import transitions

        return [(change["from"], change["to"]) for change in transitions(self._log.events, request)]

    def run_of(self, scenario: str) -> Facts:
        """The facts of another scenario's recorded run."""
        return facts_of(scenario)

    def whatif(self, **settings: Any) -> Facts:
        """The same arrivals and tokens, planned again by the real scheduler with other settings."""
        from minivllm.scenarios.replan import replan

        return Facts(replan(self._log, settings).log)

    # ---- one iteration ----------------------------------------------------------------------------------------

    def it(self, iteration: int) -> dict[str, Any]:
        """All that the plan map says of an iteration."""
        return self._here(iteration)

    def budget(self, iteration: int) -> int:
        """Its token budget."""
        return self._plan(iteration)["tokens"]

    def used(self, iteration: int) -> int:
        """Tokens that were computed in it."""
        return self._plan(iteration)["used"]

    def scheduled(self, iteration: int) -> list[str]:
        """Who was planned, in the scheduler's order."""
        return [entry["request"] for entry in self.it(iteration)["scheduled"]]

    def waiting(self, iteration: int) -> list[str]:
        """Who was not."""
        return [entry["request"] for entry in self.it(iteration)["not_scheduled"]]

    def stop(self, iteration: int) -> str | None:
        """The reason for which the loop over the queue ended early; None if it came to the end."""
        stop = self.it(iteration)["stop"]
        return stop["reason"] if stop else None

    def cuts(self, iteration: int) -> dict[str, str]:
        """Who was cut short, and by which rule."""
        return {entry["request"]: entry["reason"] for entry in self.it(iteration)["cut"]}

    def batch(self, iteration: int) -> SimpleNamespace:
        """The worker's arrays: `.order`, `.query_start_loc`, `.seq_lens`, `.positions`, `.slot_mapping`, ..."""
        batch = self.it(iteration)["batch"]
        if batch is None:
            raise FactError(f"iteration {iteration} has no batch")
        return SimpleNamespace(**batch)

    def slot_order(self, iteration: int) -> SimpleNamespace:
        """The same arrays if requests were kept in slots: decodes first, then the others by length."""
        entries = sorted(self.it(iteration)["scheduled"], key=lambda e: (e["num_tokens"] != 1, e["num_tokens"]))
        ends = list(itertools.accumulate(entry["num_tokens"] for entry in entries))
        return SimpleNamespace(
            order=[entry["request"] for entry in entries],
            query_start_loc=[0, *ends],
            seq_lens=[entry["num_computed_before"] + entry["num_tokens"] for entry in entries],
            logits_indices=[end - 1 for end in ends],
        )

    def sampled(self, iteration: int) -> list[str]:
        """Whose sampled token was kept."""
        here = self.it(iteration)
        return [request for request in here["sampled"] if request not in here["thrown_away"]]

    def thrown_away(self, iteration: int) -> list[str]:
        """Whose sampled token nobody wanted."""
        return list(self.it(iteration)["thrown_away"])

    def preempted(self, iteration: int | None = None) -> list[str]:
        """Who was preempted, in an iteration or in the whole run."""
        steps = self._iterations if iteration is None else [iteration]
        return [request for step in steps for request in self.it(step)["preempted"]]

    def preemptions(self) -> list[SimpleNamespace]:
        """Each preemption: `.iteration`, `.victim`, `.lost` tokens, `.winner`."""
        return [
            SimpleNamespace(iteration=step, victim=victim, lost=lost, winner=winner)
            for step, here in self._iterations.items()
            for victim, lost, winner in here["preemptions"]
        ]

    def free_blocks(self, iteration: int) -> int:
        """Blocks that were free at its end."""
        return self.it(iteration)["blocks"]["free"]

    def owned_blocks(self, iteration: int) -> int:
        """Blocks that somebody owned at its end."""
        return self.it(iteration)["blocks"]["owned"]

    def cached_blocks(self, iteration: int) -> int:
        """Of the free blocks those that can still be hit."""
        return self.it(iteration)["blocks"]["cached"]

    def evicted(self, iteration: int) -> list[int]:
        """Blocks that were taken although they could still be hit."""
        return list(self.it(iteration)["blocks"]["evicted"])

    def story(self, iteration: int) -> list[str]:
        """The sentences above its map."""
        return list(self.it(iteration)["narration"])

    # ---- one request ------------------------------------------------------------------------------------------

    def requests(self) -> list[str]:
        """All ids, in the order of arrival."""
        return list(self._requests)

    def arrived(self, request: str) -> int:
        """Before which iteration it came."""
        return self._request(request)["arrived"]

    def num_prompt(self, request: str) -> int:
        """Tokens of its prompt."""
        return self._request(request)["num_prompt_tokens"]

    def num_output(self, request: str) -> int:
        """Tokens that it was given."""
        return self._request(request)["num_output_tokens"]

    def prompt(self, request: str) -> str:
        """Its prompt as text."""
        return self._request(request)["prompt"]

    def text(self, request: str) -> str:
        """All text that its caller was sent."""
        return self._request(request)["text"]

    def finish(self, request: str) -> str | None:
        """Its finish reason."""
        return self._request(request)["finish_reason"]

    def stop_reason(self, request: str) -> Any:
        """The stop string or stop token that ended it."""
        return self._request(request)["stop_reason"]

    def planned(self, request: str) -> list[int]:
        """Iterations in which it was scheduled."""
        self._request(request)
        return [step for step, here in self._iterations.items() if request in [e["request"] for e in here["scheduled"]]]

    def first(self, request: str) -> int:
        """The iteration in which it was first scheduled."""
        planned = self.planned(request)
        if not planned:
            raise FactError(f"{request} was never scheduled")
        return planned[0]

    def ended(self, request: str) -> int:
        """The iteration in which the core let go of it."""
        for step, here in self._iterations.items():
            if request in [entry["request"] for entry in here["finished"]] or request in here["aborted"]:
                return step
        raise FactError(f"{request} does not end in this run")

    def waits(self, request: str) -> int:
        """Iterations between its arrival and its first tokens."""
        return self.first(request) - self.arrived(request)

    def lookup(self, request: str) -> SimpleNamespace:
        """Its first look into the prefix cache: `.asked`, `.hit` (tokens), `.blocks`."""
        found = self.told("kv.lookup", request)
        if not found:
            raise FactError(f"the log holds no look-up (kv.lookup) of {request}")
        return SimpleNamespace(**found[0])

    # ---- one request in one iteration -------------------------------------------------------------------------

    def tokens(self, request: str, iteration: int) -> int:
        """Tokens that it was given; 0 if it was not scheduled."""
        entry = self._entry(request, iteration)
        return entry["num_tokens"] if entry else 0

    def computed(self, request: str, iteration: int) -> int:
        """Its tokens that had been computed, or were found in the cache, before."""
        return self._scheduled_entry(request, iteration)["num_computed_before"]

    def known(self, request: str, iteration: int) -> int:
        """Its tokens that were known: prompt, and what it had sampled."""
        return self._scheduled_entry(request, iteration)["num_tokens_known"]

    def cached(self, request: str, iteration: int) -> int:
        """Tokens found in the prefix cache when it was admitted in this iteration."""
        return self._scheduled_entry(request, iteration)["num_cached"]

    def kind(self, request: str, iteration: int) -> str:
        """new, resumed or running."""
        return self._scheduled_entry(request, iteration)["kind"]

    def reason(self, request: str, iteration: int) -> str | None:
        """Why it was not scheduled; None if it was, or was not there."""
        found = [entry["reason"] for entry in self.it(iteration)["not_scheduled"] if entry["request"] == request]
        return found[0] if found else None

    def new_blocks(self, request: str, iteration: int) -> list[int]:
        """Block ids that it took in this iteration."""
        return list(self.it(iteration)["blocks"]["allocated"].get(request, []))

    def row(self, request: str, iteration: int) -> int:
        """Its place in the worker's arrays."""
        batch = self.batch(iteration)
        return batch.places[batch.order.index(request)]

    def status(self, request: str, iteration: int) -> str:
        """Its status in the scheduler at the end of the iteration."""
        return self._state(request, iteration)["scheduler"]["status"]

    def blocks(self, request: str, iteration: int) -> list[int]:
        """Its block table at the end of the iteration."""
        return list(self._state(request, iteration)["scheduler"]["block_ids"])

    def computed_after(self, request: str, iteration: int) -> int:
        """num_computed_tokens in the scheduler at the end of the iteration."""
        return self._state(request, iteration)["scheduler"]["num_computed_tokens"]

    def output(self, request: str, iteration: int) -> SimpleNamespace:
        """What its caller was sent in the iteration: `.delta`, `.held`, `.sent` (characters)."""
        for entry in self.it(iteration)["texts"]:
            if entry["request"] == request:
                return SimpleNamespace(**entry)
        raise FactError(f"{request} was sent nothing in iteration {iteration}")

    # ---- messages and times (a log with clocks) ---------------------------------------------------------------

    def messages(self, kind: str | None = None, iteration: int | None = None) -> list[SimpleNamespace]:
        """What crossed the boundaries, of one type and one iteration: `.type`, `.boundary`, `.bytes`, `.requests`."""
        return [
            SimpleNamespace(**message)
            for message in self._crossings["messages"]
            if kind in (None, message["type"]) and iteration in (None, message["iteration"])
        ]

    def pid(self, process: str) -> int | None:
        """The number of a process: frontend, engine_core, worker or device (which has none)."""
        (found,) = [entry["pid"] for entry in self._crossings["processes"] if entry["name"] == process]
        return found

    def threads(self, process: str) -> list[str]:
        """The threads of a process."""
        (found,) = [entry["threads"] for entry in self._crossings["processes"] if entry["name"] == process]
        return [thread["name"] for thread in found]

    def stages(self, iteration: int) -> dict[str, int]:
        """Nanoseconds of each stage of an iteration."""
        from minivllm.maps.hotpath import hot_map

        return {stage["name"]: stage["cpu_ns"] for stage in hot_map(self._log, [iteration])["stages"]}

    def calls(self, iteration: int) -> list[str]:
        """The functions that were called in an iteration, in that order: "Scheduler.schedule", ..."""
        found = [event for event in self._events("call", None) if event.step == iteration]
        return [str(event.src).partition(":")[2] for event in sorted(found, key=lambda event: event.data["id"])]

    def step_ns(self, iteration: int) -> int:
        """Nanoseconds of work of an iteration, over all processes."""
        from minivllm.maps.hotpath import hot_map

        by_iteration: dict[int, int] = hot_map(self._log, [iteration])["step_ns"]["by_iteration"]
        return by_iteration[iteration]

    # ---- how ---------------------------------------------------------------------------------------------------

    def words(self) -> dict[str, Any]:
        """What an expression of a lesson may use: the methods above, and a few of Python's functions."""
        own: dict[str, Callable[..., Any]] = {
            name: getattr(self, name)
            for name, value in vars(Facts).items()
            if callable(value) and not name.startswith("_") and name != "words"
        }
        return own | {function.__name__: function for function in _BUILTINS}


def facts_of(scenario: str) -> Facts:
    """The facts of a scenario's recorded run.

    Raises:
        UnknownScenarioError: There is none of that name.
        LogError: Its log is missing.
    """
    from minivllm.scenarios.registry import get_scenario

    return Facts(read_log(get_scenario(scenario).log_path))
