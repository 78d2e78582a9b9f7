"""The linear algebra of a chain: against dense matrices."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from cases import slow_but

from tightrope import kalman
from tightrope.kalman import Chain

SHAPES = [(1, 1), (2, 2), (3, 3), (2, 1), (1, 2)]  # length of a state, and of what drives it
LENGTH = 7


def chain_of(n, q, seed=0, view_scale=1.0):
    carry_key, drive_key, view_key = jr.split(jr.key(seed), 3)
    return Chain(
        carry=0.5 * jr.normal(carry_key, (LENGTH, n, n)),
        drive=jr.normal(drive_key, (LENGTH, n, q)),
        view=view_scale * jr.normal(view_key, (LENGTH, n, n)),
    )


def dense(chain):
    """J, one column for each entry of nu."""
    length, _, q = chain.drive.shape
    push = lambda nu: jnp.einsum("tij,tj->ti", chain.drive, nu.reshape(length, q))
    return jax.jacfwd(lambda nu: slow_response(chain, push(nu)).ravel())(jnp.zeros(length * q))


def slow_response(chain, push):
    x, seen = jnp.zeros(push.shape[1]), []
    for carry, view, push_t in zip(chain.carry, chain.view, push, strict=True):
        x = carry @ x + push_t
        seen.append(view @ x)
    return jnp.stack(seen)


@pytest.mark.parametrize("n, q", SHAPES)
def test_response_is_that_of_a_plain_loop(n, q):
    chain, push = chain_of(n, q), jr.normal(jr.key(1), (LENGTH, n))
    np.testing.assert_allclose(kalman.response(chain, push), slow_response(chain, push), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("n, q", SHAPES)
def test_filter_of_two_chains_solves_the_dense_equation(n, q):
    left, right, e = chain_of(n, q, 1), chain_of(n, q, 2), jr.normal(jr.key(3), (LENGTH, n))
    for other in (left, right):
        matrix = np.eye(LENGTH * n) + dense(left) @ dense(other).T
        found = kalman.solve(left, other, kalman.kalman_filter(left, other), e)
        allowed = 1e-13 * np.linalg.cond(matrix)
        np.testing.assert_allclose(found.ravel(), np.linalg.solve(matrix, e.ravel()), rtol=0, atol=allowed)


# Less than a drive for each state leaves directions of no variance, which tiny noise and rounding then fight over.
@pytest.mark.parametrize(
    "n, q, view_scale", [(n, q, s) for n, q in SHAPES for s in (1e-6, 1.0, 1e6) if q >= n or s < 2]
)
def test_innovations_are_independent(n, q, view_scale):
    """F (I + J J^T) F^T is block-diagonal: the covariance that the filter says, however small or large the noise."""
    chain = chain_of(n, q, view_scale=view_scale)
    filter = kalman.kalman_filter(chain, chain)
    size = LENGTH * n
    to_innovations = lambda e: kalman.innovations(chain, filter.left_gain, e.reshape(LENGTH, n)).ravel()
    factor = np.asarray(jax.jacfwd(to_innovations)(jnp.zeros(size)))
    back = lambda e: kalman.residuals_transposed(chain, filter.left_gain, e.reshape(LENGTH, n)).ravel()
    np.testing.assert_allclose(jax.jacfwd(back)(jnp.zeros(size)).T, np.linalg.inv(factor), rtol=1e-9, atol=1e-9)
    expected = np.zeros((LENGTH, n, LENGTH, n))
    expected[np.arange(LENGTH), :, np.arange(LENGTH)] = filter.spread
    covariance = np.eye(size) + dense(chain) @ dense(chain).T
    found = factor @ covariance @ factor.T
    np.testing.assert_allclose(found, expected.reshape(size, size), rtol=1e-8, atol=1e-9 * np.abs(covariance).max())


@pytest.mark.parametrize("n, q", SHAPES)
def test_transposes(n, q):
    chain, other = chain_of(n, q), jr.normal(jr.key(5), (3, LENGTH, n))
    e, push, weights = other
    filter = kalman.kalman_filter(chain, chain)
    there = kalman.innovations(chain, filter.left_gain, e, push)
    along_e, along_push = kalman.innovations_transposed(chain, filter.left_gain, weights)
    np.testing.assert_allclose((there * weights).sum(), (along_e * e + along_push * push).sum(), rtol=1e-10)
    left, right = kalman.states(chain, push) * weights, push * kalman.adjoints(chain, weights)
    np.testing.assert_allclose(left.sum(), right.sum(), rtol=1e-10)


@pytest.mark.parametrize("view_scale", slow_but([1.0], [0.1, 1.0, 100.0]))
@pytest.mark.parametrize("n, q", slow_but([(2, 2)], SHAPES))
def test_gradient_of_the_log_determinant_is_the_dense_one(n, q, view_scale):
    chain = chain_of(n, q, view_scale=view_scale)

    def half_log_det(chain):
        jacobian = dense(chain)
        return 0.5 * jnp.linalg.slogdet(jnp.eye(len(jacobian)) + jacobian @ jacobian.T)[1]

    expected, found = jax.grad(half_log_det)(chain), kalman.log_det_gradient(chain)
    for name in ("drive", "view"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-8, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(found.carry[1:], expected.carry[1:], rtol=1e-8, atol=1e-9)
