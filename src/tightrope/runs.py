"""One run: groups of chains on threads, stage by stage, with progress and a way to stop."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from tightrope.adaptation import FIRST_STEP_SIZE
from tightrope.initialise import Start, as_good_as_the_best
from tightrope.kernel import Draw, Kernel
from tightrope.kinds import Method
from tightrope.models import Model
from tightrope.progress import Progress

SECONDS_PER_CALL = 0.2  # how long a compiled call should take; it changes no draw


class Compiled(NamedTuple):
    """The functions of the kernel, ready to run."""

    begin: Any
    advance: Any


class Group:
    """Chains that advance together on one thread."""

    def __init__(self, index: range, keys: Any, u: np.ndarray):
        self.index = index  # which chains of the run
        self.keys = keys
        self.u = u  # where they are between stages
        self.chains: Any = None  # a Chain, once they have begun
        self.rows: list[list[np.ndarray]] = [[] for _ in index]
        self.iterations = np.zeros(len(index), int)

    def draws(self, chain: int) -> np.ndarray:
        """All rows of one chain so far."""
        return np.concatenate(self.rows[chain]) if self.rows[chain] else np.zeros((0, 0))


class Run:
    """A model, a method and its chains.

    A tuning that is given is kept; else warm-up learns it. Chains may be moved by warm-up if their starts are ours.
    """

    def __init__(
        self,
        model: Model,
        method: Method,
        warmup: int,
        draws: int,
        chains: int,
        cores: int,
        key: Any,
        *,
        tuning: Any = None,
        may_move: bool = False,
    ):
        self.model, self.method, self.may_move = model, method, may_move
        self.num_warmup, self.num_draws, self.num_chains = warmup, draws, chains
        self.kernel = Kernel(model, method, warmup)
        self.y = model.data
        self.key, start_key = jr.split(key)
        self.find_key, self.refine_key = jr.split(start_key)
        self.keys = jax.vmap(lambda chain: jr.fold_in(self.key, chain))(jnp.arange(chains))
        conditioned = model.condition()
        self.tuning = method.initial_tuning(conditioned) if tuning is None else tuning
        found = method.windows(conditioned, warmup) if tuning is None else []
        self.windows = {stop: slice(start, stop) for start, stop in found}
        self.bounds = np.linspace(0, chains, min(cores, chains) + 1).astype(int)
        given = method.step_size
        self.step_sizes = np.full(chains, FIRST_STEP_SIZE if given is None else float(given))
        self.stopped = threading.Event()
        self.steps_per_call = 1
        self.compile_times: list[float] = []
        self.compile_time = self.warmup_time = self.sampling_time = 0.0
        self.stage_start, self.stage_time = 0, 0.0  # of the last stage: iteration, and seconds taken
        self.followed = np.arange(chains)  # those of its chains from which any chain goes on
        self.deadline = np.inf  # by the clock, for what is to be given up then

    def begin(self, start: Start) -> None:
        """Compile while the starting points are refined."""
        with ThreadPoolExecutor(1) as pool:
            compiling = pool.submit(self.prepare)
            u = start.refined(self.model, self.refine_key, self.num_chains)
            compiling.result()
        self.place(u)

    def prepare(self) -> None:
        """Compile for groups of every size that there will be."""
        self.compile_times.clear()
        widths = sorted(set(np.diff(self.bounds).tolist()))
        with ThreadPoolExecutor(len(widths)) as pool:
            self.compiled = dict(
                zip(widths, pool.map(lambda width: self.compile(self.keys[:width]), widths), strict=True)
            )
        self.compile_time += max(self.compile_times)  # of those that went on side by side

    def place(self, u: np.ndarray) -> None:
        """Chains at these points."""
        self.groups = [Group(range(a, b), self.keys[a:b], u[a:b]) for a, b in pairwise(self.bounds)]

    def compile(self, keys: Any) -> Compiled:
        """The functions of the kernel for groups of one size."""
        started = time.perf_counter()
        width, zero = len(keys), jnp.array(0)
        u, step_size = jnp.zeros((width, self.model.d)), jnp.ones(width)
        begin_args = (self.y, self.tuning, keys, u, zero, step_size)
        chains = jax.eval_shape(self.kernel.begin, *begin_args)
        with ThreadPoolExecutor(1) as pool:
            advance = pool.submit(lambda: self.kernel.advance.lower(self.y, self.tuning, chains, zero, zero).compile())
            begin = self.kernel.begin.lower(*begin_args).compile()
            compiled = Compiled(begin, advance.result())
        self.compile_times.append(time.perf_counter() - started)
        return compiled

    def may_go_on(self) -> bool:
        return not self.stopped.is_set() and time.perf_counter() < self.deadline

    def warm_up(self, progress: Progress, until: int | None = None) -> None:
        """Adapt, stage by stage, up to an iteration or to the end."""
        started, compiled_in = time.perf_counter(), self.compile_time
        until = self.num_warmup if until is None else until
        done = int(self.iterations().min())
        for stop in sorted(stop for stop in {*(self.windows or {self.num_warmup // 4}), until} if done < stop <= until):
            if self.may_go_on():
                self.stage(progress, stop)
            if stop < self.num_warmup and self.may_go_on():
                self.move(self.donors(progress))
                if stop in self.windows:
                    self.retune(progress, self.windows[stop])
        if until == self.num_warmup and self.method.shared_step_size:
            self.step_sizes = np.full_like(self.step_sizes, np.exp(np.log(self.step_sizes).mean()))
        self.warmup_time += time.perf_counter() - started - (self.compile_time - compiled_in)

    def draw(self, progress: Progress, number: int) -> None:
        """Go on until every chain has as many draws."""
        if self.may_go_on():
            self.stage(progress, self.num_warmup + number)
            self.sampling_time += self.stage_time

    def stage(self, progress: Progress, stop: int) -> None:
        """Bring all chains to an iteration."""
        started, start = time.perf_counter(), int(self.iterations().min())
        with ThreadPoolExecutor(len(self.groups)) as pool:
            running = {pool.submit(self.advance_group, group, start, stop) for group in self.groups}
            while running:
                try:
                    done, running = wait(running, timeout=0.1)
                    progress.show(self)
                    for future in done:
                        future.result()
                except KeyboardInterrupt:
                    if self.stopped.is_set():
                        raise
                    self.stopped.set()
                    progress.say("Stopping after the current steps; press Ctrl-C again to abort.")
                except BaseException:
                    self.stopped.set()
                    raise
        self.stage_start, self.stage_time = start, time.perf_counter() - started
        self.followed = np.arange(self.num_chains)
        ends_early = stop < self.num_warmup and self.method.step_size is None
        kept = lambda chains: jnp.exp(chains.averaging.log_average) if ends_early else chains.step_size
        self.step_sizes = np.concatenate([np.asarray(kept(group.chains)) for group in self.groups])

    def advance_group(self, group: Group, start: int, stop: int) -> None:
        """The work of one thread in a stage."""
        compiled = self.compiled[len(group.index)]
        chains = compiled.begin(
            self.y,
            self.tuning,
            group.keys,
            jnp.asarray(group.u),
            jnp.array(start),
            jnp.asarray(self.step_sizes[group.index]),
        )
        num_steps = self.steps_per_call
        while group.iterations.min() < stop and self.may_go_on():
            started = time.perf_counter()
            chains, rows = compiled.advance(self.y, self.tuning, chains, jnp.array(stop), jnp.array(num_steps))
            iterations, rows = np.asarray(chains.iteration), np.asarray(rows)
            for chain, (before, after) in enumerate(zip(group.iterations, iterations, strict=True)):
                if after > before:
                    group.rows[chain].append(rows[chain, : after - before].copy())
            group.iterations = iterations
            seconds = time.perf_counter() - started
            num_steps = int(
                np.clip(num_steps * SECONDS_PER_CALL / seconds, 1, min(self.kernel.capacity, 2 * num_steps))
            )
        self.steps_per_call = num_steps
        group.chains = chains
        if group.iterations.min() >= stop:
            group.u = np.stack([rows[-1][-1, : self.model.d] for rows in group.rows])

    def donors(self, progress: Progress) -> np.ndarray:
        """For each chain the one to go on from: itself, unless it was left behind in a mode that is far worse."""
        chains = np.arange(self.num_chains)
        last = Draw.unpack(np.stack([rows[-1] for rows in self.draws()]))
        is_good = as_good_as_the_best(self.model, last.info.lp - last.log_volume)
        if is_good.all() or not self.may_move:
            return chains
        left = chains[~is_good]
        progress.say(f"Left behind, far from where the others are, and moved there: chains {left.tolist()}.")
        return np.where(is_good, chains, np.resize(chains[is_good], self.num_chains))

    def move(self, donors: np.ndarray) -> None:
        """Put each chain where its donor is."""
        u, self.step_sizes, self.followed = self.places()[donors], self.step_sizes[donors], np.unique(donors)
        for group in self.groups:
            group.u = u[group.index]

    def seen(self, window: slice) -> Draw:
        """The draws of a window, shape (chain, draw), in the chains from which any goes on."""
        rows = self.draws()
        return Draw.unpack(np.stack([rows[chain][window] for chain in self.followed]))

    def retune(self, progress: Progress, window: slice) -> None:
        """Let the method learn from the draws of a window."""
        draws = self.seen(window)
        before: Any = jax.tree.structure(self.tuning)
        self.tuning, message = self.method.retuned(
            self.tuning, draws.u.reshape(-1, self.model.d), draws.log_volume.ravel()
        )
        if message:
            progress.say(message)
        if before != jax.tree.structure(self.tuning):
            self.prepare()

    def iterations(self) -> np.ndarray:
        """How many transitions each chain has made."""
        return np.concatenate([group.iterations for group in self.groups])

    def places(self) -> np.ndarray:
        """Where the chains are between stages."""
        return np.concatenate([group.u for group in self.groups])

    def draws(self) -> list[np.ndarray]:
        """The rows of every chain, in order."""
        return [group.draws(chain) for group in self.groups for chain in range(len(group.index))]
