"""Owns what a single text of the teacher must be like to be kept: the first fault that is found, or none.

A story without a word or a name of its prompt is no worse for that, so the prompt is not looked at.
"""

import re
from collections import Counter

import story_grammar as grammar
from prompts import ANIMAL_NAMES, BOYS, GIRLS

NAMES = set(GIRLS + BOYS + ANIMAL_NAMES + grammar.WORDS["N"] + grammar.WORDS["pname"] + ["Earth"])
GIRL_NAMES, BOY_NAMES = set(GIRLS) - set(BOYS) - set(ANIMAL_NAMES), set(BOYS) - set(GIRLS) - set(ANIMAL_NAMES)
GIRL_WORDS = set("girl mom mommy mother grandma woman lady queen princess sister aunt hen cow".split())
BOY_WORDS = set("boy dad daddy father grandpa man king prince brother uncle rooster".split())
TITLES = re.compile(
    r"(Mom|Dad|Grand|Moth|Fath|Mr|Mrs|Ms|Miss|Doctor|Dr|Sun|Mon|Tue|Wed|Thu|Fri|Sat|King|Queen|Prince|Aunt|Uncle|Captain|Christmas|Santa|English|God)"
)
PLAIN = re.compile(r"[A-Za-z ,.!?;:'\"\n-]+")
OTHERS = re.compile(
    r"\b(owl|bird|squirrel|monkey|cat|dog|fox|bear|friend|doctor|farmer|teacher|neighbor|animal|robot|dragon|wizard|giant)s?\b"
)


def fault(text: str) -> str | None:
    """Why a story is dropped, or None."""
    words = re.findall(r"[A-Za-z']+", text)
    if not 50 <= len(words) <= 260:
        return "length"
    if not PLAIN.fullmatch(text) or "  " in text or "\n\n" in text:
        return "characters"
    if not re.search(r'[.!?]"?$', text) or not re.match(r'"?[A-Z]', text):
        return "ends"
    if any(line.count('"') % 2 for line in text.split("\n")) or re.search(
        r'"(?=\w)\w*"|""|[,.!?]{2}|\w"\w| [,.!?;:]|(?:^|\s)" |\w" ?$|\w"\s*\n|[,;]$|[,;]\n|(?:^|\s)\'', text
    ):
        return "quotes"
    if re.search(r'(?:^|[.!?] )[a-z]|(?:^|\n)"?[a-z]|[.!?]"? "[a-z]|\b[a-z]+[A-Z]|\bi\b', text):
        return "case"
    return loop_fault(text, words) or name_fault(text) or pronoun_fault(text)


def loop_fault(text: str, words: list[str]) -> str | None:
    """A sentence twice, a phrase four times, or the same word twice in a row."""
    sentences = [x.strip().lower() for x in re.split(r'(?<=[.!?])["\s]+', text) if x.strip()]
    longer = Counter(x for x in sentences if len(x.split()) > 3)
    if any(n > 2 for n in longer.values()) or sum(n > 1 for n in longer.values()) > 1:
        return "repeated sentence"
    if any(n > 3 for n in Counter(sentences).values()):
        return "repeated sentence"
    fours = Counter(zip(*(map(str.lower, words[i:]) for i in range(4)), strict=False))
    if fours and max(fours.values()) > 3:
        return "repeated phrase"
    if set(re.findall(r"\b(\w+) \1\b", text.lower())) - {
        "very",
        "so",
        "many",
        "had",
        "that",
        "her",
        "no",
        "up",
        "on",
        "much",
    }:
        return "repeated word"
    common = Counter(x.lower() for x in words if len(x) > 3)
    if common and max(common.values()) > max(9, len(words) // 11):
        return "repeated word"
    return None


def name_fault(text: str) -> str | None:
    """A name that comes from nowhere, or too many of them."""
    inner = set(re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", text)) - {"I"}
    unknown = [x for x in inner if x not in NAMES and not TITLES.match(x)]
    if any(len(re.findall(rf"\b{x}\b", text)) < 3 for x in unknown) or len(inner & NAMES) > 5:
        return "names"
    return None


def pronoun_fault(text: str) -> str | None:
    """With a single sex among the people named, the other's pronouns are a mistake."""
    told = re.sub(r'"[^"]*"', " ", text)
    bag = Counter(re.findall(r"[A-Za-z]+", told))
    low = Counter(re.findall(r"[a-z]+", told.lower()))
    girls = sum(bag[x] for x in GIRL_NAMES) + sum(low[x] for x in GIRL_WORDS)
    boys = sum(bag[x] for x in BOY_NAMES) + sum(low[x] for x in BOY_WORDS)
    she, he = low["she"] + low["her"], low["he"] + low["his"] + low["him"]
    hero = re.match(r".{0,90}?\b(?:girl|boy) (?:named|called) (\w+)", told, re.DOTALL)
    free = 3 if OTHERS.search(told) else 0
    if girls and not boys and he > free and he > she / 3:
        return "pronouns"
    if boys and not girls and she > free and she > he / 3:
        return "pronouns"
    if hero:
        right, wrong = (she, he) if " girl " in hero[0] else (he, she)
        if wrong > right + 3:
            return "pronouns"
    return None


def chat_fault(text: str) -> str | None:
    """Why a chat is dropped, or None."""
    lines = text.split("\n")
    if not 2 <= len(lines) <= 8 or len(lines) % 2 or len(text) > 900:
        return "chat: length"
    for number, line in enumerate(lines):
        if not re.fullmatch(("U", "A")[number % 2] + r': "?[A-Z][^\n]*[.!?]"?', line):
            return "chat: form"
        said = line[3:]
        if (
            not PLAIN.fullmatch(said)
            or "  " in said
            or said.count('"') % 2
            or re.search(r'""|[,.!?]{2}| [,.!?;:]|\w"\w|\b[UA]:', said)
        ):
            return "chat: characters"
        if len(said.split()) > 75:
            return "chat: length"
        if re.search(r"[.!?] [a-z]|\bi\b", said):
            return "chat: case"
    if len(set(lines)) < len(lines) or set(re.findall(r"\b(\w+) \1\b", text.lower())) - {"very", "so", "ha", "no"}:
        return "chat: repeated"
    return None
