"""What `benchmarks/circuits.py` races: ours and TransformerLens's way to read circuits.

A reader's file has `build(model)`: from our model to a function that does a `Task`. `worker.py` is
the process that it lives in.
"""
