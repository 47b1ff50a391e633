"""Owns what the teacher is asked for: a title and some words, and sometimes how the story begins.

A training text of the teacher is `Title: Tom and the Red Boots`, perhaps `Words: rain, duck`, a blank line, and the story;
afterwards any title can be asked for. Titles are made of some fifty forms, filled with names, animals, things, places and
problems, most of them words that no story written by hand has: what the teacher knows about whales and pianos comes
from its own pre-training. A chat has the header `Chat: dog, rain` instead.
"""

import random
import re
from dataclasses import dataclass

import hand_written
import story_grammar as grammar

GIRLS = (
    grammar.GIRLS
    + (
        "Abby Agnes Amelia Anita Aya Beth Betty Carmen Cathy Chloe Cora Dana Edith Elena Elise Esther Eve Flora Frida Gina Greta "
        "Hannah Helen Hope Ines Iris Jasmine Jenny Josie Joy Julia Katie Kira Laura Lea Lisa Lizzie Lara Mary Maggie Mila Mina Naomi "
        "Nadia Nancy Nell Noor Olga Pam Paula Penny Petra Rachel Robin Rosa Ruth Sally Samira Selma Sofia Susie Tess Thea Tilda Willa "
        "Xenia Yumi Zara Zelda"
    ).split()
)
BOYS = (
    grammar.BOYS
    + (
        "Aaron Abe Albert Anton Arlo Arthur Axel Barry Boris Bruno Caleb Carlos Chad Chris Colin Danny Dennis Diego Duncan Dylan "
        "Eddie Edgar Ethan Ezra Frank Gabe Gary Gus Hans Harry Hassan Hector Idris Ivan Jacob Jay Johnny Jonas Juan Karl Ken Kofi Kurt "
        "Lars Larry Lee Lenny Louis Luis Marco Matt Mateo Mike Ned Nate Owen Pablo Peter Phil Quinn Ralph Ricky Roy Rufus Ryan Sammy "
        "Scott Sean Stan Steve Ted Tariq Tommy Travis Vic Walter Wes Yusuf Zack"
    ).split()
)
ANIMAL_NAMES = (
    grammar.ANIMAL_NAMES
    + (
        "Bingo Bibi Chip Clover Cookie Daffy Dusty Ember Fifi Flip Fuzzy Ginger Giggles Hop Jumbo Juno Kuku Leaf Lucky Mittens "
        "Mopsy Moss Nemo Noodle Oreo Pearl Pickle Pinky Pluto Puff Quack Ringo Rocky Scout Shadow Smokey Socks Sparky Stripes Sugar "
        "Tiger Toto Tuffy Twinkle Waddles Whiskers Wiggles Winnie Zippy Zuzu"
    ).split()
)
ANIMALS = (
    grammar.SPECIES
    + (
        "alligator ant armadillo bat bull butterfly buffalo caterpillar cheetah chicken cricket crocodile crow dolphin dragonfly eagle "
        "firefly fish flamingo fly gorilla grasshopper hamster hawk horse jellyfish ladybug llama lobster moose moth octopus ostrich "
        "ox parrot pelican porcupine puffin ram rat reindeer rhino robin rooster seagull seahorse shark sheep shrimp skunk sloth snail "
        "snake spider squid starfish stork swallow toad turkey walrus weasel whale woodpecker worm yak"
    ).split()
)
BEINGS = (
    "robot fairy giant prince princess wizard pirate farmer baker king queen knight mermaid ghost snowman teacher gardener "
    "fisherman painter singer sailor clown puppet dinosaur dragon unicorn witch elf dwarf monster doctor nurse captain "
    "shepherd tailor miller hunter cook postman firefighter dancer astronaut scarecrow doll baby boy girl twin grandma grandpa "
    "uncle aunt neighbor"
).split()
THINGS = (
    "piano|ladder|umbrella|lantern|mirror|button|key|clock|rope|basket|pumpkin|egg|feather|bridge|tunnel|castle|cave|rocket|"
    "bicycle|sled|candle|pencil|boot|mitten|sock|spoon|pot|broom|bed|box|tent|swing|slide|window|door|pillow|blanket|leaf|flower|"
    "rainbow|puddle|storm|moon|star|cloud|wind|shadow|echo|song|letter|secret|gift|cake|party|picnic|race|game|trick|"
    "joke|dream|wish|map|treasure|coin|crown|ring|bell|flute|violin|guitar|brush|nest|web|shell|stone|wave|boat|"
    "ship|train|bus|truck|plane|wagon|wheel|seed|tree|apple|carrot|pear|soup|bread|jar|bottle|cup|plate|chair|lamp|"
    "phone|camera|newspaper|backpack|pocket|shirt|dress|coat|hat|shoe|tooth|nose|tail|wing|paw|ear|ball|balloon|kite|doll|"
    "teddy bear|drum|whistle|puzzle|block|toy car|tricycle|wand|book|picture|crayon|paint|scarf|glove|cookie|sandwich|"
    "banana|cherry|lemon|melon|onion|potato|tomato|mushroom|acorn|berry|honey|cheese|pancake|pie|candy|ice cream|noodle|popcorn|"
    "bone|stick|log|rock|branch|root|vine|rose|daisy|sunflower|tulip|cactus|fence|gate|wall|roof|chimney|stairs|"
    "elevator|bathtub|towel|soap|bubble|sponge|comb|toothbrush|clay|glue|scissors|tape|ribbon|string|net|hook|bucket|shovel|rake|"
    "hammer|nail|saw|paper boat|snowball|icicle|snowflake|campfire|flashlight|radio|marble|card|dice|medal|flag|tower|fountain|well|mailbox|"
    "bench|seesaw|trampoline|pool|ticket|present|stamp|suitcase|watch|necklace|glasses|mask|costume|crumb|jam|milk|tea"
).split("|")
PLACES = grammar.PLACES + (
    "zoo|museum|library|school|kitchen|attic|market|mountain|desert|circus|station|hospital|bakery|barn|harbor|village|city|pool|"
    "valley|jungle|cellar|roof|bathroom|bedroom|shop|street|fair|theater|airport|hut|swamp|island|sea|cave|castle|classroom|"
    "bus stop|supermarket|post office|treehouse|campground|ice rink|lighthouse|windmill|factory|garage|hallway|balcony|backyard|vineyard"
).split("|")
QUALITIES = (
    "lost|brave|lazy|noisy|sleepy|shiny|heavy|sticky|broken|hidden|magic|angry|gentle|clumsy|hungry|dizzy|proud|shy|greedy|"
    "honest|patient|lonely|jealous|curious|careful|silly|kind|rude|polite|scared|surprised|thankful|stubborn|messy|clean|"
    "slippery|soft|bitter|sweet|sour|frozen|warm|tiny|huge|quiet|loud|bright|dark|wet|dry|old|new|little|big|red|blue|green|yellow|"
    "purple|pink|golden|silver|white|black|brown|orange|strange|funny|smart|wise|naughty|busy|tired|excited|worried|grumpy|cheerful|"
    "bored|embarrassed|helpful|selfish|generous|fast|slow|tall|round|crooked|empty|full|dusty|muddy|fluffy|sharp|smooth|secret|special|perfect"
).split("|")
VERBS = (
    "help|share|hide|jump|dance|sing|climb|fly|swim|fix|build|bake|dig|paint|count|listen|whisper|laugh|cry|forgive|learn|promise|"
    "wait|trade|guess|run|fall|slip|catch|throw|kick|pull|push|carry|drop|break|find|search|chase|follow|knock|open|close|wash|clean|"
    "cook|cut|draw|write|read|tell|ask|answer|shout|yawn|sleep|dream|wake|hug|kiss|wave|smile|sneeze|cough|shake|tickle|pretend|plant|"
    "pick|water|grow|feed|pet|ride|drive|row|sail|skip|hop|roll|crawl|stretch|bounce|spin|splash|melt|burn|freeze|blow|pour|mix|stir|taste|"
    "smell|touch|hear|see|watch|point|show|give|take|borrow|return|send|lose|win|try|stop|start|rest|race|visit|travel|explore|wonder|"
    "worry|apologize|thank|invite|celebrate|decorate|wrap|collect|save|spend|choose|remember|forget"
).split("|")
WISHES = (
    "Wanted to Fly|Could Not Sleep|Was Afraid of the Dark|Lost His Hat|Lost Her Way|Loved to Sing|Never Said Please|Always Forgot|"
    "Would Not Share|Wanted a Friend|Was Too Small|Was Too Loud|Could Not Wait|Told a Lie|Learned to Swim|Liked to Hide|Ran Away|"
    "Wanted to Be Big|Did Not Listen|Asked Too Many Questions|Found a Treasure|Would Not Eat|Wanted to Win|Broke a Promise|"
    "Helped Everyone|Was Always Late|Hated the Rain|Loved the Moon|Could Not Stop Laughing|Made a Mistake|Wanted to Dance|"
    "Went to School|Had a Bad Dream|Was Very Hungry|Saved the Day|Was Different|Collected Stones|Stole the Cake|Built a House|"
    "Lived in a Shoe|Missed Home|Got Stuck|Had the Hiccups|Wanted to See the Sea|Was Bored|Liked to Trick Others|Gave Everything Away"
).split("|")
FORMS = (
    "{N} and the {Q} {T}|{N} and the {Q} {T}|{N} and the {A}|{N} and the {T}|The {Q} {A}|The {Q} {A}|The {Q} {T}|The {Q} {B}|"
    "The {T} in the {P}|{N}'s {Q} {T}|{N}'s {T}|{N} the {A}|{N} the {Q} {A}|{N} the {A} and the {T}|The {A} Who {W}|The {A} Who {W}|"
    "The {B} Who {W}|The {T} Who {W}|A {T} for {N}|{N} Learns to {V}|{N} Goes to the {P}|The Lost {T}|Two {A}s and a {T}|"
    "{N} at the {P}|A Day at the {P}|{N} Does Not Like {F}|{N} Wants a {T}|{N} Is Afraid of the {A}|{N} Is Afraid of the {T}|"
    "{N} Helps the {A}|{N} Shares the {F}|{N} Is Sick|{N} Tells a Lie|{N}'s Birthday|The {B} and the {A}|The {A} and the {A2}|"
    "{N} Makes {F}|{N} Meets a {A}|{N} Meets a {B}|{N} Finds a {Q} {T}|{N} Says Sorry|Rain at the {P}|A Night in the {P}|{N} and {M}|"
    "{N} and {M} at the {P}|{N} and {M} Find a {T}|{N} Breaks the {T}|{N} Cannot {V}|The {Q} {T} and the {Q2} {T2}|{N} Gets Lost in the {P}|"
    "{N} Forgets the {T}|The {A}'s {T}|{N} and Grandpa's {T}|{N} and Mom's {T}|{N} and Dad Go to the {P}|Snow in the {P}|{N} Wants to {V}|"
    "{N}'s New {A}|The {A} in the {P}|{N} Plays a Trick|{N} Waits for the {T}|{N} Loses the {T}|The Biggest {T}|{N} Is {Q}|"
    "{N} and the {B}|The {B}'s {T}|{N} Does Not Want to {V}|The {P} at Night|{N} and the {T} at the {P}|Why the {A} Is {Q}"
).split("|")
# Most stories begin as the teacher likes; some begin as stories often do.
OPENINGS = (
    ["Once upon a time"] * 6 + ["Once upon a time, there was a"] * 5 + ["Once upon a time, in a"] + ["One day"] * 2 + ["One day,"] * 4
    + ["One"] * 2 + ["{N}"] * 9 + ["{N} was"] * 2 + ["{N} had a"] * 2 + ["{N} loved to"] * 2 + ["{N} and"] * 2 + ["{N} wanted"] + ['"'] * 4
    + ["It was"] * 3 + ["There was"] * 3 + ["There was a little"] * 2 + ["There once was a"] + ["In a"] * 2 + ["In the"] * 2 + ["The"] * 4
    + ["On a"] + ["Every"] * 2 + ["Long ago"] + ["Early in the"] + ["Today"] + ["Last"] + ["When"] * 2 + ["Mom"] + ["At"] + ["A"] * 2
    + ["Far away"] + ["Deep in the"] + ["High"] + ["Under"] + ["Once"] + ["Once there was a"] * 2 + ["My"] * 0 + ["Two"] + ["All"]
)  # fmt: skip
OPENED, CHATS = 0.5, 0.08
FREQUENT = set(
    "the and was were with that this they them their there then than she her him his had has have not but for you your are "
    "all one two said asked very did does can could would when what where who will into out from again too its our let some "
    "went came got put saw see look looked now just like liked about over how because after before only more back down "
    "day named called once upon time".split()
)


