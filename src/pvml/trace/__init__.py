"""Where a tensor gets its name, and the listeners that print, keep or change it."""

from pvml.lazy import files_of

__getattr__ = files_of(__name__)
