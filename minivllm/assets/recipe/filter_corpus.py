"""Owns what is kept: rules that drop bad stories, duplicates, and everything too near to the held-out stories.

    python filter_corpus.py --corpus corpus --out data

Writes train.jsonl and held_out.jsonl ({"kind": "teacher" | "grammar" | "chat", "messages" or "text"}) and filter.log.json.
A story is held out by the hash of its text alone, before anything is trained on.
"""

import argparse
import hashlib
import json
import random
import re
import zlib
from collections import Counter
from multiprocessing import Pool
from pathlib import Path

import story_grammar as grammar
from prompts import FREQUENT
from seed_stories import HELD_OUT_SEEDS, SEED_STORIES

NAMES = set(
    grammar.GIRLS + grammar.BOYS + grammar.ANIMAL_NAMES + grammar.WORDS["N"] + grammar.WORDS["pname"] + ["Earth"]
)
GIRL_NAMES, BOY_NAMES = set(grammar.GIRLS) - set(grammar.BOYS), set(grammar.BOYS) - set(grammar.GIRLS)
GIRL_WORDS = set("girl mom mommy mother grandma woman lady queen princess sister aunt hen cow".split())
BOY_WORDS = set("boy dad daddy father grandpa man king prince brother uncle rooster".split())
PLAIN = re.compile(r"[A-Za-z ,.!?;:'\"\n-]+")
DIALOGUES = grammar.load_dialogues()


def digest(text: str) -> int:
    """A stable 64-bit hash."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def shingles(text: str, size: int = 5) -> set[int]:
    """Hashes of all runs of `size` words, names masked, case and marks dropped."""
    words = ["@" if x in NAMES else x.lower() for x in re.findall(r"[A-Za-z]+", text)]
    return {zlib.crc32(" ".join(words[i : i + size]).encode()) for i in range(len(words) - size + 1)}


def fault(text: str) -> str | None:
    """Why a teacher story is dropped, or None."""
    words = re.findall(r"[A-Za-z']+", text)
    if not 50 <= len(words) <= 260:
        return "length"
    if not PLAIN.fullmatch(text) or "  " in text or "\n\n" in text:
        return "characters"
    if not re.search(r'[.!?]"?$', text) or not re.match(r'"?[A-Z]', text):
        return "ends"
    if any(line.count('"') % 2 for line in text.split("\n")) or re.search(
        r'"(?=\w)\w*"|""|[,.!?]{2}|\w"\w| [,.!?]', text
    ):
        return "quotes"
    if re.search(r'(?:^|[.!?] )[a-z]|(?:^|\n)"?[a-z]|[.!?]"? "[a-z]|\b[a-z]+[A-Z]', text):
        return "case"
    sentences = [x.strip().lower() for x in re.split(r'(?<=[.!?])["\s]+', text) if x.strip()]
    longer = Counter(x for x in sentences if len(x.split()) > 3)
    if any(n > 1 for n in longer.values()) or any(n > 3 for n in Counter(sentences).values()):
        return "repeated sentence"
    triples = Counter(zip(*(map(str.lower, words[i:]) for i in range(4)), strict=False))
    if triples and max(triples.values()) > 3:
        return "repeated phrase"
    if set(re.findall(r"\b(\w+) \1\b", text.lower())) - {"very", "so", "many", "had", "that", "her"}:
        return "repeated word"
    inner = set(re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", text)) - {"I"}
    unknown = [
        x for x in inner if x not in NAMES and not re.match(r"(Mom|Dad|Grand|Moth|Fath|Mr|Mrs|Miss|Sun|Mon|Sat)", x)
    ]
    if any(len(re.findall(rf"\b{x}\b", text)) < 3 for x in unknown) or len(inner & NAMES) > 4:
        return "names"
    return pronoun_fault(text)


def pronoun_fault(text: str) -> str | None:
    """With a single sex among the people named, the other's pronouns are a mistake."""
    told = re.sub(r'"[^"]*"', " ", text)
    bag = Counter(re.findall(r"[A-Za-z]+", told))
    low = Counter(re.findall(r"[a-z]+", told.lower()))
    girls = sum(bag[x] for x in GIRL_NAMES) + sum(low[x] for x in GIRL_WORDS)
    boys = sum(bag[x] for x in BOY_NAMES) + sum(low[x] for x in BOY_WORDS)
    she, he = low["she"] + low["her"], low["he"] + low["his"] + low["him"]
    hero = re.match(r".{0,90}?\b(?:girl|boy) (?:named|called) (\w+)", told, re.DOTALL)
    others = bool(re.search(r"\b(owl|bird|squirrel|monkey|cat|dog|fox|bear|friend|doctor|farmer)\b", told))
    if girls and not boys and he > (2 if others else 0) and he > she / 3:
        return "pronouns"
    if boys and not girls and she > (2 if others else 0) and she > he / 3:
        return "pronouns"
    if hero:
        right, wrong = (she, he) if " girl " in hero[0] else (he, she)
        if wrong > right + 2:
            return "pronouns"
    return None


def check(line: str) -> tuple[dict, str | None]:
    """Parse one line of the raw teacher corpus and judge it."""
    item = json.loads(line)
    return item, fault(item["text"])


def nearness(job: tuple[list[str], dict[int, list[int]], list[int]]) -> list[bool]:
    """For each text: is it too near (Jaccard index of 5-word runs of at least 0.5) to one of the held-out stories?"""
    texts, index, sizes = job
    near = []
    for text in texts:
        own = shingles(text)
        shared = Counter(i for s in own if s in index for i in index[s])
        near.append(any(n >= 0.5 * (len(own) + sizes[i] - n) for i, n in shared.items()))
    return near


