"""The conductivity of a disc from its temperature at ten places."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tightrope.checks import in_range
from tightrope.models import Model
from tightrope.zoo.elements import Diffusion, ring
from tightrope.zoo.simulated import simulate

NUM_RINGS = 12
SOURCE = 100.0
SENSORS = np.concatenate([ring(0), ring(4)[::8], ring(8)[::8]])
SEED = 1  # of the true field


def matern_factor(elements: Diffusion, kappa: float) -> np.ndarray:
    """The Cholesky factor of the covariance of the field z, (kappa^2 - Laplacian) z = white noise.

    With the lumped mass M and the stiffness G, z = (kappa^2 M + G)^-1 M^(1/2) v, scaled to unit variance at the centre.
    """
    operator = kappa**2 * np.diag(elements.areas) + elements.laplacian
    root = np.linalg.solve(operator, np.diag(np.sqrt(elements.areas)))
    covariance = root @ root.T
    return np.linalg.cholesky(covariance / covariance[0, 0])


def poisson(sigma: float = 0.1, kappa: float = 4.0) -> Model:
    """The conductivity of a disc from ten temperatures.

    `-div(exp(z) grad x) = 100` on the unit disc, x = 0 on its boundary, and `y_i = x(s_i) + sigma eta_i`.

    The mesh has a centre and 12 rings, ring k with 6 k nodes at the radius k / 12 and the angles 2 pi j / (6 k): 469
    nodes, joined by Delaunay triangles. Both z and the temperature x are linear on each triangle, and exp(z) is
    integrated there to second order. The sensors s_i are nodes: the centre, 3 at the radius 1/3 and the angles
    2 pi j / 3, and 6 at the radius 2/3 and the angles 2 pi j / 6. `mean_z` and `std_z` are over the nodes.

    Priors: z is a Matern field, `(kappa^2 - Laplacian) z = white noise` with natural boundary and lumped mass,
    scaled to a standard deviation of 1 at the centre; sigma ~ LogNormal(0, 3). The coordinates v of z = S v are
    standard normal, S the Cholesky factor of the covariance of z; another root gives the same chain, rotated.

    Data: simulated at a draw of z from its prior and the sigma given, from fixed seeds; the noise eta is one vector
    for all sigma.

    The paper prints kappa = 0.1 and no scale: the mean of z would have a standard deviation of about 56, and exp(z)
    would span dozens of orders of magnitude. Its text does not give the source, the prior of sigma, or the places of
    the nodes and the sensors.
    """
    in_range("kappa", kappa, 0.0, np.inf)
    elements = Diffusion(NUM_RINGS)
    load = SOURCE * elements.areas[: elements.num_inner]
    forward = lambda params: elements.solve(elements.conductivity(params["z"]), jnp.asarray(load), SENSORS)
    factor = matern_factor(elements, kappa)
    truth = {"z": factor @ np.random.default_rng(SEED).normal(size=len(factor)), "sigma": sigma}
    return Model(
        priors={
            "z": dist.MultivariateNormal(jnp.zeros(len(factor)), scale_tril=factor),
            "sigma": dist.LogNormal(0.0, 3.0),
        },
        forward=forward,
        noise_scale="sigma",
        observed=simulate(forward, truth),
        derived={"mean_z": lambda params: params["z"].mean(), "std_z": lambda params: params["z"].std()},
        quantities=["mean_z", "std_z", "sigma"],
        dims={"z": ["node"], "y": ["sensor"]},
        truth=truth,
    )
