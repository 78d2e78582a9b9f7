"""Bring a tangent move back to the manifold: newton, symmetric and broyden in one loop."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import lax

from tightrope.frames import Equation, Trial
from tightrope.types import Array, Point, ResidualMap, Status, select


class Direction(Protocol):
    """Where an iteration goes next, and what it remembers of the steps before."""

    def begin(self, equation: Equation) -> Any:
        """The memory of no step."""

    def look(self, equation: Equation, memory: Any, before: Trial, step: Array) -> tuple[Trial, Any, Array]:
        """The trial a step after another (none is zero), the memory then, and the next step."""


class Newton(NamedTuple):
    """A new Jacobian at each iteration: the paper's eq. 22."""

    def begin(self, equation: Equation) -> None:
        return None

    def look(self, equation: Equation, memory: None, before: Trial, step: Array) -> tuple[Trial, None, Array]:
        trial, step = equation.newton(before.s + step)
        return trial, None, step


class Symmetric(NamedTuple):
    """The Jacobian at the start, which is the identity: the paper's eq. 23."""

    def begin(self, equation: Equation) -> None:
        return None

    def look(self, equation: Equation, memory: None, before: Trial, step: Array) -> tuple[Trial, None, Array]:
        trial = equation.at(before.s + step)
        return trial, None, -trial.rho


class Broyden(NamedTuple):
    """Rank-one updates of the inverse Jacobian from the identity, kept as a matrix."""

    def begin(self, equation: Equation) -> Array:
        return jnp.eye(equation.start.size)

    def look(self, equation: Equation, memory: Array, before: Trial, step: Array) -> tuple[Trial, Array, Array]:
        trial = equation.at(before.s + step)
        change = memory @ (trial.rho - before.rho)
        learned = step @ change
        share = jnp.where(learned == 0, 0.0, 1 / learned)
        memory = memory + share * jnp.outer(step - change, step @ memory)
        return trial, memory, -memory @ trial.rho


class Steps(NamedTuple):
    """The steps taken so far."""

    steps: Array  # shape (capacity, n)
    taken: Array  # their number


class LimitedBroyden(NamedTuple):
    """The same iterates as Broyden, from the steps alone (Kelley 1995, section 7.3), for many unknowns."""

    capacity: int

    def begin(self, equation: Equation) -> Steps:
        return Steps(jnp.zeros((self.capacity, equation.start.size)), jnp.zeros((), int))

    def look(self, equation: Equation, memory: Steps, before: Trial, step: Array) -> tuple[Trial, Steps, Array]:
        trial = equation.at(before.s + step)
        is_first = ~step.any()
        last = jnp.where(is_first, -1, memory.taken)
        steps = select(is_first, memory.steps, memory.steps.at[memory.taken].set(step))

        def share(j: Array, z: Array) -> Array:
            square = steps[j] @ steps[j]
            return (steps[j] @ z) / jnp.where(square == 0, 1.0, square)

        z = lax.fori_loop(0, last, lambda j, z: z + steps[j + 1] * share(j, z), -trial.rho)
        z = z / (1 - jnp.where(is_first, 0.0, share(last, z)))
        return trial, Steps(steps, last + 1), z


SOLVERS = ("newton", "symmetric", "broyden")


class Solver(NamedTuple):
    """How a projection is solved, and how exactly."""

    name: str = "broyden"
    tolerance: float = 1e-9  # on what the equation leaves over, max-norm
    max_iterations: int = 32
    reverse_tolerance: float = 2e-8  # on the return of (u, e), max-norm

    def direction(self, num_unknowns: int) -> Direction:
        if self.name == "newton":
            return Newton()
        if self.name == "symmetric":
            return Symmetric()
        return Broyden() if num_unknowns <= self.max_iterations else LimitedBroyden(self.max_iterations)


class Projection(NamedTuple):
    """Where a projection ended."""

    u: Array
    e: Array
    status: Array
    iterations: Array


class Iteration(NamedTuple):
    """The state of the loop."""

    trial: Trial
    step: Array  # to take from there
    memory: Any
    looks: Array  # number of trials made
    first_error: Array


ROUNDING_FACTOR = 64  # the error is a sum over residuals, each with a rounding error of its own
DIVERGED = 1e3  # growth of the error since the start, beyond which nothing is to be hoped for


def solver_tolerance(solver: Solver, point: Point) -> Array:
    """What to ask of a projection: never less than the rounding error of e allows."""
    return jnp.maximum(solver.tolerance, ROUNDING_FACTOR * point.rounding)


def project(solver: Solver, model: ResidualMap, point: Point, move: Array) -> Projection:
    """Solve for the point of the manifold that differs from (u, e) + move by a vector normal at (u, e).

    The start depends on (u, move) alone, so that a reverse projection retraces a forward one.
    """
    equation = point.frame.equation(model, point.u, point.e, move)
    direction = solver.direction(equation.start.size)
    tolerance = solver_tolerance(solver, point)

    is_new = lambda iteration: iteration.looks == 0
    converged = lambda iteration: iteration.trial.error <= tolerance
    lost = lambda iteration: ~(iteration.trial.error <= DIVERGED * (1 + iteration.first_error))  # true of NaN

    def running(iteration: Iteration) -> Array:
        goes_on = ~converged(iteration) & ~lost(iteration) & (iteration.looks <= solver.max_iterations)
        return is_new(iteration) | goes_on

    def iterate(iteration: Iteration) -> Iteration:
        trial, memory, step = direction.look(equation, iteration.memory, iteration.trial, iteration.step)
        first_error = jnp.where(is_new(iteration), trial.error, iteration.first_error)
        return Iteration(trial, step, memory, iteration.looks + 1, first_error)

    start, infinite = equation.start, jnp.array(jnp.inf)
    nowhere = Trial(start, jnp.zeros_like(start), infinite, point.u, point.e)
    new = Iteration(nowhere, jnp.zeros_like(start), direction.begin(equation), jnp.zeros((), int), infinite)
    last = lax.while_loop(running, iterate, new)
    # A solver that wanders off to where the model has no number failed itself; a smaller step would have helped it.
    failure = jnp.where(jnp.isfinite(last.first_error), Status.PROJECTION_FAILED, Status.NON_FINITE)
    status = jnp.where(converged(last), Status.OK, failure)
    return Projection(last.trial.u, last.trial.e, status, last.looks - 1)
