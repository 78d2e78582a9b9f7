"""Acceptance over a grid of noise scale and step size: how each method's steps must shrink with the noise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr
from jax import lax

from tightrope import methods, plots, zoo
from tightrope.compilation import ONE_PIECE, compiled
from tightrope.kinds import Method
from tightrope.models import Model
from tightrope.reproduce.loop import points
from tightrope.reproduce.request import Claim, Request
from tightrope.transitions import run
from tightrope.types import Array

GRID = np.logspace(-5, 0, 11)
NUM_STEPS = 10  # of a trajectory
SEED = 1
HALF = 0.5  # the acceptance that marks the largest usable step

FIGURE_2: dict[str, Method] = {
    "RWM": methods.RWM(metric="identity"),
    "MALA": methods.MALA(metric="identity"),
    "HMC": methods.HMC(metric="identity", num_steps=NUM_STEPS, jitter=0.0),
    "RM-HMC Fisher": methods.RiemannianHMC(metric="fisher", solver="fixed-point", num_steps=NUM_STEPS, jitter=0.0),
    "RM-HMC SoftAbs": methods.RiemannianHMC(metric="softabs", solver="fixed-point", num_steps=NUM_STEPS, jitter=0.0),
    "lifted": methods.LiftedHMC(solver="newton", metric="identity", max_halvings=0, num_steps=NUM_STEPS, jitter=0.0),
}
FIGURE_A1: dict[str, Method] = {
    "position-dependent RWM": methods.LocalRWM(),
    "position-dependent MALA": methods.LocalMALA(),
    "Xifara's MALA": methods.XifaraMALA(),
}


def figure_2(request: Request) -> list[Claim]:
    """Acceptance over noise scale and step size on the toy, six methods."""
    slopes = heat_maps(FIGURE_2, request)
    ours = slopes.pop("lifted")
    text = "The lifted sampler's largest step does not depend on the noise."
    return [shrinking(slopes), Claim(text, abs(ours) < 0.1, f"slope {ours:.2f}")]


def figure_a1(request: Request) -> list[Claim]:
    """Acceptance over noise scale and step size on the toy, the position-dependent proposals."""
    return [shrinking(heat_maps(FIGURE_A1, request))]


def shrinking(slopes: Mapping[str, float]) -> Claim:
    found = "slopes of log step size over log noise " + ", ".join(f"{name} {x:.2f}" for name, x in slopes.items())
    is_so = all(0.7 < slope < 1.3 for slope in slopes.values())
    return Claim("The largest step that is accepted shrinks in proportion to the noise.", is_so, found)


def heat_maps(compared: Mapping[str, Method], request: Request) -> dict[str, float]:
    """Run the grids into a file, then draw and tell what the file holds; how each method's largest step goes."""
    num_draws = min(request.length.draws, 1000)
    toy = lambda sigma: zoo.load("toy", sigma=sigma)

    with ThreadPoolExecutor(request.workers or os.cpu_count()) as pool:
        rows = pool.map(
            lambda method: row_of_grid(method, toy, GRID, points_on_the_loop(4), num_draws), compared.values()
        )
        found = [acceptance_grid(row, GRID, GRID, 4, SEED, pool.map) for row in rows]
    grids = xr.concat(found, xr.Variable("method", list(compared))).to_dataset(name="acceptance")
    grids.assign_attrs(command=request.command, seed=SEED, draws=num_draws).to_netcdf(
        request.file(".nc"), engine="h5netcdf"
    )
    with xr.open_dataset(request.file(".nc"), engine="h5netcdf") as saved:
        means = saved["acceptance"].mean("chain").load()
    plots.heat_maps(means, request.file(""))
    slopes = {}
    for name in means["method"].values:
        limits = largest_steps(means.sel({"method": name}))
        slopes[str(name)] = slope(limits)
        steps = " ".join("  none " if np.isnan(limit) else f"{limit:7.1e}" for limit in limits)
        request.say(f"{name:24} largest eps with acceptance over {HALF}: {steps}  slope {slopes[str(name)]:.2f}")
    request.left(".nc", ".png", ".svg")
    return slopes


