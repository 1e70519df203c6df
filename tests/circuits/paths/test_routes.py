"""The decomposition: its terms add up to the model's own logits, and each is what it says."""

import io

import pytest
import torch as t
from rich.console import Console
from torch import Tensor

from pvml.circuits import two_routes
from pvml.circuits.paths.routes import HeadTerm, Routes, _require_one_prediction, decompose
from pvml.config import Config
from pvml.errors import CheckFailed, PvmlError
from pvml.modules.transformer import Transformer
from pvml.trace.edit import ablate
from pvml.trace.tap import listen

D_VOCAB, N_CTX, POSN = 23, 17, 11


def random_model(dtype: t.dtype = t.float64, seed: int = 3, **settings: object) -> Transformer:
    """An attention-only model with every parameter, biases and LayerNorms too, off its default."""
    sizes = {"d_model": 13, "n_heads": 3, "d_head": 5, "n_ctx": N_CTX, "d_vocab": D_VOCAB}
    cfg = Config.from_dict({"n_layers": 1, "attn_only": True, **sizes, **settings})
    model = Transformer(cfg, seed=seed).to(dtype)
    rng = t.Generator().manual_seed(seed)
    with t.no_grad():
        for parameter in model.parameters():
            parameter += 0.5 * t.randn(parameter.shape, generator=rng, dtype=t.float64).to(dtype)
    return model


def random_tokens(n: int = POSN) -> Tensor:
    return t.randint(D_VOCAB, (1, n), generator=t.Generator().manual_seed(7))


def total(routes: Routes) -> Tensor:
    return t.stack([term.vector for term in routes.terms]).sum(0)


def shown(routes: Routes, *arguments: object, **options: object) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(routes.table(*arguments, **options))
    return out.getvalue()


# By hand


def test_the_worked_example_as_a_model() -> None:
    """On the post's sentence, route 1 says mat, the head adds 3.06 to cat, and cat wins."""
    routes = decompose(two_routes.as_model(), two_routes.token_ids()[None], position=7)

    cat, mat = (two_routes.VOCABULARY.index(token) for token in ("cat", "mat"))
    token, head = routes["token"].vector, routes["head 0.0"].vector
    assert [token[mat].item(), token[cat].item()] == pytest.approx([4.1, 3.7], abs=1e-12)
    assert [head[mat].item(), head[cat].item()] == pytest.approx([0.4201, 3.0588], abs=5e-5)
    assert routes.logits.argmax().item() == cat
    by_source = routes.by_source(0, 0, cat)
    assert by_source[1].item() == pytest.approx(5.0 * 0.6005, abs=5e-4)
    assert routes.by_source(0, 0, cat, minus=mat).sum().item() == pytest.approx(
        3.0588 - 0.4201, abs=1e-4
    )


def test_a_bigram_model_is_its_direct_route() -> None:
    """With no layers the token's term is its row of W_E times W_U, and nothing else but b_U."""
    model = random_model(n_layers=0, normalization="none", positions="none")
    routes = decompose(model, random_tokens())

    token = int(random_tokens()[0, -1])
    t.testing.assert_close(
        routes["token"].vector, model.embed.W_E[token] @ model.unembed.W_U, rtol=0, atol=1e-12
    )
    assert [term.name for term in routes.terms] == ["token", "b_U"]
    assert routes.frozen == ()


def test_a_head_by_plain_loops() -> None:
    """A head's term is its attention row times, per source, value, output and unembedding."""
    model = random_model(normalization="none", positions="none")
    tokens = random_tokens()
    _, cache = model.run_with_cache(tokens, names_filter="blocks.0.attn.attn_pattern")
    row = cache["blocks.0.attn.attn_pattern"][0, 2, POSN - 1]
    state = model.state_dict()
    expected = t.zeros(D_VOCAB, dtype=t.float64)
    for j, token in enumerate(tokens[0].tolist()):
        v = (
            state["embed.W_E"][token] @ state["blocks.0.attn.W_V"][2]
            + state["blocks.0.attn.b_V"][2]
        )
        expected += row[j] * (v @ state["blocks.0.attn.W_O"][2] @ state["unembed.W_U"])

    t.testing.assert_close(
        decompose(model, tokens)["head 0.2"].vector, expected, rtol=0, atol=1e-12
    )


# Laws


@pytest.mark.parametrize("normalization", ["LN", "none"])
@pytest.mark.parametrize("positions", ["standard", "none", "shortformer"])
@pytest.mark.parametrize("n_layers", [0, 1, 2, 3])
def test_terms_add_up_to_the_logits(n_layers: int, positions: str, normalization: str) -> None:
    """At every position, in float64, the sum is the model's own logits to 1e-12."""
    model = random_model(n_layers=n_layers, positions=positions, normalization=normalization)
    tokens = random_tokens()
    whole = model(tokens)[0].detach()

    for position in range(POSN):
        routes = decompose(model, tokens, position)
        allowed = 1e-12 * whole[position].abs().max().item()
        t.testing.assert_close(total(routes), whole[position], rtol=0, atol=allowed)
        assert routes.position == position


