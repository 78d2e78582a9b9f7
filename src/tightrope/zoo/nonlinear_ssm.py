"""A hidden autoregression, seen through its exponential."""

from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist

from tightrope.models import Model
from tightrope.state_space import StateSpaceModel
from tightrope.zoo.autoregression import initial, transition

SEED = 5
TRUTH = {"mu": -0.5, "gamma": 0.4, "rho": 0.9}


def nonlinear_ssm(sigma: float = 0.1, T: int = 1000) -> Model:
    """A long hidden autoregression, seen through its exponential.

    `x_1 = mu + gamma nu_1 / sqrt(1 - rho^2)`, `x_t = mu + rho (x_{t-1} - mu) + gamma nu_t`,
    `y_t = exp(x_t) + sigma eta_t`, with standard normal nu and eta.

    Priors: mu ~ N(0, 1), gamma ~ HalfNormal(1), rho ~ U(-1, 1), sigma ~ HalfNormal(3). The data are simulated
    with mu = -0.5, gamma = 0.4, rho = 0.9 and the given sigma, from the same nu and eta for every sigma.

    The paper replaces the constraint by one that is sparse, and leaves the change of volume that goes with it out
    of the density. Here the density is that of the original constraint, and the sparsity serves its factor alone.
    """
    nu_key, eta_key = jr.split(jr.key(SEED))
    truth: dict[str, Any] = TRUTH | {"sigma": sigma, "nu": jr.normal(nu_key, (T,))}
    model = StateSpaceModel(
        priors={
            "mu": dist.Normal(0.0, 1.0),
            "gamma": dist.HalfNormal(1.0),
            "rho": dist.Uniform(-1.0, 1.0),
            "sigma": dist.HalfNormal(3.0),
        },
        initial=initial,
        transition=transition,
        observe=lambda phi, x, eta: jnp.exp(x) + phi["sigma"] * eta,
        residual=lambda phi, x, y: (y - jnp.exp(x)) / phi["sigma"],
        inverse_observation=lambda phi, y, eta: jnp.log(y - phi["sigma"] * eta),
        observed=jnp.zeros(T),
        truth=truth,
    )
    return model.with_observed(model.simulate(eta_key, truth))
