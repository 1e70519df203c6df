"""Whether a model computes what its formulae say, tensor by tensor."""
