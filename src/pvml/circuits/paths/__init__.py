"""A prediction, or an attention score, as the exact sum of paths through a frozen model."""

from pvml.lazy import files_of

__getattr__ = files_of(__name__)
