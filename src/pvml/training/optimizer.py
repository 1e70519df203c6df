"""What moves the weights: AdamW for all, or Muon for the blocks' matrices and AdamW for the rest.

Decay is on the weights W_... only, the tables among them. The rate of each step comes from
`pvml.training.schedules`.
"""

from collections.abc import Mapping
from typing import Any

import torch as t
from einops import rearrange
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from pvml.errors import PvmlError
from pvml.training.args import TrainingArgs

_INTO_ONE_MATRIX = {
    "W_Q": "n_heads d_model d_head -> d_model (n_heads d_head)",
    "W_K": "n_heads d_model d_head -> d_model (n_heads d_head)",
    "W_V": "n_heads d_model d_head -> d_model (n_heads d_head)",
    "W_O": "n_heads d_head d_model -> (n_heads d_head) d_model",
    "W_in": "d_model d_mlp -> d_model d_mlp",
    "W_out": "d_mlp d_model -> d_mlp d_model",
}
"""What Muon moves, and the matrix that it sees."""
_FUSED = ("cpu", "cuda", "mps", "xpu")
"""Device types for which PyTorch has a fused AdamW."""


def make_optimizer(model: nn.Module, args: TrainingArgs) -> "Optimizers":
    """What moves the trainable parameters of a model, which must be on its device by now.

    adamw: AdamW over all of them. Source: Loshchilov, Hutter 2017, arXiv:1711.05101, algorithm 2.

    muon: Muon over each block's W_Q, W_K, W_V, W_O, W_in and W_out; AdamW over W_E, W_pos, W_U,
    the biases and LayerNorm. Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon.
    An update is orthogonalised: its singular values become about 1. The heads of a layer are
    orthogonalised jointly, as one matrix: (d_model, n_heads x d_head) for W_Q, W_K and W_V,
    (n_heads x d_head, d_model) for W_O. Head by head reached higher losses at the best lr of each
    and took twice the time. An update of A x B is scaled by 0.2 sqrt(max(A, B)), so that its
    entries are as large as AdamW's and one lr serves both. Source: Liu et al. 2025,
    arXiv:2502.16982, equation 4.

    Raises: PvmlError naming a matrix whose heads are not stored side by side.
    """
    return Optimizers(model, args)


