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
RADIUS = 10.0  # within which the first step is looked for


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
    chart, start = chart_of(model, truth)

    def residuals(v: Array) -> Array:
        """Half of their squares is the negative log posterior, but for constants."""
        u = chart(v)
        return jnp.concatenate([u[free], model.condition().lift(u).e])

    slope, curvature = slope_and_curvature(residuals)
    options = {"gtol": 1e-6 * np.abs(slope(start)[1]).max(), "maxiter": MAX_ITERATIONS, "initial_trust_radius": RADIUS}
    found = minimize(slope, start, jac=True, hess=curvature, method="trust-exact", options=options)
    if not found.success:
        raise SamplingError(f"no mode of {model.name} was found: {found.message}")
    energy = lambda u: -model.log_density(truth.at[free].set(u))
    return np.asarray(jax.jit(jax.hessian(energy))(chart(found.x)[free]))


def slope_and_curvature(residuals: Callable[[Array], Array]) -> tuple[Callable[..., Any], Callable[..., np.ndarray]]:
    """Half of the squares of residuals with its gradient, and Gauss and Newton's matrix in place of its Hessian.

    Where there are no numbers, which is outside of a chart, the value is infinite, for a search to turn back.
    """
    first = jax.jit(jax.value_and_grad(lambda v: 0.5 * (residuals(v) ** 2).sum()))

    @jax.jit
    def second(v: Array) -> Array:
        jacobian = jax.jacfwd(residuals)(v)
        return jacobian.T @ jacobian

    def slope(v: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = first(v)
        return float(value) if np.isfinite(value) else np.inf, np.nan_to_num(gradient)

    return slope, lambda v: np.nan_to_num(second(v))


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
