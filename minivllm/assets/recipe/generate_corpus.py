"""Owns the raw corpus: stories and chats by the teacher, after it has learned from those written by hand, and grammar stories.

    python generate_corpus.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --out corpus --seconds 300

Writes teacher.jsonl ({"kind", "text", "logprob", "temperature"}, one that has no fault a line), dropped.jsonl (the first
ones that had one), grammar.jsonl and generate.log.json into --out. Processes decode and judge while the GPU writes.
"""

import argparse
import json
import os
import random
import time
from collections import Counter
from multiprocessing import Pool
from pathlib import Path

import hand_written
import numpy as np
import story_grammar as grammar
import torch
from judge import chat_fault, fault
from prompts import STORIES, lesson, make_prompt
from sampler import Ended, Sampler
from teacher import Teacher, finetune, load_gguf

PLOTS = grammar.load_plots()
TEMPERATURES = (0.65, 0.8, 0.95)  # the story of prompt n is written at number n % 3
LONGEST_PROMPT = 48
LESSON_SEED = 10_000_000  # far from the seeds of the corpus's own grammar stories
STEPS = 32  # between two looks at what has ended
teacher: Teacher  # set before the processes are forked, so that they share it


def grammar_text(seed: int) -> str:
    """The text of one grammar story."""
    return grammar.make_story(seed, PLOTS).text


def prompt_ids(seeds: range) -> np.ndarray:
    """Narrow ids of the prompts of these seeds, (seeds, LONGEST_PROMPT), filled up with -1; one that is too long is empty."""
    table = np.full((len(seeds), LONGEST_PROMPT), -1, np.int32)
    prompts = [make_prompt(seed) for seed in seeds]
    # Line ends at the end of a text would become one token, which is not what stands before a story.
    texts = [x.text + ("" if x.opening else "A") for x in prompts]
    for row, prompt, ids in zip(table, prompts, teacher.narrow(texts), strict=True):
        ids = ids if ids is None or prompt.opening else ids[:-1]
        if ids is not None and len(ids) <= LONGEST_PROMPT:
            row[: len(ids)] = ids
    return table


def judge(ended: Ended) -> list[tuple[dict, str | None]]:
    """Decode what has ended, and say what is wrong with each text."""
    results, texts = [], teacher.decode(ended.ids())
    for number, text, logprob in zip(ended.numbers.tolist(), texts, ended.logprobs.tolist(), strict=True):
        prompt = make_prompt(number)
        own = text.removeprefix(prompt.header).strip()
        why = "prompt: lost" if not text.startswith(prompt.header) else None
        why = why or (chat_fault(own) if prompt.kind == "chat" else fault(own))
        item = {"kind": prompt.kind, "text": own, "logprob": round(logprob, 4)}
        results.append((item | {"temperature": TEMPERATURES[number % len(TEMPERATURES)]}, why))
    return results


class Corpus:
    """Takes what the processes have judged and writes it down."""

    def __init__(self, out: Path) -> None:
        self.kept_file = open(out / "teacher.jsonl", "w")  # noqa: SIM115 - open as long as the sampler runs
        self.dropped_file = open(out / "dropped.jsonl", "w")  # noqa: SIM115
        self.faults: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()

    def take(self, results: list[tuple[dict, str | None]]) -> None:
        for item, why in results:
            if why is None:
                self.kept[item["kind"]] += 1
                self.kept_file.write(json.dumps(item) + "\n")
            else:
                self.faults[why] += 1
                if self.faults[why] <= 200:
                    self.dropped_file.write(json.dumps(item | {"why": why}) + "\n")


def grammar_lesson(seed: int) -> str:
    """A grammar story under a title. From these the teacher learns to stay with its people until the end."""
    story = grammar.make_story(seed, PLOTS)
    title = f"{story.hero} and the {story.words[0].title()}" if story.words else story.plot.replace("_", " ").title()
    return lesson("story", title, story.text, seed)


def lessons(passes: int, grammar_passes: int, grammar_stories: int) -> tuple[list[list[list[int]]], list[list[int]]]:
    """What the teacher learns in each pass, with other words asked for each time, and what it is checked with."""
    taught = [x for i, x in enumerate(STORIES) if i % hand_written.CHECKED]
    checked = STORIES[:: hand_written.CHECKED]
    rounds = []
    for number in range(passes):
        texts = [lesson("story", title, text, number) for title, text in taught]
        texts += [lesson("chat", str(i), text, number) for i, text in enumerate(hand_written.chats())]
        if number < grammar_passes:
            first = LESSON_SEED + number * grammar_stories
            texts += [grammar_lesson(seed) for seed in range(first, first + grammar_stories)]
        rounds.append([x for x in teacher.narrow(texts) if x is not None])
    found = teacher.narrow([lesson("story", title, text, 0) for title, text in checked])
    return rounds, [x for x in found if x is not None]


