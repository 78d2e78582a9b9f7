"""A Cholesky factor of symmetric matrices on an odd number of rows, of which each touches its neighbours only."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from tightrope.types import Array


class Factor(NamedTuple):
    """What elimination from both ends, side by side, leaves."""

    lower: Array  # by depth and side, the Cholesky factor of a row once those before it are gone
    link: Array  # by depth and side, lower^-1 times the coupling to the next row
    middle: Array  # the Cholesky factor of the last row

    def solve(self, b: Array) -> Array:
        """Substitute from both ends to the middle, and back; b and the solution by rows."""

        def inward(update: Array, row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            lower, link, b = row
            y = divide(lower, b - update)
            return link.mT @ y, y

        def outward(x: Array, row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            lower, link, y = row
            x = divide(lower, y - link @ x, transpose_a=True)
            return x, x

        middle, sides = halves(b[..., None])
        update, y = lax.scan(inward, jnp.zeros_like(sides[0]), (self.lower, self.link, sides))
        last = divide(self.middle, divide(self.middle, middle - update.sum(0)), transpose_a=True)
        _, x = lax.scan(outward, jnp.stack([last, last]), (self.lower, self.link, y), reverse=True)
        return jnp.concatenate([x[:, 0], last[None], x[::-1, 1]])[..., 0]


def factorise(own: Array, coupling: Array) -> Factor:
    """Eliminate a row after another: lower triangles of their own blocks (R, n, n), those to the next (R - 1, n, n)."""

    def eliminate(update: Array, row: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        own, coupling = row
        lower = cholesky(own - update)
        link = divide(lower, coupling)
        return link.mT @ link, (lower, link)

    middle, sides = halves(own)
    depth = len(sides)
    couplings = jnp.stack([coupling[:depth], coupling[: depth - 1 : -1].mT], 1)
    update, (lower, link) = lax.scan(eliminate, jnp.zeros_like(sides[0]), (sides, couplings))
    return Factor(lower, link, cholesky(middle - update.sum(0)))


def halves(rows: Array) -> tuple[Array, Array]:
    """The middle row, and the others by depth and side."""
    depth = len(rows) // 2
    return rows[depth], jnp.stack([rows[:depth], rows[:depth:-1]], 1)


def cholesky(a: Array) -> Array:
    return lax.linalg.cholesky(a, symmetrize_input=False)


def divide(lower: Array, b: Array, **options: bool) -> Array:
    return lax.linalg.triangular_solve(lower, b, left_side=True, lower=True, **options)
