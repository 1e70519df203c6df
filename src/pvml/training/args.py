"""How a model is trained. What it is, is in `pvml.config`; on what, is the caller's to choose."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from pvml.data.args import Packing
from pvml.errors import PvmlError
from pvml.plain import is_finite, is_whole, make_plain

OptimizerName = Literal["adamw", "muon"]
Schedule = Literal["constant", "linear", "cosine", "wsd"]
Precision = Literal["float32", "bfloat16"]
Parallel = Literal["ddp", "fsdp"]

_CHOICES = {
    "optimizer": get_args(OptimizerName),
    "schedule": get_args(Schedule),
    "precision": get_args(Precision),
    "parallel": get_args(Parallel),
    "packing": get_args(Packing),
}
_WHOLE = {"batch_size": 1, "epochs": 1, "max_steps_per_epoch": 1}
_WHOLE |= {"warmup_steps": 0, "seed": 0, "split_seed": 0}
_WHOLE_OR_UNSET = {"accumulate": 1, "n_held_out": 1, "checkpoint_every": 1, "keep_every": 1}
MOST_STEPS = 10**9
"""Of a run: years on any machine. With more, a schedule's arithmetic overflows before its end."""
_MOST = {
    "epochs": MOST_STEPS,
    "batch_size": 1 << 20,
    "seed": (1 << 32) - 1,
    "split_seed": (1 << 32) - 1,
}
LARGEST = 1e6
"""Of lr, weight_decay and the like: the weights and their products stay far from float32's end."""


