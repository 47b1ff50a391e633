"""Owns how far the device's slots have come after the host's columns, and what they still need before a step.

    known to the device           what happens before the step
    ------------------------      ------------------------------------------------------------------------
    nothing (a slot was taken)    all tokens, blocks and parameters are written
    all tokens, all but 1 block   the block travels with the step's own rows
    all tokens, fewer blocks      the blocks are written

A slot has a *generation*, one more for each request that takes it: tokens that arrive late must not be noted for
whoever has the slot by then.

Upstream: vllm/v1/worker/gpu/model_runner.py::GPUModelRunner.add_requests and update_requests.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minivllm.sample.logits_processor import has_lasting_rules
from minivllm.sample.penalties import has_penalties
from minivllm.sampling_params import SamplingParams
from minivllm.worker.device_requests import Draw
from minivllm.worker.device_step import DeviceStep
from minivllm.worker.prepared_batch import PreparedBatch
from minivllm.worker.request_columns import NO_LOGPROBS, RequestColumns

_NOTHING = -1
_ALWAYS = np.iinfo(np.int32).max


class DeviceMirror:
    """What the device knows of each slot, as numbers on the host.

    Args:
        columns: The truth.
        step: The device.

    Attributes:
        generation: (slots,) int64.
        takes: How often any slot was taken.
    """

    def __init__(self, columns: RequestColumns, step: DeviceStep) -> None:
        self._columns, self._step = columns, step
        slots = len(columns.num_tokens)
        self.generation = np.zeros(slots, dtype=np.int64)
        self.takes = 0
        self._token_cells = columns.token_ids.reshape(-1)  # the same memory
        self._known_tokens = np.full(slots, _NOTHING, dtype=np.int32)
        self._known_blocks = np.zeros(slots, dtype=np.int32)
        # Sampled with the host while there are fewer tokens than that, or fewer computed ones.
        self._host_until = np.zeros(slots, dtype=np.int32)
        self._host_until_computed = np.zeros(slots, dtype=np.int32)
        self._has_penalties = np.zeros(slots, dtype=np.bool_)

    def take(self, slot: int) -> None:
        """Another request has the slot, or the same one has other blocks: what the device knows is of no use."""
        columns, params = self._columns, self._columns.params[slot]
        self.generation[slot] += 1
        self.takes += 1
        self._known_tokens[slot] = _NOTHING
        prompt = int(columns.num_prompt_tokens[slot])
        self._has_penalties[slot] = has_penalties(params)
        self._host_until[slot] = self._host_until_tokens(slot, params, prompt)
        self._host_until_computed[slot] = prompt if columns.num_prompt_logprobs[slot] != NO_LOGPROBS else 0

    def _host_until_tokens(self, slot: int, params: SamplingParams, prompt: int) -> int:
        if self._columns.num_logprobs[slot] != NO_LOGPROBS or has_lasting_rules(params):
            return int(_ALWAYS)
        if self._has_penalties[slot] and not self._step.requests.make_room_for_penalties():
            return int(_ALWAYS)
        return prompt + params.min_tokens if params.all_stop_token_ids else 0

    def has_penalties(self, slots: NDArray[np.intp]) -> bool:
        """Whether any of some slots is sampled with penalties."""
        return bool(self._has_penalties[slots].any())

    def why_host(self, slots: NDArray[np.intp], computed: NDArray[np.int32], seq_lens: NDArray[np.int32]) -> str | None:
        """What of a step's sampling only the host can do; None if nothing. All (requests,)."""
        by_prompt = computed < self._host_until_computed[slots]
        needed = by_prompt | (seq_lens < self._host_until[slots])
        if not needed.any():
            return None
        slot = int(slots[needed][0])
        if by_prompt.any():
            return "a request asks for the scores of its prompt"
        if self._columns.num_logprobs[slot] != NO_LOGPROBS:
            return "a request asks for scores"
        if self._host_until[slot] != _ALWAYS:
            return "a request has not got its least number of tokens"
        if has_lasting_rules(self._columns.params[slot]):
            return "a request has rules for its logits"
        return "there is no memory for the counts that penalties need"

    def update(self, batch: PreparedBatch) -> None:
        """Bring the device up to date for a batch, and stage it."""
        slots, scheduled = batch.places, batch.num_scheduled
        computed = batch.seq_lens - scheduled
        if batch.follows and not batch.has_new_blocks:
            self._step.stage_next(len(slots), computed)
            return
        if not batch.follows:
            for slot in slots[self._known_tokens[slots] != self._columns.num_tokens[slots]].tolist():
                self._write(slot)
        new_index, new_block = self._find_new_blocks(slots)
        self._step.requests.flush()
        if batch.follows:
            self._step.stage_next(len(slots), computed, new_index, new_block)
        else:
            self._step.stage(slots, computed, scheduled, batch.samples, new_index, new_block, batch.prefix_tokens)

    def _find_new_blocks(self, slots: NDArray[np.intp]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Where the only new block of each request stands in its table (-1: there is none), and its id, (requests,).

        If there are more of one request, they are written.
        """
        tables, requests = self._columns.block_table, self._step.requests
        blocks = tables.num_blocks[slots]
        known = self._known_blocks[slots]
        missing = blocks - known
        new_index = np.where(missing == 1, known, -1)
        new_block = tables.ids[slots, np.maximum(new_index, 0)]
        for place in np.flatnonzero(missing > 1).tolist():
            slot, start, end = int(slots[place]), int(known[place]), int(blocks[place])
            requests.append_blocks(slot, start, tables.ids[slot, start:end].copy())
        self._known_blocks[slots] = blocks
        return new_index, new_block

    def _write(self, slot: int) -> None:
        """Write all of a slot."""
        columns, params = self._columns, self._columns.params[slot]
        tokens, blocks = int(columns.num_tokens[slot]), int(columns.block_table.num_blocks[slot])
        draw = Draw(
            float(columns.temperature[slot]),
            float(columns.min_p[slot]),
            int(columns.top_k[slot]),
            float(columns.top_p[slot]),
            int(columns.seed[slot]),
        )
        if self._has_penalties[slot] and self._step.requests.history is not None:
            draw = draw._replace(
                repetition=params.repetition_penalty,
                frequency=params.frequency_penalty,
                presence=params.presence_penalty,
            )
        self._step.requests.place(
            slot,
            columns.token_ids[slot, :tokens].copy(),
            int(columns.num_prompt_tokens[slot]),
            columns.block_table.ids[slot, :blocks].copy(),
            draw,
        )
        self._known_tokens[slot], self._known_blocks[slot] = tokens, blocks

    def note_sampled(self, batch: PreparedBatch, placeholder: int) -> None:
        """A step was launched: each of its tokens is on the device, and a placeholder for it in the columns."""
        slots, cells, lengths = batch.places, batch.next_cells, batch.seq_lens + 1
        if not self._all_have_room(batch):
            fits = self._has_room(batch)
            slots, cells, lengths = slots[fits], cells[fits], lengths[fits]
        self._token_cells[cells] = placeholder
        self._columns.num_tokens[slots] = lengths
        self._known_tokens[slots] = lengths

    def note_arrived(self, batch: PreparedBatch, tokens: NDArray[np.int32]) -> None:
        """Its tokens, (requests,), are here: put them in the place of their placeholders, if their request has not
        left its slot meanwhile."""
        if batch.takes == self.takes and self._all_have_room(batch):
            self._token_cells[batch.next_cells] = tokens
            return
        fits = self._has_room(batch) & (self.generation[batch.places] == batch.generations)
        self._token_cells[batch.next_cells[fits]] = tokens[fits]

    def _has_room(self, batch: PreparedBatch) -> NDArray[np.bool_]:
        """Which requests sample a token that the columns have room for. The last of the longest sequence has none."""
        fits: NDArray[np.bool_] = batch.samples & (batch.seq_lens < self._columns.token_ids.shape[1])
        return fits

    def _all_have_room(self, batch: PreparedBatch) -> bool:
        """The same of all of them, at once."""
        return batch.all_sample and batch.longest < self._columns.token_ids.shape[1]
