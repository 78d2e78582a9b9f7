"""A damped rotation in the plane, seen through noise: the case that is known exactly."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist

from tightrope.models import Model
from tightrope.state_space import StateSpaceModel

SEED = 7
ANGLE, DAMPING = 0.3, 0.95
ROTATION = DAMPING * np.array([[np.cos(ANGLE), -np.sin(ANGLE)], [np.sin(ANGLE), np.cos(ANGLE)]])
DRIVE = np.array([[0.4, 0.0], [0.2, 0.3]])
VIEW = np.array([[1.0, 0.5], [0.0, 1.0]])


def linear_gaussian(sigma: float = 0.1, T: int = 100) -> Model:
    """A damped rotation in the plane; its posterior is Gaussian.

    `x_1 = mu + G nu_1`, `x_t = mu + A (x_{t-1} - mu) + G nu_t`, `y_t = H x_t + sigma eta_t`, with A a rotation by 0.3
    times 0.95, and nu and eta standard normal. The centre mu ~ N(0, 1) of the rotation is unknown, sigma is given.

    All is linear and Gaussian, so that a Kalman filter and smoother gives the exact posterior. The data are
    simulated. This posterior is not in the paper.
    """
    nu_key, eta_key = jr.split(jr.key(SEED))
    truth = {"mu": jnp.array([0.5, -0.5]), "nu": jr.normal(nu_key, (T, 2))}
    to_state = np.linalg.inv(VIEW)
    model = StateSpaceModel(
        priors={"mu": dist.Normal(0.0, 1.0).expand([2])},
        initial=lambda phi, nu: phi["mu"] + DRIVE @ nu,
        transition=lambda phi, nu, x: phi["mu"] + ROTATION @ (x - phi["mu"]) + DRIVE @ nu,
        observe=lambda phi, x, eta: VIEW @ x + sigma * eta,
        residual=lambda phi, x, y: (y - VIEW @ x) / sigma,
        inverse_observation=lambda phi, y, eta: to_state @ (y - sigma * eta),
        observed=jnp.zeros((T, 2)),
        dims={"mu": ["axis"], "nu": ["time", "axis"], "x": ["time", "axis"], "y": ["time", "axis"]},
        coords={"axis": ["x", "y"]},
        truth=truth,
    )
    return model.with_observed(model.simulate(eta_key, truth))
