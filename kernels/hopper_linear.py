"""Owns the products of 2 to 256 rows with a layer's weights on a Hopper GPU, with what stands before and after them.

    y[m, n] = scale[m] * sum_k x[m, k] * weight[n, k] + bias[n]
    out     = silu(y of the gate) * (y of up) | y             of rows that lack their norm's scale
    out     = residual + y                                    of others, whose scale is 1

A small weight is read in two or three microseconds, if all processors read it at once, and a launch costs as much. So
nothing stands between two products that is not one. A norm takes no launch: whoever adds to the residual also writes
what the next product needs,

    rows[m, k]  = residual[m, k] * gain[k]                    the norm but for its scale, which is the same for a row
    squares[m]  = sum_k residual[m, k]^2, in parts            one part for each group of outputs

and the next product multiplies its sums with scale[m] = 1 / sqrt(squares[m] / K + eps).

A weight does not change, while x is what the kernel in front makes. So a program asks for its weights first:

    kernel in front      ... products | sums | end
    this one                 weights of all tiles ...........| wait | x | product | sums ...

The copy engine (TMA) brings both into shared memory: no thread computes an address or holds a number on its way. Of a
small weight, a program's share of K mostly fits there as a whole. Where it does not, a tile goes where one was that is
no longer needed.

A tile of rows of x and of the weight has as few programs as the weight has tiles. Where they are too few, programs
share K, and end the tile together, each for some of its rows:

    group 0   split 0 [ K: 0 ... ]   split 1 [ ... ]     each leaves its sums in memory, draws tickets, and goes on when
    group 1   split 0 [ K: 0 ... ]   split 1 [ ... ]     all tickets of its tile are drawn

Upstream: none; vLLM leaves such fusions to torch.compile.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F

from minivllm.kernels.early_launch import AFTER_ITS_WAIT, begin_early, early_launch, wait_for_earlier
from minivllm.kernels.fused_linear import Norm
from minivllm.kernels.gluon_guard import (
    HAS_GLUON,
    barrier_of_threads,
    fetch_box,
    gl,
    gluon_jit_for_any,
    hopper,
    tensor_in_boxes,
)
from minivllm.kernels.launch import gpu_of
from minivllm.kernels.triton_guard import cdiv, next_power_of_2

MOST_ROWS = 256
# Rows of x of the largest tile.
BLOCK = 128
# The copy engine takes rows that begin at multiples of 16 bytes.
ROW_MULTIPLE = 8
# Parts of a row's squares that a thread takes; fewer are filled up with zeros.
LEAST_PARTS = 32
# Programs that share a tile along K, at most. A launch always adds this much to a tile's ticket: nobody sets it back.
MOST_SPLITS = 4
# Numbers along K that a program has at least where programs share K; up to twice as many are not shared.
LEAST_SHARE = 512
# Numbers along K beyond which a row of the weight is long.
LONG_ROWS = 3072
TILE = 128
# Of a multiprocessor's 227 KB of shared memory, what the programs on it may take together.
SHARED_BYTES = 200 * 1024


class Tiling(NamedTuple):
    """Rows of x and of the weight for one program, numbers of a tile along K, warps, buffers, programs that share K."""

    rows: int
    weight_rows: int
    tile: int
    warps: int
    stages: int
    splits: int = 1


class Unscaled(NamedTuple):
    """Rows of a norm that still lack its scale.

    Attributes:
        rows: (M, K), residual * gain.
        squares: (parts, M) float32; their sum over parts is the sum of a row's squares.
        eps: Of the norm.
    """

    rows: torch.Tensor
    squares: torch.Tensor
    eps: float


class Workspace(NamedTuple):
    """What programs that share a tile leave for each other, the same for all launches: they must be of one stream.

    Attributes:
        tickets: (tiles,) int32, multiples of MOST_SPLITS between launches.
        partial: float32, flat, (tiles, splits, 1, or 2 if gated, rows, weight_rows): sums.
    """

    tickets: torch.Tensor
    partial: torch.Tensor


def unscaled_linear_reference(
    x: Unscaled, weight: torch.Tensor, bias: torch.Tensor | None = None, is_gated: bool = False
) -> torch.Tensor:
    """What the kernel does with rows that lack a scale, in plain PyTorch."""
    mean = x.squares.to(x.rows.dtype).sum(0) / x.rows.shape[1]
    out = F.linear(x.rows, weight) * torch.rsqrt(mean + x.eps)[:, None]
    out = out if bias is None else out + bias
    if is_gated:
        gate, up = out.chunk(2, dim=-1)
        out = F.silu(gate) * up
    return out


def residual_linear_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor, next_norm: Norm
) -> Unscaled:
    """What it does with others. The residual is not changed; all of its squares are one part."""
    residual = residual + F.linear(x, weight, bias)
    return Unscaled(residual * next_norm[0], residual.square().sum(-1)[None], next_norm[1])


@gluon_jit_for_any("num_rows", "parts")
def hopper_linear_kernel(
    x_desc,
    weight_desc,
    out_ptr,
    partial_ptr,
    ticket_ptr,
    bias_ptr,
    squares_ptr,
    gain_ptr,
    next_rows_ptr,
    next_squares_ptr,
    eps,
    num_rows,
    num_outputs,
    size,
    parts,
    out_stride,
    rows: gl.constexpr,
    weight_rows: gl.constexpr,
    tile: gl.constexpr,
    stages: gl.constexpr,
    splits: gl.constexpr,
    tickets_of_tile: gl.constexpr,
    parts_padded: gl.constexpr,
    has_bias: gl.constexpr,
    is_gated: gl.constexpr,
    has_residual: gl.constexpr,
    early: gl.constexpr,
):
    """A tile of outputs, or one program's share of its sums.

        x (rows, tile) @ weight^T (tile, weight_rows)  ->  acc (rows, weight_rows)        and the same for up, if gated

    shared memory    x [stages][rows, tile]   weight [stages][weight_rows, tile]   up, if gated, like weight
    ready[stage]     all that belongs to the tile in this buffer has come
    """
    begin_early(early)
    num_warps: gl.constexpr = gl.num_warps()
    dtype: gl.constexpr = weight_desc.dtype
    split, group, block = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    first_x, first_output = block * rows, group * weight_rows
    x_tiles = gl.allocate_shared_memory(dtype, [stages, rows, tile], x_desc.layout)
    weight_tiles = gl.allocate_shared_memory(dtype, [stages, weight_rows, tile], weight_desc.layout)
    if is_gated:
        up_tiles = gl.allocate_shared_memory(dtype, [stages, weight_rows, tile], weight_desc.layout)
    of_barrier: gl.constexpr = hopper.mbarrier.MBarrierLayout()
    ready = gl.allocate_shared_memory(gl.int64, [stages, 1], of_barrier)
    for stage in gl.static_range(stages):
        hopper.mbarrier.init(ready.index(stage), count=1)
    hopper.fence_async_shared()

    weights: gl.constexpr = 2 if is_gated else 1
    tile_bytes: gl.constexpr = (rows + weights * weight_rows) * tile * 2
    num_tiles = (size + tile - 1) // tile
    share = (num_tiles + splits - 1) // splits
    first = split * share
    count = gl.minimum(share, num_tiles - first)
    for stage in gl.static_range(stages):
        is_tile = stage < count
        column = (first + stage) * tile
        bar = ready.index(stage)
        hopper.mbarrier.expect(bar, tile_bytes, pred=is_tile)
        fetch_box(weight_desc, [first_output, column], bar, weight_tiles.index(stage), pred=is_tile)
        if is_gated:
            fetch_box(weight_desc, [num_outputs + first_output, column], bar, up_tiles.index(stage), pred=is_tile)
    wait_for_earlier(early)
    for stage in gl.static_range(stages):
        column = (first + stage) * tile
        fetch_box(x_desc, [first_x, column], ready.index(stage), x_tiles.index(stage), pred=stage < count)

    # How the matrix unit hands out a product's numbers: 16 rows to a warp.
    of_acc: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, weight_rows, 16])
    if splits > 1:
        # The end of a tile is shared, too: each of its programs has some of its rows.
        end_rows: gl.constexpr = rows // splits
        columns: gl.constexpr = weight_rows // 4 if weight_rows < 128 else 32
        of_end: gl.constexpr = gl.BlockedLayout([1, 4], [32 // columns, columns], [num_warps, 1], [1, 0])
        first_row = first_x + split * end_rows
    else:
        end_rows: gl.constexpr = rows  # type: ignore[no-redef]
        of_end: gl.constexpr = of_acc  # type: ignore[no-redef]
        first_row = first_x
    row = first_row + gl.arange(0, end_rows, layout=gl.SliceLayout(1, of_end))
    output = first_output + gl.arange(0, weight_rows, layout=gl.SliceLayout(0, of_end))
    is_row, is_output = row < num_rows, output < num_outputs
    is_cell = gl.expand_dims(is_row, 1) & gl.expand_dims(is_output, 0)
    out_cell = out_ptr + gl.expand_dims(row.to(gl.int64) * out_stride, 1) + gl.expand_dims(output, 0)
    # What is needed at the end is asked for now, and comes while sums are taken.
    if has_residual:
        residual = gl.load(out_cell, mask=is_cell, other=0.0)
        gain = gl.load(gain_ptr + output, mask=is_output, other=0.0)
    else:
        # A thread takes all parts of a row.
        of_squares: gl.constexpr = gl.BlockedLayout([1, parts_padded], [32, 1], [num_warps, 1], [0, 1])
        square_row = first_row + gl.arange(0, end_rows, layout=gl.SliceLayout(1, of_squares))
        part = gl.arange(0, parts_padded, layout=gl.SliceLayout(0, of_squares))
        square = gl.expand_dims(part, 0) * num_rows + gl.expand_dims(square_row, 1)
        is_square = gl.expand_dims(part < parts, 0) & gl.expand_dims(square_row < num_rows, 1)
        squares = gl.load(squares_ptr + square, mask=is_square, other=0.0)
    if has_bias:
        bias = gl.load(bias_ptr + output, mask=is_output, other=0.0)
        if is_gated:
            up_bias = gl.load(bias_ptr + num_outputs + output, mask=is_output, other=0.0)

    acc = gl.zeros([rows, weight_rows], gl.float32, of_acc)
    up_acc = acc
    for index in range(count):
        slot = index % stages
        hopper.mbarrier.wait(ready.index(slot), (index // stages) & 1)
        x = x_tiles.index(slot)
        acc = hopper.warpgroup_mma(x, weight_tiles.index(slot).permute((1, 0)), acc, is_async=True)
        if is_gated:
            up_acc = hopper.warpgroup_mma(x, up_tiles.index(slot).permute((1, 0)), up_acc, is_async=True)
            acc, up_acc = hopper.warpgroup_mma_wait(2, deps=[acc, up_acc])
        else:
            acc = hopper.warpgroup_mma_wait(1, deps=[acc])
        # The product of the tile before has ended: its buffer is free for the next one that has none.
        following = index - 1 + stages
        if (index > 0) & (following < count):
            barrier_of_threads()
            column = (first + following) * tile
            freed = (index - 1) % stages
            bar = ready.index(freed)
            hopper.mbarrier.expect(bar, tile_bytes)
            fetch_box(weight_desc, [first_output, column], bar, weight_tiles.index(freed))
            if is_gated:
                fetch_box(weight_desc, [num_outputs + first_output, column], bar, up_tiles.index(freed))
            fetch_box(x_desc, [first_x, column], bar, x_tiles.index(freed))
    if is_gated:
        acc, up_acc = hopper.warpgroup_mma_wait(0, deps=[acc, up_acc])
    else:
        acc = hopper.warpgroup_mma_wait(0, deps=[acc])

    if splits > 1:
        numbers: gl.constexpr = rows * weight_rows
        tile_index = block * gl.num_programs(1) + group
        tile_ptr = partial_ptr + tile_index.to(gl.int64) * (splits * weights * numbers)
        row_in_tile = gl.expand_dims(gl.arange(0, rows, layout=gl.SliceLayout(1, of_acc)) * weight_rows, 1)
        cell = row_in_tile + gl.expand_dims(gl.arange(0, weight_rows, layout=gl.SliceLayout(0, of_acc)), 0)
        own_ptr = tile_ptr + split * (weights * numbers)
        gl.store(own_ptr + cell, acc)
        if is_gated:
            gl.store(own_ptr + numbers + cell, up_acc)
        barrier_of_threads()  # a ticket is drawn when all threads have left their sums
        # The tickets of a tile's programs are `tickets_of_tile` together, in every launch: none has to be taken back.
        step: gl.constexpr = tickets_of_tile // splits
        drawn = gl.atomic_add(ticket_ptr + tile_index, step, sem="acq_rel")
        wanted = (drawn | (tickets_of_tile - 1)) + 1
        drawn += step
        while drawn - wanted < 0:  # right also where numbers of 32 bits begin anew
            drawn = gl.atomic_add(ticket_ptr + tile_index, 0, sem="acq_rel")
        row_in_tile = gl.expand_dims(gl.arange(0, end_rows, layout=gl.SliceLayout(1, of_end)) * weight_rows, 1)
        cell = row_in_tile + gl.expand_dims(gl.arange(0, weight_rows, layout=gl.SliceLayout(0, of_end)), 0)
        tile_ptr += split * (end_rows * weight_rows)
        acc = gl.zeros([end_rows, weight_rows], gl.float32, of_end)
        up_acc = acc
        for other in gl.static_range(splits):
            acc = acc + gl.load(tile_ptr + other * weights * numbers + cell)
            if is_gated:
                up_acc = up_acc + gl.load(tile_ptr + (other * weights + 1) * numbers + cell)

    if not has_residual:
        scale = gl.rsqrt(gl.sum(squares, 1) / size + eps)
        scale = gl.expand_dims(gl.convert_layout(scale, gl.SliceLayout(1, of_end)), 1)
        acc = acc * scale
        up_acc = up_acc * scale
    if has_bias:
        acc = acc + gl.expand_dims(bias.to(gl.float32), 0)
        if is_gated:
            up_acc = up_acc + gl.expand_dims(up_bias.to(gl.float32), 0)
    if is_gated:
        acc = acc / (1.0 + gl.exp(-acc)) * up_acc
    if has_residual:
        acc = acc + residual.to(gl.float32)
    out = acc.to(dtype)
    gl.store(out_cell, out, mask=is_cell)
    if has_residual:
        # Of the residual as it is kept: zero where there is none, which adds nothing to the squares.
        wide = gl.where(is_cell, out.to(gl.float32), 0.0)
        next_cell = next_rows_ptr + gl.expand_dims(row * num_outputs, 1) + gl.expand_dims(output, 0)
        gl.store(next_cell, (wide * gl.expand_dims(gain.to(gl.float32), 0)).to(dtype), mask=is_cell)
        gl.store(next_squares_ptr + group * num_rows + row, gl.sum(wide * wide, 1), mask=is_row)


def empty_blocks(num_rows: int, size: int, like: torch.Tensor) -> torch.Tensor:
    """(num_rows, size), with memory behind it to the end of its last block, for `whole_blocks`."""
    return torch.empty((cdiv(num_rows, BLOCK) * BLOCK, size), dtype=like.dtype, device=like.device)[:num_rows]


def whole_blocks(x: torch.Tensor, rows: int) -> torch.Tensor:
    """x, and what stands behind it where its memory goes on, so that its last block of rows is whole.

    The copy engine takes longer for a box over the edge of its tensor than for one that is not: 2 to 3 us a layer of a
    0.6B model. What stands there is multiplied, too, and nobody looks at the sums.
    """
    more = cdiv(len(x), rows) * rows
    end = x.storage_offset() + (more - 1) * x.stride(0) + x.shape[1]
    is_there = end * x.itemsize <= x.untyped_storage().nbytes()
    return x.as_strided((more, x.shape[1]), x.stride()) if is_there else x


def tiling_for(num_rows: int, num_outputs: int, size: int, is_gated: bool, processors: int) -> Tiling:
    """How a product is cut: into programs that all run at once, and read as little as can be.

    Timed on an H200 with the four weights of models of 0.6B, 1B, 1.5B and 8B and 16 to 256 rows, in some 1,400 tilings:

    * 64 rows of x and 64 of the weight, as long as there are no more programs than multiprocessors. Where there are, or
      where rows of the weight are long, 128 of x if there are more than 64.
    * 32 rows of the weight where these are enough programs to need no others: not to share K is worth half as many
      bytes again. Other programs share K where they are too few.
    * Gated ones, which read two weights, are two to a multiprocessor if they must be. Beyond 128 rows they are up
      to three small ones, which wait for each other less.
    * As many buffers as fit, and no more than a share has tiles.
    """
    if is_gated:
        return _gated_tiling(num_rows, num_outputs, size, processors)
    blocks, groups = cdiv(num_rows, 64), cdiv(num_outputs, 32)
    is_long = size > LONG_ROWS
    enough = (processors // 2 if num_rows > 64 or not is_long else 2 * processors // 3) - 2
    if enough <= blocks * groups <= processors and (num_rows <= 64 or not is_long):
        return _in_buffers(Tiling(64, 32, TILE, 4, 0), blocks * groups, size, is_gated, processors)
    rows, weight_rows, splits, groups = 64, 64, 1, cdiv(num_outputs, 64)
    if num_rows > 64 and (is_long or blocks * groups > processors):
        rows = BLOCK
    programs = groups * cdiv(num_rows, rows)
    if size > 2 * LEAST_SHARE:
        while splits < MOST_SPLITS and 2 * programs <= processors and size >= 2 * splits * LEAST_SHARE:
            programs, splits = 2 * programs, 2 * splits
    if 2 * programs <= processors and size > splits * LEAST_SHARE:
        programs, weight_rows = 2 * programs, 32
    tile = TILE if rows == 64 else TILE // 2
    return _in_buffers(Tiling(rows, weight_rows, tile, rows // 16, 0, splits), programs, size, is_gated, processors)


def _gated_tiling(num_rows: int, num_outputs: int, size: int, processors: int) -> Tiling:
    blocks = cdiv(num_rows, 64)
    tiling, programs = Tiling(64, 64, TILE // 2, 4, 0), blocks * cdiv(num_outputs, 64)
    if num_rows <= 64 and cdiv(num_outputs, 32) <= processors:
        tiling, programs = Tiling(64, 32, TILE, 4, 0), cdiv(num_outputs, 32)
    elif num_rows > BLOCK and blocks * cdiv(num_outputs, 32) <= 3 * processors:
        tiling, programs = Tiling(64, 32, TILE // 2, 4, 0), blocks * cdiv(num_outputs, 32)
    elif num_rows > 64 and programs > processors:
        tiling, programs = Tiling(BLOCK, 64, TILE // 2, 8, 0), cdiv(num_rows, BLOCK) * cdiv(num_outputs, 64)
    return _in_buffers(tiling, programs, size, True, processors)


def _in_buffers(tiling: Tiling, programs: int, size: int, is_gated: bool, processors: int) -> Tiling:
    """With its buffers: as many as leave room for the programs that share a multiprocessor, and no more than tiles."""
    buffer_bytes = (tiling.rows + (2 if is_gated else 1) * tiling.weight_rows) * tiling.tile * 2
    shared_by = min(3, cdiv(programs, processors))
    most = max(2, SHARED_BYTES // shared_by // buffer_bytes)
    return tiling._replace(stages=min(most, cdiv(cdiv(size, tiling.tile), tiling.splits)))


def most_rows(weight: torch.Tensor) -> int:
    """Up to how many rows the kernel takes with a weight; 0 where it cannot run.

    Not in float16: the residual times its gain may be beyond its largest number.
    """
    fits = (
        HAS_GLUON
        and not weight.is_cpu
        and gpu_of(weight.device).capability == 90
        and weight.dtype == torch.bfloat16
        and weight.shape[1] % ROW_MULTIPLE == 0
    )
    return MOST_ROWS if fits else 0


@cache
def workspace(device: torch.device) -> Workspace:
    """Made before the first graph is recorded: what a graph allocates, it may give to others."""
    processors = gpu_of(device).processors
    partial = torch.empty(processors * 2 * 64 * 64, dtype=torch.float32, device=device)
    return Workspace(torch.zeros(processors, dtype=torch.int32, device=device), partial)


def unscaled_linear(
    x: Unscaled,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    is_gated: bool = False,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """A product of rows that lack the scale of their norm.

    Args:
        x: Of (M, K); its rows begin at multiples of 16 bytes.
        weight: (N, K) bfloat16; gated (2 * N, K), the gate's rows above those of up. They begin likewise.
        bias: One number for each row of the weight.
        is_gated: Whether the output is silu(gate) * up.
        tiling: Another than the kernel's own choice.

    Returns:
        (M, N)
    """
    num_outputs = len(weight) // 2 if is_gated else len(weight)
    out = empty_blocks(len(x.rows), num_outputs, x.rows)
    tiling = tiling or _tiling(x.rows, num_outputs, is_gated)
    _launch(out, x, weight, bias, tiling, is_gated=is_gated)
    return out


def residual_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    next_norm: Norm,
    tiling: Tiling | None = None,
) -> Unscaled:
    """A product that is added to the residual.

    Args:
        x: (M, K); its rows begin at multiples of 16 bytes.
        weight, bias, tiling: As of `unscaled_linear`.
        residual: (M, N), changed in place.
        next_norm: Weight and eps of the norm that the residual goes through next.

    Returns:
        What the next product takes.
    """
    gain, eps = next_norm
    tiling = tiling or _tiling(x, len(weight), False)
    groups = cdiv(len(weight), tiling.weight_rows)
    squares = torch.empty((groups, len(x)), dtype=torch.float32, device=x.device)
    following = Unscaled(empty_blocks(len(residual), len(weight), residual), squares, eps)
    scale_is_one = Unscaled(x, squares[:1], 0.0)  # whose squares are never read
    _launch(residual, scale_is_one, weight, bias, tiling, following=following, gain=gain)
    return following


def _tiling(x: torch.Tensor, num_outputs: int, is_gated: bool) -> Tiling:
    return tiling_for(len(x), num_outputs, x.shape[1], is_gated, gpu_of(x.device).processors)


def _launch(
    out: torch.Tensor,
    x: Unscaled,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    tiling: Tiling,
    is_gated: bool = False,
    following: Unscaled | None = None,
    gain: torch.Tensor | None = None,
) -> None:
    """With `following` and its gain, x has its scale, and the output is added to what is there."""
    (num_rows, size), num_outputs = x.rows.shape, out.shape[1]
    if num_rows == 0:
        return
    groups, blocks = cdiv(num_outputs, tiling.weight_rows), cdiv(num_rows, tiling.rows)
    tickets, partial = workspace(out.device)
    numbers = groups * blocks * tiling.splits * tiling.rows * tiling.weight_rows * (2 if is_gated else 1)
    assert tiling.splits == 1 or numbers <= partial.numel(), "programs that share tiles leave their sums in one place"
    hopper_linear_kernel[(tiling.splits, groups, blocks)](
        tensor_in_boxes(whole_blocks(x.rows, tiling.rows), tiling.rows, tiling.tile),
        tensor_in_boxes(weight, tiling.weight_rows, tiling.tile),
        out,
        partial,
        tickets,
        weight if bias is None else bias,  # never read without a bias
        x.squares,
        out if gain is None else gain,  # never touched without a residual, like the next two
        out if following is None else following.rows,
        x.squares if following is None else following.squares,
        x.eps,
        num_rows,
        num_outputs,
        size,
        len(x.squares),
        out.stride(0),
        rows=tiling.rows,
        weight_rows=tiling.weight_rows,
        tile=tiling.tile,
        stages=tiling.stages,
        splits=tiling.splits,
        tickets_of_tile=MOST_SPLITS,
        parts_padded=max(LEAST_PARTS, next_power_of_2(len(x.squares))),
        has_bias=bias is not None,
        is_gated=is_gated,
        has_residual=following is not None,
        num_warps=tiling.warps,
        **early_launch(out.device, num_rows, AFTER_ITS_WAIT, MOST_ROWS),
    )
