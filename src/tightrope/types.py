"""The records that travel between the parts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

Array = jax.Array
EPSILON = 2.0**-52


class InputError(ValueError):
    """A mistake of the caller: one sentence that names the argument and the remedy."""


class MissingDerivatives(InputError):
    """A derivative that a model does not have."""


class SamplingError(RuntimeError):
    """A run that cannot go on: one sentence that says what failed and what to try."""


class Status:
    """What became of one integrator step."""

    OK = 0
    PROJECTION_FAILED = 1  # a solver ran out of iterations or diverged
    NON_REVERSIBLE = 2  # the reverse step led elsewhere
    NON_FINITE = 3  # the model gave NaN or infinity


class Lift(NamedTuple):
    """The noise that explains the data at a position, and how it depends on the data."""

    e: Array  # residual e(u), shape (m,)
    log_scale: Array  # -log |de/dy|, a scalar; sum of log noise scales where noise is additive
    rounding: Array  # size of the rounding error that e carries


class ResidualMap(Protocol):
    """A lifted model bound to its data: what a frame and a system ask of it."""

    @property
    def d(self) -> int:
        """Number of coordinates u."""

    @property
    def m(self) -> int:
        """Number of residuals e."""

    def prior_energy(self, u: Array) -> Array:
        """Negative log prior density of u."""

    def noise_energy(self, u: Array, e: Array) -> Array:
        """Negative log density of the noise e."""

    def lift(self, u: Array) -> Lift:
        """The residual at u."""


class InformativeMap(ResidualMap, Protocol):
    """The residual map of additive normal noise: what the Fisher metric asks of it besides."""

    def information_map(self, u: Array, v: Array) -> Array:
        """A vector whose Jacobian in v, at v = u, has the Fisher information as its Gram matrix."""


class LinkedMap(ResidualMap, Protocol):
    """The residual map of a chain of states: what the markov frame asks of it besides."""

    def links(self, u: Array) -> Any:
        """The chain's derivatives at u, and what the shared coordinates do to states and residuals, (T, n, k)."""


class Point(NamedTuple):
    """All that a trajectory needs to know at a position; computed once, then carried."""

    u: Array  # coordinates, shape (d,)
    e: Array  # residual at u, shape (m,)
    potential: Array  # U(u), with respect to the measure that the system moves on
    gradient: Array  # of the potential: what a kick subtracts from the momentum, per unit of time
    missed: Array  # that part of the potential which the gradient does not know of
    log_density: Array  # log posterior density of u, the same for every method
    log_volume: Array  # 1/2 log det of the metric; zero where the metric is constant
    rounding: Array  # size of the rounding error in e
    frame: Any  # the tangent space at u, or a metric of position; None where there is neither


class State(NamedTuple):
    """A point and the momentum there."""

    point: Point
    momentum: Array


@partial(jax.tree_util.register_dataclass, data_fields=["numbers"], meta_fields=["structure", "shapes"])
@dataclass(frozen=True)
class Packed:
    """A record as one row of numbers: to choose between two takes one selection, not one for each field."""

    numbers: Array
    structure: Any  # of the record's pytree
    shapes: tuple[tuple[int, ...], ...]  # of its leaves

    @classmethod
    def of(cls, record: Any) -> Packed:
        leaves, structure = jax.tree.flatten(record)
        numbers = jnp.concatenate([leaf.ravel() for leaf in leaves])
        return cls(numbers, structure, tuple(leaf.shape for leaf in leaves))

    def open(self) -> Any:
        """The record itself."""
        ends = list(accumulate(map(math.prod, self.shapes)))
        parts = jnp.split(self.numbers, ends[:-1])
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)


class Step(NamedTuple):
    """The result of one integrator step."""

    state: State
    status: Array  # one of Status
    iterations: Array  # solver iterations spent, forward and reverse


class Info(NamedTuple):
    """What one transition did; the fields are the names of `sample_stats`."""

    acceptance_rate: Array
    step_acceptance: Array  # by the energy without what the force misses: this falls with the step size alone
    step_size: Array
    n_steps: Array
    tree_depth: Array
    reached_max_treedepth: Array
    diverging: Array
    energy: Array
    energy_error: Array
    lp: Array
    solver_iterations: Array
    projection_failed: Array
    non_reversible: Array
    non_finite: Array


FAILURES = ("projection_failed", "non_reversible", "non_finite")  # those fields that count steps that failed


def select(condition: Array, if_true: Any, if_false: Any) -> Any:
    """Choose between two records of the same shape."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)
