"""FitzHugh and Nagumo's neuron: a ridge of parameters that all make the same spikes."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tightrope.models import Model
from tightrope.zoo.simulated import simulate
from tightrope.zoo.solvers import rk4

STEP = 0.05
STEPS_PER_DATUM = 2
NUM_DATA = 200


def fitzhugh_nagumo(sigma: float = 0.1) -> Model:
    """A spiking neuron, one of its two states seen with noise.

    `x0' = alpha x0 - beta x0^3 + gamma x1`, `x1' = -delta x0 - epsilon x1 + zeta`,
    `y_i = x0(0.1 i) + sigma eta_i`, i = 1, ..., 200.

    The unseen state has no unit: `(x1(0), gamma, delta, zeta) -> (s x1(0), gamma / s, s delta, s zeta)` changes no
    prediction, so the posterior closes on a curve as sigma falls.

    Priors: alpha, beta, gamma ~ LogNormal(0, 1), delta ~ LogNormal(-1, 1), epsilon, zeta ~ LogNormal(-2, 1),
    both entries of x(0), here `x0`, ~ Normal(0, 1), sigma ~ LogNormal(-1, 1).

    Data: simulated at alpha = gamma = 3, beta = 1, delta = 1/3, epsilon = zeta = 1/15, x(0) = (1, -1) and the sigma
    given, by the same solver, from a fixed seed; the noise eta is one vector for all sigma.

    The paper prints alpha x1 in the first equation and counts t = 0 among the 200 times; it leaves open the prior of
    sigma and the step of the solver, here the classical Runge-Kutta method with a step of 0.05.
    """

    def forward(params):
        alpha, beta, gamma = params["alpha"], params["beta"], params["gamma"]
        delta, epsilon, zeta = params["delta"], params["epsilon"], params["zeta"]

        def rate(x):
            x0, x1 = x
            return (alpha - beta * x0**2) * x0 + gamma * x1, zeta - delta * x0 - epsilon * x1

        start = (params["x0"][0], params["x0"][1])
        path, _ = rk4(rate, start, STEP, NUM_DATA * STEPS_PER_DATUM)
        return path[STEPS_PER_DATUM - 1 :: STEPS_PER_DATUM]

    truth = {
        "alpha": 3.0,
        "beta": 1.0,
        "gamma": 3.0,
        "delta": 1 / 3,
        "epsilon": 1 / 15,
        "zeta": 1 / 15,
        "x0": np.array([1.0, -1.0]),
        "sigma": sigma,
    }
    return Model(
        priors={
            "alpha": dist.LogNormal(0.0, 1.0),
            "beta": dist.LogNormal(0.0, 1.0),
            "gamma": dist.LogNormal(0.0, 1.0),
            "delta": dist.LogNormal(-1.0, 1.0),
            "epsilon": dist.LogNormal(-2.0, 1.0),
            "zeta": dist.LogNormal(-2.0, 1.0),
            "x0": dist.Normal(jnp.zeros(2), 1.0),
            "sigma": dist.LogNormal(-1.0, 1.0),
        },
        forward=forward,
        noise_scale="sigma",
        observed=simulate(forward, truth),
        coords={"time": np.arange(1, NUM_DATA + 1) * STEPS_PER_DATUM / 20},
        dims={"y": ["time"]},
        truth=truth,
    )
