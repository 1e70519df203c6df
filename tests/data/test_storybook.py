"""The storybook: pure in seed and number, never the same story twice, English, worth learning."""

import random
import re
import subprocess
import sys
from collections import Counter
from importlib.resources import files
from itertools import pairwise

import pytest

from pvml.data.storybook import PHRASES, plots, stories, story
from pvml.data.storybook.cast import ROLES, coined_name, with_article
from pvml.data.storybook.template import Plot, expand, parse_plot
from pvml.data.storybook.words import TITLES
from pvml.errors import PvmlError

N_SAMPLE = 997  # each takes a millisecond here, where every annotation is checked


@pytest.fixture(scope="module")
def book() -> list[str]:
    return list(stories(seed=5, n=N_SAMPLE))


def told(plot: Plot, *random_numbers: float) -> str:
    numbers = iter(random_numbers)
    out: list[str] = []
    expand(plot.parts, lambda: next(numbers), out)
    return "".join(out)


# By hand


def test_choices_nest() -> None:
    """One number makes each choice, outer before inner, and no number is drawn in vain."""
    plot = parse_plot("p", "hero: child\n\nA [red|green [hat|coat]|] day.", {})
    assert told(plot, 0.0) == "A red day."
    assert told(plot, 0.4, 0.9) == "A green coat day."
    assert told(plot, 0.99) == "A  day."


def test_header_phrases_and_paragraphs() -> None:
    """Roles keep their order, phrases are put in, line breaks are spaces, blank lines stay."""
    plot = parse_plot("p", "b: child\na: = on | in it\n\n<hi>\nthere,\n\n{b}.", {"hi": "[Ho]"})
    assert plot.roles == (("b", "child"), ("a", ("on", "in it")))
    assert told(plot, 0.5) == "Ho there,\n\n{b}."


def test_articles() -> None:
    """An before a vowel, a before the rest."""
    assert [with_article(w) for w in ("owl", "red owl")] == ["an owl", "a red owl"]


# Laws


def test_story_is_a_function_of_seed_and_index(book: list[str]) -> None:
    """Story i is the same alone, in any order, and however many are asked for."""
    for index in (709, 3, 0, 996):
        assert story(5, index) == book[index]
    assert list(stories(seed=5, n=7)) == book[:7]


def test_seeds_differ(book: list[str]) -> None:
    """Another seed is another book: no story of the one is in the other."""
    assert not set(book) & set(stories(seed=6, n=101))


def test_no_two_stories_are_equal() -> None:
    """The first 100,000 stories of the default book are all different."""
    count = (
        "from pvml.data.storybook import stories; print(len(set(map(hash, stories(0, 100_000)))))"
    )
    command = [sys.executable, "-c", count]  # its own process: here each annotation is checked
    assert subprocess.check_output(command, text=True).strip() == "100000"


def test_lengths(book: list[str]) -> None:
    """Every story has several paragraphs and between 60 and 250 words."""
    assert all(60 <= len(text.split()) <= 250 and text.count("\n\n") >= 2 for text in book)


def test_vocabulary(book: list[str]) -> None:
    """At least 800 different words, not counting names."""
    words = {word for text in book for word in re.findall(r"(?<![A-Za-z'])[a-z]+", text)}
    assert len(words) >= 800


def test_every_plot_is_told(book: list[str]) -> None:
    """There are at least 20 plots, each with a sentence of its own, told about equally often."""
    assert len(plots()) >= 20
    sentences = [own_sentence(plot) for plot in plots()]
    told_by = [[i for i, text in enumerate(book) if sentence in text] for sentence in sentences]
    assert sorted(i for found in told_by for i in found) == list(range(len(book)))
    fair = len(book) / len(plots())
    assert all(fair / 2 < len(found) < fair * 2 for found in told_by)


def own_sentence(plot: Plot) -> str:
    """The longest piece of a plot that every telling has word for word."""
    fixed = (part for part in plot.parts if isinstance(part, str))
    return max((piece for part in fixed for piece in re.split(r"{[^}]*}", part)), key=len)


def test_words_come_back(book: list[str]) -> None:
    """What a story says again, word for word, is its own: few other stories say it at all.

    This is what attention can copy and counting cannot know.
    """
    phrases = [Counter(words_of(text)) for text in book]
    everywhere = Counter(phrase for counted in phrases for phrase in counted)
    own = [
        sum(n - 1 for phrase, n in counted.items() if n > 1 and everywhere[phrase] <= 3)
        for counted in phrases
    ]
    assert sum(n >= 3 for n in own) > 0.95 * len(own)
    assert sum(own) > 10 * len(own)


