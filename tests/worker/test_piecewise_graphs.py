"""A forward pass in pieces: what is between calls of attention is replayed, and attention gets each step as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minivllm.kernels.triton_guard import HAS_TRITON
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from tests.attention.fake_libraries import paged_attention
from tests.models.checkpoints import VOCAB_SIZE, save_model

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")
if HAS_TRITON:
    from minivllm.attention import paged
    from minivllm.attention.paged import PagedBackend
    from minivllm.worker.piecewise_graphs import PiecewiseGraphs
else:
    PagedBackend = Any

BLOCK_SIZE, NUM_BLOCKS, LAYERS = 4, 9, 3


class Step(NamedTuple):
    """A batch, as the backend below takes it."""

    starts: list[int]
    tables: list[torch.Tensor]
    lens: list[int]
    slot_mapping: torch.Tensor


class Definition(PagedBackend):
    """Attention by its definition. It counts its calls."""

    name = "definition"

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def on_device(self, batch, host):
        return batch

    def attend(self, query, key, value, kv_cache, batch, window, out=None):
        self.calls += 1
        pages = (kv_cache[0], kv_cache[1])
        scale = query.shape[-1] ** -0.5
        result = paged_attention(query, pages, batch.starts, batch.tables, batch.lens, scale, -1)
        return result if out is None else out.copy_(result)


class Tape(TorchDispatchMode):
    """The operations of a piece. A replay writes their results where they were at first, as a graph does."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self.operations:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class TapeRecorder:
    """Records tapes. Here what is recorded is run as well; the caches are put back, as if it were not."""

    def __init__(self, fails_at: int = 1000) -> None:
        self.begun, self._fails_at = 0, fails_at
        self._tape: Tape | None = None
        self.caches: list[torch.Tensor] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        before = [cache.clone() for cache in self.caches]
        try:
            yield
        finally:
            if self._tape is not None:
                self.end()
            for cache, numbers in zip(self.caches, before, strict=True):
                cache.copy_(numbers)

    def begin(self) -> None:
        self.begun += 1
        if self.begun == self._fails_at:
            raise RuntimeError("an operation that cannot be recorded\nand more lines")
        self._tape = Tape()
        self._tape.__enter__()

    def end(self) -> Tape:
        tape, self._tape = self._tape, None
        assert tape is not None
        tape.__exit__(None, None, None)
        return tape


