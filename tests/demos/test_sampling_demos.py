"""What `python -m pvml.sampling.strategies | sampler` print: the seed's figures, and a proof."""

import runpy
import sys

import pytest
import torch as t

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.demos import sampler, strategies
from pvml.demos.subject import Subject
from pvml.modules.transformer import Transformer
from pvml.parity.check import move_off_defaults

SEEDS_LINES = """\
logits  [3.0, 2.0, 1.0, 0.0, -1.0]
probs   ['0.636', '0.234', '0.086', '0.032', '0.012']
cumulative ['0.636', '0.871', '0.957', '0.988', '1.000']

greedy_search              -> 0   # ...
apply_temperature(0.5)     -> [6.0, 4.0, 2.0, 0.0, -2.0]
apply_temperature(2.0)     -> [1.5, 1.0, 0.5, 0.0, -0.5]

sample_basic over 10,000 draws
  ['0.640', '0.230', '0.086', '0.032', '0.011']
sample_top_k(2) over 10,000 draws
  ['0.736', '0.264', '0.000', '0.000', '0.000']
  ['0.731', '0.269', '0.000', '0.000', '0.000']   # exact
sample_top_p(0.7) over 10,000 draws
  ['0.734', '0.267', '0.000', '0.000', '0.000']
  ['0.731', '0.269', '0.000', '0.000', '0.000']   # exact
"""


@pytest.fixture(scope="module")
def subject() -> Subject:
    """A small random float64 model of GPT-2's vocabulary, whose window the text outgrows."""
    cfg = Config(d_model=23, n_heads=3, d_head=7, d_mlp=37, n_layers=2, n_ctx=17)
    model = move_off_defaults(Transformer(cfg, seed=0), 0).double()
    tokenizer = Tokenizer.gpt2()
    return Subject(model, tokenizer, tokenizer.to_tokens("not used"), "A small random model.")


def test_the_strategies_print_the_seeds_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Every line that the seed prints is there, in its order, to the last digit."""
    strategies.main()

    printed = capsys.readouterr().out.splitlines()
    place = 0
    for line in filter(None, SEEDS_LINES.splitlines()):
        start = line.removesuffix("...")
        place = next(i for i in range(place, len(printed)) if printed[i].startswith(start)) + 1


def test_the_sampler_agrees_with_its_reference(
    subject: Subject, capsys: pytest.CaptureFixture[str]
) -> None:
    """The greedy text is plain NumPy's, past the window; seed 0 alone is the batch's first."""
    sampler.main(subject)

    out = capsys.readouterr().out
    ours, theirs = (
        line.partition("'")[2] for line in out.splitlines() if line.startswith(("ours", "referen"))
    )
    assert ours == theirs and ours.startswith(sampler.PROMPT) and len(ours) > len(sampler.PROMPT)
    assert "greedy matches the float64 NumPy reference : True" in out
    assert "seed 0 alone is the first : True" in out


def test_the_check_can_fail(subject: Subject, capsys: pytest.CaptureFixture[str]) -> None:
    """An edit that changes what is written is told: ours no longer matches."""

    def turn(logits: t.Tensor, hook: object) -> t.Tensor:
        return -logits

    with subject.model.hooks([("unembed.logits", turn)]):
        sampler.main(subject)

    assert "reference : False" in capsys.readouterr().out


def test_the_strategies_run_as_a_module(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m pvml.sampling.strategies` is the demonstration."""
    strategies.main()
    expected = capsys.readouterr().out
    monkeypatch.delitem(sys.modules, "pvml.sampling.strategies")

    runpy.run_module("pvml.sampling.strategies", run_name="__main__")

    assert capsys.readouterr().out == expected


@pytest.mark.network
def test_gpt2_goes_down_the_mountain(hub: None, capsys: pytest.CaptureFixture[str]) -> None:
    """GPT-2's own weights go on as the notes say, and as the reference does."""
    sampler.main()

    out = capsys.readouterr().out
    assert f"ours      '{sampler.PROMPT} down to the top of the mountain.'" in out
    assert "reference : True" in out
