"""Owns the training of the model: a small Llama, trained on packed windows, saved in the Hugging Face layout.

    python train.py --data data --out stories-5m --seconds 160

The stream is `<s> story </s> <s> story </s> ...` in a new order each epoch, each document as often as its weight says. Most
steps see many short windows, every fourth step few long ones, so that short prompts and long contexts both work. Matrices
are trained with Muon, the rest with AdamW. The clock decides how long: the rates follow the share of --seconds that is over.
What is kept is the best of what was checked, by the mean held-out loss of hand-written and teacher stories.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from train_tokenizer import VOCAB_SIZE, document

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 256, 6, 8, 4, 32, 640
MAX_POSITION, ROPE_BASE, EPS = 4096, 10_000.0, 1e-5
SHORT, LONG = 512, 4096
BOS, EOS = 0, 1
tokenizer: Tokenizer  # set before the processes are forked


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of (batch, heads, length, head_dim)."""
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


class Block(nn.Module):
    """One layer; the names of its parameters are those of LlamaForCausalLM."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(HIDDEN, EPS)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, EPS)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False),
                "k_proj": nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False),
                "v_proj": nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False),
                "o_proj": nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(HIDDEN, INTERMEDIATE, bias=False),
                "up_proj": nn.Linear(HIDDEN, INTERMEDIATE, bias=False),
                "down_proj": nn.Linear(INTERMEDIATE, HIDDEN, bias=False),
            }
        )

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        h, attn = self.input_layernorm(x), self.self_attn
        q = attn["q_proj"](h).view(batch, length, HEADS, HEAD_DIM).transpose(1, 2)
        k = attn["k_proj"](h).view(batch, length, KV_HEADS, HEAD_DIM).transpose(1, 2)
        v = attn["v_proj"](h).view(batch, length, KV_HEADS, HEAD_DIM).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + attn["o_proj"](o.transpose(1, 2).reshape(batch, length, -1))
        h, mlp = self.post_attention_layernorm(x), self.mlp
        return x + mlp["down_proj"](F.silu(mlp["gate_proj"](h)) * mlp["up_proj"](h))


class Model(nn.Module):
    """The whole model; loss in, loss out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB_SIZE, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, EPS)
        inverse = ROPE_BASE ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
        angles = torch.arange(MAX_POSITION).float()[:, None] * inverse
        angles = torch.cat([angles, angles], -1)
        self.cos: torch.Tensor
        self.sin: torch.Tensor
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scale = 1 / math.sqrt(2 * LAYERS) if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                nn.init.normal_(p, std=0.02 if name.startswith("embed") else scale / math.sqrt(p.shape[1]))

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]].to(x.dtype), self.sin[: ids.shape[1]].to(x.dtype)
        for block in self.layers:
            x = block(x, cos, sin)
        logits = F.linear(self.norm(x), self.embed_tokens.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100)


def encode_part(lines: list[str]) -> list[np.ndarray]:
    """Each document as ids, with <s> in front."""
    return [np.array(x.ids, np.int16) for x in tokenizer.encode_batch([document(json.loads(line)) for line in lines])]


