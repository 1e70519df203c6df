"""Who and what a story is about: each role is drawn once and knows its own forms.

A role is a str, so `{hero}` prints it, and carries what else the text may ask of it: `{hero.his}`,
`{gift.a}`, `{noise.cap}`. The word lists live in `words`, the texts in the plots.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from pvml.data.storybook import words

Random = Callable[[], float]
"""A source of numbers in [0, 1)."""
Item = TypeVar("Item")


def pick(items: Sequence[Item], random: Random) -> Item:
    """One of `items`, each as likely as the others."""
    return items[int(random() * len(items))]


class Word(str):
    """Some words. `key` is what no two roles of a story share."""

    @property
    def cap(self) -> str:
        """The words as they begin a sentence."""
        return self[0].upper() + self[1:]

    @property
    def key(self) -> str:
        return self


class Character(Word):
    """A name with its kind ("girl", "fox") and the pronouns that agree with it."""

    kind: str
    he: str
    him: str
    his: str
    himself: str
    He: str
    His: str

    @property
    def a_kind(self) -> str:
        """The kind with its article."""
        return with_article(self.kind)


class _He(Character):
    he, him, his, himself, He, His = "he", "him", "his", "himself", "He", "His"


class _She(Character):
    he, him, his, himself, He, His = "she", "her", "her", "herself", "She", "Her"


class Thing(Word):
    """A thing as it is always called: perhaps an adjective, perhaps a colour, and a noun."""

    adjective: str
    noun: Word

    @property
    def a(self) -> str:
        """The thing with its article."""
        return with_article(self)

    @property
    def A(self) -> str:
        """The thing with its article, at the beginning of a sentence."""
        return "An " + self if self[0] in _VOWELS else "A " + self

    @property
    def key(self) -> str:
        return self.noun


_VOWELS = frozenset("aeiouAEIOU")


def with_article(words: str) -> str:
    """`words` after "a" or "an". No word in `words` starts with a silent h or a spoken y."""
    return "an " + words if words[0] in _VOWELS else "a " + words


def coined_name(random: Random) -> str:
    """A name that hardly any other story has: two to four syllables, spelled in several tokens."""
    name = pick(words.NAME_STARTS, random)
    if random() < 0.5:
        name += pick(words.NAME_MIDDLES, random)
    return name + pick(words.NAME_ENDS, random)


def _character(name: str, kind: str, she: bool) -> Character:
    character = _She(name) if she else _He(name)
    character.kind = kind
    return character


def child(random: Random) -> Character:
    """A girl or a boy, with a common or a coined name."""
    she = random() < 0.5
    common = random() < 0.4
    name = pick(words.GIRLS if she else words.BOYS, random) if common else coined_name(random)
    return _character(name, "girl" if she else "boy", she)


def new_child(random: Random) -> Character:
    """A girl or a boy with a name so long that others stumble over it."""
    she = random() < 0.5
    middles = words.NAME_MIDDLES
    name = pick(words.NAME_STARTS, random) + pick(middles, random) + pick(middles, random)
    return _character(name + pick(words.NAME_ENDS, random), "girl" if she else "boy", she)


def _animal_of(kinds: Sequence[str]) -> Callable[[Random], Character]:
    def animal(random: Random) -> Character:
        name = pick(words.PET_NAMES, random) if random() < 0.4 else coined_name(random)
        return _character(name, pick(kinds, random), random() < 0.5)

    return animal


animal = _animal_of(words.ANIMALS)


def someone(random: Random) -> Character:
    """A child or an animal."""
    return child(random) if random() < 0.5 else animal(random)


def mother(random: Random) -> Character:
    """An animal with a family."""
    return _character(coined_name(random), pick(words.ANIMALS, random), True)


def elder(random: Random) -> Character:
    """A grown-up with a title: Grandma Polly, Mr. Tandowick."""
    she = random() < 0.5
    title = pick(words.TITLES["she" if she else "he"], random)
    given = words.GIRLS if she else words.BOYS
    name = pick(given, random) if random() < 0.2 else coined_name(random)
    return _character(f"{title} {name}", pick(words.JOBS, random), she)


def _thing_of(
    nouns: Sequence[str], adjectives: Sequence[str], colours: Sequence[str]
) -> Callable[[Random], Thing]:
    """Draws things that nearly always carry an adjective and, where given, a colour."""

    def thing(random: Random) -> Thing:
        noun = pick(nouns, random)
        adjective = pick(adjectives, random)
        described = f"{adjective} {noun}"
        if colours:
            colour, form = pick(colours, random), random()
            if form < 0.4:
                described = f"{adjective} {colour} {noun}"
            elif form < 0.7:
                adjective, described = colour, f"{colour} {noun}"
        drawn = Thing(described)
        drawn.adjective, drawn.noun = adjective, Word(noun)
        return drawn

    return thing


def place(random: Random) -> Word:
    """A place with a name of its own: Tandowick Hill, Windy Lane."""
    named = coined_name(random) if random() < 0.5 else pick(words.PLACE_TRAITS, random)
    return Word(f"{named} {pick(words.PLACE_FEATURES, random)}")


def spot(random: Random) -> Word:
    """Where to hide or to look: under the blue chair."""
    where, colour = pick(("under", "behind", "beside", "near"), random), pick(words.COLOURS, random)
    return Word(f"{where} the {colour} {pick(words.FURNITURE, random)}")


def landmark(random: Random) -> Word:
    """Something to find one's way by: the crooked windmill."""
    return Word(f"the {pick(words.LANDMARK_TRAITS, random)} {pick(words.LANDMARKS, random)}")


