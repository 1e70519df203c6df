"""A class that no known mistake explains is told by what it does: large numbers, NaN, a type."""

from typing import Any

import numpy as np
import pytest

from pvml.parity.own_trials import Trial, case_of, config_of

SOFTMAX = "pattern = scores.softmax(dim=-1)"
NAIVE = "pattern = scores.exp(); pattern = pattern / pattern.sum(-1, keepdim=True)"
INF = 'float("-inf")'
TANH = "torch.tanh(u)"
BY_EXP = "(torch.exp(u) - torch.exp(-u)) / (torch.exp(u) + torch.exp(-u))"
BLOCK = """
from torch import nn
from pvml.modules.mlp import MLP
from pvml.modules.normalization import LayerNorm
class TransformerBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln1, self.ln2 = LayerNorm(cfg), LayerNorm(cfg)
        self.attn, self.mlp = Attention(cfg), MLP(cfg)
    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))
"""


@pytest.mark.parametrize("seed", range(3))
def test_the_large_trial_is_as_large_as_trained_models(seed: int) -> None:
    """Scores pass exp's limits in float32 both ways, activations tanh's by exp; some rows' scores
    all lie under -100, while their shares of attention are as even as in the other trials."""
    trial = Trial(says="", large=True)
    attention = case_of("attn", config_of({}), trial, seed).named
    scores, seen = attention["attn_scores_masked"], ~attention["mask"]
    assert scores.max() > 89 and scores[:, :, seen].min() < -104
    assert (scores.max(-1)[:, :, :-1] < -100).any()
    assert np.abs(scores[:, :, seen]).max() < 3000
    assert np.median(attention["attn_pattern"][:, :, 1].max(-1)) < 0.95
    pre = case_of("mlp", config_of({}), trial, seed).named["pre"]
    assert 50 < np.abs(pre).max() < 300


LARGE = {
    "softmax": (SOFTMAX, NAIVE, "own.py, line 29: exp overflows: subtract the row's maximum first"),
    "-100": (INF, "-100", "positions read later ones where scores are large: the mask puts a n"),
}


@pytest.mark.parametrize("mistake", LARGE)
def test_what_breaks_at_large_scores_is_told(checked: Any, edited: Any, mistake: str) -> None:
    """Right in every other trial, wrong where scores reach hundreds; and the cause is the one."""
    old, new, told = LARGE[mistake]
    report = checked(edited((old, new)))
    assert [trial.says for trial in report.trials if not trial.ok] == [
        "2 sequences of 7 positions, large scores"
    ]
    assert report.first_bad is not None and told in report.first_bad.causes[0], report.text()


def test_shares_that_do_not_come_to_1_are_told(checked: Any, edited: Any) -> None:
    """Right but for the digits that the way back loses at large scores, and told so."""
    by_sum = "pattern = (scores - scores.logsumexp(-1, keepdim=True)).exp()"
    report = checked(edited((SOFTMAX, by_sum)))
    assert "only trials like this one fail: perhaps digits that are lost on the way back" in (
        report.verdict()
    )


def test_a_clamp_is_told_to_be_of_large_scores(checked: Any, edited: Any) -> None:
    """What has no name at large scores is told to fail there alone."""
    report = checked(edited(("d_head**0.5", "d_head**0.5; scores = scores.clamp(-50, 50)")))
    assert "only trials like this one fail: perhaps something that overflows, a clamp" in (
        report.verdict()
    )


@pytest.mark.parametrize("number", ["-1e4", "-1e9", "torch.finfo(x.dtype).min"])
def test_numbers_that_are_small_enough_pass(checked: Any, edited: Any, number: str) -> None:
    """What GPT-2 and others write in place of -inf is as good."""
    assert checked(edited((INF, number))).ok


def test_other_right_ways_pass_large_scores(checked: Any, edited: Any) -> None:
    """The row's maximum taken off by hand, and torch's fused attention, gradients included."""
    by_hand = "scores = scores - scores.amax(-1, keepdim=True); "
    fused = "z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)"
    for old, new in ((SOFTMAX, by_hand + NAIVE), ("z = (pattern @ v)", f"{fused}; z = z")):
        for seed in range(3):
            report = checked(edited((old, new)), seed=seed)
            assert report.ok, report.text()


def test_a_gelu_that_overflows_is_told(checked: Any, mlp: str) -> None:
    """tanh by exponentials is right for small numbers, and is told to overflow for large ones."""
    assert checked(mlp, "MLP").ok
    report = checked(mlp.replace(TANH, BY_EXP), "MLP")
    assert [trial.ok for trial in report.trials] == [True] * 5 + [False, True]
    assert "own.py, line 21: exp overflows: torch.tanh and" in report.first_bad.causes[0]


