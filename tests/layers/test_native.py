"""The compiled operations give what PyTorch gives, rounded at the same places; without a compiler all runs, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minivllm.layers import activation, native, norm, rotary
from minivllm.layers.activation import silu_and_mul
from minivllm.layers.linear import Linear, can_pack
from minivllm.layers.norm import RMSNorm
from minivllm.layers.rotary import rotate

DTYPES = [torch.float32, torch.bfloat16]
needs_native = pytest.mark.skipif(not native.availability()[0], reason=native.availability()[1])


def turn_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (activation, norm, rotary):
        monkeypatch.setattr(module, "native_ops", lambda like: None)


def assert_same(ours: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for the order of a sum: in bfloat16 that is at most one number in a hundred, and by one step."""
    assert ours.dtype == expected.dtype
    if ours.dtype == torch.float32:
        torch.testing.assert_close(ours, expected, rtol=2e-6, atol=1e-6)
    else:
        torch.testing.assert_close(ours, expected, rtol=2**-7, atol=1e-6)
        assert (ours != expected).float().mean() < 0.01


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul_(3).to(dtype)


def make_norm(size: int, dtype: torch.dtype) -> RMSNorm:
    layer = RMSNorm(size, 1e-5, torch.device("cpu"), dtype)
    layer.weight.copy_(random(size, dtype=dtype, seed=1))
    return layer


