"""Whole runs have the right law: calibration over data sets, Geweke's joint test, and a million draws of known laws.

Thresholds are false-alarm rates: 1e-5 for the ranks of a quantity, 1e-6 for a marginal of the joint test, and five
standard errors, 6e-7, for a moment.
"""

import calibration
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from test_stationarity import distance_from_normal, threshold

import tightrope as tr
from tightrope.transitions import run

MUCH_COMPUTED = True

pytestmark = pytest.mark.statistics


@pytest.mark.parametrize("name", calibration.MODELS)
def test_the_truth_has_a_uniform_rank(name):
    distances = calibration.distances(calibration.ranks(calibration.MODELS[name]()))
    assert (distances < calibration.BAND).all(), distances


def test_calibration_sees_a_wrong_model():
    """Noise too large by a third."""
    distances = calibration.distances(calibration.ranks(calibration.decay(), fitted=calibration.decay(4 / 3)))
    assert distances.max() > 2 * calibration.BAND, distances


@pytest.mark.parametrize("name", ["decay", "product"])
def test_parameters_and_data_drawn_in_turn_keep_their_law(name, num_chains=10_000, num_rounds=20):
    """Geweke's test: data given parameters, parameters given data by one transition, and again."""
    model = calibration.MODELS[name]()
    method = tr.LiftedNUTS(force="exact", max_depth=3)

    def one_chain(key):
        start_key, rounds_key = jr.split(key)
        u = model.parameters.draw(start_key)

        def one_round(u, key):
            noise_key, step_key = jr.split(key)
            blocks = model.observations.simulate(noise_key, model.parameters.values(u))
            y = jnp.concatenate([jnp.ravel(block) for block in blocks.values()])
            conditioned = model.condition(y)
            integrator = method.integrator(conditioned, method.initial_tuning(conditioned))
            point, _ = run(method.transition, integrator, step_key, integrator.system.at(u), 0.4)
            return point.u, None

        return u, lax.scan(one_round, u, jr.split(rounds_key, num_rounds))[0]

    start, end = jax.jit(lambda keys: lax.map(one_chain, keys, batch_size=2500))(jr.split(jr.key(3), num_chains))
    assert np.linalg.norm(end - start, axis=1).mean() > 0.3
    for marginal in np.asarray(end).T:
        assert distance_from_normal(marginal) < threshold(num_chains)


MIX = np.array([[1.0, 0.5], [0.3, -1.0], [2.0, 1.9]])


def correlated():
    model = tr.Model({"b": dist.Normal(0.0, 1.0).expand([2])}, lambda p: MIX @ p["b"], 0.5, [1.0, -0.5, 2.0])
    precision = np.eye(2) + MIX.T @ MIX / 0.25
    covariance = np.linalg.inv(precision)
    mean = covariance @ MIX.T @ np.array([1.0, -0.5, 2.0]) / 0.25
    second = covariance + np.outer(mean, mean)
    moments = lambda b: np.stack([b[..., 0], b[..., 1], b[..., 0] ** 2, b[..., 1] ** 2, b[..., 0] * b[..., 1]], -1)
    return model, moments, np.array([*mean, second[0, 0], second[1, 1], second[0, 1]])


def uniform():
    """Data that tell nothing."""
    model = tr.Model({"b": dist.Uniform(-1.0, 1.0).expand([2])}, lambda p: 0 * p["b"], 1.0, [0.3, -0.2])
    moments = lambda b: np.stack([b[..., 0], b[..., 1], b[..., 0] ** 2, b[..., 1] ** 4, b[..., 0] * b[..., 1]], -1)
    return model, moments, np.array([0.0, 0.0, 1 / 3, 1 / 5, 0.0])


@pytest.mark.parametrize("target", [correlated, uniform])
def test_a_million_draws_have_the_moments_of_the_law(target, num_chains=5000, num_draws=200):
    model, moments, expected = target()
    keys = jr.split(jr.key(4), num_chains)
    start = jax.vmap(model.parameters.draw)(keys)
    y = jnp.tile(model.data, (num_chains, 1))
    u = calibration.sampled(model, y, start, keys, 100, num_draws, max_depth=3)
    assert u.shape == (num_chains, num_draws, 2)
    b = np.asarray(jax.vmap(jax.vmap(lambda u: model.parameters.values(u)["b"]))(u))
    means = moments(b).mean(1)  # of chains, which are independent
    scores = (means.mean(0) - expected) / (means.std(0, ddof=1) / np.sqrt(num_chains))
    assert np.abs(scores).max() < 5, scores
