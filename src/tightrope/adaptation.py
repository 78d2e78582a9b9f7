"""What warm-up learns: the step size, a quadratic stand-in for the log volume, a metric in windows."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from tightrope.systems import Approximate
from tightrope.types import Array

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


# To begin with. On the lifted manifold of a whitened prior all lengths are about one, so there is nothing to search.
FIRST_STEP_SIZE = 0.1


class Surrogate(NamedTuple):
    """A stand-in for the log volume, and the standard deviation of what it misses, from draw to draw."""

    force: Approximate | None  # none, where nothing foretells the log volume better than a constant
    error: float


DRAWS_PER_FEATURE, FOLDS = 3, 4


def fit_log_volume(u: np.ndarray, log_volume: np.ndarray) -> Surrogate | None:
    """Regress the log volume on u by a quadratic, or by less where that foretells it better; None if draws are too few.

    The scale's own gradient is then kept whole, since the fit covers the log volume's answer to it.
    """
    num_draws, d = u.shape
    if num_draws < DRAWS_PER_FEATURE * (1 + d):
        return None
    centre, spread = u.mean(0), u.std(0)
    has_moved = spread > 1e-8 * (1 + np.abs(centre))
    spread = np.where(has_moved, spread, 1.0)
    z = np.where(has_moved, (u - centre) / spread, 0.0)
    rows, columns = np.triu_indices(d)
    features = np.concatenate([np.ones((num_draws, 1)), z, z[:, rows] * z[:, columns]], axis=1)
    is_square = np.concatenate([np.ones(1 + d, bool), rows == columns])
    degree = np.concatenate([[0], np.ones(d), np.full(len(rows), 2)])
    fits = []
    for used in (degree <= 2, is_square, degree <= 1, degree <= 0):
        if num_draws >= DRAWS_PER_FEATURE * used.sum():
            weights = np.zeros(len(used))
            weights[used], error = cross_validated(features[:, used], log_volume)
            fits.append((error, weights))
    error, weights = min(fits, key=lambda fit: fit[0])
    if not weights[1:].any():
        return Surrogate(None, error)
    linear, upper = weights[1 : d + 1], np.zeros((d, d))
    upper[rows, columns] = weights[d + 1 :]
    quadratic = (upper + upper.T) / np.outer(spread, spread)
    linear = linear / spread - quadratic @ centre
    return Surrogate(Approximate(jnp.array(1.0), jnp.array(linear), jnp.array(quadratic)), error)


def cross_validated(features: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights of a linear regression, and the standard deviation around one to the rest, in each quarter of the rows.

    Rows are those of chains one after the other: neighbours are too much alike to be judged by.
    """
    gram, moment = features.T @ features, features.T @ values
    # A little ridge: directions that the draws do not show stay flat.
    ridge = 1e-6 * len(features) * np.eye(len(gram))
    errors = []
    for x, y in zip(np.array_split(features, FOLDS), np.array_split(values, FOLDS), strict=True):
        weights = np.linalg.solve(gram - x.T @ x + ridge, moment - x.T @ y)
        errors.append(np.std(y - x @ weights))
    return np.linalg.solve(gram + ridge, moment), float(np.mean(errors))


FIRST, LAST, WINDOW = 75, 50, 25  # iterations of Stan's warm-up that adapt the step alone, and of its first window


def windows(num_warmup: int) -> list[tuple[int, int]]:
    """The windows of Stan's warm-up, after each of which it takes a new metric: they double, and fill what there is."""
    if num_warmup < 20:
        return []
    first, last, length = FIRST, LAST, WINDOW
    if first + length + last > num_warmup:
        first, last = int(0.15 * num_warmup), int(0.1 * num_warmup)
        length = num_warmup - first - last
    found, start, until = [], first, num_warmup - last
    while start < until:
        # One that would leave too little for the next, which is twice as long, takes it all.
        stop = until if start + 3 * length > until else start + length
        found.append((start, stop))
        start, length = stop, 2 * length
    return found


def shrunk_covariance(u: np.ndarray, is_dense: bool) -> np.ndarray:
    """The covariance of draws, or their variances, drawn towards a small multiple of the identity as Stan does."""
    num_draws, d = u.shape
    share = num_draws / (num_draws + 5.0)
    if is_dense:
        return share * np.cov(u, rowvar=False).reshape(d, d) + 1e-3 * (1 - share) * np.eye(d)
    return share * u.var(axis=0, ddof=1) + 1e-3 * (1 - share)


DRAWS_PER_COORDINATE = 5  # of a chain, to tell the volume of a mode


def has_mass(u: np.ndarray, log_density: np.ndarray) -> np.ndarray:
    """Which chains, by draws of shape (chain, draw), are not in a mode that has next to none of the posterior's mass.

    It is told as if modes were normal: by the mean log density and the volume that the draws fill. A chain that mixes
    slowly fills too little, hence the margin for each coordinate.
    """
    num_chains, num_draws, d = u.shape
    if num_draws < DRAWS_PER_COORDINATE * d:
        return np.ones(num_chains, bool)
    log_volume = [0.5 * np.linalg.slogdet(np.cov(draws, rowvar=False).reshape(d, d)).logabsdet for draws in u]
    log_mass = log_density.mean(1) + log_volume
    return log_mass >= log_mass.max() - 5 - d / 4


NARROWEST = 1e-3  # spread to be told: a coordinate in far smaller units would be all rounding error


def spreads(u: np.ndarray) -> np.ndarray:
    """The standard deviations of draws to the nearest power of two: units that can be changed without rounding."""
    spread = u.std(axis=0, ddof=1)
    return 2.0 ** np.round(np.log2(np.where(spread > 0, np.maximum(spread, NARROWEST), 1.0)))
