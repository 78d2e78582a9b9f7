"""The tangent space of the manifold {(u, e(u))} at a point, in the shape that suits the model.

A frame draws and projects momenta, knows the volume element 1/2 log det(I + J^T J), J = De(u), and poses the
projection as an equation whose Jacobian at the start is the identity, so that one solver serves all frames.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax

from tightrope.kalman import (
    Chain,
    adjoints,
    innovations,
    innovations_transposed,
    kalman_filter,
    log_det_gradient,
    residuals_transposed,
    response,
    solve,
    states,
)
from tightrope.linalg import dot, orthonormalise, small_cholesky, small_solve
from tightrope.types import EPSILON, Array, Lift, LinkedMap, ResidualMap


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

    def newton(self, s: Array) -> tuple[Trial, Array]:
        """The trial point s, and Newton's step from there."""


def dense_newton(equation: Equation, s: Array) -> tuple[Trial, Array]:
    """Newton's step by the whole Jacobian of rho."""
    push = lambda direction: jax.jvp(equation.at, (s,), (direction,))
    trial, slope = jax.vmap(push, out_axes=(None, -1))(jnp.eye(s.size))
    return trial, -small_solve(slope.rho, trial.rho[:, None])[:, 0]


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


# Second derivatives of a model with few coordinates and a long loop are pushed forward through the loop, side by side:
# a way back keeps dozens of numbers of every turn, each by a copy of the loop's body. A step of hodgkin-huxley (7
# coordinates, 1100 turns) compiles in 15 s in place of 51; with 200 turns there is no gain (benchmarks/README.md).
MAX_FORWARD = 10  # coordinates
MIN_FORWARD = 300  # turns


def bilinear_gradient(model: ResidualMap, u: Array, left: Array, right: Array) -> Array:
    """Gradient in u of sum_a left_a . De(u) right_a, over the rows of left and right."""
    residual = lambda u: model.lift(u).e

    def directional(u):
        derivative = lambda direction: jax.jvp(residual, (u,), (direction,))[1]
        return jnp.sum(left * jax.vmap(derivative)(right))

    goes_forward = model.d <= MAX_FORWARD and longest_loop(residual, u) >= MIN_FORWARD
    return (jax.jacfwd if goes_forward else jax.grad)(directional)(u)


def longest_loop(function: Callable[[Array], Array], x: Array) -> int:
    """The most turns of a scan in a function, as those of solvers of differential equations; 0 without any."""
    return max(map(int, re.findall(r"\blength=(\d+)", str(jax.make_jaxpr(function)(x)))), default=0)


DIFFERENCE = 1e-4  # of a coordinate: adaptive solvers of equations jump by 1e-8 between neighbours


def difference_gradient(frame: type[Frame], model: ResidualMap, u: Array, log_volume: Array) -> Array:
    """The gradient of `log_volume` at u, where it is known, by differences: one frame more for each coordinate."""
    moved = lambda step: frame.linearise(model, u + step)[2].log_volume
    return (lax.map(moved, DIFFERENCE * jnp.eye(model.d)) - log_volume) / DIFFERENCE


def with_rounding_of_u(lift: Lift, jacobian: Array, u: Array) -> Lift:
    """The lift, knowing that u is itself a rounded number: data near zero may hide a large prediction."""
    return lift._replace(rounding=jnp.maximum(lift.rounding, EPSILON * (jnp.abs(jacobian) @ jnp.abs(u)).max()))


