"""What a posterior looks like before it is sampled, and which method suits it."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax

from tightrope.initialise import find_start
from tightrope.models import Model
from tightrope.types import Array, InputError

NUM_POINTS, FEW_POINTS = 64, 16  # where Jacobians are small, and where they have more numbers than this
SMALL, MAX_NUMBERS = 10**5, 10**7
# Normal posteriors have 0.9 to 1.05. A lifted step costs as much as several of NUTS, but its draws are worth as many
# more: on lotka-volterra, which has 1.6 to 2.4, it makes twice the effective draws per second.
WORTH_LIFTING = 1.3


@dataclass(frozen=True)
class Diagnosis:
    """A posterior seen from a few points of it; `print` tells it in words."""

    model: str
    num_coordinates: int
    num_data: int
    noise_to_signal: float  # noise scale at the points, per typical miss of the data by a prior draw
    num_open: int  # directions about which the data say less than the prior
    thinnest: float  # width of the posterior across its thinnest direction, in widths of the prior
    steps: float  # that NUTS with a dense metric would take to cross the posterior once, per step across a normal one
    method: str  # lifted-nuts or nuts

    def __str__(self) -> str:
        if self.method == "lifted-nuts":
            advice = 'lift it, with method="lifted-nuts": thin directions turn, so that no one metric suits all places.'
        else:
            advice = 'method=tr.NUTS(metric="dense") is enough: one metric suits all places.'
        return "\n".join(
            [
                f"{self.model}: {self.num_coordinates} coordinates, {self.num_data} data",
                f"noise to signal {self.noise_to_signal:.2g}",
                f"{self.num_open} of {self.num_coordinates} directions are left to the prior",
                f"in the thinnest direction the posterior has {self.thinnest:.2g} of the prior's width",
                f"NUTS with a dense metric would need {self.steps:.2g} times the steps of a normal posterior",
                f"Advice: {advice}",
            ]
        )


def diagnose_model(model: Model, seed: int = 0) -> Diagnosis:
    """Look at a posterior from starting points such as a run would have, and advise on a method.

    With J = De at a point, H = I + J^T J is how curved the posterior is there. A singular value of J below 1 is a
    direction that the data do not determine. NUTS with a dense metric has one metric for all places, the covariance C,
    here that of the points and of H^-1 about them, and must step as finely as the largest eigenvalue of C H asks:
    about its root steps to cross the posterior once, as many times more than a normal posterior as it is larger than
    it would be for that. That is 1 where the posterior is normal, however thin; it grows where thin directions turn,
    like 1 / sigma. From 1.3 on lifting pays.
    """
    if not isinstance(model, Model):
        raise InputError(f"model must be a tr.Model, not {type(model).__name__}.")
    if model.d * model.m > MAX_NUMBERS:
        raise InputError(f"the Jacobian of {model.name} would have {model.d} x {model.m} numbers: too many to look at.")
    find_key, refine_key = jr.split(jr.key(seed))
    num_points = NUM_POINTS if model.d * model.m <= SMALL else FEW_POINTS
    start = find_start(model, "auto", find_key, num_points)
    points = np.unique(start.refined(model, refine_key, num_points), axis=0)
    log_misses, log_scales, jacobians = (np.asarray(found) for found in look(model, start.u, points))
    values = np.linalg.svd(jacobians, compute_uv=False)
    steps = float(np.median(steps_to_cross(points, jacobians))) / steps_across_normal(*points.shape)
    return Diagnosis(
        model=model.name,
        num_coordinates=model.d,
        num_data=model.m,
        noise_to_signal=float(np.exp(np.median(log_scales) - np.median(log_misses))),
        num_open=model.d - int(np.median((values > 1).sum(axis=1))),
        thinnest=float(np.median(1 / np.hypot(1, values.max(axis=1)))),
        steps=steps,
        method="lifted-nuts" if steps > WORTH_LIFTING else "nuts",
    )


def look(model: Model, draws: np.ndarray, points: np.ndarray) -> tuple[Array, Array, Array]:
    """Mean logs of distances to the data at prior draws; of noise scales at points, and the Jacobian of residuals."""

    @jax.jit
    def at(y: Array, draws: Array, points: Array) -> tuple[Array, Array, Array]:
        lift = model.condition(y).lift
        residual = lambda u: lift(u).e
        slopes = jax.jacfwd(residual) if model.d < model.m else jax.jacrev(residual)
        log_scale = lambda u: lift(u).log_scale / model.m
        log_miss = lambda u: mean_log(residual(u)) + log_scale(u)
        return lax.map(log_miss, draws, batch_size=100), lax.map(log_scale, points), lax.map(slopes, points)

    return at(model.data, draws, points)


def mean_log(misses: Array) -> Array:
    """The mean log of sizes, but for those of exactly zero: a datum of zero before anything has begun, for one."""
    is_some = misses != 0
    return jnp.sum(jnp.where(is_some, jnp.log(jnp.abs(jnp.where(is_some, misses, 1.0))), 0.0)) / is_some.sum()


def steps_to_cross(points: np.ndarray, jacobians: np.ndarray) -> np.ndarray:
    """The root of the largest eigenvalue of C H at each point."""
    # From roots of C and H, as their products would lose thin directions.
    identity = np.eye(points.shape[1])
    roots = []
    for jacobian in jacobians:
        _, values, rows = np.linalg.svd(jacobian, full_matrices=False)
        roots.append(identity + rows.T @ ((1 / np.hypot(1, values) - 1)[:, None] * rows))  # of H^-1
    spread = np.concatenate([points - points.mean(axis=0), *roots]) / np.sqrt(len(points))
    _, widths, axes = np.linalg.svd(spread, full_matrices=False)
    factor = axes.T * widths  # of C
    whole = np.concatenate([np.broadcast_to(factor, (len(points), *factor.shape)), jacobians @ factor], axis=1)
    return np.linalg.norm(whole, 2, axis=(1, 2))


def steps_across_normal(num_points: int, d: int) -> float:
    """The same if the posterior is normal.

    The covariance of the points times H then has a largest eigenvalue of about (1 + sqrt(d / n))^2, the edge of the law
    of Marchenko and Pastur (1967); H^-1 about them adds 1.
    """
    return float(np.hypot(1, 1 + np.sqrt(d / num_points)))
