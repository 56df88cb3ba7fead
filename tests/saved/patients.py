"""A small made-up table of three hospitals, and made-up weights of layers."""

import numpy as np
import pandas as pd


def patients(count=120, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "site": np.array(["north", "south", "west"])[np.arange(count) % 3],
            "height": rng.normal(178, 10, count).round(1),
            "age": rng.integers(20, 90, count).astype(float),
            "ward": np.array(["a", "b", "c"])[np.arange(count) % 7 % 3],
            "stay": rng.gamma(2.0, 3.0, count).round(2),
        }
    )
    frame.loc[::11, "age"] = np.nan
    frame["back"] = np.where(frame["height"] + rng.normal(0, 5, count) > 182, "yes", "no")
    return frame


def weights(shapes, seed=1):
    """Return layers' weights, named as Flax names them."""
    rng = np.random.default_rng(seed)
    layer = lambda a, b: {"kernel": rng.normal(size=(a, b)).astype("float32"), "bias": rng.normal(size=b).astype("float32")}
    return {f"Dense_{k}": layer(*shape) for k, shape in enumerate(shapes)}