@dataclass(frozen=True, kw_only=True)
class TrainingArgs:
    """A training recipe. Without changes it is AdamW with a constant learning rate.

    Raises: PvmlError at construction for a value that cannot be, naming field and value.
    """

    batch_size: int = 32
    """Rows in one step, over all processes and pieces."""
    accumulate: int | None = None
    """Pieces in which a step's batch is computed; the step is the same. Unset: 1, or on a CPU as
    many as leave about 4,096 tokens to each, which saves memory and costs no time."""
    epochs: int = 10
    """Evaluations in a run: an epoch is a pass over the training rows, or is cut short."""
    max_steps_per_epoch: int = 500
    """Most steps in an epoch. The next epoch goes on with the rows that were not reached."""
    optimizer: OptimizerName = "adamw"
    """AdamW for everything, or Muon for the blocks' matrices and AdamW for the rest."""
    lr: float = 1e-3
    """Learning rate at its highest (no unit)."""
    schedule: Schedule = "constant"
    """How lr falls after the warm-up: not at all, in a line, in half a cosine, or late (wsd)."""
    warmup_steps: int = 0
    """First steps, in which lr rises in a line."""
    decay_share: float = 0.2
    """wsd only: the last share of the steps, in which lr falls."""
    final_lr_share: float = 0.0
    """What lr falls to at the end (share of lr)."""
    weight_decay: float = 1e-2
    """Each step takes lr x this share off every weight W_..., tables too; not off biases, norms."""
    grad_clip: float | None = None
    """Largest norm of all gradients together; longer ones are scaled down. Unset: no limit."""
    precision: Precision = "float32"
    """Arithmetic of the matrix products. The weights are float32 either way."""
    position_waves: float | None = None
    """W_pos begins as sines and cosines of this amplitude. Unset: as noise, like all else."""
    parallel: Parallel = "ddp"
    """With several processes: each holds the whole model (ddp) or a share of it (fsdp)."""
    packing: Packing = "stream"
    """Rows cut from one stream of text, or rows that each start at a document's start."""
    checkpoint_every: int | None = None
    """Steps from one checkpoint to the next. Unset: one at each epoch's end."""
    keep_every: int | None = None
    """Checkpoints at multiples of so many steps are saved too, and never removed."""
    seed: int = 0
    """Chooses the order of the rows and the first weights."""
    split_seed: int = 0
    """Chooses the held-out documents."""
    device: str | None = None
    """Where to compute: cpu, cuda, mps, ... Unset: an accelerator where there is one."""
    n_held_out: int | None = None
    """Documents never trained on. Unset: 1,000, or a tenth of them where that is fewer."""
    sample_prompt: str | None = "Once upon a time"
    """What each epoch's sample continues (text). None: no samples."""

    def __post_init__(self) -> None:
        make_plain(self)
        for name, least in _WHOLE.items():
            self._require_whole(name, least)
        for name, least in _WHOLE_OR_UNSET.items():
            if getattr(self, name) is not None:
                self._require_whole(name, least)
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise PvmlError(f"{name} must be at most {most}, got {_shown(getattr(self, name))}")
        for name in ("lr", "decay_share"):
            self._require_number(name, zero=False)
        for name in ("weight_decay", "final_lr_share"):
            self._require_number(name, zero=True)
        for name in ("grad_clip", "position_waves"):
            if getattr(self, name) is not None:
                self._require_number(name, zero=False)
        for name in ("decay_share", "final_lr_share"):
            if getattr(self, name) > 1:
                raise PvmlError(f"{name} must be at most 1, got {getattr(self, name)}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise PvmlError(
                    f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}"
                )
        for name in ("device", "sample_prompt"):
            if not isinstance(getattr(self, name), str | None):
                raise PvmlError(f"{name} must be a text or unset, got {getattr(self, name)!r}")
        prompt = self.sample_prompt or ""
        if prompt.encode(errors="replace").decode() != prompt:
            raise PvmlError(
                f"sample_prompt {prompt!r} holds half of a surrogate pair, which is no character: "
                f"give it as UTF-8"
            )
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        if self.accumulate is not None and self.accumulate > self.batch_size:
            raise PvmlError(
                f"accumulate {self.accumulate} cuts a batch into more pieces than batch_size "
                f"{self.batch_size} has rows: give at most {self.batch_size}"
            )
        if self.optimizer == "muon" and self.parallel == "fsdp":
            raise PvmlError(
                "optimizer muon needs whole matrices, and parallel fsdp gives each process a part "
                "of them: use optimizer adamw, or parallel ddp"
            )
        if self.schedule == "constant" and self.final_lr_share != 0:
            raise PvmlError(
                f"final_lr_share {self.final_lr_share} has no meaning under schedule constant, "
                f"whose lr never falls: leave it out, or use schedule linear, cosine or wsd"
            )
        if self.schedule != "wsd" and self.decay_share != TrainingArgs.decay_share:
            raise PvmlError(
                f"decay_share {self.decay_share} has no meaning under schedule {self.schedule}: "
                f"leave it out, or use schedule wsd"
            )

    def _require_whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not is_whole(value, least):
            raise PvmlError(f"{name} must be a whole number of at least {least}, got {value!r}")

    def _require_number(self, name: str, *, zero: bool) -> None:
        value = getattr(self, name)
        good = is_whole(value, 0) or is_finite(value, 0.0)
        if not good or (value == 0 and not zero):
            wanted = "of at least 0" if zero else "above 0"
            raise PvmlError(f"{name} must be a finite number {wanted}, got {value!r}")
        if value > LARGEST:
            raise PvmlError(f"{name} must be at most {LARGEST:g}, got {value!r}")

    def steps(self, n_batches: int) -> int:
        """How many steps a run of this recipe takes, on rows that make so many batches a pass.

        Raises: PvmlError for more than 10**9.
        """
        n_steps = self.epochs * min(self.max_steps_per_epoch, n_batches)
        if n_steps > MOST_STEPS:
            raise PvmlError(
                f"epochs {self.epochs:,} make {n_steps:,} steps of this corpus, and a run has at "
                f"most {MOST_STEPS:,}: give fewer epochs, or fewer max_steps_per_epoch"
            )
        return n_steps

    def to_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "TrainingArgs":
        """The recipe that `to_dict` described, of this version or an older one.

        What an older version did not know takes its default, except split_seed: such a run was
        split by its seed.

        Raises: PvmlError for a field that this version does not know, or a value that cannot be.
        """
        unknown = sorted(set(saved) - {f.name for f in fields(cls)})
        if unknown:
            raise PvmlError(
                f"unknown training fields {', '.join(unknown)}: this version knows "
                f"{', '.join(f.name for f in fields(cls))}"
            )
        if "seed" in saved:
            saved = {"split_seed": saved["seed"], **saved}
        return cls(**saved)


def _shown(number: int) -> str:
    return str(number) if number < 10**20 else "a number of more than 20 digits"
