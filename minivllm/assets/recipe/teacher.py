"""Owns the teacher: SmolLM2-135M-Instruct read from its GGUF file, its fine-tuning, and fast batched sampling from it.

The sampler keeps one static cache for a batch of prompts of equal length. Equal lengths need no padding and no mask; the
three query heads that share a key head are stacked as three query rows, so that the flash kernel reads each key once.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

EOS = "<|im_end|>"


@dataclass
class Teacher:
    """Weights by name (float32), sizes, and the tokenizer."""

    weights: dict[str, torch.Tensor]
    tokenizer: Tokenizer
    layers: int
    heads: int
    kv_heads: int
    rope_base: float

    @property
    def head_dim(self) -> int:
        return self.weights["embed"].shape[1] // self.heads


def load_gguf(path: Path) -> Teacher:
    """Read weights and tokenizer; undo the row order that GGUF uses for interleaved rotary embeddings."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(str(path))
    meta = {key: value.contents() for key, value in reader.fields.items()}
    heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    weights = {}
    for tensor in reader.tensors:
        value = torch.tensor(dequantize(tensor.data, tensor.tensor_type), dtype=torch.float32)
        name = tensor.name.removesuffix(".weight").replace("token_embd", "embed")
        if name.endswith(("attn_q", "attn_k")):
            count = heads if name.endswith("attn_q") else kv_heads
            rows, columns = value.shape
            value = value.view(count, rows // count // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
        weights[name] = value.contiguous()
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(x.split(" ")) for x in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, types, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return Teacher(weights, tokenizer, meta["llama.block_count"], heads, kv_heads, float(meta["llama.rope.freq_base"]))


def rotary(positions: torch.Tensor, head_dim: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, (positions, head_dim)."""
    inverse = base ** (-torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim)
    angles = positions.float()[:, None] * inverse
    return torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of (..., positions, head_dim)."""
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), 1e-5)


def forward_hidden(w: dict[str, torch.Tensor], t: Teacher, ids: torch.Tensor) -> tuple[torch.Tensor, list]:
    """Full causal forward of (batch, length) ids: final hidden states, and (key, value) of every layer."""
    batch, length = ids.shape
    cos, sin = rotary(torch.arange(length, device=ids.device), t.head_dim, t.rope_base)
    cos, sin = cos.to(w["embed"].dtype), sin.to(w["embed"].dtype)
    x, cache = F.embedding(ids, w["embed"]), []
    for i in range(t.layers):
        h = norm(x, w[f"blk.{i}.attn_norm"])
        q, k, v = (
            F.linear(h, w[f"blk.{i}.attn_{name}"]).view(batch, length, -1, t.head_dim).transpose(1, 2) for name in "qkv"
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        cache.append((k, v))
        o = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True, enable_gqa=True)
        x = x + F.linear(o.transpose(1, 2).reshape(batch, length, -1), w[f"blk.{i}.attn_output"])
        h = norm(x, w[f"blk.{i}.ffn_norm"])
        gate = F.silu(F.linear(h, w[f"blk.{i}.ffn_gate"])) * F.linear(h, w[f"blk.{i}.ffn_up"])
        x = x + F.linear(gate, w[f"blk.{i}.ffn_down"])
    return norm(x, w["output_norm"]), cache


