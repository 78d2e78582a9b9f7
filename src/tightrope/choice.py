"""Choose between the lifted sampler and NUTS with a dense metric: both begin, and the faster one goes on."""

from __future__ import annotations

import time
from typing import NamedTuple

import jax.random as jr
import numpy as np

from tightrope.diagnostics import bulk_ess
from tightrope.kinds import Turning
from tightrope.methods import NUTS
from tightrope.progress import Progress
from tightrope.runs import Run
from tightrope.types import SamplingError

LEAD = 3  # of dense NUTS: a short stretch flatters a sampler that mixes slowly, on sodium seven times
GAIN = 10  # in speed, by what is learnt first: for dense NUTS on an imitation of Boehm et al. (2014) it was fifteen
LATEST = 0.3  # of the iterations of dense NUTS, to decide if the lifted sampler's speed is known
FIRST_TURN, TURN = 0.03, 0.1  # seconds of the first turn, and of each as a share of those before
MIN_DRAWS = 50  # of each chain, to tell an effective sample size
MIN_EFFECTIVE = 5  # of each chain, to trust it: chains that still travel, or are apart, have one or two
MAX_COORDINATES = 1000  # of a dense metric
MAX_JUDGED = 100  # coordinates whose effective sample size is looked at


class Mark(NamedTuple):
    """How far a run was at some time of its own."""

    iteration: int
    seconds: float


