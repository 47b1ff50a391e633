"""Owns the randomness of sampling on a GPU: noise that depends on (seed, position, token) and on nothing else.

    bits   = Philox4x32-10(key = seed, counter = (token // 4, position, stream))[token % 4]     32 random bits
    u      = (bits / 512 rounded down + 1/2) / 2**23                                        never 0, never 1
    noise  = -log(-log(u))                                                                  Gumbel noise

argmax(logits + noise) is a draw from softmax(logits). A counter-based generator has no state: every program works out
the noise of its own tokens, in any order, on any device, alone or in a batch, and gets the same bits. The reference and
the kernels agree in every bit of u, and in the noise up to the last bit of the logarithms.

Two logarithms and ten rounds of Philox cost 90 instructions a token, ten times what reading its logit takes: `sample`
draws among tiles of tokens first, whose noise is a stream of its own, and then among the tokens of one.

Upstream: vllm/v1/worker/gpu/sample/gumbel.py::gumbel_sample.
"""

from __future__ import annotations

import torch

from minivllm.kernels.triton_guard import cdiv, jit, tl

_MASK = 0xFFFFFFFF
_ROUNDS = 10
# Philox's own constants: the odd multipliers of its two halves, and what their keys grow by.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = tl.constexpr(_ROUNDS)
_EVEN, _ODD = tl.constexpr(_MULTIPLIERS[0]), tl.constexpr(_MULTIPLIERS[1])
_EVEN_STEP, _ODD_STEP = tl.constexpr(_KEY_STEPS[0]), tl.constexpr(_KEY_STEPS[1])
# Of what noise is: tokens, or tiles of them.
OF_TOKENS, OF_TILES = 0, 1


def philox_reference(key: torch.Tensor, counter: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Four words of 32 bits for each counter of four words and key of 64 bits, all in int64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & _MASK, (key >> 32) & _MASK
    for _ in range(_ROUNDS):
        # An int64 product wraps around, which leaves all of its 64 bits right.
        even, odd = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c2 = ((odd >> 32) & _MASK) ^ c1 ^ k0, ((even >> 32) & _MASK) ^ c3 ^ k1
        c1, c3 = odd & _MASK, even & _MASK
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def gumbel_noise_reference(
    seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int, stream: int = OF_TOKENS
) -> torch.Tensor:
    """One row of noise per (seed, position): (rows, vocab_size) float32.

    Args:
        seeds: (rows,) int64, the bits of an unsigned seed.
        positions: (rows,) int64, not negative.
        vocab_size: Tokens, or tiles.
        stream: What they are.
    """
    group = torch.arange(cdiv(vocab_size, 4), device=seeds.device)[None, :].expand(len(seeds), -1)  # (rows, groups)
    position = positions[:, None].expand_as(group)
    streams = torch.full_like(group, stream)
    words = philox_reference(seeds[:, None], (group, position & _MASK, position >> 32, streams))
    bits = torch.stack(words, dim=-1).flatten(1)[:, :vocab_size]  # word t % 4 of group t // 4 is token t's
    uniform = ((bits >> 9).float() + 0.5) * 2.0**-23
    return -(-uniform.log()).log()


@jit
def philox(key, c0, c1, c2, c3):
    """`tl.philox`, but with one product of 64 bits where that has two of its halves. Four uint32 tensors."""
    k0 = key.to(tl.uint32)
    k1 = (key >> 32).to(tl.uint32)
    for _ in tl.static_range(_NUM_ROUNDS):
        even = c0.to(tl.uint64) * _EVEN
        odd = c2.to(tl.uint64) * _ODD
        c0, c1 = (odd >> 32).to(tl.uint32) ^ c1 ^ k0, odd.to(tl.uint32)
        c2, c3 = (even >> 32).to(tl.uint32) ^ c3 ^ k1, even.to(tl.uint32)
        k0 += _EVEN_STEP
        k1 += _ODD_STEP
    return c0, c1, c2, c3


@jit
def random_words(seed, position, first_token, tile: tl.constexpr, stream: tl.constexpr):
    """Random bits of the tokens first_token ... first_token + tile - 1; both are multiples of 4. (tile,) uint32

    In the stream of tiles a tile stands where a token stands here.

    philox of group g -> words    w0 w1 w2 w3          interleaved  (w0, w2) and (w1, w3), and these two:
                         tokens   4g .. 4g+3           w0 w1 w2 w3 w0 w1 w2 w3 ...
    """
    group = (first_token // 4 + tl.arange(0, tile // 4)).to(tl.uint32)
    zero = group * 0
    low = zero + (position & 0xFFFFFFFF).to(tl.uint32)
    high = zero + (position >> 32).to(tl.uint32)
    w0, w1, w2, w3 = philox(seed, group, low, high, zero + stream)
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@jit
def gumbel_noise(words):
    """Noise of random bits. Same shape, float32"""
    uniform = ((words >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)
    return -tl.log(-tl.log(uniform))
