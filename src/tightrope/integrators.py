"""Discrete time: reversible, volume-preserving steps."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax.numpy as jnp

from tightrope.projection import ROUNDING_FACTOR, Solver, project
from tightrope.systems import Lifted, System
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
        finite = jnp.where(jnp.isfinite(end.potential) & jnp.isfinite(end.gradient).all(), Status.OK, Status.NON_FINITE)

        displacement = jnp.concatenate([end.u - start.u, end.e - start.e])
        momentum = end.frame.tangent(displacement / step_size)
        back = project(self.solver, model, end, -step_size * momentum)
        returned = has_returned(self.solver, start, end, back.u, back.e)

        status = first_failure(there.status, finite, back.status, jnp.where(returned, Status.OK, Status.NON_REVERSIBLE))
        momentum = momentum - 0.5 * step_size * end.gradient
        return Step(State(end, momentum), status, there.iterations + back.iterations)


class Leapfrog(NamedTuple):
    """Kick, drift, kick."""

    system: System

    def step(self, state: State, step_size: Array) -> Step:
        momentum = state.momentum - 0.5 * step_size * state.point.gradient
        end = self.system.at(state.point.u + step_size * self.system.velocity(State(state.point, momentum)))
        is_finite = jnp.isfinite(end.potential) & jnp.isfinite(end.gradient).all()
        momentum = momentum - 0.5 * step_size * end.gradient
        status = jnp.where(is_finite, Status.OK, Status.NON_FINITE)
        return Step(State(end, momentum), status, jnp.zeros((), int))