def scary(random: Random) -> Word:
    """Something to be afraid of: the tall grey goose."""
    look, colour = pick(words.CREATURE_LOOKS, random), pick(words.COLOURS, random)
    return Word(f"the {look} {colour} {pick(words.SCARY, random)}")


def song(random: Random) -> Word:
    """A refrain with a rhyme: Tumble fiddle dum, bang the big drum!"""
    tails, lines = pick(words.SONG_RHYMES, random)
    first, second = pick(words.SONG_HEADS, random), pick(words.SONG_HEADS, random).lower()
    return Word(f"{first} {second} {pick(tails, random)}, {pick(lines, random)}!")


def noise(random: Random) -> Word:
    """Three sounds in a row: scritch, thump, plop."""
    return Word(", ".join(pick(words.NOISES, random) for _ in range(3)))


def password(random: Random) -> Word:
    """Three words that nobody would guess."""
    return Word(" ".join(pick(words.PASSWORD_WORDS, random) for _ in range(3)))


def boat(random: Random) -> Word:
    """A ship's name: Silver Swan."""
    colour = pick(words.COLOURS, random).capitalize()
    return Word(f"{colour} {pick(words.BOAT_NOUNS, random)}")


def clock(random: Random) -> Word:
    """A day and an hour: on Friday at five o'clock."""
    return Word(f"on {pick(words.WEEKDAYS, random)} at {pick(words.HOURS, random)} o'clock")


ROLES: dict[str, Callable[[Random], Word]] = {
    "animal": animal,
    "boat": boat,
    "child": child,
    "clock": clock,
    "clothes": _thing_of(words.CLOTHES, words.LOOKS, words.COLOURS),
    "doll": _animal_of(words.DOLLS),
    "door": _thing_of(words.DOORS, words.LOOKS, words.COLOURS),
    "elder": elder,
    "find": _thing_of(words.FINDS, words.LOOKS, words.COLOURS),
    "fish": _thing_of(words.FISH, words.CREATURE_LOOKS, words.COLOURS),
    "food": _thing_of(words.FOODS, words.TASTES, ()),
    "giant": _thing_of(words.BIG_THINGS, words.LOOKS, words.COLOURS),
    "landmark": landmark,
    "mother": mother,
    "mount": _animal_of(words.MOUNTS),
    "name": lambda random: Word(coined_name(random)),
    "new_child": new_child,
    "noise": noise,
    "paintable": _thing_of(words.PAINTABLES, words.CREATURE_LOOKS, words.COLOURS),
    "password": password,
    "pet": _animal_of(words.PETS),
    "place": place,
    "plant": _thing_of(words.PLANTS, words.PLANT_LOOKS, words.COLOURS),
    "pot": _thing_of(words.POTS, words.LOOKS, words.COLOURS),
    "scary": scary,
    "someone": someone,
    "song": song,
    "spot": spot,
    "tag": _thing_of(words.TAGS, words.LOOKS, words.COLOURS),
    "tiny": _animal_of(words.TINY_ANIMALS),
    "tool": _thing_of(words.TOOLS, words.LOOKS, words.COLOURS),
    "toy": _thing_of(words.TOYS, words.LOOKS, words.COLOURS),
    "tree": _thing_of([f"{tree} tree" for tree in words.TREES], words.LOOKS, ()),
    "vegetable": _thing_of(words.VEGETABLES, words.TASTES, ()),
}
"""What a plot's header may ask for."""
