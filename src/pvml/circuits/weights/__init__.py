"""What a model's weights say: bigram, QK and OV circuits, read over the whole vocabulary."""
