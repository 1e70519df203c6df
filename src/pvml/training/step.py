"""One training step: the loss of a batch, its gradients, their clipping, and the move they make.

It knows no files and no epochs; `trainer.py` does.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch as t
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributed.tensor import DTensor

from pvml.device import LONGEST_IN_PIECES
from pvml.errors import PvmlError
from pvml.modules.matmul_route import fastest_float32
from pvml.modules.transformer import Transformer
from pvml.training.args import TrainingArgs
from pvml.training.losses import NextTokenLoss
from pvml.training.nonfinite import NonFiniteError, first_non_finite, first_non_finite_weight
from pvml.training.optimizer import make_optimizer
from pvml.training.processes import Processes, not_yet_added
from pvml.training.schedules import lr_at, require_schedule_fits

_TOKENS_PER_PIECE = 4096
"""On a CPU: more at once are no faster, and their activations take more memory."""


@dataclass(frozen=True)
class StepReport:
    """What a step did."""

    loss: float
    """Mean loss (nats per token) before the move."""
    lr: float
    """The learning rate of the move."""
    grad_norm: float | None
    """The norm of all gradients together, before clipping; None where nothing clips."""

    def to_dict(self) -> dict[str, float]:
        """The figures that there are, by name."""
        clipped = {} if self.grad_norm is None else {"grad_norm": self.grad_norm}
        return {"loss": self.loss, "lr": self.lr, **clipped}


class TrainingStep:
    """A model that learns from one batch after another, in a run of `n_steps`."""

    def __init__(
        self,
        model: Transformer,
        args: TrainingArgs,
        n_steps: int,
        processes: Processes | None = None,
    ):
        """The model must be on its device. Over several processes it may be spread from here on.

        Raises: PvmlError if the schedule does not fit the steps.
        """
        require_schedule_fits(args, n_steps)
        self.model = model
        self.args = args
        self.n_steps = n_steps
        self.processes = processes or Processes(0, 1, model.device)
        self.loss = self.processes.spread(NextTokenLoss(model, args.precision), args.parallel)
        self.optimizer = make_optimizer(model, args)

    def take(self, step: int, tokens: Int[Tensor, "batch posn"]) -> StepReport:
        """Move the weights by one batch's gradients. step: how many were taken before.

        tokens: this process's rows. The report, and the move, are those of all processes' rows.

        Raises: NonFiniteError for a loss that is NaN or infinite, or, where gradients are clipped,
        for such a gradient: it names the step, the rate and the first such tensor. The weights are
        unmoved then.
        """
        lr = lr_at(step, self.n_steps, self.args)
        loss = self.gradients(tokens)
        if not math.isfinite(loss):
            self.optimizer.zero_grad()
            first = first_non_finite(self.processes.whole(self.model), tokens)
            raise NonFiniteError.of(f"the loss of step {step + 1:,} is {loss}", lr, first)
        norm = self._clip()
        if norm is not None and not math.isfinite(norm):
            first = first_non_finite_weight(self.model, gradients=True)
            self.optimizer.zero_grad()
            what = f"the norm of the gradients of step {step + 1:,} is {norm}"
            raise NonFiniteError.of(what, lr, first and f"the gradient of {first}")
        self.optimizer.set_lr(lr)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return StepReport(loss, lr, norm)

    def gradients(self, tokens: Int[Tensor, "batch posn"]) -> float:
        """The mean loss (nats per token) of a batch, whose gradients are left at the weights.

        The losses of every piece are summed and divided by the tokens of the whole batch: how it
        is cut, into pieces or over processes, changes nothing but rounding.

        Raises: PvmlError for another number of rows than this process's share of the batch.
        """
        share = len(self.processes.share(range(self.args.batch_size))[0])
        if len(tokens) != share:
            raise PvmlError(
                f"{len(tokens)} rows came, and this process's share of batch_size "
                f"{self.args.batch_size} is {share}"
            )
        n_graded = self.args.batch_size * (tokens.shape[1] - 1)
        *pieces, last = tokens.tensor_split(self._n_pieces(tokens))
        with not_yet_added(self.loss):
            nats = [self._backward(piece, n_graded) for piece in pieces]
        nats.append(self._backward(last, n_graded))
        return float(self.processes.sum(t.stack(nats).sum())) / n_graded

    def _n_pieces(self, tokens: Int[Tensor, "batch posn"]) -> int:
        if self.args.accumulate is not None:
            return self.args.accumulate
        if tokens.device.type != "cpu":
            return 1
        return max(1, min(len(tokens), round(tokens.numel() / _TOKENS_PER_PIECE)))

    def _backward(self, piece: Int[Tensor, "batch posn"], n_graded: int) -> Float[Tensor, ""]:
        # attention's kernel, which takes the longer rows, multiplies slower by that route
        short = piece.shape[1] <= LONGEST_IN_PIECES
        with fastest_float32(piece.device, t.float32) if short else nullcontext():
            nats, _, _ = self.loss(piece)
            # over several processes gradients come out as their mean, and the sum is wanted
            (nats * (self.processes.count / n_graded)).backward()
        return nats.detach()  # type: ignore[no-any-return]

    def _clip(self) -> float | None:
        if self.args.grad_clip is None:
            return None
        norm = t.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.grad_clip)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
