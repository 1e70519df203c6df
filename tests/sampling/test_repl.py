"""The REPL without a terminal: lines in, text out, settings changed or left as they were."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pvml.errors import PvmlError
from pvml.sampling.args import SamplingArgs
from pvml.sampling.repl import COMMANDS, START, Repl, Voice, help_lines
from pvml.sampling.settings import Settings


def voice(word: str) -> Voice:
    """A model that answers with its settings; `nope` is none, and it fails after `fail`."""
    if word == "nope":
        raise PvmlError("MODEL 'nope' is not known")

    def write(prompt: str, settings: Settings) -> Iterator[str]:
        yield prompt
        if prompt == "fail":
            raise PvmlError("nothing can be drawn")
        yield f" <{word}: {settings.told()}>\n"

    return Voice(word, "7 parameters, 1 layer, d_model 3", write)


@pytest.fixture
def repl() -> Repl:
    return Repl(voice, "runs/x")


def said(repl: Repl, *lines: str) -> str:
    """What the last of the lines brings about."""
    return ["".join(repl.answer(line)) for line in lines][-1]


def test_the_greeting_is_the_seeds(repl: Repl) -> None:
    """Run, size, settings, and how to go on; temperature 0.7, top-p 0.95 and 50 tokens at first."""
    assert repl.greeting() == (
        "\nruns/x\n"
        "  7 parameters, 1 layer, d_model 3\n"
        "  temp 0.7, top_p 0.95, 50 tokens\n"
        "  a prompt generates, :help for commands, :q to quit\n\n"
    )


def test_the_seeds_conversation(repl: Repl) -> None:
    """Each setting is echoed, a prompt generates, and :temp after :greedy brings top-p back."""
    assert said(repl, "Once") == "Once <runs/x: temp 0.7, top_p 0.95, 50 tokens>\n\n"
    assert said(repl, ":greedy") == "  greedy, 50 tokens\n"
    assert said(repl, "Once") == "Once <runs/x: greedy, 50 tokens>\n\n"
    assert said(repl, ":temp 1.4") == "  temp 1.4, top_p 0.95, 50 tokens\n"
    assert said(repl, ":len 60") == "  temp 1.4, top_p 0.95, 60 tokens\n"
    assert not repl.ended
    assert said(repl, ":q") == ""
    assert repl.ended


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([":topk 40"], "temp 0.7, top_k 40, 50 tokens|(top_p 0.95 is cleared"),
        ([":topk 40", ":topp 0.5"], "temp 0.7, top_p 0.5, 50 tokens|(top_k 40 is cleared"),
        ([":minp 0.1"], "temp 0.7, min_p 0.1, 50 tokens|(top_p 0.95 is cleared"),
        ([":topk 0"], "temp 0.7, top_p 0.95, 50 tokens"),
        ([":topp off"], "temp 0.7, 50 tokens"),
        ([":topp 0", ":topk 3"], "temp 0.7, top_k 3, 50 tokens"),
        ([":temp 0"], "greedy, 50 tokens"),
        ([":greedy", ":topk 5"], "greedy, 50 tokens|(greedy has no use|(top_p 0.95 is cleared"),
        ([":greedy", ":topk 5", ":temp 1"], "temp 1, top_k 5, 50 tokens"),
        ([":seed 3"], "temp 0.7, top_p 0.95, 50 tokens, seed 3"),
        ([":seed 3", ":seed off"], "temp 0.7, top_p 0.95, 50 tokens"),
        ([":greedy", ":seed 3"], "greedy, 50 tokens|(greedy has no use for it"),
        ([":penalty 1.5"], "temp 0.7, top_p 0.95, penalty 1.5, 50 tokens"),
        ([":penalty frequency 1", ":penalty off"], "temp 0.7, top_p 0.95, 50 tokens"),
        ([":penalty repetition 1.2"], "temp 0.7, top_p 0.95, repetition penalty 1.2, 50 tokens"),
        ([":penalty ngram 3"], "temp 0.7, top_p 0.95, no 3 tokens twice, 50 tokens"),
        ([":stop The End"], "temp 0.7, top_p 0.95, 50 tokens, stop 'The End'"),
        ([r":stop \n", r":stop \n"], r"temp 0.7, top_p 0.95, 50 tokens, stop '\n'"),
        ([":stop x", ":stop"], "temp 0.7, top_p 0.95, 50 tokens"),
        ([":explain"], "temp 0.7, top_p 0.95, 50 tokens, explained"),
        ([":explain", ":explain"], "temp 0.7, top_p 0.95, 50 tokens"),
        ([":explain off"], "temp 0.7, top_p 0.95, 50 tokens"),
        ([":beams 3"], "3 beams, 50 tokens"),
        ([":beams 3", ":beams 0"], "temp 0.7, top_p 0.95, 50 tokens"),
        ([":beams 3", ":beams off"], "temp 0.7, top_p 0.95, 50 tokens"),
        ([":beams 3", ":greedy"], "greedy, 50 tokens|(beams are off)"),
        ([":beams 3", ":seed 1"], "3 beams, 50 tokens|(a beam search has no use for it"),
        ([":beams 3", ":len 4"], "3 beams, 4 tokens"),
        ([":TEMP   2 "], "temp 2, top_p 0.95, 50 tokens"),
        ([":temp 2", ":beams 3", ":explain", ":reset"], "temp 0.7, top_p 0.95, 50 tokens"),
    ],
)
def test_a_setting_is_echoed(repl: Repl, lines: list[str], told: str) -> None:
    """Each command changes what it names, clears what excludes it, and says both."""
    answer = said(repl, *lines).splitlines()
    expected = told.split("|")

    assert answer[0] == f"  {expected[0]}"
    assert len(answer) == len(expected)
    for line, note in zip(answer[1:], expected[1:], strict=True):
        assert line.startswith(f"  {note}")
    assert repl.settings.told() == expected[0]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            ":topp 2",
            ":topp takes a probability from 0 to 1 (0 is no limit), got '2': it stays 0.95",
        ),
        (
            ":temp x",
            ":temp takes a finite number of at least 0 (0 is greedy), got 'x': it stays 0.7",
        ),
        (":temp", "(0 is greedy), got nothing: it stays 0.7"),
        (":temp nan", "got 'nan': it stays 0.7"),
        (":temp off", "got 'off': it stays 0.7"),
        (
            ":topk -1",
            ":topk takes a whole number of at least 0 (0 is no limit), got '-1': it stays 0",
        ),
        (":topk 2.5", "got '2.5': it stays 0"),
        (":minp 1 2", "got '1 2': it stays 0"),
        (":len 0", ":len takes a whole number of at least 1, got '0': it stays 50"),
        (":len " + "9" * 5000, f"got '{'9' * 40}...': it stays 50"),
        (":seed -1", "or off for a new text every time, got '-1': it stays off"),
        (
            ":penalty inf",
            ":penalty takes a finite number (0 is off), or one of frequency X, repetition X, ngram",
        ),
        (":penalty repetition 0", ":penalty repetition takes a finite number above 0 (1 is off)"),
        (":penalty ngram x", ":penalty ngram takes a whole number of at least 0"),
        (":beams -1", ":beams takes a whole number from 0 to 512 (0 draws), got '-1': it stays 0"),
        (":beams two", "got 'two': it stays 0"),
        (":beams 513", "a whole number from 0 to 512 (0 draws), got '513': it stays 0"),
        (":stop \udcff", r"a tuple of texts of whole characters, not empty, got '\udcff'"),
        (":greedy 1", ":greedy takes no value, got '1'"),
        (":explain maybe", ":explain takes on, off or nothing, got 'maybe'"),
        (":q now", ":q takes no value, got 'now'"),
        (":tmep 1", "there is no command :tmep; did you mean :temp?"),
        (":pen 1", "did you mean :penalty?"),
        (":xyz", "there is no command :xyz; there are :temp :greedy :topk :topp"),
        (":", "there is no command :; there are :temp"),
        (":model nope", "MODEL 'nope' is not known\n  (the model is still runs/x)"),
    ],
)
def test_a_wrong_line_changes_nothing(repl: Repl, line: str, told: str) -> None:
    """What is allowed is said, the settings are as they were, and the next prompt is answered."""
    assert told in said(repl, line)
    assert repl.settings == START
    assert not repl.ended
    assert said(repl, "on") == "on <runs/x: temp 0.7, top_p 0.95, 50 tokens>\n\n"


def test_a_stop_string_in_quotes_keeps_its_blanks(repl: Repl) -> None:
    """Quotes are taken off, unless there is nothing between them."""
    said(repl, ':stop " the"')
    said(repl, ":stop ''")
    assert repl.settings.sampling.stop == (" the", "''")


def test_greedy_after_beams_tells_what_it_does_not_use(repl: Repl) -> None:
    """A limit that ends a beam search and finds the temperature at 0 is told both."""
    for line in (":greedy", ":beams 2"):
        said(repl, line)
    told = said(repl, ":topk 4")
    assert "(beams are off)" in told and "(greedy has no use for it; :temp X draws" in told


def test_a_prompt_is_taken_as_it_is(repl: Repl) -> None:
    """Blanks around a prompt are part of it, and one before a `:` makes it a prompt."""
    assert said(repl, "  two  ").startswith("  two   <")
    assert said(repl, " :q").startswith(" :q <")
    assert said(repl, "  ") == said(repl, "") == ""
    assert not repl.ended


def test_a_prompt_that_fails_is_told(repl: Repl) -> None:
    """The error stands on a line of its own, and the session goes on."""
    assert said(repl, "fail") == "fail\n  nothing can be drawn\n\n"
    assert said(repl, "on").startswith("on <")


def test_another_model_answers_with_the_same_settings(repl: Repl) -> None:
    """:model introduces it; alone it introduces the one that there is."""
    assert said(repl, ":greedy", ":model y z") == (
        "  y z\n  7 parameters, 1 layer, d_model 3\n  greedy, 50 tokens\n"
    )
    assert said(repl, ":model").startswith("  y z\n")
    assert said(repl, "Once") == "Once <y z: greedy, 50 tokens>\n\n"


def test_reset_is_to_what_it_began_with() -> None:
    """Settings given at the start are those that :reset brings back."""
    start = replace(START, sampling=SamplingArgs(top_k=2), beams=4, n_best=3)
    repl = Repl(voice, "x", start)

    assert said(repl, ":beams 2") == "  2 beams, best 2, 50 tokens\n"
    assert said(repl, ":reset") == "  4 beams, best 3, 50 tokens\n"
    assert repl.settings == start


def test_help_lists_every_command(repl: Repl) -> None:
    """Each command has its line, in fewer than 100 columns, and quitting has three words."""
    lines = help_lines()

    assert [line.split()[0] for line in lines[: len(COMMANDS)]] == [f":{n}" for n in COMMANDS]
    assert said(repl, ":help") == "".join(f"  {line}\n" for line in lines)
    assert max(map(len, lines)) < 98
    for word in (":quit", ":exit"):
        other = Repl(voice, "x")
        assert said(other, word) == "" and other.ended


def test_no_torch_is_needed() -> None:
    """Settings and REPL are imported without torch."""
    code = "import sys, pvml.sampling.repl, pvml.cli.repl; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("False\n", "")
