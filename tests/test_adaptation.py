"""What warm-up learns: against a plain transcription, toy curves and exact quadratics."""

import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax

from tightrope.adaptation import DualAveraging, fit_log_volume, has_mass, shrunk_covariance, spreads, windows
from tightrope.systems import Metric

# Dual averaging


def plain_dual_averaging(first, acceptances, target, gamma=0.05, t0=10, kappa=0.75):
    """Hoffman and Gelman (2014), Algorithm 5, lines 3 and 14 to 16, as printed; (eps, eps bar) after each."""
    mu, log_bar, h_bar, steps = math.log(10 * first), 0.0, 0.0, []
    for m, acceptance in enumerate(acceptances, start=1):
        h_bar = (1 - 1 / (m + t0)) * h_bar + 1 / (m + t0) * (target - acceptance)
        log_step = mu - math.sqrt(m) / gamma * h_bar
        log_bar = m**-kappa * log_step + (1 - m**-kappa) * log_bar
        steps.append((math.exp(log_step), math.exp(log_bar)))
    return steps


@jax.jit
def averaged(first, acceptances, target):
    """Step sizes to try and to keep, after each acceptance."""

    def update(state, acceptance):
        state = state.update(acceptance, target)
        return state, (jnp.exp(state.log_step), jnp.exp(state.log_average))

    return jnp.stack(lax.scan(update, DualAveraging.begin(first), acceptances)[1], axis=1)


@pytest.mark.parametrize(("first", "target"), [(0.25, 0.8), (3.0, 0.65)])
def test_dual_averaging_is_algorithm_5(first, target):
    acceptances = np.random.default_rng(0).uniform(size=50) ** 0.3
    expected = plain_dual_averaging(first, acceptances, target)
    np.testing.assert_allclose(averaged(first, acceptances, target), expected, rtol=1e-10)


