"""A prediction, or an attention score, as the exact sum of paths through a frozen model."""