class Tall(NamedTuple):
    """Few coordinates, many data: an orthonormal basis Q = [Q1; Q2] of the tangent space, from [I; J] = Q R."""

    basis: Array  # Q^T, shape (d, d + m)
    log_volume: Array

    @staticmethod
    def linearise(model: ResidualMap, u: Array) -> tuple[Lift, Array, Tall]:
        identity = jnp.eye(model.d)
        push = lambda direction: jax.jvp(model.lift, (u,), (direction,))
        lift, derivative = jax.vmap(push, out_axes=(None, 0))(identity)
        lift = with_rounding_of_u(lift, derivative.e.T, u)
        return lift, derivative.log_scale, Tall(*orthonormalise(jnp.concatenate([identity, derivative.e], axis=1)))

    def draw(self, key: Array) -> Array:
        return jr.normal(key, self.basis.shape[:1]) @ self.basis

    def tangent(self, vector: Array) -> Array:
        return (self.basis @ vector) @ self.basis

    def log_volume_gradient(self, model: ResidualMap, u: Array) -> Array:
        # d(1/2 log det M) = <J M^-1, dJ> and J M^-1 = Q2 Q1^T.
        return bilinear_gradient(model, u, left=self.basis[:, model.d :], right=self.basis[:, : model.d])

    def equation(self, model: ResidualMap, u: Array, e: Array, move: Array) -> Equation:
        return TallEquation(model, self.basis, u, e, start=self.basis @ move)


class TallEquation(NamedTuple):
    """rho(s) = Q^T (q(s) - q - move) with u(s) = u + Q1 s: the tangent part of q(s) is the move."""

    model: ResidualMap
    basis: Array
    u: Array
    e: Array
    start: Array

    def at(self, s: Array) -> Trial:
        across, along = self.basis[:, : self.model.d], self.basis[:, self.model.d :]
        shift = s @ across
        e = self.model.lift(self.u + shift).e
        rho = across @ shift + along @ (e - self.e) - self.start
        return Trial(s, rho, jnp.abs(rho).max(), self.u + shift, e)

    def newton(self, s: Array) -> tuple[Trial, Array]:
        return dense_newton(self, s)


class Wide(NamedTuple):
    """Many coordinates, few data: an orthonormal basis N of the normal space, from [-J^T; I] = N L^T."""

    normals: Array  # N^T, shape (m, d + m)
    log_volume: Array

    @staticmethod
    def linearise(model: ResidualMap, u: Array) -> tuple[Lift, Array, Wide]:
        lift, pull = jax.vjp(model.lift, u)
        identity, zeros = jnp.eye(model.m), jnp.zeros(model.m)
        (jacobian,) = jax.vmap(pull)(Lift(identity, zeros, zeros))
        (log_scale_gradient,) = pull(Lift(zeros, jnp.ones(()), jnp.zeros(())))
        frame = Wide(*orthonormalise(jnp.concatenate([-jacobian, identity], axis=1)))
        lift = with_rounding_of_u(lift, jacobian, u)
        return lift, log_scale_gradient, frame

    def draw(self, key: Array) -> Array:
        return self.tangent(jr.normal(key, self.normals.shape[1:]))

    def tangent(self, vector: Array) -> Array:
        return vector - (self.normals @ vector) @ self.normals

    def log_volume_gradient(self, model: ResidualMap, u: Array) -> Array:
        # As for Tall, with J M^-1 = -N2 N1^T.
        return -bilinear_gradient(model, u, left=self.normals[:, model.d :], right=self.normals[:, : model.d])

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
        across, along = self.normals[:, : self.model.d], self.normals[:, self.model.d :]
        u = self.u - s @ across
        e = self.model.lift(u).e
        gap = e - self.e + s @ along
        # Steep normals have short e-parts, so a small rho may hide a large gap; u may be NaN where e does not look.
        error = jnp.where(jnp.isfinite(u).all(), jnp.abs(gap).max(), jnp.nan)
        return Trial(s, along @ gap, error, u, e)

    def newton(self, s: Array) -> tuple[Trial, Array]:
        return dense_newton(self, s)


