"""Runs a Gluon kernel on a CPU, with PyTorch in the place of its operations.

Triton's interpreter does not know Gluon. This knows what a kernel of one group of warps uses, and is strict where a GPU
is: a barrier that is waited for must have got its bytes, and a buffer that a product still reads must not be filled.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from minivllm.kernels import hopper_linear
from minivllm.kernels.launch import INTERPRETER

_LOCK = threading.Lock()


class Pretended:
    """Stands in for a compiled kernel."""

    def __init__(self, kernel: Any) -> None:
        self._function = kernel.fn

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **options: run_kernel(self._function, grid, arguments, options)


def pretend(replace: Callable[[Any, str, Any], None], processors: int = INTERPRETER.processors) -> None:
    """Let `hopper_linear` run here, as on a GPU of so many multiprocessors. `replace` is like setattr."""
    gpu = INTERPRETER._replace(processors=processors)
    replace(hopper_linear, "hopper_linear_kernel", Pretended(hopper_linear.hopper_linear_kernel))
    replace(hopper_linear, "tensor_in_boxes", Box)
    replace(hopper_linear, "gpu_of", lambda device: gpu)
    replace(hopper_linear, "workspace", cache(hopper_linear.workspace.__wrapped__))


class Pointer:
    """A tensor's memory, and an offset or many."""

    def __init__(self, memory: torch.Tensor, offset: Any = 0) -> None:
        self.memory, self.offset = memory, offset

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.offset + offset)

    def places(self) -> torch.Tensor:
        """What the offsets point to, as indices into the storage's numbers."""
        return torch.as_tensor(self.offset, dtype=torch.int64) + self.memory.storage_offset()

    def numbers(self) -> torch.Tensor:
        return torch.tensor([], dtype=self.memory.dtype).set_(self.memory.untyped_storage())


class Box:
    """A matrix that is fetched box by box."""

    def __init__(self, matrix: torch.Tensor, rows: int, columns: int) -> None:
        assert matrix.data_ptr() % 16 == 0
        assert matrix.stride(0) * matrix.itemsize % 16 == 0
        assert matrix.stride(1) == 1
        self.matrix, self.shape, self.dtype, self.layout = matrix, (rows, columns), matrix.dtype, None


class Shared:
    """A buffer in shared memory; what a product that has not ended reads of it is `read_by`."""

    def __init__(self, shape: list[int], dtype: torch.dtype) -> None:
        self.tiles = [SimpleNamespace(value=torch.full(shape[1:], float("nan")).to(dtype)) for _ in range(shape[0])]

    def index(self, index: Any) -> SharedTile:
        assert 0 <= int(index) < len(self.tiles)
        return SharedTile(self.tiles[int(index)], False)


class SharedTile:
    def __init__(self, tile: SimpleNamespace, is_turned: bool) -> None:
        self.tile, self.is_turned = tile, is_turned

    def permute(self, order: tuple[int, int]) -> SharedTile:
        assert order == (1, 0)
        return SharedTile(self.tile, not self.is_turned)

    @property
    def value(self) -> torch.Tensor:
        value: torch.Tensor = self.tile.value
        return value.T if self.is_turned else value


class Barrier:
    """Of one arrival and so many bytes a phase."""

    def __init__(self) -> None:
        self.phase, self.expected, self.came, self.has_arrived = 0, 0, 0, False

    def settle(self) -> None:
        if self.has_arrived and self.came == self.expected:
            self.phase, self.expected, self.came, self.has_arrived = self.phase + 1, 0, 0, False


