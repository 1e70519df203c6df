"""The induction circuit: found, taken apart, and what it is worth where tokens repeat."""

from pvml.lazy import files_of

__getattr__ = files_of(__name__)
