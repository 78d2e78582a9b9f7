"""Data that a model makes itself, with noise that is the same whatever its scale."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.random as jr
import numpy as np

from tightrope.types import Array, InputError

SEED = 1


def simulate(forward: Callable[[Any], Array], truth: Mapping[str, Any]) -> np.ndarray:
    """forward(truth) + sigma eta, with one standard normal eta for all sigma."""
    sigma = truth["sigma"]
    if not 0 < sigma < np.inf:
        raise InputError(f"sigma must be positive and finite, not {sigma}.")
    prediction = np.asarray(jax.jit(forward)(truth))
    return prediction + sigma * np.asarray(jr.normal(jr.key(SEED), prediction.shape))