class Racer:
    """One of the two runs."""

    def __init__(self, run: Run):
        self.run = run
        self.marks, self.has_failed = [Mark(0, 0.0)], False

    def take_turn(self, seconds: float, progress: Progress) -> None:
        """Go on with warm-up for some time."""
        if self.has_failed or self.run.finished == self.run.num_warmup:
            return
        before = self.run.warmup_time
        self.run.deadline = time.perf_counter() + seconds
        try:
            self.run.warm_up(progress)
        except SamplingError:
            self.has_failed = True
        self.run.deadline = np.inf
        took = self.run.warmup_time - before  # without what may have been compiled
        self.marks.append(Mark(int(self.run.iterations().min()), self.marks[-1].seconds + took))

    def is_past(self, iteration: float) -> bool:
        """Whether so much is done, or all of warm-up."""
        return self.marks[-1].iteration >= min(iteration, self.run.num_warmup)

    @property
    def is_settled(self) -> bool:
        """Whether there are draws from trees of any length; they are short early in warm-up."""
        return self.is_past(self.run.num_warmup // 4 + MIN_DRAWS)

    @property
    def has_learnt(self) -> bool:
        """Whether there are draws made with something that was learnt."""
        return self.is_past(min(self.run.windows, default=0) + MIN_DRAWS)

    @property
    def lap(self) -> tuple[Mark, Mark]:
        """The last draws, as many as it takes to tell a speed: what was learnt before them has changed it."""
        begin = [mark for mark in self.marks if mark.iteration <= self.marks[-1].iteration - MIN_DRAWS]
        return begin[-1] if begin else self.marks[0], self.marks[-1]

    @property
    def stretch(self) -> tuple[Mark, Mark]:
        """Whose draws are judged: the later half, or all but the very beginning if that is too short."""
        last = self.marks[-1]
        for first in (last.iteration // 2, self.run.num_warmup // 10):
            begin = next((mark for mark in self.marks if mark.iteration >= first), last)
            if last.iteration - begin.iteration >= MIN_DRAWS:
                return begin, last
        return self.marks[0], last

    @property
    def has_rate(self) -> bool:
        """Whether there are enough draws to tell an effective sample size."""
        first, last = self.stretch
        return last.iteration - first.iteration >= MIN_DRAWS

    def speed(self) -> float:
        """Draws of a chain per second, of late."""
        first, last = self.lap
        has_run = last.seconds > first.seconds and not self.has_failed
        return (last.iteration - first.iteration) / (last.seconds - first.seconds) if has_run else 0.0

    def rate(self) -> float:
        """Effective draws of a chain per second; none if there are too few to tell."""
        first, last = self.stretch
        if not self.has_rate or self.has_failed:
            return 0.0
        per_draw = efficiency(self.run, slice(first.iteration, last.iteration))
        is_trusted = per_draw * (last.iteration - first.iteration) >= MIN_EFFECTIVE
        return self.speed() * per_draw if is_trusted else 0.0

    def told(self) -> str:
        """Its effective draws per second, in words."""
        rate, speed = self.run.num_chains * self.rate(), self.run.num_chains * self.speed()
        return f"{rate:.3g}" if rate and self.is_settled else f"at most {speed:.3g}"


def rival_of(run: Run, method: Turning, cores: int) -> Run | None:
    """A run of NUTS with a dense metric; none where it stands no chance or there is no time."""
    if run.model.d > MAX_COORDINATES or run.num_warmup < 2 * MIN_DRAWS or method.step_size is not None:
        return None
    options = {name: getattr(method, name) for name in ("target_accept", "max_depth", "shared_step_size")}
    asked = {name: value for name, value in options.items() if value != getattr(type(method), name)}
    sizes, key = (run.num_warmup, run.num_draws, run.num_chains, cores), jr.fold_in(run.key, run.num_chains)
    rival = Run(run.model, NUTS(metric="dense", **asked), *sizes, key, may_move=run.may_move)
    rival.stopped = run.stopped
    return rival


def decided(run: Run, rival: Run, progress: Progress) -> Run:
    """The run to go on with; it is saved from here on."""
    recorder, run.recorder = run.recorder, None  # a race is not saved, but begun anew
    winner, reason = race(run, rival, progress)
    if winner is None:
        return run
    progress.say(f"Going on with {reason}")
    loser = rival if winner is run else run
    winner.notes = {"choice": reason, "choice_time": loser.warmup_time, "is_rival": winner is rival}
    winner.warmup_time += loser.warmup_time
    winner.compile_time = max(winner.compile_time, loser.compile_time)  # they compiled side by side
    if recorder is not None:
        winner.recorder = recorder if winner is run else recorder.of_rival()
        winner.save(winner.recorder)
    return winner


def race(run: Run, rival: Run, progress: Progress) -> tuple[Run | None, str]:
    """Turn by turn, until it can be told which is faster; the winner, and why. None if it is stopped before."""
    rival.place(run.places())
    lifted, dense = Racer(run), Racer(rival)
    while True:
        turn = max(FIRST_TURN, TURN * dense.marks[-1].seconds)
        lifted.take_turn(turn / 2 if lags(lifted, dense) else turn, progress)
        dense.take_turn(turn, progress)
        if not run.may_go_on():
            return None, ""
        winner = leader(lifted, dense)
        if winner is not None:
            reason = f"{lifted.told()} and {dense.told()} effective draws per second of lifted-nuts and dense nuts"
            return winner.run, f"{winner.run.method.name}: {reason}."


def lags(lifted: Racer, dense: Racer) -> bool:
    """Whether the lifted sampler makes so few draws that it will probably lose, and should not cost much."""
    return dense.speed() > LEAD * lifted.speed()


def leader(lifted: Racer, dense: Racer) -> Racer | None:
    """The faster one, if it can be told by now."""
    if lifted.has_failed or dense.has_failed:
        return lifted if dense.has_failed else dense
    rate, rival_rate = lifted.rate(), dense.rate()
    # Until it is settled all that is known of the lifted sampler is that it makes no more than independent draws, and
    # those may come faster when its steps have grown.
    if rival_rate > (LEAD * rate if lifted.is_settled else GAIN * lifted.speed()):
        return dense
    might_win = not dense.has_learnt and GAIN * dense.speed() > LEAD * rate
    # Dense NUTS that is slower by now would have to gain more than threefold by what it still learns.
    has_shown = (dense.has_learnt and rate > rival_rate) or (lifted.is_settled and rate > 0 and not might_win)
    total = dense.run.num_warmup + dense.run.num_draws
    if has_shown or (rate > 0 and dense.is_past(LATEST * total)):
        return lifted
    is_over = any(racer.is_past(racer.run.num_warmup) for racer in (lifted, dense))
    return (lifted if rate >= rival_rate else dense) if is_over else None


def efficiency(run: Run, window: slice) -> float:
    """Effective draws per draw, of the coordinate with the fewest; none if a chain stood still."""
    draws = run.seen(window)
    if (np.ptp(draws.info.lp, axis=1) == 0).any():
        return 0.0
    judged = np.unique(np.linspace(0, run.model.d - 1, MAX_JUDGED).astype(int))
    sizes = [bulk_ess(draws.u[..., i]) for i in judged]
    return float(np.nan_to_num(sizes, nan=0.0).min()) / draws.info.lp.size
