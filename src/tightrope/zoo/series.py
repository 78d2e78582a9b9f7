"""Power series."""

from collections.abc import Sequence
from functools import reduce

import jax.numpy as jnp

from tightrope.types import Array


def power_series(coefficients: Sequence[float], x: Array) -> Array:
    """c0 + c1 x + c2 x^2 + ..., by Horner's rule."""
    return reduce(lambda total, c: total * x + c, reversed(coefficients), jnp.zeros(()))
