"""Why a token came: every distribution on the way, what was cut, and what brought its logit."""

import math
from collections.abc import Callable, Sequence
from io import StringIO

import pytest
import torch as t
from rich.console import Console
from torch import Tensor

from pvml.circuits.paths.routes import decompose
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer
from pvml.sampling.args import SamplingArgs
from pvml.sampling.explain import Explanation, explain_token
from pvml.sampling.explain_table import explanation_table
from pvml.sampling.reader import window_of
from pvml.sampling.sampler import Sampler
from pvml.trace.tap import listen

MakeModel = Callable[..., Transformer]
WEIGHTS = t.tensor([0.25, 0.4, 0.2, 0.1, 0.05]).double()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the cat sat on the mat and the dog sat on the rug"], 263)


@pytest.fixture
def attn_only(make_model: MakeModel, tokenizer: Tokenizer) -> Sampler:
    model = make_model(n_ctx=7, d_vocab=tokenizer.d_vocab, attn_only=True)
    return Sampler(model, tokenizer)


def table_lines(told: Sequence[Explanation], decode: Callable[[Sequence[int]], str]) -> list[str]:
    console = Console(file=StringIO(), width=160)
    console.print(explanation_table(told, decode))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_the_steps_by_hand(make_model: MakeModel) -> None:
    """The seeds' logits with token 3 banned, temperature 2, top-k 2: numbers step by step."""
    args = SamplingArgs(banned_tokens=(3,), temperature=2.0, top_k=2)
    logits = t.tensor([3.0, 2.0, 1.0, 0.0, -1.0])

    told = explain_token(1, [0, 4], logits, args, make_model(), [0, 4])

    model, bans, warm, last = told.steps
    assert [step.name for step in told.steps] == ["model", "bans", "temperature", "top-k"]
    assert [round(p, 3) for p in model.probabilities.tolist()] == [
        0.636,
        0.234,
        0.086,
        0.032,
        0.012,
    ]
    assert model.entropy == pytest.approx(1.0000, abs=1e-4)
    assert (model.probability, model.rank, model.possible) == (
        pytest.approx(0.2341, abs=1e-4),
        2,
        5,
    )
    assert (bans.cut.tolist(), bans.possible, bans.reason) == ([3], 4, "banned by id")
    assert (warm.cut.tolist(), warm.reason) == ([], "logits divided by 2.0")
    assert (last.cut.tolist(), last.reason) == ([2, 4], "not among the 2 likeliest")
    odds = math.exp(0.5)
    assert last.probability == pytest.approx(1 / (1 + odds), abs=1e-12)
    p = last.probability
    assert last.entropy == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), abs=1e-12)
    assert last.likeliest(5) == [(0, pytest.approx(1 - p)), (1, pytest.approx(p))]
    assert told.contributions is None and "MLPs" in told.no_contributions


def test_rank_among_equals() -> None:
    """Of equal tokens the lowest id comes first, as for top-k; a certain token has entropy 0."""
    model = Transformer(Config(d_model=3, n_heads=1, d_head=2, n_layers=0, n_ctx=5, d_vocab=3))
    args = SamplingArgs(temperature=0.0)

    told = explain_token(0, [0], t.tensor([1.0, 1.0, 0.0]), args, model, [0])
    second = explain_token(1, [0], t.tensor([1.0, 1.0, 0.0]), SamplingArgs(), model, [0])

    assert (told.steps[0].rank, second.steps[0].rank) == (1, 2)
    greedy = told.steps[-1]
    assert (greedy.name, greedy.cut.tolist(), greedy.probability, greedy.entropy) == (
        *("greedy", [1, 2], 1.0, 0.0),
    )


@pytest.mark.parametrize(
    ("args", "name", "reason", "cut"),
    [
        (
            SamplingArgs(logit_bias=((2, 1.5), (0, -1.0))),
            "logit bias",
            "a number added to the logits of given ids, 2 in all",
            [],
        ),
        (
            SamplingArgs(repetition_penalty=1.5),
            "repetition penalty",
            "tokens that occur already, logits divided by 1.5 (times, below 0)",
            [],
        ),
        (
            SamplingArgs(frequency_penalty=0.5),
            "frequency penalty",
            "logits less 0.5 for each time that a token occurs already",
            [],
        ),
        (
            SamplingArgs(no_repeat_ngram_size=2),
            "n-gram ban",
            "would repeat 2 tokens in a row",
            [3],
        ),
        (
            SamplingArgs(temperature=0.0),
            "greedy",
            "not the likeliest (of equals, the lowest id)",
            [0, 2, 3, 4],
        ),
        (SamplingArgs(top_p=0.7), "top-p", "likelier tokens reach 0.7 without it", [3, 4]),
        (
            SamplingArgs(min_p=0.3),
            "min-p",
            "less than 0.3 times as likely as the likeliest",
            [3, 4],
        ),
    ],
)
def test_reasons_and_cuts_by_hand(
    make_model: MakeModel, args: SamplingArgs, name: str, reason: str, cut: list[int]
) -> None:
    """Of 0.25 0.4 0.2 0.1 0.05: what each step says that it does, and the tokens it rules out.

    Top-p 0.7 is reached by 0.4, 0.25 and 0.2, without the others; 0.3 times 0.4 is 0.12; after the
    history 1 3 1, a 3 would repeat 1 3.
    """
    told = explain_token(1, [1, 3, 1], WEIGHTS.log(), args, make_model(), [1, 3, 1])

    _, step = told.steps
    assert (step.name, step.reason, step.cut.tolist()) == (name, reason, cut)


