"""Owns a layer's products for a few rows, each with what stands before and after it: a launch saved is a wait saved.

    y[m, n] = sum_k x[m, k] * g[k] * weight[n, k] * scale[m]      g and scale are the norm's, if there is one before:
    scale[m] = 1 / sqrt(mean_k x[m, k]^2 + eps)                   scale is the same for a whole row, so it comes last
    out = y | y + residual | silu(y of the gate) * (y of up)      what comes after

A decode step of a small model is a chain of short kernels, and between two of them lies about a microsecond in which
nothing is read. Llama's layer becomes

    norm + qkv, rotation + KV write, attention, o + residual, norm + gate and up + SiLU, down + residual

The norm costs no reading of its own: its sum of squares is taken from the very x that is multiplied. Every program
takes it again, of a few kilobytes that lie in the cache.

Upstream: none; vLLM leaves such fusions to torch.compile.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from minivllm.kernels.early_launch import begin_early, early_launch, wait_for_earlier
from minivllm.kernels.rms_norm import rms_norm_reference
from minivllm.kernels.skinny_linear import MOST_ROWS_WITHOUT_MATRIX_UNIT, Tiling, gemv_tiling, load_whole_rows
from minivllm.kernels.triton_guard import cdiv, jit_for_any, next_power_of_2, tl

MOST_ROWS = MOST_ROWS_WITHOUT_MATRIX_UNIT

Norm = tuple[torch.Tensor, float]  # weight (K,), eps


def fused_linear_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    norm: Norm | None = None,
    is_gated: bool = False,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """What the kernel does, in plain PyTorch. Arguments as in `fused_linear`; the residual is not changed."""
    normed = x if norm is None else rms_norm_reference(x, norm[0], norm[1])
    out = F.linear(normed, weight, bias)
    if is_gated:
        gate, up = out.chunk(2, dim=-1)
        out = F.silu(gate) * up
    return out if residual is None else residual + out


@jit_for_any("num_rows")
def fused_gemv_kernel(
    out_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    norm_ptr,
    eps,
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
    has_norm: tl.constexpr,
    is_gated: tl.constexpr,
    has_residual: tl.constexpr,
    early: tl.constexpr,
):
    """A few outputs of all rows of x. See `gemv_kernel` for the plain product.

    weight   n0 [ K ... ]                        gate rows        x * g [ K ... ]
             ...                                                  x * x -> scale, for the end
             n0 + num_outputs [ K ... ]          up rows, if gated
    """
    begin_early(early)
    output = tl.program_id(0) * weight_rows + tl.arange(0, weight_rows)
    is_output = output < num_outputs
    weight_row = weight_ptr + output.to(tl.int64)[:, None] * weight_stride
    weight = load_whole_rows(weight_row, is_output[:, None], size, tile)  # (weight_rows, tile)
    up = weight
    if is_gated:
        up = load_whole_rows(weight_row + num_outputs * weight_stride, is_output[:, None], size, tile)
    if has_norm:
        column = tl.arange(0, tile)[None, :]
        gain = tl.load(norm_ptr + column, mask=column < size, other=0.0)  # (1, tile)
    wait_for_earlier(early)
    for row in tl.static_range(rows_padded):
        is_row = tl.arange(0, 1) + row < num_rows  # (1,)
        x = load_whole_rows(x_ptr + row * x_stride, is_row[:, None], size, tile).to(tl.float32)  # (1, tile)
        scale = 1.0
        if has_norm:
            scale = tl.rsqrt(tl.sum(x * x) / size + eps)
            x = x * gain.to(tl.float32)
        out = tl.sum(weight.to(tl.float32) * x, 1) * scale  # (weight_rows,)
        if has_bias:
            out += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)
        if is_gated:
            up_out = tl.sum(up.to(tl.float32) * x, 1) * scale
            if has_bias:
                up_out += tl.load(bias_ptr + num_outputs + output, mask=is_output, other=0.0).to(tl.float32)
            out = out / (1.0 + tl.exp(-out)) * up_out
        out_cell = out_ptr + row * out_stride + output
        is_cell = is_output & is_row
        if has_residual:
            out += tl.load(out_cell, mask=is_cell, other=0.0).to(tl.float32)
        tl.store(out_cell, out.to(out_ptr.dtype.element_ty), mask=is_cell)


def fused_tiling(num_rows: int, num_outputs: int, size: int, is_gated: bool) -> Tiling:
    """As of the plain product; gated, an output takes the registers of two."""
    tiling = gemv_tiling(num_rows, num_outputs, size)
    return tiling._replace(weight_rows=max(1, tiling.weight_rows // 2)) if is_gated else tiling


def fused_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    norm: Norm | None = None,
    is_gated: bool = False,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """A product of 1 to 4 rows with its norm before it, and its gate or residual after it, summed in float32.

    Args:
        x: (M, K), contiguous rows.
        weight: (N, K), contiguous rows; gated (2 * N, K), the gate's rows above those of up.
        bias: One number for each row of the weight.
        norm: Weight and eps of the RMS norm of x; None leaves x as it is.
        is_gated: Whether the output is silu(gate) * up.
        residual: (M, N), to which the output is added, in place; it is what is returned then.
        out: Written if given, where there is no residual. (M, N)

    Returns:
        (M, N)

    Raises:
        ValueError: Too many rows, or shapes that do not belong together.
    """
    num_rows, size = x.shape
    num_outputs = len(weight) // 2 if is_gated else len(weight)
    if num_rows > MOST_ROWS:
        raise ValueError(f"fused_linear takes at most {MOST_ROWS} rows, got {num_rows}; norm and multiply separately")
    if weight.shape[1] != size or x.stride(-1) != 1 or weight.stride(-1) != 1:
        raise ValueError(f"x {tuple(x.shape)} and weight {tuple(weight.shape)} must have contiguous rows of one length")
    if residual is not None:
        out = residual
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device) if out is None else out
    if out.shape != (num_rows, num_outputs):
        raise ValueError(f"the output is {(num_rows, num_outputs)}, and what it is written to {tuple(out.shape)}")
    if num_rows == 0:
        return out
    tiling = fused_tiling(num_rows, num_outputs, size, is_gated)
    norm_weight, eps = (x, 0.0) if norm is None else norm  # never read without a norm
    fused_gemv_kernel[(cdiv(num_outputs, tiling.weight_rows),)](
        out,
        x,
        weight,
        weight if bias is None else bias,  # never read without a bias
        norm_weight,
        eps,
        num_rows,
        num_outputs,
        x.stride(0),
        out.stride(0),
        weight.stride(0),
        rows_padded=next_power_of_2(num_rows),
        size=size,
        weight_rows=tiling.weight_rows,
        tile=tiling.tile,
        has_bias=bias is not None,
        has_norm=norm is not None,
        is_gated=is_gated,
        has_residual=residual is not None,
        num_warps=tiling.warps,
        **early_launch(x.device, num_rows),
    )
    return out
