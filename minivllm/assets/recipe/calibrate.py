"""Owns how sure the model is: divides what it compares words by, and says what held-out stories think of it.

    python calibrate.py --model model --held-out data/held_out.jsonl --divide-by 1.2

A model that knows its stories nearly by heart is too sure of itself in others. Logits are a product with the last norm, so
its weight, divided by a number, divides them all: what comes first stays first, and probabilities come closer to each other.
Prints the loss a token of each kind of held-out story for several numbers, and writes the weights for the one asked for.
"""

import argparse
import json
from pathlib import Path

import torch
from evaluate import story_loss
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TRIED = (1.0, 1.1, 1.2, 1.3)


def losses(folder: Path, stories: list[dict], divide_by: float) -> dict[str, float]:
    """Mean loss a token of each kind, in float32."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.model.norm.weight.data /= divide_by
    sums: dict[str, list[float]] = {}
    for story in stories:
        loss, count = story_loss(model, tokenizer, story["text"])
        total = sums.setdefault(story["kind"], [0.0, 0])
        total[0] += loss
        total[1] += count
    return {kind: round(total / count, 4) for kind, (total, count) in sums.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--divide-by", type=float, default=1.2)
    args = parser.parse_args()
    stories = [json.loads(line) for line in args.held_out.read_text().splitlines()]
    for number in TRIED:
        print(number, losses(args.model, stories, number), flush=True)
    path = args.model / "model.safetensors"
    weights = load_file(str(path))
    name = "model.norm.weight"
    weights[name] = (weights[name].float() / args.divide_by).to(weights[name].dtype)
    save_file(weights, str(path), metadata={"format": "pt"})
    print(f"divided by {args.divide_by}")


if __name__ == "__main__":
    main()
