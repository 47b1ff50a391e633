"""Owns the figures that documentation and tests state: held-out perplexity, greedy continuations, unpicked samples.

    python evaluate.py --model ../stories-5m --held-out data/held_out.jsonl --tests ../../../tests/data/builtin_model

Everything is computed in float32 from the shipped bfloat16 weights, with Hugging Face transformers. Writes
held_out.jsonl (shortened), greedy.json and figures.json into --tests, and samples.md beside them when --samples is given.
"""

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

# Chosen before the model was trained, and not changed afterwards.
PROMPTS = [
    "Once upon a time",
    "One day, a little girl named Lily",
    "There was a small frog who",
    "Tom and his dog",
    "It was a cold winter morning.",
    "The old owl said,",
    "Max wanted to share his cake, but",
    "In the garden, there was a red flower.",
    '"Can you help me?" asked the mouse.',
    "<|user|>Tell me a story about a cat.<|assistant|>",
]
NEW_TOKENS, SAMPLE_TOKENS, SAMPLES = 48, 400, 20
TEMPERATURE, TOP_P, REPETITION_PENALTY = 0.6, 0.95, 1.1  # as generation_config.json recommends
LIMIT = 200


@torch.inference_mode()
def story_loss(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[float, int]:
    """Summed loss and count of all tokens after <s>, the closing </s> included."""
    ids = tokenizer(text + tokenizer.eos_token, return_tensors="pt").input_ids
    count = ids.shape[1] - 1
    return model(input_ids=ids, labels=ids).loss.item() * count, count


@torch.inference_mode()
def greedy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str) -> dict:
    """The greedy continuation, and how near the second best token ever came."""
    prompt_ids = tokenizer(prompt).input_ids
    ids, gaps = list(prompt_ids), []
    for _ in range(NEW_TOKENS):
        best = model(input_ids=torch.tensor([ids])).logits[0, -1].topk(2)
        gaps.append((best.values[0] - best.values[1]).item())
        ids.append(int(best.indices[0]))
        if ids[-1] == tokenizer.eos_token_id:
            break
    new = ids[len(prompt_ids) :]
    text = tokenizer.decode(new, skip_special_tokens=True)
    return {
        "prompt": prompt,
        "prompt_token_ids": prompt_ids,
        "token_ids": new,
        "text": text,
        "margin": round(min(gaps), 4),
    }


@torch.inference_mode()
def sample(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, seed: int) -> str:
    """Prompt and continuation of this seed."""
    torch.manual_seed(seed)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    generator: Any = model  # transformers' own annotations of generate() are not exact
    out = generator.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=SAMPLE_TOKENS, do_sample=True, temperature=TEMPERATURE,
        top_p=TOP_P, top_k=0, repetition_penalty=REPETITION_PENALTY, pad_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    text = str(tokenizer.decode(out[0])).replace("<s>", "").replace("</s>", "").strip()
    text = text.replace("<|user|>", "\nU: ").replace("<|assistant|>", "\nA: ").strip()  # the sides of a chat
    return text if int(out[0, -1]) == tokenizer.eos_token_id else text + " …"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--tests", type=Path, required=True)
    parser.add_argument("--samples", type=Path, help="write the unpicked samples to this file")
    args = parser.parse_args()
    args.tests.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()

    items = [json.loads(line) for line in args.held_out.read_text().splitlines()]
    items.sort(key=lambda x: x["kind"] == "grammar")  # the few other kinds are kept whole
    items = items[:LIMIT]
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0, 0, 0])
    for item in items:
        loss, count = story_loss(model, tokenizer, item["text"])
        for kind in (item["kind"], "all"):
            for i, value in enumerate((loss, count, len(item["text"]), 1)):
                totals[kind][i] += value
    figures = {
        kind: {
            "stories": stories,
            "tokens": count,
            "loss": round(loss / count, 4),
            "perplexity": round(math.exp(loss / count), 4),
            "bits_per_character": round(loss / math.log(2) / characters, 4),
        }
        for kind, (loss, count, characters, stories) in sorted(totals.items())
    }
    print(json.dumps(figures, indent=1))
    (args.tests / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    with open(args.tests / "held_out.jsonl", "w") as file:
        file.writelines(json.dumps(x) + "\n" for x in items)
    continuations = [greedy(model, tokenizer, prompt) for prompt in PROMPTS]
    (args.tests / "greedy.json").write_text(json.dumps(continuations, indent=1) + "\n")
    print("smallest margins", [x["margin"] for x in continuations])
    if args.samples:
        texts = [sample(model, tokenizer, "Once upon a time" if seed % 2 else "", seed) for seed in range(SAMPLES)]
        blocks = [
            f"**{seed}.**\n\n" + "\n".join(f"> {line}<br>" for line in t.split("\n")) for seed, t in enumerate(texts)
        ]
        args.samples.write_text("\n\n".join(blocks) + "\n")


if __name__ == "__main__":
    main()