def row_of_grid(
    method: Method,
    model_of: Callable[[Any], Model],
    step_sizes: np.ndarray,
    starts: np.ndarray,
    num_draws: int,
) -> Callable[[Array, Array], Array]:
    """A program: mean acceptance of chains with fixed settings, for one noise scale, all step sizes and starts."""
    method.initial_tuning(model_of(1.0).condition())  # a mistake shows before anything is traced

    def chain(sigma: Array, step_size: Array, start: Array, key: Array) -> Array:
        model = model_of(sigma).condition()
        integrator = method.integrator(model, method.initial_tuning(model))

        def body(carry: Any, key: Array) -> tuple[Any, None]:
            point, total = carry
            point, info = run(method.transition, integrator, key, point, step_size)
            return (point, total + info.acceptance_rate), None

        begin = (integrator.system.at(start), jnp.zeros(()))
        (_, total), _ = lax.scan(body, begin, jr.split(key, num_draws))
        return total / num_draws

    def row(sigma: Array, keys: Array) -> Array:
        over_starts = jax.vmap(chain, (None, None, 0, 0))
        over_steps = jax.vmap(over_starts, (None, 0, None, 0))
        return over_steps(sigma, jnp.asarray(step_sizes), jnp.asarray(starts), keys)

    keys = jr.split(jr.key(0), (len(step_sizes), len(starts)))
    return compiled(lambda: jax.jit(row).lower(jnp.ones(()), keys), options=ONE_PIECE)


def acceptance_grid(
    row: Callable[[Array, Array], Array],
    sigmas: np.ndarray,
    step_sizes: np.ndarray,
    num_starts: int,
    seed: int,
    apply: Callable[..., Iterable[Array]] = map,
) -> xr.DataArray:
    """Mean acceptance, row by row: where steps need many iterations, no chains of other noise scales wait."""
    keys = jr.split(jr.key(seed), (len(sigmas), len(step_sizes), num_starts))
    values = np.stack(list(apply(lambda sigma, keys: np.asarray(row(sigma, keys)), jnp.asarray(sigmas), keys)))
    return xr.DataArray(values, {"sigma": sigmas, "step_size": step_sizes}, ("sigma", "step_size", "chain"))


def points_on_the_loop(number: int) -> np.ndarray:
    """Points of the toy's limiting set, equally far apart along it."""
    angles = np.linspace(0, 2 * np.pi, 2001)
    loop = points(angles)
    lengths = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(loop, axis=0), axis=1))])
    places = np.searchsorted(lengths, np.arange(number) / number * lengths[-1])
    return loop[places]


def largest_steps(means: xr.DataArray) -> np.ndarray:
    """For each noise scale, the step size at which acceptance falls to one half; NaN where no step has more."""
    log_steps, limits = np.log(means["step_size"].values), []
    for row in means.transpose("sigma", "step_size").values:
        above = np.flatnonzero(row > HALF)
        if not len(above):
            limits.append(np.nan)
            continue
        last = above[-1]
        if last == len(row) - 1:
            limits.append(np.exp(log_steps[last]))
            continue
        share = (row[last] - HALF) / (row[last] - row[last + 1])
        limits.append(np.exp(log_steps[last] + share * (log_steps[last + 1] - log_steps[last])))
    return np.array(limits)


SMALL = 0.05  # noise scales below which the posterior is thin


def slope(limits: np.ndarray) -> float:
    """How the largest step goes with the noise, both as logarithms, over the small noise scales."""
    used = (GRID < SMALL) & np.isfinite(limits)
    return float(np.polyfit(np.log(GRID[used]), np.log(limits[used]), 1)[0]) if used.sum() > 1 else np.nan
