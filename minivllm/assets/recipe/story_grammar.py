"""Owns the seeded story grammar: small plots with many variants, filled with people, animals and things that agree.

The plots (plots_one.txt to plots_eleven.txt) and dialogues (dialogues.txt) are plain text in a tiny notation:
    [a|b|c]        one of the alternatives, nested as deep as one likes
    [a|b]:word     the same, and {word} repeats the choice later in the story
    {color}        a word from WORDS, chosen once a story, then always the same
    {*who}         a word from WORDS, chosen anew each time
    {_sad}         a sentence from RULES, chosen anew each time
    {He} {his}     pronouns of the hero; {fhe} {fhis} of the friend; {phe} of the grown-up
A capital first letter in the name asks for a capital first letter in the text. Everything is a function of the seed.
"""

import random
import re
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
PLOT_FILES = [f"plots_{x}.txt" for x in "one two three four five six seven eight nine ten eleven".split()]

GIRLS = (
    "Lily Mia Anna Emma Zoe Nora Lucy Ella Ruby Rose Sara Amy Bella Clara Daisy Eva Fay Gia Hana Ida Jane Kate Lola Maya "
    "Nina Olive Pia Rita Sue Tina Uma Vera Wendy Yara Ada Leah Molly Polly Sophie Grace Alice Ivy June Kim Lena Tara Mimi "
    "Poppy Hazel Stella Aisha Mei Carla Dora Elsa Fiona Holly Jill Luna"
).split()
BOYS = (
    "Tom Ben Max Leo Sam Tim Jack Finn Nico Oscar Adam Bill Carl Dan Eli Fred George Hugo Ian Jake Kai Luke Milo Noah Omar "
    "Paul Ray Simon Theo Victor Will Amir Alex Billy Charlie David Henry Joe Kevin Liam Mark Nick Otto Pete Rob Sid Toby "
    "Ravi Jamal Bob Andy Oliver Timmy Tony Jim Ali Felix Emil"
).split()
ANIMAL_NAMES = (
    "Pip Dot Coco Bobo Momo Fluffy Spot Sunny Rosie Goldie Nibbles Hoppy Benny Lulu Kiki Teddy Peanut Muffin Ziggy Biscuit "
    "Pepper Honey Bruno Ollie Tilly Dolly Pogo Rusty Snowy Tiny Bubbles Patch Mango Willow Nutty Pompom Rex Gus Bella Lola"
).split()
SPECIES = (
    "rabbit mouse fox bear frog duck kitten puppy squirrel hedgehog owl turtle pig lamb goat pony bird bee elephant "
    "monkey lion tiger penguin beaver deer panda mole raccoon chick goose otter koala zebra hippo badger cow donkey cat dog "
    "swan seal kangaroo camel giraffe peacock sparrow chipmunk lizard wolf crab hen pigeon"
).split()
HELPERS = "squirrel monkey cat bird owl crow magpie raccoon".split()
PLACES = "orchard pond seashore schoolyard park garden meadow forest field playground backyard farm lake beach river hill yard woods".split()
TOYS = (
    "ball doll truck teddy bear|toy car|drum|kite|puzzle|toy boat|robot|yo-yo|toy train|rabbit|book|hat|toy plane|top|"
    "wooden horse|stuffed rabbit|jump rope|marble|magic wand|rubber duck|flashlight|umbrella|lantern|toy castle|"
    "blanket|puppet|whistle|shell|necklace|bell|toy horse|toy dinosaur|music box|scarf|ring|bracelet|bucket|paintbrush"
)
FOODS = (
    "cookies|cake|bread|apples|honey|soup|berries|cheese|pancakes|strawberries|nuts|carrots|popcorn|pie|cherries|bananas|"
    "sandwiches|waffles|plums|blueberries|chocolate|tomatoes|buns|"
    "ice cream|muffins|grapes|pears|noodles|corn|jam|oranges|watermelon|candy|rice|peaches"
)

