"""The compiled part of a run: a group of chains advanced by many integrator steps in one call.

Each chain takes its next step whatever transition it is in, so none waits for the longest tree of another, and
where a call begins and ends changes no draw.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax

from tightrope.adaptation import DualAveraging
from tightrope.kinds import Method
from tightrope.models import Model
from tightrope.types import FAILURES, Array, Info, Point, select

CAPACITY = 500  # steps per call at the most, and so draws
MAX_NUMBERS = 5_000_000  # in the draws of a chain's call, where each is large


class Chain(NamedTuple):
    """A chain between two calls; all that is needed to go on."""

    key: Array
    iteration: Array  # transitions finished
    trajectory: Any  # the one under way
    averaging: DualAveraging
    step_size: Array


class Draw(NamedTuple):
    """What is kept of a transition."""

    u: Any
    log_volume: Any
    info: Info

    @classmethod
    def of(cls, point: Point, info: Info, lengths: Array | float) -> Draw:
        return cls(lengths * point.u, point.log_volume, info)

    def pack(self) -> Array:
        """One row of numbers: one write per step, not fifteen."""
        scalars = jnp.stack([jnp.asarray(x, float) for x in (self.log_volume, *self.info)])
        return jnp.concatenate([self.u, scalars])

    @staticmethod
    def width(d: int) -> int:
        """Numbers in a row."""
        return d + 1 + len(Info._fields)

    @classmethod
    def unpack(cls, rows: np.ndarray) -> Draw:
        """The draws in an array of rows, by field; counts and flags in their own types."""
        d = rows.shape[-1] - cls.width(0)
        log_volume, *values = np.moveaxis(rows[..., d:], -1, 0)
        fields = {}
        for name, value in zip(Info._fields, values, strict=True):
            is_flag = name in ("diverging", "reached_max_treedepth")
            is_count = name in ("n_steps", "tree_depth", "solver_iterations") or name in FAILURES
            fields[name] = value.astype(bool if is_flag else int if is_count else float)
        return cls(rows[..., :d], log_volume, Info(**fields))


class Kernel:
    """A model and a method, as functions of groups of chains that compile once for each group size."""

    def __init__(self, model: Model, method: Method, num_warmup: int):
        self.model, self.method, self.num_warmup = model, method, num_warmup
        self.capacity = max(1, min(CAPACITY, MAX_NUMBERS // model.d))
        self.begin = jax.jit(self._begin)
        self.advance = jax.jit(self._advance, donate_argnums=2)

    def integrator(self, y: Array, tuning: Any):
        return self.method.integrator(self.model.condition(y), tuning)

    def is_early(self, iteration: Array) -> Array:
        """Whether the step size is still far from adapted, and the force perhaps not yet fitted."""
        return iteration < self.num_warmup // 4

    def _begin(self, y: Array, tuning: Any, keys: Array, u: Array, iteration: Array, step_size: Array) -> Chain:
        """Chains at u, about to begin a transition."""
        integrator, lengths = self.integrator(y, tuning), self.method.lengths(tuning)

        def begin(key: Array, u: Array, step_size: Array) -> Chain:
            point = integrator.system.at(u / lengths)
            start_key, is_early = jr.fold_in(key, iteration), self.is_early(iteration)
            trajectory = self.method.transition.start(integrator, start_key, point, step_size, is_early)
            return Chain(key, iteration, trajectory, DualAveraging.begin(step_size), step_size)

        return jax.vmap(begin)(keys, u, step_size)

    def _advance(self, y: Array, tuning: Any, chains: Chain, stop: Array, num_steps: Array) -> tuple[Chain, Array]:
        """Advance each chain by so many steps or until it has finished `stop` transitions; the rows of its draws."""
        integrator, lengths = self.integrator(y, tuning), self.method.lengths(tuning)
        width = chains.iteration.shape[0]
        first = chains.iteration
        rows = jnp.zeros((width, self.capacity, Draw.width(self.model.d)))
        advance = jax.vmap(lambda chain: self.advance_one(integrator, chain))
        turn = jax.vmap(lambda chain: self.turn_one(integrator, lengths, chain, stop))
        # A chain that is not active walks on unheard, and begins anew with the next stage.
        walk_on = lambda chains: (chains, jnp.zeros(width, bool), rows[:, 0])

        def running(carry: tuple[Array, Chain, Array]) -> Array:
            count, chains, _ = carry
            return (count < num_steps) & (chains.iteration < stop).any()

        def body(carry: tuple[Array, Chain, Array]) -> tuple[Array, Chain, Array]:
            count, chains, rows = carry
            slot = chains.iteration - first
            chains = advance(chains)
            # A branch, not a selection: XLA would make all of a step part of everything that is selected.
            chains, finished, row = lax.cond(chains.trajectory.pauses.any(), turn, walk_on, chains)
            slot = jnp.where(finished, slot, self.capacity)  # out of range is dropped
            return count + 1, chains, rows.at[jnp.arange(width), slot].set(row, mode="drop")

        _, chains, rows = lax.while_loop(running, body, (jnp.zeros((), int), chains, rows))
        return chains, rows

    def advance_one(self, integrator: Any, chain: Chain) -> Chain:
        """One integrator step of one chain."""
        return chain._replace(trajectory=self.method.transition.advance(integrator, chain.trajectory))

    def turn_one(
        self, integrator: Any, lengths: Array | float, chain: Chain, stop: Array
    ) -> tuple[Chain, Array, Array]:
        """A chain that pauses, ready for its next step; whether it finished a transition, and the draw if so."""
        transition, method = self.method.transition, self.method
        trajectory = transition.settle(integrator, chain.trajectory)
        finished = trajectory.done & (chain.iteration < stop)
        point, info = transition.finish(trajectory)

        averaging = chain.averaging.update(*method.aim(info))
        iteration = chain.iteration + 1
        adapted = jnp.exp(jnp.where(iteration < self.num_warmup, averaging.log_step, averaging.log_average))
        is_adapting = (chain.iteration < self.num_warmup) & (method.step_size is None)
        step_size = jnp.where(is_adapting, adapted, chain.step_size)

        start_key, is_early = jr.fold_in(chain.key, iteration), self.is_early(iteration)
        following = transition.start(integrator, start_key, point, step_size, is_early)
        restarted = Chain(chain.key, iteration, following, averaging, step_size)
        after = select(finished, restarted, chain._replace(trajectory=trajectory))
        return after, finished, Draw.of(point, info, lengths).pack()
