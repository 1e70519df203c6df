"""What a model's weights say: bigram, QK and OV circuits, read over the whole vocabulary."""

from pvml.lazy import files_of

__getattr__ = files_of(__name__)
