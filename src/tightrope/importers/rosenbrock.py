"""A solver of stiff equations for diffrax, without iterations: fast where there are few states."""

from __future__ import annotations

from typing import Any, ClassVar

import diffrax
import jax
import jax.numpy as jnp

from tightrope.types import Array

LARGEST = 12  # number of states up to which a matrix is inverted by code that XLA fuses, not by a call of LAPACK
GAMMA = 1 / 2


class Rosenbrock(diffrax.AbstractAdaptiveSolver):
    """Four linear equations with one matrix a step, of order four, with an error estimate of order three.

    Kaps and Rentrop (1979), with the coefficients of Shampine, ACM Trans. Math. Software 8 (1982). A-stable.
    """

    term_structure: ClassVar = diffrax.ODETerm
    interpolation_cls: ClassVar = diffrax.LocalLinearInterpolation  # none is needed: steps end where states are saved

    def order(self, terms: Any) -> int:
        return 4

    def init(self, terms, t0, t1, y0, args) -> None:
        return None

    def func(self, terms, t0, y0, args) -> Array:
        return terms.vf(t0, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump) -> tuple:
        rate = lambda t, y: terms.vf(t, y, args)
        h = t1 - t0
        along_t = jax.jvp(lambda t: rate(t, y0), (t0,), (jnp.ones_like(t0),))[1]
        slope = jax.jacfwd(lambda y: rate(t0, y))(y0)
        inverse = inverted(jnp.eye(y0.size) / (GAMMA * h) - slope)
        solve = lambda b: inverse @ b

        a = solve(rate(t0, y0) + h * along_t / 2)
        middle = rate(t0 + h, y0 + 2 * a)
        b = solve(middle - 3 / 2 * h * along_t - 8 * a / h)
        last = rate(t0 + 3 / 5 * h, y0 + 48 / 25 * a + 6 / 25 * b)
        c = solve(last + 121 / 50 * h * along_t + (372 / 25 * a + 12 / 5 * b) / h)
        d = solve(last + 29 / 250 * h * along_t - (112 / 125 * a + 54 / 125 * b + 2 / 5 * c) / h)

        y1 = y0 + 19 / 9 * a + b / 2 + 25 / 108 * c + 125 / 108 * d
        error = 17 / 54 * a + 7 / 36 * b + 125 / 108 * d
        return y1, error, {"y0": y0, "y1": y1}, None, diffrax.RESULTS.successful


@jax.custom_jvp
def inverted(matrix: Array) -> Array:
    """The inverse, by elimination with pivots."""
    n = len(matrix)
    if n > LARGEST:
        return jnp.linalg.inv(matrix)
    rows = jnp.concatenate([matrix, jnp.eye(n)], axis=1)
    for k in range(n):
        best = k + jnp.argmax(jnp.abs(rows[k:, k]))
        pivot, other = rows[best] / rows[best, k], rows[k]
        rows = jnp.where((jnp.arange(n) == best)[:, None], other, rows)
        rows = (rows - rows[:, k : k + 1] * pivot).at[k].set(pivot)
    return rows[:, n:]


@inverted.defjvp
def _(primals, tangents):
    inverse = inverted(*primals)
    return inverse, -inverse @ tangents[0] @ inverse
