"""The trial: each sampler is chosen where it is faster by far."""

import warnings

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import tightrope as tr
from tightrope.choice import rival_of
from tightrope.runs import Run

MUCH_COMPUTED = True


def regression(num_data=1000, d=10):
    """Linear and much observed: a dense metric is all it takes, and a Jacobian costs a thousand rows."""
    random = np.random.default_rng(0)
    x = random.normal(size=(num_data, d))
    y = x.sum(1) + random.normal(size=num_data)
    return tr.Model({"b": dist.Normal(0.0, 1.0).expand([d])}, lambda p: jnp.asarray(x) @ p["b"], 1.0, y)


@pytest.fixture(autouse=True)
def short_runs_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        yield


@pytest.mark.slow
def test_dense_nuts_is_chosen_where_it_is_faster():
    model = regression()
    trace = tr.sample(model, 300, 200, 2, seed=1, method="auto", progress=False)
    assert trace.posterior.attrs["method"] == "nuts"
    assert "effective draws per second" in trace.posterior.attrs["choice"]
    assert trace.posterior.sizes["draw"] == 300
    x, y = np.asarray(model.observations.forward({"b": jnp.eye(10)})), np.asarray(model.data)
    precision = np.eye(10) + x.T @ x
    mean = np.linalg.solve(precision, x.T @ y)
    error = np.abs(trace.posterior["b"].mean(("chain", "draw")) - mean) * np.sqrt(np.diag(precision))
    assert error.max() < 0.3  # posterior standard deviations, five standard errors of 300 effective draws


def test_lifted_sampler_is_chosen_where_it_is_faster():
    trace = tr.sample(tr.zoo.load("toy", sigma=1e-4), 300, 200, 2, seed=1, method="auto", progress=False)
    assert trace.posterior.attrs["method"] == "lifted-nuts"
    assert trace.posterior.attrs["choice"].startswith("lifted-nuts: ")
    assert trace.posterior.sizes["draw"] == 300


@pytest.mark.parametrize(("asked", "expected"), [({}, 0.8), ({"target_accept": 0.95}, 0.95)])
def test_both_get_what_was_asked_for_and_else_their_own(asked, expected):
    method = tr.LiftedNUTS(max_depth=7, **asked)
    run = Run(tr.zoo.load("toy"), method, warmup=200, draws=10, chains=2, cores=1, key=jr.key(1))
    rival = rival_of(run, method, cores=1)
    assert rival.method == tr.NUTS(metric="dense", max_depth=7, target_accept=expected)


def test_no_trial_where_there_is_no_time_for_one():
    trace = tr.sample(tr.zoo.load("toy"), 20, 50, 2, method="auto", progress=False)
    assert trace.posterior.attrs["method"] == "lifted-nuts" and trace.posterior.attrs["choice"].startswith("no trial")
