"""Owns the teacher: SmolLM2-135M-Instruct read from its GGUF file, narrowed to plain words, and its fine-tuning."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

EOS = "<|im_end|>"
# Plain English words, simple marks, a line end. Digits and capitals inside of words are not among them.
PLAIN_TOKEN = re.compile(r"""Ġ?[A-Z]?[a-z]+|Ġ?[A-Z]|Ġ?[-,.!?:'"]|[,.!?]"|Ġ"|'(?:s|t|re|ve|ll|d|m)|Ċ""")


@dataclass
class Teacher:
    """Weights by name (float32), sizes, and the tokenizer.

    The embedding has rows for `allowed` ids only: inside, an id is its place in that list (`narrow`).
    """

    weights: dict[str, torch.Tensor]
    tokenizer: Tokenizer
    layers: int
    heads: int
    kv_heads: int
    rope_base: float
    allowed: list[int]

    @property
    def head_dim(self) -> int:
        return self.weights["embed"].shape[1] // self.heads

    @property
    def eos(self) -> int:
        """The narrow id that begins and ends every text."""
        return 0

    def narrow(self, texts: list[str]) -> list[list[int] | None]:
        """Narrow ids of each text, or None where a token is not allowed."""
        place = {i: n for n, i in enumerate(self.allowed)}
        rows = [[place.get(i, -1) for i in x.ids] for x in self.tokenizer.encode_batch(texts)]
        return [row if min(row, default=0) >= 0 else None for row in rows]

    def decode(self, rows: list[list[int]]) -> list[str]:
        """Texts of narrow ids."""
        return self.tokenizer.decode_batch([[self.allowed[i] for i in row] for row in rows])


def allowed_ids(tokenizer: Tokenizer) -> list[int]:
    """Token ids the teacher may write: the end of the text first, then plain words and marks; a multiple of 16."""
    vocab = tokenizer.get_vocab()
    plain = sorted((t for t in vocab if PLAIN_TOKEN.fullmatch(t)), key=len)  # the few longest are left out
    return [vocab[EOS], *sorted(vocab[t] for t in plain[: len(plain) // 16 * 16 - 1])]


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
    allowed = allowed_ids(tokenizer)
    weights["embed"] = weights["embed"][allowed].clone()
    return Teacher(
        weights, tokenizer, meta["llama.block_count"], heads, kv_heads, float(meta["llama.rope.freq_base"]), allowed
    )


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


def forward_hidden(w: Mapping[str, torch.Tensor], t: Teacher, ids: torch.Tensor) -> torch.Tensor:
    """Full causal forward of (batch, length) ids: final hidden states."""
    batch, length = ids.shape
    cos, sin = rotary(torch.arange(length, device=ids.device), t.head_dim, t.rope_base)
    cos, sin = cos.to(w["embed"].dtype), sin.to(w["embed"].dtype)
    x = F.embedding(ids, w["embed"])
    for i in range(t.layers):
        h = norm(x, w[f"blk.{i}.attn_norm"])
        q, k, v = (
            F.linear(h, w[f"blk.{i}.attn_{name}"]).view(batch, length, -1, t.head_dim).transpose(1, 2) for name in "qkv"
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        o = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True, enable_gqa=True)
        x = x + F.linear(o.transpose(1, 2).reshape(batch, length, -1), w[f"blk.{i}.attn_output"])
        h = norm(x, w[f"blk.{i}.ffn_norm"])
        gate = F.silu(F.linear(h, w[f"blk.{i}.ffn_gate"])) * F.linear(h, w[f"blk.{i}.ffn_up"])
        x = x + F.linear(gate, w[f"blk.{i}.ffn_down"])
    return norm(x, w["output_norm"])


@torch.no_grad()
def text_loss(t: Teacher, weights: Mapping[str, torch.Tensor], texts: list[list[int]], device: str) -> float:
    """Mean loss a token over narrow texts, each alone."""
    total, count = 0.0, 0
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        for ids in texts:
            both = torch.tensor([[t.eos, *ids, t.eos]], device=device)
            logits = F.linear(forward_hidden(weights, t, both[:, :-1]), weights["embed"])[0]
            total += F.cross_entropy(logits.float(), both[0, 1:], reduction="sum").item()
            count += both.shape[1] - 1
    return total / max(count, 1)


def windows_of(t: Teacher, texts: list[list[int]], length: int, seed: int) -> torch.Tensor:
    """All texts in a random order, joined and cut into (windows, length + 1)."""
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
    stream = torch.tensor([x for i in order for x in (t.eos, *texts[i])] + [t.eos])
    count = (len(stream) - 1) // length
    return torch.stack([stream[i * length : (i + 1) * length + 1] for i in range(count)])


def finetune(
    t: Teacher, passes: list[list[list[int]]], check: list[list[int]], device: str, length: int, batch: int, rate: float
) -> list[dict[str, float]]:
    """One pass over each list of narrow texts; keeps the weights with which the loss on `check` was least."""
    params = {k: torch.nn.Parameter(v.to(device)) for k, v in t.weights.items()}
    optimizer = torch.optim.AdamW(
        params.values(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01, fused=device == "cuda"
    )
    parts = [windows_of(t, texts, length, seed) for seed, texts in enumerate(passes)]
    steps, step, start = sum(-(-len(x) // batch) for x in parts), 0, time.time()
    log = [{"pass": 0.0, "check": round(text_loss(t, params, check, device), 4)}]
    best = {k: v.detach().clone() for k, v in params.items()}
    for number, windows in enumerate(parts):
        losses = []
        for ids in windows.to(device).split(batch):
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / 10) * (1 - 0.9 * step / steps)
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                hidden = forward_hidden(params, t, ids[:, :-1])
                logits = F.linear(hidden, params["embed"]).flatten(0, 1)
            loss = F.cross_entropy(logits.float(), ids[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
            step += 1
        mean, found = torch.stack(losses).mean().item(), text_loss(t, params, check, device)
        log.append({"pass": number + 1.0, "train": round(mean, 4), "check": round(found, 4)})
        print(f"teacher {log[-1]} {time.time() - start:.0f} s", flush=True)
        if found <= min(x["check"] for x in log[:-1]):
            best = {k: v.detach().clone() for k, v in params.items()}
    t.weights = best
    return log
