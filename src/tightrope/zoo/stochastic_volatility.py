"""Returns whose size wanders."""

from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist

from tightrope.models import Model
from tightrope.state_space import StateSpaceModel
from tightrope.zoo.autoregression import initial, transition

SEED = 6
TRUTH = {"mu": -1.0, "gamma": 0.3, "rho": 0.95}


def stochastic_volatility(T: int = 1000) -> Model:
    """Returns whose size wanders as a hidden autoregression.

    `x_1 = mu + gamma nu_1 / sqrt(1 - rho^2)`, `x_t = mu + rho (x_{t-1} - mu) + gamma nu_t`,
    `y_t = exp(x_t / 2) eta_t`, with standard normal nu and eta. The noise is not additive: `eta_t = y_t exp(-x_t / 2)`.

    Priors: mu ~ N(0, 2), gamma ~ HalfNormal(1), rho ~ U(-1, 1). The data are simulated with mu = -1, gamma = 0.3,
    rho = 0.95. This posterior is not in the paper.
    """
    nu_key, eta_key = jr.split(jr.key(SEED))
    truth: dict[str, Any] = TRUTH | {"nu": jr.normal(nu_key, (T,))}
    model = StateSpaceModel(
        priors={"mu": dist.Normal(0.0, 2.0), "gamma": dist.HalfNormal(1.0), "rho": dist.Uniform(-1.0, 1.0)},
        initial=initial,
        transition=transition,
        observe=lambda phi, x, eta: jnp.exp(x / 2) * eta,
        residual=lambda phi, x, y: y * jnp.exp(-x / 2),
        inverse_observation=lambda phi, y, eta: 2 * jnp.log(y / eta),
        observed=jnp.ones(T),
        truth=truth,
    )
    return model.with_observed(model.simulate(eta_key, truth))
