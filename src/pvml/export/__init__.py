"""Models in other libraries' forms, each read back by its library before it is kept."""

from pvml.lazy import files_of

__getattr__ = files_of(__name__)
