"""What a peer is."""

from collections.abc import Callable

from torch import Tensor, nn

Peer = tuple[nn.Module, Callable[[Tensor], Tensor]]
"""A model, and its loss (mean over the predicted tokens, nats) on token ids in (batch, posn)."""
Step = Callable[[Tensor], float]
"""Takes one training step on token ids in (batch, posn); the loss before it, in nats."""
