"""Owns that kernels are compiled before they are needed, by a process beside the engine.

Triton compiles a kernel when it is launched for the first time, one after the other, and keeps it on disk for the next
run. On a new machine that is half a minute in which the GPU waits, much of it in the middle of the first requests. But
what will be launched is known from the model and the limits. So a helper goes through an engine's steps on tensors
without memory, where a launch compiles and does nothing else, and each kernel is compiled by a child of its own:

    engine     | choose attention | load weights | run the largest step | record graphs | requests ...
    helper             `-> go through the steps: launch, launch, launch, ... end
    children                                   `compile  `compile  `compile           each leaves a program on disk

Nobody waits for the helper: what is not there yet, the engine compiles itself. What was compiled once for a model, its
limits and a GPU is noted beside the programs, and no helper is started again. MINIVLLM_COMPILE_AHEAD=0 turns it off.

Upstream: none; vLLM warms up its kernels in its own process (vllm/model_executor/warmup/kernel_warmup.py).
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from minivllm.attention.paged import Parts
from minivllm.attention.triton import TritonBackend
from minivllm.kernels import launch
from minivllm.kernels.early_launch import MOST_EARLY_ROWS
from minivllm.kernels.launch import Gpu, gpu_of
from minivllm.models.config import DecoderConfig
from minivllm.models.registry import resolve
from minivllm.sample.device_sampler import draw_on_device
from minivllm.worker.cuda_graphs import GraphDispatcher, StepShape
from minivllm.worker.device_requests import Limits
from minivllm.worker.device_step import DeviceStep, Layout
from minivllm.worker.memory_profile import drawn

# A helper takes 10 to 30 s; after so many it ends, whatever it waits for.
_MOST_SECONDS = 120
# Nothing of the folder that an engine happens to run in is imported, and what is installed comes before this package.
_HELPER = "import sys; sys.path.append(sys.argv[1]); from minivllm.worker.compile_ahead import main; main()"
_MOST_CHILDREN = 16
# All layers of a model launch the same kernels, but those of one with two kinds of windows; in a step with prompts the
# last one launches others.
_LAYERS = 3
_BLOCKS = 1024
# Of prompts: short enough for one tile, and long enough for the kernels that prompts of this length have.
_PROMPTS = (2, 100, 700, 4000)
# Decodes beside a prompt.
_DECODES = (0, 1, 8, 32, 128, 200)


@dataclass(frozen=True, slots=True)
class Job:
    """What decides which kernels an engine launches.

    Attributes:
        config: Of the model.
        dtype, cache_dtype: Of its weights, and of the KV cache.
        limits: Of the device's buffers.
        gpu: What kernels know of it.
        target: What Triton knows of it: backend, architecture, lanes of a warp.
    """

    config: DecoderConfig
    dtype: torch.dtype
    cache_dtype: torch.dtype
    limits: Limits
    gpu: Gpu
    target: tuple[str, Any, int]

    @property
    def note(self) -> Path:
        """The file that says that all of it was compiled. Another version of a kernel or of Triton is another job."""
        import triton

        digest = hashlib.sha256(f"{self} {triton.__version__} {torch.__version__}".encode())
        for path in sorted(Path(launch.__file__).parent.glob("*.py")):
            digest.update(path.read_bytes())
        return Path(triton.knobs.cache.dir) / f"minivllm-{digest.hexdigest()[:24]}"


def compile_ahead(
    device: torch.device, config: DecoderConfig, dtype: torch.dtype, cache_dtype: torch.dtype, limits: Limits
) -> subprocess.Popen[bytes] | None:
    """Start the helper of an engine whose model runs on our kernels on a GPU; None if there is nothing for it to do."""
    from triton.runtime import driver

    target = driver.active.get_current_target()
    facts = (target.backend, target.arch, target.warp_size)
    return start_helper(Job(config, dtype, cache_dtype, limits, gpu_of(device), facts))


def start_helper(job: Job) -> subprocess.Popen[bytes] | None:
    """Start a process that compiles for a job; None if that was or is being done, is not wanted, or cannot be had."""
    if os.environ.get("MINIVLLM_COMPILE_AHEAD") == "0" or (note := job.note).exists() or not _begin(note):
        return None
    environment = {"TRITON_CACHE_DIR": str(note.parent), "PYTHONSAFEPATH": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        helper = subprocess.Popen(
            [sys.executable, "-c", _HELPER, str(Path(__file__).parents[2])],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | environment,
        )
        assert helper.stdin is not None, "it was asked for"
        with helper.stdin as stdin:
            stdin.write(pickle.dumps((job, note)))
    except OSError:  # there is no process to be had, or it ended at once
        return None
    return helper


def _begin(note: Path) -> bool:
    """Whether no other engine's helper has begun with a job; from then on one has. One that broke off is forgotten."""
    begun = note.with_suffix(".begun")
    try:
        if time.time() - begun.stat().st_mtime < _MOST_SECONDS:
            return False
    except OSError:
        pass  # nobody has
    try:
        begun.parent.mkdir(parents=True, exist_ok=True)
        begun.touch()
    except OSError:  # a cache that cannot be written keeps nothing
        return False
    return True