WORDS: dict[str, list[str]] = {
    "color": "red blue green yellow pink purple orange white brown golden silver".split(),
    "place": PLACES,
    "forest": "forest,woods,park,big market".split(","),
    "toy": TOYS.replace("ball doll truck ", "ball|doll|truck|").split("|"),
    "food": FOODS.split("|"),
    "pal": HELPERS,
    "village": "small village,little town,green forest,quiet valley,big city,house near the sea,house on a hill".split(
        ","
    ),
    "small_adj": ["the smallest in the family", "only four years old", "very little", "the youngest of all"],
    "old_person": ["old man", "old woman", "old lady", "tired old man"],
    "kind2": ["boy", "girl"],
    "some_boy": ["an older boy", "a big girl", "a boy on a bike"],
    "someone": ["the voice", "that one"],
    "their_friends": ["three other friends", "all their friends", "the others"],
    "N": "Nimbo Fluff Puff Chip Toot Bip Dash Pim Lumi Tiko Bobby Bluey Sparky Dusty Rolo Tuck Mo Wink Zip".split(),
    "sea": ["whale", "dolphin", "seal", "walrus"],
    "bug": ["beetle", "ladybug", "bee", "grasshopper", "snail", "ant", "caterpillar"],
    "bug2": ["sparrow", "pigeon", "squirrel", "duck"],
    "instrument": ["trumpet", "flute", "violin", "guitar", "horn"],
    "gran": ["grandma", "grandpa", "grandmother", "grandfather", "aunt", "uncle"],
    "pname": ["Isabel", "Rosalind", "Marigold", "Amelia", "Beatrice"],
    "gname": GIRLS,
    "bname": BOYS,
    "petq": ["dog", "cat", "rabbit", "bird", "horse", "fish"],
    "its": ["its"],
    "slow_it": ["it"],
    "she_gave": ["she gave"],
    "bhis": ["his"],
    "bhe": ["he"],
}

# A composed story may be about anybody and anything; its words reach further than those of the plots.
BEINGS = (
    "whale dolphin octopus crab dragon unicorn kangaroo camel parrot swan snail ladybug butterfly spider ant worm robot fairy "
    "giant ghost snowman dinosaur wolf peacock seal walrus firefly grasshopper bat llama pigeon "
    "rooster hen sparrow skunk moose gorilla giraffe crocodile lizard gnome troll cricket raven stork flamingo toad"
).split() + SPECIES
PEOPLE = (
    "baker|farmer|teacher|gardener|fisherman|painter|singer|sailor|clown|doctor|postman|tailor|cook|shepherd|carpenter|"
    "queen|prince|princess|captain|old man|old woman|girl with a red hat|boy with a kite|boy on a bike|girl with a violin"
).split("|")
JOBS = (
    "wizard pirate knight baker farmer teacher gardener painter singer sailor clown doctor tailor cook captain".split()
)
THINGS = (
    "piano|ladder|umbrella|lantern|mirror|button|key|clock|rope|basket|pumpkin|feather|bicycle|sled|candle|pencil|boot|mitten|"
    "sock|spoon|pot|broom|box|tent|window|pillow|blanket|flower|map|coin|crown|ring|bell|flute|violin|guitar|brush|book|nest|"
    "shell|stone|boat|wagon|wheel|jar|bottle|cup|plate|chair|lamp|phone|camera|newspaper|backpack|shirt|dress|coat|hat|shoe|"
    "rocket|telescope|suitcase|teapot|hammer|bucket|balloon|drum|kite|ball|doll|puzzle|robot|teddy bear|toy train|glove"
).split("|")
WHERES = (
    "zoo|museum|library|school|kitchen|attic|market|mountain|desert|circus|station|hospital|bakery|barn|harbor|village|city|"
    "pool|pond|valley|jungle|cellar|bathroom|street|fair|theater|airport|church|swamp|cave|island|castle|bridge|tower|mill|"
    "forest|meadow|beach|river|hill|garden|park|field|playground|lighthouse|tunnel|orchard|waterfall|lake"
).split("|")
PREPOSITIONS = {
    "on": "hill|beach|farm|playground|seashore|mountain|island|bridge|street".split("|"),
    "at": "river|lake|pond|waterfall|airport|station|market|fair|big market".split("|"),
}
WORDS |= {"who": BEINGS, "folk": PEOPLE, "thing": THINGS, "where": WHERES}

