"""Small factors."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tightrope.types import Array


def orthonormalise(rows: Array) -> tuple[Array, Array]:
    """An orthonormal basis of the row space, as rows, and 1/2 log det(rows rows^T).

    Householder QR: its error grows with the condition number, where a Cholesky factor of the Gram matrix
    has the square of it and breaks down at sigma = 1e-6.
    """
    if len(rows) == 1:  # no call of LAPACK: a step of the toy takes a quarter less
        length = jnp.sqrt((rows**2).sum())
        return rows / length, jnp.log(length)
    basis, upper = jnp.linalg.qr(rows.T)
    # Without the barrier XLA would read columns all the same, which takes ten times as long.
    return lax.optimization_barrier(basis.T), jnp.log(jnp.abs(jnp.diagonal(upper))).sum()


def dot(a: Array, b: Array) -> Array:
    """The product of small matrices, or of a matrix and a vector, as a sum that XLA fuses with what is around it."""
    return (a[:, :, None] * b).sum(1) if b.ndim == 2 else (a * b).sum(1)


def small_solve(a: Array, b: Array) -> Array:
    """Solve a x = b for one small matrix a; for one or two unknowns without a call of LAPACK, so that XLA fuses it."""
    if len(a) == 1:
        return b / a
    if len(a) == 2:
        (p, q), (r, s) = a
        adjugate = jnp.array([[s, -q], [-r, p]])
        return dot(adjugate, b) / (p * s - q * r)
    return jnp.linalg.solve(a, b)


def small_cholesky(a: Array) -> Array:
    """The lower triangular factor of one small matrix, fused likewise."""
    if len(a) == 1:
        return jnp.sqrt(a)
    if len(a) == 2:
        p = jnp.sqrt(a[0, 0])
        q = a[1, 0] / p
        return jnp.array([[p, 0.0], [q, jnp.sqrt(a[1, 1] - q**2)]])
    return jnp.linalg.cholesky(a)
