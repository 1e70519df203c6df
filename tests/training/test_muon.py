"""Muon moves many matrices at once as PyTorch's moves them one by one."""

from copy import deepcopy

import pytest
import torch as t

from pvml.training import muon
from pvml.training.muon import Muon, orthogonalised

SHAPES = [(8, 8), (8, 24), (8, 8), (24, 8), (8, 24), (8, 8)]


def matrices() -> list[t.nn.Parameter]:
    generator = t.Generator().manual_seed(3)
    return [t.nn.Parameter(t.randn(shape, generator=generator)) for shape in SHAPES]


@pytest.mark.parametrize("at_once", [1, 2 * 8 * 24, 1 << 20])
def test_three_steps_are_pytorchs_own(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """However many go together, matrices end where torch.optim.Muon puts them, but for rounding."""
    monkeypatch.setattr(muon, "_ENTRIES_AT_ONCE", at_once)
    ours = matrices()
    theirs = deepcopy(ours)
    before = deepcopy(ours)
    settings = {"lr": 0.01, "weight_decay": 0.3}
    moving = Muon(ours, **settings)
    there = t.optim.Muon(theirs, **settings, adjust_lr_fn="match_rms_adamw")
    generator = t.Generator().manual_seed(4)
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = t.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        moving.step()
        there.step()

    for one, other, was in zip(ours, theirs, before, strict=True):
        # bfloat16's rounding, 2^-9, grows some ten times over five rounds
        assert (one - other).norm() < 0.03 * (other - was).norm()


def test_a_matrix_without_gradient_stays() -> None:
    """It neither moves nor decays, and does not disturb those that lie with it."""
    ours = matrices()
    before = deepcopy(ours)
    for p in ours[1:]:
        p.grad = t.ones_like(p)
    Muon(ours, lr=0.01, weight_decay=0.3).step()

    assert t.equal(ours[0], before[0])
    assert not any(t.equal(p, was) for p, was in zip(ours[1:], before[1:], strict=True))


@pytest.mark.parametrize("shape", [(5, 40, 12), (5, 12, 40), (5, 12, 12)])
def test_singular_values_become_about_one(shape: tuple[int, int, int]) -> None:
    """They end between 0.3 and 1.3, whatever they were, and each matrix on its own."""
    x = t.randn(shape, generator=t.Generator().manual_seed(5))
    x *= t.tensor([1e-3, 1.0, 30.0, 1e4, 2.0])[:, None, None]
    values = t.linalg.svdvals(orthogonalised(x).float())

    assert values.min() > 0.3
    assert values.max() < 1.3


def test_zeros_stay_zeros() -> None:
    """A gradient of nothing has no direction: no division by its norm gives NaN."""
    assert not orthogonalised(t.zeros(2, 3, 4)).any()