RULES: dict[str, str] = {
    "_day": (
        "[One day|One day|One sunny day|One morning|One sunny morning|One afternoon|One warm day|On a nice day|On Sunday|"
        "One windy day|One spring day|Today|The next day|One fine day|On a cool morning|One Saturday]"
    ),
    "one_night": "[one night|one dark night|one night|one quiet evening|late one night]",
    "_hot_day": "[It was a hot day.|It was a hot summer day.|It was summer, and the sun was shining.|The sun was very hot.]",
    "_spring": "[One day in spring,|One spring morning,|One day,|In the garden,|On the way home,]",
    "after_days": "[after a few days|after a week|after some days|a week later|some days later|after many days]",
    "_sad": (
        "[{H} was sad.|{H} was very sad.|{H} began to cry.|{H} sat down and cried.|{H} felt sad.|{H} did not know what to do.|"
        "A tear ran down {his} face.|{H} wanted to cry.]"
    ),
    "_angry_sad": "[{H} was sad and angry.|{H} was angry.|{H} sat down on the ground.|{H} wanted to cry.|{H} felt very small.]",
    "_end_friends": (
        "[From that day on, they were good friends.|They became best friends.|After that, they played together every day.|"
        "They were friends from then on.|And they stayed friends forever.|They smiled and played until the sun went down.]"
    ),
    "_intro": (
        "[Once upon a time, there was {hero}.|There was once {hero}.|Once there was {hero}.|In a {village}, there lived {hero}.|"
        "Once upon a time, in a {village}, there was {hero}.|{H} was {plainhero}.|There was {hero}.|Long ago, there was {hero}.]"
    ),
    "_intro_far": (
        "[There was {hero} who lived in the {*where}.|{H} the {kind} lived in a {color} house near the {*where}.|"
        "The {*where} was the home of {hero}.|{H} was the only {kind} in the whole {village}.|"
        "The {kind} was called {H}, and {he} lived with a {*who} and a {*who}.|"
        "This is the story of {hero}.|{H} and {F} lived side by side in the {*where}.|"
        "Not far from the {*where}, there lived {hero}.|It was a [windy|cold|bright|rainy|quiet] morning in the {*where}. {H} the {kind} was still in bed.] "
        "[{He} had a {color} {*thing} that {he} took everywhere.|{He} was not like the others.|"
        "{He} liked {*food} more than anything.|{He} had a {*thing}, a {*thing} and a lot of time.|"
        "{His} best friend was a {*who}.|{He} [woke up early|yawned|stretched {his} legs] and looked out of the window.|]"
    ),
    "_intro_toy": "[{H} had a {color} {toy}.|{H} had a nice {color} {toy}.|{H} got a {toy}. It was {color}.|{H} loved {his} {toy}.]",
    "_like": (
        "[{He} liked to {hobby}.|{He} loved to {hobby}.|{He} was always {mood}.|{He} lived with {his} [mom and dad|family|"
        "grandma] in a [small|little|{color}] house.|{He} had [soft|big|bright] eyes and a [kind|big|brave] heart.|"
        "Every day, {he} liked to {hobby}.|]"
    ),
    "hobby": (
        "[play in the {place}|sing songs|run and jump|look at the stars|eat {food}|play with {his} {toy}|dance|climb trees|"
        "draw pictures|listen to stories|help others|pick flowers|swim|look at the clouds|count things|play hide and seek]"
    ),
    "mood": "[happy|hungry|curious|kind|full of ideas|busy|cheerful|a little shy|brave]",
    "_epilogue": (
        "[It was a day to remember.|What a day it was!|{H} never forgot that day.|It was a good day.|The end.|"
        "And that is the story of {H}.|{H} felt happy inside.|{H} could not wait for tomorrow.|"
        "That night, {H} told the whole story at dinner.|{H} smiled for the rest of the day.]"
    ),
    "_friend_intro": (
        "[{H} had a friend named {F}.|{His} best friend was {F}.|{H} had a good friend. {Fhis} name was {F}.|"
        "{H} and {F} were friends.|{F} was {his} best friend.]"
    ),
}

