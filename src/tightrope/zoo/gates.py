"""Gates of ion channels, which open and close at rates that the voltage sets."""

import jax.numpy as jnp

from tightrope.types import Array
from tightrope.zoo.series import power_series

NEAR = 0.5  # where phi is a series
# Of phi, whose odd part is -x / 2.
EVEN_PART = (1.0, 1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600)


def phi(x: Array) -> Array:
    """x / (exp(x) - 1), smooth at 0 and finite everywhere, its derivatives too."""
    is_near = jnp.abs(x) < NEAR
    # Each branch sees only arguments that suit it, or derivatives of the other one would be NaN.
    near = jnp.where(is_near, x, 0.0)
    far = jnp.where(is_near, 1.0, x)
    size = jnp.abs(far)
    decay = jnp.exp(-size)
    return jnp.where(
        is_near,
        power_series(EVEN_PART, near**2) - near / 2,
        size / (1 - decay) * jnp.where(far > 0, decay, 1.0),
    )


def settle(opening: Array, closing: Array) -> Array:
    """The share of open gates in the long run."""
    return opening / (opening + closing)


def relax(x: Array, time: Array | float, opening: Array, closing: Array) -> Array:
    """The share of open gates after some time, x before it: x' = opening (1 - x) - closing x."""
    rest = settle(opening, closing)
    return rest + (x - rest) * jnp.exp(-time * (opening + closing))
