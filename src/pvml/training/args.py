"""How a model is trained. What it is, is in `pvml.config`; on what, is the caller's to choose."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pvml.errors import PvmlError

_AT_LEAST_ONE = ("batch_size", "epochs", "max_steps_per_epoch")
_LARGEST_BATCH = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TrainingArgs:
    """A training recipe: AdamW with a constant learning rate.

    Raises: PvmlError at construction for a value that cannot be, naming field and value.
    """

    batch_size: int = 32
    """Rows in one step."""
    epochs: int = 10
    """Evaluations in a run: an epoch is a pass over the training rows, or is cut short."""
    max_steps_per_epoch: int = 500
    """Most steps in an epoch. The next epoch goes on with the rows that were not reached."""
    lr: float = 1e-3
    """Learning rate, constant (no unit)."""
    weight_decay: float = 1e-2
    """AdamW's decay, on matrices only (share of a weight lost per step, times lr)."""
    seed: int = 0
    """Chooses the held-out documents, the order of the rows and the first weights."""
    device: str | None = None
    """Where to compute: cpu, cuda, mps, ... Unset: an accelerator where there is one."""
    n_held_out: int | None = None
    """Documents never trained on. Unset: 1,000, or a tenth of them where that is fewer."""
    sample_prompt: str | None = "Once upon a time"
    """What each epoch's sample continues (text). None: no samples."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            self._require_whole(name, 1)
        if self.batch_size > _LARGEST_BATCH:
            raise PvmlError(f"batch_size must be at most {_LARGEST_BATCH}, got {self.batch_size}")
        if self.n_held_out is not None:
            self._require_whole("n_held_out", 1)
        self._require_whole("seed", 0)
        if self.seed >= 1 << 32:
            raise PvmlError(f"seed must be below {1 << 32}, got {self.seed}")
        for name in ("lr", "weight_decay"):
            self._require_rate(name)
        for name in ("device", "sample_prompt"):
            if not isinstance(getattr(self, name), str | None):
                raise PvmlError(f"{name} must be a text or unset, got {getattr(self, name)!r}")
        prompt = self.sample_prompt or ""
        if prompt.encode(errors="replace").decode() != prompt:
            raise PvmlError(
                f"sample_prompt {prompt!r} holds half of a surrogate pair, which is no character: "
                f"give it as UTF-8"
            )

    def _require_whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise PvmlError(f"{name} must be a whole number of at least {least}, got {value!r}")

    def _require_rate(self, name: str) -> None:
        value = getattr(self, name)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or value < 0 or (name == "lr" and value == 0):
            wanted = "above 0" if name == "lr" else "of at least 0"
            raise PvmlError(f"{name} must be a finite number {wanted}, got {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "TrainingArgs":
        """The recipe that `to_dict` described.

        Raises: PvmlError for a field that this version does not know, or a value that cannot be.
        """
        unknown = sorted(set(saved) - {f.name for f in fields(cls)})
        if unknown:
            raise PvmlError(
                f"unknown training fields {', '.join(unknown)}: this version knows "
                f"{', '.join(f.name for f in fields(cls))}"
            )
        return cls(**saved)