class Program:
    """The operations of one program."""

    def __init__(self, place: tuple[int, ...], grid: tuple[int, ...], num_warps: int) -> None:
        self.place, self.grid, self.num_warps = place, grid, num_warps
        self.waiting: list[list[Any]] = []  # tiles that products read, in the order in which they were asked for

    def language(self) -> SimpleNamespace:
        names = ("float32", "int64", "int32")
        return SimpleNamespace(
            **{name: getattr(torch, name) for name in names},
            constexpr=int,
            program_id=lambda axis: torch.tensor(self.place[axis]),
            num_programs=lambda axis: torch.tensor(self.grid[axis]),
            num_warps=lambda: self.num_warps,
            static_range=range,
            allocate_shared_memory=self.allocate,
            arange=lambda start, end, layout: torch.arange(start, end),
            zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
            expand_dims=lambda tensor, axis: tensor.unsqueeze(axis),
            convert_layout=lambda tensor, layout: tensor,
            minimum=torch.minimum,
            where=lambda mask, left, right: torch.where(mask, left, right),
            sum=lambda tensor, axis: tensor.sum(axis),
            exp=torch.exp,
            rsqrt=torch.rsqrt,
            load=self.load,
            store=self.store,
            atomic_add=self.atomic_add,
            **dict.fromkeys(("NVMMADistributedLayout", "SliceLayout", "BlockedLayout"), lambda *_: None),
        )

    def hopper(self) -> SimpleNamespace:
        barrier = SimpleNamespace(
            MBarrierLayout=lambda: None, init=lambda barrier, count: None, expect=self.expect, wait=self.wait
        )
        return SimpleNamespace(
            mbarrier=barrier,
            fence_async_shared=lambda: None,
            warpgroup_mma=self.multiply,
            warpgroup_mma_wait=self.wait_for_products,
        )

    def allocate(self, dtype: torch.dtype, shape: list[int], layout: Any) -> Any:
        if dtype == torch.int64:
            barriers = [Barrier() for _ in range(shape[0])]
            return SimpleNamespace(index=lambda index: barriers[int(index)])
        return Shared(shape, dtype)

    def expect(self, barrier: Barrier, num_bytes: int, pred: Any = True) -> None:
        if pred:
            assert not barrier.has_arrived, "a phase begins when the one before has ended"
            barrier.expected, barrier.has_arrived = num_bytes, True
            barrier.settle()

    def fetch_box(self, box: Box, place: list[Any], barrier: Barrier, target: SharedTile, pred: Any = True) -> None:
        if not pred:
            return
        assert all(target.tile is not read for product in self.waiting for read in product), (
            "a product still reads this buffer"
        )
        rows, columns = box.shape
        row, column = (int(index) for index in place)
        found = torch.zeros(rows, columns, dtype=box.dtype)
        real = box.matrix[max(0, row) : row + rows, max(0, column) : column + columns]
        found[: len(real), : real.shape[1]] = real
        target.tile.value = found
        barrier.came += found.nbytes
        barrier.settle()

    def wait(self, barrier: Barrier, phase: Any) -> None:
        assert barrier.phase % 2 != int(phase), "this would wait for ever"

    def multiply(self, left: SharedTile, right: SharedTile, acc: torch.Tensor, is_async: bool) -> torch.Tensor:
        assert is_async
        self.waiting.append([left.tile, right.tile])
        return acc + left.value.float() @ right.value.float()

    def wait_for_products(self, pending: int, deps: list[torch.Tensor]) -> Any:
        del self.waiting[: max(0, len(self.waiting) - pending)]
        return deps[0] if len(deps) == 1 else tuple(deps)

    def load(self, pointer: Pointer, mask: Any = True, other: float = 0.0) -> torch.Tensor:
        places, mask = torch.broadcast_tensors(pointer.places(), torch.as_tensor(mask))
        found = pointer.numbers()[torch.where(mask, places, 0)]
        return torch.where(mask, found, torch.tensor(other, dtype=found.dtype))

    def store(self, pointer: Pointer, value: Any, mask: Any = True) -> None:
        places, mask = torch.broadcast_tensors(pointer.places(), torch.as_tensor(mask))
        value = torch.as_tensor(value, dtype=pointer.memory.dtype).expand(places.shape)
        pointer.numbers()[places[mask]] = value[mask]

    def atomic_add(self, pointer: Pointer, value: int, sem: str) -> torch.Tensor:
        with _LOCK:
            before = self.load(pointer).clone()
            self.store(pointer, before + value)
        return before


def run_kernel(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """What a launch does. Tensors among the arguments are pointers.

    Args:
        kernel: The plain function.
        grid: Programs along each axis; they run at once, in threads.
        arguments: As of the launch; `Box` where it has matrices in boxes.
        options: The launch's named arguments.
    """
    num_warps = options.pop("num_warps")
    places = list(itertools.product(*(range(count) for count in grid)))

    def run(index: int) -> None:
        program = Program(places[index], grid, num_warps)
        names = dict(
            kernel.__globals__,
            gl=program.language(),
            hopper=program.hopper(),
            fetch_box=program.fetch_box,
            barrier_of_threads=lambda: None,
            **{name: lambda early: None for name in ("begin_early", "wait_for_earlier")},
        )
        given = [Pointer(item) if isinstance(item, torch.Tensor) else item for item in arguments]
        given = [torch.tensor(item) if isinstance(item, int) else item for item in given]
        FunctionType(kernel.__code__, names)(*given, **options)
        assert not program.waiting, "a program does not end before its products"

    with ThreadPoolExecutor(len(places)) as pool:
        list(pool.map(run, torch.randperm(len(places)).tolist()))