def finetune(t: Teacher, texts: list[str], device: str, length: int, batch: int, rate: float) -> list[float]:
    """One pass over the texts, packed into windows. Changes t.weights in place; returns the losses."""
    eos = t.tokenizer.token_to_id(EOS)
    stream = [x for enc in t.tokenizer.encode_batch(texts) for x in (eos, *enc.ids)]
    windows = torch.tensor(stream[: len(stream) // (length + 1) * (length + 1)]).view(-1, length + 1)
    windows = windows[torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))]
    params = {k: torch.nn.Parameter(v.to(device)) for k, v in t.weights.items()}
    optimizer = torch.optim.AdamW(
        params.values(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01, fused=device == "cuda"
    )
    steps, losses, start = len(windows) // batch, [], time.time()
    for step in range(steps):
        ids = windows[step * batch : (step + 1) * batch].to(device)
        scale = min(1.0, (step + 1) / 20) * (0.05 + 0.95 * (1 - step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * scale
        with torch.autocast(device, dtype=torch.bfloat16):
            low = {k: v.to(torch.bfloat16) for k, v in params.items()}
            hidden, _ = forward_hidden(low, t, ids[:, :-1])
            logits = F.linear(hidden, low["embed"]).flatten(0, 1)
        loss = F.cross_entropy(logits.float(), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0 or step == steps - 1:
            losses.append(round(loss.item(), 4))
            print(f"teacher step {step}/{steps} loss {losses[-1]} {time.time() - start:.0f} s", flush=True)
    t.weights = {k: v.detach() for k, v in params.items()}
    return losses


class Sampler:
    """Samples complete texts for batches of prompts of equal length."""

    def __init__(self, t: Teacher, device: str, dtype: torch.dtype, max_length: int, allowed: list[int]) -> None:
        self.t, self.device, self.max_length = t, device, max_length
        self.w = {k: v.to(device, dtype) for k, v in t.weights.items()}
        for i in range(t.layers):
            self.w[f"qkv{i}"] = torch.cat([self.w[f"blk.{i}.attn_{name}"] for name in "qkv"])
            self.w[f"up{i}"] = torch.cat([self.w[f"blk.{i}.ffn_gate"], self.w[f"blk.{i}.ffn_up"]])
        self.allowed = torch.tensor(allowed, device=device)
        self.head = self.w["embed"][self.allowed].contiguous()
        self.eos = t.tokenizer.get_vocab()[EOS]
        cos, sin = rotary(torch.arange(max_length, device=device), t.head_dim, t.rope_base)
        self.cos, self.sin = cos.to(dtype), sin.to(dtype)

    def _choose(self, hidden: torch.Tensor, temperature: float, min_p: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Next tokens and their log probabilities at temperature 1."""
        logits = F.linear(hidden, self.head).float()  # (batch, allowed)
        log_z = torch.logsumexp(logits, -1)
        scaled = logits / temperature
        floor = scaled.amax(-1, keepdim=True) + math.log(min_p)
        noise = -torch.empty_like(scaled).exponential_().log()  # Gumbel noise: the argmax is a sample
        index = (scaled + noise).masked_fill_(scaled < floor, -math.inf).argmax(-1)
        return self.allowed[index], logits.gather(1, index[:, None])[:, 0] - log_z

    def _decode(self, ids: torch.Tensor, cache: torch.Tensor, position: int) -> torch.Tensor:
        """One step for (batch,) ids at `position`; cache is (layers, 2, batch, kv_heads, max_length, head_dim)."""
        t, w, batch = self.t, self.w, len(ids)
        groups = t.heads // t.kv_heads
        cos, sin = self.cos[position], self.sin[position]
        x = F.embedding(ids, w["embed"])  # (batch, hidden)
        for i in range(t.layers):
            h = norm(x, w[f"blk.{i}.attn_norm"])
            qkv = F.linear(h, w[f"qkv{i}"]).view(batch, -1, t.head_dim)
            qk = rotate(qkv[:, : t.heads + t.kv_heads], cos, sin)
            cache[i, 0, :, :, position] = qk[:, t.heads :]
            cache[i, 1, :, :, position] = qkv[:, t.heads + t.kv_heads :]
            q = qk[:, : t.heads].reshape(batch, t.kv_heads, groups, t.head_dim)
            keys, values = cache[i, 0, :, :, : position + 1], cache[i, 1, :, :, : position + 1]
            o = F.scaled_dot_product_attention(q, keys, values)
            x = x + F.linear(o.reshape(batch, -1), w[f"blk.{i}.attn_output"])
            h = norm(x, w[f"blk.{i}.ffn_norm"])
            gate, up = F.linear(h, w[f"up{i}"]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, w[f"blk.{i}.ffn_down"])
        return norm(x, w["output_norm"])

    @torch.inference_mode()
    def sample(
        self, prompts: list[list[int]], temperature: float, min_p: float
    ) -> list[tuple[list[int], float] | None]:
        """For each prompt (new ids, mean log probability), or None where the text did not end in time."""
        t, length, count = self.t, len(prompts[0]), len(prompts)
        ids = torch.tensor(prompts, device=self.device)
        shape = (t.layers, 2, count, t.kv_heads, self.max_length, t.head_dim)
        cache = torch.empty(shape, device=self.device, dtype=self.head.dtype)
        last = []
        for chunk in torch.arange(count, device=self.device).split(512):
            hidden, layers = forward_hidden(self.w, t, ids[chunk])
            for i, (k, v) in enumerate(layers):
                cache[i, 0, chunk, :, :length] = k
                cache[i, 1, chunk, :, :length] = v
            last.append(hidden[:, -1])
        tokens, logprobs = self._choose(torch.cat(last), temperature, min_p)
        out = torch.zeros(count, self.max_length - length, dtype=torch.int32, device=self.device)
        total = torch.zeros(count, device=self.device)
        steps = torch.zeros(count, device=self.device)
        done = torch.zeros(count, dtype=torch.bool, device=self.device)
        rows = torch.arange(count, device=self.device)  # which prompt each live row of the cache belongs to
        for position in range(length, self.max_length):
            out[rows, position - length] = tokens.int()
            total[rows] += logprobs
            steps[rows] += ~done[rows]
            done[rows] |= tokens == self.eos
            if (position - length) % 24 == 23:  # drop the finished rows now and then
                live = ~done[rows]
                remaining = int(live.sum())
                if remaining < 0.03 * count:
                    break
                if remaining < 0.85 * len(rows):
                    cache = cache[:, :, live]
                    rows, tokens = rows[live], tokens[live]
            if position == self.max_length - 1:
                break
            hidden = self._decode(tokens, cache, position)
            tokens, logprobs = self._choose(hidden, temperature, min_p)
            tokens = tokens.masked_fill(done[rows], self.eos)
            logprobs = logprobs.masked_fill(done[rows], 0.0)
        table, ended, means = out.tolist(), done.tolist(), (total / steps).tolist()
        texts = [row[: row.index(self.eos)] if end else None for row, end in zip(table, ended, strict=True)]
        return [(x, m) if x is not None else None for x, m in zip(texts, means, strict=True)]
