"""FlashAttention and FlashInfer: the calls their packages get, the tokens they give, and why they are left."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minivllm import LLM, SamplingParams
from minivllm.attention import libraries
from minivllm.attention.backend import AttentionCGSupport, AttentionMetadata
from minivllm.attention.selector import select_backend
from minivllm.attention.torch_sdpa import TorchSdpaBackend
from minivllm.kernels.triton_guard import HAS_TRITON
from tests.attention import fake_libraries
from tests.attention.test_torch_sdpa import BATCHES
from tests.models.checkpoints import save_model

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")
CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 64
# A package, and a block size that it can read.
WITH_BLOCKS = [("flash_attn_interface", 3), ("vllm", 16), ("flash_attn", 256), ("flashinfer", 5)]


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the packages is there, whatever is installed."""
    for name in fake_libraries.PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    find_spec = libraries.importlib.util.find_spec
    there = lambda name: find_spec(name) if name in sys.modules or name not in fake_libraries.PACKAGES else None  # noqa: E731
    monkeypatch.setattr(libraries.importlib.util, "find_spec", there)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch, no_packages: None) -> None:
    """The CPU counts as a Hopper GPU: calls are checked and computed by fakes, pages are written by references."""
    monkeypatch.setattr(libraries, "_why_not_here", lambda project, needs: None)
    monkeypatch.setattr(libraries, "capability_of", lambda device: (9, 0))
    monkeypatch.setattr(libraries, "_HALF", (torch.float32, torch.bfloat16))
    monkeypatch.setattr(libraries, "_FLASHINFER_HEADS", (8, HEAD_DIM))
    if HAS_TRITON:
        from minivllm.attention import paged
        from minivllm.kernels.reshape_and_cache import reshape_and_cache_reference

        monkeypatch.setattr(paged, "reshape_and_cache", reshape_and_cache_reference)
        monkeypatch.setattr(paged.PagedBackend, "on_kernels", False)  # the rest of the model stays as it is on a CPU
    fake_libraries.CALLS.clear()


def backend_of(package: str) -> str:
    return "flashinfer" if package == "flashinfer" else "flash_attn"


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, *packages: str) -> None:
    for name in fake_libraries.PACKAGES:  # so that they are taken out again
        monkeypatch.setitem(sys.modules, name, fake_libraries.PACKAGES[name])
        del sys.modules[name]
    fake_libraries.install(list(packages), folder)