class Stream:
    """All documents on the device, joined in a new order for each epoch.

    Args:
        documents: Ids of each.
        weights: How often an epoch has each document; one of weight 0.5 is in every second epoch, of 2 twice in each.
    """

    def __init__(self, documents: list[np.ndarray], weights: list[float], device: str) -> None:
        self.ids = torch.from_numpy(np.concatenate(documents)).to(device)
        self.lengths = torch.tensor([len(x) for x in documents], device=device)
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.weights = torch.tensor(weights, dtype=torch.float64)
        self.phases = torch.rand(len(weights), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        self.epoch = self.place = 0
        self.joined = self._shuffled()

    def _shuffled(self) -> torch.Tensor:
        before = self.weights * self.epoch + self.phases
        which = torch.arange(len(before)).repeat_interleave(((before + self.weights).floor() - before.floor()).long())
        order = which[torch.randperm(len(which), generator=torch.Generator().manual_seed(self.epoch))].to(
            self.ids.device
        )
        lengths = self.lengths[order]
        shift = self.starts[order] - (lengths.cumsum(0) - lengths)  # from a place in the new order to one in the old
        return self.ids[torch.arange(int(lengths.sum()), device=self.ids.device) + shift.repeat_interleave(lengths)]

    def next(self, count: int) -> torch.Tensor:
        """The next `count` ids and one more."""
        if self.place + count + 1 > len(self.joined):
            self.epoch, self.place = self.epoch + 1, 0
            self.joined = self._shuffled()
        piece = self.joined[self.place : self.place + count + 1].long()
        self.place += count
        return piece


class Muon:
    """Momentum whose matrices are made orthogonal before each update; those of one shape are handled together.

    Args:
        params: Matrices.
        rate: Learning rate, at the height of the schedule.
    """

    def __init__(self, params: list[torch.Tensor], rate: float, momentum: float = 0.95, decay: float = 0.1) -> None:
        shapes = sorted({tuple(p.shape) for p in params})
        self.groups = [[p for p in params if tuple(p.shape) == shape] for shape in shapes]
        self.buffers = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self.groups]
        self.rate, self.momentum, self.decay = rate, momentum, decay

    @torch.no_grad()
    def step(self, scale: float) -> None:
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            gradient = torch.stack([p.grad for p in group if p.grad is not None])
            buffer.lerp_(gradient, 1 - self.momentum)
            update = orthogonal(gradient.lerp(buffer, self.momentum))
            rate = self.rate * scale
            height, width = group[0].shape
            torch._foreach_mul_(group, 1 - rate * self.decay)
            torch._foreach_add_(group, list(update.unbind()), alpha=-rate * max(1.0, height / width) ** 0.5)