def special_words(text: str) -> list[str]:
    """The words of a text that say what it is about, in a fixed order."""
    return sorted({x for x in re.findall(r"(?<![\w'-])[a-z]{3,}(?![\w'-])", text) if x not in FREQUENT})


STORIES = hand_written.stories()
HAND_WORDS = sorted({x for _, text in STORIES for x in special_words(text)})


@dataclass
class Prompt:
    """What is asked for. `names` and `about` must be found in the story."""

    kind: str  # "story" or "chat"
    header: str
    opening: str
    names: list[str]
    about: list[str]

    @property
    def text(self) -> str:
        return self.header + self.opening


def story_header(title: str, words: list[str]) -> str:
    """The lines before a story."""
    return f"Title: {title}\n" + (f"Words: {', '.join(words)}\n" if words else "") + "\n"


def chat_header(words: list[str]) -> str:
    """The line before a chat."""
    return f"Chat: {', '.join(words)}\n"


def lesson(kind: str, title: str, text: str, seed: int) -> str:
    """What the teacher is fine-tuned on for one text written by hand."""
    rng = random.Random(f"lesson {seed} {title}")
    words = special_words(text)
    if kind == "chat":
        return chat_header(rng.sample(words, min(len(words), rng.randint(1, 3)))) + text
    return story_header(title, rng.sample(words, rng.choice([0, 0, 1, 2, 3]))) + text