class Machine:
    """A model with inputs that stay where they are, run in pieces and, for comparison, at once."""

    def __init__(self, folder: Path, recorder: TapeRecorder | None, largest: int = 0) -> None:
        save_model("qwen3", folder, num_hidden_layers=LAYERS)
        # In float64 no operation is one of the compiled ones, which a tape does not see.
        self.model = ModelLoader(find_model(str(folder))).load(torch.device("cpu"), torch.float64)
        config = self.model.config
        shape = (2, NUM_BLOCKS, BLOCK_SIZE, config.num_key_value_heads, config.head_dim)
        self.caches, self.others = ([torch.zeros(shape, dtype=torch.float64) for _ in range(LAYERS)] for _ in "ab")
        self.input_ids, self.positions = torch.zeros(16, dtype=torch.int64), torch.zeros(16, dtype=torch.int64)
        self.slots = torch.zeros(16, dtype=torch.int64)
        self.attention = Definition()
        if recorder is not None:
            recorder.caches = self.caches
        self.graphs = PiecewiseGraphs(self.forward, lambda n: self.slots[:n], self.attention, recorder, largest)

    def forward(self, num_tokens: int, attention: Any, batch: Any) -> torch.Tensor:
        return self.model.forward(
            self.input_ids[:num_tokens], self.positions[:num_tokens], self.caches, attention, batch
        )

    def step(self, requests: list[tuple[list[int], int, list[int]]], padded: int) -> None:
        """Run a step of (blocks, computed, tokens) both ways. Padding is written to the first block, nobody's."""
        places = [(row, computed + i) for row, (_, computed, new) in enumerate(requests) for i in range(len(new))]
        slots = [requests[row][0][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for row, p in places]
        total = len(places)
        self.input_ids[:padded] = 0
        self.input_ids[:total] = torch.tensor([token for _, _, new in requests for token in new])
        self.positions[:total] = torch.tensor([p for _, p in places])
        self.slots[:padded] = 0
        self.slots[:total] = torch.tensor(slots)
        starts = [0]
        for _, _, new in requests:
            starts.append(starts[-1] + len(new))
        lens = [computed + len(new) for _, computed, new in requests]
        tables = [torch.tensor(blocks[: -(-n // BLOCK_SIZE)]) for (blocks, _, _), n in zip(requests, lens, strict=True)]
        got = self.graphs.run(padded, Step(starts, tables, lens, self.slots[:padded]))
        inputs = self.input_ids[:total].clone(), self.positions[:total].clone(), self.others
        want = self.model.forward(*inputs, Definition(), Step(starts, tables, lens, self.slots[:total]))
        torch.testing.assert_close(got[:total], want)


def write(key, value, key_cache, value_cache, slots, scales) -> None:
    """As the kernel does, but for padding: that goes to slot 0."""
    key_cache.flatten(0, 1).index_copy_(0, slots.clamp_min(0), key)
    value_cache.flatten(0, 1).index_copy_(0, slots.clamp_min(0), value)


@pytest.fixture(autouse=True)
def written_by_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "reshape_and_cache", write)


@torch.inference_mode()
def run_steps(machine: Machine) -> None:
    tokens = torch.Generator().manual_seed(1)
    some = lambda n: torch.randint(3, VOCAB_SIZE, (n,), generator=tokens).tolist()  # noqa: E731
    machine.step([([3, 1], 0, some(5)), ([7], 0, some(2))], padded=8)  # two prompts
    machine.step([([3, 1], 5, some(1)), ([7], 2, some(1)), ([2, 8], 0, some(6))], padded=8)  # decodes and a prompt
    machine.step([([2, 8], 6, some(2)), ([3, 1], 6, some(1))], padded=4)  # another size
    machine.step([([3, 1], 7, some(1)), ([7, 4], 3, some(3))], padded=4)


def test_recorded_pieces_serve_any_batch_of_their_size(tmp_path):
    recorder = TapeRecorder()
    machine = Machine(tmp_path, recorder)
    with torch.inference_mode():
        machine.graphs.capture([8])
    assert machine.attention.calls == 0, "attention is not run while the rest is recorded"
    assert recorder.begun == LAYERS + 1, "a piece ends at each layer's attention"
    assert machine.graphs.why_not(8) is None
    run_steps(machine)
    assert machine.attention.calls == 4 * LAYERS
    assert len(machine.graphs) == 2


def test_the_first_of_its_size_is_launched_and_the_second_recorded(tmp_path):
    recorder = TapeRecorder()
    machine = Machine(tmp_path, recorder)
    assert machine.graphs.why_not(8) == "the first of its size is launched kernel by kernel, the second is recorded"
    with torch.inference_mode():
        machine.step([([3, 1], 0, [5, 6, 7])], padded=8)
        assert (len(machine.graphs), recorder.begun) == (0, 0), "it may be the only one"
        assert machine.graphs.why_not(8) is None, "the next one is recorded before it would be launched"
        machine.step([([3, 1], 3, [8])], padded=8)
        assert (len(machine.graphs), recorder.begun) == (1, LAYERS + 1)
        machine.step([([3, 1], 4, [9])], padded=8)
        assert recorder.begun == LAYERS + 1
    run_steps(machine)


def test_the_largest_is_recorded_before_any_that_comes_so_that_all_have_room_in_its_memory(tmp_path):
    recorder = TapeRecorder()
    machine = Machine(tmp_path, recorder, largest=16)
    run_steps(machine)
    assert machine.graphs.why_not(16) is None
    assert (len(machine.graphs), recorder.begun) == (3, 3 * (LAYERS + 1))


def test_others_are_recorded_if_the_largest_cannot_be(tmp_path):
    machine = Machine(tmp_path, TapeRecorder(fails_at=2), largest=16)
    with pytest.warns(UserWarning, match="16 tokens: it could not be recorded: an operation that cannot be recorded"):
        run_steps(machine)
    assert [machine.graphs.why_not(size) for size in (8, 4)] == [None, None]
    assert len(machine.graphs) == 2


def test_what_cannot_be_recorded_is_launched(tmp_path):
    machine = Machine(tmp_path, TapeRecorder(fails_at=2))
    with pytest.warns(UserWarning, match="8 tokens: it could not be recorded: an operation that cannot be recorded"):
        run_steps(machine)
    assert machine.graphs.why_not(8) == "it could not be recorded: an operation that cannot be recorded"
    assert machine.graphs.why_not(4) is None


def test_without_a_recorder_everything_is_launched(tmp_path):
    machine = Machine(tmp_path, None)
    run_steps(machine)
    assert machine.graphs.why_not(8) is None
    assert len(machine.graphs) == 0
