"""Owns running a scenario with the core in a process of its own, and making one log of what both recorded."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from minivllm.core.request import Request
from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.core_client import SyncMPClient
from minivllm.engine.input_processor import InputProcessor
from minivllm.engine.output_processor import OutputProcessor
from minivllm.engine.wire import AbortRequests, TraceSettings
from minivllm.models.model_zoo import find_model
from minivllm.scenarios.arrivals import arrivals_of
from minivllm.scenarios.core_process import RUN_PINNED, PinnedArrival, PinnedResult
from minivllm.scenarios.definition import Scenario
from minivllm.scenarios.driver import Arrival, RunResult
from minivllm.tokenizer import load_tokenizer
from minivllm.trace.events import EventLog, Header, Level
from minivllm.trace.merge import write_merged
from minivllm.trace.reader import Log, LogError, read_log
from minivllm.trace.recorder import Recorder


class PinnedClient(SyncMPClient):
    """A client whose core holds requests until their steps, and waits for an answer to every output."""

    def run_pinned(self, arrivals: list[Arrival]) -> Future[Any]:
        """Send every request, and then when they come."""
        for arrival in arrivals:
            self.add_request(arrival.request)
        pinned = [
            PinnedArrival(a.request.request_id, a.step, a.abort_step, a.abort_phase, a.prompt, a.parent, a.drafts)
            for a in arrivals
        ]
        return self._call(RUN_PINNED, msgspec.to_builtins(pinned))

    def answer(self, request_ids: list[str]) -> None:
        """Let the core go on, and end these requests."""
        self._core.send(AbortRequests(request_ids))


def run_in_processes(
    scenario: Scenario,
    args: EngineArgs,
    log_path: Path | None,
    check: bool,
    logical: bool,
    level: Level,
    logits: bool,
) -> tuple[Log, RunResult, list[dict[str, Any]]]:
    """See `minivllm.scenarios.run.run_scenario`."""
    vllm_config = args.resolve_engine_config()
    own = Path(args.tokenizer) if args.tokenizer else find_model(args.model).path
    tokenizer = None if args.skip_tokenizer_init else load_tokenizer(own)
    log = EventLog(Header(level=level))
    recorder = Recorder(log, frozenset({"frontend"}), tokenizer=tokenizer)
    # Beside the log, if it is a file: then both can be found after a crash.
    folder = tempfile.gettempdir() if log_path is None else str(log_path.parent)
    Path(folder).mkdir(parents=True, exist_ok=True)
    part = Path(folder) / f".core-{os.getpid()}-{id(log)}.jsonl"
    client: PinnedClient | None = None
    try:
        with recorder.installation():
            client = PinnedClient(vllm_config, TraceSettings(str(part), level, True, check, logits))
            loops = [
                ("MainThread", "minivllm.engine.core_client:SyncMPClient.get_output"),
                ("process_outputs_socket", "minivllm.engine.core_launch:CoreEngineProcManager._listen"),
            ]
            recorder.process_started(loops)
            input_processor = InputProcessor(client.vllm_config, tokenizer, client.vocab_size, client.eos_token_ids)
            output_processor = OutputProcessor(tokenizer, client.vllm_config.stream_interval)
            arrivals = arrivals_of(scenario, tokenizer, input_processor, output_processor)
            result, violations = _drive(client, arrivals, output_processor)
            recorder.process_ended()
    finally:
        if client is not None:
            client.shutdown()
        is_set = vllm_config.cache_config.num_gpu_blocks is not None
        reason = "num_gpu_blocks is set" if is_set else "the worker took what its memory and the limits allow"
        merged = _merge(scenario, client, log, part, log_path, logical, reason)
    return merged, result, violations


def _drive(
    client: PinnedClient, arrivals: list[Arrival], output_processor: OutputProcessor
) -> tuple[RunResult, list[dict[str, Any]]]:
    answer = client.run_pinned(arrivals)
    while (outputs := client.get_output()) is not None and outputs.outputs:
        client.answer(output_processor.process_outputs(outputs.outputs).reqs_to_abort)
    told = msgspec.convert(answer.result(), PinnedResult)
    requests = {a.request.request_id: a.request for a in arrivals if a.request.request_id in told.outputs}
    result = RunResult(told.steps, {}, told.finals, told.refused, told.truncated, told.free_blocks)
    for request_id, output in told.outputs.items():
        sent = requests[request_id]
        request = Request(request_id, sent.prompt_token_ids, sent.sampling_params, arrival_time=sent.arrival_time)
        for token_id in output:
            request.append_output_token_ids(token_id)
        request.num_preemptions = told.num_preemptions[request_id]
        result.requests[request_id] = request
    return result, told.violations


def _merge(
    scenario: Scenario,
    client: PinnedClient | None,
    log: EventLog,
    part: Path,
    path: Path | None,
    logical: bool,
    blocks_reason: str,
) -> Log:
    from minivllm.scenarios.run import make_header

    if client is None or not part.exists():
        part.unlink(missing_ok=True)
        return Log(log.header, log.events)
    try:
        core = read_log(part)
    except LogError:  # it had no time to write its first line
        part.unlink()
        return Log(log.header, log.events)
    header = make_header(client.vllm_config, scenario, log.header.level, core.header.device, blocks_reason)
    merged = write_merged(
        header,
        log.events,
        core.events,
        path,
        logical=logical,
        num_dropped=log.num_dropped + core.num_dropped,
        is_cut=core.truncated,
    )
    part.unlink()
    return Log(merged.header, merged.events, merged.num_dropped, core.truncated, path)
