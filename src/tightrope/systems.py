"""What a trajectory needs to know at a point: potential, force and momenta."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.linalg import cho_solve, solve_triangular

from tightrope.frames import Frame, difference_gradient
from tightrope.geometry import Geometry, posterior_energy
from tightrope.types import Array, Lift, Point, ResidualMap, State


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


class FlatSystem(System, Protocol):
    """A Hamiltonian of u with a metric: what a Langevin step asks of it besides."""

    def momentum(self, point: Point, velocity: Array) -> Array:
        """The momentum with a velocity."""

    def energy_gradient(self, point: Point) -> Array:
        """The gradient of the negative log posterior density."""

    def metric_divergence(self, point: Point) -> Array:
        """The sum over j and k of d_k M_ij (M^-1)_jk."""


class Approximate(NamedTuple):
    """A force without second derivatives of the model.

    Any function of position may serve as the force: the step stays reversible and keeps volume, and the
    acceptance uses the true potential. The gradient of the log volume is replaced by that of
    `(scale_weight - 1) log_scale + linear . u + 1/2 u . quadratic u`.
    """

    scale_weight: Array
    linear: Array | None = None
    quadratic: Array | None = None

    def log_volume(self, u: Array, log_scale: Array) -> Array:
        """The function that stands in for the log volume."""
        value = (self.scale_weight - 1) * log_scale
        if self.linear is not None and self.quadratic is not None:
            value += self.linear @ u + 0.5 * u @ self.quadratic @ u
        return value

    def log_volume_gradient(self, u: Array, log_scale_gradient: Array) -> Array:
        gradient = (self.scale_weight - 1) * log_scale_gradient
        if self.linear is not None and self.quadratic is not None:
            gradient += self.linear + self.quadratic @ u
        return gradient


class Differences(NamedTuple):
    """A force without second derivatives of the model either: the log volume's gradient by differences."""


def cheap_force(model: ResidualMap) -> Approximate:
    """The log volume is -min(d, m) log s, were all else constant; no more than that."""
    return Approximate(jnp.array(max(0.0, 1 - model.d / model.m)))


def surrogate_force(model: ResidualMap) -> Approximate:
    """The cheap force, with room for a fit."""
    return cheap_force(model)._replace(linear=jnp.zeros(model.d), quadratic=jnp.zeros((model.d, model.d)))


class Rescaled(NamedTuple):
    """A residual map of coordinates that are counted in lengths of their own."""

    model: ResidualMap
    lengths: Array

    @property
    def d(self) -> int:
        return self.model.d

    @property
    def m(self) -> int:
        return self.model.m

    def prior_energy(self, w: Array) -> Array:
        return self.model.prior_energy(self.lengths * w)

    def noise_energy(self, w: Array, e: Array) -> Array:
        return self.model.noise_energy(self.lengths * w, e)

    def lift(self, w: Array) -> Lift:
        return self.model.lift(self.lengths * w)