def test_the_tables_numbers_by_hand(make_model: MakeModel) -> None:
    """Of 0.25 0.4 0.2 0.1 0.05, token 3 is made 3 times as likely; of 0.4, 0.3 and 0.25 one comes.

    Those are 8/19, 6/19 and 5/19; the entropies (sums of -p ln p) are 1.415 and 1.080. The rank is
    the model's: 4 for token 3, the second of the three.
    """
    args = SamplingArgs(logit_bias=((3, math.log(3)),), top_k=3)
    told = [explain_token(i, [4], WEIGHTS.log(), args, make_model(), [4]) for i in (1, 3, 0)]

    lines = table_lines(told, lambda ids: str(ids[0]))

    assert [" ".join(line.split()) for line in lines[1:7]] == [
        "'1' 0.400 1 0.421 1.42 → 1.08 3 '3' 0.316 top-k 2",
        "'0' 0.263",
        "'3' 0.100 4 0.316 1.42 → 1.08 3 '1' 0.421 top-k 2",
        "'0' 0.263",
        "'0' 0.250 2 0.263 1.42 → 1.08 3 '1' 0.421 top-k 2",
        "'3' 0.316",
    ]


@pytest.mark.parametrize(
    "args",
    [
        SamplingArgs(seed=1, max_new_tokens=12, temperature=0.8, top_p=0.9),
        SamplingArgs(temperature=0.0, max_new_tokens=12, repetition_penalty=1.3, min_p=0.1),
    ],
)
def test_explaining_changes_no_token(attn_only: Sampler, args: SamplingArgs) -> None:
    """The tokens are those of a plain call, one explanation each, past the window too."""
    told = attn_only.complete("the cat", args, explain=True)

    assert told.ids == attn_only.complete("the cat", args).ids
    assert tuple(one.token for one in told.explanations) == told.ids
    assert not attn_only.complete("the cat", args).explanations
    start = tuple(attn_only.tokenizer.encode("the cat", prepend_bos=True))
    for place, one in enumerate(told.explanations):
        assert one.history == start + told.ids[:place]
        assert one.steps[-1].probability > 0


def test_the_parts_add_up_to_the_logit(attn_only: Sampler) -> None:
    """Direct paths, heads and biases are those of the decomposition; their sum is the logit."""
    args = SamplingArgs(seed=2, max_new_tokens=9)

    told = attn_only.complete("the cat", args, explain=True)

    for one in told.explanations:
        assert one.contributions is not None
        total = sum(part.value for part in one.contributions)
        assert total == pytest.approx(float(one.logits[one.token]), abs=1e-11)
        window = window_of(one.history, 7, keep_first=True)
        expected = decompose(attn_only.model, t.tensor([window])).values(one.token)
        assert [(part.name, part.value) for part in one.contributions] == [
            (term.name, value) for term, value in expected
        ]
        assert {"token", "position", "head 0.0", "head 1.2", "b_U"} <= {
            part.name for part in one.contributions
        }


def test_blocks_are_explained_by_what_was_seen(make_model: MakeModel, tokenizer: Tokenizer) -> None:
    """With `window="blocks"` the parts add up to the logit, where "exact" sees one token more too.

    With n_ctx 8, texts of 9 and 11 tokens are seen without 2 and 4 of them, by "exact" 1 and 3.
    """
    model = make_model(n_ctx=8, d_vocab=tokenizer.d_vocab, attn_only=True)
    sampler = Sampler(model, tokenizer, window="blocks")

    told = sampler.complete("the cat", SamplingArgs(seed=2, max_new_tokens=9), explain=True)

    assert {9, 11} <= {len(one.history) for one in told.explanations}
    for one in told.explanations:
        assert one.contributions is not None
        total = sum(part.value for part in one.contributions)
        assert total == pytest.approx(float(one.logits[one.token]), abs=1e-11)


def test_explanations_of_a_batch(attn_only: Sampler) -> None:
    """Each sequence of a batch has its own explanations, with its own numbers."""
    args = SamplingArgs(temperature=0.0, max_new_tokens=6)

    for told in attn_only.complete_batch(["the", "the dog"], args, explain=True):
        alone = attn_only.complete(told.prompt, args, explain=True)
        for one, other in zip(told.explanations, alone.explanations, strict=True):
            assert one.token == other.token
            t.testing.assert_close(one.logits, other.logits, rtol=0, atol=1e-11)


def test_an_edit_leaves_no_parts(attn_only: Sampler) -> None:
    """Edited logits are no sum of parts: that is said, and the rest is told."""

    def double(_: str, logits: Tensor) -> Tensor:
        return 2 * logits

    with listen(attn_only.model, "unembed.logits", double, edits=True):
        told = attn_only.complete("the", SamplingArgs(max_new_tokens=2, seed=0), explain=True)

    assert {one.contributions for one in told.explanations} == {None}
    assert "something edits" in told.explanations[0].no_contributions
    assert told.explanations[0].steps[0].rank > 0


def test_the_table(attn_only: Sampler) -> None:
    """A row for each token, with its numbers; markup in a token is text; settings are explained."""
    args = SamplingArgs(seed=3, max_new_tokens=4, temperature=0.7, top_k=5)
    told = attn_only.complete("the", args, explain=True)

    lines = table_lines(told.explanations, lambda ids: f"[bold]{ids[0]}")

    assert lines[0].split()[:4] == ["token", "p", "rank", "drawn"]
    rows = [line for line in lines if line.startswith("'")]
    for one, line in zip(told.explanations, rows, strict=True):
        assert line.startswith(f"'[bold]{one.token}'")
        assert f"{one.steps[0].probability:.3f}" in line and "top-k 258" in line
    shown = " ".join(" ".join(lines).split())
    assert "temperature: logits divided by 0.7. top-k: not among the 5 likeliest." in shown
    assert "parts of its logit" in lines[0]
