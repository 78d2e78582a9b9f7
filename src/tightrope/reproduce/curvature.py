"""How ill-conditioned a posterior becomes as its noise vanishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.optimize import minimize

from tightrope import zoo
from tightrope.models import Model
from tightrope.reproduce import pictures
from tightrope.reproduce.families import FAMILIES
from tightrope.reproduce.request import Claim, Request
from tightrope.types import Array, SamplingError

FAMILY = FAMILIES["figure-5"]
SMALL = 0.05  # noise
MAX_ITERATIONS = 200


def figure_c3(request: Request) -> list[Claim]:
    """Condition number of the Hessian at a mode of the state space posterior, sigma held at its truth."""
    rows = [
        {"sigma": sigma, **extremes(hessian_at_mode(zoo.load(FAMILY.model, sigma=sigma)))} for sigma in FAMILY.sigmas
    ]
    pd.DataFrame(rows).assign(command=request.command).to_csv(request.file(".csv"), index=False)
    table = pd.read_csv(request.file(".csv"))
    pictures.condition_numbers(table, request.file(""))
    request.left(".csv", ".png", ".svg")
    numbers = table["largest"] / table["smallest"]
    found = ", ".join(f"{number:.2g} at {sigma:g}" for sigma, number in zip(table["sigma"], numbers, strict=True))
    return [
        Claim(
            "The Hessian's condition number grows as the noise vanishes.", bool((numbers.diff()[1:] < 0).all()), found
        )
    ]


def hessian_at_mode(model: Model) -> np.ndarray:
    """The Hessian of the negative log posterior in the coordinates but that of sigma, where its gradient vanishes.

    With sigma free there is no mode: the density grows without bound as all noise goes to zero.
    """
    assert model.truth is not None
    truth = model.parameters.coordinates(model.truth)
    free = np.setdiff1d(np.arange(model.d), model.parameters.split(np.arange(model.d))["sigma"])
    energy = lambda u: -model.log_density(truth.at[free].set(u))
    chart, start = chart_of(model, truth)
    along = lambda v: energy(chart(v)[free])
    slope, curvature = jax.jit(jax.value_and_grad(along)), jax.jit(jax.hessian(along))

    def flat_outside(found: Any) -> np.ndarray:
        """Zero where the chart has no number: there the energy is infinite, and the search turns back."""
        return np.asarray(found) if np.isfinite(found).all() else np.zeros_like(found)

    def bounded_slope(v: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = slope(v)
        return float(value) if np.isfinite(value) else np.inf, flat_outside(gradient)

    options = {"gtol": 1e-6 * float(jnp.abs(slope(start)[1]).max()), "maxiter": MAX_ITERATIONS}
    bounded_curvature = lambda v: flat_outside(curvature(v))
    found = minimize(bounded_slope, start, jac=True, hess=bounded_curvature, method="trust-exact", options=options)
    if not found.success:
        raise SamplingError(f"no mode of {model.name} was found: {found.message}")
    return np.asarray(jax.jit(jax.hessian(energy))(chart(found.x)[free]))


def chart_of(model: Model, truth: Array) -> tuple[Callable[[Array], Array], Array]:
    """A map from numbers in which the way to the mode is straight to coordinates, and where it starts.

    Where noise is small the states are known, and the posterior is a thin shell about those innovations that lead to
    them. In terms of the noise it is round.
    """
    places, y = model.parameters.split(np.arange(model.d)), model.data
    phi, sigma = np.concatenate([places[name] for name in ("mu", "gamma", "rho")]), float(model.truth["sigma"])
    if sigma > SMALL:
        free = np.concatenate([phi, places["nu"]])
        return lambda v: truth.at[free].set(v), truth[free]

    def chart(v: Array) -> Array:
        u = truth.at[phi].set(v[: len(phi)])
        params = model.parameters.values(u)
        mu, gamma, rho = params["mu"], params["gamma"], params["rho"]
        x = jnp.log(y - sigma * v[len(phi) :]) - mu
        nu = jnp.concatenate([x[:1] * jnp.sqrt(1 - rho**2), x[1:] - rho * x[:-1]]) / gamma
        return u.at[places["nu"]].set(nu)

    return chart, jnp.concatenate([truth[phi], model.condition().lift(truth).e])


def extremes(hessian: np.ndarray) -> dict[str, float]:
    """The largest and the smallest eigenvalue, by magnitude."""
    sizes = np.abs(np.linalg.eigvalsh(hessian))
    return {"largest": float(sizes.max()), "smallest": float(sizes.min())}
