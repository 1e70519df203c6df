"""What `python -m pvml.sampling.beams` prints: the seed's shapes, its texts, its trees."""

import re
import runpy
import sys

import pytest

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.demos import beams
from pvml.demos.subject import Subject
from pvml.modules.transformer import Transformer

SHAPES = """\
prompt 'When I was'

start        logprob_sums (1,)    tokens (1, 4)
generate(3)  logprob_sums (3,)    tokens (3, 5)
filter(3)    keep (3, 5)          terminated (0, 5)
generate(3)  logprob_sums (9,)    tokens (9, 6)
"""
TEXT_LINE = re.compile(r"^ +(-\d+\.\d{3})  'When I was", re.MULTILINE)


@pytest.fixture(scope="module")
def subject() -> Subject:
    """A small random model of GPT-2's vocabulary."""
    cfg = Config(d_model=8, n_heads=2, n_layers=1, n_ctx=32, init_range=0.5)
    tokenizer = Tokenizer.gpt2()
    tokens = tokenizer.to_tokens("not used")
    return Subject(Transformer(cfg, seed=0), tokenizer, tokens, "A small random model.")


@pytest.fixture
def output(subject: Subject, capsys: pytest.CaptureFixture[str]) -> str:
    beams.main(subject)
    return capsys.readouterr().out


def test_the_shapes_are_the_seeds(output: str) -> None:
    """Two rounds at k = 3, as the seed prints them."""
    assert output.startswith("A small random model.\n\n" + SHAPES)


def test_the_texts_come_best_first(output: str) -> None:
    """Three texts of three beams, one without repetition, and the best of one beam and of three."""
    three = output.partition("num_beams=3\n")[2].partition("\n\n")[0]
    sums = [float(found) for found in TEXT_LINE.findall(three)]
    table = re.findall(r"^ +([13]) +(-\d+\.\d{3})  'When I was", output, re.MULTILINE)

    assert len(sums) == 3 and sums == sorted(sums, reverse=True)
    assert len(TEXT_LINE.findall(output)) == 3 + 1
    assert [num_beams for num_beams, _ in table] == ["1", "3"]
    assert float(table[1][1]) == sums[0]


def test_the_trees_fit_a_terminal(output: str) -> None:
    """The texts are all three, the steps have 3 and 9 candidates, and 80 columns hold both."""
    trees = output.partition("what num_beams=3 found")[2].splitlines()

    assert all(f"#{rank}" in "\n".join(trees) for rank in (1, 2, 3))
    assert any("step 1: 3 candidates from 1 beam" in line for line in trees)
    assert any("step 2: 9 candidates from 3 beams" in line for line in trees)
    assert max(map(len, trees)) <= 80


def test_the_command_prints_it(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m pvml.sampling.beams` is this demonstration."""
    monkeypatch.setattr(beams, "gpt2_or_random", lambda n_layers: subject)
    monkeypatch.delitem(sys.modules, "pvml.sampling.beams", raising=False)
    runpy.run_module("pvml.sampling.beams", run_name="__main__")

    assert SHAPES in capsys.readouterr().out


@pytest.mark.network
@pytest.mark.usefixtures("hub")
def test_the_seeds_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """GPT-2's own beams after `When I was`, with the seed's sums of log-probabilities."""
    beams.main()
    printed = capsys.readouterr().out

    assert SHAPES in printed
    for logprob_sum, text in (
        (-14.830, "When I was a kid, I used to go to the movies with my"),
        (-16.321, "When I was a kid, I used to go to the movies. I"),
        (-16.899, "When I was a kid, I used to go to the movies and watch"),
        (-18.076, "When I was a kid, I was a little bit of a nerd."),
    ):
        found = re.search(rf"(-\d+\.\d{{3}})  '{re.escape(text)}'", printed)
        assert found and float(found[1]) == pytest.approx(logprob_sum, abs=2e-3)
    assert "-33.603" in printed
