"""Owns what crosses a boundary: which message, how large, from when to when.

    1   frontend <-> engine core      a call, or a message through a socket ("zmq")
    2   engine core <-> worker        a call
    3   worker <-> device             copies; none on a CPU, where the worker's memory is the device's

A call is weighed as the message that it would be in another process.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec

from minivllm.trace.events import EventLog
from minivllm.trace.wrap import Around, Call, Probe

_RUNNER = "minivllm.worker.gpu_model_runner:GPUModelRunner"
_CORE = "minivllm.engine.core:EngineCore"
_WIRE = "minivllm.engine.wire"
_OUTPUTS = "minivllm.engine.output_processor:OutputProcessor.process_outputs"

_TOKEN_BYTES = 8  # a sampled token is an int64 on the device

_encoder = msgspec.msgpack.Encoder()


class MessageProbes:
    """`message`.

    Args:
        log: Gets the events.
        roles: The processes on whose side of a boundary this one is.
        device: "cuda" if there is a boundary between the worker and its device.
    """

    def __init__(self, log: EventLog, roles: frozenset[str], device: str = "cpu") -> None:
        self._log = log
        self._roles = roles
        self._device = device
        self._step_end_ns = 0
        self._comes_later = False  # whether sampled tokens come after the call that samples

    def probes(self) -> dict[str, Probe]:
        probes: dict[str, Probe] = {}
        if {"frontend", "engine_core"} <= self._roles:
            probes[f"{_CORE}.add_request"] = Around(self._request)
            probes[f"{_CORE}.abort_requests"] = Around(self._abort)
            probes[f"{_CORE}.step_sync"] = self._stepped
            probes[f"{_CORE}.step_with_batch_queue"] = self._stepped
            probes[_OUTPUTS] = Around(self._outputs)
        if "worker" in self._roles:
            probes["minivllm.worker.worker:Worker.execute_model"] = Around(self._plan)
            probes[f"{_RUNNER}.sample_tokens"] = self._sampled
            probes[f"{_RUNNER}.bookkeeping"] = self._sampled_later
            if self._device != "cpu":
                probes[f"{_RUNNER}.prepare_inputs"] = self._to_device
                probes[f"{_RUNNER}.to_host"] = self._to_host
        return probes

    # ---- boundary 1, in one process -------------------------------------------------------------------------------

    def _request(self, args: tuple[Any, ...]) -> None:
        request = args[1]
        self._add(1, "call", "frontend", "engine_core", _type(request), _weight(request), [request.request_id])

    def _abort(self, args: tuple[Any, ...]) -> None:
        request_ids = list(args[1])
        if request_ids:
            self._add(1, "call", "frontend", "engine_core", "AbortRequests", _weight(request_ids), request_ids)

    def _stepped(self, call: Call) -> None:
        self._step_end_ns = call.end_ns

    def _outputs(self, args: tuple[Any, ...]) -> None:
        outputs = args[1]
        if outputs:
            ids = [output.request_id for output in outputs]
            size = _weight(outputs)
            self._add(1, "call", "engine_core", "frontend", "EngineCoreOutputs", size, ids, self._step_end_ns)

    # ---- boundary 2 -----------------------------------------------------------------------------------------------

    def _plan(self, args: tuple[Any, ...]) -> None:
        plan = args[1]
        ids = list(plan.num_scheduled_tokens)
        self._add(2, "call", "engine_core", "worker", _type(plan), _weight(plan), ids)

    def _sampled(self, call: Call) -> None:
        output = call.result
        self._comes_later = hasattr(output, "get_output")
        if self._comes_later:  # a promise; the tokens are on their way
            return
        size = _weight(output)
        self._add(2, "call", "worker", "engine_core", _type(output), size, list(output.req_ids), call.end_ns)

    def _sampled_later(self, call: Call) -> None:
        """Tokens that were promised have arrived."""
        if self._comes_later:
            size = _weight(call.result)
            self._add(
                2, "call", "worker", "engine_core", "ModelRunnerOutput", size, list(call.args[1].req_ids), call.end_ns
            )

    # ---- boundary 3 -----------------------------------------------------------------------------------------------

    def _to_device(self, call: Call) -> None:
        batch = call.result
        arrays = (
            batch.input_ids,
            batch.positions,
            batch.query_start_loc,
            batch.seq_lens,
            batch.slot_mapping,
            batch.block_table,
            batch.logits_indices,
        )
        size = sum(array.nbytes for array in arrays)
        self._add(3, "device", "worker", "device", "input arrays", size, list(batch.req_ids), call.end_ns)

    def _to_host(self, call: Call) -> None:
        size = len(call.result) * _TOKEN_BYTES
        self._add(3, "device", "device", "worker", "sampled token ids", size, [], call.start_ns, call.end_ns)

    def _add(
        self,
        boundary: int,
        channel: str,
        sender: str,
        receiver: str,
        kind: str,
        size: int,
        requests: list[str],
        send_ns: int | None = None,
        recv_ns: int | None = None,
    ) -> None:
        now = time.monotonic_ns()
        recv_ns = now if recv_ns is None else recv_ns
        data = {
            "boundary": boundary,
            "channel": channel,
            "from": sender,
            "to": receiver,
            "type": kind,
            "bytes": size,
            "requests": requests,
            "send_ns": recv_ns if send_ns is None else send_ns,
            "recv_ns": recv_ns,
        }
        self._log.add(receiver, "message", data=data, wall_ns=now)


class SocketProbes:
    """Both halves of a `message` of boundary 1 where it is a socket, as `message.half`.

    The k-th that one side encodes is the k-th that the other one decodes. So nothing has to be added to a message,
    and it weighs what it weighs untraced; `minivllm.trace.merge` puts the halves together.

    Args:
        log: Gets the events.
        role: Of this process: "frontend" or "engine_core".
    """

    def __init__(self, log: EventLog, role: str) -> None:
        self._log = log
        self._role = role

    def probes(self) -> dict[str, Probe]:
        decode = "decode_to_core" if self._role == "engine_core" else "decode_from_core"
        return {f"{_WIRE}:encode": self._sent, f"{_WIRE}:{decode}": self._received}

    def _sent(self, call: Call) -> None:
        message = call.args[0]
        if _type(message) != "CoreStart":  # goes through a pipe, and nobody decodes it with the probes on
            self._half(call, "sent", message, len(call.result), call.end_ns)

    def _received(self, call: Call) -> None:
        self._half(call, "received", call.result, len(call.args[0]), call.start_ns)

    def _half(self, call: Call, half: str, message: Any, size: int, at_ns: int) -> None:
        thread = threading.current_thread()
        data = {
            "half": half,
            "type": _type(message),
            "bytes": size,
            "requests": _requests_of(message),
            "at_ns": at_ns,
            "codec_ns": call.end_ns - call.start_ns,
        }
        name = None if thread is threading.main_thread() else thread.name
        self._log.add(self._role, "message.half", data=data, wall_ns=call.end_ns, thread=name)


def _type(message: Any) -> str:
    return type(message).__name__


def _weight(message: Any) -> int:
    return len(_encoder.encode(message))


def _requests_of(message: Any) -> list[str]:
    if hasattr(message, "request_ids"):
        return list(message.request_ids)
    if hasattr(message, "request_id"):
        return [message.request_id]
    return [output.request_id for output in getattr(message, "outputs", ())]