class Optimizers:
    """AdamW, and Muon where it is asked for, as one optimizer whose state is kept by name.

    `make_optimizer` says which of them moves what.
    """

    def __init__(self, model: nn.Module, args: TrainingArgs):
        """At rest: every average is zero and no step is taken."""
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._state: dict[str, dict[str, Tensor]] = {}
        muons = args.optimizer == "muon"
        self._matrices = [
            _Matrix(name, p)
            for name, p in self._parameters.items()
            if muons and _last(name) in _INTO_ONE_MATRIX
        ]
        self._optimizers: list[t.optim.Optimizer] = [self._make_adamw(model, args)]
        if self._matrices:
            self._optimizers.append(self._make_muon(args))

    def _make_adamw(self, model: nn.Module, args: TrainingArgs) -> t.optim.AdamW:
        elsewhere = {id(matrix.parameter) for matrix in self._matrices}
        decay, without = ([p for p in ps if id(p) not in elsewhere] for ps in decay_groups(model))
        groups = [
            {"params": decay, "weight_decay": args.weight_decay},
            {"params": without, "weight_decay": 0.0},
        ]
        fused = all(p.device.type in _FUSED for p in self._parameters.values())
        adamw = t.optim.AdamW(groups, lr=args.lr, fused=fused or None)
        # what AdamW would make at its first step: so the state is whole, and loaded in place
        for name, p in self._parameters.items():
            if id(p) not in elsewhere:
                step = t.zeros((), dtype=t.float32, device=p.device if fused else "cpu")
                self._state[name] = {
                    "step": step,
                    "exp_avg": t.zeros_like(p),
                    "exp_avg_sq": t.zeros_like(p),
                }
                adamw.state[p] = self._state[name]
        return adamw

    def _make_muon(self, args: TrainingArgs) -> t.optim.Muon:
        muon = t.optim.Muon(
            [matrix.view for matrix in self._matrices],
            lr=args.lr,
            weight_decay=args.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        for matrix in self._matrices:
            momentum = t.zeros_like(matrix.parameter)
            muon.state[matrix.view]["momentum_buffer"] = matrix.of(momentum)
            self._state[matrix.name] = {"momentum_buffer": momentum}
        return muon

    def step(self) -> None:
        """Move every parameter by its gradient. Those without a gradient stay.

        Raises: PvmlError naming a matrix that was moved to other memory after this was made.
        """
        for p in self._parameters.values():
            # the fused kernel reads weight and gradient in the order of their memory, whatever
            # their strides say
            if p.grad is not None and p.grad.stride() != p.stride():
                p.grad = t.empty_like(p).copy_(p.grad)
        for matrix in self._matrices:
            matrix.take_gradient()
        for optimizer in self._optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        """Forget every gradient, and free its memory."""
        for p in (*self._parameters.values(), *(matrix.view for matrix in self._matrices)):
            p.grad = None

    def set_lr(self, lr: float) -> None:
        """The learning rate of the steps to come."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """The averages by parameter name, each of its parameter's shape. Not copied: save at once.

        AdamW keeps step, exp_avg and exp_avg_sq; Muon keeps momentum_buffer. What is spread over
        processes is put together, and every process must call this.
        """
        return {
            name: {key: x.full_tensor() if isinstance(x, DTensor) else x for key, x in kept.items()}
            for name, kept in self._state.items()
        }

    def load_state_dict(self, saved: Any) -> None:
        """Go on from what `state_dict` gave. The numbers are copied into the memory that is there.

        So the next step's bits do not depend on how the saved tensors were laid out.

        Raises: PvmlError listing every entry that is missing, unknown, or of another shape or type.
        Nothing is loaded then.
        """
        if not isinstance(saved, Mapping):
            raise PvmlError(
                f"an optimizer's state is a dictionary by parameter name, not {saved!r}"
            )
        wrong = [f"{n} is missing" for n in self._state if n not in saved]
        wrong += [f"{n} is no trainable parameter" for n in saved if n not in self._state]
        for name, kept in self._state.items():
            if name in saved:
                wrong += _differences(name, kept, saved[name])
        if wrong:
            raise PvmlError(f"this optimizer state is of another model: {'; '.join(wrong)}")
        for name, kept in self._state.items():
            for key, x in kept.items():
                x.copy_(_spread_as(x, saved[name][key]))


class _Matrix:
    """A parameter, and the 2-D view of its memory that Muon moves: autograd fills only the one."""

    def __init__(self, name: str, parameter: nn.Parameter):
        self.name = name
        self.parameter = parameter
        self.view = nn.Parameter(self.of(parameter.detach()))
        self._require_shared(f"its heads do not lie side by side (strides {parameter.stride()})")

    def of(self, x: Tensor) -> Tensor:
        """A tensor of the parameter's shape as a matrix."""
        return rearrange(x, _INTO_ONE_MATRIX[_last(self.name)])

    def take_gradient(self) -> None:
        self._require_shared("it was moved after its optimizer was made")
        grad = self.parameter.grad
        self.view.grad = None if grad is None else self.of(grad)

    def _require_shared(self, otherwise: str) -> None:
        if self.view.data_ptr() != self.parameter.data_ptr():
            raise PvmlError(
                f"Muon cannot move {self.name}: {otherwise}. Make a Transformer, move it, load its "
                f"weights with load_state_dict, and make the optimizer last"
            )


def decay_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trainable parameters that decay, and those that do not.

    The weights, W_E to W_U and the tables among them, decay; biases and LayerNorm's w and b do not.
    The number of axes does not tell them apart: b_Q has two. The frozen b_U is in neither.
    """
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    is_matrix = {name: _last(name).startswith("W_") for name, _ in trainable}
    return (
        [p for name, p in trainable if is_matrix[name]],
        [p for name, p in trainable if not is_matrix[name]],
    )


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _differences(name: str, kept: Mapping[str, Tensor], saved: Any) -> list[str]:
    if not isinstance(saved, Mapping) or set(saved) != set(kept):
        has = ", ".join(sorted(saved)) if isinstance(saved, Mapping) else repr(saved)
        return [f"{name} has {has or 'nothing'} instead of {', '.join(sorted(kept))}"]
    return [
        f"{name}.{key} is {_kind(saved[key])} instead of {_kind(x)}"
        for key, x in kept.items()
        if _kind(saved[key]) != _kind(x)
    ]


def _kind(x: Any) -> str:
    if not isinstance(x, Tensor):
        return f"{x!r}"
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"


def _spread_as(live: Tensor, saved: Tensor) -> Tensor:
    if not isinstance(live, DTensor):
        return saved
    # every process has read the same file: none waits for the first one's numbers
    whole = saved.to(live.device)
    return distribute_tensor(whole, live.device_mesh, live.placements, src_data_rank=None)
