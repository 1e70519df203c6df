"""What the demo can be told. Nothing here imports torch."""

from dataclasses import dataclass, fields

from pvml.config import Positions
from pvml.errors import PvmlError

_AT_LEAST = {
    "limit": 2,
    "steps": 1,
    "n_ctx": 16,
    "d_model": 1,
    "n_heads": 1,
    "d_vocab": 257,
    "batch_size": 1,
    "n_held_out": 1,
}


@dataclass(frozen=True, kw_only=True)
class DemoArgs:
    """Train a small model, let it write, prove it right, and take one of its predictions apart.

    The defaults take less than 3 minutes on 2 cores.

    Raises: PvmlError at construction for a value that cannot be used, naming field and value.
    """

    data: str = "storybook"
    """What to learn: storybook (built in), or your own text, a file or a folder."""
    run_dir: str = "runs"
    """Folder that the run's own folder is made in."""
    name: str = "demo"
    """The run's own folder. An earlier demo of that name is replaced, any other run is not."""
    limit: int = 12_000
    """Most documents to read."""
    steps: int = 1_000
    """Training steps."""
    train_seconds: float = 110.0
    """Longest training (seconds). Where the steps would take longer, fewer are taken, said so."""
    n_ctx: int = 128
    """Length of a row (tokens). Halved until the held-out part of a small text fills one."""
    d_model: int = 128
    """Width of the residual stream (numbers per position)."""
    n_heads: int = 4
    """Attention heads in each of the two layers."""
    positions: Positions = "shortformer"
    """How a position is told: added to the stream, not at all, or to queries and keys only."""
    init_range: float = 0.08
    """Standard deviation of the freshly drawn weights (no unit)."""
    d_vocab: int = 1024
    """Entries of the tokenizer that is trained on the text."""
    batch_size: int = 24
    """Rows in one step; fewer where the text has few rows."""
    lr: float = 4e-3
    """Learning rate, constant (no unit)."""
    n_held_out: int = 200
    """Most documents never trained on; a tenth of them where that is fewer."""
    prompt: str | None = None
    """What the sample goes on from (text). Unset: the first words of a held-out document."""
    seed: int = 0
    """Chooses everything that is random: the same seed, machine and threads give the same run."""
    device: str | None = None
    """Where to compute: cpu, cuda, mps, ... Unset: an accelerator where there is one."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = _AT_LEAST.get(field.name)
            if least is not None and (not isinstance(value, int) or value < least):
                raise PvmlError(
                    f"{field.name} must be a whole number of at least {least}, got {value!r}"
                )
        if not self.train_seconds > 0:
            raise PvmlError(f"train_seconds must be above 0 (seconds), got {self.train_seconds!r}")
        if self.d_model % self.n_heads:
            raise PvmlError(
                f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}: change one"
            )