class Lifted(NamedTuple):
    """The lifted posterior on its manifold, with respect to the manifold's own area.

    U(u) = prior(u) + noise(e(u)) + log_scale(u) + 1/2 log det(I + J^T J), J = De(u).

    Au, Graham and Thiery (2023), eq. 12, with the constraint divided by the noise scale.
    """

    model: ResidualMap
    frame: type[Frame]
    force: Approximate | Differences | None = None  # None is the exact one

    def at(self, u: Array) -> Point:
        model = self.model
        lift, log_scale_gradient, frame = self.frame.linearise(model, u)
        ambient_energy = lambda u, e: model.prior_energy(u) + model.noise_energy(u, e)
        energy, (along_u, along_e) = jax.value_and_grad(ambient_energy, (0, 1))(u, lift.e)
        missed = jnp.zeros(())
        if self.force is None:
            along_volume = frame.log_volume_gradient(model, u)
        elif isinstance(self.force, Differences):
            along_volume = difference_gradient(self.frame, model, u, frame.log_volume)
        else:
            along_volume = self.force.log_volume_gradient(u, log_scale_gradient)
            missed = frame.log_volume - self.force.log_volume(u, lift.log_scale)
        gradient = jnp.concatenate([along_u + log_scale_gradient + along_volume, along_e])
        return Point(
            u=u,
            e=lift.e,
            potential=energy + lift.log_scale + frame.log_volume,
            gradient=frame.tangent(gradient),
            missed=missed,
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
        (energy, e), gradient = jax.value_and_grad(posterior_energy, 1, has_aux=True)(self.model, u)
        zero = jnp.zeros(())
        return Point(u, e, energy, gradient, zero, log_density=-energy, log_volume=zero, rounding=zero, frame=None)

    def draw_momentum(self, key: Array, point: Point) -> Array:
        return self.metric.draw(key)

    def velocity(self, state: State) -> Array:
        return apply(self.metric.covariance, state.momentum)

    def energy(self, state: State) -> Array:
        return state.point.potential + 0.5 * state.momentum @ self.velocity(state)

    def momentum(self, point: Point, velocity: Array) -> Array:
        return apply(self.metric.scale, apply(self.metric.scale.T, velocity))

    def energy_gradient(self, point: Point) -> Array:
        return point.gradient

    def metric_divergence(self, point: Point) -> Array:
        return jnp.zeros_like(point.u)


class Curvature(NamedTuple):
    """A metric at a point, and how it changes there."""

    lower: Array  # Cholesky factor of the metric M
    derivative: Array  # d_k M_ij, k last
    log_volume_gradient: Array  # of 1/2 log det M

    def solve(self, vector: Array) -> Array:
        return cho_solve((self.lower, True), vector)


class Riemannian(NamedTuple):
    """The posterior density of u, and a kinetic energy that changes from place to place.

    H(u, p) = Phi(u) + 1/2 log det M(u) + 1/2 p^T M(u)^-1 p.

    Girolami and Calderhead (2011).
    """

    model: ResidualMap
    geometry: Geometry

    def at(self, u: Array) -> Point:
        (energy, e), gradient = jax.value_and_grad(posterior_energy, 1, has_aux=True)(self.model, u)

        def metric(u: Array) -> tuple[Array, Array]:
            matrix = self.geometry(self.model, u)
            return matrix, matrix

        derivative, matrix = jax.jacfwd(metric, has_aux=True)(u)
        lower = jnp.linalg.cholesky(matrix)
        inverse = cho_solve((lower, True), jnp.eye(u.size))
        frame = Curvature(lower, derivative, 0.5 * jnp.einsum("ij,ijk->k", inverse, derivative))
        log_volume = jnp.log(jnp.diagonal(lower)).sum()
        return Point(
            u=u,
            e=e,
            potential=energy + log_volume,
            gradient=gradient + frame.log_volume_gradient,
            missed=jnp.zeros(()),
            log_density=-energy,
            log_volume=log_volume,
            rounding=jnp.zeros(()),
            frame=frame,
        )

    def draw_momentum(self, key: Array, point: Point) -> Array:
        return point.frame.lower @ jr.normal(key, point.u.shape)

    def velocity(self, state: State) -> Array:
        return state.point.frame.solve(state.momentum)

    def energy(self, state: State) -> Array:
        return state.point.potential + 0.5 * state.momentum @ self.velocity(state)

    def force(self, state: State) -> Array:
        """What a kick subtracts from the momentum, per unit of time: dH/du."""
        velocity = self.velocity(state)
        kinetic = jnp.einsum("i,ijk,j->k", velocity, state.point.frame.derivative, velocity)
        return state.point.gradient - 0.5 * kinetic

    def velocity_at(self, u: Array, momentum: Array) -> Array:
        """The velocity of a momentum where nothing else need be known."""
        return cho_solve((jnp.linalg.cholesky(self.geometry(self.model, u)), True), momentum)

    def momentum(self, point: Point, velocity: Array) -> Array:
        return point.frame.lower @ (point.frame.lower.T @ velocity)

    def energy_gradient(self, point: Point) -> Array:
        return point.gradient - point.frame.log_volume_gradient

    def metric_divergence(self, point: Point) -> Array:
        inverse = point.frame.solve(jnp.eye(point.u.size))
        return jnp.einsum("ijk,jk->i", point.frame.derivative, inverse)


class Walk(NamedTuple):
    """A system as a Langevin step sees it.

    The step from (u, p) to (u', p') stretches volume by det M(u') / det M(u): the energy accounts for that.
    """

    base: FlatSystem

    def at(self, u: Array) -> Point:
        return self.base.at(u)

    def draw_momentum(self, key: Array, point: Point) -> Array:
        return self.base.draw_momentum(key, point)

    def velocity(self, state: State) -> Array:
        return self.base.velocity(state)

    def energy(self, state: State) -> Array:
        return self.base.energy(state) - 2 * state.point.log_volume