COLORS_OF = {
    "the sky": "blue", "the grass": "green", "the sun": "yellow", "snow": "white", "a banana": "yellow", "a frog": "green",
    "a strawberry": "red", "the sea": "blue", "a leaf in spring": "green", "an orange": "orange", "milk": "white",
    "a carrot": "orange", "a pig": "pink", "a lemon": "yellow", "chocolate": "brown", "a fire truck": "red", "the night": "black",
}  # fmt: skip
SOUNDS = {
    "a cow": "Moo", "a dog": "Woof", "a cat": "Meow", "a duck": "Quack", "a sheep": "Baa", "a pig": "Oink", "a bee": "Buzz",
    "an owl": "Hoo", "a lion": "Roar", "a snake": "Hiss", "a mouse": "Squeak", "a frog": "Ribbit", "a horse": "Neigh",
    "a hen": "Cluck", "a bird": "Tweet",
}  # fmt: skip
HOMES = {
    "a fish": "in the water", "a bird": "in a nest", "a bee": "in a hive", "a bear": "in a cave", "a rabbit": "in a hole in the ground",
    "a frog": "in a pond", "a cow": "on a farm", "a monkey": "in the trees", "a penguin": "on the ice", "a dog": "in a house with people",
    "a spider": "in a web", "a whale": "in the sea", "a squirrel": "in a tree", "a camel": "in the desert", "a snail": "in its shell",
}  # fmt: skip
OPPOSITES = [
    ("big", "small"), ("hot", "cold"), ("day", "night"), ("happy", "sad"), ("up", "down"), ("fast", "slow"), ("wet", "dry"),
    ("old", "young"), ("loud", "quiet"), ("open", "closed"), ("good", "bad"), ("long", "short"), ("dark", "light"),
    ("full", "empty"), ("soft", "hard"), ("clean", "dirty"), ("high", "low"), ("early", "late"),
]  # fmt: skip
PET_FOOD = {
    "dog": "dog food and, now and then, a bone", "cat": "cat food, and it likes fish", "rabbit": "hay, grass and carrots",
    "bird": "seeds", "horse": "hay, grass and apples", "fish": "a little fish food, but not too much",
}  # fmt: skip
WEATHER_ANSWER = {
    "sun": "[Then go outside and play!|How nice! Put on a hat and go to the {place}.|That is good weather for a picnic.]",
    "rain": "[Then put on your boots and jump in the puddles!|The flowers will be happy.|That is a good day for a book.]",
    "snow": "[You can make a snowman!|Put on your warm coat and your hat.|How pretty! Everything will be white.]",
    "wind": "[That is good weather for a kite!|Hold your hat tight!|Listen to the song of the wind.]",
}
SEASON_ANSWER = {
    "snow": "[It snows in winter.|In winter, when it is cold.]",
    "flowers": "[The flowers come out in spring.|In spring, when the sun is warm again.]",
    "hot": "[It is hot in summer.|In summer. Then you can swim and eat ice cream.]",
    "leaves": "[The leaves fall in autumn.|In autumn. First they are red and yellow, and then they fall.]",
}


@dataclass
class Story:
    """One story of the grammar: its text, the plot it follows, and words that say what it is about."""

    text: str
    plot: str
    words: list[str] = field(default_factory=list)
    hero: str = ""
    kind: str = ""


def load_plots() -> list[tuple[str, str, str]]:
    """All plots as (name, kind of hero, text)."""
    plots = []
    for name in PLOT_FILES:
        for part in re.split(r"^== ", (HERE / name).read_text(), flags=re.MULTILINE)[1:]:
            head, body = part.split("\n", 1)
            plot, kind = (x.strip() for x in head.split("|"))
            plots.append((plot, kind, body.strip()))
    return plots


