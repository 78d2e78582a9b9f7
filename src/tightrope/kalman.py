"""Linear algebra of a chain of states, in time and memory linear in its length.

The chain x_t = A_t x_{t-1} + B_t nu_t is seen as e_t = E_t x_t, so that e = J nu. A Kalman filter of unit noise
factorises I + J J^T without ever forming J: with F the map from residuals to innovations,
F (I + J J^T) F^T is block-diagonal.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tightrope.linalg import dot, small_solve
from tightrope.types import Array


class Chain(NamedTuple):
    """The derivatives of one link to the next; the first link starts from nothing."""

    carry: Array  # A, shape (T, n, n)
    drive: Array  # B, shape (T, n, q)
    view: Array  # E, shape (T, n, n)


class Filter(NamedTuple):
    """A factor of I + J_left J_right^T: inverse(F_left) spread inverse(F_right)^T."""

    predicted: Array  # covariance of the states before they are seen, shape (T, n, n)
    filtered: Array  # and after
    left_gain: Array  # of the innovations on the states, shape (T, n, n)
    right_gain: Array
    spread: Array  # covariance of the innovations, shape (T, n, n)


def kalman_filter(left: Chain, right: Chain) -> Filter:
    """Factorise I + J_left J_right^T; a Kalman filter where both are the same."""
    n = left.carry.shape[1]
    identity = jnp.eye(n)

    def advance(filtered: Array, links: tuple[Chain, Chain]) -> tuple[Array, Filter]:
        one, other = links
        predicted = dot(dot(one.carry, filtered), other.carry.T) + dot(one.drive, other.drive.T)
        # P - P E^T S^-1 E P without the difference, of which nothing is left when the noise is small.
        filtered = small_solve(identity + dot(dot(predicted, other.view.T), one.view), predicted)
        spread = identity + dot(dot(one.view, predicted), other.view.T)
        return filtered, Filter(predicted, filtered, dot(filtered, other.view.T), dot(filtered.T, one.view.T), spread)

    return lax.scan(advance, jnp.zeros((n, n)), (left, right))[1]


def states(chain: Chain, push: Array) -> Array:
    """The states of a chain that is pushed by `push`, shape (T, n)."""

    def advance(x: Array, link: tuple[Array, Array]) -> tuple[Array, Array]:
        carry, push = link
        x = dot(carry, x) + push
        return x, x

    return lax.scan(advance, jnp.zeros_like(push[0]), (chain.carry, push))[1]


def adjoints(chain: Chain, forces: Array) -> Array:
    """The transpose of `states`."""

    def retreat(later: Array, link: tuple[Array, Array]) -> tuple[Array, Array]:
        carry, force = link
        adjoint = later + force
        return dot(carry.T, adjoint), adjoint

    return lax.scan(retreat, jnp.zeros_like(forces[0]), (chain.carry, forces), reverse=True)[1]


def response(chain: Chain, push: Array) -> Array:
    """The e of a chain that is pushed by `push`, shape (T, n)."""
    return jax.vmap(dot)(chain.view, states(chain, push))


def innovations(chain: Chain, gain: Array, e: Array, push: Array | None = None) -> Array:
    """F (e - response(chain, push)): what each residual has that those before it do not foretell."""

    def advance(x: Array, link: tuple[Chain, Array, Array, Array | None]) -> tuple[Array, Array]:
        at, gain, e, push = link
        x = dot(at.carry, x) if push is None else dot(at.carry, x) + push
        innovation = e - dot(at.view, x)
        return x + dot(gain, innovation), innovation

    return lax.scan(advance, jnp.zeros_like(e[0]), (chain, gain, e, push))[1]


def innovations_transposed(chain: Chain, gain: Array, weights: Array) -> tuple[Array, Array]:
    """The transpose of `innovations`: F^T weights for e, and what goes to the push."""

    def retreat(later: Array, link: tuple[Chain, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        at, gain, weight = link
        along_e = weight + dot(gain.T, later)
        adjoint = later - dot(at.view.T, along_e)
        return dot(at.carry.T, adjoint), (along_e, adjoint)

    return lax.scan(retreat, jnp.zeros_like(weights[0]), (chain, gain, weights), reverse=True)[1]


def residuals_transposed(chain: Chain, gain: Array, e: Array) -> Array:
    """inverse(F)^T e."""

    def retreat(later: Array, link: tuple[Chain, Array, Array]) -> tuple[Array, Array]:
        at, gain, e = link
        return dot(at.carry.T, later + dot(at.view.T, e)), e + dot(gain.T, later)

    return lax.scan(retreat, jnp.zeros_like(e[0]), (chain, gain, e), reverse=True)[1]


def solve(left: Chain, right: Chain, filter: Filter, e: Array) -> Array:
    """inverse(I + J_left J_right^T) e."""
    innovation = innovations(left, filter.left_gain, e)
    weighted = jax.vmap(small_solve)(filter.spread, innovation[..., None])[..., 0]
    return innovations_transposed(right, filter.right_gain, weighted)[0]


def log_det_gradient(chain: Chain) -> Chain:
    """The gradient of 1/2 log det(I + J J^T) in the chain.

    It is the mean of e_t (dE_t x_t) + a_t (dA_t x_{t-1} + dB_t nu_t) over nu ~ N(0, inverse(I + J^T J)), where a_t is
    the adjoint of x_t. A filter gives what the past knows of x_t, a Riccati recursion from the end what the future
    does, whence the moments. To differentiate the filter itself takes ten times as long.
    """
    filter, n = kalman_filter(chain, chain), chain.carry.shape[1]
    identity = jnp.eye(n)

    def retreat(later: Array, link: Chain) -> tuple[Array, Array]:
        information = later + dot(link.view.T, link.view)
        noise = dot(link.drive, link.drive.T)
        kept = small_solve(identity + dot(information, noise), information)
        return dot(dot(link.carry.T, kept), link.carry), information

    future = lax.scan(retreat, jnp.zeros((n, n)), chain, reverse=True)[1]

    def slopes(link: Chain, predicted: Array, before: Array, future: Array) -> Chain:
        share = small_solve(identity + dot(predicted, future), identity)
        pull = dot(future, share)  # the mean of a_t is this times what x_t was predicted to be
        return Chain(
            carry=dot(dot(pull, link.carry), before),
            drive=dot(pull, link.drive),
            view=dot(link.view, dot(share, predicted)),
        )

    before = jnp.concatenate([jnp.zeros((1, n, n)), filter.filtered[:-1]])
    return jax.vmap(slopes)(chain, filter.predicted, before, future)