def main() -> None:
    global teacher
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long the teacher writes")
    parser.add_argument("--prompts", type=int, default=1_200_000, help="upper bound; --seconds ends the sampling")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--max-length", type=int, default=352)
    parser.add_argument("--min-p", type=float, default=0.04)
    parser.add_argument("--passes", type=int, default=6)
    parser.add_argument("--grammar-passes", type=int, default=2, help="how many passes hold grammar stories too")
    parser.add_argument("--grammar-lessons", type=int, default=1200, help="grammar stories in such a pass")
    parser.add_argument("--finetune-batch", type=int, default=8)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--grammar-stories", type=int, default=40_000)
    parser.add_argument("--workers", type=int, default=14)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    start = time.time()
    os.environ["TOKENIZERS_PARALLELISM"] = "true"

    teacher = load_gguf(args.gguf)
    rounds, checked = lessons(args.passes, args.grammar_passes, args.grammar_lessons)
    print(f"teacher read, {sum(map(len, rounds))} lessons, {time.time() - start:.0f} s", flush=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process decodes on one core
    with Pool(args.workers) as pool:  # before anything runs on the GPU: a process must not inherit that
        size = min(5000, args.prompts)
        seeds = [range(i, min(i + size, args.prompts)) for i in range(0, args.prompts, size)]
        prompts_later = pool.map_async(prompt_ids, seeds, chunksize=1)
        grammar_later = pool.map_async(grammar_text, range(args.grammar_stories), chunksize=500)
        log: dict = {
            "finetune": finetune(teacher, rounds, checked, args.device, args.window, args.finetune_batch, args.rate)
        }
        table = np.concatenate(prompts_later.get())
        log["finetune_seconds"] = round(time.time() - start)
        print(f"{len(table)} prompts, {time.time() - start:.0f} s", flush=True)

        temperatures = np.array(TEMPERATURES)[np.arange(len(table)) % len(TEMPERATURES)]
        sampler = Sampler(teacher, table, temperatures, args.device, args.rows, args.max_length, args.min_p)
        sampler.prepare()
        print(f"step captured, {time.time() - start:.0f} s", flush=True)
        began, shown, stories, tokens = time.time(), 0.0, 0, 0
        corpus, waiting, scores = Corpus(args.out), [], []
        sampler.run(STEPS)
        while time.time() - began < args.seconds and not sampler.exhausted:
            ended = sampler.collect()
            sampler.run(STEPS)  # on the GPU, while this process goes on
            stories += len(ended.numbers)
            tokens += int(ended.lengths.sum())
            scores.append(ended.logprobs)
            for i in range(0, len(ended.numbers), 500):
                waiting.append(pool.apply_async(judge, (ended.part(i, i + 500),)))
            while waiting and waiting[0].ready():
                corpus.take(waiting.pop(0).get())
            if time.time() - began > shown:
                mean = float(np.concatenate(scores[-50:]).mean()) if stories else 0.0
                kept, speed = sum(corpus.kept.values()), tokens / (time.time() - began)
                print(
                    f"{time.time() - began:.0f} s: {stories} stories, {tokens} tokens, {speed:.0f} a second, mean log probability "
                    f"{mean:.2f}, {kept} kept of {kept + sum(corpus.faults.values())} judged",
                    flush=True,
                )
                shown += 15
                assert not stories or mean > -4, "the sampler does not agree with the model"
        log |= {"sampling_seconds": round(time.time() - began, 1), "stories": stories, "tokens": tokens}
        for later in waiting:
            corpus.take(later.get())
        corpus.kept_file.close()
        corpus.dropped_file.close()
        with open(args.out / "grammar.jsonl", "w") as file:
            file.writelines(json.dumps({"text": x}) + "\n" for x in grammar_later.get())
    log |= {"kept": dict(corpus.kept), "faults": dict(corpus.faults.most_common())}
    (args.out / "generate.log.json").write_text(json.dumps(log, indent=1))
    print(json.dumps(log, indent=1), flush=True)
    lines = (args.out / "teacher.jsonl").read_text().splitlines()
    for line in random.Random(0).sample(lines, min(12, len(lines))):
        print("---\n" + json.loads(line)["text"], flush=True)


if __name__ == "__main__":
    main()