def load_dialogues() -> list[tuple[str, list[tuple[str, str]]]]:
    """All dialogues as (name, turns); a turn is ("user" | "assistant", text)."""
    dialogues = []
    for part in re.split(r"^== ", (HERE / "dialogues.txt").read_text(), flags=re.MULTILINE)[1:]:
        name, *lines = part.strip().split("\n")
        dialogues.append((name, [({"U": "user", "A": "assistant"}[x[0]], x[3:]) for x in lines]))
    return dialogues


def pronouns(girl: bool, prefix: str = "") -> dict[str, str]:
    """{he}, {him}, {his} and {self} of one person, under names that start with `prefix`."""
    forms = ("she", "her", "her", "herself") if girl else ("he", "him", "his", "himself")
    return {prefix + key: form for key, form in zip(("he", "him", "his", "self"), forms, strict=True)}


class Expander:
    """Expands one template. `env` holds what this story has chosen so far; only this object writes to it."""

    def __init__(self, rng: random.Random, env: dict[str, str]) -> None:
        self.rng = rng
        self.env = env

    def expand(self, text: str) -> str:
        """Replace every [choice] and every {slot}, from left to right, so that a binding is set before its use."""
        out, i = [], 0
        while i < len(text):
            if text[i] == "[":
                end = self._matching(text, i)
                choice = self.expand(self.rng.choice(self._split(text[i + 1 : end])))
                bound = re.compile(r":([a-z_0-9]+)").match(text, end + 1)
                if bound:
                    self.env[bound[1]] = choice
                    end = bound.end() - 1
                out.append(choice)
                i = end + 1
            elif text[i] == "{":
                end = text.index("}", i)
                value = self._slot(text[i + 1 : end])
                if "".join(out[-7:]).lower().endswith("in the "):
                    self._fix_preposition(out, value)
                out.append(value)
                i = end + 1
            else:
                out.append(text[i])
                i += 1
        return "".join(out)

    @staticmethod
    def _fix_preposition(out: list[str], value: str) -> None:
        """Nobody is "in the hill"; `out` ends with the letters of "in the "."""
        word = {v: k for k, values in PREPOSITIONS.items() for v in values}.get(value)
        if word:
            out[-7] = word[0].upper() + word[1:] if out[-7].isupper() else word
            out[-6] = ""

    def _slot(self, key: str) -> str:
        if key in self.env:
            return self.env[key]
        if key.startswith("*"):
            return self.rng.choice(WORDS[key[1:]])
        low = key[0].lower() + key[1:]
        if key != low and key not in WORDS:
            value = self._slot(low)
            return value[0].upper() + value[1:]
        if key in RULES:
            return self.expand(RULES[key])
        self.env[key] = self.rng.choice(WORDS[key])
        return self.env[key]

    @staticmethod
    def _matching(text: str, start: int) -> int:
        depth = 0
        for i in range(start, len(text)):
            depth += {"[": 1, "]": -1}.get(text[i], 0)
            if depth == 0:
                return i
        raise ValueError(f"no closing bracket for: {text[start : start + 40]}")

    @staticmethod
    def _split(text: str) -> list[str]:
        parts, depth, last = [], 0, 0
        for i, c in enumerate(text):
            depth += {"[": 1, "]": -1}.get(c, 0)
            if c == "|" and depth == 0:
                parts.append(text[last:i])
                last = i + 1
        return [*parts, text[last:]]


def person(rng: random.Random, kind: str, taken: set[str]) -> tuple[str, str, bool]:
    """(name, what it is, is it a girl) of a new person or animal whose name is not taken."""
    girl = rng.random() < 0.5
    if kind == "child":
        name = rng.choice([x for x in (GIRLS if girl else BOYS) if x not in taken])
        return name, "girl" if girl else "boy", girl
    pool = ANIMAL_NAMES + (GIRLS if girl else BOYS)
    return rng.choice([x for x in pool if x not in taken]), rng.choice(SPECIES), girl


