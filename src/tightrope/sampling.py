"""The driver: groups of chains on threads, stage by stage, with progress and a way to stop."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr

from tightrope import diagnostics, results
from tightrope.adaptation import FIRST_STEP_SIZE
from tightrope.initialise import as_good_as_the_best, find_start
from tightrope.kernel import Draw, Kernel
from tightrope.methods import Method, method_of
from tightrope.models import Model
from tightrope.progress import Progress
from tightrope.types import InputError

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
    """One call of `sample`."""

    def __init__(self, model: Model, method: Method, warmup: int, draws: int, chains: int, cores: int, seed: int):
        self.model, self.method = model, method
        self.num_warmup, self.num_draws, self.num_chains = warmup, draws, chains
        self.kernel = Kernel(model, method, warmup)
        self.y = model.data
        self.key, self.start_key = jr.split(jr.key(seed))
        self.tuning = method.initial_tuning(model.condition())
        self.num_groups = min(cores, chains)
        self.stopped = threading.Event()
        self.steps_per_call = 1
        self.compile_times: list[float] = []
        self.compile_time = self.warmup_time = self.sampling_time = 0.0

    def begin(self, init: Any) -> None:
        """Find starting points, and compile while they are refined."""
        self.may_move = isinstance(init, str) and init == "auto"  # other starts are the user's choice
        find_key, refine_key = jr.split(self.start_key)
        start = find_start(self.model, init, find_key, self.num_chains)
        keys = jax.vmap(lambda chain: jr.fold_in(self.key, chain))(jnp.arange(self.num_chains))
        bounds = np.linspace(0, self.num_chains, self.num_groups + 1).astype(int)
        with ThreadPoolExecutor(2) as pool:
            widths = set(np.diff(bounds).tolist())
            compiling = {width: pool.submit(self.compile, keys[:width]) for width in widths}
            u = start.refined(self.model, refine_key, self.num_chains)
            self.compiled = {width: future.result() for width, future in compiling.items()}
        self.compile_time = max(self.compile_times)  # of those that went on side by side
        self.groups = [Group(range(a, b), keys[a:b], u[a:b]) for a, b in pairwise(bounds)]

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

    def sample(self, progress: Progress) -> None:
        """Warm up in stages, then draw."""
        started, compiled_in = time.perf_counter(), self.compile_time
        given = self.method.step_size
        step_sizes = np.full(self.num_chains, FIRST_STEP_SIZE if given is None else float(given))
        windows = {
            stop: slice(start, stop) for start, stop in self.method.windows(self.model.condition(), self.num_warmup)
        }
        start = 0
        for stop in sorted({*(windows or {self.num_warmup // 4}), self.num_warmup} - {0}):
            if not self.stopped.is_set():
                step_sizes = self.stage(progress, start, stop, step_sizes)
            if stop < self.num_warmup and not self.stopped.is_set():
                donors = self.donors(progress)
                self.move(donors)
                step_sizes = step_sizes[donors]
                if stop in windows:
                    self.retune(progress, windows[stop], donors)
            start = stop
        if self.method.shared_step_size:
            step_sizes = np.full_like(step_sizes, np.exp(np.log(step_sizes).mean()))
        self.warmup_time = time.perf_counter() - started - (self.compile_time - compiled_in)
        started = time.perf_counter()
        if not self.stopped.is_set():
            self.stage(progress, self.num_warmup, self.num_warmup + self.num_draws, step_sizes)
        self.sampling_time = time.perf_counter() - started

    def stage(self, progress: Progress, start: int, stop: int, step_sizes: np.ndarray) -> np.ndarray:
        """Bring all chains from one iteration to another; the step sizes that they end with."""
        with ThreadPoolExecutor(len(self.groups)) as pool:
            running = {pool.submit(self.advance_group, group, start, stop, step_sizes) for group in self.groups}
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
        ends_early = stop < self.num_warmup and self.method.step_size is None
        kept = lambda chains: jnp.exp(chains.averaging.log_average) if ends_early else chains.step_size
        return np.concatenate([np.asarray(kept(group.chains)) for group in self.groups])

    def advance_group(self, group: Group, start: int, stop: int, step_sizes: np.ndarray) -> None:
        """The work of one thread in a stage."""
        compiled = self.compiled[len(group.index)]
        chains = compiled.begin(
            self.y,
            self.tuning,
            group.keys,
            jnp.asarray(group.u),
            jnp.array(start),
            jnp.asarray(step_sizes[group.index]),
        )
        num_steps = self.steps_per_call
        while group.iterations.min() < stop and not self.stopped.is_set():
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
        u = np.concatenate([group.u for group in self.groups])[donors]
        for group in self.groups:
            group.u = u[group.index]

    def retune(self, progress: Progress, window: slice, donors: np.ndarray) -> None:
        """Let the method learn from the draws of a window, in the chains that anyone goes on from."""
        rows = self.draws()
        draws = Draw.unpack(np.concatenate([rows[chain][window] for chain in np.unique(donors)]))
        before: Any = jax.tree.structure(self.tuning)
        self.tuning, message = self.method.retuned(self.tuning, draws.u, draws.log_volume)
        if message:
            progress.say(message)
        if before != jax.tree.structure(self.tuning):
            self.compile_times.clear()
            self.compiled = {width: self.compile(jr.split(self.key, width)) for width in self.compiled}
            self.compile_time += sum(self.compile_times)

    def draws(self) -> list[np.ndarray]:
        """The rows of every chain, in order."""
        return [group.draws(chain) for group in self.groups for chain in range(len(group.index))]


def check_count(argument: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{argument}={value} must be a whole number of at least {least}.")
    return int(value)


def sample(
    model: Model,
    draws: int = 1000,
    warmup: int = 1000,
    chains: int = 4,
    seed: int = 0,
    *,
    method: str | Method = "lifted-nuts",
    init: Any = "auto",
    thin: int = 1,
    keep: Sequence[str] | None = None,
    save_warmup: bool = False,
    max_time: float | None = None,
    cores: int | None = None,
    progress: bool | None = None,
) -> xr.DataTree:
    """Draw from the posterior of a model; the result has the groups of ArviZ.

    `max_time` is in seconds; what there is by then is returned, as it is after Ctrl-C.
    """
    if not isinstance(model, Model):
        raise InputError(f"model must be a tr.Model, not {type(model).__name__}.")
    jax.config.update("jax_enable_x64", True)
    draws, warmup = check_count("draws", draws, 1), check_count("warmup", warmup, 0)
    chains, thin = check_count("chains", chains, 1), check_count("thin", thin, 1)
    seed = check_count("seed", seed, 0)
    cores = check_count("cores", os.cpu_count() or 1 if cores is None else cores, 1)
    if max_time is not None and not max_time > 0:
        raise InputError(f"max_time={max_time} must be a positive number of seconds.")
    results.check_keep(model, keep)
    method = method_of(method)
    if warmup == 0 and method.step_size is None:
        raise InputError("warmup=0 leaves no time to adapt the step size: give the method a step_size.")

    run = Run(model, method, warmup, draws, chains, cores, seed)
    timer = threading.Timer(max_time, run.stopped.set) if max_time is not None else None
    with Progress(progress) as display:
        display.say(f"Finding starting points and compiling {method.name} for {model.name} ...")
        run.begin(init)
        display.say(f"Compiled in {run.compile_time:.1f} s.")
        if timer is not None:
            timer.start()
        try:
            run.sample(display)
        finally:
            if timer is not None:
                timer.cancel()
    trace = results.collect(
        model,
        run.draws(),
        num_warmup=warmup,
        thin=thin,
        keep=keep,
        save_warmup=save_warmup,
        attributes={
            "method": method.name,
            "seed": seed,
            "compile_time": run.compile_time,
            "warmup_time": run.warmup_time,
            "sampling_time": run.sampling_time,
        },
    )
    diagnostics.warn(trace)
    return trace
