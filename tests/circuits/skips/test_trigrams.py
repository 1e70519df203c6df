"""Skip-trigrams: the streamed search is the dense one, and an effect is what the model does."""

import json
from dataclasses import asdict
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.paths.logit_paths import expand
from pvml.circuits.skips.reading import Competition, read_head
from pvml.circuits.skips.trigrams import SkipTrigram, find_skip_trigrams
from pvml.circuits.weights.maps import Reading, ov, qk
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

LITTLE = 1 << 15
"""Bytes: a few sources at a time."""


def dense(
    scores: Tensor, writes: Tensor, n_others: int, shares: Tensor, always: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Attention (source, destination) and centred OV, from whole tables of scores and of OV."""
    others = n_others * (scores.exp() @ shares) + scores.diagonal().exp()
    others = others + scores[:, list(always)].exp().sum(1)
    attention = scores.exp() / (scores.exp() + others[:, None])
    return attention.T, writes - writes.mean(1, keepdim=True)


def ranked(
    attention: Tensor,
    logits: Tensor,
    top: int,
    per_source: int | None = None,
    only: tuple[list[int], list[int], list[int]] | None = None,
) -> list[tuple[int, int, int]]:
    """The strongest triples by trying all, of equal ones the lowest ids."""
    n = len(logits)
    asked = only or (list(range(n)), list(range(n)), list(range(n)))
    effects = attention[:, :, None] * logits[:, None]
    best: list[tuple[int, int, int]] = []
    for place in effects.flatten().argsort(descending=True, stable=True).tolist():
        s, d, y = place // n**2, place // n % n, place % n
        if len(best) == top or effects[s, d, y] <= 0:
            break
        inside = all(one in some for one, some in zip((s, d, y), asked, strict=True))
        if inside and (per_source is None or sum(s == one for one, _, _ in best) < per_source):
            best.append((s, d, y))
    return best


def ids(found: tuple[SkipTrigram, ...]) -> list[tuple[int, int, int]]:
    return [(each.source, each.destination, each.output) for each in found]


CASES: list[dict[str, Any]] = [
    {"top": 1},
    {"top": 40},
    {"top": 40, "per_source": 3},
    {"top": 15, "sources": [3, 1, 20], "destinations": [28, 0, 5], "outputs": [2, 9]},
    {"top": 500, "destinations": [7]},
]


@pytest.mark.parametrize("asked", CASES, ids=str)
@pytest.mark.parametrize("memory", [LITTLE, 1 << 26])
def test_the_search_is_the_dense_one(make_model: Any, asked: dict[str, Any], memory: int) -> None:
    """Same triples in the same order, whatever the memory, filters and limits; no norms."""
    model = make_model(normalization="none", positions="none", attn_only=True, n_layers=1)
    shares = t.rand(29, dtype=t.float64, generator=t.Generator().manual_seed(1))
    competition = Competition(n_others=6, always=(4,), frequencies=shares)
    found = find_skip_trigrams(model, memory=memory, competition=competition, **asked)
    only = tuple(sorted(asked.get(name, range(29))) for name in ("sources", "destinations"))
    only += (sorted(asked.get("outputs", range(29))),)

    for head in [(0, 0), (0, 1), (0, 2)]:
        scores = qk(model, head, scaled=True, biases=True).map.dense()
        attention, logits = dense(
            scores, ov(model, head).map.dense(), 6, shares / shares.sum(), (4,)
        )
        wanted = ranked(attention, logits, asked["top"], asked.get("per_source"), only)
        assert ids(found.of(head)) == wanted
        for each in found.of(head):
            assert each.attention == pytest.approx(
                float(attention[each.source, each.destination]), rel=1e-9
            )
            assert each.logit == pytest.approx(float(logits[each.source, each.output]), rel=1e-9)


def test_of_equal_effects_the_lowest_ids_come_first() -> None:
    """Whole numbers and tokens that come in twins: many equal effects, cut off among them."""
    cfg = Config(
        d_model=4, n_heads=1, d_head=4, n_layers=1, n_ctx=8, d_vocab=24, attn_only=True,
        positions="none", normalization="none",
    )  # fmt: skip
    model = Transformer(cfg)
    rng = t.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data = t.randint(-1, 2, parameter.shape, generator=rng).double()
    model.embed.W_E.data[12:] = model.embed.W_E[:12]
    model.unembed.W_U.data[:, 12:] = model.unembed.W_U[:, :12]
    scores = qk(model, (0, 0), scaled=True, biases=True).map.dense()
    shares = t.full((24,), 1 / 24, dtype=t.float64)
    attention, logits = dense(scores, ov(model, (0, 0)).map.dense(), 4, shares, ())
    # rounded, so that what is equal but for the last digit is equal
    attention, logits = attention.round(decimals=9), logits.round(decimals=9)

    for top in (1, 2, 3, 7, 30, 100):
        for memory in (LITTLE, 1 << 26):
            found = find_skip_trigrams(model, top=top, memory=memory)
            assert ids(found.found) == ranked(attention, logits, top)


@pytest.mark.parametrize("normalization", ["none", "LN"])
def test_the_attention_is_the_models_own(make_model: Any, normalization: str) -> None:
    """In the very context of the competition: every token once, BOS, the source, the destination.

    Without positions the first layer's ln1 sees each token's embedding alone, so this is exact.
    """
    model = make_model(
        normalization=normalization, positions="none", attn_only=True, n_layers=1, n_ctx=40
    )
    competition = Competition(n_others=29, always=(4,))
    found = find_skip_trigrams(model, top=5, competition=competition)

    assert len(found.found) == 15
    for each in found.found:
        tokens = t.tensor([[4, *range(29), each.source, each.destination]])
        _, cache = model.run_with_cache(tokens)
        pattern = cache["blocks.0.attn.attn_pattern"][0, each.head[1], -1]
        assert each.attention == pytest.approx(float(pattern[30]), rel=1e-9)


def test_the_effect_is_the_models_own(make_model: Any) -> None:
    """What the head's path adds for the source, as path expansion has it with that pattern."""
    model = make_model(normalization="none", positions="none", attn_only=True, n_layers=1)
    for name in ("b_V", "b_O"):
        getattr(model.blocks[0].attn, name).data.zero_()
    tokens = t.tensor([[11, 5]])
    (best,) = find_skip_trigrams(
        model, [(0, 1)], top=1, sources=[11], destinations=[5],
        competition=Competition(n_others=0),
    ).found  # fmt: skip
    term = next(x for x in expand(model, tokens, 1).terms if x.heads == ((0, 1),))
    # the head sees source and destination: with the latter's part taken away the source's is left
    itself = (1 - best.attention) * ov(model, (0, 1)).map.rows([5])[0]
    vector = term.vector - itself

    assert best.effect == pytest.approx(float((vector - vector.mean())[best.output]), rel=1e-9)


def test_a_logit_that_all_outputs_share_does_not_count(make_model: Any) -> None:
    """A column added to the whole of W_U moves every logit alike and changes no effect."""
    model = make_model(normalization="none", positions="none")
    before = find_skip_trigrams(model, top=4)
    model.unembed.W_U.data += t.arange(13.0, dtype=t.float64)[:, None]
    after = find_skip_trigrams(model, top=4)

    assert ids(after.found) == ids(before.found)
    assert [x.effect for x in after.found] == pytest.approx([x.effect for x in before.found])


def test_layernorms_ignored_are_the_weights_alone(make_model: Any) -> None:
    """norms "ignored": the circuits of maps.py; "folded": ln1's scale per token, and it is said."""
    model = make_model()
    for norms in ("ignored", "folded"):
        seen = read_head(Reading(model, norms, biases=True), (1, 2))
        W_E = model.embed.W_E.detach()
        scale = (W_E.var(1, correction=0) + model.cfg.layer_norm_eps).sqrt()[:, None]
        scale = scale if norms == "folded" else t.ones_like(scale)
        table = ov(model, (1, 2), norms=norms).map.dense() / scale
        t.testing.assert_close(
            seen.values @ seen.readout, table - table.mean(1, keepdim=True), rtol=1e-9, atol=1e-9
        )
        if norms == "ignored":
            scores = qk(model, (1, 2), norms=norms, scaled=True, biases=True).map.dense()
            t.testing.assert_close(seen.queries @ seen.keys.T, scores, rtol=1e-9, atol=1e-9)

    said = find_skip_trigrams(model, [(1, 2)]).holds
    assert any("ln1's scale" in each for each in said)
    assert any(each.startswith("layers above 0") for each in said)
    assert any(each.startswith("positions: left out of queries, keys and values") for each in said)
    assert "MLPs: passed by" in said


def test_what_is_left_out_is_said(make_model: Any) -> None:
    """Shortformer's positions never reach the values; a bare first layer leaves out only biases."""
    short = make_model(positions="shortformer", normalization="none", attn_only=True)
    bare = make_model(positions="none", normalization="none", attn_only=True)

    assert "positions: left out of queries and keys" in find_skip_trigrams(short, [(0, 0)]).holds
    assert [each.split(":")[0] for each in find_skip_trigrams(bare, [(0, 0)]).holds] == ["biases"]


def test_float32_finds_what_float64_does(make_model: Any) -> None:
    """And half types are read in float32."""
    model = make_model(normalization="none", positions="none")
    wanted = find_skip_trigrams(model, top=10)
    found = find_skip_trigrams(model.float(), top=10)

    assert [x.effect for x in found.found] == pytest.approx(
        [x.effect for x in wanted.found], rel=1e-4
    )
    assert len(find_skip_trigrams(model.bfloat16(), top=10).found) == 60


def test_results_can_be_read_and_stored(make_model: Any) -> None:
    """Texts where there is a tokenizer, ids where not; JSON takes it all."""
    tokenizer = Tokenizer.train(["the cat sat on the mat and the cat ran"] * 9, 270)
    model = make_model(d_vocab=tokenizer.d_vocab, positions="none", normalization="none")
    one = {"sources": [tokenizer.encode("c")[0]], "destinations": [tokenizer.encode("a")[0]]}
    told = find_skip_trigrams(model, [(0, 1)], top=1, tokenizer=tokenizer, **one)
    bare = find_skip_trigrams(model, [(0, 1)], top=1, **one)
    (each,), (without,) = told.found, bare.found

    assert each.texts is not None and each.texts[:2] == ("c", "a")
    assert str(each).startswith("0.1: 'c' ... 'a' -> ") and " nats (attention " in str(each)
    normed = make_model(d_vocab=tokenizer.d_vocab, positions="none")
    for norms, unit in (("folded", "nats x std"), ("ignored", "nats x 2 stds")):
        (lacking,) = find_skip_trigrams(normed, [(0, 1)], top=1, norms=norms, **one).found
        assert lacking.unit == unit and f" {unit} (attention " in str(lacking)
    assert str(without).startswith(f"0.1: {without.source} ... {without.destination} -> ")
    assert json.loads(json.dumps(asdict(told)))["found"][0]["source"] == each.source
    assert str(told).splitlines()[1].startswith("Competition: the source once, the destination")
    assert str(told).splitlines()[2].startswith("Holds: ")


def test_progress_is_told(make_model: Any) -> None:
    """Each scan of a head ends at its last row."""
    heard = []
    model = make_model(positions="none")
    find_skip_trigrams(model, [(1, 0)], tell=lambda *what: heard.append(what), memory=LITTLE)

    ends = [what for what, done, of in heard if done == of]
    assert ends == ["competition of 1.0", "attention of 1.0", "writing of 1.0"]


def test_a_head_that_promotes_nothing_tells_nothing(make_model: Any) -> None:
    """Its W_O is 0, so no effect is above 0."""
    model = make_model(positions="none")
    model.blocks[0].attn.W_O.data[1] = 0.0

    assert find_skip_trigrams(model, [(0, 1)]).found == ()
    assert str(find_skip_trigrams(model, [(0, 1)])).startswith("No head promotes any skip-trigram.")


def test_the_competition_of_a_text() -> None:
    """BOS stands in every row, so it is always there; the others come as often as in the text."""
    rows = t.tensor([[9, 1, 1, 2], [9, 1, 3, 3]])
    found = Competition.of_text(rows, 10)

    assert found.always == (9,) and found.n_others == 2
    assert found.frequencies is not None
    assert found.frequencies.tolist() == [0, 3, 1, 2, 0, 0, 0, 0, 0, 0]
    mixed = Competition.of_text(rows[:, 1:] + t.tensor([[0], [1]]), 10, n_others=7)
    assert mixed.always == () and mixed.n_others == 7
    assert "drawn as often as they stand in the text, at" in str(found)
    given = Competition(n_others=2, frequencies=t.ones(10))
    assert "drawn as often as the frequencies given say, at" in str(given)
    assert "drawn evenly from the vocabulary, at" in str(Competition(n_others=2))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"heads": []}, "nothing to mine"),
    ({"heads": [(2, 0)]}, "there is no head 2.0"),
    ({"top": 0}, "top must be at least 1"),
    ({"per_source": 0}, "per_source must be at least 1"),
    ({"sources": []}, "source tokens must be ids from 0 to 28, at least one"),
    ({"destinations": [29]}, "destination tokens must be ids from 0 to 28"),
    ({"outputs": [-1]}, "output tokens must be ids"),
    ({"memory": 100}, "more than the memory"),
    ({"competition": Competition(n_others=1, always=(29,))}, "in always"),
    ({"competition": Competition(n_others=1, frequencies=t.ones(3))}, "one for each of the 29"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=lambda x: str(x)[:40])
def test_bad_input_is_refused(make_model: Any, given: dict[str, Any], message: str) -> None:
    """With what was given and what is there."""
    with pytest.raises(PvmlError, match=message):
        find_skip_trigrams(make_model(), **given)


def test_a_bad_competition_is_refused() -> None:
    """Fewer than no tokens, or frequencies that are none."""
    for given in ({"n_others": -1}, {"n_others": 1, "frequencies": t.zeros(3)}):
        with pytest.raises(PvmlError, match="at least 0"):
            Competition(**given)
    with pytest.raises(PvmlError, match="at least one token"):
        Competition.of_text(t.zeros(0, 3, dtype=t.long), 5)
    with pytest.raises(PvmlError, match="between 0 and 4"):
        Competition.of_text(t.tensor([[5]]), 5)
    with pytest.raises(PvmlError, match="no heads"):
        find_skip_trigrams(Transformer(Config(n_layers=0, d_model=4, n_heads=1, d_vocab=9)))