def step(batch: list[tuple[int, int]], block_size: int) -> tuple[AttentionMetadata, torch.Tensor, torch.Tensor]:
    """A batch of (computed, scheduled), a cache with its past, and its projection: (tokens, all heads, head size)."""
    generator = torch.Generator().manual_seed(0)
    lens = np.array([computed + scheduled for computed, scheduled in batch], dtype=np.int32)
    starts = np.cumsum([0] + [scheduled for _, scheduled in batch], dtype=np.int32)
    pages = -(-lens // block_size)
    blocks = torch.randperm(int(pages.sum()) + 3, generator=generator).tolist()
    table = np.full((len(batch), int(pages.max())), -1, dtype=np.int32)
    for row, count in enumerate(pages.tolist()):
        table[row, :count] = [blocks.pop() for _ in range(count)]
    places = [(row, p) for row, (computed, new) in enumerate(batch) for p in range(computed, computed + new)]
    slots = [table[row, p // block_size] * block_size + p % block_size for row, p in places]
    cache = torch.randn(2, int(pages.sum()) + 3, block_size, KV_HEADS, HEAD_DIM, generator=generator)
    qkv = torch.randn(len(slots), HEADS + 2 * KV_HEADS, HEAD_DIM, generator=generator)
    return AttentionMetadata(starts, lens, table, np.array(slots, dtype=np.int64), block_size), cache, qkv


@needs_triton
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("package", "block_size"), WITH_BLOCKS)
def test_each_package_gives_the_references_attention(package, block_size, batch, hopper, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, package)
    windows = (None, 1, 8)
    shape = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "block_size": block_size}
    backend, _ = select_backend(CPU, HEAD_DIM, torch.float32, windows, backend_of(package), **shape)
    metadata, cache, qkv = step(batch, block_size)
    query, key, value = qkv.split((HEADS, KV_HEADS, KV_HEADS), dim=1)  # not contiguous, as in a model
    reference = TorchSdpaBackend(windows)
    prepared, expected = backend.prepare(metadata, CPU, query.dtype), reference.prepare(metadata, CPU, query.dtype)
    for window in windows:
        pages, others = cache.clone(), cache.clone()
        want = reference.forward(query, key, value, others, expected, window)
        torch.testing.assert_close(backend.forward(query, key, value, pages, prepared, window), want)
        torch.testing.assert_close(pages, others)


PROMPTS = [[5, 9, 31, 2, 77], [5, 9, 31, 2, 8, 1, 4, 7, 11, 3], [1], list(range(20, 50)), [5, 9, 31, 2, 77, 6]]


def generate(folder: Path, block_size: int, **settings: Any) -> list[list[int]]:
    """Greedy tokens of prompts that come in chunks and share a prefix; small blocks run out, and some are preempted."""
    llm = LLM(
        model=str(folder), skip_tokenizer_init=True, max_model_len=64, dtype="float32", max_num_seqs=4,
        max_num_batched_tokens=16, block_size=block_size, num_gpu_blocks_override=max(80 // block_size, 5), **settings,
    )  # fmt: skip
    greedy = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], greedy, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@needs_triton
@pytest.mark.parametrize(("kind", "sizes"), [("qwen3", {}), ("mistral", {"sliding_window": 7})])
@pytest.mark.parametrize(("package", "block_size"), WITH_BLOCKS)
def test_the_engine_gives_the_same_tokens(package, block_size, kind, sizes, hopper, monkeypatch, tmp_path):
    save_model(kind, tmp_path, **sizes)
    expected = generate(tmp_path, block_size, attention_backend="torch_sdpa")
    (tmp_path / "site").mkdir()
    install(monkeypatch, tmp_path / "site", package)
    for batch in ("slots", "rows"):
        assert generate(tmp_path, block_size, attention_backend=backend_of(package), batch=batch) == expected
    assert fake_libraries.CALLS, "the package was called"


@needs_triton
def test_a_step_is_planned_once_for_all_of_its_layers(hopper, monkeypatch, tmp_path):
    save_model("llama", tmp_path, num_hidden_layers=3)
    install(monkeypatch, tmp_path, "flashinfer")
    before = fake_libraries.Decodes.plans, fake_libraries.Prefills.plans
    generate(tmp_path, 16, attention_backend="flashinfer")
    for wrapper, plans in zip((fake_libraries.Decodes, fake_libraries.Prefills), before, strict=True):
        assert (wrapper.plans - plans) * 3 == fake_libraries.CALLS.count(wrapper.__name__) > 0


@needs_triton
@pytest.mark.parametrize(
    ("packages", "block_size", "taken", "support"),
    [
        (("flash_attn_interface", "vllm", "flash_attn"), 256, "3 of flash_attn_interface", "ALWAYS"),
        (("vllm", "flash_attn"), 256, "3 of vllm.vllm_flash_attn", "ALWAYS"),
        (("flash_attn",), 256, "2 of flash_attn", "UNIFORM_BATCH"),
    ],
)
def test_the_newest_package_is_taken(packages, block_size, taken, support, hopper, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, *packages)
    backend, reasons = select_backend(CPU, 64, torch.bfloat16, forced="flash_attn", block_size=block_size)
    assert reasons["flash_attn"].startswith(f"taken: it was asked for, and runs FlashAttention {taken}")
    assert reasons["torch_sdpa"] == "left: flash_attn is faster, and gives the same up to rounding"
    assert backend.graph_support == AttentionCGSupport[support]


@needs_triton
def test_before_hopper_version_2_is_taken(hopper, monkeypatch, tmp_path):
    monkeypatch.setattr(libraries, "capability_of", lambda device: (8, 6))
    install(monkeypatch, tmp_path, "flash_attn_interface", "vllm")
    _, reasons = select_backend(CPU, 64, torch.bfloat16, forced="flash_attn")
    assert "FlashAttention 2 of vllm.vllm_flash_attn" in reasons["flash_attn"]


@pytest.mark.parametrize(
    ("name", "packages", "settings", "reason"),
    [
        ("flash_attn", (), {}, "the package flash-attn is not installed; pip install flash-attn"),
        ("flashinfer", (), {}, "the package flashinfer-python is not installed; pip install flashinfer-python"),
        (
            "flash_attn",
            ("flash_attn",),
            {},
            "flash_attn reads blocks of a multiple of 256 tokens, and block_size is 16",
        ),
        ("flash_attn", ("vllm",), {"block_size": 8}, "reads blocks of a multiple of 16 tokens, and block_size is 8"),
        ("flash_attn", ("vllm",), {"head_dim": 260}, "a multiple of 8 up to 256, and the head size is 260"),
        ("flashinfer", ("flashinfer",), {"head_dim": 80}, "takes head sizes 8, 64, and the head size is 80"),
        ("flash_attn", ("vllm",), {"dtype": torch.float64}, "float16 or bfloat16, and the model's dtype is float64"),
        ("flashinfer", ("flashinfer",), {"kv_cache_dtype": "fp8"}, "own numbers only, and kv_cache_dtype is fp8"),
    ],
)
def test_what_cannot_run_says_why(name, packages, settings, reason, hopper, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, *packages)
    needs = {"head_dim": 64, "dtype": torch.bfloat16, **settings}
    with pytest.raises(ValueError, match=f"attention backend '{name}' cannot run: ") as refused:
        select_backend(CPU, forced=name, **needs)
    assert reason in str(refused.value)
    if "dtype" not in settings:
        _, reasons = select_backend(CPU, **needs)
        assert reason in reasons[name]


@needs_triton
def test_what_can_run_is_taken_by_name_only(hopper, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "vllm", "flashinfer")
    backend, reasons = select_backend(CPU, 64, torch.bfloat16)
    assert backend.name == "torch_sdpa"
    assert reasons["flash_attn"] == reasons["flashinfer"] == "left: it can run, and is taken by name only"


@needs_triton
def test_a_broken_package_is_an_error_that_says_so(hopper, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "vllm")
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn", None)
    with pytest.raises(ValueError, match="'flash_attn' cannot run: its package cannot be imported"):
        select_backend(CPU, 64, torch.bfloat16, forced="flash_attn")