def as_chat(text: str, rng: random.Random) -> list[dict[str, str]]:
    """Turn a story into the answer to a request for it."""
    hero = re.search(r"\b(an? (?:\w+ )?\w+) (?:named|called) ([A-Z]\w+)", text)
    words = [x for x in re.findall(r"\b[a-z]{3,}\b", text) if x not in FREQUENT]
    nouns = [x for x in re.findall(r"\b(?:the|a|his|her) ([a-z]{3,})\b", text) if x not in FREQUENT]
    topic = f"{hero[1]} named {hero[2]}" if hero and rng.random() < 0.5 else None
    topic = topic or (hero[1] if hero and rng.random() < 0.5 else f"the {rng.choice(nouns or words)}")
    asks = ["Tell me a story about {}.", "Can you tell me a story about {}?", "Please tell me a story about {}.",
            "I want to hear a story about {}.", "Write a short story about {}.", "Do you know a story about {}?"]  # fmt: skip
    ask = (
        rng.choice(asks).format(topic)
        if rng.random() < 0.8
        else rng.choice(
            [
                "Tell me a story.",
                "Can you tell me a story?",
                "I want to hear a story.",
                "Please tell me a bedtime story.",
            ]
        )
    )
    return [{"role": "user", "content": ask}, {"role": "assistant", "content": text}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--drop-unlikely", type=float, default=0.3, help="share of teacher stories of lowest likelihood"
    )
    parser.add_argument("--rare", type=int, default=15, help="a word must occur in this many stories")
    parser.add_argument("--grammar-limit", type=int, default=400_000)
    parser.add_argument("--teacher-limit", type=int, default=None, help="at most this many teacher stories")
    parser.add_argument("--chats", type=int, default=40_000, help="dialogues of the grammar")
    parser.add_argument("--chat-share", type=float, default=0.12, help="share of stories told in a chat")
    parser.add_argument("--held-out", type=int, default=1000, help="one story in this many is held out")
    parser.add_argument("--workers", type=int, default=14)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    log: dict = {"dropped": Counter()}

    with Pool(args.workers) as pool:
        checked = pool.map(check, (args.corpus / "teacher.jsonl").read_text().splitlines(), chunksize=1000)
        good = [item for item, why in checked if why is None]
        log["raw"] = len(checked)
        log["dropped"].update(why for _, why in checked if why)
        grammar_texts = [json.loads(x)["text"] for x in (args.corpus / "grammar.jsonl").read_text().splitlines()]
        grammar_texts = grammar_texts[: args.grammar_limit]

        # The least likely stories are where the teacher lost its thread. Each temperature is cut alone.
        bars = {}
        for temperature in {x["temperature"] for x in good}:
            ranked = sorted(x["logprob"] for x in good if x["temperature"] == temperature)
            bars[temperature] = ranked[int(args.drop_unlikely * len(ranked))]
        likely = [x["text"] for x in good if x["logprob"] >= bars[x["temperature"]]]
        log["dropped"]["unlikely"] = len(good) - len(likely)

        counts = Counter(w for text in likely + grammar_texts for w in set(re.findall(r"[A-Za-z]+", text.lower())))
        common = {w for w, n in counts.items() if n >= args.rare}
        plain = [x for x in likely if all(w in common for w in re.findall(r"[A-Za-z]+", x.lower()))]
        log["dropped"]["rare word"] = len(likely) - len(plain)
        log["words"] = len(common)

        if args.teacher_limit is not None:
            plain = plain[: args.teacher_limit]

        stories, seen = [], set()
        for kind, texts in (("teacher", plain), ("grammar", grammar_texts)):
            for text in texts:
                key = tuple(sorted(shingles(text))[:5])  # five smallest hashes: equal for nearly equal texts
                if key not in seen:
                    seen.add(key)
                    stories.append({"kind": kind, "text": text})
        log["dropped"]["duplicate"] = len(plain) + len(grammar_texts) - len(stories)

        held = [x for x in stories if digest(x["text"]) % args.held_out == 0]
        train = [x for x in stories if digest(x["text"]) % args.held_out != 0]
        held += [{"kind": "hand-written", "text": text} for _, text in SEED_STORIES[-HELD_OUT_SEEDS:]]
        sets = [shingles(x["text"]) for x in held]
        index: dict[int, list[int]] = {}
        for i, one in enumerate(sets):
            for s in one:
                index.setdefault(s, []).append(i)
        sizes = [len(x) for x in sets]
        chunks = [[x["text"] for x in train[i : i + 4000]] for i in range(0, len(train), 4000)]
        near = [x for part in pool.imap(nearness, ((c, index, sizes) for c in chunks)) for x in part]
        train = [x for x, bad in zip(train, near, strict=True) if not bad]
        log["dropped"]["near held-out"] = sum(near)

    rng = random.Random(0)
    for item in train:
        if rng.random() < args.chat_share:
            item["messages"] = as_chat(item.pop("text"), rng)
            item["kind"] += " chat"
    chats = [{"kind": "chat", "messages": grammar.make_dialogue(seed, DIALOGUES)} for seed in range(args.chats)]
    train += chats
    rng.shuffle(train)
    for name, items in (("train", train), ("held_out", held)):
        with open(args.out / f"{name}.jsonl", "w") as file:
            file.writelines(json.dumps(x) + "\n" for x in items)
        log[name] = dict(Counter(x["kind"] for x in items))
    log["dropped"] = dict(log["dropped"])
    (args.out / "filter.log.json").write_text(json.dumps(log, indent=1))
    print(json.dumps(log, indent=1))


if __name__ == "__main__":
    main()
