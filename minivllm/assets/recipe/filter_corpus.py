"""Owns what the model is trained on: which texts are kept, which are held out, and in what shape they are shown.

    python filter_corpus.py --corpus corpus --out data

Writes train.jsonl and held_out.jsonl ({"kind", "messages" or "text"}) and filter.log.json. A story is held out by the hash of
its text alone, before anything is trained on.
"""

import argparse
import hashlib
import json
import random
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from multiprocessing import Pool
from pathlib import Path

import hand_written
import story_grammar as grammar
from judge import NAMES
from prompts import special_words

DIALOGUES = grammar.load_dialogues()
HELD_OUT_GRAMMAR = 40
index: dict[int, list[int]]  # which held-out stories have a run of words; set before the second pool is forked
sizes: list[int]
common: set[str]


def digest(text: str) -> int:
    """A stable 64-bit hash."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def shingles(text: str, size: int = 5) -> set[int]:
    """Hashes of all runs of `size` words, names masked, case and marks dropped."""
    words = ["@" if x in NAMES else x.lower() for x in re.findall(r"[A-Za-z]+", text)]
    return {zlib.crc32(" ".join(words[i : i + size]).encode()) for i in range(len(words) - size + 1)}


def plain_words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def describe(lines: list[str]) -> tuple[list[tuple[dict, tuple[int, ...]]], Counter[str]]:
    """Each text with its three smallest hashes, which nearly equal texts share; and in how many texts each word is."""
    counts: Counter[str] = Counter()
    items = []
    for line in lines:
        item = json.loads(line)
        counts.update(plain_words(item["text"]))
        items.append((item, tuple(sorted(shingles(item["text"], 4))[:3])))
    return items, counts


def judge(texts: list[str]) -> list[str | None]:
    """Why each text is dropped: a rare word, or too near to a held-out story (Jaccard index of five-word runs of 0.4)."""
    results: list[str | None] = []
    for text in texts:
        own = shingles(text)
        shared = Counter(i for s in own if s in index for i in index[s])
        if any(n >= 0.4 * (len(own) + sizes[i] - n) for i, n in shared.items()):
            results.append("near held-out")
        else:
            results.append(None if plain_words(text) <= common else "rare word")
    return results


def likely(items: list[tuple[dict, tuple[int, ...]]], share: float) -> list[tuple[dict, tuple[int, ...]]]:
    """All but this share, the least likely: there the teacher lost its thread. Each kind and temperature is cut alone."""
    groups = defaultdict(list)
    for item, _ in items:
        groups[item["kind"], item["temperature"]].append(item["logprob"])
    bars = {group: sorted(values)[int(share * len(values))] for group, values in groups.items()}
    return [x for x in items if x[0]["logprob"] >= bars[x[0]["kind"], x[0]["temperature"]]]


def as_chat(text: str, rng: random.Random) -> list[dict[str, str]]:
    """Turn a story into the answer to a request for it."""
    hero = re.search(r"\b(an? (?:\w+ )?\w+) (?:named|called) ([A-Z]\w+)", text)
    nouns = [x for x in re.findall(r"\b(?:the|a|his|her) ([a-z]{3,})\b", text) if x in special_words(x)]
    topic = f"{hero[1]} named {hero[2]}" if hero and rng.random() < 0.5 else None
    topic = topic or (hero[1] if hero and rng.random() < 0.5 else f"the {rng.choice(nouns or special_words(text))}")
    asks = ["Tell me a story about {}.", "Can you tell me a story about {}?", "Please tell me a story about {}.",
            "I want to hear a story about {}.", "Write a short story about {}.", "Do you know a story about {}?"]  # fmt: skip
    bare = [
        "Tell me a story.",
        "Can you tell me a story?",
        "I want to hear a story.",
        "Please tell me a bedtime story.",
    ]
    ask = rng.choice(asks).format(topic) if rng.random() < 0.8 else rng.choice(bare)
    return [{"role": "user", "content": ask}, {"role": "assistant", "content": text}]


def laid_out(text: str, rng: random.Random) -> str:
    """Paragraphs as lines, with blank lines between, or all in one: a story is a story in any of these."""
    way = rng.random()
    return text if way < 0.45 else text.replace("\n", "\n\n" if way < 0.72 else " ")


def shown(kind: str, text: str, rng: random.Random, chat_share: float) -> dict:
    """A text as the model is trained on it."""
    if kind == "chat":
        return {"kind": "chat", "messages": hand_written.messages_of(text)}
    if rng.random() < chat_share:
        return {"kind": f"{kind} chat", "messages": as_chat(text, rng)}
    return {"kind": kind, "text": laid_out(text, rng)}


def chunks(items: list, size: int = 2000) -> Iterable[list]:
    return (items[i : i + size] for i in range(0, len(items), size))


def main() -> None:
    global index, sizes, common
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--drop-unlikely", type=float, default=0.25, help="share of teacher texts of lowest likelihood")
    parser.add_argument("--rare", type=int, default=12, help="a word must occur in this many texts")
    parser.add_argument("--chats", type=int, default=12_000, help="dialogues of the grammar")
    parser.add_argument("--chat-share", type=float, default=0.08, help="share of stories told in a chat")
    parser.add_argument("--copies", type=int, default=3, help="of each text written by hand")
    parser.add_argument("--held-out", type=int, default=120, help="how many teacher stories are held out")
    parser.add_argument("--workers", type=int, default=14)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    log: dict = {"dropped": Counter()}

    lines = (args.corpus / "teacher.jsonl").read_text().splitlines()
    lines = [x for x in lines if x.endswith("}")]  # the last one may have been cut
    grammar_file = args.corpus / "grammar.jsonl"
    grammar_lines = grammar_file.read_text().splitlines() if grammar_file.exists() else []
    with Pool(args.workers) as pool:
        described, counts = [], Counter({x: args.rare for _, text in hand_written.stories() for x in plain_words(text)})
        for items, found in pool.imap(describe, chunks(lines)):
            described += items
            counts.update(found)
        told = []
        for items, found in pool.imap(describe, chunks(grammar_lines)):
            told += [({"kind": "grammar", "text": x["text"]}, key) for x, key in items]
            counts.update(found)
    log["raw"] = len(described)
    kept = likely(described, args.drop_unlikely) if described else []
    log["dropped"]["unlikely"] = len(described) - len(kept)
    names = {"story": "teacher", "chat": "chat", "grammar": "grammar"}
    seen: set = set()
    texts = []
    for item, key in kept + told:
        if key not in seen:
            seen.add(key)
            texts.append((names[item["kind"]], item["text"]))
    log["dropped"]["duplicate"] = len(kept) + len(told) - len(texts)

    held = [("hand-written", text) for _, text in hand_written.held_out_stories()]
    for kind, wanted in (("teacher", args.held_out), ("grammar", HELD_OUT_GRAMMAR)):
        own = sorted((text for k, text in texts if k == kind), key=digest)
        held += [(kind, text) for text in own[:wanted]]
    out = {text for _, text in held}
    texts = [x for x in texts if x[1] not in out]
    sets = [shingles(text) for _, text in held]
    index, sizes = defaultdict(list), [len(x) for x in sets]
    for i, one in enumerate(sets):
        for s in one:
            index[s].append(i)
    common = {word for word, n in counts.items() if n >= args.rare}
    log["words"] = len(common)
    with Pool(args.workers) as pool:  # again, so that it knows the held-out stories
        verdicts = [x for part in pool.imap(judge, chunks([text for _, text in texts])) for x in part]
    log["dropped"].update(x for x in verdicts if x)
    texts = [x for x, why in zip(texts, verdicts, strict=True) if why is None]

    rng = random.Random(0)
    train = [shown(kind, text, rng, args.chat_share) for kind, text in texts]
    for _ in range(args.copies):
        train += [shown("hand-written", text, rng, args.chat_share) for _, text in hand_written.stories()]
        train += [shown("chat", text, rng, args.chat_share) for text in hand_written.chats()]
    train += [{"kind": "grammar dialogue", "messages": grammar.make_dialogue(i, DIALOGUES)} for i in range(args.chats)]
    rng.shuffle(train)
    for name, documents in (("train", train), ("held_out", [{"kind": kind, "text": text} for kind, text in held])):
        with open(args.out / f"{name}.jsonl", "w") as file:
            file.writelines(json.dumps(x) + "\n" for x in documents)
        log[name] = dict(Counter(x["kind"] for x in documents))
    log["dropped"] = dict(log["dropped"])
    log["megabytes"] = round((args.out / "train.jsonl").stat().st_size / 1e6, 1)
    (args.out / "filter.log.json").write_text(json.dumps(log, indent=1))
    print(json.dumps(log, indent=1), flush=True)


if __name__ == "__main__":
    main()
