"""What `benchmarks/train.py` races: one file a peer, each a model with our weights and a loss.

A peer's file has `build(model)`: from our model to the peer's own, holding the same weights, and
its loss. `ours.py` takes whole steps. `worker.py` is the process that a contestant lives in,
`process.py` the other end of its pipe, `floor.py` the least that a step can take.
"""
