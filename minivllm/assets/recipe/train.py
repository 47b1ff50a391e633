"""Owns the training of the model: a small Llama, trained on packed windows, saved in the Hugging Face layout.

    python train.py --data data --out stories-5m --epochs 4

The stream is `<s> story </s> <s> story </s> ...` in a new order each epoch. Most steps see many short windows, every fourth
step few long ones, so that short prompts and long contexts both work. Matrices are trained with Muon, the rest with AdamW.
"""

import argparse
import json
import math
import time
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


def encode(path: Path, tokenizer: Tokenizer, without: str = "") -> list[np.ndarray]:
    """Every document of a file as ids, with <s> in front; kinds that start with `without` are left out."""
    items = [json.loads(line) for line in path.read_text().splitlines()]
    items = [x for x in items if not without or not x["kind"].startswith(without)]
    return [np.array(x.ids, np.int16) for x in tokenizer.encode_batch([document(item) for item in items])]


def epoch_stream(documents: list[np.ndarray], seed: int, device: str) -> torch.Tensor:
    """All documents in a random order, joined."""
    order = np.random.default_rng(seed).permutation(len(documents))
    return torch.from_numpy(np.concatenate([documents[i] for i in order])).to(device)


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
        with torch.autocast(device, dtype=torch.bfloat16):
            total += model(ids, targets).item() * tokens
        count += tokens
    return total / count


def schedule(step: int, steps: int) -> float:
    """Warm up for 100 steps, stay, and go down to zero over the last 45%."""
    return min(1.0, (step + 1) / min(100, steps), (steps - step) / (0.45 * steps))


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
    generation = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": EOS, "do_sample": True, "temperature": 0.7}
    (out / "generation_config.json").write_text(json.dumps(generation | {"top_p": 0.95}, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="holds tokenizer.json; the model is written beside it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=float, default=4.0)
    parser.add_argument("--tokens-per-step", type=int, default=65_536)
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=3e-3)
    parser.add_argument("--without", default="", help="leave out documents of this kind, for comparison")
    parser.add_argument("--seconds", type=float, default=240.0, help="fewer epochs, if the speed asks for it")
    args = parser.parse_args()
    torch.manual_seed(0)
    device, start = args.device, time.time()
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    documents, held = (
        encode(args.data / "train.jsonl", tokenizer, args.without),
        encode(args.data / "held_out.jsonl", tokenizer),
    )
    batches = held_out_batches(held, device)
    per_epoch = sum(map(len, documents))
    steps = max(2, int(args.epochs * per_epoch / args.tokens_per_step))
    print(f"{len(documents)} documents, {per_epoch} tokens, {steps} steps, {time.time() - start:.0f} s", flush=True)

    model = Model().to(device)
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and not n.startswith("embed")]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or n.startswith("embed")]
    muon = torch.optim.Muon(matrices, lr=args.muon_rate, weight_decay=0.1, momentum=0.95, nesterov=True)
    adam = torch.optim.AdamW(others, lr=args.adam_rate, betas=(0.9, 0.95), weight_decay=0.0)
    compiled = torch.compile(model, dynamic=False) if device == "cuda" else model

    stream, position, epoch, curve, trained = epoch_stream(documents, 0, device), 0, 0, [], time.time()
    step = 0
    while step < steps:
        length = LONG if step % 4 == 3 else SHORT
        rows = max(1, args.tokens_per_step // length)
        if position + rows * length + 1 > len(stream):
            epoch += 1
            stream, position = epoch_stream(documents, epoch, device), 0
        piece = stream[position : position + rows * length + 1].long()
        position += rows * length
        for optimizer, rate in ((muon, args.muon_rate), (adam, args.adam_rate)):
            for group in optimizer.param_groups:
                group["lr"] = rate * schedule(step, steps)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = compiled(piece[:-1].view(rows, length), piece[1:].view(rows, length))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in (muon, adam):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step == 40:  # past compilation: is there time for all steps?
            torch.cuda.synchronize() if device == "cuda" else None
            began = time.time()
        if step == 140:
            torch.cuda.synchronize() if device == "cuda" else None
            left = args.seconds - (time.time() - trained)
            steps = min(steps, step + int(left / ((time.time() - began) / 100)))
            print(
                f"{100 * args.tokens_per_step / (time.time() - began):.0f} tokens a second, {steps} steps", flush=True
            )
        step += 1
        if step % 100 == 0 or step == steps:
            point = {"step": step, "tokens": step * args.tokens_per_step, "train": round(loss.item(), 4)}
            if step % 200 == 0 or step == steps:
                point["held_out"] = round(held_out_loss(model, batches, device), 4)
            curve.append(point)
            print(point, f"{time.time() - trained:.0f} s", flush=True)
    save(model, args.out)
    kinds = [json.loads(line)["kind"] for line in (args.data / "held_out.jsonl").read_text().splitlines()]
    by_kind = {}
    for kind in sorted(set(kinds)):
        part = held_out_batches([x for x, k in zip(held, kinds, strict=True) if k == kind], device)
        by_kind[kind] = round(held_out_loss(model, part, device), 4)
    print(by_kind, flush=True)
    parameters = sum(p.numel() for p in model.parameters())
    log = {"parameters": parameters, "tokens_per_epoch": per_epoch, "steps": steps, "seconds": time.time() - trained}
    (args.out / "train.log.json").write_text(json.dumps(log | {"held_out_by_kind": by_kind, "curve": curve}))


if __name__ == "__main__":
    main()
