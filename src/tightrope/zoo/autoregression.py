"""The stationary autoregression of first order."""

import jax.numpy as jnp

from tightrope.observations import Params
from tightrope.types import Array


def initial(phi: Params, nu: Array) -> Array:
    """The first state, from the law that the later ones keep."""
    return phi["mu"] + phi["gamma"] / jnp.sqrt((1 - phi["rho"]) * (1 + phi["rho"])) * nu


def transition(phi: Params, nu: Array, x: Array) -> Array:
    """The state after x."""
    return phi["mu"] + phi["rho"] * (x - phi["mu"]) + phi["gamma"] * nu