GROWN_UPS = [("Mom", True, "mom"), ("Dad", False, "dad"), ("Mommy", True, "mommy"), ("Daddy", False, "daddy"),
             ("Grandma", True, "grandma"), ("Grandpa", False, "grandpa"), ("Mother", True, "mother"),
             ("Father", False, "father")]  # fmt: skip
GROWN_UP_WEIGHTS = [8, 7, 2, 2, 3, 3, 1, 1]


def cast(rng: random.Random, kind: str) -> dict[str, str]:
    """Choose hero, friend, grown-up and an old stranger; everything a template may ask of them."""
    hero, species, girl = person(rng, kind, set())
    friend, fspecies, fgirl = person(rng, kind, {hero})
    while kind == "animal" and fspecies == species:
        fspecies = rng.choice(SPECIES)
    size = rng.choice(["little ", "small ", "young ", "", "kind ", "happy ", "little ", "curious ", "brave ", "shy "])
    parent, pgirl, parent_noun = rng.choices(GROWN_UPS, GROWN_UP_WEIGHTS)[0]
    grand, ggirl = rng.choice([("Grandma", True), ("Grandpa", False)])
    old = rng.choice(WORDS["old_person"])
    called = rng.choice(["named", "named", "called"])
    env = {"H": hero, "kind": species, "hero": f"a {size}{species} {called} {hero}", "plainhero": f"a {size}{species}"}
    env |= {"F": friend, "fkind": fspecies, "friend": f"a {fspecies} {called} {friend}"}
    env |= {"P": "\x01", "parent": parent, "parent_noun": parent_noun, "GP": grand}
    env |= {
        "an_old": f"a {old}",
        "the_old": f"the {old.removeprefix('tired ')}",
        "sib": "sister" if girl else "brother",
    }
    env |= pronouns(girl) | pronouns(fgirl, "f") | pronouns(pgirl, "p") | pronouns(ggirl, "g")
    return env


SPOKEN = "said|asked|called|cried|shouted|told|added|whispered|thought|wondered|yelled|answered|replied"


def polish(text: str, env: dict[str, str], own_parent: bool) -> str:
    """Put in the grown-up ("Mom" in speech, "his mom" or "Mom" outside), then fix capitals and a/an."""
    out: list[str] = []
    quoted = False
    for c in text:
        quoted ^= c == '"'
        if c == "\x01":
            own = own_parent and not quoted
            c = f"{env['his']} {env['parent_noun']}" if own else env["parent"]
            if "".join(out[-3:])[-3:] in ('." ', '!" ', '?" '):  # a new sentence after speech
                c = c[0].upper() + c[1:]
        out.append(c)
    text = re.sub(r"[ ]+", " ", "".join(out))
    text = re.sub(r" *\n *", "\n", text)
    text = re.sub(r'([.?!])[,!]"', r'\1"', text)
    text = re.sub(rf'(\w)"(?= [\w ]{{0,24}}\b(?:{SPOKEN})\b)', r'\1,"', text)
    text = re.sub(r'( \w+)"(?= [A-Z]|\n|$)', r'\1."', text)
    text = re.sub(r'(^|\n|[.!?] )("?)([a-z])', lambda m: m[1] + m[2] + m[3].upper(), text)
    text = re.sub(r"\b([Aa])n? (?=[aeiouAEIOU])(?!one\b|uni|use)", r"\1n ", text)
    return re.sub(r"\b([Aa])n (?=[^aeiouAEIOU])", r"\1 ", text).strip()


