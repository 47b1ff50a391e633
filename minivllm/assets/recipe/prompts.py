"""Owns what the teacher is asked for: a line of words, and sometimes the beginning of the story.

A training text of the teacher is `Words: kite, owl, rain.` and then the story, so that afterwards any words can be asked
for. The words asked for go far beyond those of the story grammar: what the teacher knows about whales and pianos comes
from its own pre-training, the shape of a story from the fine-tuning.
"""

import random
import re

import story_grammar as grammar

HEROES = (
    "whale dolphin octopus crab dragon unicorn kangaroo camel parrot swan snail ladybug butterfly spider ant worm robot fairy "
    "giant prince princess wizard pirate farmer baker king queen knight mermaid ghost snowman teacher gardener fisherman "
    "painter singer sailor clown puppet dinosaur wolf peacock seal walrus firefly grasshopper cricket bat llama pigeon "
    "rooster hen sparrow chipmunk skunk moose gorilla giraffe crocodile lizard starfish seahorse jellyfish"
).split()
THINGS = (
    "piano|ladder|umbrella|lantern|mirror|button|key|clock|rope|basket|pumpkin|egg|feather|bridge|tunnel|castle|cave|island|"
    "rocket|bicycle|sled|skates|candle|pencil|glasses|boots|mittens|sock|spoon|pot|broom|bed|box|tent|swing|slide|window|"
    "door|pillow|blanket|leaf|flower|rainbow|puddle|snow|storm|moon|star|sun|cloud|wind|rain|shadow|echo|song|letter|"
    "secret|gift|cake|birthday|party|picnic|race|game|trick|joke|dream|wish|map|treasure|coin|crown|ring|bell|flute|violin|"
    "guitar|paint|brush|paper|glue|scissors|nest|web|shell|stone|sand|wave|boat|ship|train|bus|truck|plane|wagon|wheel|"
    "garden|seed|tree|apple|carrot|pear|soup|bread|milk|tea|sugar|salt|jar|bottle|cup|plate|table|chair|lamp|phone|camera|"
    "newspaper|backpack|pocket|shirt|dress|coat|hat|shoe|tooth|nose|tail|wing|paw|fur|ear"
).split("|")
PLACES = (
    "zoo|museum|library|school|kitchen|attic|market|mountain|desert|circus|station|hospital|bakery|barn|harbor|village|city|"
    "pool|pond|valley|jungle|cellar|roof|bathroom|bedroom|shop|street|fair|theater|airport|church|hut|field|swamp"
).split("|")
QUALITIES = (
    "lost|brave|lazy|noisy|sleepy|shiny|heavy|sticky|broken|hidden|magic|angry|gentle|clumsy|hungry|dizzy|proud|shy|greedy|"
    "honest|patient|lonely|jealous|curious|careful|silly|kind|rude|polite|scared|surprised|thankful|stubborn|messy|clean|"
    "slippery|soft|bitter|sweet|sour|frozen|warm|tiny|huge|quiet|loud|bright|dark|wet|dry|help|share|hide|jump|dance|sing|"
    "climb|fly|swim|fix|build|bake|dig|paint|count|listen|whisper|laugh|cry|forgive|learn|promise|wait|trade|guess"
).split("|")
FREQUENT = set(
    "the and was were with that this they them their there then than she her him his had has have not but for you your are "
    "all one two said asked very did does can could would when what where who will into out from again too its our let some "
    "went came got put saw see look looked now just like liked about over how because after before only more back down "
    "day named called once upon time".split()
)


def words_of(text: str, rng: random.Random) -> list[str]:
    """One to four words of a story that say what is special about it."""
    pool = sorted({x for x in re.findall(r"\b[a-z]{3,}\b", text) if x not in FREQUENT})
    return rng.sample(pool, min(len(pool), rng.randint(1, 4)))


def header(words: list[str]) -> str:
    """The line that asks for words."""
    return f"Words: {', '.join(words)}.\n"


def teacher_text(story: str, seed: int) -> str:
    """What the teacher is fine-tuned on for one story."""
    return header(words_of(story, random.Random(f"words {seed}"))) + story


def opening(rng: random.Random, plots: list[tuple[str, str, str]]) -> tuple[str, list[str]]:
    """The beginning of a story, possibly empty, and words that fit it."""
    way = rng.random()
    if way < 0.3:
        return "", []
    if way < 0.6:  # a hero from outside the grammar
        girl = rng.random() < 0.5
        name = rng.choice(grammar.ANIMAL_NAMES + (grammar.GIRLS if girl else grammar.BOYS))
        what = rng.choice(HEROES + grammar.SPECIES + ["girl" if girl else "boy"] * 25)
        env = {
            "H": name,
            "hero": f"a {rng.choice(['little', 'small', 'young', 'kind', 'old', 'big', 'funny'])} {what} named {name}",
        }
        env |= {"plainhero": f"a {what}", "parent": "", "parent_noun": ""} | grammar.pronouns(girl)
        text = grammar.polish(grammar.Expander(rng, env).expand("{_intro} {_like}"), env, False)
        return text, [what]
    story = grammar.make_story(rng.randrange(10**9), plots)
    sentences = re.split(r"(?<=[.!?])(?=\s)(?!\s+[a-z])", story.text)
    text = "".join(sentences[: rng.randint(1, 4)])
    if text.count('"') % 2:
        text = sentences[0]
    return ("", []) if text.count('"') % 2 else (text, rng.sample(story.words, min(1, len(story.words))))


def make_prompt(seed: int, plots: list[tuple[str, str, str]]) -> str:
    """The prompt of this seed."""
    rng = random.Random(f"prompt {seed}")
    text, words = opening(rng, plots)
    pools = [
        THINGS,
        THINGS,
        PLACES,
        QUALITIES,
        QUALITIES,
        HEROES,
        grammar.SPECIES,
        grammar.WORDS["food"],
        grammar.WORDS["toy"],
    ]
    words = words + [rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 3))]
    words = list(dict.fromkeys(x for word in words for x in word.split()))[:4]
    rng.shuffle(words)
    return header(words) + text
