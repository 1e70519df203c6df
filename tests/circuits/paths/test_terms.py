"""An expansion's terms as a list, and what a notebook shows of large objects."""

from collections.abc import Callable

import pytest
import torch as t

from pvml.circuits.paths.logit_paths import Expansion, expand
from pvml.circuits.paths.score_paths import expand_score
from pvml.circuits.weights.maps import ov
from pvml.modules.transformer import Transformer

MakeModel = Callable[..., Transformer]


@pytest.fixture
def expansion(make_model: MakeModel) -> Expansion:
    return expand(make_model(attn_only=True), t.tensor([[1, 2, 3]]), quiet=True)


def test_terms_are_a_list(expansion: Expansion) -> None:
    """Paths, then constants, by place, from the end and as slices; together they are the sum."""
    terms = expansion.terms
    names = [path.name for path in expansion.paths] + [one.name for one in expansion.constants]

    assert [term.name for term in terms] == names and len(terms) == len(names)
    assert terms[0].name == names[0] and terms[-1].name == names[-1]
    assert [term.name for term in terms[2:5]] == names[2:5]
    t.testing.assert_close(t.stack([term.vector for term in terms]).sum(0), expansion.logits)
    with pytest.raises(IndexError):
        terms[len(names)]


def test_large_objects_are_shown_in_a_line(make_model: MakeModel, expansion: Expansion) -> None:
    """What it is and how well it adds up, and no tensor."""
    model, tokens = make_model(attn_only=True), t.tensor([[1, 2, 3]])
    score = expand_score(model, tokens, (1, 0), 2, 1, quiet=True)
    circuit = ov(model, (1, 2))

    assert repr(expansion).startswith("<the logits at position 2: ") and "paths" in repr(expansion)
    assert repr(expansion.paths[0]) == f"<path {expansion.paths[0].name}>"
    assert repr(expansion.terms[-1]) == "<term b_U>"
    assert repr(score).startswith("<the score of key 1 for query 2: ")
    assert repr(circuit.map) == "<map 29 x 29 of rank 5 at most, torch.float64>"
    assert repr(circuit).startswith(f"<OV 1.2, vocabulary by vocabulary, {circuit.map!r}: Layer")
    for shown in (expansion, score, circuit):
        assert "tensor(" not in repr(shown) and len(repr(shown)) < 400
