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
    max_halvings: int = 2  # of a move for which no solution is found

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


class Attempt(NamedTuple):
    """A share of a move, solved for or not."""

    share: Array
    halvings: Array  # that led to the first share
    trial: Trial  # the last
    is_solved: Array
    is_finite: Array  # whether the model has numbers where the whole move leads
    iterations: Array  # of this and all attempts before


ROUNDING_FACTOR = 64  # the error is a sum over residuals, each with a rounding error of its own
DIVERGED = 1e3  # growth of the error since the start, beyond which nothing is to be hoped for


def solver_tolerance(solver: Solver, point: Point) -> Array:
    """What to ask of a projection: never less than the rounding error of e allows."""
    return jnp.maximum(solver.tolerance, ROUNDING_FACTOR * point.rounding)


def nowhere(point: Point, guess: Array) -> Trial:
    """A guess that has not been looked at."""
    return Trial(guess, jnp.zeros_like(guess), jnp.array(jnp.inf), point.u, point.e)


def solve(solver: Solver, equation: Equation, point: Point, guess: Array, tolerance: Array) -> Iteration:
    """Iterate from a guess until the equation holds, or there is no hope that it will."""
    direction = solver.direction(guess.size)

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

    none, infinite = jnp.zeros((), int), jnp.array(jnp.inf)
    new = Iteration(nowhere(point, guess), jnp.zeros_like(guess), direction.begin(equation), none, infinite)
    return lax.while_loop(running, iterate, new)


def project(solver: Solver, model: ResidualMap, point: Point, move: Array) -> Projection:
    """Solve for the point of the manifold that differs from (u, e) + move by a vector normal at (u, e).

    Where no solution is found, half of the move is solved for first, or a quarter, and twice as much from there. All
    of it depends on the point and the move alone, so that a reverse projection retraces a forward one.
    """
    tolerance = solver_tolerance(solver, point)
    equation_of = lambda share: point.frame.equation(model, point.u, point.e, share * move)
    # Where the whole move leads to where the model has no number, there is no error to make smaller.
    may_halve = lambda attempt: attempt.is_finite & (attempt.halvings < solver.max_halvings)
    is_over = lambda attempt: jnp.where(attempt.is_solved, attempt.share == 1, ~may_halve(attempt))

    def attempt(before: Attempt) -> Attempt:
        """Twice the share of a solved one, or less than that of one that was not."""
        halvings = before.halvings + ~before.is_solved
        share = jnp.where(before.is_solved, 2 * before.share, 0.5**halvings)
        equation = equation_of(share)
        # What normals have to correct grows like the square of the move.
        correction = jnp.where(before.is_solved, 4 * (before.trial.s - equation_of(before.share).start), 0.0)
        last = solve(solver, equation, point, equation.start + correction, tolerance)
        return Attempt(
            share=share,
            halvings=halvings,
            trial=last.trial,
            is_solved=last.trial.error <= tolerance,
            is_finite=jnp.where(halvings == 0, jnp.isfinite(last.first_error), before.is_finite),
            iterations=before.iterations + last.looks - 1,
        )

    no, yes, start = jnp.array(False), jnp.array(True), nowhere(point, equation_of(1.0).start)
    none = Attempt(jnp.ones(()), jnp.array(-1), start, is_solved=no, is_finite=yes, iterations=jnp.zeros((), int))
    last = lax.while_loop(lambda found: ~is_over(found), attempt, none)
    # A solver that wanders off to where the model has no number failed itself; a smaller step would have helped it.
    failure = jnp.where(last.is_finite, Status.PROJECTION_FAILED, Status.NON_FINITE)
    return Projection(last.trial.u, last.trial.e, jnp.where(last.is_solved, Status.OK, failure), last.iterations)
