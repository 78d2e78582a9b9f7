"""Choose between the lifted sampler and NUTS with a dense metric, by a short trial on the model at hand."""

from __future__ import annotations

import time
from typing import NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from arviz_stats.base import array_stats

from tightrope.adaptation import shrunk_covariance
from tightrope.kinds import Turning
from tightrope.methods import NUTS
from tightrope.progress import Progress
from tightrope.runs import Run
from tightrope.systems import Metric

TRIAL_WARMUP, TRIAL_DRAWS = 100, 100
MAX_SHARE = 0.1  # of the time of the whole run, for the trial
MAX_COORDINATES = 1000  # of a dense metric
MAX_JUDGED = 100  # coordinates whose ESS is looked at


class Choice(NamedTuple):
    """The run to go on with, and why."""

    run: Run
    reason: str


def rival_of(run: Run, method: Turning, cores: int) -> Run | None:
    """A run of NUTS with a dense metric, yet to be told which; none where it stands no chance or there is no time."""
    d = run.model.d
    if d > MAX_COORDINATES or run.num_warmup < TRIAL_WARMUP or method.step_size is not None:
        return None
    shared = {name: getattr(method, name) for name in ("target_accept", "max_depth", "shared_step_size")}
    dense, key = NUTS(metric="dense", **shared), jr.fold_in(run.key, run.num_chains)
    metric = Metric.of(jnp.eye(d))
    rival = Run(run.model, dense, TRIAL_WARMUP, run.num_draws, run.num_chains, cores, key, tuning=metric)
    rival.stopped = run.stopped
    return rival


def choose(run: Run, rival: Run, progress: Progress) -> Choice:
    """Half way through the warm-up of the lifted sampler: try the rival from there, with the covariance seen so far."""
    trial, ours, window = min(TRIAL_DRAWS, run.num_draws), effective_rate(run), slice(run.stage_start, None)
    u = run.seen(window).u.reshape(-1, run.model.d)
    rival.tuning = Metric.of(jnp.asarray(shrunk_covariance(u, is_dense=True)))
    rival.place(run.places())
    whole = run.compile_time + run.warmup_time * (run.num_warmup + run.num_draws) / run.iterations().min()
    rival.deadline = time.perf_counter() + MAX_SHARE * whole
    rival.warm_up(progress)
    rival.draw(progress, trial)
    rival.deadline = np.inf
    if run.stopped.is_set():
        return Choice(rival if rival.iterations().min() > rival.num_warmup else run, "no trial: stopped.")
    if rival.iterations().min() < rival.num_warmup + trial:
        late = f"dense nuts did not finish its trial in {MAX_SHARE:.0%} of the time that the run will take"
        return Choice(charged(run, rival), f"lifted-nuts: {late}.")
    theirs = effective_rate(rival)
    compared = f"{ours:.3g} and {theirs:.3g} effective draws per second in a trial of lifted-nuts and dense nuts"
    if theirs > ours:
        return Choice(charged(rival, run), f"nuts: {compared}.")
    return Choice(charged(run, rival), f"lifted-nuts: {compared}.")


def charged(winner: Run, loser: Run) -> Run:
    """The winner, with the loser's time added to that of its warm-up; they compiled side by side."""
    winner.warmup_time += loser.warmup_time + loser.sampling_time
    winner.compile_time = max(winner.compile_time, loser.compile_time)
    return winner


def effective_rate(run: Run) -> float:
    """Effective draws per second in the last stage, of the coordinate with the fewest; none if a chain stood still."""
    draws = run.seen(slice(run.stage_start, None))
    if (np.ptp(draws.info.lp, axis=1) == 0).any():
        return 0.0
    judged = np.unique(np.linspace(0, run.model.d - 1, MAX_JUDGED).astype(int))
    sizes = [array_stats.ess(draws.u[..., i], chain_axis=0, draw_axis=1, method="bulk") for i in judged]
    return float(np.nan_to_num(sizes, nan=0.0).min()) / run.stage_time
