"""One run: groups of chains on threads, stage by stage, with progress and a way to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from tightrope.adaptation import FIRST_STEP_SIZE, has_mass
from tightrope.compilation import ONE_PIECE, compiled
from tightrope.initialise import Start, as_good_as_the_best
from tightrope.kernel import Draw, Kernel
from tightrope.kinds import Method, Window
from tightrope.models import Model
from tightrope.outlook import Outlook
from tightrope.progress import Progress
from tightrope.recording import Recorder, flattened, unflattened
from tightrope.store import facts_of
from tightrope.streams import stream
from tightrope.types import FAILURES, SamplingError

# Clocks decide when to look up from the work, to save it, and to give it up; none changes a draw.
SECONDS_PER_CALL = 0.2  # of compiled code
FIRST_LEG, LONGEST_LEG = 0.5, 10.0  # seconds between two checkpoints, at first and in the end
SLOWEST_LEG = 60.0  # where a checkpoint takes long
MAX_SHARE = 0.05  # of the time, for checkpoints
ENOUGH_TO_MOVE = 10  # iterations of warm-up in which every chain should move
NUM_REMEMBERED = 500  # rows of a chain that stay in memory although they are saved


class Compiled(NamedTuple):
    """The functions of the kernel, ready to run."""

    begin: Any
    advance: Any


class Rows:
    """The draws of a chain, one row each; saved ones may be forgotten."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.forgotten = self.saved = 0  # so many from the beginning

    def since(self, iteration: int) -> np.ndarray:
        """The rows from an iteration on."""
        parts, stop = [], self.forgotten + sum(map(len, self.parts))
        for part in reversed(self.parts):
            if stop <= iteration:
                break
            start = stop - len(part)
            parts.append(part[max(0, iteration - start) :])
            stop = start
        return np.concatenate(parts[::-1]) if parts else np.zeros((0, 0))

    def forget(self) -> None:
        """Keep only the last of what is saved."""
        while self.parts and self.forgotten + len(self.parts[0]) <= self.saved - NUM_REMEMBERED:
            self.forgotten += len(self.parts.pop(0))


class Group:
    """Chains that advance together on one thread."""

    def __init__(self, index: range, keys: Any, u: np.ndarray):
        self.index = index  # which chains of the run
        self.keys = keys
        self.u = u  # where they are between stages
        self.chains: Any = None  # a Chain, once they have begun
        self.rows = [Rows() for _ in index]
        self.iterations = np.zeros(len(index), int)


ADVICE = {
    "projection_failed": 'found no solution of their equations; try solver="newton", a larger max_iterations, or other '
    "starting points by init=",
    "non_reversible": "were not reversible; give init=, or a method with a smaller step_size",
    "non_finite": "met NaN or infinity in the forward model or its derivatives; narrow the priors, or make the model "
    "stable where they reach",
    "": "all proposals were rejected; give init=, a smaller step_size, or a longer warm-up",
}


