"""A loop in the plane: two parameters, one datum."""

import jax.numpy as jnp
import numpyro.distributions as dist

from tightrope.models import Model


def toy(sigma: float = 0.1) -> Model:
    """A closed loop in the plane that one datum leaves open.

    `1 = th1^2 + th0^2 (th0^2 - 1/2) + sigma eta`, theta ~ N(0, I).

    As sigma falls the posterior closes on a loop. Its moments are known by quadrature at any sigma.
    """

    def forward(params):
        th0, th1 = params["theta"]
        return jnp.stack([th1**2 + th0**2 * (th0**2 - 0.5)])

    return Model(
        priors={"theta": dist.Normal(0.0, 1.0).expand([2])},
        forward=forward,
        noise_scale=sigma,
        observed=[1.0],
        truth={"theta": [0.0, 1.0]},
    )
