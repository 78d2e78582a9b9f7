"""What to make of a run: its summary, and warnings with advice."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import xarray as xr

from tightrope.types import FAILURES, InputError

MAX_R_HAT = 1.01
MAX_R_HAT_OF_ESS = 1.05  # above it an effective sample size means nothing
MIN_ESS_PER_CHAIN = 100
MAX_FAILURE_RATE = 0.05


class SamplingWarning(UserWarning):
    """Something about a run that its user should know."""


def summary(trace: xr.DataTree, var_names: list[str] | None = None) -> pd.DataFrame:
    """Mean, spread, interval, R-hat and effective sample sizes, by default of the model's quantities."""
    import arviz_stats  # here and below: it takes a second, which whoever wants help or a list of models would wait

    if "posterior" not in trace.children:
        raise InputError("this trace has no draws to sum up: the run ended before warm-up did.")
    posterior = trace.children["posterior"].dataset
    if var_names is None:
        # A list of one name comes back from a file as the name.
        listed = [name for name in np.atleast_1d(posterior.attrs.get("quantities", [])) if name in posterior]
        var_names = listed or [str(name) for name in posterior]
    # One variable at a time: ArviZ puts wrong labels on a matrix whose axes another variable has in another order.
    tables = [arviz_stats.summary(trace, var_names=[name], round_to="none") for name in var_names]
    return pd.concat(tables).astype(float)


def bulk_ess(draws: np.ndarray) -> float:
    """The bulk effective sample size of one number's draws (chain, draw)."""
    from arviz_stats.base import array_stats

    return float(array_stats.ess(draws, chain_axis=0, draw_axis=1, method="bulk"))


def scalars(posterior: xr.Dataset) -> dict[str, np.ndarray]:
    """Every scalar of a group by label, arrays (chain, draw)."""
    found = {}
    for name, variable in posterior.data_vars.items():
        dims = [dim for dim in variable.dims if dim not in ("chain", "draw")]
        if not dims:
            found[str(name)] = variable.values
            continue
        stacked = variable.stack(entry=dims).transpose("chain", "draw", "entry")
        for place, entry in enumerate(stacked["entry"].values):
            found[f"{name}[{', '.join(str(part) for part in np.atleast_1d(entry))}]"] = stacked.values[..., place]
    return found


def performance(trace: xr.DataTree, table: pd.DataFrame | None = None) -> dict[str, float]:
    """How a run went, in a few figures: the worst quantity's R-hat and bulk ESS, and what they cost.

    A summary that is at hand need not be made again.
    """
    table = summary(trace) if table is None else table
    stats = trace.children["sample_stats"].dataset
    times, steps = trace.children["posterior"].attrs, int(stats["n_steps"].sum())
    ess, seconds = float(table["ess_bulk"].min()), float(times["sampling_time"])
    return {
        "r_hat": float(table["r_hat"].max()),
        "ess": ess,
        "ess_per_second": ess / seconds,
        "ess_per_step": ess / steps,
        "step_size": float(np.exp(np.log(stats["step_size"].values[:, -1]).mean())),
        "steps_per_draw": steps / stats["n_steps"].size,
        "acceptance": float(stats["acceptance_rate"].mean()),
        "lowest_acceptance": float(stats["acceptance_rate"].mean("draw").min()),
        "diverging": float(stats["diverging"].mean()),
        **{name: int(stats[name].sum()) / steps for name in FAILURES},
        "compile_time": float(times["compile_time"]),
        "warmup_time": float(times["warmup_time"]),
        "sampling_time": seconds,
    }


def findings(trace: xr.DataTree, table: pd.DataFrame | None = None) -> list[str]:
    """What went wrong, how often, and what to try."""
    if "posterior" not in trace.children:
        return []
    stats, found = trace.children["sample_stats"].dataset, []
    num_chains, num_draws = stats["lp"].shape
    total = num_chains * num_draws

    divergent = int(stats["diverging"].sum())
    if divergent:
        found.append(
            f"{divergent} of {total} transitions diverged: raise target_accept (0.95, say), and look at where "
            "in the posterior they happened."
        )
    steps = int(stats["n_steps"].sum())
    kinds = {
        "projection_failed": "steps found no solution of their equations: raise target_accept or max_iterations, "
        'or try solver="newton"',
        "non_reversible": "steps were not reversible: raise target_accept",
        "non_finite": "steps met NaN or infinity in the forward model: narrow the priors, "
        "or make the model stable where they reach",
    }
    for name, advice in kinds.items():
        count = int(stats[name].sum())
        if count > MAX_FAILURE_RATE * steps:
            found.append(f"{count} of {steps} ({count / steps:.0%}) {advice}.")
    full = int(stats["reached_max_treedepth"].sum())
    if full:
        found.append(f"{full} of {total} trajectories reached the maximum depth: raise max_depth if the ESS is low.")

    still = [chain for chain in range(num_chains) if len(np.unique(stats["lp"].values[chain])) == 1]
    if still and num_draws > 1:
        return [
            *found,
            f"chains {still} never moved, so no estimate means anything: raise warmup, give init=, "
            "or try a smaller step_size.",
        ]
    if num_draws < 8:
        return found
    table = summary(trace) if table is None else table
    r_hat = table["r_hat"].dropna()
    if num_chains > 1 and len(r_hat) and r_hat.max() > MAX_R_HAT:
        found.append(
            f"R-hat of {r_hat.idxmax()} is {r_hat.max():.3f}, above {MAX_R_HAT}: the chains do not agree yet. "
            "Raise warmup and draws; if it stays, the posterior may have several modes."
        )
    for kind in ("bulk", "tail"):
        ess = table[f"ess_{kind}"].dropna()
        if len(ess) and ess.min() < MIN_ESS_PER_CHAIN * num_chains:
            found.append(
                f"{kind} ESS of {ess.idxmin()} is {ess.min():.0f}, below {MIN_ESS_PER_CHAIN} per chain: raise draws."
            )
    return found


def warn(trace: xr.DataTree) -> None:
    """Issue the findings as warnings."""
    for finding in findings(trace):
        warnings.warn(finding, SamplingWarning, stacklevel=3)