def test_a_block_is_tried_with_large_numbers_too(checked: Any, edited: Any) -> None:
    """Its own attention is at fault, and the line of it is told."""
    assert checked(edited() + BLOCK, "TransformerBlock").ok
    report = checked(edited((SOFTMAX, NAIVE)) + BLOCK, "TransformerBlock")
    assert report.first_bad.says.endswith("large scores and activations")
    assert "own.py, line 29: exp overflows: in a softmax" in report.first_bad.causes[0]


@pytest.mark.parametrize("number", ["-20", "-30"])
def test_a_mask_that_leaks_a_little_is_told(checked: Any, edited: Any, number: str) -> None:
    """exp(-20) is 2e-9: seen in float64 at any size."""
    report = checked(edited((INF, number)))
    assert report.first_bad == report.trials[0]
    assert report.first_bad.causes[0].startswith("positions read later ones, a little: the mask")


def test_a_mask_with_a_gap_is_told(checked: Any, edited: Any) -> None:
    """Every position reads one later one, the sixth: no known mistake, and the sign is told."""
    report = checked(edited(("triu(1) == 1", "triu(1) == 1; future[:, 5:6] = False")))
    (cause,) = report.first_bad.causes
    assert cause.startswith("positions read later ones: the mask does not hide all of them")


def test_the_line_is_the_one_of_now(checked: Any, edited: Any) -> None:
    """A file that was changed between two checks is told by its new text."""
    slower = NAIVE.replace("scores.exp()", "scores.clone().exp()")
    for wrong in (NAIVE, slower):
        report = checked(edited((SOFTMAX, wrong)))
        assert report.first_bad.causes[0].endswith(f"\n    {wrong}"), report.text()


TYPES = {
    "by hand": (SOFTMAX, "pattern = scores.float().softmax(-1).to(x.dtype)", "line 29: something"),
    "argument": (SOFTMAX, "pattern = scores.softmax(-1, dtype=torch.float32).to(x)", "in float32"),
    "half": (SOFTMAX, "pattern = scores.bfloat16().softmax(-1).to(x.dtype)", "in bfloat16 inside"),
    "constant": ("/ self.cfg.d_head**0.5", "/ round(self.cfg.d_head**0.5, 7)", "too few digits"),
    "NumPy": (
        SOFTMAX,
        "import numpy; e = scores.softmax(-1).detach().numpy(); "
        "pattern = torch.from_numpy(e.astype(numpy.float32)).to(x.dtype)",
        "all is right but for float32's rounding",
    ),
}


@pytest.mark.parametrize("case", TYPES)
def test_a_smaller_type_inside_is_told(checked: Any, edited: Any, case: str) -> None:
    """What is wrong by no more than a smaller type rounds is told so, with its line if seen."""
    old, new, told = TYPES[case]
    report = checked(edited((old, new)))
    assert report.first_bad == report.trials[0]
    assert told in report.first_bad.causes[0], report.text()


def test_a_smaller_type_is_not_blamed_for_more_than_it_rounds(checked: Any, edited: Any) -> None:
    """A class that is 1% wrong and also computes in float32 inside is not told to mend that."""
    in_float32 = (SOFTMAX, "pattern = scores.float().softmax(-1).to(x.dtype)")
    report = checked(edited(in_float32, ("return out", "return out * 1.01")))
    assert "no mistake that is known" in report.verdict()


NAN = {
    "rows of -inf": (("triu(1)", "tril(2)"), "line 29: a row of scores is -inf throughout"),
    "a quotient": (("return out", "return out / 0"), "line 32: NaN or infinity begins here, with "),
}


@pytest.mark.parametrize("case", NAN)
def test_where_nan_begins_is_told(checked: Any, edited: Any, case: str) -> None:
    """The first line that makes NaN or infinity is the likely cause."""
    edit, told = NAN[case]
    report = checked(edited(edit))
    assert any("that are NaN or infinite" in problem for problem in report.first_bad.problems)
    assert told in report.first_bad.causes[0], report.text()


def test_a_verdict_says_where_to_look(checked: Any, edited: Any) -> None:
    """Where no cause is looked for or found, the first problem is repeated: never nothing."""
    for new in (
        "raise ValueError('not yet')",
        "return out.detach()",
        "return torch.from_numpy(out.detach().numpy() * float('nan'))",
    ):
        report = checked(edited(("return out", new)))
        assert "mend first what is told above: " in report.verdict(), report.text()
