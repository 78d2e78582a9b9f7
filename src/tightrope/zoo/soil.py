"""Carbon that leaves the soil through two pools: incubations of the SoilR project."""

from math import factorial

import jax.numpy as jnp
import numpyro.distributions as dist

from tightrope.models import Model
from tightrope.types import Array
from tightrope.zoo.series import power_series
from tightrope.zoo.tables import read_table

NEAR = 0.25  # of q, below which these are series in q
COSH_1 = [1 / factorial(2 * n) for n in range(1, 10)]  # (cosh sqrt(q) - 1) / q
SINHC = [1 / factorial(2 * n + 1) for n in range(9)]  # sinh sqrt(q) / sqrt(q)


def evolved_share(t: Array, k1: Array, k2: Array, a12: Array, a21: Array, gamma: Array) -> Array:
    """1 - (x1 + x2) / C0 at the times t: one less the total of a 2x2 matrix exponential.

    With r the root of `discriminant`, (x1 + x2) / C0 = exp(-mean t) (cosh(r t) + lean sinh(r t) / r). This is even in
    r, so smooth where the eigenvalues -mean - r and -mean + r meet: there it is a series in (r t)^2, elsewhere it is
    written in exponentials that decay.
    """
    mean, half = (k1 + k2) / 2, (k1 - k2) / 2
    discriminant = half**2 + a12 * a21 * k1 * k2
    lean = gamma * (a21 * k1 - half) + (1 - gamma) * (a12 * k2 + half)

    q = discriminant * t**2
    is_near = q < NEAR
    # Each branch sees only arguments that suit it, or derivatives of the other one would be NaN.
    q = jnp.where(is_near, q, 0.0)
    rise = q * power_series(COSH_1, q) + lean * t * power_series(SINHC, q)
    together = -jnp.expm1(-mean * t) - jnp.exp(-mean * t) * rise

    r = jnp.sqrt(jnp.where(is_near, 1.0, discriminant))
    fast = mean + r
    slow = k1 * k2 * (1 - a12 * a21) / fast  # mean - r without its cancellation
    sinh = -jnp.exp(-slow * t) * jnp.expm1(-2 * r * t) / 2
    apart = -(jnp.expm1(-slow * t) + jnp.expm1(-fast * t)) / 2 - lean * sinh / r
    return jnp.where(is_near, together, apart)


def soil(table: str) -> Model:
    """The posterior of either soil."""
    day, evolved, _ = read_table(table).T

    def forward(params):
        flows = [params[name] for name in ("k1", "k2", "a12", "a21", "gamma")]
        return params["C0"] * evolved_share(day, *flows)

    return Model(
        priors={
            "k1": dist.HalfNormal(1.0),
            "k2": lambda params: dist.TruncatedNormal(0.0, 1.0, low=0.0, high=params["k1"]),
            "a12": dist.Uniform(0.0, 1.0),
            "a21": lambda params: dist.Uniform(0.0, 1 - params["a12"]),
            "gamma": dist.Uniform(0.0, 1.0),
            "C0": dist.LogNormal(1.0, 2.0),
            "sigma": dist.HalfNormal(1.0),
        },
        forward=forward,
        noise_scale="sigma",
        observed=evolved,
        coords={"day": day},
        dims={"y": ["day"]},
    )


def soil_hn_t35() -> Model:
    """Carbon evolved by soil HN, incubated at 35 C.

    `x1' = -k1 x1 + a12 k2 x2`, `x2' = -k2 x2 + a21 k1 x1`, x(0) = (gamma C0, (1 - gamma) C0): two pools of carbon that
    decay, pass a part on to each other and lose the rest. Solved exactly.
    `y_i = C0 - x1(t_i) - x2(t_i) + sigma eta_i`.

    Priors: k1 ~ HalfNormal(1), k2 ~ Normal(0, 1) between 0 and k1, a12 ~ Uniform(0, 1), a21 ~ Uniform(0, 1 - a12),
    gamma ~ Uniform(0, 1), C0 ~ LogNormal(1, 2), sigma ~ HalfNormal(1).

    Data: 25 means of the carbon evolved so far, in mg per g soil, by day (SoilR project, Sierra et al. 2014). The
    standard deviations in the file are not used: sigma is inferred.

    The paper prints the second equation without its equals sign.
    """
    return soil("soil_hn_t35.csv")


def soil_ak_t25() -> Model:
    """Carbon evolved by soil AK, incubated at 25 C.

    `x1' = -k1 x1 + a12 k2 x2`, `x2' = -k2 x2 + a21 k1 x1`, x(0) = (gamma C0, (1 - gamma) C0): two pools of carbon that
    decay, pass a part on to each other and lose the rest. Solved exactly.
    `y_i = C0 - x1(t_i) - x2(t_i) + sigma eta_i`.

    Priors: k1 ~ HalfNormal(1), k2 ~ Normal(0, 1) between 0 and k1, a12 ~ Uniform(0, 1), a21 ~ Uniform(0, 1 - a12),
    gamma ~ Uniform(0, 1), C0 ~ LogNormal(1, 2), sigma ~ HalfNormal(1).

    Data: 25 means of the carbon evolved so far, in mg per g soil, by day (SoilR project, Sierra et al. 2014). The
    standard deviations in the file are not used: sigma is inferred.

    The paper prints the second equation without its equals sign.
    """
    return soil("soil_ak_t25.csv")
