"""Owns the product of a few rows with a large weight: what a decode step of a small batch consists of.

    out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]          M rows, 1 to 16; weight (N, K) as checkpoints store it

Each weight is read once and used M times. With 16-bit weights that is M multiplications a byte, where a GPU could do
hundreds: only reading counts, and libraries made for large products leave half of the bandwidth unused here.

Two kernels. Up to 4 rows: plain multiplications, one program for a few rows of the weight, so that there are many small
programs with all their reads under way at once. From 5 rows on: the matrix unit, whose 16 columns x fits into.

Upstream: vllm/model_executor/layers/utils.py::rocm_unquantized_gemm_impl (the same idea, in HIP, for AMD's GPUs).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from minivllm.kernels.early_launch import begin_early, early_launch, wait_for_earlier
from minivllm.kernels.triton_guard import cdiv, jit, jit_for_any, next_power_of_2, tl

MOST_ROWS = 16
MOST_ROWS_WITHOUT_MATRIX_UNIT = 4
UNROLL = tl.constexpr(4)


class Tiling(NamedTuple):
    """Rows of the weight for one program, numbers of a tile along K, warps."""

    weight_rows: int
    tile: int
    warps: int


def skinny_linear_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """What the kernels do, in plain PyTorch."""
    product = x.double() @ weight.double().T
    return (product if bias is None else product + bias.double()).to(x.dtype)


@jit
def load_tile(row_ptr, is_row, column, size):
    """Some columns of some rows; zeros past the end. row_ptr is (rows, 1)."""
    return tl.load(row_ptr + column[None, :], mask=is_row[:, None] & (column < size)[None, :], other=0.0)


@jit_for_any("num_rows")
def gemv_kernel(
    out_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    num_rows,
    num_outputs,
    x_stride,
    out_stride,
    weight_stride,
    rows_padded: tl.constexpr,
    size: tl.constexpr,
    weight_rows: tl.constexpr,
    tile: tl.constexpr,
    has_bias: tl.constexpr,
    early: tl.constexpr,
):
    """A few rows of the weight with all rows of x, M = 2:

                 K ->
    x       m0 [ tile 0 | tile 1 | ... ]        acc (M, weight_rows, tile): each thread sums its own columns of K,
            m1 [ tile 0 | tile 1 | ... ]        and only at the end all threads sum theirs
    weight  n0 [ tile 0 | tile 1 | ... ]
            n1 [ tile 0 | tile 1 | ... ]        unrolled: of a long K, 4 tiles are under way at once

    The weight is read one tile ahead: its first tile needs to wait for no other kernel.
    """
    begin_early(early)
    output = tl.program_id(0) * weight_rows + tl.arange(0, weight_rows)
    is_output = output < num_outputs
    row = tl.arange(0, rows_padded)
    is_row = row < num_rows
    weight_row = weight_ptr + output.to(tl.int64)[:, None] * weight_stride
    acc = tl.zeros([rows_padded, weight_rows, tile], tl.float32)
    weight = load_tile(weight_row, is_output, tl.arange(0, tile), size)  # (weight_rows, tile)
    wait_for_earlier(early)
    for start in tl.range(0, size, tile, loop_unroll_factor=UNROLL):
        column = start + tl.arange(0, tile)
        x = load_tile(x_ptr + row[:, None] * x_stride, is_row, column, size)  # (rows_padded, tile)
        acc += weight.to(tl.float32)[None, :, :] * x.to(tl.float32)[:, None, :]
        if tile < size:
            weight = load_tile(weight_row, is_output, column + tile, size)
    out = tl.sum(acc, 2)  # (rows_padded, weight_rows)
    if has_bias:
        out += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    out_cell = row[:, None] * out_stride + output[None, :]
    tl.store(out_ptr + out_cell, out.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])


@jit_for_any("num_rows")
def skinny_gemm_kernel(
    out_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    num_rows,
    num_outputs,
    size,
    x_stride,
    out_stride,
    weight_stride,
    rows_padded: tl.constexpr,
    weight_rows: tl.constexpr,
    tile: tl.constexpr,
    has_bias: tl.constexpr,
    early: tl.constexpr,
):
    """The same on the matrix unit, which wants 16 rows at least: weight_rows of the weight, and x as 16 columns.

    weight (weight_rows, tile) @ x^T (tile, rows_padded)  ->  acc (weight_rows, rows_padded)
    """
    begin_early(early)
    wait_for_earlier(early)
    output = tl.program_id(0) * weight_rows + tl.arange(0, weight_rows)
    is_output = output < num_outputs
    row = tl.arange(0, rows_padded)
    is_row = row < num_rows
    weight_row = weight_ptr + output.to(tl.int64)[:, None] * weight_stride
    acc = tl.zeros([weight_rows, rows_padded], tl.float32)
    for start in range(0, size, tile):
        column = start + tl.arange(0, tile)
        is_column = column < size
        weight = tl.load(
            weight_row + column[None, :], mask=is_output[:, None] & is_column[None, :], other=0.0
        )  # (weight_rows, tile)
        x = tl.load(
            x_ptr + row[None, :] * x_stride + column[:, None], mask=is_row[None, :] & is_column[:, None], other=0.0
        )  # (tile, rows_padded)
        acc = tl.dot(weight, x, acc, input_precision="ieee")
    if has_bias:
        acc += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
    out_cell = row[None, :] * out_stride + output[:, None]
    tl.store(out_ptr + out_cell, acc.to(out_ptr.dtype.element_ty), mask=is_row[None, :] & is_output[:, None])


def gemv_tiling(num_rows: int, num_outputs: int, size: int) -> Tiling:
    """A few whole rows of the weight in one tile, so that a program asks for all that it reads at once.

    8192 numbers are 64 for each of 128 threads, and with them as many sums for each row of x. A longer K is read in
    tiles of 1024, four of them under way.
    """
    rows_padded, whole = next_power_of_2(num_rows), next_power_of_2(size)
    if whole <= (4096 if rows_padded <= 2 else 2048):
        tile, weight_rows = whole, max(1, min(4, 8192 // whole) // rows_padded)
    else:
        tile, weight_rows = 1024, max(1, 4 // rows_padded)
    # Fewer rows for a small weight: its programs must still cover the GPU's multiprocessors several times.
    return Tiling(min(weight_rows, max(1, next_power_of_2(num_outputs // 512))), tile, warps=4)


# 16 rows x 256 numbers x 2 bytes are 8 KB of weight, and as much of x: 4 buffers take 64 KB.
GEMM_TILING = Tiling(weight_rows=16, tile=256, warps=4)
GEMM_STAGES = 4


def skinny_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x @ weight.T + bias for 1 to 16 rows, summed in float32.

    Args:
        x: (M, K), contiguous rows.
        weight: (N, K), contiguous rows.
        bias: (N,)
        out: Written if given. (M, N)

    Returns:
        (M, N)

    Raises:
        ValueError: Too many rows, or shapes that do not belong together.
    """
    num_rows, size = x.shape
    num_outputs = len(weight)
    if not 0 <= num_rows <= MOST_ROWS:
        raise ValueError(f"skinny_linear takes at most {MOST_ROWS} rows, got {num_rows}; use torch's linear beyond")
    if weight.shape[1] != size or x.stride(-1) != 1 or weight.stride(-1) != 1:
        raise ValueError(f"x {tuple(x.shape)} and weight {tuple(weight.shape)} must have contiguous rows of one length")
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device) if out is None else out
    if num_rows == 0:
        return out
    strides = (x.stride(0), out.stride(0), weight.stride(0))
    bias_or_any = weight if bias is None else bias  # never read without a bias
    if num_rows <= MOST_ROWS_WITHOUT_MATRIX_UNIT:
        tiling = gemv_tiling(num_rows, num_outputs, size)
        gemv_kernel[(cdiv(num_outputs, tiling.weight_rows),)](
            out,
            x,
            weight,
            bias_or_any,
            num_rows,
            num_outputs,
            *strides,
            rows_padded=next_power_of_2(num_rows),
            size=size,
            weight_rows=tiling.weight_rows,
            tile=tiling.tile,
            has_bias=bias is not None,
            num_warps=tiling.warps,
            **early_launch(x.device),
        )
        return out
    skinny_gemm_kernel[(cdiv(num_outputs, GEMM_TILING.weight_rows),)](
        out,
        x,
        weight,
        bias_or_any,
        num_rows,
        num_outputs,
        size,
        *strides,
        rows_padded=MOST_ROWS,
        weight_rows=GEMM_TILING.weight_rows,
        tile=GEMM_TILING.tile if x.dtype.itemsize < 4 else 64,
        has_bias=bias is not None,
        num_warps=GEMM_TILING.warps,
        num_stages=GEMM_STAGES,
        **early_launch(x.device),
    )
    return out