def test_first_step_size_is_tried_first():
    begun = DualAveraging.begin(jnp.array(0.3))
    np.testing.assert_allclose(jnp.exp(begun.log_step), 0.3)
    np.testing.assert_allclose(jnp.exp(begun.log_average), 0.3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_acceptance_that_is_not_finite_counts_as_a_rejection(bad):
    acceptances = np.full(30, 0.7)
    acceptances[4] = bad
    expected = plain_dual_averaging(0.5, np.where(np.isfinite(acceptances), acceptances, 0.0), 0.8)
    np.testing.assert_allclose(averaged(0.5, acceptances, 0.8), expected, rtol=1e-10)


@pytest.mark.parametrize("first", [1e-4, 0.3, 50.0])
@pytest.mark.parametrize("target", [0.6, 0.8, 0.95])
def test_dual_averaging_finds_the_target(first, target):
    """Acceptance exp(-eps^2) or nothing, at random: the target is reached at eps^2 = -log(target)."""

    @jax.jit
    def run(uniform):
        def update(state, uniform):
            accepted = jnp.exp(-jnp.exp(2 * state.log_step)) > uniform
            return state.update(accepted.astype(float), target), None

        return jnp.exp(lax.scan(update, DualAveraging.begin(jnp.array(first)), uniform)[0].log_average)

    step_size = run(jr.uniform(jr.key(0), (4000,)))
    # The average forgets but the last thousand or so: five standard errors of their share of acceptances.
    assert abs(math.exp(-(step_size**2)) - target) < 5 * math.sqrt(target * (1 - target) / 1000)


# The quadratic stand-in for the log volume


def quadratic(rng, d, curvature):
    """Draws of u away from the origin, on scales of their own, with the values and gradient of a quadratic."""
    linear = rng.normal(size=d)
    value = lambda u: 7.0 + u @ linear + 0.5 * np.einsum("ni,ij,nj->n", u, curvature, u)
    return value, lambda u: linear + u @ curvature


def symmetric(rng, d):
    matrix = rng.normal(size=(d, d))
    return matrix + matrix.T


def draws_of(rng, num_draws, d):
    return rng.normal(size=(num_draws, d)) * np.linspace(0.3, 1.5, d) + np.linspace(-1, 2, d)


def gradients(fit, u, log_scale_gradient=0.0):
    whole = jnp.full(u.shape[1], log_scale_gradient)
    return np.asarray(jax.vmap(lambda u: fit.log_volume_gradient(u, whole))(jnp.asarray(u)))


RIDGE = 1e-4  # a ridge of 1e-6 is felt that much, relative to the largest gradient


def assert_recovers(fit, gradient, u):
    expected = gradient(u)
    np.testing.assert_allclose(gradients(fit, u), expected, rtol=0, atol=RIDGE * np.abs(expected).max())


@pytest.mark.parametrize(("num_draws", "d"), [(18, 2), (45, 4), (2000, 4)])
def test_fit_recovers_a_quadratic(num_draws, d):
    rng = np.random.default_rng(1)
    value, gradient = quadratic(rng, d, symmetric(rng, d))
    u = draws_of(rng, num_draws, d)
    fit = fit_log_volume(u, value(u)).force
    assert_recovers(fit, gradient, draws_of(rng, 20, d))
    np.testing.assert_allclose(fit.quadratic, fit.quadratic.T)


def test_fit_covers_the_scale():
    """The log volume falls with the log scale; the fit holds that already, so the scale's own gradient adds none."""
    rng = np.random.default_rng(2)
    value, _ = quadratic(rng, 2, symmetric(rng, 2))
    u = draws_of(rng, 100, 2)
    fit = fit_log_volume(u, value(u)).force
    np.testing.assert_array_equal(gradients(fit, u, 5.0), gradients(fit, u, 0.0))


@pytest.mark.parametrize("num_draws", [44, 27])
def test_fit_with_fewer_draws_is_separable(num_draws):
    rng = np.random.default_rng(3)
    value, gradient = quadratic(rng, 4, np.diag(rng.normal(size=4)))
    u = draws_of(rng, num_draws, 4)
    fit = fit_log_volume(u, value(u)).force
    assert_recovers(fit, gradient, draws_of(rng, 20, 4))
    tilted, _ = quadratic(rng, 4, symmetric(rng, 4))
    curvature = np.asarray(fit_log_volume(u, tilted(u)).force.quadratic)
    np.testing.assert_array_equal(curvature, np.diag(np.diagonal(curvature)))


def test_fit_has_as_many_terms_as_foretell_something():
    """Of noise a constant foretells as much as anything, of a line with noise the line."""
    rng = np.random.default_rng(8)
    u, noise = rng.normal(size=(60, 3)), rng.normal(size=60)
    constant = fit_log_volume(u, noise)
    assert constant.force is None
    assert constant.error == pytest.approx(noise.std(), rel=0.05)
    line = fit_log_volume(u, 5 * u[:, 0] + noise).force
    assert line.linear[0] == pytest.approx(5, abs=0.5) and not line.quadratic.any()


@pytest.mark.parametrize("num_draws", [26, 15])
def test_fit_with_few_draws_is_linear(num_draws):
    rng = np.random.default_rng(4)
    value, gradient = quadratic(rng, 4, np.zeros((4, 4)))
    u = draws_of(rng, num_draws, 4)
    assert_recovers(fit_log_volume(u, value(u)).force, gradient, draws_of(rng, 20, 4))
    bent, _ = quadratic(rng, 4, symmetric(rng, 4))
    assert not fit_log_volume(u, bent(u)).force.quadratic.any()


@pytest.mark.parametrize("num_draws", [14, 1, 0])
def test_no_fit_with_too_few_draws(num_draws):
    assert fit_log_volume(np.ones((num_draws, 4)), np.ones(num_draws)) is None


def test_fit_leaves_unseen_directions_flat():
    """Draws on a line say nothing across it."""
    rng = np.random.default_rng(5)
    along = rng.normal(size=200)
    u = np.stack([along, along], axis=1)
    fit = fit_log_volume(u, 3 * along + along**2).force
    expected = np.full(2, 1.5)[None] + along[:, None]
    np.testing.assert_allclose(gradients(fit, u), np.broadcast_to(expected, u.shape), atol=1e-3)


def test_the_error_of_a_fit_is_that_of_draws_it_has_not_seen():
    rng = np.random.default_rng(7)
    value, _ = quadratic(rng, 3, symmetric(rng, 3))
    u = draws_of(rng, 400, 3)
    assert fit_log_volume(u, value(u)).error < 1e-3
    noise = rng.normal(scale=0.3, size=400)
    assert fit_log_volume(u, value(u) + noise).error == pytest.approx(noise.std(), rel=0.05)
    # Chains that hardly moved: a quadratic fits all of them, and tells nothing of another one.
    starts = 3 * rng.normal(size=(4, 1, 3))
    u = (starts + 0.1 * rng.normal(size=(4, 25, 3))).reshape(-1, 3)
    bent = 10 * np.sin(u).sum(1)
    fit, error = fit_log_volume(u, bent)
    assert fit is None
    assert error == pytest.approx(bent.reshape(4, 25).std(1).mean())


@pytest.mark.parametrize("stuck_at", [0.1, 1.7, -0.123456])
@pytest.mark.parametrize("num_stuck", [1, 2])
def test_fit_leaves_coordinates_that_did_not_move_flat(num_stuck, stuck_at):
    rng = np.random.default_rng(6)
    u = rng.normal(size=(300, 3))
    u[:, :num_stuck] = stuck_at
    fit = fit_log_volume(u, 10 + u[:, 2] ** 2).force
    assert np.abs(gradients(fit, u)[:, :num_stuck]).max() < 1e-3


@pytest.mark.parametrize(
    "num_warmup, expected",
    [
        (1000, [(75, 100), (100, 150), (150, 250), (250, 450), (450, 950)]),
        (500, [(75, 100), (100, 150), (150, 250), (250, 450)]),
        (150, [(75, 100)]),
        (100, [(15, 90)]),
        (10, []),
    ],
)
def test_windows_are_those_of_stan(num_warmup, expected):
    assert windows(num_warmup) == expected


def test_covariance_is_shrunk_and_found_again():
    rng = np.random.default_rng(1)
    covariance = np.array([[2.0, 0.6], [0.6, 0.5]])
    u = rng.multivariate_normal([3.0, -1.0], covariance, size=20_000)
    np.testing.assert_allclose(shrunk_covariance(u, is_dense=True), covariance, atol=0.05)
    np.testing.assert_allclose(shrunk_covariance(u, is_dense=False), np.diag(covariance), atol=0.05)
    np.testing.assert_allclose(shrunk_covariance(np.zeros((5, 2)), is_dense=True), 0.5e-3 * np.eye(2))
    for size in (covariance, np.diag(covariance)):
        metric = Metric.of(jnp.asarray(size))
        momenta = jax.vmap(metric.draw)(jr.split(jr.key(1), 20_000))
        mass = np.linalg.inv(covariance if size.ndim == 2 else np.diag(size))
        np.testing.assert_allclose(np.cov(momenta.T), mass, atol=0.1)


def test_spreads_are_units_that_round_nothing():
    u = np.random.default_rng(0).normal(size=(500, 4)) * [0.3, 5.0, 1e-9, 0.0]
    np.testing.assert_array_equal(spreads(u), [0.25, 4.0, 2.0**-10, 1.0])
    np.testing.assert_array_equal(u / spreads(u) * spreads(u), u)


def test_mass_of_a_mode_is_its_height_and_its_width():
    rng = np.random.default_rng(3)
    z = rng.normal(size=(4, 200, 2))
    height, width = np.array([0.0, 9.0, 9.0, 0.0]), np.array([[1.0, 1.0], [1.0, 1e-4], [1.0, 1e-9], [1e-2, 1e-2]])
    log_density = height[:, None] - (z**2).sum(-1) / 2
    # A high peak is worth as much as a broad hill, a needle nothing; nor is what is as high as the hill and narrow.
    np.testing.assert_array_equal(has_mass(z * width[:, None], log_density), [True, True, False, False])
    assert has_mass(z[:, :9] * width[:, None], log_density[:, :9]).all()  # nine draws do not tell
    z[3] = 0.0  # a chain that stands still
    np.testing.assert_array_equal(has_mass(z, np.zeros((4, 200))), [True, True, True, False])
    assert has_mass(np.zeros_like(z), log_density).all()  # and where all do, none is better
