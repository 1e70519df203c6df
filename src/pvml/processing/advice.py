"""What to do where a model predicts something else than before by more than rounding should."""

import torch as t


def advice(dtype: t.dtype) -> str:
    """Sentences for a check in this dtype that failed: what it may be, most likely first."""
    asked = "Is something editing this model's tensors, or are its numbers not finite?"
    if dtype == t.float64:
        return f"{asked} If not, this is a fault of PvML"
    return (
        f"{asked} If not, it may be rounding, as where a stream's mean is far from 0: try "
        f"dtype='float64' in pvml.load, or model.double(). What fails there, too, is a fault of "
        f"PvML"
    )