class Run:
    """A model, a method and its chains, which warm-up may move if their starts are ours."""

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
        may_move: bool = False,
    ):
        self.model, self.method, self.may_move = model, method, may_move
        self.num_warmup, self.num_draws, self.num_chains = warmup, draws, chains
        self.kernel = Kernel(model, method, warmup)
        self.y = model.data
        self.key, start_key = jr.split(key)
        self.find_key, self.refine_key = jr.split(start_key)
        self.keys = jax.vmap(lambda chain: jr.fold_in(stream(self.key), chain))(jnp.arange(chains))
        conditioned = model.condition()
        self.tuning = method.initial_tuning(conditioned)
        self.windows = {stop: slice(start, stop) for start, stop in method.windows(conditioned, warmup)}
        self.bounds = np.linspace(0, chains, min(cores, chains) + 1).astype(int)
        given = method.step_size
        self.step_sizes = np.full(chains, FIRST_STEP_SIZE if given is None else float(given))
        self.stopped = threading.Event()
        self.pace = 0.0  # steps per second of a group
        self.compile_times: list[float] = []
        self.compile_time = self.warmup_time = self.sampling_time = 0.0
        self.finished = 0  # where the last stage ended after which all was learnt that there was to learn
        self.stage_start = self.stage_stop = 0  # of the last stage
        self.stage_time = 0.0
        self.recorder: Recorder | None = None  # where there is a directory
        self.leg = FIRST_LEG
        self.notes: dict[str, Any] = {}  # to go into checkpoints
        self.followed = np.arange(chains)  # those of its chains from which any chain goes on
        self.deadline = np.inf  # by the clock, to look up then
        self.outlook: Outlook | None = None  # where it is to be given up in warm-up if that takes too long

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

    def beginning(self, keys: Any) -> tuple[Any, ...]:
        """Arguments like those with which a group of chains begins."""
        width = len(keys)
        return self.y, self.tuning, keys, jnp.zeros((width, self.model.d)), jnp.array(0), jnp.ones(width)

    def compile(self, keys: Any) -> Compiled:
        """The functions of the kernel for groups of one size."""
        started, zero, args = time.perf_counter(), jnp.array(0), self.beginning(keys)
        kernel, facts = self.kernel, (self.method, self.num_warmup, jax.tree.map(jax.typeof, args))
        options = ONE_PIECE if self.method.suits_one_piece(self.model.condition()) else None

        def trace_advance() -> Any:
            chains = jax.eval_shape(kernel.begin, *args)
            return kernel.advance.lower(self.y, self.tuning, chains, zero, zero)

        with ThreadPoolExecutor(1) as pool:
            advance = pool.submit(compiled, trace_advance, self.model.known_as("advance", *facts), options)
            begin = compiled(lambda: kernel.begin.lower(*args), self.model.known_as("begin", *facts), options)
            functions = Compiled(begin, advance.result())
        self.compile_times.append(time.perf_counter() - started)
        return functions

    def may_go_on(self) -> bool:
        return not self.stopped.is_set() and time.perf_counter() < self.deadline

    def warm_up(self, progress: Progress) -> None:
        """Adapt, stage by stage, as far as there is time."""
        stops = {*(self.windows or {self.num_warmup // 4}), self.num_warmup}
        for stop in sorted(stop for stop in stops if stop > self.finished):
            if self.may_go_on():
                self.stage(progress, stop)
            if self.iterations().min() < stop or self.stopped.is_set():
                break
            if stop < self.num_warmup:
                self.move(self.donors(progress))
                if stop in self.windows:
                    self.retune(progress, self.windows[stop])
            else:
                self.refuse_stuck()
                if self.method.shared_step_size:
                    self.step_sizes = np.full_like(self.step_sizes, np.exp(np.log(self.step_sizes).mean()))
            self.finished = stop

    def draw(self, progress: Progress, number: int) -> None:
        """Go on until every chain has as many draws."""
        for stop in sorted({self.stage_stop, self.num_warmup + number}):  # the first, if it was broken off
            if stop > self.num_warmup and self.may_go_on():
                self.stage(progress, stop)

    def stage(self, progress: Progress, stop: int) -> None:
        """Bring all chains to an iteration, in legs after each of which the run is saved."""
        if self.stage_stop != stop:  # else it goes on with one that was broken off
            self.stage_start, self.stage_stop, self.stage_time = int(self.iterations().min()), stop, 0.0
            for group in self.groups:
                group.chains = None
        begun = False
        while not begun or (self.may_go_on() and self.iterations().min() < stop):
            begun = True
            started = time.perf_counter()
            self.advance(progress, started + self.leg if self.recorder else np.inf)
            self.note_time(time.perf_counter() - started)
            if self.recorder:
                self.save(self.recorder)
        self.followed = np.arange(self.num_chains)
        ends_early = stop < self.num_warmup and self.method.step_size is None
        kept = lambda chains: jnp.exp(chains.averaging.log_average) if ends_early else chains.step_size
        self.step_sizes = np.concatenate([np.asarray(kept(group.chains)) for group in self.groups])

    def note_time(self, seconds: float) -> None:
        """Add to the time of the stage, and of what it is part of."""
        self.stage_time += seconds
        if self.stage_stop <= self.num_warmup:
            self.warmup_time += seconds
        else:
            self.sampling_time += seconds

    def advance(self, progress: Progress, until: float) -> None:
        """All groups, side by side, to the end of the stage or until a time by the clock."""
        with ThreadPoolExecutor(len(self.groups)) as pool:
            running = {pool.submit(self.advance_group, group, until) for group in self.groups}
            try:
                while running:
                    done, running = wait(running, timeout=0.1)
                    progress.show(self)
                    if self.is_hopeless():
                        progress.say("Given up: warm-up would not end in time.")
                        self.stopped.set()
                    for future in done:
                        future.result()
            except BaseException:
                self.stopped.set()
                raise

    def is_hopeless(self) -> bool:
        """Whether it is to be given up."""
        if self.outlook is None or self.stage_stop > self.num_warmup or self.stopped.is_set():
            return False
        return self.outlook.is_hopeless(int(self.iterations().min()), self.stage_stop)

    def advance_group(self, group: Group, until: float) -> None:
        """The work of one thread."""
        compiled, chains, stop = self.compiled[len(group.index)], group.chains, self.stage_stop
        if chains is None:
            step_sizes = jnp.asarray(self.step_sizes[group.index])
            start, u = jnp.array(self.stage_start), jnp.asarray(group.u)
            chains = compiled.begin(self.y, self.tuning, group.keys, u, start, step_sizes)
        while group.iterations.min() < stop and self.may_go_on() and time.perf_counter() < until:
            started = time.perf_counter()
            allowed = self.pace * min(SECONDS_PER_CALL, self.deadline - started)
            num_steps = int(np.clip(allowed, 1, self.kernel.capacity))
            chains, rows = compiled.advance(self.y, self.tuning, chains, jnp.array(stop), jnp.array(num_steps))
            iterations, rows = np.asarray(chains.iteration), np.asarray(rows)
            for chain, (before, after) in enumerate(zip(group.iterations, iterations, strict=True)):
                if after > before:
                    group.rows[chain].parts.append(rows[chain, : after - before].copy())
            group.iterations = iterations
            if iterations.min() < stop:  # else there may have been fewer steps
                self.pace = num_steps / (time.perf_counter() - started)
        group.chains = chains
        if group.iterations.min() >= stop:
            group.u = np.stack([rows.parts[-1][-1, : self.model.d] for rows in group.rows])

    def save(self, recorder: Recorder) -> None:
        """Write down all that there is, so that the run can go on from here."""
        started = time.perf_counter()
        last = np.zeros((self.num_chains, Draw.width(self.model.d)))
        arrays = flattened("tuning", self.tuning)
        for place, group in enumerate(self.groups):
            arrays |= flattened(f"chains/{place}", group.chains)
            for chain, rows, iteration in zip(group.index, group.rows, group.iterations, strict=True):
                if iteration > rows.saved:
                    recorder.write(chain, rows.saved, rows.since(rows.saved))
                    rows.saved = int(iteration)
                if iteration:
                    last[chain] = rows.parts[-1][-1]
                if self.stage_stop > self.num_warmup:
                    rows.forget()
        facts = {
            **self.notes,
            "iterations": self.iterations().tolist(),
            "finished": self.finished,
            "stage_start": self.stage_start,
            "stage_stop": self.stage_stop,
            "stage_time": self.stage_time,
            "compile_time": self.compile_time,
            "warmup_time": self.warmup_time,
            "sampling_time": self.sampling_time,
            "method": self.method.name,
        }
        recorder.save(arrays | {"step_sizes": self.step_sizes, "u": self.places(), "last": last}, facts)
        took = time.perf_counter() - started
        self.leg = min(max(min(LONGEST_LEG, 2 * self.leg), took / MAX_SHARE), SLOWEST_LEG)

    def restore(self, saved: Mapping[str, np.ndarray]) -> None:
        """Be where a checkpoint says."""
        facts = facts_of(saved)
        for name in ("finished", "stage_start", "stage_stop", "stage_time", "warmup_time", "sampling_time"):
            setattr(self, name, facts[name])
        self.step_sizes = saved["step_sizes"]
        num_arrays = sum(name.startswith("tuning/") for name in saved)
        self.tuning = unflattened("tuning", saved, self.method.saved_like(self.tuning, num_arrays))
        self.prepare()
        self.place(saved["u"])
        for place, group in enumerate(self.groups):
            like = jax.eval_shape(self.kernel.begin, *self.beginning(group.keys))
            group.chains = unflattened(f"chains/{place}", saved, like)
            group.iterations = np.asarray(facts["iterations"])[group.index]
            for chain, rows, iteration in zip(group.index, group.rows, group.iterations, strict=True):
                rows.saved = int(iteration)
                if self.recorder and self.stage_stop <= self.num_warmup:
                    rows.parts = [self.recorder.read_warmup(chain, rows.saved)] if iteration else []
                elif iteration:
                    rows.parts, rows.forgotten = [saved["last"][chain][None]], rows.saved - 1

    def refuse_stuck(self) -> None:
        """End here if a chain has not moved once, and say why."""
        rows = self.draws()
        stuck = [chain for chain, row in enumerate(rows) if (np.ptp(row[:, : self.model.d], axis=0) == 0).all()]
        if not stuck or self.num_warmup < ENOUGH_TO_MOVE:
            return
        info = Draw.unpack(np.concatenate([rows[chain] for chain in stuck])).info
        counts = {name: int(getattr(info, name).sum()) for name in FAILURES}
        worst = max(counts, key=lambda name: counts[name])
        reason = ADVICE[worst if counts[worst] else ""]
        share = f"{counts[worst] / info.n_steps.sum():.0%} of their steps " if counts[worst] else ""
        raise SamplingError(
            f"chains {stuck} did not move once in {self.num_warmup} iterations of warm-up: {share}{reason}."
        )

    def donors(self, progress: Progress) -> np.ndarray:
        """For each chain the one to go on from: itself, unless it was left behind in a mode of next to no mass."""
        chains = np.arange(self.num_chains)
        latest = slice((self.stage_start + self.stage_stop) // 2, self.stage_stop)
        draws = Draw.unpack(np.stack([rows[latest] for rows in self.draws()]))
        is_good = as_good_as_the_best(self.model, draws.info.lp[:, -1] - draws.log_volume[:, -1])
        is_good[is_good] = has_mass(draws.u[is_good], np.asarray(draws.info.lp)[is_good])  # one of them has
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
        draws, shortest = self.seen(window), float(self.step_sizes.min())
        is_last = window.stop == max(self.windows)
        before: Any = jax.tree.structure(self.tuning)
        seen = Window(draws.u.reshape(-1, self.model.d), draws.log_volume.ravel(), shortest, is_last)
        self.tuning, message, is_new_scale = self.method.retuned(self.tuning, seen)
        if is_new_scale and self.method.step_size is None:
            self.step_sizes = np.full_like(self.step_sizes, FIRST_STEP_SIZE)
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
        return [rows.since(0) for group in self.groups for rows in group.rows]
