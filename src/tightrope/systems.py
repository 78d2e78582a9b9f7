"""What a trajectory needs to know at a point: potential, force and momenta."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.linalg import solve_triangular

from tightrope.frames import Frame
from tightrope.types import Array, Point, ResidualMap, State


class System(Protocol):
    """A Hamiltonian."""

    def at(self, u: Array) -> Point:
        """Everything known at u."""

    def draw_momentum(self, key: Array, point: Point) -> Array:
        """A momentum from its law at the point."""

    def velocity(self, state: State) -> Array:
        """The derivative of the kinetic energy in the momentum."""

    def energy(self, state: State) -> Array:
        """The Hamiltonian."""


class Approximate(NamedTuple):
    """A force without second derivatives of the model.

    Any function of position may serve as the force: the step stays reversible and keeps volume, and the
    acceptance uses the true potential. The gradient of the log volume is replaced by that of
    `(scale_weight - 1) log_scale + linear . u + 1/2 u . quadratic u`.
    """

    scale_weight: Array
    linear: Array | None = None
    quadratic: Array | None = None

    def log_volume_gradient(self, u: Array, log_scale_gradient: Array) -> Array:
        gradient = (self.scale_weight - 1) * log_scale_gradient
        if self.linear is not None and self.quadratic is not None:
            gradient += self.linear + self.quadratic @ u
        return gradient


def cheap_force(model: ResidualMap) -> Approximate:
    """The log volume is -min(d, m) log s, were all else constant; no more than that."""
    return Approximate(jnp.array(max(0.0, 1 - model.d / model.m)))


def surrogate_force(model: ResidualMap) -> Approximate:
    """The cheap force, with room for a fit."""
    return cheap_force(model)._replace(linear=jnp.zeros(model.d), quadratic=jnp.zeros((model.d, model.d)))


class Lifted(NamedTuple):
    """The lifted posterior on its manifold, with respect to the manifold's own area.

    U(u) = prior(u) + noise(e(u)) + log_scale(u) + 1/2 log det(I + J^T J), J = De(u).

    Au, Graham and Thiery (2023), eq. 12, with the constraint divided by the noise scale.
    """

    model: ResidualMap
    frame: type[Frame]
    force: Approximate | None = None  # None is the exact one

    def at(self, u: Array) -> Point:
        model = self.model
        lift, log_scale_gradient, frame = self.frame.linearise(model, u)
        ambient_energy = lambda u, e: model.prior_energy(u) + model.noise_energy(u, e)
        energy, (along_u, along_e) = jax.value_and_grad(ambient_energy, (0, 1))(u, lift.e)
        if self.force is None:
            along_volume = frame.log_volume_gradient(model, u)
        else:
            along_volume = self.force.log_volume_gradient(u, log_scale_gradient)
        gradient = jnp.concatenate([along_u + log_scale_gradient + along_volume, along_e])
        return Point(
            u=u,
            e=lift.e,
            potential=energy + lift.log_scale + frame.log_volume,
            gradient=frame.tangent(gradient),
            log_density=-energy - lift.log_scale,
            log_volume=frame.log_volume,
            rounding=lift.rounding,
            frame=frame,
        )

    def draw_momentum(self, key: Array, point: Point) -> Array:
        return point.frame.draw(key)

    def velocity(self, state: State) -> Array:
        return state.momentum

    def energy(self, state: State) -> Array:
        return state.point.potential + 0.5 * state.momentum @ state.momentum


class Metric(NamedTuple):
    """A constant mass matrix, by its inverse: what warm-up has seen of the posterior's covariance."""

    covariance: Array  # the inverse mass, shape (d, d), or (d,) where it is diagonal
    scale: Array  # of momenta: inverse of the covariance's transposed Cholesky factor, or of its root

    @classmethod
    def of(cls, covariance: Array) -> Metric:
        if covariance.ndim == 1:
            return cls(covariance, covariance**-0.5)
        identity = jnp.eye(len(covariance))
        lower = jnp.linalg.cholesky(covariance)
        return cls(covariance, solve_triangular(lower.T, identity, lower=False))

    def draw(self, key: Array) -> Array:
        """A momentum."""
        return apply(self.scale, jr.normal(key, self.scale.shape[:1]))


def apply(matrix: Array, vector: Array) -> Array:
    """The product with a matrix, or with a diagonal one given by its diagonal."""
    return matrix * vector if matrix.ndim == 1 else matrix @ vector


class Euclidean(NamedTuple):
    """The posterior density of u, and a kinetic energy that is the same everywhere."""

    model: ResidualMap
    metric: Metric

    def at(self, u: Array) -> Point:
        model = self.model

        def potential(u: Array) -> tuple[Array, Array]:
            lift = model.lift(u)
            return model.prior_energy(u) + model.noise_energy(u, lift.e) + lift.log_scale, lift.e

        (energy, e), gradient = jax.value_and_grad(potential, has_aux=True)(u)
        zero = jnp.zeros(())
        return Point(u, e, energy, gradient, log_density=-energy, log_volume=zero, rounding=zero, frame=None)

    def draw_momentum(self, key: Array, point: Point) -> Array:
        return self.metric.draw(key)

    def velocity(self, state: State) -> Array:
        return apply(self.metric.covariance, state.momentum)

    def energy(self, state: State) -> Array:
        return state.point.potential + 0.5 * state.momentum @ self.velocity(state)
