"""Trajectories of a fixed number of steps."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import jax.random as jr

from tightrope.integrators import Integrator
from tightrope.transitions.base import Counts, Leaf, leaf_of
from tightrope.types import Array, Info, Point, State, select


class Trajectory(NamedTuple):
    """A path under way."""

    accept_key: Array
    step_size: Array
    start: State
    initial_energy: Array
    leaf: Leaf  # where the path has got to
    counts: Counts
    done: Array

    @property
    def pauses(self) -> Array:
        return self.done


class HMC(NamedTuple):
    """Static Hamiltonian Monte Carlo: Algorithm 3 of Au, Graham and Thiery (2023)."""

    num_steps: int
    jitter: float = 0.0  # the step size varies by this fraction, up and down, between trajectories
    can_diverge: bool = True  # whether a high energy is worth a word: a random walk proposes it all the time

    def start(
        self, integrator: Integrator, key: Array, point: Point, step_size: Array, is_early: Array | bool = False
    ) -> Trajectory:
        momentum_key, jitter_key, accept_key = jr.split(key, 3)
        state = State(point, integrator.system.draw_momentum(momentum_key, point))
        no, zero = jnp.array(False), jnp.array(0.0)
        return Trajectory(
            accept_key=accept_key,
            step_size=step_size * (1 + self.jitter * jr.uniform(jitter_key, minval=-1.0)),
            start=state,
            initial_energy=integrator.system.energy(state),
            leaf=Leaf(state, zero, zero, zero, no, no),
            counts=Counts.zero(),
            done=no,
        )

    def advance(self, integrator: Integrator, trajectory: Trajectory) -> Trajectory:
        step = integrator.step(trajectory.leaf.state, trajectory.step_size)
        leaf = leaf_of(integrator, step, trajectory.initial_energy, trajectory.start.point.missed)
        counts = trajectory.counts.add(step)
        # A high energy on the way is no reason to stop: seen from the other end it might not be one.
        done = leaf.failed | (counts.n_steps == self.num_steps)
        return trajectory._replace(leaf=leaf, counts=counts, done=done)

    def settle(self, integrator: Integrator, trajectory: Trajectory) -> Trajectory:
        return trajectory

    def finish(self, trajectory: Trajectory) -> tuple[Point, Info]:
        leaf = trajectory.leaf
        accepted = jr.uniform(trajectory.accept_key) < leaf.acceptance
        point = select(accepted, leaf.state.point, trajectory.start.point)
        return point, Info(
            acceptance_rate=leaf.acceptance,
            step_acceptance=leaf.step_acceptance,
            step_size=trajectory.step_size,
            tree_depth=jnp.zeros((), int),
            reached_max_treedepth=jnp.array(False),
            diverging=leaf.diverging & self.can_diverge,
            energy=trajectory.initial_energy + jnp.where(accepted, leaf.energy_error, 0.0),
            energy_error=jnp.where(accepted, leaf.energy_error, 0.0),
            lp=point.log_density,
            **trajectory.counts._asdict(),
        )
