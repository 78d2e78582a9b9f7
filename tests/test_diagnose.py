"""A look at a posterior before it is sampled: right where the answer is known, and sound advice."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from typer.testing import CliRunner

import tightrope as tr
from tightrope.cli import app
from tightrope.diagnose import steps_to_cross

MIXING = np.array([[2.0, 1.0, 0.0, 0.5], [0.0, 1.5, -1.0, 0.3], [2.0, 2.5, -1.0, 0.8]])  # of rank two


def linear(sigma):
    forward = lambda params: jnp.asarray(MIXING) @ params["x"]
    return tr.Model({"x": dist.Normal(0, 1).expand([4])}, forward, sigma, MIXING @ [0.5, -1.0, 0.2, 1.0])


@pytest.mark.parametrize("sigma", [0.1, 1e-6])
def test_a_linear_model_is_known_exactly(sigma):
    found = tr.diagnose_model(linear(sigma))
    assert (found.num_coordinates, found.num_data, found.num_open) == (4, 3, 2)
    largest = np.linalg.norm(MIXING / sigma, 2)
    np.testing.assert_allclose(found.thinnest, 1 / np.sqrt(1 + largest**2), rtol=1e-6)
    assert found.steps == pytest.approx(1, abs=0.2) and found.method == "nuts"  # the points are draws from a normal law


def test_noise_that_is_inferred_is_that_of_the_points_not_of_the_prior():
    t = jnp.linspace(0, 1, 30)
    noise = np.random.default_rng(3).normal(size=30)
    priors = {"a": dist.Normal(0, 10), "s": dist.LogNormal(-9.0, 4.0)}
    found = tr.diagnose_model(tr.Model(priors, lambda params: params["a"] * t, "s", 2 * t + 0.5 * noise))
    assert 0.05 < found.noise_to_signal < 0.5  # misses are about 7 t, noise is 0.5, and exp(-9) without the data


def test_a_datum_that_every_draw_meets_says_nothing_of_the_signal():
    t, y = jnp.linspace(0, 1, 30), 2 * np.linspace(0, 1, 30)  # zero is predicted at time zero, and measured
    found, without = (
        tr.diagnose_model(tr.Model({"a": dist.Normal(0, 10)}, lambda params, i=i: params["a"] * t[i:], 0.5, y[i:]))
        for i in (0, 1)
    )
    assert found.noise_to_signal == pytest.approx(without.noise_to_signal, rel=0.5)


def test_one_direction_that_turns():
    """Two points with the same J scale, a right angle apart: C H is known."""
    points, thin = np.zeros((2, 2)), 1e-4
    jacobians = np.array([[[1 / thin, 0.0]], [[0.0, 1 / thin]]])
    # H is diag(1 + thin^-2, 1) or its turn; C is the mean of their inverses, about 1/2 in either direction.
    np.testing.assert_allclose(steps_to_cross(points, jacobians), np.sqrt(0.5) / thin, rtol=1e-6)
    np.testing.assert_allclose(steps_to_cross(points, jacobians[[0, 0]]), 1.0, rtol=1e-6)


def test_the_toy_is_worth_lifting_as_its_noise_vanishes():
    wide, thin, thinnest = (tr.diagnose_model(tr.zoo.load("toy", sigma=sigma)) for sigma in (1.0, 1e-3, 1e-6))
    assert (wide.method, thin.method, thinnest.method) == ("nuts", "lifted-nuts", "lifted-nuts")
    assert (thin.num_open, thinnest.num_open) == (1, 1)
    for name, power in (("steps", -1), ("thinnest", 1), ("noise_to_signal", 1)):
        ratio = getattr(thinnest, name) / getattr(thin, name)
        np.testing.assert_allclose(ratio, 1e-3**power, rtol=0.5, err_msg=name)


# As `benchmarks/auto.py` found, but for potassium, where the two are about as fast; linear-gaussian is normal.
ADVICE = {
    "linear-gaussian": "nuts",
    "lotka-volterra": "lifted-nuts",
    "squid-potassium": "lifted-nuts",
    "fitzhugh-nagumo": "lifted-nuts",
    "squid-sodium": "lifted-nuts",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ADVICE)
def test_advice_on_the_zoo(name):
    for seed in (0, 1):
        assert tr.diagnose_model(tr.zoo.load(name), seed).method == ADVICE[name]


def test_the_command_prints_the_advice():
    result = CliRunner().invoke(app, ["diagnose", "toy", "--sigma", "1e-3"])
    assert result.exit_code == 0, result.output
    assert "toy: 2 coordinates, 1 data" in result.output and "1 of 2 directions are left to the prior" in result.output
    assert 'method="lifted-nuts"' in result.output
    assert 'tr.NUTS(metric="dense") is enough' in str(tr.diagnose_model(linear(1.0)))


def test_mistakes_are_refused():
    with pytest.raises(tr.InputError, match=r"model must be a tr\.Model"):
        tr.diagnose_model("toy")
    large = tr.Model({"x": dist.Normal(0, 1).expand([4000])}, lambda params: params["x"], 0.1, np.ones(4000))
    with pytest.raises(tr.InputError, match="4000 x 4000 numbers"):
        tr.diagnose_model(large)
