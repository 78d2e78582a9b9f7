"""Hares and lynxes: predator and prey from the pelts of 21 years."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tightrope.models import Model
from tightrope.zoo.solvers import rk4
from tightrope.zoo.tables import read_table

STEPS_PER_YEAR = 10


def lotka_volterra() -> Model:
    """Hare and lynx pelts of 1900 to 1920, log-normal noise.

    `x1' = (alpha - beta x2) x1`, `x2' = (-gamma + delta x1) x2`, in thousands of pelts and years.

    Both species are seen each year, with noise of their own on the log scale. The time step is a tenth of a
    year; the paper prints days, and the second equation with its signs changed.
    """
    year, *pelts = read_table("lynx_hare.csv").T
    num_years = len(year) - 1

    def forward(params):
        alpha, beta, gamma, delta = (params[name] for name in ("alpha", "beta", "gamma", "delta"))
        hares, lynxes = params["x0"]
        rate = lambda x: ((alpha - beta * x[1]) * x[0], (-gamma + delta * x[0]) * x[1])
        path = jnp.stack(rk4(rate, (hares, lynxes), 1 / STEPS_PER_YEAR, num_years * STEPS_PER_YEAR), axis=1)
        return jnp.log(jnp.concatenate([params["x0"][None], path[STEPS_PER_YEAR - 1 :: STEPS_PER_YEAR]]))

    rate_prior = dist.TruncatedNormal(1.0, 0.5, low=0.0)
    coupling_prior = dist.TruncatedNormal(0.05, 0.05, low=0.0)
    return Model(
        priors={
            "alpha": rate_prior,
            "beta": coupling_prior,
            "gamma": rate_prior,
            "delta": coupling_prior,
            "x0": dist.LogNormal(jnp.log(10.0), 1.0).expand([2]),
            "sigma": dist.LogNormal(-1.0, 1.0).expand([2]),
        },
        forward=forward,
        noise_scale="sigma",
        observed=np.log(np.stack(pelts, axis=-1)),
        coords={"species": ["hare", "lynx"], "year": year.astype(int)},
        dims={"x0": ["species"], "sigma": ["species"], "y": ["year", "species"]},
    )
