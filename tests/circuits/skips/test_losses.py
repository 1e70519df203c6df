"""The loss without a head, where its trigrams occur: the model's own, place by place."""

import json
import math
from dataclasses import asdict
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.ablation import ablated, head_means, token_losses
from pvml.circuits.intervals import above_by_chance
from pvml.circuits.skips.losses import _compared, loss_on_occurrences
from pvml.circuits.skips.sightings import RowMean
from pvml.circuits.skips.trigrams import SkipTrigram
from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer


def trigram(head: tuple[int, int], source: int, destination: int, output: int) -> SkipTrigram:
    return SkipTrigram(
        head=head,
        source=source,
        destination=destination,
        output=output,
        attention=0.5,
        logit=2.0,
    )


@pytest.fixture
def rows() -> Tensor:
    """Eleven tokens each, of four kinds, so that every trigram occurs."""
    return t.randint(0, 4, (30, 11), generator=t.Generator().manual_seed(4))


@pytest.mark.parametrize("fill", ["mean", "zero"])
def test_the_change_is_that_at_the_occurrences(make_model: Any, rows: Tensor, fill: Any) -> None:
    """Counted by a loop, with heads of two layers at once, source and destination alike too."""
    model = make_model(positions="shortformer")
    asked = [
        trigram((0, 2), 1, 2, 3),
        trigram((1, 0), 1, 2, 3),
        trigram((1, 0), 3, 3, 0),
        trigram((0, 0), 28, 1, 2),
        trigram((0, 0), 1, 27, 2),
    ]
    found = loss_on_occurrences(model, asked, rows, fill=fill)

    means = head_means(model, rows) if fill == "mean" else None
    own = token_losses(model, rows)
    for each in found:
        with ablated(model, [each.trigram.head], means):
            changes = token_losses(model, rows) - own
        seen, unseen = [], []
        for number, row in enumerate(rows.tolist()):
            for place in range(len(row) - 1):
                if row[place : place + 2] == [each.trigram.destination, each.trigram.output]:
                    before = each.trigram.source in row[:place]
                    (seen if before else unseen).append(float(changes[number, place]))
        for n, mean, places in (
            (each.n, each.increase, seen),
            (each.null_n, each.null_increase, unseen),
        ):
            assert n == len(places)
            assert mean == (pytest.approx(sum(places) / len(places)) if places else None)
    assert found[0].n > 10 and found[0].null_n > 10 and found[0].increase != found[1].increase
    assert found[3].n == 0 and found[3].error is None and found[3].p == 1.0
    assert "nothing to measure at 0 occurrences" in str(found[3])
    assert found[4].n == found[4].null_n == 0 and not found[4].beyond
    assert found[3].untested == "fewer than 2 rows with the source" and found[0].untested == ""


def planted() -> Transformer:
    """Head 0 sees token 1 from 2 and then says 3; head 1 does nothing."""
    cfg = Config(
        d_model=12, n_heads=2, d_head=2, n_layers=1, n_ctx=9, d_vocab=6, attn_only=True,
        positions="none", normalization="none",
    )  # fmt: skip
    model = Transformer(cfg, seed=0)
    for parameter in model.parameters():
        parameter.data.zero_()
    attn = model.blocks[0].attn
    model.embed.W_E.data[:, :6] = t.eye(6)
    model.unembed.W_U.data[6:] = t.eye(6)
    attn.W_Q.data[0, 2, 0] = attn.W_K.data[0, 1, 0] = 3.0
    attn.W_V.data[0, 1, 1], attn.W_O.data[0, 1, 9] = 1.0, 5.0
    return model