def article(text: str) -> str:
    """`A owl` to `An owl`."""
    return re.sub(r"\b([Aa]) (?=[AEIOUaeiou])", r"\1n ", text)


def make_prompt(seed: int) -> Prompt:
    """The prompt of this seed."""
    rng = random.Random(f"prompt {seed}")

    def words(count: int) -> list[str]:
        pools = [
            HAND_WORDS,
            HAND_WORDS,
            THINGS,
            PLACES,
            QUALITIES,
            VERBS,
            ANIMALS,
            grammar.WORDS["food"],
            grammar.WORDS["toy"],
        ]
        return list(dict.fromkeys(x for _ in range(count) for x in rng.choice(rng.choice(pools)).split()[-1:]))

    if rng.random() < CHATS:
        return Prompt("chat", chat_header(words(rng.randint(1, 3))), "U:", [], [])
    people = rng.choice([GIRLS, BOYS, GIRLS, BOYS, ANIMAL_NAMES])
    form = rng.choice(FORMS)
    name = rng.choice(ANIMAL_NAMES if "{N} the" in form else people)
    parts = {"N": name, "M": rng.choice(GIRLS + BOYS), "W": rng.choice(WISHES), "F": rng.choice(grammar.WORDS["food"])}
    parts |= {"A": rng.choice(ANIMALS), "A2": rng.choice(ANIMALS), "B": rng.choice(BEINGS), "P": rng.choice(PLACES)}
    parts |= {"T": rng.choice(THINGS), "T2": rng.choice(THINGS), "V": rng.choice(VERBS)}
    parts |= {"Q": rng.choice(QUALITIES), "Q2": rng.choice(QUALITIES)}
    used = re.findall(r"\{(\w+)\}", form)
    names = list(dict.fromkeys(parts[x] for x in used if x in "NM"))
    about = [parts[x].split()[-1] for x in used if x not in ("N", "M", "W", "Q", "Q2")]
    small = {"the", "and", "a", "at", "of", "to", "in", "for"}
    title = article(re.sub(r"\{(\w+)\}", lambda m: parts[m[1]], form))
    title = " ".join(x if x in small else x[0].upper() + x[1:] for x in title.split())
    asked = words(rng.choice([0, 0, 1, 2, 3]))
    opening = ""
    if rng.random() < OPENED:
        opening = rng.choice(OPENINGS)
        if "{N}" in opening and not names:
            opening = "Once upon a time"
        opening = opening.replace("{N}", rng.choice(names) if names else "")
    return Prompt("story", story_header(title, asked), opening, names, about + asked)
