"""Owns the events of the data plane: who has which row, and the batch as arrays. Reads arrays, imports no torch."""

from __future__ import annotations

from functools import partial
from typing import Any

from minivllm.trace.events import EventLog, MakeData
from minivllm.trace.wrap import Around, Call, Probe

_RUNNER = "minivllm.worker.gpu_model_runner:GPUModelRunner"
# Of a batch.
_ARRAYS = ("query_start_loc", "seq_lens", "positions", "input_ids", "slot_mapping")


class WorkerProbes:
    """`rows`, `prepare_inputs` and `worker.state`. Installing them imports torch.

    Args:
        log: Gets the events.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._came: set[str] = set()  # who took a row in this step

    def probes(self) -> dict[str, Probe]:
        return {
            f"{_RUNNER}.update_states": Around(lambda args: dict(_places(args[0])), self._rows),
            f"{_RUNNER}.prepare_inputs": self._batch,
        }

    def _rows(self, call: Call) -> None:
        before, now = call.memo, _places(call.args[0])
        self._came = now.keys() - before.keys()
        if before == now:
            return
        data: dict[str, Any] = {
            "taken": {i: row for i, row in now.items() if i not in before},
            "moved": [[i, before[i], row] for i, row in now.items() if before.get(i, row) != row],
            "freed": {i: row for i, row in before.items() if i not in now},
        }
        self._add(call, "rows", data)

    def _batch(self, call: Call) -> None:
        # Copies: lists are made of them when the events are written, and by then the next step is prepared.
        runner, plan, batch = call.args[0], call.args[1], call.result
        order, places, cached = list(batch.req_ids), batch.places.copy(), plan.scheduled_cached_reqs
        # Whoever sat out a step comes back with the blocks that it had: told again, so that no reader has to remember.
        changed = self._came | {new.req_id for new in plan.scheduled_new_reqs}
        changed.update(i for i, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True) if blocks)
        columns = runner.batch.columns
        table = columns.block_table
        num_blocks = table.num_blocks[places]
        tables = {
            req_id: table.ids[place, :count].copy()
            for req_id, place, count in zip(order, places.tolist(), num_blocks.tolist(), strict=True)
            if req_id in changed
        }
        facts: dict[str, Any] = {
            "order": order,
            "places": places,
            **{name: getattr(batch, name).copy() for name in _ARRAYS},
            "block_table": tables,
            "logits_indices": batch.logits_indices.copy(),
            "num_tokens": len(batch.input_ids),
            "num_tokens_padded": getattr(batch, "num_tokens_padded", None) or len(batch.input_ids),
            "graph_mode": batch.graph_mode,
            "attention_backend": batch.attention_backend,
        }
        dispatch = getattr(runner, "last_dispatch", None)
        if dispatch is not None:
            facts["graph_reason"] = dispatch.reason
        if batch.prefix_tokens:
            facts["prefix_tokens"] = batch.prefix_tokens
        self._add(call, "prepare_inputs", partial(_as_lists, facts))
        self._add(call, "worker.state", partial(_rows, order, places, columns.num_computed[places], num_blocks))

    def _add(self, call: Call, kind: str, data: dict[str, Any] | MakeData) -> None:
        self._log.add(
            "worker",
            kind,
            cause=self._log.last.get("schedule"),
            data=data,
            src=call.entry.ours,
            ref=call.entry.vllm,
            wall_ns=call.end_ns,
            dur_ns=call.end_ns - call.start_ns,
        )


def _as_lists(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts with arrays, also in a dict, as the log has them."""
    return {name: _as_list(value) for name, value in facts.items()}


def _as_list(value: Any) -> Any:
    if isinstance(value, dict):
        return _as_lists(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _rows(order: list[str], *columns: Any) -> dict[str, Any]:
    """What the worker knows of each request: its row or slot, computed tokens, blocks."""
    return {"rows": dict(zip(order, zip(*(column.tolist() for column in columns), strict=True), strict=True))}


def _places(runner: Any) -> dict[str, int]:
    """The slot or row of every request in the batch."""
    places: dict[str, int] = runner.batch._rows if hasattr(runner.batch, "_rows") else runner.batch._slots
    return places
