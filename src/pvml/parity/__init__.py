"""Whether a model computes what its formulae say, tensor by tensor."""

from pvml.lazy import files_of

__getattr__ = files_of(__name__)
