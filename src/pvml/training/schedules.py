"""How the learning rate moves over a run: it rises in the warm-up, then stays or falls.

A schedule has no state. The rate of a step follows from its number alone, so a resumed run needs
nothing but its step.
"""

from math import cos, pi

from pvml.errors import PvmlError
from pvml.training.args import TrainingArgs


def lr_at(step: int, n_steps: int, args: TrainingArgs) -> float:
    """The learning rate of a step about to be taken, counted from 0, in a run of n_steps.

    Warm-up: lr/warmup_steps at step 0, lr at its last step. What falls, falls from lr to
    final_lr_share x lr, which it would reach at step n_steps: no step is wasted at a rate of 0.

    - constant: lr.
    - linear: along a line.
    - cosine: along half a cosine. Source: Loshchilov, Hutter 2016, arXiv:1608.03983, equation 5.
    - wsd (warm-up, stable, decay): lr, then along a line over the last decay_share of the steps.
      Source: Hu et al. 2024, arXiv:2404.06395, section 4, where the fall is left open.

    Raises: PvmlError if the step is not one of the run's, or the schedule does not fit.
    """
    require_schedule_fits(args, n_steps)
    if not 0 <= step < n_steps:
        raise PvmlError(f"step {step} is not one of {n_steps} steps, which count from 0")
    if step < args.warmup_steps:
        return args.lr * (step + 1) / args.warmup_steps
    share = args.final_lr_share + (1 - args.final_lr_share) * _height(step, n_steps, args)
    return args.lr * share


def _height(step: int, n_steps: int, args: TrainingArgs) -> float:
    """Where a step past the warm-up stands, from 1 (lr) down to 0 (the final rate)."""
    left = n_steps - step
    match args.schedule:
        case "constant":
            return 1.0
        case "linear":
            return left / (n_steps - args.warmup_steps)
        case "cosine":
            return (1 - cos(pi * left / (n_steps - args.warmup_steps))) / 2
        case "wsd":
            return min(1.0, left / _decay_steps(args, n_steps))


def _decay_steps(args: TrainingArgs, n_steps: int) -> int:
    return max(1, round(args.decay_share * n_steps))


def require_schedule_fits(args: TrainingArgs, n_steps: int) -> None:
    """Nothing, if the warm-up, and under wsd the decay after it, have room in n_steps.

    Raises: PvmlError naming the steps that there are and that are needed.
    """
    if args.warmup_steps > n_steps:
        raise PvmlError(
            f"warmup_steps {args.warmup_steps} is longer than the run, which has {n_steps} steps: "
            f"give at most {n_steps}, or more epochs"
        )
    if args.schedule == "wsd" and args.warmup_steps + _decay_steps(args, n_steps) > n_steps:
        raise PvmlError(
            f"warmup_steps {args.warmup_steps} and the decay of schedule wsd, the last "
            f"{_decay_steps(args, n_steps)} steps (decay_share {args.decay_share}), overlap in a "
            f"run of {n_steps} steps: shorten one of them"
        )
