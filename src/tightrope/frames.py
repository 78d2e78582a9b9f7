"""The tangent space of the manifold {(u, e(u))} at a point, in the shape that suits the model.

A frame draws and projects momenta, knows the volume element 1/2 log det(I + J^T J), J = De(u), and poses the
projection as an equation whose Jacobian at the start is the identity, so that one solver serves all frames.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import jax.random as jr

from tightrope.linalg import orthonormalise
from tightrope.types import EPSILON, Array, Lift, ResidualMap


class Trial(NamedTuple):
    """A candidate for the projected point."""

    s: Array  # the unknown
    rho: Array  # what the equation leaves over, in the units of s
    error: Array  # the largest of what it leaves over, in the units of e
    u: Array
    e: Array


class Equation(Protocol):
    """rho(s) = 0, with the identity for its Jacobian at the point that it starts from."""

    @property
    def start(self) -> Array:
        """The unknown to begin with."""

    def at(self, s: Array) -> Trial:
        """The trial point s."""


class Frame(Protocol):
    """A tangent space; a pytree, so that a point can carry it."""

    @property
    def log_volume(self) -> Array:
        """1/2 log det(I + J^T J)."""

    @staticmethod
    def linearise(model: ResidualMap, u: Array) -> tuple[Lift, Array, Frame]:
        """The lift at u, the gradient of its log scale, and the frame there."""

    def draw(self, key: Array) -> Array:
        """A standard normal vector of the tangent space."""

    def tangent(self, vector: Array) -> Array:
        """The tangent part of an ambient vector."""

    def log_volume_gradient(self, model: ResidualMap, u: Array) -> Array:
        """The gradient of `log_volume` at u, by second derivatives of the model."""

    def equation(self, model: ResidualMap, u: Array, e: Array, move: Array) -> Equation:
        """Find the point of the manifold that differs from (u, e) + move by a normal vector."""


def bilinear_gradient(model: ResidualMap, u: Array, left: Array, right: Array) -> Array:
    """Gradient in u of sum_a left_a . De(u) right_a, over the columns of left and right."""

    def directional(u):
        derivative = lambda direction: jax.jvp(lambda u: model.lift(u).e, (u,), (direction,))[1]
        return jnp.sum(left * jax.vmap(derivative, 1, 1)(right))

    return jax.grad(directional)(u)


def with_rounding_of_u(lift: Lift, jacobian: Array, u: Array) -> Lift:
    """The lift, knowing that u is itself a rounded number: data near zero may hide a large prediction."""
    return lift._replace(rounding=jnp.maximum(lift.rounding, EPSILON * (jnp.abs(jacobian) @ jnp.abs(u)).max()))


class Tall(NamedTuple):
    """Few coordinates, many data: an orthonormal basis Q = [Q1; Q2] of the tangent space, from [I; J] = Q R."""

    basis: Array  # Q, shape (d + m, d)
    log_volume: Array

    @staticmethod
    def linearise(model: ResidualMap, u: Array) -> tuple[Lift, Array, Tall]:
        identity = jnp.eye(model.d)
        push = lambda direction: jax.jvp(model.lift, (u,), (direction,))
        lift, derivative = jax.vmap(push, out_axes=(None, -1))(identity)
        lift = with_rounding_of_u(lift, derivative.e, u)
        return lift, derivative.log_scale, Tall(*orthonormalise(jnp.concatenate([identity, derivative.e])))

    def draw(self, key: Array) -> Array:
        return self.basis @ jr.normal(key, self.basis.shape[1:])

    def tangent(self, vector: Array) -> Array:
        return self.basis @ (vector @ self.basis)

    def log_volume_gradient(self, model: ResidualMap, u: Array) -> Array:
        # d(1/2 log det M) = <J M^-1, dJ> and J M^-1 = Q2 Q1^T.
        return bilinear_gradient(model, u, left=self.basis[model.d :], right=self.basis[: model.d])

    def equation(self, model: ResidualMap, u: Array, e: Array, move: Array) -> Equation:
        return TallEquation(model, self.basis, u, e, start=move @ self.basis)


class TallEquation(NamedTuple):
    """rho(s) = Q^T (q(s) - q - move) with u(s) = u + Q1 s: the tangent part of q(s) is the move."""

    model: ResidualMap
    basis: Array
    u: Array
    e: Array
    start: Array

    def at(self, s: Array) -> Trial:
        across, along = self.basis[: self.model.d], self.basis[self.model.d :]
        shift = across @ s
        e = self.model.lift(self.u + shift).e
        rho = shift @ across + (e - self.e) @ along - self.start
        return Trial(s, rho, jnp.abs(rho).max(), self.u + shift, e)


class Wide(NamedTuple):
    """Many coordinates, few data: an orthonormal basis N of the normal space, from [-J^T; I] = N L^T."""

    normals: Array  # N, shape (d + m, m)
    log_volume: Array

    @staticmethod
    def linearise(model: ResidualMap, u: Array) -> tuple[Lift, Array, Wide]:
        lift, pull = jax.vjp(model.lift, u)
        identity, zeros = jnp.eye(model.m), jnp.zeros(model.m)
        (jacobian,) = jax.vmap(pull)(Lift(identity, zeros, zeros))
        (log_scale_gradient,) = pull(Lift(zeros, jnp.ones(()), jnp.zeros(())))
        frame = Wide(*orthonormalise(jnp.concatenate([-jacobian.T, identity])))
        lift = with_rounding_of_u(lift, jacobian, u)
        return lift, log_scale_gradient, frame

    def draw(self, key: Array) -> Array:
        return self.tangent(jr.normal(key, self.normals.shape[:1]))

    def tangent(self, vector: Array) -> Array:
        return vector - self.normals @ (vector @ self.normals)

    def log_volume_gradient(self, model: ResidualMap, u: Array) -> Array:
        # As for Tall, with J M^-1 = -N2 N1^T.
        return -bilinear_gradient(model, u, left=self.normals[model.d :], right=self.normals[: model.d])

    def equation(self, model: ResidualMap, u: Array, e: Array, move: Array) -> Equation:
        return WideEquation(model, self.normals, u + move[: model.d], e + move[model.d :])


class WideEquation(NamedTuple):
    """rho(s) = N2^T (e(u(s)) - e(s)) with q(s) = q + move - N s: the step back is along normals."""

    model: ResidualMap
    normals: Array
    u: Array  # after the tangent move
    e: Array  # after the tangent move

    @property
    def start(self) -> Array:
        return jnp.zeros(self.model.m)

    def at(self, s: Array) -> Trial:
        across, along = self.normals[: self.model.d], self.normals[self.model.d :]
        u = self.u - across @ s
        e = self.model.lift(u).e
        gap = e - self.e + along @ s
        # Steep normals have short e-parts, so a small rho may hide a large gap; u may be NaN where e does not look.
        error = jnp.where(jnp.isfinite(u).all(), jnp.abs(gap).max(), jnp.nan)
        return Trial(s, gap @ along, error, u, e)


FRAMES: dict[str, type[Frame]] = {"tall": Tall, "wide": Wide}


def choose_frame(model: ResidualMap) -> str:
    """The name of the frame whose factor is the smaller."""
    return "tall" if model.d < model.m else "wide"
