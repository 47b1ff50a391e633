"""Owns the raw corpus: stories of the grammar, and stories of the teacher after it was fine-tuned on them.

    python generate_corpus.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --out corpus --seconds 270

Writes grammar.jsonl and teacher.jsonl ({"text", "logprob"}, unfiltered) and generate.log.json into --out.
"""

import argparse
import json
import re
import time
from collections import defaultdict
from multiprocessing import Pool
from pathlib import Path

import story_grammar as grammar
import torch
from prompts import make_prompt, teacher_text
from seed_stories import HELD_OUT_SEEDS, SEED_STORIES
from teacher import EOS, Sampler, finetune, load_gguf

PLOTS = grammar.load_plots()
TAUGHT = SEED_STORIES[:-HELD_OUT_SEEDS]  # the others are only for evaluation
# Fine-tuning and the grammar's share of the corpus take seeds from disjoint ranges; prompts have their own.
FINETUNE_SEED, GRAMMAR_SEED = 10_000_000, 0


def grammar_text(seed: int) -> str:
    """The text of one grammar story."""
    return grammar.make_story(seed, PLOTS).text


def finetune_text(seed: int) -> str:
    """A fine-tuning text: mostly grammar stories, one in 40 written by hand."""
    if seed % 40 == 0:
        return teacher_text(TAUGHT[seed // 40 % len(TAUGHT)][1], seed)
    return teacher_text(grammar_text(seed), seed)


def prompt_text(seed: int) -> str:
    """The prompt of this seed."""
    return make_prompt(seed, PLOTS)


def allowed_ids(tokenizer, limit: int) -> list[int]:
    """Token ids the teacher may write: plain English words, simple marks, a line end, and the end of the text."""
    pattern = re.compile(r"Ġ?[A-Za-z]+|Ġ?[-,.!?;:'\"]+|'[a-z]{1,2}|Ċ")
    vocab = tokenizer.get_vocab()
    return sorted({i for t, i in vocab.items() if i < limit and pattern.fullmatch(t)} | {vocab[EOS]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, help="the teacher; without it only the grammar writes")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--grammar-stories", type=int, default=280_000)
    parser.add_argument("--finetune-stories", type=int, default=20_000)
    parser.add_argument("--finetune-batch", type=int, default=96)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--prompts", type=int, default=300_000, help="upper bound; --seconds ends the sampling")
    parser.add_argument("--seconds", type=float, default=270.0)
    parser.add_argument("--batch", type=int, default=6144)
    parser.add_argument("--max-length", type=int, default=384)
    parser.add_argument("--workers", type=int, default=14)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    start, log = time.time(), {}

    with Pool(args.workers) as pool:
        grammar_later = pool.map_async(grammar_text, range(GRAMMAR_SEED, args.grammar_stories), chunksize=500)
        if args.gguf:
            seeds = range(FINETUNE_SEED, FINETUNE_SEED + args.finetune_stories)
            texts = pool.map(finetune_text, seeds, chunksize=500)
            prompts = pool.map(prompt_text, range(args.prompts), chunksize=500)
        stories = grammar_later.get()
    with open(args.out / "grammar.jsonl", "w") as file:
        file.writelines(json.dumps({"text": x}) + "\n" for x in stories)
    print(f"grammar written, {time.time() - start:.0f} s", flush=True)
    if not args.gguf:
        return
    teacher = load_gguf(args.gguf)
    log["teacher_losses"] = finetune(teacher, texts, args.device, 512, args.finetune_batch, args.rate)
    log["finetune_seconds"] = time.time() - start

    tokenizer = teacher.tokenizer
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    allowed = allowed_ids(tokenizer, 24_000)
    sampler = Sampler(teacher, args.device, dtype, args.max_length, allowed)
    eos = tokenizer.token_to_id(EOS)
    encoded = [[eos, *x.ids] for x in tokenizer.encode_batch(prompts)]
    by_length = defaultdict(list)
    for i, ids in enumerate(encoded):
        by_length[len(ids)].append(i)
    batches = []
    for same in by_length.values():
        batches += [same[i : i + args.batch] for i in range(0, len(same), args.batch)]
    batches = [b for b in batches if len(b) >= min(args.batch, args.prompts) // 8]
    order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(1)).tolist()
    print(f"{len(batches)} batches, {len(allowed)} ids allowed, {time.time() - start:.0f} s", flush=True)

    began, tokens, kept = time.time(), 0, 0
    with open(args.out / "teacher.jsonl", "w") as file:
        for number, j in enumerate(order):
            if time.time() - began > args.seconds:
                break
            temperature = (0.7, 0.8, 0.9)[number % 3]
            group = batches[j]
            results = sampler.sample([encoded[i] for i in group], temperature, 0.05)
            done = [(i, r) for i, r in zip(group, results, strict=True) if r is not None]
            for (i, (ids, logprob)), text in zip(done, tokenizer.decode_batch([r[0] for _, r in done]), strict=True):
                story = (prompts[i].split("\n", 1)[1] + text).strip()
                file.write(json.dumps({"text": story, "logprob": round(logprob, 4), "temperature": temperature}) + "\n")
                tokens += len(ids)
                kept += 1
            speed = tokens / (time.time() - began)
            if number % 10 == 0:
                print(
                    f"batch {number} of {len(group)}: {kept} stories, {tokens} tokens, {speed:.0f} a second", flush=True
                )
    log |= {"sampling_seconds": time.time() - began, "sampled_stories": kept, "sampled_tokens": tokens}
    (args.out / "generate.log.json").write_text(json.dumps(log))


if __name__ == "__main__":
    main()
