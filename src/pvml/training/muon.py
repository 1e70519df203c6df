"""Muon over many matrices at once: those of one shape are orthogonalised together.

The formula is PyTorch's `torch.optim.Muon`, which takes one matrix after the other. Small matrices
leave a processor idle: for the six layers of a model of width 128 that took twice the time.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch as t
from jaxtyping import Float
from torch import Tensor, nn

MOMENTUM = 0.95
_COEFFICIENTS = 3.4445, -4.7750, 2.0315
_ROUNDS = 5
_ENTRIES_AT_ONCE = 1 << 20
"""More are no faster, and their copies take more memory."""


class Muon(t.optim.Optimizer):
    """Nesterov momentum whose steps are orthogonalised. Its parameters are matrices."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, weight_decay: float):
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["momentum_buffer"] = t.zeros_like(p)

    @t.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure: the gradients are there
        """Move every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[t.Size, list[nn.Parameter]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape].append(p)
            for shape, alike in by_shape.items():
                n = max(1, _ENTRIES_AT_ONCE // shape.numel())
                for start in range(0, len(alike), n):
                    self._move(alike[start : start + n], **group)

    def _move(
        self, matrices: Sequence[nn.Parameter], lr: float, weight_decay: float, **_: object
    ) -> None:
        ahead = t.stack([self._ahead(p) for p in matrices])
        # so that an entry is as large as AdamW would make it
        rate = lr * 0.2 * max(ahead.shape[1:]) ** 0.5
        for p, update in zip(matrices, orthogonalised(ahead), strict=True):
            p.mul_(1 - lr * weight_decay)
            p.add_(update, alpha=-rate)

    def _ahead(self, p: nn.Parameter) -> Tensor:
        """The gradient's running mean, a step ahead of itself."""
        assert p.grad is not None
        momentum = self.state[p]["momentum_buffer"].lerp_(p.grad, 1 - MOMENTUM)
        return p.grad.lerp(momentum, MOMENTUM)


def orthogonalised(matrices: Float[Tensor, "n rows columns"]) -> Float[Tensor, "n rows columns"]:
    """Matrices with the same singular vectors, whose singular values are about 1, in bfloat16.

    By a quintic Newton-Schulz iteration. Source: Jordan et al. 2024,
    kellerjordan.github.io/posts/muon.
    """
    a, b, c = _COEFFICIENTS
    x = matrices.bfloat16()
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = t.baddbmm(x, t.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
