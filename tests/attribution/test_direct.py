"""Direct logit attribution: exact sums, the same as the circuits' decomposition, one by hand."""

import inspect

import pytest
import torch as t

from pvml.attribution import attribute
from pvml.circuits import decompose
from pvml.config import Config
from pvml.errors import CheckFailed, PvmlError
from pvml.modules.transformer import Transformer
from pvml.processing import process
from pvml.trace.tap import listen

KINDS = [
    {},
    {"attn_only": True},
    {"positions": "shortformer"},
    {"positions": "none", "normalization": "none"},
    {"n_layers": 0},
    {"tie_embeddings": True, "n_layers": 3},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_parts_add_up_to_the_logits(make_model, tokens, kind):
    """For any model, position and pair of answers the sum is the model's own, to 1e-12."""
    model = make_model(**kind)
    logits = model(tokens).detach()
    for position in (0, 3, -1):
        found = attribute(model, tokens, [3, 28], minus=5, position=position)
        own = logits[:, position]
        expected = t.stack([own[0, 3] - own[0, 5], own[1, 28] - own[1, 5]])
        t.testing.assert_close(found.values.sum(0), expected, rtol=1e-12, atol=1e-12)
        t.testing.assert_close(found.logits, expected, rtol=1e-12, atol=1e-12)
        assert found.position == position % 7
        assert found.error < 1e-12


def test_every_part_has_its_name(make_model, tokens):
    """Embeddings, MLPs, heads layer by layer, b_O of each layer, and the constants."""
    found = attribute(make_model(), tokens)

    assert [part.name for part in found.parts] == [
        *("token", "position", "mlp 0", "mlp 1"),
        *(f"head {layer}.{head}" for layer in range(2) for head in range(3)),
        *("b_O 0", "b_O 1", "ln_final.b", "b_U"),
    ]
    assert t.equal(found.heads[1, 2], found["head 1.2"])
    assert found.heads.shape == (2, 3, 2)
    assert attribute(make_model(n_layers=0), tokens).heads.shape == (0, 0, 2)
    assert found.frozen == ("ln_final's standard deviation",)
    with pytest.raises(PvmlError, match=r"no part 'head 2.0': this model has token, position"):
        found["head 2.0"]


def test_unless_asked_it_is_the_likeliest_token(make_model, tokens):
    """Without answers each row is about its own first choice."""
    model = make_model()
    found = attribute(model, tokens)

    assert t.equal(found.answers, model(tokens)[:, -1].argmax(-1))


def test_it_says_what_decompose_says(make_model, tokens):
    """Of an attention-only model every part is the circuits' term of that name."""
    model = make_model(attn_only=True)
    found = attribute(model, tokens[:1], 4, position=5)
    routes = decompose(model, tokens[:1], 5)

    assert {part.name for part in found.parts} == {term.name for term in routes.terms}
    for term in routes.terms:
        t.testing.assert_close(found[term.name][0], term.vector[4], rtol=1e-11, atol=1e-12)


def test_folding_moves_no_part(make_model, tokens):
    """Folded LayerNorms leave every part's share as it was; ln_final.b has moved into b_U."""
    model = make_model()
    folded = process(model, steps=["fold_layer_norm"]).model
    before, after = attribute(model, tokens, [3, 4]), attribute(folded, tokens, [3, 4])

    t.testing.assert_close(after.values[:-2], before.values[:-2], rtol=1e-10, atol=1e-12)
    assert not after["ln_final.b"].any()
    t.testing.assert_close(after["b_U"], before["ln_final.b"] + before["b_U"])
    assert after.processing == ("fold_layer_norm",)


def test_a_head_is_worth_what_goes_without_it(make_model, tokens):
    """A last layer's head, silenced in a model without LayerNorm, takes just its part away."""
    model = make_model(normalization="none", attn_only=True).requires_grad_(False)

    def silence(name, z):
        z = z.clone()
        z[:, :, 1] = 0
        return z

    with listen(model, "blocks.1.attn.z", silence, edits=True):
        without = model(tokens)
    lost = (model(tokens) - without)[:, -1, 7]
    t.testing.assert_close(attribute(model, tokens, 7)["head 1.1"], lost, rtol=1e-9, atol=1e-11)


def test_a_model_by_hand():
    """No layers, no LayerNorm: token 1 at position 0 adds W_E W_U, its position W_pos W_U."""
    cfg = Config(d_model=2, n_heads=1, n_layers=0, n_ctx=2, d_vocab=3, normalization="none")
    model = Transformer(cfg, seed=0).double().requires_grad_(False)
    model.W_E[1], model.W_pos[0] = t.tensor([2.0, 3.0]), t.tensor([10.0, 0.0])
    model.W_U[:] = t.tensor([[1.0, 0.0, 5.0], [0.0, 1.0, -1.0]])
    found = attribute(model, t.tensor([[1]]), 2)

    assert [(part.name, value) for part, value in found.largest()] == [
        ("position", 50.0),
        ("token", 7.0),
        ("b_U", 0.0),
    ]
    assert found.logits.tolist() == [57.0]


def test_the_table_adds_up_and_says_so(make_model, tokens):
    """The largest parts, the others together, their sum and the model's own; spreads over rows."""
    found = attribute(make_model(), tokens, [3, 4])
    table = found.table(2)
    columns = [list(column.cells) for column in table.columns]

    assert columns[0] == [
        *(part.name for part, _ in found.largest(2)),
        "12 others",
        "sum",
        "the model's own",
    ]
    numbers = [float(cell) for cell in columns[1]]
    assert sum(numbers[:3]) == pytest.approx(numbers[3], abs=3e-4)
    assert numbers[3] == numbers[4]
    assert len(columns) == 3
    assert table.columns[1].header == "adds to the logit of each row's answer"
    assert len(attribute(make_model(), tokens[:1]).table().columns) == 2
    words = [f"[{i}]" for i in range(29)]
    assert attribute(make_model(), tokens, 3, 4).asked(words) == "'[3]' minus '[4]'"


def test_parts_that_cancel_are_judged_by_their_size(make_model, tokens):
    """Two logits may differ by less than float32 resolves of their parts: no fault of the sum."""
    model = make_model().float()
    logits = model(tokens[:1])[0, -1]
    order = logits.argsort()
    nearest = int((logits[order][1:] - logits[order][:-1]).argmin())
    with t.no_grad():
        model.unembed.b_U[order[nearest]] += logits[order[nearest + 1]] - logits[order[nearest]]
    found = attribute(model, tokens[:1], int(order[nearest + 1]), int(order[nearest]))

    assert found.logits.abs() < 1e-5 < found.values.abs().max()
    assert found.error < 1e-6


def test_a_sum_that_is_off_is_an_error(make_model, tokens):
    """If something edits the pass behind a part, the parts do not add up, and it says so."""
    model = make_model()
    with listen(model, "ln_final.residual", lambda name, x: x + 1.0 * (x > 0), edits=True):
        with pytest.raises(CheckFailed, match="do not add up"):
            attribute(model, tokens)


def test_half_precision_adds_up_as_far_as_it_goes(make_model, tokens):
    """A bfloat16 model's parts add up within what that type resolves."""
    assert attribute(make_model().bfloat16(), tokens).values.dtype == t.float32


@pytest.mark.parametrize(
    ("answers", "options", "message"),
    [
        (29, {}, "token ids run from 0 to 28"),
        (-1, {}, "token ids run from 0 to 28"),
        ([1, 2, 3], {}, "answers must be a token id, or one for each of 2 rows"),
        (1, {"minus": [1]}, "minus must be"),
        (1, {"position": 7}, "position 7 is not in a sequence of 7 tokens"),
    ],
)
def test_bad_input_is_refused(make_model, tokens, answers, options, message):
    """Ids, numbers of answers and positions that are not there."""
    with pytest.raises(PvmlError, match=message):
        attribute(make_model(), tokens, answers, **options)


def test_nothing_to_attribute_is_refused(make_model, tokens):
    """No rows, and rows of no token."""
    for nothing in (tokens[:0], tokens[:, :0]):
        with pytest.raises(PvmlError, match="needs a row with a token"):
            attribute(make_model(), nothing)


def test_answers_that_are_no_ids_are_refused(make_model, tokens):
    """A text is no id, for the answer or for what is subtracted."""
    plainly = inspect.unwrap(attribute)
    for name, given in (("answers", ("a",)), ("minus", (1, "a"))):
        with pytest.raises(PvmlError, match=f"{name} must be token ids, got 'a'"):
            plainly(make_model(), tokens, *given)