@pytest.mark.parametrize("tie_embeddings", [False, True])
@pytest.mark.parametrize("dtype", [t.float32, t.bfloat16, t.float16])
def test_narrower_dtypes_add_up_to_their_rounding(dtype: t.dtype, tie_embeddings: bool) -> None:
    """The sum check passes in every dtype, with tied tables too."""
    model = random_model(dtype, n_layers=2, tie_embeddings=tie_embeddings)
    routes = decompose(model, random_tokens())

    expected = model(random_tokens())[0, -1].detach().float()
    t.testing.assert_close(routes.logits, expected, rtol=2e-2, atol=2e-2)


def test_a_head_term_is_what_ablating_the_head_takes_away() -> None:
    """In one layer without LayerNorm and b_V, silencing a head takes its term off the logits."""
    model = random_model(normalization="none")
    with t.no_grad():
        model.blocks[0].attn.b_V.zero_()
    tokens = random_tokens()
    with ablate(model, "blocks.0.attn.z", head=1):
        without = model(tokens)[0, -1].detach()

    term = decompose(model, tokens)["head 0.1"].vector
    t.testing.assert_close(model(tokens)[0, -1].detach() - term, without, rtol=0, atol=1e-11)


def test_sources_add_up_to_their_head() -> None:
    """Shares add up to 1, and what comes from each position to the whole head, minus or not."""
    routes = decompose(random_model(n_layers=2), random_tokens(), position=6)
    for layer, head in ((0, 1), (1, 2)):
        term = routes[f"head {layer}.{head}"]

        assert isinstance(term, HeadTerm)
        assert term.row.shape == (7,)
        assert term.row.sum().item() == pytest.approx(1)
        whole = routes.by_source(layer, head, 5).sum().item()
        assert whole == pytest.approx(term.vector[5].item(), rel=1e-10)
        difference = routes.by_source(layer, head, 5, minus=9).sum().item()
        assert difference == pytest.approx((term.vector[5] - term.vector[9]).item(), rel=1e-10)


def test_values_are_sorted_by_size() -> None:
    """The largest term comes first, whatever its sign; together they are the logit."""
    routes = decompose(random_model(), random_tokens())
    for minus in (None, 4):
        values = [value for _, value in routes.values(8, minus)]

        assert [abs(v) for v in values] == sorted(map(abs, values), reverse=True)
        assert sum(values) == pytest.approx(routes.logit(8, minus), rel=1e-10)
    assert len(routes.values(8)) == len(routes.terms) == 1 + 1 + 3 + 1 + 1 + 1


# Contracts


def test_an_edit_that_breaks_the_sum_is_an_error() -> None:
    """If the model's logits are not what its weights and patterns give, nothing is returned."""
    model = random_model()
    with (
        listen(model, "blocks.0.attn.attn_out", lambda _, x: 2 * x, edits=True),
        pytest.raises(CheckFailed, match="do not add up"),
    ):
        decompose(model, random_tokens())


def test_numbers_that_are_not_finite_are_an_error() -> None:
    """A NaN in the weights fails the check instead of passing every comparison."""
    model = random_model()
    with t.no_grad():
        model.unembed.W_U[0, 0] = t.nan
    with pytest.raises(CheckFailed, match="finite"):
        decompose(model, random_tokens())


def test_what_cannot_be_taken_apart_is_refused() -> None:
    """MLPs, several sequences, missing positions, tokens and heads are each named."""
    model, tokens = random_model(), random_tokens()
    with pytest.raises(PvmlError, match="has MLPs"):
        decompose(random_model(attn_only=False), tokens)
    with pytest.raises(PvmlError, match=r"one sequence.*got \(2, 11\)"):
        decompose(model, tokens.repeat(2, 1))
    for position in (POSN, -POSN - 1):
        with pytest.raises(PvmlError, match=f"position {position} is not in a sequence of 11"):
            decompose(model, tokens, position)
    with pytest.raises(PvmlError, match=r"got \(1, 0\)"):
        decompose(model, tokens[:, :0])
    routes = decompose(model, tokens)
    with pytest.raises(PvmlError, match="ids run from 0 to 22"):
        routes.values(23)
    with pytest.raises(PvmlError, match=r"no term 'head 0.3'.* head 0.2, b_O 0"):
        routes.by_source(0, 3, 1)


def test_the_model_is_left_as_it_was() -> None:
    """No gradient is recorded and no listener stays."""
    model = random_model()
    before = model(random_tokens())
    routes = decompose(model, random_tokens())

    assert t.equal(model(random_tokens()), before)
    assert not any(term.vector.requires_grad for term in routes.terms)


def test_the_table_shows_every_term_and_both_sums() -> None:
    """A row a term, then their sum and the model's own logit, equal; token texts are no markup."""
    routes = decompose(random_model(), random_tokens())
    texts = [f"[b]{i}" for i in range(D_VOCAB)]
    text = shown(routes, 8, minus=3, texts=texts)

    assert "adds to the logit of '[b]8' minus '[b]3'" in text
    assert all(term.name in text for term in routes.terms)
    assert text.count(f"{routes.logit(8, 3):+.4f}") == 2
    assert "token 8" in shown(routes, 8)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 3), (1, 1, 3)])
def test_anything_but_one_sequence_is_refused(make_model, shape):
    """Tokens of another shape than (1, posn) are an error that shows it."""
    with pytest.raises(PvmlError, match=rf"one sequence.*got \({shape[0]},"):
        _require_one_prediction(make_model(attn_only=True), t.zeros(shape, dtype=t.long), -1)
