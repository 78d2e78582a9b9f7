"""Discrete time: steps that can be undone."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax.numpy as jnp

from tightrope.implicit import ImplicitSolver
from tightrope.projection import ROUNDING_FACTOR, Solver, project
from tightrope.systems import FlatSystem, Lifted, Riemannian, System, Walk
from tightrope.types import Array, Point, State, Status, Step


class Integrator(Protocol):
    """A map of states that is its own inverse under a change of the time's sign, or says that it failed."""

    @property
    def system(self) -> System:
        """The Hamiltonian whose flow it follows."""

    def step(self, state: State, step_size: Array) -> Step:
        """One step of the given size, which may be negative."""


def has_returned(solver: Solver, start: Point, end: Point, u: Array, e: Array) -> Array:
    """Whether (u, e), found in reverse from `end`, is `start`, up to rounding.

    Both u and e: at small noise two solutions far apart in e are close in u.
    """
    rounding = 10 * ROUNDING_FACTOR * jnp.maximum(start.rounding, end.rounding)
    distance = jnp.maximum(jnp.abs(u - start.u).max(), jnp.abs(e - start.e).max())
    return distance <= jnp.maximum(solver.reverse_tolerance, rounding)


def first_failure(*statuses: Array) -> Array:
    """The first status that is not OK, if any."""
    *earlier, status = statuses
    for previous in reversed(earlier):
        status = jnp.where(previous != Status.OK, previous, status)
    return status


def finiteness(point: Point) -> Array:
    """A status: whether the model has numbers at a point."""
    is_finite = jnp.isfinite(point.potential) & jnp.isfinite(point.gradient).all()
    return jnp.where(is_finite, Status.OK, Status.NON_FINITE)


def reversibility(has_returned: Array) -> Array:
    """A status: whether the reverse step led back."""
    return jnp.where(has_returned, Status.OK, Status.NON_REVERSIBLE)


class ConstrainedLeapfrog(NamedTuple):
    """Kick, tangent move and projection, kick: Algorithm 2 of Au, Graham and Thiery (2023).

    The reverse projection must lead back; with no more than that a step could be one of several to the same end.
    """

    system: Lifted
    solver: Solver

    def step(self, state: State, step_size: Array) -> Step:
        start, momentum = state
        model = self.system.model

        momentum = momentum - 0.5 * step_size * start.gradient
        there = project(self.solver, model, start, step_size * momentum)
        # From a failed projection nothing is worth computing: NaN ends the reverse solve at once.
        end = self.system.at(jnp.where(there.status == Status.OK, there.u, jnp.nan))

        displacement = jnp.concatenate([end.u - start.u, end.e - start.e])
        momentum = end.frame.tangent(displacement / step_size)
        back = project(self.solver, model, end, -step_size * momentum)
        returned = has_returned(self.solver, start, end, back.u, back.e)

        status = first_failure(there.status, finiteness(end), back.status, reversibility(returned))
        momentum = momentum - 0.5 * step_size * end.gradient
        return Step(State(end, momentum), status, there.iterations + back.iterations)


class Leapfrog(NamedTuple):
    """Kick, drift, kick."""

    system: System

    def step(self, state: State, step_size: Array) -> Step:
        momentum = state.momentum - 0.5 * step_size * state.point.gradient
        end = self.system.at(state.point.u + step_size * self.system.velocity(State(state.point, momentum)))
        momentum = momentum - 0.5 * step_size * end.gradient
        return Step(State(end, momentum), finiteness(end), jnp.zeros((), int))


class GeneralisedLeapfrog(NamedTuple):
    """Implicit kick, implicit drift, kick, for a kinetic energy that depends on position.

    Girolami and Calderhead (2011), section 6. Both implicit equations must lead back when solved in reverse.
    """

    system: Riemannian
    solver: ImplicitSolver

    def step(self, state: State, step_size: Array) -> Step:
        start, momentum = state
        system, solve, half = self.system, self.solver.solve, 0.5 * step_size

        kick = solve(lambda p: momentum - half * system.force(State(start, p)), momentum)
        leaving = system.velocity(State(start, kick.x))
        drift = solve(lambda u: start.u + half * (leaving + system.velocity_at(u, kick.x)), start.u)
        there = first_failure(kick.status, drift.status)
        end = system.at(jnp.where(there == Status.OK, drift.x, jnp.nan))
        momentum = kick.x - half * system.force(State(end, kick.x))

        kick_back = solve(lambda p: momentum + half * system.force(State(end, p)), momentum)
        arriving = system.velocity(State(end, kick.x))
        drift_back = solve(lambda u: end.u - half * (arriving + system.velocity_at(u, kick.x)), end.u)
        has_returned = self.solver.has_returned(kick_back.x, kick.x) & self.solver.has_returned(drift_back.x, start.u)

        status = first_failure(there, finiteness(end), kick_back.status, drift_back.status, reversibility(has_returned))
        iterations = kick.iterations + drift.iterations + kick_back.iterations + drift_back.iterations
        return Step(State(end, momentum), status, iterations)


DRIFTS = ("none", "gradient", "corrected")


class Langevin(NamedTuple):
    """A proposal N(u - eps^2/2 M^-1 drift, eps^2 M^-1) as a step that is its own inverse.

    The momentum at the end is the one that leads back. The drift is zero for a random walk, the gradient of the
    energy, or that and the divergence of the metric, which the diffusion needs (Xifara et al. 2014).
    """

    base: FlatSystem
    drift: str

    @property
    def system(self) -> Walk:
        return Walk(self.base)

    def drift_at(self, point: Point) -> Array:
        if self.drift == "none":
            return jnp.zeros_like(point.u)
        gradient = self.base.energy_gradient(point)
        return gradient if self.drift == "gradient" else gradient + self.base.metric_divergence(point)

    def step(self, state: State, step_size: Array) -> Step:
        start, momentum = state
        momentum = momentum - 0.5 * step_size * self.drift_at(start)
        end = self.base.at(start.u + step_size * self.base.velocity(State(start, momentum)))
        back = self.base.momentum(end, (start.u - end.u) / step_size) + 0.5 * step_size * self.drift_at(end)
        return Step(State(end, -back), finiteness(end), jnp.zeros((), int))
