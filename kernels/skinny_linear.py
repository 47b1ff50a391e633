"""Owns the product of a few rows with a large weight: what a decode step of a small batch consists of.

    out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]          M rows, 1 to 64; weight (N, K) as checkpoints store it

Each weight is read once and used M times. With 16-bit weights that is M operations a byte (a multiplication and an
addition for two bytes), where a GPU could do hundreds: only reading counts, and libraries made for large products leave
half of the bandwidth unused here.

Two kernels. Up to 4 rows, with a head 2: plain multiplications, one warp for a few rows of the weight, so that there
are thousands of small programs with all their reads under way at once. Beyond: the matrix unit, whose 16 columns x fits
into. There a small weight has too few tiles for the GPU, and several programs share one: each sums a part of K.

Upstream: vllm/model_executor/layers/utils.py::rocm_unquantized_gemm_impl (the same idea, in HIP, for AMD's GPUs).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from minivllm.kernels.early_launch import AFTER_ITS_WAIT, begin_early, early_launch, wait_for_earlier
from minivllm.kernels.launch import gpu_of
from minivllm.kernels.triton_guard import cdiv, jit, jit_for_any, next_power_of_2, tl

MOST_ROWS = 64
MOST_ROWS_WITHOUT_MATRIX_UNIT = 4
# A weight with so many rows, as a head's, has enough programs for every processor, however they are cut.
MANY_OUTPUTS = 1 << 15
# With such a weight to multiply 3 rows takes longer than to read: the head of an 8B model 369 us on an H200, and 237 on
# the matrix unit.
MOST_ROWS_OF_MANY_OUTPUTS = 2
# The matrix unit multiplies 16 rows at least.
LEAST_COLUMNS = 16
MOST_SPLITS = 8


class Tiling(NamedTuple):
    """Rows of the weight for one program, numbers of a tile along K, warps, and programs that share K."""

    weight_rows: int
    tile: int
    warps: int
    splits: int = 1


def skinny_linear_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """What the kernels do, in plain PyTorch."""
    product = x.double() @ weight.double().T
    return (product if bias is None else product + bias.double()).to(x.dtype)


@jit
def load_whole_rows(row_ptr, is_row, size, tile: tl.constexpr):
    """Whole rows, zeros past their end: (rows, tile). is_row is (rows, 1), and so is row_ptr, or a scalar for one row.

    Always two dimensions: so the columns of weights, x and gains lie with the same threads, and nothing needs to travel
    between threads before it is multiplied.
    """
    column = tl.arange(0, tile)[None, :]
    return tl.load(row_ptr + column, mask=(column < size) & is_row, other=0.0)


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
    """A few rows of the weight with all rows of x, one after the other:

    weight  n0 [ thread 0 | thread 1 | ... | thread 31 | thread 0 | ... ]       K ->
            n1 [ thread 0 | thread 1 | ... ]
    x       m  [ thread 0 | thread 1 | ... ]     each thread multiplies and sums its own columns, then all sum theirs

    The weight stays in registers for all rows of x, and is read before the wait: it depends on no other kernel.
    """
    begin_early(early)
    output = tl.program_id(0) * weight_rows + tl.arange(0, weight_rows)
    is_output = output < num_outputs
    weight_row = weight_ptr + output.to(tl.int64)[:, None] * weight_stride
    weight = load_whole_rows(weight_row, is_output[:, None], size, tile)  # (weight_rows, tile)
    wait_for_earlier(early)
    for row in tl.static_range(rows_padded):
        is_row = tl.arange(0, 1) + row < num_rows  # (1,)
        x = load_whole_rows(x_ptr + row * x_stride, is_row[:, None], size, tile)  # (1, tile)
        out = tl.sum(weight.to(tl.float32) * x.to(tl.float32), 1)  # (weight_rows,)
        if has_bias:
            out += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)
        out_cell = out_ptr + row * out_stride + output
        tl.store(out_cell, out.to(out_ptr.dtype.element_ty), mask=is_output & is_row)


@jit_for_any("num_rows")
def skinny_gemm_kernel(
    out_ptr,
    partial_ptr,
    ticket_ptr,
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
    splits: tl.constexpr,
    has_bias: tl.constexpr,
    early: tl.constexpr,
):
    """The same on the matrix unit: weight_rows of the weight, x as 16 columns or more, and a share of K.

        weight (weight_rows, tile) @ x^T (tile, rows_padded)  ->  acc (weight_rows, rows_padded)

    Where K is shared, each program leaves its sums in memory and draws a ticket. Whoever draws the last one knows that
    all sums are there, and adds them, always in the same order.
    """
    begin_early(early)
    wait_for_earlier(early)
    group, split = tl.program_id(0), tl.program_id(1)
    output = group * weight_rows + tl.arange(0, weight_rows)
    is_output = output < num_outputs
    row = tl.arange(0, rows_padded)
    is_row = row < num_rows
    weight_row = weight_ptr + output.to(tl.int64)[:, None] * weight_stride
    share = tl.cdiv(tl.cdiv(size, splits), tile) * tile
    acc = tl.zeros([weight_rows, rows_padded], tl.float32)
    for start in range(split * share, tl.minimum(split * share + share, size), tile):
        column = start + tl.arange(0, tile)
        is_column = column < size
        weight = tl.load(
            weight_row + column[None, :], mask=is_output[:, None] & is_column[None, :], other=0.0
        )  # (weight_rows, tile)
        x = tl.load(
            x_ptr + row[None, :] * x_stride + column[:, None], mask=is_row[None, :] & is_column[:, None], other=0.0
        )  # (tile, rows_padded)
        acc = tl.dot(weight, x, acc, input_precision="ieee")

    is_cell = is_row[None, :] & is_output[:, None]
    is_last = True
    if splits > 1:
        cell = row[None, :] * num_outputs + output[:, None]
        tl.store(partial_ptr + split * num_rows * num_outputs + cell, acc, mask=is_cell)
        tl.debug_barrier()  # a ticket is drawn when all threads have left their sums
        is_last = tl.atomic_add(ticket_ptr + group, 1, sem="acq_rel") == splits - 1
        if is_last:
            tl.store(ticket_ptr + group, 0)  # for the next launch
            acc = tl.zeros([weight_rows, rows_padded], tl.float32)
            for part in tl.static_range(splits):
                acc += tl.load(partial_ptr + part * num_rows * num_outputs + cell, mask=is_cell, other=0.0)
    if is_last:
        if has_bias:
            acc += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
        out_cell = row[None, :] * out_stride + output[:, None]
        tl.store(out_ptr + out_cell, acc.to(out_ptr.dtype.element_ty), mask=is_cell)


def gemv_tiling(num_rows: int, num_outputs: int, size: int) -> Tiling:
    """Whole rows of the weight for one warp, as many as its registers hold: 4,096 numbers are 128 for each thread.

    One warp waits for no other one, and so many small programs are all there at once, also those of the next kernel.
    Longer rows are shared by several warps; with more than one row of x each has half as many numbers.
    """
    whole = next_power_of_2(size)
    weight_rows = max(1, min(4, 4096 // whole))
    # Fewer rows for a small weight: its programs must still cover the GPU's multiprocessors several times.
    weight_rows = min(weight_rows, max(1, next_power_of_2(num_outputs // 512)))
    warps = min(8, max(1, whole // (4096 if num_rows == 1 else 2048)))
    return Tiling(weight_rows, whole, warps)


# 128 numbers of 32 rows of the weight are 8 KB, and as much of x at 32 rows: 4 buffers take 64 KB.
GEMM_TILE = 128
GEMM_WARPS = 4


def gemm_tiling(num_outputs: int, size: int, itemsize: int, processors: int) -> Tiling:
    """32 rows of the weight for one program, or 64 where there are more than enough programs, so that x is read less
    often; and several programs for the same rows where there are too few of them."""
    tile = GEMM_TILE if itemsize < 4 else 32
    groups = cdiv(num_outputs, 32)
    if groups > 8 * processors:
        return Tiling(64, tile, GEMM_WARPS)
    wanted = min(MOST_SPLITS, (processors + processors // 4) // max(1, groups), cdiv(size, 2 * tile))
    return Tiling(32, tile, GEMM_WARPS, splits=1 << max(0, wanted.bit_length() - 1))


@cache
def _tickets(device: torch.device, groups: int) -> torch.Tensor:
    """Zeros, which every launch leaves as it finds them. Launches that share them must not overlap: one stream."""
    return torch.zeros(groups, dtype=torch.int32, device=device)


def skinny_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x @ weight.T + bias for 1 to 64 rows, summed in float32.

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
    if num_rows <= (MOST_ROWS_WITHOUT_MATRIX_UNIT if num_outputs < MANY_OUTPUTS else MOST_ROWS_OF_MANY_OUTPUTS):
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
            **early_launch(x.device, num_rows),
        )
        return out
    gpu = gpu_of(x.device)
    tiling = gemm_tiling(num_outputs, size, x.dtype.itemsize, gpu.processors)
    groups, partial, tickets = cdiv(num_outputs, tiling.weight_rows), out, out  # never touched without splits
    if tiling.splits > 1:
        partial = torch.empty((tiling.splits, num_rows, num_outputs), dtype=torch.float32, device=x.device)
        tickets = _tickets(x.device, groups)
    skinny_gemm_kernel[(groups, tiling.splits)](
        out,
        partial,
        tickets,
        x,
        weight,
        bias_or_any,
        num_rows,
        num_outputs,
        size,
        *strides,
        rows_padded=max(LEAST_COLUMNS, next_power_of_2(num_rows)),
        weight_rows=tiling.weight_rows,
        tile=tiling.tile,
        splits=tiling.splits,
        has_bias=bias is not None,
        num_warps=tiling.warps,
        num_stages=gpu.stages + 1,
        **early_launch(x.device, num_rows, AFTER_ITS_WAIT),
    )
    return out
