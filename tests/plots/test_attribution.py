"""Direct logit attribution drawn: the terms, the others, the sum and the model's own."""

import pytest

from pvml.attribution import attribute
from pvml.errors import PvmlError
from pvml.plots.attribution import attribution_sum
from pvml.plots.routes import sum_bars, sum_text


def test_the_bars_are_the_largest_parts(make_model, tokens, tmp_path):
    """The largest get bars of their own, the others one together, and all add up to the logit."""
    found = attribute(make_model(), tokens[:1], 4, 9)
    made = attribution_sum(found, most=3)

    assert made.terms == tuple((part.name, value) for part, value in found.largest(3))
    assert made.n_others == 11
    assert made.total == pytest.approx(made.own, abs=1e-12)
    assert made.own == pytest.approx(float(found.logits[0]))
    text = sum_text(made)
    assert "Logit of token 4 minus token 9 at position 6" in text
    assert "ln_final's standard deviation" in text
    assert sum_bars(made, tmp_path / "bars.svg").stat().st_size > 1000


def test_several_rows_are_told_as_their_mean(make_model, tokens):
    """The title says over how many rows the mean is."""
    made = attribution_sum(attribute(make_model(), tokens, [1, 2]))

    assert made.title == "Logit of each row's answer at position 6, mean of 2 rows"
    with pytest.raises(PvmlError, match="at least 1 part"):
        attribution_sum(attribute(make_model(), tokens), most=0)
