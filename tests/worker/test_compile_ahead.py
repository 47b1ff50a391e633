"""The helper that compiles kernels beside an engine: when it is started, what it goes through, and that it can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minivllm.bench.shapes import model_arguments
from minivllm.kernels.gluon_guard import HAS_GLUON
from minivllm.kernels.launch import Gpu
from minivllm.kernels.triton_guard import HAS_TRITON
from minivllm.models.config import from_folder
from minivllm.worker.cuda_graphs import GraphDispatcher
from minivllm.worker.device_requests import Limits

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="there is no Triton here")
H200 = Gpu(132, 90, 3, True)
LIMITS = Limits(256, 16384, 4096, 16)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from minivllm.worker.compile_ahead import Job

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    config = from_folder(Path(model_arguments("qwen3-0.6b")["model"]))
    return Job(config, torch.bfloat16, torch.bfloat16, LIMITS, H200, ("cuda", 90, 32))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that were started instead of the helper, which ends at once."""
    commands: list[list[str]] = []
    real = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return real([sys.executable, "-c", "import sys; sys.stdin.buffer.read()"], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    return commands


def test_it_is_started_once_for_a_job(job: Any, started: list[list[str]]) -> None:
    from minivllm.worker.compile_ahead import start_helper

    helper = start_helper(job)
    assert helper is not None
    assert helper.wait(60) == 0
    assert len(started) == 1
    assert start_helper(job) is None, "another engine's has begun"
    job.note.touch()  # as the helper does at its end
    job.note.with_suffix(".begun").unlink()
    assert start_helper(job) is None


def test_one_that_broke_off_is_forgotten(job: Any, started: list[list[str]]) -> None:
    from minivllm.worker.compile_ahead import start_helper

    assert start_helper(job) is not None
    begun = job.note.with_suffix(".begun")
    os.utime(begun, (begun.stat().st_mtime - 1000,) * 2)
    assert start_helper(job) is not None
    assert len(started) == 2


def test_a_cache_that_cannot_be_written_is_left_alone(
    job: Any, started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minivllm.worker.compile_ahead import start_helper

    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert start_helper(job) is None
    assert not started


def test_it_can_be_turned_off(job: Any, started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    from minivllm.worker.compile_ahead import start_helper

    monkeypatch.setenv("MINIVLLM_COMPILE_AHEAD", "0")
    assert start_helper(job) is None
    assert not started


def test_an_engine_goes_on_without_it(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from minivllm.worker.compile_ahead import start_helper

    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert start_helper(job) is None


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": torch.float16},
        {"limits": replace(LIMITS, max_num_seqs=8)},
        {"gpu": H200._replace(processors=114)},
        {"target": ("cuda", 80, 32)},
    ],
)
def test_what_compiles_other_kernels_is_another_job(job: Any, change: dict[str, Any]) -> None:
    assert replace(job, **change).note != job.note
    assert replace(job).note == job.note


@pytest.mark.parametrize("max_num_seqs", [1, 2, 5, 64, 256, 1000, 1024])
def test_decodes_of_every_doubling_are_compiled(max_num_seqs: int) -> None:
    from minivllm.worker.compile_ahead import shapes_to_compile

    chosen = [shape.num_requests for shape in shapes_to_compile(max_num_seqs)]
    captured = {shape.num_requests for shape in GraphDispatcher(max_num_seqs).shapes()}
    assert chosen == sorted(chosen, reverse=True)
    assert set(chosen) <= captured
    assert {1, max_num_seqs} <= set(chosen)
    for size in (2, 4, 8, 16, 32, 64, 128, 256, 512):
        if size < max_num_seqs:
            assert size in chosen, "the most of a doubling"
            assert min(each for each in captured if each > size) in chosen, "the least of the next"
    assert len(chosen) <= 3 * 10


def test_children_compile_and_may_fail(tmp_path: Path) -> None:
    from minivllm.worker.compile_ahead import Children

    children, known = Children(2), []

    def compile_one(index: int) -> Callable[[], None]:
        def compile_it() -> None:
            if index == 3:
                raise RuntimeError("no such layout")
            (tmp_path / str(index)).touch()

        return compile_it

    for index in range(7):
        assert children.submit(str(index), compile_one(index), known.append) is children
    children.wait()
    assert len(known) == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "4", "5", "6"]
    assert children.killed == 0
    children.submit("7", lambda: os.kill(os.getpid(), signal.SIGKILL), known.append)
    children.wait()
    assert children.killed == 1, "its kernel may be compiled another time"


def test_sampling_is_compiled_for_few_rows_and_for_many() -> None:
    """Up to 16 its kernels are launched early, and are others; so are those with penalties."""
    from minivllm.worker.compile_ahead import few_and_many, launch_all

    ran: list[Any] = []
    step: Any = SimpleNamespace(
        requests=SimpleNamespace(make_room_for_penalties=lambda: None),
        run=ran.append,
        forward=lambda layout: layout,
        sample=lambda layout, with_penalties: ran.append(layout),
    )
    launch_all(step, LIMITS)
    for with_penalties in (False, True):
        rows = {shape.num_requests for shape in ran if getattr(shape, "with_penalties", False) == with_penalties}
        assert min(rows) <= 16 < max(rows), f"{with_penalties=}: {rows}"
    assert few_and_many(1) == [1], "no more than can come"


WALK = """
import pickle, sys
from triton.runtime import _async_compile
from triton.runtime.jit import JITFunction
from minivllm.worker import compile_ahead

names = set()
plain = JITFunction._do_compile

def noted(self, *arguments, **options):
    names.add(self.__name__)
    return plain(self, *arguments, **options)

class Nobody(compile_ahead.Children):
    def submit(self, key, compile_one, know, *further):
        know(self)
        return self

JITFunction._do_compile, compile_ahead.Children = noted, Nobody
compile_ahead.main()
print(*sorted(names))
"""


@pytest.mark.skipif(not HAS_GLUON, reason="this Triton has no Gluon")
def test_it_goes_through_what_an_engine_launches(job: Any) -> None:
    """In a process of its own: there, Triton compiles for a GPU that it does not see."""
    import pickle

    run = subprocess.run(
        [sys.executable, "-c", WALK], input=pickle.dumps((job, job.note)), capture_output=True, check=False
    )
    assert run.returncode == 0, run.stderr.decode()[-2000:]
    assert job.note.exists()
    launched = set(run.stdout.decode().split())
    assert launched >= {
        "append_blocks_kernel",
        "pack_requests_kernel",
        "pack_tokens_kernel",
        "pack_decodes_kernel",
        "rotary_and_cache_kernel",
        "fused_gemv_kernel",
        "hopper_linear_kernel",
        "skinny_gemm_kernel",
        "rms_norm_kernel",
        "silu_and_mul_kernel",
        "plan_decode_kernel",
        "paged_decode_kernel",
        "prefix_attention_kernel",
        "plan_ranges_kernel",
        "hopper_decode_kernel",
        "join_parts_kernel",
        "paged_prefill_kernel",
        "hopper_prefill_kernel",
        "survey_kernel",
        "weigh_kernel",
        "finish_kernel",
    }
