"""Small lifted models with known draws, for tests that need many of them."""

from typing import NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist

from tightrope.models import Conditioned
from tightrope.parameters import Parameters
from tightrope.state_space import Links
from tightrope.types import Array, Lift

DENSE = ["tall", "wide"]  # the frames that any model may have


def sine(u):
    """One coordinate, one datum, several solutions a step away."""
    return jnp.sin(4 * u) + u / 2


def bend(u):
    """Two coordinates, four data."""
    return jnp.stack([u[0], u[1] + u[0] ** 2 / 2, jnp.sin(u[0] + u[1]), u[0] * u[1] / 2])


def fold(u):
    """Three coordinates, two data."""
    return jnp.stack([u[0] + u[1] ** 2 / 2, jnp.sin(u[2]) + u[0] * u[1] / 2])


class Small(NamedTuple):
    """y = F(u) + s eta with a standard normal prior; the last coordinate is log s where sigma is None."""

    name: str
    sigma: Array | float | None
    y: Array

    @property
    def forward(self):
        return FORWARD[self.name][0]

    @property
    def d(self):
        return FORWARD[self.name][1] + (self.sigma is None)

    @property
    def m(self):
        return FORWARD[self.name][2]

    def predict(self, u):
        return self.forward(u[: FORWARD[self.name][1]])

    def scale(self, u):
        return jnp.exp(0.5 * u[-1] - 1) if self.sigma is None else jnp.asarray(self.sigma)

    def prior_energy(self, u):
        return 0.5 * u @ u

    def noise_energy(self, u, e):
        return 0.5 * e @ e

    def lift(self, u):
        scale = self.scale(u)
        rounding = 2.0**-52 * jnp.abs(self.y).max() / scale
        return Lift((self.y - self.predict(u)) / scale, self.m * jnp.log(scale), rounding)

    def information_map(self, u, v):
        log_scale = jnp.broadcast_to(jnp.log(self.scale(v)), self.m)
        return jnp.concatenate([self.predict(v) / self.scale(u), jnp.sqrt(2.0) * log_scale])


FORWARD = {"sine": (sine, 1, 1), "bend": (bend, 2, 4), "fold": (fold, 3, 2)}


def chain(sigma, length=3):
    """A crooked chain of states, each seen; bound to no data. The noise scale is inferred where sigma is None."""
    priors = {"a": dist.Normal(0.0, 1.0)} | ({"s": dist.LogNormal(-1.0, 0.5)} if sigma is None else {})
    scale = lambda phi: phi["s"] if sigma is None else sigma
    predict = lambda x: x + 0.1 * x**3
    links = Links(
        Parameters(priors),
        initial=lambda phi, nu: phi["a"] + nu,
        transition=lambda phi, nu, x: jnp.sin(2 * x) + 0.5 * phi["a"] + 0.7 * nu,
        observe=lambda phi, x, eta: predict(x) + scale(phi) * eta,
        residual=lambda phi, x, y: (y - predict(x)) / scale(phi),
        law=lambda phi: dist.Normal(0.0, 1.0),
        shape=(length,),
    )
    everything = Parameters({**priors, "nu": dist.Normal(0.0, 1.0).expand([length])})
    return Conditioned(everything, links, jnp.zeros(length))


def exact_draw(key, name, sigma):
    """A draw of (u, eta) from prior and noise, and the model of the data that they make."""
    u_key, noise_key = jr.split(key)
    if name == "chain":
        blank = chain(sigma)
        u = jr.normal(u_key, (blank.d,))
        return u, blank._replace(y=blank.observations.simulate(noise_key, blank.parameters.values(u))["y"])
    blank = Small(name, sigma, jnp.zeros(FORWARD[name][2]))
    u, eta = jr.normal(u_key, (blank.d,)), jr.normal(noise_key, (blank.m,))
    return u, blank._replace(y=blank.predict(u) + blank.scale(u) * eta)
