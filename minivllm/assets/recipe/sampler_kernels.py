"""Owns the three kernels of the teacher's decode step, each with its PyTorch reference above it.

A row of the batch is one story that is being written. Its keys and values lie in a cache of its own,
(rows, kv_heads, max_length, head_dim), and `position` says how far it has come: every kernel reads that number on the
device, so one captured step serves rows of all lengths, and attention reads no more than what is there.
"""

import math

import torch
import triton
import triton.language as tl


def rotate_and_store_reference(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """Rotated queries, (rows, heads, head_dim); the new key and value go into the cache at `position`."""
    rows, kv_heads, _, dim = keys.shape
    heads = qkv.shape[1] - 2 * kv_heads
    c, s = cos[position][:, None].float(), sin[position][:, None].float()  # (rows, 1, head_dim / 2)
    first, second = qkv[:, : heads + kv_heads].float().split(dim // 2, -1)
    rotated = torch.cat([first * c - second * s, second * c + first * s], -1).to(qkv.dtype)
    row = torch.arange(rows, device=qkv.device)
    keys[row, :, position] = rotated[:, heads:]
    values[row, :, position] = qkv[:, heads + kv_heads :]
    return rotated[:, :heads].contiguous()


@triton.jit
def rotate_and_store_kernel(
    qkv_ptr, cos_ptr, sin_ptr, position_ptr, query_ptr, keys_ptr, values_ptr, max_length,
    heads: tl.constexpr, kv_heads: tl.constexpr, dim: tl.constexpr, padded_heads: tl.constexpr,
):  # fmt: skip
    """One program a row: all heads of queries, keys and values at once."""
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(position_ptr + row).to(tl.int64)
    half: tl.constexpr = dim // 2
    head = tl.arange(0, padded_heads)[:, None]
    lane = tl.arange(0, half)[None, :]
    inside = (head < heads + 2 * kv_heads) & (lane < half)
    source = qkv_ptr + row * (heads + 2 * kv_heads) * dim + head * dim + lane
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos_ptr + position * half + lane).to(tl.float32)
    s = tl.load(sin_ptr + position * half + lane).to(tl.float32)
    is_value = head >= heads + kv_heads
    new_first = tl.where(is_value, first, first * c - second * s)
    new_second = tl.where(is_value, second, second * c + first * s)

    is_query = inside & (head < heads)
    target = query_ptr + row * heads * dim + head * dim + lane
    tl.store(target, new_first.to(query_ptr.dtype.element_ty), mask=is_query)
    tl.store(target + half, new_second.to(query_ptr.dtype.element_ty), mask=is_query)
    is_key = inside & (head >= heads) & (head < heads + kv_heads)
    target = keys_ptr + ((row * kv_heads + (head - heads)) * max_length + position) * dim + lane
    tl.store(target, new_first.to(keys_ptr.dtype.element_ty), mask=is_key)
    tl.store(target + half, new_second.to(keys_ptr.dtype.element_ty), mask=is_key)
    is_value = inside & is_value
    target = values_ptr + ((row * kv_heads + (head - heads - kv_heads)) * max_length + position) * dim + lane
    tl.store(target, new_first.to(values_ptr.dtype.element_ty), mask=is_value)
    tl.store(target + half, new_second.to(values_ptr.dtype.element_ty), mask=is_value)


def attend_reference(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """softmax(q k / sqrt(head_dim)) v over the positions up to and with `position`, (rows, heads, head_dim)."""
    rows, kv_heads, length, dim = keys.shape
    q = query.view(rows, kv_heads, -1, dim).float()
    scores = q @ keys.float().transpose(-1, -2) / math.sqrt(dim)  # (rows, kv_heads, group, max_length)
    unseen = torch.arange(length, device=query.device) > position[:, None]
    weights = scores.masked_fill(unseen[:, None, None], -math.inf).softmax(-1)
    return (weights @ values.float().masked_fill(unseen[:, None, :, None], 0.0)).view_as(query).to(query.dtype)


@triton.jit
def attend_kernel(
    query_ptr, keys_ptr, values_ptr, position_ptr, out_ptr, max_length, scale,
    kv_heads: tl.constexpr, group: tl.constexpr, dim: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """One program a row and key head: its queries share each tile of keys; the softmax is online, in base 2."""
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length = tl.load(position_ptr + row).to(tl.int32) + 1
    member = tl.arange(0, 16)[:, None]  # the least that a matrix product takes; only `group` of them are real
    lane = tl.arange(0, dim)[None, :]
    real = (member < group) & (lane < dim)
    place = (row * kv_heads * group + kv_head * group + member) * dim + lane
    query = tl.load(query_ptr + place, mask=real, other=0.0)
    base = (row * kv_heads + kv_head) * max_length * dim
    step = tl.arange(0, tile)

    best = tl.full([16], -1e30, tl.float32)
    total = tl.zeros([16], tl.float32)
    result = tl.zeros([16, dim], tl.float32)
    for start in range(0, length, tile):
        valid = start + step < length
        offset = base + (start + step)[:, None] * dim + lane
        key = tl.load(keys_ptr + offset, mask=valid[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(key)).to(tl.float32) * scale
        scores = tl.where(valid[None, :], scores, -1e30)
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(best - higher)
        value = tl.load(values_ptr + offset, mask=valid[:, None], other=0.0)
        total = total * shrink + tl.sum(weights, 1)
        result = result * shrink[:, None] + tl.dot(weights.to(value.dtype), value).to(tl.float32)
        best = higher
    tl.store(out_ptr + place, (result / total[:, None]).to(out_ptr.dtype.element_ty), mask=real)


def pick_reference(
    logits: torch.Tensor, temperature: torch.Tensor, log_min_p: float, seed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One drawn index a row, and its log probability at temperature 1. `seed` only serves the kernel."""
    logits = logits.float()
    scaled = logits / temperature[:, None]
    noise = -torch.empty_like(scaled).exponential_().log()  # Gumbel noise: the largest sum is a draw from the softmax
    hidden = scaled < scaled.amax(-1, keepdim=True) + log_min_p
    index = (scaled + noise).masked_fill(hidden, -math.inf).argmax(-1)
    return index, logits.log_softmax(-1).gather(1, index[:, None])[:, 0]


@triton.jit
def pick_kernel(
    logits_ptr, temperature_ptr, seed_ptr, index_ptr, logprob_ptr, size, log_min_p, tile: tl.constexpr
):  # fmt: skip
    """One program a row: the first pass finds the greatest logit and the sum, the second draws among the likely ones."""
    row = tl.program_id(0)
    base = logits_ptr + row.to(tl.int64) * size
    lane = tl.arange(0, tile)
    best = tl.full([tile], -1e30, tl.float32)
    total = tl.zeros([tile], tl.float32)
    for start in range(0, size, tile):
        x = tl.load(base + start + lane, mask=start + lane < size, other=-1e30).to(tl.float32)
        higher = tl.maximum(best, x)
        total = total * tl.exp(best - higher) + tl.exp(x - higher)
        best = higher
    greatest = tl.max(best, 0)
    log_sum = greatest + tl.log(tl.sum(total * tl.exp(best - greatest), 0))

    temperature = tl.load(temperature_ptr + row)
    seed = tl.load(seed_ptr)
    floor = greatest / temperature + log_min_p
    winner = tl.full([tile], -1e30, tl.float32)
    winner_logit = tl.full([tile], -1e30, tl.float32)
    winner_index = tl.zeros([tile], tl.int32)
    for start in range(0, size, tile):
        x = tl.load(base + start + lane, mask=start + lane < size, other=-1e30).to(tl.float32)
        if tl.max(x, 0) / temperature >= floor:  # few tiles have a likely token, and noise is what costs time
            uniform = tl.maximum(tl.rand(seed, row * size + start + lane), 1e-10)
            noisy = x / temperature - tl.log(-tl.log(uniform))
            noisy = tl.where(x / temperature >= floor, noisy, -1e30)
            better = noisy > winner
            winner_logit = tl.where(better, x, winner_logit)
            winner_index = tl.where(better, start + lane, winner_index)
            winner = tl.where(better, noisy, winner)
    slot = tl.argmax(winner, 0)
    tl.store(index_ptr + row, tl.sum(tl.where(lane == slot, winner_index, 0), 0).to(tl.int64))
    tl.store(logprob_ptr + row, tl.sum(tl.where(lane == slot, winner_logit, 0.0), 0) - log_sum)


@triton.jit
def swiglu_kernel(both_ptr, out_ptr, width: tl.constexpr, tile: tl.constexpr):
    """silu(gate) * up of one row; both lie side by side in a row of `both`."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, tile)
    inside = lane < width
    gate = tl.load(both_ptr + row * 2 * width + lane, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both_ptr + row * 2 * width + width + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + lane, (gate / (1 + tl.exp(-gate)) * up).to(out_ptr.dtype.element_ty), mask=inside)


class Kernels:
    """Launches the kernels with the tiles that were found best here."""

    def __init__(self, tile: int = 64, warps: int = 2, stages: int = 2) -> None:
        self.tile, self.warps, self.stages = tile, warps, stages

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        position: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        rows, kv_heads, max_length, dim = keys.shape
        heads = qkv.shape[1] - 2 * kv_heads
        query = torch.empty(rows, heads, dim, dtype=qkv.dtype, device=qkv.device)
        padded = triton.next_power_of_2(heads + 2 * kv_heads)
        rotate_and_store_kernel[(rows,)](
            qkv, cos, sin, position, query, keys, values, max_length, heads, kv_heads, dim, padded, num_warps=4
        )
        return query

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: torch.Tensor
    ) -> torch.Tensor:
        rows, kv_heads, max_length, dim = keys.shape
        out = torch.empty_like(query)
        attend_kernel[(rows, kv_heads)](
            query, keys, values, position, out, max_length, math.log2(math.e) / math.sqrt(dim), kv_heads,
            query.shape[1] // kv_heads, dim, self.tile, num_warps=self.warps, num_stages=self.stages,
        )  # fmt: skip
        return out

    def pick(
        self, logits: torch.Tensor, temperature: torch.Tensor, log_min_p: float, seed: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, size = logits.shape
        index = torch.empty(rows, dtype=torch.int64, device=logits.device)
        logprob = torch.empty(rows, dtype=torch.float32, device=logits.device)
        pick_kernel[(rows,)](logits, temperature, seed, index, logprob, size, log_min_p, tile=2048, num_warps=8)
        return index, logprob

    def swiglu(self, both: torch.Tensor) -> torch.Tensor:
        rows, width = both.shape[0], both.shape[1] // 2
        out = torch.empty(rows, width, dtype=both.dtype, device=both.device)
        swiglu_kernel[(rows,)](both, out, width, triton.next_power_of_2(width), num_warps=4)
        return out


class References:
    """The same four steps in PyTorch, for a machine without a GPU."""

    rotate_and_store = staticmethod(rotate_and_store_reference)
    attend = staticmethod(attend_reference)
    pick = staticmethod(pick_reference)

    @staticmethod
    def swiglu(both: torch.Tensor) -> torch.Tensor:
        gate, up = both.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up
