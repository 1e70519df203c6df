"""What `benchmarks/generate.py` races: one file a peer, each the same weights and a way to write.

A writer's file has `build(model, variant)`: from our model to a function that does a `Task`.
`worker.py` is the process that it lives in.
"""
