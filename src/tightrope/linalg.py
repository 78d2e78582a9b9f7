"""Small factors."""

from __future__ import annotations

import jax.numpy as jnp

from tightrope.types import Array


def orthonormalise(columns: Array) -> tuple[Array, Array]:
    """An orthonormal basis of the column space, and 1/2 log det(columns^T columns).

    Householder QR: its error grows with the condition number, where a Cholesky factor of the Gram matrix
    has the square of it and breaks down at sigma = 1e-6.
    """
    basis, upper = jnp.linalg.qr(columns)
    return basis, jnp.log(jnp.abs(jnp.diagonal(upper))).sum()
