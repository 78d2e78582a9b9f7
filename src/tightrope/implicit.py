"""Solve the implicit equations x = g(x) of a generalised leapfrog: by fixed-point iteration or by Newton."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tightrope.types import EPSILON, Array, Status

IMPLICIT_SOLVERS = ("newton", "fixed-point")
ROUNDING_FACTOR = 64  # units in the last place that g may be wrong by


def at_least_rounding(tolerance: float, x: Array) -> Array:
    """What may be asked of a vector: momenta grow like one over the noise, and their rounding errors too."""
    return jnp.maximum(tolerance, ROUNDING_FACTOR * EPSILON * jnp.abs(x).max())


class Solution(NamedTuple):
    """Where an iteration ended."""

    x: Array
    status: Array
    iterations: Array


class Iteration(NamedTuple):
    """The state of the loop."""

    x: Array
    change: Array  # by the last step, max-norm
    taken: Array  # number of steps


class ImplicitSolver(NamedTuple):
    """How implicit equations are solved, and how exactly."""

    name: str = "newton"
    tolerance: float = 1e-9  # on the last change of x, max-norm
    max_iterations: int = 100
    reverse_tolerance: float = 2e-8  # on the return of what a step began with, max-norm

    def has_returned(self, x: Array, start: Array) -> Array:
        """Whether x, found in reverse, is what the step began with, up to rounding."""
        return jnp.abs(x - start).max() <= at_least_rounding(self.reverse_tolerance, start)

    def solve(self, g: Callable[[Array], Array], start: Array) -> Solution:
        """The solution of x = g(x) that the iteration leads to from a start; it must not know the answer."""

        def following(x: Array) -> Array:
            if self.name == "fixed-point":
                return g(x)
            return x - jnp.linalg.solve(jnp.eye(x.size) - jax.jacfwd(g)(x), x - g(x))

        is_small = lambda iteration: iteration.change <= at_least_rounding(self.tolerance, iteration.x)
        converged = lambda iteration: is_small(iteration) & jnp.isfinite(iteration.x).all()
        lost = lambda iteration: (iteration.taken > 0) & ~jnp.isfinite(iteration.change)
        running = lambda it: ~converged(it) & ~lost(it) & (it.taken < self.max_iterations)

        def iterate(iteration: Iteration) -> Iteration:
            x = following(iteration.x)
            return Iteration(x, jnp.abs(x - iteration.x).max(), iteration.taken + 1)

        last = lax.while_loop(running, iterate, Iteration(start, jnp.array(jnp.inf), jnp.zeros((), int)))
        return Solution(last.x, jnp.where(converged(last), Status.OK, Status.PROJECTION_FAILED), last.taken)