class Markov(NamedTuple):
    """A chain of states, each seen: a basis of the normal space as a Kalman filter, and a few columns beside it.

    With u = (v, nu), v the few coordinates that all links share: I + J J^T = K (I + V V^T) K^T, where K K^T is
    the part of nu and K V = de/dv. The rows of R = K^-1 [-J, I] span the normal space, and R R^T = I + V V^T.
    """

    chain: Chain
    gain: Array  # of the Kalman filter, shape (T, n, n)
    whitener: Array  # inverse factor of the covariance of the innovations, shape (T, n, n)
    shared: Array  # V^T, shape (k, m)
    weights: Array  # the upper part of an orthonormal basis of [I; V], transposed, shape (k, k)
    tilt: Array  # its lower part, transposed, shape (k, m)
    log_volume: Array

    @staticmethod
    def linearise(model: LinkedMap, u: Array) -> tuple[Lift, Array, Markov]:
        lift, pull = jax.vjp(model.lift, u)
        (log_scale_gradient,) = pull(Lift(jnp.zeros(model.m), jnp.ones(()), jnp.zeros(())))
        return lift, log_scale_gradient, Markov.of(*model.links(u))

    @staticmethod
    def of(chain: Chain, shared_drive: Array, shared_view: Array) -> Markov:
        """The frame of a chain and of what the shared coordinates do to its states and residuals, (T, n, k)."""
        k = shared_drive.shape[-1]
        filter = kalman_filter(chain, chain)
        factor = jax.vmap(small_cholesky)(filter.spread)
        whitener = jax.vmap(lambda a: small_solve(a, jnp.eye(len(a))))(factor)
        through = lambda push, view: whitener_of(chain, filter.left_gain, whitener, -view, push)
        shared = -jax.vmap(through, -1)(shared_drive, shared_view)
        basis, log_volume = orthonormalise(jnp.concatenate([jnp.eye(k), shared], axis=1))
        log_volume += jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum()
        return Markov(chain, filter.left_gain, whitener, shared, basis[:, :k], basis[:, k:], log_volume)

    def split(self, vector: Array) -> tuple[Array, Array, Array]:
        """The parts of an ambient vector along v, nu (T, q) and e (T, n)."""
        length, n, q = self.chain.drive.shape
        k = len(self.shared)
        return vector[:k], vector[k : k + length * q].reshape(length, q), vector[k + length * q :].reshape(length, n)

    def rows(self, vector: Array) -> Array:
        """R times an ambient vector."""
        along_v, along_nu, along_e = self.split(vector)
        push = (self.chain.drive @ along_nu[..., None])[..., 0]
        return self.whiten(along_e, push) - along_v @ self.shared

    def whiten(self, e: Array, push: Array) -> Array:
        return whitener_of(self.chain, self.gain, self.whitener, e, push)

    def colour_transposed(self, l: Array) -> Array:
        """K^T l."""
        e = residuals_transposed(self.chain, self.gain, l.reshape(self.whitener.shape[:2]))
        return jax.vmap(lambda a, e: small_solve(a.T, e[:, None])[:, 0])(self.whitener, e).ravel()

    def normal(self, s: Array) -> Array:
        """R^T s."""
        weights = jax.vmap(lambda a, s: dot(a.T, s))(self.whitener, s.reshape(self.whitener.shape[:2]))
        along_e, along_push = innovations_transposed(self.chain, self.gain, weights)
        along_nu = jax.vmap(lambda a, push: dot(a.T, push))(self.chain.drive, along_push)
        return jnp.concatenate([-self.shared @ s, along_nu.ravel(), along_e.ravel()])

    def settle(self, s: Array) -> Array:
        """inverse(R R^T) s."""
        return s - (self.tilt @ s) @ self.tilt

    def draw(self, key: Array) -> Array:
        length, n, q = self.chain.drive.shape
        return self.tangent(jr.normal(key, (len(self.shared) + length * (q + n),)))

    def tangent(self, vector: Array) -> Array:
        return vector - self.normal(self.settle(self.rows(vector)))

    def log_volume_gradient(self, model: LinkedMap, u: Array) -> Array:
        # d(1/2 log det M) is the mean of e . dJ (v, nu) over (v, nu) ~ N(0, M^-1): the spread of nu given v is
        # the filter's; that of v is the sum over k paths, one for each row of the tilt.
        (chain, drive, _), pull = jax.vjp(model.links, u)

        def path(weights: Array, tilt: Array) -> tuple[Chain, Array, Array]:
            _, nu, e = self.split(self.normal(tilt))
            push = jax.vmap(dot)(chain.drive, nu) + drive @ weights
            x = states(chain, push)
            a = adjoints(chain, jax.vmap(jnp.matmul)(e, chain.view))
            before = jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])
            outer = jax.vmap(jnp.outer)
            along = lambda left: left[..., None] * weights
            return Chain(outer(a, before), outer(a, nu), outer(e, x)), along(a), along(e)

        paths = jax.vmap(path)(self.weights, self.tilt)
        slopes, along_drive, along_view = jax.tree.map(lambda leaf: leaf.sum(0), paths)
        slopes = jax.tree.map(jnp.add, slopes, log_det_gradient(chain))
        return pull((slopes, along_drive, along_view))[0]

    def equation(self, model: LinkedMap, u: Array, e: Array, move: Array) -> Equation:
        return MarkovEquation(model, self, u + move[: model.d], e + move[model.d :])


