"""Choose between the lifted sampler and NUTS with a dense metric, by a short trial on the model at hand."""

from __future__ import annotations

import time
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats

from tightrope.adaptation import shrunk_covariance
from tightrope.kernel import Draw
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


def rival_of(run: Run, cores: int, seed: int) -> Run | None:
    """A run of NUTS with a dense metric, yet to be told which; none where it stands no chance or there is no time."""
    d = run.model.d
    if d > MAX_COORDINATES or run.num_warmup < TRIAL_WARMUP:
        return None
    method = NUTS(metric="dense", target_accept=run.method.target_accept)
    metric = Metric.of(jnp.eye(d))
    rival = Run(run.model, method, TRIAL_WARMUP, run.num_draws, run.num_chains, cores, seed, tuning=metric)
    rival.stopped = run.stopped
    return rival


def choose(run: Run, rival: Run, progress: Progress) -> Choice:
    """Half way through the warm-up of the lifted sampler: try the rival from there, with the covariance seen so far."""
    ours = effective_rate(run)
    window = np.concatenate([rows[run.stage_start :] for rows in run.draws()])
    rival.tuning = Metric.of(jnp.asarray(shrunk_covariance(Draw.unpack(window).u, is_dense=True)))
    rival.place(run.places())
    whole = run.compile_time + run.warmup_time * (run.num_warmup + run.num_draws) / run.iterations().min()
    rival.deadline = time.perf_counter() + MAX_SHARE * whole
    trial = min(TRIAL_DRAWS, run.num_draws)
    rival.warm_up(progress)
    rival.draw(progress, trial)
    rival.deadline = np.inf
    if rival.iterations().min() < rival.num_warmup + trial:
        late = f"dense nuts did not finish its trial in {MAX_SHARE:.0%} of the time that the run will take"
        return Choice(run, f"lifted-nuts: {late}.")
    theirs = effective_rate(rival)
    compared = f"{ours:.3g} and {theirs:.3g} effective draws per second in a trial of lifted-nuts and dense nuts"
    return Choice(rival, f"nuts: {compared}.") if theirs > ours else Choice(run, f"lifted-nuts: {compared}.")


def effective_rate(run: Run) -> float:
    """Effective draws per second in the last stage, of the coordinate with the fewest."""
    u = Draw.unpack(np.stack([rows[run.stage_start :] for rows in run.draws()])).u
    judged = np.unique(np.linspace(0, u.shape[-1] - 1, MAX_JUDGED).astype(int))
    sizes = [float(array_stats.ess(u[..., i], chain_axis=0, draw_axis=1, method="bulk")) for i in judged]
    return min(sizes) / run.stage_time
