"""The normal distribution far into its tails, and between two bounds."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import erfc, ndtr, ndtri

from tightrope.types import Array

ROOT_2 = math.sqrt(2.0)
LOG_2 = math.log(2.0)
LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)
ASYMPTOTIC = 12.0  # fourteen terms of Mills' ratio have all digits from here on
NARROW = 1e-3  # where four terms of a series have all digits

# No branch that `where` discards may be infinite, or have an infinite slope, as the gradient would be NaN:
# arguments are chosen first, functions applied after.


def lower_tail(z):
    """-|z|, with slope one at zero."""
    return jnp.where(z <= 0, z, -z)


def lower_share(z):
    """Phi(z), where z <= 0."""
    return 0.5 * erfc(-z / ROOT_2)


def from_tails(log_p, log_q):
    """The normal quantile of p = 1 - q, from whichever is smaller."""
    z = ndtri_exp(jnp.where(log_p <= log_q, log_p, log_q))
    return jnp.where(log_p <= log_q, z, -z)


def log1mexp(x):
    """log(1 - exp(x)) for negative x."""
    is_small = x > -1.5
    small, large = jnp.where(is_small, x, -1.0), jnp.where(is_small, -1.0, x)
    return jnp.where(is_small, jnp.log(-jnp.expm1(small)), jnp.log1p(-jnp.exp(large)))


def log_density(z):
    return -0.5 * z**2 - LOG_ROOT_2PI


def log_minus_log_ndtr(z):
    """log(-log Phi(z)), which is log Phi(-z) to rounding from z = 8 on."""
    is_far = z > 8
    return jnp.where(is_far, log_ndtr(-z), jnp.log(-log_ndtr(jnp.where(is_far, 0.0, z))))


def cotangent(tail, factor):
    """cot(factor pi Phi(tail)); the clip keeps it and two derivatives below overflow."""
    tail = jnp.maximum(tail, -37.0)
    angle = factor * jnp.pi * ndtr(tail)
    is_small = angle < 1e-4
    safe = jnp.where(is_small, 1.0, angle)
    ratio = jnp.where(is_small, 1 - angle**2 / 3, safe * jnp.cos(safe) / jnp.sin(safe))
    return ratio * jnp.exp(-log_ndtr(tail)) / (factor * jnp.pi)


@jax.custom_jvp
def log_ndtr(z: Array) -> Array:
    """log Phi(z), with the digits that jax's own loses from z = 1 to 8."""
    tail = -jnp.abs(z)
    share = lower_share(tail)
    log_share = jnp.where(tail > -ASYMPTOTIC, jnp.log(share), log_density(tail) + log_far_mills(-tail))
    # XLA's log1p has two digits less where this takes log instead.
    return jnp.where(z <= 0, log_share, jnp.where(share > 0.25, jnp.log(1 - share), jnp.log1p(-share)))


@log_ndtr.defjvp
def _(primals, tangents):
    (z,), (dz,) = primals, tangents
    out = log_ndtr(z)
    return out, jnp.exp(log_density(z) - out) * dz


@jax.custom_jvp
def ndtri_exp(log_p: Array) -> Array:
    """The inverse of log_ndtr, by Newton's method in the smaller tail."""
    is_lower = log_p <= -LOG_2
    tail = jnp.where(is_lower, log_p, log1mexp(jnp.where(is_lower, -1.0, log_p)))
    # The start is on the near side of the root of a concave function: one step over it, the rest monotone.
    drop, hazard = -LOG_2 - tail, math.sqrt(2 / math.pi)
    start = -2 * drop / (hazard + jnp.sqrt(hazard**2 + 2 * drop))

    def improve(_, z):
        reached = log_ndtr(z)
        return z - (reached - tail) * jnp.exp(reached - log_density(z))

    z = jnp.where(jnp.isneginf(tail), tail, lax.fori_loop(0, 5, improve, start))
    return jnp.where(is_lower, z, -z)


@ndtri_exp.defjvp
def _(primals, tangents):
    (log_p,), (dlog_p,) = primals, tangents
    z = ndtri_exp(log_p)
    return z, jnp.exp(log_p - log_density(z)) * dlog_p


def log_far_mills(x):
    """log of Q(x) / phi(x), asymptotically."""
    x = jnp.maximum(x, ASYMPTOTIC)
    series = 1.0
    for k in range(27, 0, -2):
        series = 1.0 - k / x**2 * series
    return jnp.log(series / x)


def density(x: Array) -> Array:
    """The normal density."""
    return jnp.exp(log_density(x))


def mass(a: Array, b: Array, width: Array) -> Array:
    """Phi(b) - Phi(a), where width is b - a with all its digits."""
    series = 1 - width * (a / 2 - width * ((a**2 - 1) / 6 - width * (a**3 - 3 * a) / 24))
    wide = jnp.where(a > 0, ndtr(-a) - ndtr(-b), ndtr(b) - ndtr(a))
    return jnp.where(width * (1 + jnp.abs(a)) < NARROW, density(a) * width * series, wide)


class Interval(NamedTuple):
    """Bounds of a truncated normal, and all that is to be known of them: constants, to the compiler, where they are."""

    a: Array
    b: Array
    below: tuple[Array, Array]  # Phi(a), Phi(b)
    above: tuple[Array, Array]  # Phi(-a), Phi(-b)
    mass: Array  # Phi(b) - Phi(a)

    @classmethod
    def of(cls, a: Array, b: Array, width: Array) -> Interval:
        """From a to b, where width is b - a with all its digits; bounds may lie up to 37 from the centre."""
        return cls(a, b, (ndtr(a), ndtr(b)), (ndtr(-a), ndtr(-b)), mass(a, b, width))

    def mirrored(self) -> Interval:
        return Interval(-self.b, -self.a, self.above[::-1], self.below[::-1], self.mass)


@jax.custom_jvp
def truncated_offset(z: Array, interval: Interval) -> Array:
    """x - a, for the x with (Phi(x) - Phi(a)) / (Phi(b) - Phi(a)) = Phi(z), z <= 0, to relative precision near a."""
    a, share = interval.a, lower_share(z)
    below, above = (near * (1 - share) + far * share for near, far in (interval.below, interval.above))
    x = ndtri(jnp.minimum(below, above))
    x = jnp.where(below <= above, x, -x)
    # Near a, where x - a has lost its digits, the inverse of the series for the mass.
    g = interval.mass * share / density(a)
    series = g * (1 + g * (a / 2 + g * ((1 + 2 * a**2) / 6 + g * (7 * a + 6 * a**3) / 24)))
    return jnp.where(g * (1 + jnp.abs(a)) < NARROW, series, x - a)


@truncated_offset.defjvp
def _(primals, tangents):
    (z, interval), (dz, change) = primals, tangents
    offset = truncated_offset(z, interval)
    # A quotient of densities would underflow.
    relative = lambda y: jnp.exp(log_density(y) - log_density(interval.a + offset))
    by_z = interval.mass * relative(z)
    share = lower_share(z)
    by_a, by_b = relative(interval.a) * (1 - share) - 1, relative(interval.b) * share
    return offset, by_z * dz + by_a * change.a + by_b * change.b