# Other words for common ones. A story uses them more or less often, as a person would.
SYNONYMS: list[tuple[str, list[str]]] = [
    (r"\bbig(?= [a-z])(?! (?:brother|sister|enough))", ["large", "huge", "great big"]),
    (
        r"\blittle (?=girl|boy|bird|house|mouse|box|dog|cat|tree|garden|village|town|friend|frog|bear)",
        ["small ", "tiny "],
    ),
    (r"(?<=was )happy\b|(?<=so )happy\b|(?<=very )happy\b", ["glad", "cheerful", "pleased"]),
    (r"(?<=was )sad\b|(?<=so )sad\b|(?<=very )sad\b|(?<=felt )sad\b", ["unhappy", "upset", "gloomy"]),
    (r"\bscared\b", ["frightened"]),
    (r"\bvery (?=[a-z])", ["really ", "so "]),
    (r"\bbegan to\b", ["started to"]),
    (r"\bshouted\b", ["yelled", "called out"]),
    (r"\blooked at\b", ["stared at", "gazed at"]),
    (r"\bsmiled\b(?! so)", ["grinned", "beamed"]),
    (r"\blaughed\b(?! (?:at|for|so))", ["giggled", "chuckled"]),
    (r"\bwalked (?=to|along|home|back)", ["went ", "strolled ", "wandered "]),
    (r"\bran (?=to|home|outside|back|into)", ["hurried ", "rushed ", "dashed "]),
    (r"\bbeautiful\b|\bpretty\b(?! (?:big|good))", ["lovely", "wonderful"]),
    (r"\ba nice\b", ["a lovely", "a good", "a pleasant"]),
    (r"(?<=[.] )Then (?=[a-z]+ )", ["And then ", "After that, ", "Soon "]),
    (r"\ba lot of\b", ["lots of", "plenty of"]),
    (r"\blooked for\b", ["searched for"]),
    (r"\bsaw (?=a |an |some)", ["noticed ", "spotted "]),
    (r"\bfound (?=a |an |some)", ["discovered ", "came across "]),
    (r"\bchildren\b", ["kids"]),
    (r"\bat once\b", ["right away"]),
    (r"\bat last\b", ["finally", "in the end"]),
    (r"\bhugged\b", ["squeezed", "embraced"]),
    (r"\btired\b", ["sleepy", "worn out"]),
    (r"(?<!so )(?<!too )(?<!very )\bsmall (?=[a-z])(?!and|but|or|to|that)", ["little ", "tiny "]),
    (r"\bjumped with joy\b", ["clapped with joy", "danced with joy"]),
    (r"\bthe next day\b", ["the following day"]),
]
IN_SPEECH = [
    (r"\b([Dd])o not\b", r"\1on't"), (r"\b([Cc])annot\b", r"\1an't"), (r"\bI am (?=\w)", "I'm "), (r"\b([Ii])t is (?=\w)", r"\1t's "),
    (r"\bI will (?=\w)", "I'll "), (r"\b([Yy])ou are (?=\w)", r"\1ou're "), (r"\b([Ww])e are (?=\w)", r"\1e're "),
    (r"\b([Tt])hat is (?=\w)", r"\1hat's "), (r"\b([Ww])hat is (?=\w)", r"\1hat's "), (r"\b([Ll])et us\b", r"\1et's"),
    (r"\b([Ww])ill not\b", r"\1on't"), (r"\b([Ii])s not\b", r"\1sn't"), (r"\b([Dd])id not\b", r"\1idn't"),
]  # fmt: skip
IN_TELLING = [(r"\b(did|could|was|were|had|would|does) not\b", r"\1n't")]


def vary(text: str, rng: random.Random) -> str:
    """The same story in a slightly different voice: other words, and the short forms of speech or none."""
    strength = rng.choice([0.0, 0.15, 0.3, 0.5])
    for pattern, others in SYNONYMS:

        def other(match: re.Match[str], others: list[str] = others) -> str:
            return rng.choice(others) if rng.random() < strength else match[0]

        text = re.sub(pattern, other, text)
    speech, telling = rng.random() < 0.45, rng.random() < 0.3
    parts = text.split('"')
    for i, part in enumerate(parts):
        for pattern, short in (IN_SPEECH if i % 2 else IN_TELLING) if (speech if i % 2 else telling) else ():
            parts[i] = part = re.sub(pattern, short, part)
    text = '"'.join(parts)
    text = re.sub(r"\b([Aa])n? (?=[aeiouAEIOU])(?!one\b|uni|use)", r"\1n ", text)
    return re.sub(r"\b([Aa])n (?=[^aeiouAEIOU])", r"\1 ", text)


