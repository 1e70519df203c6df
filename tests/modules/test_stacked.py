"""Stacked weights: what they are, that gradients flow through them, that no write is lost."""

import copy

import numpy as np
import pytest
import torch as t

from pvml.circuits import FactoredMap
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError

PER_LAYER = {
    "attn": ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O"),
    "mlp": ("W_in", "b_in", "W_out", "b_out"),
}
NAMES = [name for names in PER_LAYER.values() for name in names]


def test_every_stack_holds_each_layers_parameter(make_model):
    """`model.W_Q[layer]` is that layer's parameter, for every name and layer."""
    model = make_model(n_layers=3)
    for part, names in PER_LAYER.items():
        for name in names:
            stack = getattr(model, name)
            assert len(stack) == 3
            for layer, block in enumerate(model.blocks):
                assert t.equal(stack[layer], getattr(getattr(block, part), name)), name


def test_a_head_is_asked_for_by_layer_and_head(make_model):
    """`model.W_Q[layer, head]` has the shape of one head's matrix, and is that one."""
    model = make_model()

    assert model.W_Q[1, 2].shape == (13, 5)
    assert t.equal(model.W_Q[1, 2], model.blocks[1].attn.W_Q[2])
    assert t.equal(model.W_O[-1, 0], model.blocks[1].attn.W_O[0])
    factored = FactoredMap(model.W_V[0, 1], model.W_O[0, 1])
    assert (model.W_O[1, 0] @ factored).shape == (5, 13)


def test_gradients_flow_into_the_parameters(make_model):
    """A loss made of one head's stacked weight moves that head of that layer, and no other."""
    model = make_model()
    (model.W_Q[1, 2] @ model.W_K[1, 2].T).square().sum().backward()

    moved = [block.attn.W_Q.grad.flatten(1).abs().amax(1) > 0 for block in model.blocks]
    assert t.stack(moved).tolist() == [[False] * 3, [False, False, True]]
    assert model.blocks[1].attn.W_K.grad[2].abs().max() > 0


def set_item(w):
    w[0, 1] = 0


def set_row_of_view(w):
    w[0][1][...] = 0


def unbound(w):
    for layer in w:
        layer.zero_()


WRITES = {
    "set item": set_item,
    "in place": lambda w: w.zero_(),
    "operator": lambda w: w.__imul__(2),
    "a view's item": set_row_of_view,
    "a view in place": lambda w: w[0, 1].mul_(2),
    "transposed": lambda w: w.mT.add_(1),
    "rearranged": lambda w: w.flatten(0, 1)[0].fill_(1),
    "each layer": unbound,
    "detached": lambda w: w.detach().zero_(),
    "data": lambda w: w.data.zero_(),
    "out=": lambda w: t.mul(t.ones_like(w), 2, out=w.detach()),
    "copy": lambda w: w.copy_(t.zeros(w.shape, dtype=w.dtype)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("mode", [t.no_grad, t.inference_mode, t.enable_grad])
def test_no_write_into_a_copy_is_silent(make_model, write, mode):
    """However it is written, a write into a stack is an error that names the parameter."""
    model = make_model().requires_grad_(False)

    with mode(), pytest.raises(PvmlError, match=r"model.blocks\[layer\].attn.W_Q"):
        write(model.W_Q)


def test_a_numpy_view_refuses_writes_too(make_model):
    """NumPy itself refuses to write into a view of a stack."""
    view = make_model().W_Q.detach().numpy()

    with pytest.raises(ValueError, match="read-only"):
        view[0] = 0
    assert isinstance(view, np.ndarray)


def test_what_is_computed_can_be_written(make_model, tmp_path):
    """A product, a copy, and what was stored and read back are ordinary tensors of one's own."""
    model = make_model().requires_grad_(False)
    own = model.W_V.clone()
    own[0, 0] = 0
    copied = copy.deepcopy(model.W_V)
    copied[0, 0] = 0
    t.save(model.W_V, tmp_path / "W_V.pt")
    stored = t.load(tmp_path / "W_V.pt", weights_only=True)
    product = model.W_V[0, 0] @ model.W_O[0, 0]
    product.zero_()

    assert {type(x) for x in (own, copied, stored, product)} == {t.Tensor}
    assert t.equal(stored, model.W_V)
    assert model.W_V[0, 0].any()


def test_tables_are_the_parameters_themselves(make_model):
    """A write into W_E, W_pos, W_U or b_U acts, for each is the model's own."""
    model = make_model()
    with t.no_grad():
        model.W_E[3] = 1.0
        model.W_U[:, 4] = 2.0

    assert model.W_E is model.embed.W_E
    assert model.W_pos is model.pos_embed.W_pos
    assert model.b_U is model.unembed.b_U
    assert (model.embed.W_E[3] == 1).all()
    assert (model.unembed.W_U[:, 4] == 2).all()


def test_a_tied_model_has_one_table(make_model):
    """W_U of a tied model is W_E transposed, in the same memory."""
    model = make_model(tie_embeddings=True)
    with t.no_grad():
        model.W_U[:, 4] = 2.0

    assert (model.W_E[4] == 2).all()


def test_what_a_model_lacks_is_an_error(make_model):
    """No MLPs and no positions: the message says which model this is."""
    model = make_model(attn_only=True, positions="none")

    with pytest.raises(PvmlError, match="attention-only.*no W_in"):
        model.W_in  # noqa: B018
    with pytest.raises(PvmlError, match="no W_pos"):
        model.W_pos  # noqa: B018


def test_no_layers_give_empty_stacks(make_model):
    """A bigram model has stacks of length 0, in the shapes of its Config."""
    model = make_model(n_layers=0)

    assert model.W_Q.shape == (0, 3, 13, 5)
    assert model.b_O.shape == (0, 13)
    assert model.W_in.shape == (0, 13, 17)
    assert model.all_head_labels() == []


def test_a_state_dict_has_no_stacks(make_model):
    """The stacks are asked for, not stored, and a stack cannot be assigned."""
    model = make_model()

    assert not {*NAMES, "W_E", "W_U"} & set(model.state_dict())
    with pytest.raises((AttributeError, KeyError)):
        model.W_Q = t.nn.Parameter(model.W_Q.detach().clone())


def test_directions_are_columns_of_the_unembedding(make_model, tokens):
    """One id gives a vector, ids in (batch, posn) keep their axes; a batch of 1 keeps its own."""
    model = make_model()
    W_U = model.unembed.W_U

    assert t.equal(model.tokens_to_residual_directions(4), W_U[:, 4])
    directions = model.tokens_to_residual_directions(tokens)
    assert t.equal(directions[1, 3], W_U[:, tokens[1, 3]])
    assert model.tokens_to_residual_directions(tokens[:1, 0]).shape == (1, 13)
    for wrong in (29, -1, t.tensor([3, 29])):
        with pytest.raises(PvmlError, match="token ids"):
            model.tokens_to_residual_directions(wrong)

    tokenizer = Tokenizer.train(["the cat sat"], 260)
    model = make_model(d_vocab=tokenizer.d_vocab)
    model.tokenizer = tokenizer
    (letter,) = tokenizer.encode("c")
    assert t.equal(model.tokens_to_residual_directions("c"), model.unembed.W_U[:, letter])
    with pytest.raises(PvmlError, match="'cat sat' is . tokens, not 1"):
        model.tokens_to_residual_directions("cat sat")


def test_head_labels_are_in_the_order_of_layers(make_model):
    """`L0H0`, `L0H1`, ... layer by layer."""
    assert make_model().all_head_labels() == ["L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]