def orthogonal(x: torch.Tensor) -> torch.Tensor:
    """The nearest matrices whose singular values are about 1, by five Newton-Schulz steps; (matrices, rows, columns)."""
    tall = x.shape[1] > x.shape[2]
    y = x.mT.bfloat16() if tall else x.bfloat16()
    y = y / (y.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = y @ y.mT
        y = 3.4445 * y + (-4.7750 * a + 2.0315 * a @ a) @ y
    return (y.mT if tall else y).to(x.dtype)


def held_out_batches(documents: list[np.ndarray], device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each held-out story alone, padded; <s> is given, every later token with </s> is counted."""
    batches = []
    for i in range(0, len(documents), 64):
        part = documents[i : i + 64]
        ids = np.full((len(part), SHORT + 1), -100, np.int64)
        for row, one in zip(ids, part, strict=True):
            row[: min(len(one), SHORT + 1)] = one[: SHORT + 1]
        both = torch.from_numpy(ids).to(device)
        batches.append((torch.where(both < 0, EOS, both)[:, :-1], both[:, 1:]))
    return batches


@torch.no_grad()
def held_out_loss(model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]], device: str) -> float:
    """Mean loss a token."""
    total, count = 0.0, 0
    for ids, targets in batches:
        tokens = int((targets >= 0).sum())
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            total += model(ids, targets).item() * tokens
        count += tokens
    return total / count


def schedule(step: int, share: float) -> float:
    """Warm up for 100 steps, stay, and go down to zero over the last 45 % of the time."""
    return min(1.0, (step + 1) / 100, max(0.0, 1 - share) / 0.45)


def save(model: Model, out: Path) -> None:
    """Write weights in bfloat16, config.json and generation_config.json."""
    weights = {f"model.{k}": v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in model.named_parameters()}
    save_file(weights, str(out / "model.safetensors"), metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": MAX_POSITION,
        "mlp_bias": False,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": EPS,
        "rope_scaling": None,
        "rope_theta": ROPE_BASE,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCAB_SIZE,
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation: dict = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": EOS, "do_sample": True}
    generation |= {
        "temperature": 0.6,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
    }  # without the penalty it repeats itself; logits are divided later: `calibrate.py`
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def loss_of(model: Callable[..., torch.Tensor], piece: torch.Tensor, length: int, device: str) -> torch.Tensor:
    """Mean loss of a piece of the stream in windows of this length."""
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return model(piece[:-1].view(-1, length), piece[1:].view(-1, length))


def warm(model: Callable[..., torch.Tensor], tokens: int, device: str) -> None:
    """Compile both shapes, so that a training that follows finds them in the cache."""
    for length in (SHORT, LONG):
        loss_of(model, torch.zeros(tokens + 1, dtype=torch.int64, device=device), length, device).backward()


def main() -> None:
    global tokenizer
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, help="holds tokenizer.json; the model is written beside it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=160.0)
    parser.add_argument("--tokens-per-step", type=int, default=131_072)
    parser.add_argument("--check", type=int, default=400, help="steps between two looks at the held-out stories")
    parser.add_argument("--check-late", type=int, default=100, help="the same after 60 % of the time")
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=3e-3)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--only-compile", action="store_true", help="fill the compiler's cache and end")
    args = parser.parse_args()
    torch.manual_seed(0)
    device, start, tokens = args.device, time.time(), args.tokens_per_step
    if args.only_compile:
        warm(torch.compile(Model().to(device), dynamic=False), tokens, device)
        print(f"compiled, {time.time() - start:.0f} s", flush=True)
        return

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    held_items = [json.loads(x) for x in (args.data / "held_out.jsonl").read_text().splitlines()]
    kinds = [x["kind"] for x in held_items]
    held = encode_part([json.dumps(x) for x in held_items])
    lines = (args.data / "train.jsonl").read_text().splitlines()
    with Pool(args.workers) as pool:  # before anything runs on the GPU
        parts = pool.imap(encode_part, [lines[i : i + 2000] for i in range(0, len(lines), 2000)])
        documents = [x for part in parts for x in part]
    stream = Stream(documents, [json.loads(line).get("weight", 1.0) for line in lines], device)
    batches = {
        kind: held_out_batches([x for x, k in zip(held, kinds, strict=True) if k == kind], device)
        for kind in sorted(set(kinds))
    }
    epoch_tokens = len(stream.joined)
    print(
        f"{len(documents)} documents, {len(stream.ids)} tokens, {epoch_tokens} in an epoch, {time.time() - start:.0f} s",
        flush=True,
    )

    model = Model().to(device)
    matrices: list[torch.Tensor] = [
        p for n, p in model.named_parameters() if p.dim() == 2 and not n.startswith("embed")
    ]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or n.startswith("embed")]
    muon = Muon(matrices, args.muon_rate)
    adam = torch.optim.AdamW(others, lr=args.adam_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda")
    compiled = torch.compile(model, dynamic=False) if device == "cuda" else model
    warm(compiled, tokens, device)
    model.zero_grad(set_to_none=True)
    print(f"compiled, {time.time() - start:.0f} s", flush=True)

    step, share, curve, began = 0, 0.0, [], time.time()
    marked, marked_step, best, best_step = began, 0, math.inf, 0
    while share < 1:
        share = (time.time() - began) / args.seconds
        scale = schedule(step, share)
        for group in adam.param_groups:
            group["lr"] = args.adam_rate * scale
        length = LONG if step % 4 == 3 else SHORT
        loss = loss_of(compiled, stream.next(tokens), length, device)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step(scale)
        adam.step()
        for p in model.parameters():
            p.grad = None
        step += 1
        checked = share >= 1 or step % (args.check_late if share > 0.6 else args.check) == 0
        if checked or step % 100 == 0:
            mean = loss.item()
            speed = (step - marked_step) * tokens / (time.time() - marked)
            point: dict[str, float] = {
                "step": step,
                "tokens": step * tokens,
                "epoch": stream.epoch,
                "train": round(mean, 4),
            }
            if checked:
                losses = {kind: round(held_out_loss(model, part, device), 4) for kind, part in batches.items()}
                point |= losses
                general = sum(losses.get(kind, 0.0) for kind in ("hand-written", "teacher")) / 2
                if general <= best:
                    best, best_step = general, step
                    save(model, args.out)
            marked, marked_step = time.time(), step
            curve.append(point)
            print(point, f"{speed:.0f} tokens a second, {time.time() - began:.0f} s", flush=True)
    print(f"the model of step {best_step} is kept", flush=True)
    log: dict = {"parameters": sum(p.numel() for p in model.parameters()), "tokens_of_corpus": len(stream.ids)}
    log |= {"tokens_per_epoch": epoch_tokens, "steps": step, "kept_step": best_step, "tokens": step * tokens}
    log |= {"seconds": round(time.time() - began), "curve": curve}
    (args.out / "train.log.json").write_text(json.dumps(log, indent=1))


if __name__ == "__main__":
    main()