def whitener_of(chain: Chain, gain: Array, whitener: Array, e: Array, push: Array) -> Array:
    """K^-1 (e - response(chain, push)), shape (m,)."""
    return (whitener @ innovations(chain, gain, e, push)[..., None]).ravel()


class MarkovEquation(NamedTuple):
    """rho(s) = inverse(R R^T) K^-1 (e(u(s)) - e(s)) with q(s) = q + move - R^T s."""

    model: LinkedMap
    frame: Markov
    u: Array  # after the tangent move
    e: Array  # after the tangent move

    @property
    def start(self) -> Array:
        return jnp.zeros(self.model.m)

    def at(self, s: Array) -> Trial:
        return self.trial_and_gap(s)[0]

    def trial_and_gap(self, s: Array) -> tuple[Trial, Array]:
        """The trial point s, and what it leaves over in e."""
        normal, d = self.frame.normal(s), self.model.d
        u = self.u - normal[:d]
        e = self.model.lift(u).e
        gap = e - self.e + normal[d:]
        rho = self.frame.settle(self.frame.rows(jnp.concatenate([jnp.zeros_like(u), gap])))
        error = jnp.where(jnp.isfinite(u).all(), jnp.abs(gap).max(), jnp.nan)
        return Trial(s, rho, error, u, e), gap

    def newton(self, s: Array) -> tuple[Trial, Array]:
        """Solves (I + J(s) J^T) l = -gap by the filter of two chains, and returns K^T l."""
        (trial, gap), frame = self.trial_and_gap(s), self.frame
        here, drive, view = self.model.links(trial.u)
        shape = view.shape[:2]
        filter = kalman_filter(here, frame.chain)
        solve_here = lambda e: solve(here, frame.chain, filter, e.reshape(shape)).ravel()
        # The shared coordinates add the few columns de/dv at both ends: Woodbury's identity.
        there = (jax.vmap(lambda push: response(here, push), -1, -1)(drive) + view).reshape(self.model.m, -1)
        columns = jax.vmap(solve_here, 1, 1)(there)
        first = solve_here(gap)
        weights = lambda l: frame.shared @ frame.colour_transposed(l)
        small = jnp.eye(columns.shape[1]) + jax.vmap(weights, 1, 1)(columns)
        l = first - columns @ jnp.linalg.solve(small, weights(first))
        return trial, -frame.colour_transposed(l)


FRAMES: dict[str, type[Any]] = {"tall": Tall, "wide": Wide, "markov": Markov}  # each a Frame


def choose_frame(model: ResidualMap) -> str:
    """The name of the frame whose factor is the smaller."""
    if getattr(model, "has_links", False):
        return "markov"
    return "tall" if model.d < model.m else "wide"
