"""Owns a summary of the logits, on request: what the model thought likely before a token was picked."""

from __future__ import annotations

import zlib
from typing import Any

from minivllm.trace.events import EventLog
from minivllm.trace.wrap import Call, Probe

_RUNNER = "minivllm.worker.gpu_model_runner:GPUModelRunner"

_NUM_TOP = 5
# Digits kept of a logit: the rest depends on the machine.
_DIGITS = 4


class LogitsProbes:
    """`logits`: for each request whose tokens are sampled, what its last row of logits says.

    Args:
        log: Gets the events.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def probes(self) -> dict[str, Probe]:
        return {f"{_RUNNER}.execute_model": self._logits}

    def _logits(self, call: Call) -> None:
        state = call.args[0]._state
        if state is None:  # nothing was scheduled
            return
        row = -1
        for req_id, drafts, samples in zip(
            state.batch.req_ids, state.batch.drafts, state.batch.samples.tolist(), strict=True
        ):
            row += 1 + len(drafts)
            if samples:
                self._log.add(
                    "worker",
                    "logits",
                    request=req_id,
                    data=_summary(state.logits[row]),
                    src=call.entry.ours,
                    ref=call.entry.vllm,
                    wall_ns=call.end_ns,
                )


def _summary(logits: Any) -> dict[str, Any]:
    """The likeliest tokens of a row, (vocab_size,); how undecided it is, in bits; and a sum over all of it."""
    values = logits.float()
    top = values.topk(min(_NUM_TOP, len(values)))
    log_probs = values.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum().item() / 0.6931471805599453
    return {
        "top": [[i, round(v, _DIGITS)] for i, v in zip(top.indices.tolist(), top.values.tolist(), strict=True)],
        "entropy": round(entropy, _DIGITS),
        "checksum": f"{zlib.crc32(values.cpu().numpy().tobytes()):08x}",
    }
