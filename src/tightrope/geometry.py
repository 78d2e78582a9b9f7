"""Metrics that change from place to place: what the Riemannian and position-dependent methods measure lengths by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tightrope.types import Array, InformativeMap, ResidualMap

Geometry = Callable[[Any, Array], Array]


def posterior_energy(model: ResidualMap, u: Array) -> tuple[Array, Array]:
    """Negative log posterior density of u, and the residual there."""
    lift = model.lift(u)
    return model.prior_energy(u) + model.noise_energy(u, lift.e) + lift.log_scale, lift.e


def fisher(model: InformativeMap, u: Array) -> Array:
    """The identity, which is the precision of a normal prior, and the Fisher information of additive normal noise."""
    jacobian = jax.jacfwd(lambda v: model.information_map(u, v))(u)
    return jnp.eye(model.d) + jacobian.T @ jacobian


def lifted(model: ResidualMap, u: Array) -> Array:
    """The metric that the manifold has of the space around it: Theorem 2 of Au, Graham and Thiery (2023)."""
    jacobian = jax.jacfwd(lambda u: model.lift(u).e)(u)
    return jnp.eye(model.d) + jacobian.T @ jacobian


def softabs(model: ResidualMap, u: Array) -> Array:
    """The Hessian of the negative log posterior, made positive: Betancourt (2013)."""
    return soft_absolute(jax.hessian(lambda u: posterior_energy(model, u)[0])(u))


GEOMETRIES: dict[str, Geometry] = {"fisher": fisher, "lifted": lifted, "softabs": softabs}


# The function of a symmetric matrix that turns each eigenvalue l into l coth l.


def soft(eigenvalues: Array) -> Array:
    """l coth l: 1 at zero, and |l| from a few on."""
    x = jnp.abs(eigenvalues)
    is_small = x < 1e-4
    return jnp.where(is_small, 1 + x**2 / 3, x / jnp.tanh(jnp.where(is_small, 1.0, x)))


def soft_slope(eigenvalues: Array) -> Array:
    """The derivative of l coth l."""
    x = jnp.clip(jnp.abs(eigenvalues), max=300.0)  # beyond, sinh overflows
    is_small = x < 1e-4
    safe = jnp.where(is_small, 1.0, x)
    return jnp.sign(eigenvalues) * jnp.where(is_small, 2 * x / 3, 1 / jnp.tanh(safe) - safe / jnp.sinh(safe) ** 2)


@jax.custom_jvp
def soft_absolute(matrix: Array) -> Array:
    eigenvalues, vectors = jnp.linalg.eigh(matrix)
    return (vectors * soft(eigenvalues)) @ vectors.T


@soft_absolute.defjvp
def soft_absolute_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """By divided differences (Daleckii and Krein), which hold where eigenvalues meet and those of eigh do not."""
    (matrix,), (tangent,) = primals, tangents
    eigenvalues, vectors = jnp.linalg.eigh(matrix)
    values = soft(eigenvalues)
    one, other = eigenvalues[:, None], eigenvalues[None, :]
    gap = one - other
    is_close = jnp.abs(gap) < 1e-5 * (1 + jnp.abs(one) + jnp.abs(other))
    slopes = (values[:, None] - values[None, :]) / jnp.where(is_close, 1.0, gap)
    slopes = jnp.where(is_close, soft_slope((one + other) / 2), slopes)
    return (vectors * values) @ vectors.T, vectors @ (slopes * (vectors.T @ tangent @ vectors)) @ vectors.T
