"""Where every random generator stands, as plain values that a checkpoint can hold."""

import random
from typing import Any

import numpy as np
import torch as t


def random_state(device: t.device) -> dict[str, Any]:
    """The states of Python's, NumPy's and torch's own generators, and of the device's."""
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    state = {
        "python": random.getstate(),
        "numpy": (str(kind), [int(key) for key in keys], place, has_gauss, gauss),
        "torch": t.get_rng_state(),
    }
    if device.type != "cpu":
        state["device"] = t.get_device_module(device).get_rng_state()
    return state


def set_random_state(state: Any, device: t.device) -> None:
    """Put every generator where it stood. A device of another kind keeps its own state.

    Raises: KeyError, TypeError or ValueError if `random_state` did not give this.
    """
    kind, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))
    t.set_rng_state(state["torch"])
    if device.type != "cpu" and "device" in state:
        t.get_device_module(device).set_rng_state(state["device"])