def test_a_planted_head_is_worth_something_where_its_trigram_is() -> None:
    """It helps at the occurrences only, beyond chance; the head beside it nowhere."""
    rng = t.Generator().manual_seed(1)
    first = t.randint(4, 6, (60, 5), generator=rng)
    rows = t.cat([first, t.tensor([[2, 3]]).expand(60, 2)], 1)
    rows[::2, 2] = 1
    asked = [trigram((0, 0), 1, 2, 3), trigram((0, 1), 1, 2, 3)]
    planted_one, idle = loss_on_occurrences(planted(), asked, rows, fill="zero")

    assert planted_one.n == planted_one.null_n == 30
    # exactly: attention e^s / (e^s + 5), s = 9 / sqrt(2), times 5 to one of six logits
    share = 1 / (1 + 5 * math.exp(-9 / math.sqrt(2)))
    wanted = math.log(6) - math.log(math.exp(5 * share) + 5) + 5 * share
    assert planted_one.increase == pytest.approx(wanted, rel=1e-4)
    assert planted_one.null_increase == pytest.approx(0.0, abs=1e-6)
    assert idle.increase == pytest.approx(0.0) and idle.p == 1.0 and not idle.beyond


def test_beyond_needs_rows_enough() -> None:
    """The planted head with its mean instead: beyond with many rows, not with one of a kind."""
    rng = t.Generator().manual_seed(1)
    rows = t.randint(0, 6, (240, 9), generator=rng)
    asked = [trigram((0, 0), 1, 2, 3)]
    reference = t.randint(0, 6, (50, 9), generator=rng)
    (many,) = loss_on_occurrences(planted(), asked, rows, reference=reference)
    alone = t.tensor([[0, 1, 2, 3, 4], [0, 4, 2, 3, 4]])
    (few,) = loss_on_occurrences(planted(), asked, alone, reference=reference)

    assert many.beyond and many.p < 1e-6 and (many.increase or 0) > 0.5
    assert few.n == few.null_n == 1 and few.p == 1.0 and not few.beyond
    assert few.untested == "fewer than 2 rows with and without the source" and not many.untested
    assert str(few).endswith("(not tested, fewer than 2 rows with and without the source)")


def test_p_is_welchs() -> None:
    """Two means of three and four rows, by hand: t = 1 / sqrt(1/3 + 1/4) in units of 1."""
    seen = RowMean(n=3, n_rows=3, mean=2.0, variance=1 / 3)
    unseen = RowMean(n=4, n_rows=4, mean=1.0, variance=1 / 4)
    freedom = (7 / 12) ** 2 / ((1 / 3) ** 2 / 2 + (1 / 4) ** 2 / 3)
    found = _compared(trigram((0, 0), 1, 2, 3), "mean", seen, unseen, 2)

    assert found.p == pytest.approx(2 * above_by_chance(1 / math.sqrt(7 / 12), freedom))
    assert found.error == pytest.approx(3**-0.5) and found.null_error == 0.5


def test_results_can_be_read_and_stored() -> None:
    """A sentence with both means and p; JSON takes it all."""
    rows = t.randint(0, 6, (240, 9), generator=t.Generator().manual_seed(1))
    (many,) = loss_on_occurrences(planted(), [trigram((0, 0), 1, 2, 3)], rows)
    told = str(many)
    assert told.startswith("1 ... 2 -> 3 without 0.0 (its mean instead): +")
    assert told.endswith(" without the source (p < 0.001)")
    assert json.loads(json.dumps(asdict(many)))["fill"] == "mean"


def test_bad_input_is_refused(make_model: Any, rows: Tensor) -> None:
    """Rows too long or too short, ids the model does not have, a head that is not there."""
    model = make_model()
    for wrong, message in (
        (rows.repeat(1, 2), "n_ctx"),
        (rows[:, :1], "at least 2 tokens"),
        (rows + 27, "vocabulary"),
    ):
        with pytest.raises(PvmlError, match=message):
            loss_on_occurrences(model, [trigram((0, 0), 1, 2, 3)], wrong)
    with pytest.raises(PvmlError, match=r"no head 5\.0"):
        loss_on_occurrences(model, [trigram((5, 0), 1, 2, 3)], rows)
    assert loss_on_occurrences(model, [], rows) == []