def shapes_to_compile(max_num_seqs: int) -> list[StepShape]:
    """Steps of decodes as they are captured: of each doubling the least, a middle and the most, the largest first.

    Kernels change from some size on, and all of them at or behind a power of two, or half way to the next.
    """
    shapes = [shape for shape in GraphDispatcher(max_num_seqs).shapes() if shape.query_len == 1]
    kept: dict[tuple[int, bool], StepShape] = {}
    most: dict[int, StepShape] = {}
    for shape in shapes:  # the largest first
        doubling = (shape.num_requests - 1).bit_length()
        most.setdefault(doubling, shape)
        kept[doubling, 4 * shape.num_requests >= 3 << doubling] = shape
    return sorted({*kept.values(), *most.values()}, key=lambda shape: -shape.num_requests)


def layouts_to_compile(limits: Limits) -> Iterator[Layout]:
    """Steps with a prompt in them, new or behind a context, with and without decodes beside it; and the largest."""
    most = limits.max_num_seqs
    yield Layout(limits.max_num_tokens, most, Parts(0, most, 0, -(-limits.max_num_tokens // most)))
    for length in _PROMPTS:
        for front in _DECODES:
            if front < limits.max_num_seqs and front + length <= limits.max_num_tokens:
                yield Layout(front + length, front + 1, Parts(front, 1, 0, length))
                yield Layout(front + length, front + 1, Parts(front, 0, length, 0))


def step_without_memory(
    config: DecoderConfig, dtype: torch.dtype, cache_dtype: torch.dtype, limits: Limits
) -> DeviceStep:
    """The step of an engine, on tensors without memory, with layers of each kind."""
    config = replace(config, num_hidden_layers=min(_LAYERS, config.num_hidden_layers))
    device = torch.device("meta")
    model = resolve(config.architecture)(config, device, dtype)
    model.use_kernels()
    attention = TritonBackend()
    shape = attention.kv_cache_shape(_BLOCKS, limits.block_size, config.num_key_value_heads, config.head_dim)
    caches = [torch.empty(shape, device=device, dtype=cache_dtype) for _ in range(config.num_hidden_layers)]
    return DeviceStep(model, caches, attention, limits)


def few_and_many(max_num_seqs: int) -> list[int]:
    """A number of requests whose kernels are launched early, and one whose are not, if so many can come."""
    return sorted({1, min(MOST_EARLY_ROWS + 1, max_num_seqs)})


@torch.inference_mode()
def launch_all(step: DeviceStep, limits: Limits) -> None:
    """Launch what an engine may launch."""
    step.requests.make_room_for_penalties()
    for shape in shapes_to_compile(limits.max_num_seqs):
        step.run(shape)
        if shape.num_requests > 1:
            step.run(replace(shape, with_prefix=True))
    for num_requests in few_and_many(limits.max_num_seqs):
        step.run(StepShape(num_requests, num_requests, 1, with_penalties=True))
    for layout in layouts_to_compile(limits):
        step.sample(step.forward(layout), with_penalties=False)


def pretend_gpu(gpu: Gpu, target: tuple[str, Any, int]) -> None:
    """Let Triton compile for a GPU that this process does not see, and kernels know of it."""
    import triton
    from triton.backends.compiler import GPUTarget

    active = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget(*target),
    )
    triton.runtime.driver.set_active(active)
    for name, module in list(sys.modules.items()):
        if name.startswith("minivllm.") and hasattr(module, "gpu_of"):
            module.gpu_of = lambda device: gpu  # type: ignore[attr-defined]


def compile_only(is_compiled: Callable[[Any], None] = lambda program: None) -> None:
    """From now on a launch compiles, tells of the program, and does nothing else."""
    from triton.runtime.jit import JITFunction

    plain_run = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        is_compiled(plain_run(self, *args, grid=grid, warmup=True, **options))
        return None  # as in the interpreter: there is no program that another layer could launch

    JITFunction.run = run


class Children:
    """Processes that compile a kernel each, at most so many at a time: what Triton calls an AsyncCompileMode.

    Attributes:
        killed: How many were ended from outside.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: set[int] = set()
        self.killed = 0

    def submit(self, key: str, compile_one: Callable[[], Any], know: Callable[[Any], None], *further: Any) -> Any:
        """Let a child compile. The kernel counts as compiled from then on: it is not going to be launched here.

        Triton 3.9 also says how to forget a kernel that could not be compiled.
        """
        know(self)
        self.wait(self._most - 1)
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(_MOST_SECONDS)
                compile_one()
            finally:
                os._exit(0)  # also of a kernel that cannot be compiled: the engine will say so, if it needs it
        self._running.add(child)
        return self

    def wait(self, most: int = 0) -> None:
        """Until no more than so many are left."""
        while len(self._running) > most:
            child, status = os.wait()
            if child in self._running:
                self._running.remove(child)
                self.killed += os.WIFSIGNALED(status)


def main() -> None:
    """Compile for the job on standard input, and leave its note."""
    signal.alarm(_MOST_SECONDS)
    os.nice(5)  # an engine is being started beside this
    job, note = pickle.load(sys.stdin.buffer)
    from triton.runtime import _async_compile

    children = Children(max(1, min(_MOST_CHILDREN, len(os.sched_getaffinity(0)) - 1)))
    pretend_gpu(job.gpu, job.target)
    compile_only()
    step = step_without_memory(job.config, job.dtype, job.cache_dtype, job.limits)
    _async_compile.active_mode.set(children)  # type: ignore[arg-type]
    launch_all(step, job.limits)
    for rows in few_and_many(job.limits.max_num_seqs):
        draw_on_device(torch.empty((rows, job.config.vocab_size), device="meta"), drawn(rows))
    children.wait()
    if not children.killed:
        note.touch()
    note.with_suffix(".begun").unlink(missing_ok=True)
