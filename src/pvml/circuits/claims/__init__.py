"""Claims: what is said of heads, with the scores, nulls and inputs that it stands on."""

from pvml.lazy import files_of

__getattr__ = files_of(__name__)
