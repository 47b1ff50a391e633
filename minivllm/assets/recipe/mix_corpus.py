"""Owns how much the model sees of what: adds many more stories of the grammar, and gives each text a weight.

    python mix_corpus.py --data data --out mixed

Reads train.jsonl and held_out.jsonl of filter_corpus.py and writes train.jsonl with a "weight", the share of the passes
in which a text is read (2: twice in each pass), held_out.jsonl as it is, and mix.log.json. Coherence is learned from the
grammar, whose plots hold together; the teacher's texts, which wander, are there for the words and the ways to say things.
"""

import argparse
import json
import random
import re
import shutil
from collections import Counter, defaultdict
from multiprocessing import Pool
from pathlib import Path

import hand_written
import story_grammar as grammar
from filter_corpus import DIALOGUES, chunks, shingles, shown

PLOTS = grammar.load_plots()
PART = 500  # stories of the grammar that a process makes at a time
DISTINCT, CHAT_DISTINCT = 0.9, 0.8  # share of distinct three-word runs; below it a text goes in circles
held: list[set[int]]  # runs of words of the held-out stories, set before the processes are forked
index: dict[int, list[int]]  # which of them have a run


def text_of(item: dict) -> str:
    return "\n".join(m["content"] for m in item["messages"]) if "messages" in item else item["text"]


def distinct(text: str) -> float:
    """Share of a text's three-word runs that differ from all before."""
    words = re.findall(r"[a-z']+", text.lower())
    return len(set(zip(words, words[1:], words[2:], strict=False))) / max(1, len(words) - 2)


def wanders(item: dict) -> str | None:
    """Why a text of the teacher is dropped: it goes in circles, or it is a chat that tells who said what."""
    text = text_of(item)
    if item["kind"] == "chat":
        return "chat: circles" if distinct(text) < CHAT_DISTINCT else "chat: told" if '"' in text else None
    return "circles" if distinct(text) < DISTINCT else None


def near_held_out(text: str) -> bool:
    """Is a Jaccard index of five-word runs with a held-out story 0.4 or more?"""
    own = shingles(text)
    shared = Counter(i for s in own if s in index for i in index[s])
    return any(n >= 0.4 * (len(own) + len(held[i]) - n) for i, n in shared.items())


def grammar_part(first: int) -> list[str]:
    """The stories of PART seeds, without those too near to a held-out one."""
    texts = [grammar.make_story(seed, PLOTS).text for seed in range(first, first + PART)]
    return [text for text in texts if not near_held_out(text)]


def dialogue_part(first: int) -> list[str]:
    """The dialogues of PART seeds."""
    return [json.dumps(grammar.make_dialogue(seed, DIALOGUES)) for seed in range(first, first + PART)]


def teacher_part(lines: list[str]) -> list[tuple[dict, str | None]]:
    """The teacher's texts among these lines, each with why it is dropped; all others are made anew."""
    items = [json.loads(line) for line in lines]
    items = [x for x in items if not x["kind"].startswith(("grammar", "hand-written"))]
    return [(x, wanders(x)) for x in items]


def main() -> None:
    global held, index
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--grammar-stories", type=int, default=320_000)
    parser.add_argument("--dialogues", type=int, default=60_000)
    parser.add_argument("--grammar-weight", type=float, default=0.75)
    parser.add_argument("--hand-weight", type=float, default=2.0)
    parser.add_argument("--chat-share", type=float, default=0.08, help="share of stories told in a chat")
    parser.add_argument("--workers", type=int, default=16)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    held = [shingles(json.loads(x)["text"]) for x in (args.data / "held_out.jsonl").read_text().splitlines()]
    index = defaultdict(list)
    for i, runs in enumerate(held):
        for run in runs:
            index[run].append(i)

    dropped: Counter[str] = Counter()
    mixed = []
    by_hand = {"\n".join(m["content"] for m in hand_written.messages_of(x)) for x in hand_written.chats()}
    with Pool(args.workers) as pool:
        told_later = pool.map_async(grammar_part, range(0, args.grammar_stories, PART), chunksize=1)
        dialogues_later = pool.map_async(dialogue_part, range(0, args.dialogues, PART), chunksize=1)
        lines = (args.data / "train.jsonl").read_text().splitlines()
        for part in pool.imap(teacher_part, chunks(lines)):
            for item, why in part:
                if why:
                    dropped[why] += 1
                elif text_of(item) not in by_hand:
                    mixed.append(item | {"weight": 1.0})
        told = [text for part in told_later.get() for text in part]
        dialogues = {text for part in dialogues_later.get() for text in part}
    dropped["grammar near held-out"] = args.grammar_stories // PART * PART - len(told)

    rng = random.Random(0)
    for text in dict.fromkeys(told):
        mixed.append(shown("grammar", text, rng, args.chat_share) | {"weight": args.grammar_weight})
    dropped["grammar duplicate"] = args.grammar_stories // PART * PART - dropped["grammar near held-out"]
    dropped["grammar duplicate"] -= len(set(told))
    for _ in range(2):  # each text in two of the ways in which stories are laid out
        for _, text in hand_written.stories():
            mixed.append(shown("hand-written", text, rng, args.chat_share) | {"weight": args.hand_weight / 2})
    for text in hand_written.chats():
        mixed.append(
            {"kind": "hand-written dialogue", "messages": hand_written.messages_of(text), "weight": args.hand_weight}
        )
    for text in sorted(dialogues):
        mixed.append({"kind": "grammar dialogue", "messages": json.loads(text), "weight": args.grammar_weight})

    rng.shuffle(mixed)
    with open(args.out / "train.jsonl", "w") as file:
        file.writelines(json.dumps(x) + "\n" for x in mixed)
    shutil.copy(args.data / "held_out.jsonl", args.out / "held_out.jsonl")
    characters: Counter[str] = Counter()
    for x in mixed:
        characters[x["kind"]] += round(x["weight"] * len(text_of(x)))
    log = {
        "dropped": dict(dropped),
        "documents": dict(Counter(x["kind"] for x in mixed)),
        "weighted_characters": dict(characters),
    }
    (args.out / "mix.log.json").write_text(json.dumps(log, indent=1))
    print(json.dumps(log, indent=1), flush=True)


if __name__ == "__main__":
    main()