def words_of(text: str) -> list[str]:
    """Every two neighbouring words, punctuation aside."""
    return [" ".join(pair) for pair in pairwise(re.findall(r"[A-Za-z']+", text))]


def test_names_are_many() -> None:
    """Of 2,000 coined names more than 1,500 are different, and none comes up 10 times."""
    draw = random.Random(0).random
    names = Counter(coined_name(draw) for _ in range(2000))
    assert len(names) > 1500
    assert names.most_common(1)[0][1] < 10


# English


def test_typography(book: list[str]) -> None:
    """No markup left, no stray space, quotation marks in pairs, a blank line between paragraphs."""
    for text in book:
        assert not re.search(r"[\[\]{}<>|_]|  | [,.!?]|,,|[.!?][a-z]|\n\n\n| \n|\n ", text), text
        for paragraph in text.split("\n\n"):
            assert "\n" not in paragraph and paragraph.count('"') % 2 == 0, paragraph
            assert re.match(r'"?[A-Z]', paragraph) and re.search(r'[.!?]"?$', paragraph), paragraph


def test_sentences_begin_with_capitals(book: list[str]) -> None:
    """After a full stop, and where speech begins, stands a capital letter."""
    for text in book:
        assert not re.search(r'(?<!\.\.)[.!?] "?[a-z]', text), text
        assert not re.search(r'(?<!,) "[a-z]', opening_quotes(text)), text


def opening_quotes(text: str) -> str:
    """The text without its closing quotation marks."""
    return re.sub(r'"([^"]*)"', r'"\1', text)


def test_articles_agree(book: list[str]) -> None:
    """ "An" stands before a vowel and nowhere else."""
    for text in book:
        assert not re.search(r"\b[Aa] [aeiouAEIOU]|\b[Aa]n [^aeiouAEIOU]", text), text


def test_no_small_word_is_doubled(book: list[str]) -> None:
    """No "the the", "and and", "said said"."""
    for text in book:
        assert not re.search(r"\b(the|an?|and|to|of|in|is|was|said|it|my) \1\b", text), text


def test_pronouns_agree(book: list[str]) -> None:
    """A girl is she, a boy is he, and one character is one of them throughout."""
    pattern = r"\b(girl|boy) (?:named|called) (\w+)\. (She|Her|He|His)\b"
    found = [match for text in book for match in re.findall(pattern, text)]
    assert len(found) > 50
    assert all((kind == "girl") == (word in ("She", "Her")) for kind, _, word in found)
    for make in ("child", "new_child", "elder", "animal", "mother"):
        for i in range(97):
            who = ROLES[make](random.Random(i).random)
            forms = [who.he, who.him, who.his, who.himself, who.He, who.His]  # type: ignore[attr-defined]
            she = ["she", "her", "her", "herself", "She", "Her"]
            assert forms in (she, ["he", "him", "his", "himself", "He", "His"])
            titles = TITLES["she" if forms == she else "he"]
            assert make != "elder" or who.split()[0] in titles


def test_roles_are_all_cast_and_all_used() -> None:
    """Every plot uses each role that it casts, and no form that a role lacks."""
    folder = files("pvml.data.storybook") / "plots"
    for plot in plots():
        text = (folder / f"{plot.name}.txt").read_text("utf-8").partition("\n\n")[2]
        text = re.sub(r"<(\w+)>", lambda found: PHRASES[found[1]], text)
        used = set(re.findall(r"{(\w+)", text))
        assert used == {role for role, _ in plot.roles}, plot.name


# Contracts


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hero: child\n\nA [red day.", "never closed"),
        ("hero: child\n\nA red] day.", "outside brackets"),
        ("hero child\n\nA day.", "got 'hero child'"),
        ("hero: child\n\n<once> A day.", "unknown phrase <once>"),
    ],
)
def test_a_plot_with_a_mistake_is_refused(source: str, message: str) -> None:
    """The error names the plot and the mistake."""
    with pytest.raises(PvmlError, match=f"plot p: .*{message}"):
        parse_plot("p", source, {})


@pytest.mark.parametrize(("seed", "index"), [(-1, 0), (0, -1), (0, 2**64)])
def test_numbers_out_of_range_are_refused(seed: int, index: int) -> None:
    """A negative seed or number would be another's story; the error names both."""
    with pytest.raises(PvmlError, match=f"got seed {seed}, index {index}"):
        story(seed, index)


def test_a_negative_count_is_refused() -> None:
    """`stories` raises at the call, not at the first story."""
    with pytest.raises(PvmlError, match="got -1"):
        stories(n=-1)
