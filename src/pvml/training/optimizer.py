"""What moves the weights: AdamW, with decay on matrices only."""

import torch as t
from torch import nn

from pvml.training.args import TrainingArgs


def make_optimizer(model: nn.Module, args: TrainingArgs) -> t.optim.AdamW:
    """AdamW over the model's trainable parameters, in two groups: with decay and without.

    Source: Loshchilov, Hutter 2017, arXiv:1711.05101, algorithm 2.
    """
    with_decay, without = decay_groups(model)
    groups = [
        {"params": with_decay, "weight_decay": args.weight_decay},
        {"params": without, "weight_decay": 0.0},
    ]
    return t.optim.AdamW(groups, lr=args.lr, fused=True)


def decay_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trainable parameters that decay, and those that do not.

    The weights, W_E to W_U and the tables among them, decay; biases and LayerNorm's w and b do not.
    The number of axes does not tell them apart: b_Q has two. The frozen b_U is in neither.
    """
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    is_matrix = {name: name.rpartition(".")[2].startswith("W_") for name, _ in trainable}
    return (
        [p for name, p in trainable if is_matrix[name]],
        [p for name, p in trainable if not is_matrix[name]],
    )
