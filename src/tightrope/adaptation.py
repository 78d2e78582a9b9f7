"""What warm-up learns: the step size and a quadratic stand-in for the log volume."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from tightrope.integrators import Integrator
from tightrope.systems import Approximate
from tightrope.types import Array, Point, State, Status

GAMMA, T0, KAPPA = 0.05, 10.0, 0.75  # shrinkage, delay and forgetting, as in Stan


class DualAveraging(NamedTuple):
    """Nesterov's dual averaging of the log step size (Hoffman and Gelman 2014, section 3.2)."""

    log_step: Array  # to try next
    log_average: Array  # to keep
    error: Array  # running mean of target - acceptance
    updates: Array
    centre: Array  # towards which log_step shrinks

    @classmethod
    def begin(cls, step_size: Array) -> DualAveraging:
        log_step = jnp.log(step_size)
        zero = jnp.zeros_like(log_step)
        return cls(log_step, log_step, zero, zero, jnp.log(10.0) + log_step)

    def update(self, acceptance: Array, target: float) -> DualAveraging:
        # One NaN would poison every later average.
        acceptance = jnp.where(jnp.isfinite(acceptance), acceptance, 0.0)
        updates = self.updates + 1
        error = self.error + (target - acceptance - self.error) / (updates + T0)
        log_step = self.centre - error * jnp.sqrt(updates) / GAMMA
        log_average = self.log_average + updates**-KAPPA * (log_step - self.log_average)
        return DualAveraging(log_step, log_average, error, updates, self.centre)


LARGEST_STEP, SMALLEST_STEP = 2.0, 1e-8  # a leapfrog on a standard normal is unstable beyond 2


class Search(NamedTuple):
    """The state of the search for a first step size."""

    step_size: Array
    grows: Array  # whether it goes up
    is_good: Array  # whether the step size is accepted
    is_new: Array  # nothing is known yet


def initial_step_size(integrator: Integrator, key: Array, point: Point) -> Array:
    """Double or halve until the acceptance of one step crosses 0.8; a failed step has acceptance zero."""
    system = integrator.system

    def acceptance(step_size: Array) -> Array:
        state = State(point, system.draw_momentum(key, point))
        step = integrator.step(state, step_size)
        ratio = jnp.exp(system.energy(state) - system.energy(step.state))
        return jnp.where((step.status == Status.OK) & jnp.isfinite(ratio), ratio, 0.0)

    def searching(search: Search) -> Array:
        in_range = (search.step_size < LARGEST_STEP) & (search.step_size > SMALLEST_STEP)
        return search.is_new | (search.is_good == search.grows) & in_range

    def double_or_halve(search: Search) -> Search:
        factor = jnp.where(search.is_new, 1.0, jnp.where(search.grows, 2.0, 0.5))
        step_size = search.step_size * factor
        is_good = acceptance(step_size) > 0.8
        return Search(step_size, jnp.where(search.is_new, is_good, search.grows), is_good, jnp.array(False))

    yes = jnp.array(True)
    return lax.while_loop(searching, double_or_halve, Search(jnp.array(0.25), yes, yes, yes)).step_size


def fit_log_volume(u: np.ndarray, log_volume: np.ndarray) -> Approximate | None:
    """Regress the log volume on u by a quadratic, or by less where there are few draws; None if too few.

    The scale's own gradient is then kept whole, since the fit covers the log volume's answer to it.
    """
    num_draws, d = u.shape
    rows, columns = np.triu_indices(d)
    if num_draws < 5 * (1 + d + len(rows)):
        rows = columns = np.arange(d)
    if num_draws < 5 * (1 + d + len(rows)):
        rows = columns = np.arange(0)
    if num_draws < 5 * (1 + d):
        return None
    centre, spread = u.mean(0), u.std(0)
    has_moved = spread > 1e-8 * (1 + np.abs(centre))
    spread = np.where(has_moved, spread, 1.0)
    z = np.where(has_moved, (u - centre) / spread, 0.0)
    features = np.concatenate([np.ones((num_draws, 1)), z, z[:, rows] * z[:, columns]], axis=1)
    gram = features.T @ features
    # A little ridge: directions that the draws do not show stay flat.
    ridge = 1e-6 * num_draws * np.eye(len(gram))
    weights = np.linalg.solve(gram + ridge, features.T @ log_volume)
    linear, upper = weights[1 : d + 1], np.zeros((d, d))
    upper[rows, columns] = weights[d + 1 :]
    quadratic = (upper + upper.T) / np.outer(spread, spread)
    return Approximate(jnp.array(1.0), jnp.array(linear / spread - quadratic @ centre), jnp.array(quadratic))
