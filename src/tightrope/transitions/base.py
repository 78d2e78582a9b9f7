"""What every transition offers and counts."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import lax

from tightrope.integrators import Integrator
from tightrope.types import Array, Info, Point, State, Status, Step


class Transition(Protocol):
    """A kernel that leaves the system's law invariant; its trajectories are pytrees with flags `pauses` and `done`."""

    def start(
        self, integrator: Integrator, key: Array, point: Point, step_size: Array, is_early: Array | bool = False
    ) -> Any:
        """A trajectory that has not moved yet; one that is early in warm-up is to be short."""

    def advance(self, integrator: Integrator, trajectory: Any) -> Any:
        """The trajectory after one more integrator step; if it pauses, there is more to do, or it is done."""

    def settle(self, integrator: Integrator, trajectory: Any) -> Any:
        """The trajectory ready for its next step, or done; the same if it did not pause."""

    def finish(self, trajectory: Any) -> tuple[Point, Info]:
        """The chain's next point, once the trajectory is done."""


def run(
    transition: Transition, integrator: Integrator, key: Array, point: Point, step_size: Array
) -> tuple[Point, Info]:
    """One whole transition."""
    trajectory = lax.while_loop(
        lambda trajectory: ~trajectory.done,
        lambda trajectory: transition.settle(integrator, transition.advance(integrator, trajectory)),
        transition.start(integrator, key, point, step_size),
    )
    return transition.finish(trajectory)


DIVERGENCE = 1000.0  # an energy error beyond which a trajectory has left the region of interest


class Leaf(NamedTuple):
    """A state that a trajectory has reached, or failed to."""

    state: State
    energy_error: Array
    acceptance: Array  # min(1, exp(-energy_error)); zero for a failed step
    step_acceptance: Array  # the same without what the force misses
    failed: Array  # no such state
    diverging: Array  # the state exists, at too high an energy


def leaf_of(integrator: Integrator, step: Step, initial_energy: Array, initial_missed: Array) -> Leaf:
    """Judge the end of a step by its status and energy."""
    error = integrator.system.energy(step.state) - initial_energy
    missed = step.state.point.missed - initial_missed
    failed = step.status != Status.OK
    diverging = ~failed & ~(error <= DIVERGENCE)
    accepted = lambda error: jnp.where(failed | diverging, 0.0, jnp.exp(jnp.minimum(0.0, -error)))
    return Leaf(step.state, error, accepted(error), accepted(error - missed), failed, diverging)


class Counts(NamedTuple):
    """What the steps of a trajectory came to."""

    n_steps: Array
    solver_iterations: Array
    projection_failed: Array
    non_reversible: Array
    non_finite: Array

    @classmethod
    def zero(cls) -> Counts:
        return cls(*jnp.zeros((5,), int))

    def add(self, step: Step) -> Counts:
        kinds = jnp.array([Status.PROJECTION_FAILED, Status.NON_REVERSIBLE, Status.NON_FINITE])
        failed = (step.status == kinds).astype(int)
        return Counts(
            self.n_steps + 1,
            self.solver_iterations + step.iterations,
            self.projection_failed + failed[0],
            self.non_reversible + failed[1],
            self.non_finite + failed[2],
        )