def make_story(seed: int, plots: list[tuple[str, str, str]]) -> Story:
    """The story of this seed."""
    rng = random.Random(seed)
    plot, kind, body = rng.choice(plots)
    if kind == "any":
        kind = rng.choice(["child", "child", "animal"])
    env = cast(rng, "animal" if kind in ("animal", "fixed") else "child")
    expander = Expander(rng, env)
    intro = ""
    if kind in ("child", "animal") and not body.startswith("{_intro}"):
        first_f = body.find("{F}")
        told = body[:first_f].count('"') % 2 == 0  # the friend first appears outside speech
        if kind == "animal" or rng.random() < 0.55:
            intro = "{_intro} {_like}"
        if first_f >= 0 and not any(x in body for x in ("{friend}", " named {F}", "{F}, {his} friend", "I am {F}")):
            if told and rng.random() < 0.6:
                by = "{his} friend {F}" if rng.random() < 0.6 or kind == "child" else "{F} the {fkind}"
                body = body.replace("{F}", by, 1)
            elif not told or rng.random() < 0.5:
                intro += " {_friend_intro}" if intro else "[{H} had a friend named {F}.|{H} and {F} were friends.]"
        glue = rng.choice([" ", "\n"]) if intro else ""
        body = intro.strip() + glue + body
    if kind in ("child", "animal", "fixed") and rng.random() < 0.25:
        body += " {_epilogue}"
    text = polish(expander.expand(body), env, own_parent=rng.random() < 0.4)
    text = vary(text, rng)
    about = [env[x] for x in ("toy", "food", "place", "pal", "color") if x in env and env[x] in text]
    about += [env["kind"]] if kind == "animal" else []
    return Story(text, plot, rng.sample(about, min(len(about), rng.randint(1, 3))), env["H"], env["kind"])


def make_dialogue(seed: int, dialogues: list[tuple[str, list[tuple[str, str]]]]) -> list[dict[str, str]]:
    """The dialogue of this seed, as chat messages."""
    rng = random.Random(seed)
    _, turns = rng.choice(dialogues)
    env = cast(rng, "child")
    thing, beast, dweller = rng.choice(list(COLORS_OF)), rng.choice(list(SOUNDS)), rng.choice(list(HOMES))
    env["opp_a"], env["opp_b"] = rng.choice(OPPOSITES)[:: rng.choice([1, -1])]
    env |= {"a_thing": thing, "a_beast": beast, "a_dweller": dweller}
    color, sound, home = COLORS_OF[thing], SOUNDS[beast], HOMES[dweller]
    cap = thing[0].upper() + thing[1:]
    rules = {
        "_thing_color": f"[{cap} is {color}.|It is {color}.|{color.capitalize()}! {cap} is {color}.]",
        "_beast_sound": f'[{beast.capitalize()} says, "{sound}!"|It says, "{sound}! {sound}!"|"{sound}!" says the '
        f"{beast.split()[1]}.]",
        "_dweller_home": f"[{dweller.capitalize()} lives {home}.|It lives {home}.|You can find it {home}.]",
    }
    expander = Expander(rng, env)
    messages = []
    for role, text in turns:
        for key, rule in rules.items():
            text = text.replace("{" + key + "}", rule)
        for key, table in (("wx", WEATHER_ANSWER), ("sq", SEASON_ANSWER)):
            answer = "{_wx_answer}" if key == "wx" else "{_season_answer}"
            if answer in text:
                text = text.replace(answer, next(v for k, v in table.items() if k in env[key]))
        if "{_pet_food}" in text:
            pet = env["petq"]
            text = text.replace("{_pet_food}", f"[A {pet} eats|It eats] {PET_FOOD[pet]}. [Do not forget the water!|]")
        messages.append({"role": role, "content": polish(expander.expand(text), env, own_parent=False)})
    return messages


if __name__ == "__main__":
    ALL_PLOTS = load_plots()
    for number in range(6):
        print(make_story(number, ALL_PLOTS), "\n")
