"""Solve the equations of a model under several conditions, with derivatives of any kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap

from tightrope.importers.formulas import TIME, evaluate, evaluate_all
from tightrope.importers.rosenbrock import Rosenbrock
from tightrope.importers.sbml import Equations
from tightrope.types import Array

FOREVER = 1e8  # units of time after which a system is at rest, or never
REST = 1e-3  # relative change since a tenth of that time which counts as none
SHORTEST = 1e-14  # step, in units of time
TRACING = threading.Lock()  # JAX cannot trace one compiled function, such as diffrax has, in two threads at once


class Tolerances(NamedTuple):
    rtol: float  # error of a step, relative to the state
    atol: float  # and in the units of the states
    max_steps: int


class Override(NamedTuple):
    """A value that conditions set, where they do."""

    applies: np.ndarray  # to which conditions, shape (C,)
    value: Callable[[Array], Any]  # from the parameters to values of all conditions, shape (C,)


class Conditions(NamedTuple):
    """Under which the equations are solved, one after the other."""

    size: int
    overrides: Mapping[str, Override]  # by the name of what they set

    def begin(self, equations: Equations, theta: Array) -> dict[str, Any]:
        """The values of everything at time zero, each a number or of shape (C,)."""
        values: dict[str, Any] = {TIME.name: 0.0}
        for name, override in self.overrides.items():
            if name not in equations.initial:  # a parameter of observables alone
                values[name] = override.value(theta)
        for name, formula in equations.beginning.items():
            if name not in self.overrides:
                values[name] = evaluate(formula, values)
                continue
            applies, value = self.overrides[name]
            values[name] = (
                value(theta) if applies.all() else jnp.where(applies, value(theta), evaluate(formula, values))
            )
        return values


class Simulation:
    """The states of all conditions at the times that are asked for."""

    def __init__(
        self,
        equations: Equations,
        conditions: Conditions,
        times: np.ndarray,
        tolerances: Tolerances,
        before: Simulation | None = None,
        follows: np.ndarray | None = None,
    ):
        self.equations, self.conditions, self.tolerances = equations, conditions, tolerances
        self.times = times  # shape (C, T), each row in order and filled up with its last
        self.before = before  # a simulation of conditions that come to rest before others begin
        self.follows = follows  # for each condition, which of those precedes it, -1 for none
        self.names = list(equations.rates)
        self.constants = [name for name in equations.initial if name not in equations.rates]
        self.switches = equations.switches

    def states(self, theta: Array) -> Array:
        """The states at all times, shape (C, T, n); NaN where the solver fails, or what should has no rest."""
        return transposable(self.solve)(theta) if theta.size else self.solve(theta)

    def solve(self, theta: Array) -> Array:
        values = self.conditions.begin(self.equations, theta)
        states = self.integrate(values, self.start(theta, values))
        is_last = self.times == FOREVER
        if not is_last.any():
            return states
        tenth = np.array([np.searchsorted(row, FOREVER / 10) for row in self.times])
        earlier, later = states[np.arange(len(tenth)), np.minimum(tenth, self.times.shape[1] - 1)], states[:, -1]
        small = REST * (jnp.abs(later) + 1e-3 * jnp.abs(later).max(-1, keepdims=True)) + 10 * self.tolerances.atol
        is_at_rest = (jnp.abs(later - earlier) <= small).all(-1)
        return jnp.where((is_last & ~is_at_rest[:, None])[..., None], jnp.nan, states)

    def start(self, theta: Array, values: Mapping[str, Any]) -> Array:
        """The states to begin with: those at rest before, but for what the conditions set anew."""
        start = self.stacked(values, self.names)
        if self.before is None or self.follows is None:
            return start
        is_new = np.tile(self.follows[:, None] < 0, len(self.names))
        for name, override in self.conditions.overrides.items():
            if (state := self.equations.state_of(name)) is not None:
                is_new[:, self.names.index(state)] |= override.applies
        return jnp.where(is_new, start, self.before.solve(theta)[self.follows, -1])

    def stacked(self, values: Mapping[str, Any], names: Sequence[str]) -> Array:
        """Values by name as one array of shape (C, number of names)."""
        size = self.conditions.size
        columns = [jnp.broadcast_to(jnp.asarray(values[name], float), (size,)) for name in names]
        return jnp.stack(columns, axis=-1) if columns else jnp.zeros((size, 0))

    def integrate(self, values: Mapping[str, Any], start: Array) -> Array:
        """The states of all conditions, shape (C, T, n)."""
        jumps = {str(switch): evaluate(switch, values) for switch in self.switches}
        conditions = (
            self.stacked(values, self.constants),
            start,
            jax.lax.optimization_barrier(jnp.asarray(self.times)),  # constants send XLA in circles, aloud
            self.stacked(jumps, list(jumps)),
        )
        with TRACING:
            return jax.lax.map(lambda condition: self.integrate_one(*condition), conditions)

    def integrate_one(self, constants: Array, start: Array, times: Array, jumps: Array) -> Array:
        tolerances = self.tolerances
        controller = diffrax.ClipStepSizeController(
            # Where a state goes to infinity in finite time, the solver gives up when it no longer gets on.
            diffrax.PIDController(rtol=tolerances.rtol, atol=tolerances.atol, dtmin=SHORTEST, force_dtmin=False),
            step_ts=times,
            jump_ts=jumps if jumps.size else None,
        )
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(self.rate),
            Rosenbrock(),
            t0=0.0,
            t1=times[-1],
            dt0=None,
            y0=start,
            args=constants,
            saveat=diffrax.SaveAt(ts=times),
            stepsize_controller=controller,
            adjoint=diffrax.ForwardMode(),
            max_steps=tolerances.max_steps,
            throw=False,
        )
        assert solution.ys is not None
        return jnp.where(diffrax.is_successful(solution.result), solution.ys, jnp.nan)

    def rate(self, time: Any, states: Array, constants: Array) -> Array:
        """The right-hand side."""
        formulas = self.equations.rates.values()
        values = self.known_for(formulas, time, constants, states)
        rates = [evaluate(formula, values) for formula in formulas]
        return jnp.stack([jnp.asarray(rate, float) for rate in rates])

    def known_for(self, formulas: Iterable[Any], time: Any, constants: Array, states: Array) -> dict[str, Any]:
        """The values that formulas need at a time, given states and constants along the last axis."""
        known = {TIME.name: time}
        known |= {name: constants[..., i] for i, name in enumerate(self.constants)}
        known |= {name: states[..., i] for i, name in enumerate(self.names)}
        return evaluate_all(self.equations.assigned_for(formulas), known)


def transposable(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The function of a vector, with derivatives of any order found forward in time, as whole arrays.

    A loop of unknown length runs forward only; a product with its Jacobian can be transposed all the same. Chains take
    turns: loops of several lengths side by side choose between old and new at every step, for all that they carry.
    """

    def with_jacobian(x: Array) -> Array:
        push = lambda direction: jax.jvp(function, (x,), (direction,))
        y, jacobian = jax.vmap(push, out_axes=(None, -1))(jnp.eye(x.size))
        return jnp.concatenate([y[..., None], jacobian], axis=-1)

    @jax.custom_jvp
    def wrapped(x: Array) -> Array:
        return sequential_vmap(function)(x)

    @wrapped.defjvp
    def product(primals, tangents):
        both = transposable(with_jacobian)(*primals)
        return both[..., 0], both[..., 1:] @ tangents[0]

    return wrapped
