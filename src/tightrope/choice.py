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

# Both get the same time, so what the loser takes is about this share of the whole run.
SHARE, LATEST = 0.12, 0.3  # of the iterations of the one ahead: to decide if it can be told, and in any case
FIRST_TURN, TURN = 0.05, 0.2  # seconds of the first turn, and of each as a share of those before
MIN_DRAWS = 50  # of each chain, to tell an effective sample size
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
        self.early = run.num_warmup // 4  # until then trees are short, and nothing can be told

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

    def is_past(self, share: float) -> bool:
        """Whether so much of the run is done, or all of warm-up."""
        total = self.run.num_warmup + self.run.num_draws
        return self.marks[-1].iteration >= min(max(share * total, self.early + MIN_DRAWS), self.run.num_warmup)

    @property
    def middle(self) -> Mark:
        """Half way by the clock, or the end of early warm-up; what comes after is judged."""
        half = self.marks[-1].seconds / 2
        return [mark for mark in self.marks[:-1] if mark.seconds <= half or mark.iteration <= self.early][-1]

    @property
    def is_known(self) -> bool:
        """Whether there are draws enough."""
        return self.marks[-1].iteration - max(self.middle.iteration, self.early) >= MIN_DRAWS

    def rate(self) -> float:
        """Effective draws of a chain per second; too few draws to tell count as if they were independent."""
        middle, last = self.middle, self.marks[-1]
        if len(self.marks) == 1 or last.seconds == middle.seconds or self.has_failed:
            return 0.0
        speed = (last.iteration - middle.iteration) / (last.seconds - middle.seconds)
        return speed * (efficiency(self.run, slice(middle.iteration, last.iteration)) if self.is_known else 1.0)


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
    lifted, dense = racers = Racer(run), Racer(rival)
    turn = FIRST_TURN
    while run.may_go_on():
        for racer in racers:
            racer.take_turn(turn, progress)
        turn = max(FIRST_TURN, TURN * lifted.marks[-1].seconds)
        behind, ahead = sorted(racers, key=lambda racer: racer.marks[-1].iteration)
        if not ahead.is_past(SHARE) or not run.may_go_on():
            continue
        rates = {racer: racer.rate() for racer in racers}
        if behind.is_known or rates[behind] < rates[ahead] or ahead.is_past(LATEST):
            winner = behind if behind.is_known and rates[behind] > rates[ahead] else ahead
            least = "at most " if not behind.is_known else ""
            told = {racer: f"{least if racer is behind else ''}{run.num_chains * rates[racer]:.3g}" for racer in racers}
            reason = f"{told[lifted]} and {told[dense]} effective draws per second of lifted-nuts and dense nuts"
            return winner.run, f"{winner.run.method.name}: {reason}."
    return None, ""


def efficiency(run: Run, window: slice) -> float:
    """Effective draws per draw, of the coordinate with the fewest; none if a chain stood still."""
    draws = run.seen(window)
    if (np.ptp(draws.info.lp, axis=1) == 0).any():
        return 0.0
    judged = np.unique(np.linspace(0, run.model.d - 1, MAX_JUDGED).astype(int))
    sizes = [bulk_ess(draws.u[..., i]) for i in judged]
    return float(np.nan_to_num(sizes, nan=0.0).min()) / draws.info.lp.size
