"""Owns watching an engine's steps from outside, for one run: what each was made of, how long it took, who waited.

The clocks go around the calls of one engine's objects, and are taken off again: the engine's code does not know them,
and a run that is measured has none. The device's own clock is read when the run is over, so nothing waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any

from minivllm.trace.device_clock import DeviceClock, DeviceTimer

# (tokens that were there before, tokens of this step) of each request.
Lengths = list[tuple[int, int]]


@dataclass(slots=True)
class ObservedStep:
    """One call of the engine's `step`. Times in seconds.

    Attributes:
        seconds: From its call to its return.
        waited: Of that, in which the CPU stood still until the device was done.
        computed: Of that, in forward pass, logits and sampling, on the CPU: their work where it is the device, and
            what it takes to start it where there is another.
        device: What the device needed for the batch; None where the CPU is the device.
        lengths: Of each request of the batch; empty if the step started none.
        decode_requests: Requests of the batch whose prompt was done before.
        num_logits: Rows of which logits were computed.
        prefix_tokens: To so many leading tokens the decodes attended together.
        padded: Tokens that the kernels ran on.
        graph_mode: "FULL", "NONE" ...
        reason: Why it was that mode, where the runner says so.
        attention_backend: Its name.
    """

    seconds: float = 0.0
    waited: float = 0.0
    computed: float = 0.0
    device: float | None = None
    lengths: Lengths | None = None
    decode_requests: int = 0
    num_logits: int = 0
    prefix_tokens: int = 0
    padded: int = 0
    graph_mode: str = ""
    reason: str = ""
    attention_backend: str = ""

    @property
    def tokens(self) -> int:
        return sum(new for _, new in self.lengths or ())

    @property
    def kind(self) -> str:
        """ "decode", "prefill", "mixed", or "none" where nothing was started."""
        if not self.lengths:
            return "none"
        if self.decode_requests == len(self.lengths):
            return "decode"
        return "mixed" if self.decode_requests else "prefill"


class StepObserver:
    """Watches the steps of an engine whose core is in this process, for the length of a `with` block.

    Args:
        llm: A `minivllm.LLM`.
        clock: Seconds.
        device_clock: Marks on the device's clock; None takes what fits the engine's device.

    Attributes:
        steps: One for each step, in order. Complete when the block has ended.
    """

    def __init__(
        self, llm: Any, clock: Callable[[], float] = time.perf_counter, device_clock: DeviceClock | None = None
    ) -> None:
        self.steps: list[ObservedStep] = []
        self._engine = llm.llm_engine
        worker = self._engine.engine_core.model_executor.worker
        self._runner = worker.runner
        self._clock = clock
        self._device_clock = device_clock or DeviceClock.of(str(worker.device))
        self._timers: list[tuple[ObservedStep, DeviceTimer]] = []
        self._step = ObservedStep()
        self._depth = 0
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> StepObserver:
        runner = self._runner
        for owner, name in ((runner, "model_forward"), (runner.model, "compute_logits"), (runner.sampler, "forward")):
            self._put(owner, name, self._timed(getattr(owner, name), "computed"))
        self._put(runner, "to_host", self._timed(runner.to_host, "waited"))
        for owner, name in _waiting_places():
            self._put(owner, name, self._timed(getattr(owner, name), "waited"))
        self._put(runner, "execute_model", self._around_batch(runner.execute_model))
        self._put(runner, "sample_tokens", self._around_sampling(runner.sample_tokens))
        self._put(self._engine, "step", self._around_step(self._engine.step))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        for step, timer in self._timers:
            step.device = timer.seconds()
        self._timers.clear()

    def _put(self, owner: Any, name: str, value: Any) -> None:
        if name in vars(owner):
            before = vars(owner)[name]
            self._undo.append(lambda: setattr(owner, name, before))
        else:
            self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, value)

    def _timed(self, call: Callable[..., Any], account: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            start = self._clock()
            try:
                return call(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0:  # what is inside another counts once
                    setattr(self._step, account, getattr(self._step, account) + self._clock() - start)

        return timed

    def _around_step(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def step() -> Any:
            self._step = ObservedStep()
            start = self._clock()
            result = call()
            self._step.seconds = self._clock() - start
            self.steps.append(self._step)
            return result

        return step

    def _around_batch(self, call: Callable[..., Any]) -> Callable[..., Any]:
        runner = self._runner

        def execute_model(plan: Any) -> Any:
            if self._device_clock.is_there and plan.total_num_scheduled_tokens:
                self._timers.append((self._step, self._device_clock.start()))
            result = call(plan)
            if plan.total_num_scheduled_tokens:
                _describe(self._step, runner, runner.last_batch)
            return result

        return execute_model

    def _around_sampling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def sample_tokens() -> Any:
            result = call()
            if self._timers and self._timers[-1][0] is self._step:
                self._timers[-1][1].stop()
            return result

        return sample_tokens


def _describe(step: ObservedStep, runner: Any, batch: Any) -> None:
    """What the batch was. Only additions over requests: it is part of the observed step."""
    starts, seq_lens = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    new = [end - start for start, end in pairwise(starts)]
    step.lengths = [(total - count, count) for total, count in zip(seq_lens, new, strict=True)]
    prompts = runner.batch.columns.num_prompt_tokens[batch.places].tolist()
    step.decode_requests = sum(before >= prompt for (before, _), prompt in zip(step.lengths, prompts, strict=True))
    step.num_logits = len(batch.logits_indices)
    step.prefix_tokens = getattr(batch, "prefix_tokens", 0)
    dispatch = getattr(runner, "last_dispatch", None)
    step.padded = getattr(batch, "num_tokens_padded", None) or step.tokens
    step.graph_mode = batch.graph_mode
    step.reason = dispatch.reason if dispatch is not None else ""
    step.attention_backend = batch.attention_backend


def _waiting_places() -> list[tuple[Any, str]]:
    """Where PyTorch lets the CPU wait for a GPU; none without one."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [(torch.cuda.Event, "synchronize"), (torch.cuda, "synchronize")]