@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 576), (33, 64), (40, 1000), (3, 7)])
def test_norm(rows: int, size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, residual = (
        make_norm(size, dtype),
        random(rows, size, dtype=dtype),
        random(rows, size, dtype=dtype, seed=2),
    )
    alone = layer.forward(x)
    normed, total = layer.add_and_norm(x, residual.clone())
    turn_off(monkeypatch)
    assert_same(alone, layer.forward(x))
    expected, expected_total = layer.add_and_norm(x, residual)
    assert_same(normed, expected)
    assert torch.equal(total, expected_total)


@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_heads_inside_a_larger_product(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, heads = make_norm(32, dtype), random(5, 9, 32, dtype=dtype)[:, 2:6]
    ours = layer.forward(heads)
    turn_off(monkeypatch)
    assert_same(ours, layer.forward(heads))


def test_a_norm_takes_the_sum_before_it_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 + 0.75 is 256 in bfloat16, and its norm beside a 1 is not that of 256."""
    layer = make_norm(4, torch.bfloat16)
    layer.weight.fill_(1.0)
    x, residual = torch.tensor([[0.75, 0, 0, 0]]).bfloat16(), torch.tensor([[256.0, 200.0, 100.0, 50.0]]).bfloat16()
    exact = x.float() + residual.float()
    expected = (exact * torch.rsqrt(exact.square().mean() + 1e-5)).bfloat16()
    for _ in range(2):
        normed, total = layer.add_and_norm(x, residual.clone())
        assert torch.equal(normed, expected)
        assert total[0, 0] == 256
        turn_off(monkeypatch)


@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 50])
def test_rotation_of_a_part_leaves_the_rest(tokens: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    qkv = random(tokens, 7, 16, dtype=dtype)
    cos, sin = random(tokens, 1, 8, dtype=dtype, seed=3), random(tokens, 1, 8, dtype=dtype, seed=4)
    mine = qkv.clone()
    ours = rotate(mine[:, :5], cos, sin)
    assert torch.equal(mine[:, 5:], qkv[:, 5:])
    turn_off(monkeypatch)
    assert_same(ours, rotate(qkv[:, :5], cos, sin))


@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 1536), (40, 500), (2, 5)])
def test_silu_and_mul(rows: int, size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(rows, 2 * size, dtype=dtype) * 4
    ours = silu_and_mul(x.clone())
    turn_off(monkeypatch)
    assert_same(ours, silu_and_mul(x))


@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_stays_a_nan(dtype: torch.dtype) -> None:
    """A broken weight must show in the logits, and not as some number."""
    x = random(2, 32, dtype=dtype)
    x[1, 3] = float("nan")
    assert silu_and_mul(x.clone())[1].isnan().any()
    assert make_norm(32, dtype).forward(x)[1].isnan().all()
    assert not make_norm(32, dtype).forward(x)[0].isnan().any()


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if can_pack(dtype)])
@pytest.mark.parametrize("rows", [1, 32, 300])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_weights_give_the_same_product(rows: int, bias: bool, dtype: torch.dtype) -> None:
    layer = Linear(48, 80, torch.device("cpu"), dtype, bias=bias)
    for slot in layer.slots(a=30, b=50).values():
        slot.copy_(random(*slot.shape, dtype=dtype, seed=slot.numel()))
    x = random(rows, 48, dtype=dtype)
    plain = layer.forward(x)
    layer.pack()
    assert layer.weight.numel() == 0
    torch.testing.assert_close(layer.forward(x), plain, rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=1e-4)
    with pytest.raises(AssertionError, match="loaded before they are packed"):
        layer.slots(a=30, b=50)


def test_the_reason_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load = native._load.__wrapped__
    monkeypatch.setenv("MINIVLLM_HOME", str(tmp_path))
    monkeypatch.setenv("MINIVLLM_NATIVE", "0")
    assert load(torch.float32) == (None, "MINIVLLM_NATIVE=0 leaves them off")
    monkeypatch.delenv("MINIVLLM_NATIVE")
    assert load(torch.float16)[0] is None
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho first >&2\necho no such instruction >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert load(torch.float32) == (None, f"{compiler} cannot compile them: no such instruction")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "none")
    assert load(torch.float32) == (None, "they need a C compiler on Linux: install gcc")
    assert list(tmp_path.glob("native/*")) == []


@needs_native
def test_a_second_process_finds_what_the_first_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINIVLLM_HOME", str(tmp_path))
    assert native._load.__wrapped__(torch.float32)[0] is not None
    (library,) = tmp_path.glob("native/*")
    made = library.stat().st_mtime_ns
    assert native._load.__wrapped__(torch.float32)[0] is not None
    assert [file.stat().st_mtime_ns for file in tmp_path.glob("native/*")] == [made]


@needs_native
@pytest.mark.parametrize("damaged", [b"", b"no library", None])
def test_a_damaged_file_is_compiled_again(
    damaged: bytes | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINIVLLM_HOME", str(tmp_path))
    place = native._place(native.availability()[1].removeprefix("compiled by "), "float32")
    place.parent.mkdir()
    if damaged is None:  # a library, but without our functions
        place.write_bytes(Path(_other_library()).read_bytes())
    else:
        place.write_bytes(damaged)
    before = place.read_bytes()
    assert native._load.__wrapped__(torch.float32)[0] is not None
    assert place.read_bytes() != before
    # Under a name of its own: a process does not look at a file again that it has loaded.
    native.NativeOps(place.rename(tmp_path / "again.so"), "float32")


def _other_library() -> str:
    return next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line)


@needs_native
@pytest.mark.parametrize("home", ["a file", "a folder that only root can make"])
def test_where_nothing_can_be_kept_nothing_is_left_behind(
    home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    monkeypatch.setenv("MINIVLLM_HOME", str(taken) if home == "a file" else "/proc/minivllm")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(native.tempfile, "tempdir", str(scratch))
    ops, reason = native._load.__wrapped__(torch.float32)
    assert ops is not None, reason
    assert list(scratch.iterdir()) == []
    x = random(2, 8, dtype=torch.float32)
    torch.testing.assert_close(ops.silu_and_mul(x), torch.nn.functional.silu(x[:, :4]) * x[:, 4:])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\nexit 3\n", "it ended with exit code 3 and said nothing"),
        ("#!/bin/sh\necho >&2\nexit 3\n", "it ended with exit code 3 and said nothing"),
        ("#!/bin/sh\nsleep 9\n", "it took more than 1 s"),
        ("#!/bin/sh\nexit 0\n", "cannot open shared object file"),
        ("no program", "Exec format error"),
    ],
)
def test_a_compiler_that_does_not_work_is_a_reason(
    script: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINIVLLM_HOME", str(tmp_path))
    monkeypatch.setattr(native, "_COMPILE_TIMEOUT_S", 1)
    compiler = tmp_path / "cc"
    compiler.write_text(script)
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    ops, told = native._load.__wrapped__(torch.float32)
    assert ops is None
    assert reason in told
    assert list(tmp_path.glob("native/*")) == []


@needs_native
def test_processes_that_compile_at_once_agree(tmp_path: Path) -> None:
    code = "from minivllm.layers.native import availability; print(availability()[0])"
    env = os.environ | {"MINIVLLM_HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0] for process in both] == ["True\n", "True\n"]
    assert len(list(tmp_path.glob("native/*"))) == 1


def test_another_processor_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """-march=native: a home folder may be shared by machines."""
    here = native._place("cc", "float32")
    monkeypatch.setattr(native, "_processor", lambda: "flags: fpu")
    assert native._place("cc", "float32") != here
