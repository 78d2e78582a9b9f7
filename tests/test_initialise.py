"""Starting points: they explain the data, differ between chains, and are refused with a reason."""

import functools
import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from cases import slow_but

import tightrope as tr
from tightrope import initialise
from tightrope.initialise import starting_points

NUM_CHAINS = 6


@functools.cache
def load(name, **options):
    return tr.zoo.load(name, **options)


@functools.cache
def starts(name, **options):
    return starting_points(load(name, **options), "auto", jr.key(0), NUM_CHAINS)


def small_model(**options):
    """Two parameters, one of them a vector, three data."""
    given = dict(
        priors={"a": dist.LogNormal(0.0, 0.5), "b": dist.Normal(0.0, 1.0).expand([2])},
        forward=lambda p: p["a"] * jnp.array([1.0, 2.0, 3.0]) + p["b"][0],
        noise_scale=0.1,
        observed=np.array([1.2, 2.1, 2.9]),
    )
    return tr.Model(**(given | options))


def residuals(model, u):
    conditioned = model.condition()
    return np.asarray(jax.jit(jax.vmap(lambda u: conditioned.lift(u).e))(jnp.asarray(u)))


TOYS = [("toy", {"sigma": 0.1}), ("toy", {"sigma": 1e-8})]


@pytest.mark.parametrize(
    ("name", "options"),
    slow_but(TOYS, [("lotka-volterra", {}), *TOYS]),
)
def test_starting_points_explain_the_data(name, options):
    model, u = load(name, **options), starts(name, **options)
    assert u.shape == (NUM_CHAINS, model.d) and np.isfinite(u).all()
    square = np.mean(residuals(model, u) ** 2, axis=1)
    # A standard normal noise would give 1, with a standard deviation of sqrt(2 / m); eight of them are allowed.
    assert (square < 1 + 8 * np.sqrt(2 / model.m)).all(), square
    # No chain starts where another does, nor next to it.
    gaps = [np.abs(u[i] - u[j]).max() for i in range(NUM_CHAINS) for j in range(i)]
    assert min(gaps) > 1e-3
    # Nor in places that the prior thinks impossible.
    assert (np.sum(u**2, axis=1) < model.d + 8 * np.sqrt(2 * model.d)).all()


@pytest.mark.slow
def test_noise_scale_is_not_an_excuse():
    """With hares and lynxes a large scale explains anything; the data ask for 0.25 or so, known to 0.04."""
    model, u = load("lotka-volterra"), starts("lotka-volterra")
    sigma = jax.jit(jax.vmap(lambda u: model.parameters.values(u)["sigma"]))(u)
    assert ((sigma > 0.1) & (sigma < 0.4)).all(), sigma


def test_starting_points_spread_along_what_the_data_leave_open():
    """The toy's posterior is a loop: starts lie in all four quadrants of it, not at its nearest point."""
    u = starting_points(load("toy", sigma=1e-8), "auto", jr.key(1), 24)
    assert set(map(tuple, np.sign(u))) == {(1, 1), (1, -1), (-1, 1), (-1, -1)}


def test_starting_points_depend_on_the_key_alone():
    model = load("toy", sigma=0.1)
    first, again, other = (starting_points(model, "auto", jr.key(seed), 2) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_more_chains_than_candidates_all_start():
    u = starting_points(load("toy", sigma=0.1), "auto", jr.key(0), 70)
    assert u.shape == (70, 2) and np.isfinite(u).all()
    assert len(np.unique(u, axis=0)) > 35


def test_starts_are_in_a_mode_that_has_mass():
    model = small_model()
    assert initialise.in_the_best_mode(model, np.array([-10.0, -4.3, np.nan, 0.0, -np.inf, -7.0])).tolist() == [
        *(False, True, False, True, False, False)
    ]


@pytest.mark.parametrize(("num_good", "num_looks"), [(16, 1), (15, 2), (8, 2), (5, 4), (1, 8)])
def test_more_draws_are_refined_where_few_agree(num_good, num_looks, monkeypatch):
    seen = []

    def in_the_best_mode(model, log_density):
        seen.append(len(log_density))
        return np.arange(len(log_density)) % 32 < num_good

    monkeypatch.setattr(initialise, "in_the_best_mode", in_the_best_mode)
    u = starting_points(small_model(), "auto", jr.key(0), 4)
    assert u.shape == (4, 3) and seen == [32 * (look + 1) for look in range(num_looks)]


def test_a_lesser_mode_that_is_met_more_often_is_rarely_first():
    log_density = np.repeat([-8.0, 0.0, -2.0], [60, 3, 3])
    orders = [initialise.likelier_first(jr.key(seed), log_density) for seed in range(200)]
    assert all(sorted(order) == list(range(66)) for order in orders)
    first = np.array(orders)[:, :4]
    # A point of the lesser mode goes first with odds of 60 e^-4 to 3 + 3 / e, one of the third group with 3 / e.
    odds = np.array([60 * np.exp(-4), 3.0, 3 * np.exp(-1)])
    found = [np.mean(first[:, 0] < 60), np.mean((first[:, 0] >= 60) & (first[:, 0] < 63)), np.mean(first[:, 0] >= 63)]
    np.testing.assert_allclose(found, odds / odds.sum(), atol=5 * 0.5 / np.sqrt(200))
    assert (first >= 60).mean() > 0.6


def test_after_the_best_draws_come_any(monkeypatch):
    model, orders = small_model(), []
    find_key, _ = jr.split(jr.key(0))
    best_first = initialise.prior_points(model, find_key, initialise.NUM_DRAWS)
    monkeypatch.setattr(initialise, "refine", lambda model, u, key: u)

    def the_last_look(model, log_density):
        return np.arange(len(log_density)) >= len(log_density) - 8

    monkeypatch.setattr(initialise, "in_the_best_mode", the_last_look)
    for u in starting_points(model, "auto", jr.key(0), 8):
        orders.append(int(np.flatnonzero((best_first == u).all(axis=1))[0]))
    assert min(orders) >= initialise.NUM_REFINED and max(orders) > len(best_first) // 2


def test_prior_starts_are_draws_of_the_prior():
    num_chains = 200
    u = starting_points(small_model(noise_scale=1e-4), "prior", jr.key(0), num_chains)
    assert u.shape == (num_chains, 3) and len(np.unique(u, axis=0)) == num_chains
    bound = np.sqrt(np.log(2 / 1e-6) / (2 * num_chains))  # Dvoretzky-Kiefer-Wolfowitz, false alarm 1e-6
    assert all(scipy.stats.kstest(column, "norm").statistic < bound for column in u.T)
    # A sorted or selected start, the best of many say, is seen.
    assert scipy.stats.kstest(0.5 * u[:, 0], "norm").statistic > 0.1


def test_prior_starts_avoid_where_the_model_fails():
    wall = lambda p: jnp.where(p["b"][0] > 0, jnp.nan, p["a"]) * jnp.ones(3)
    u = starting_points(small_model(forward=wall), "prior", jr.key(0), 8)
    assert (u[:, 1] <= 0).all()


def test_auto_starts_avoid_where_the_model_fails():
    wall = lambda p: jnp.where(p["b"][0] > 0, jnp.nan, p["a"]) * jnp.ones(3)
    model = small_model(forward=wall)
    u = starting_points(model, "auto", jr.key(0), 4)
    assert np.isfinite(residuals(model, u)).all()


def test_given_values_start_every_chain():
    model = small_model()
    u = starting_points(model, {"a": 2.0, "b": [0.5, -1.0], "unused": 3.0}, jr.key(0), 3)
    np.testing.assert_allclose(u, np.tile([np.log(2.0) / 0.5, 0.5, -1.0], (3, 1)))


def test_truth_starts_every_chain():
    u = starting_points(load("toy", sigma=1e-8), "truth", jr.key(0), 2)
    np.testing.assert_allclose(u, [[0.0, 1.0]] * 2)


@pytest.fixture(scope="module")
def trace():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        method = tr.LiftedHMC(num_steps=2, step_size=0.2, force="cheap")
        return tr.sample(small_model(), draws=5, warmup=3, chains=2, progress=False, method=method)


def test_trace_starts_chains_where_its_own_ended(trace):
    u = starting_points(small_model(), trace, jr.key(0), 3)
    last = trace["posterior"].isel(draw=-1)
    expected = np.concatenate([2 * np.log(last["a"].values)[:, None], last["b"].values], axis=1)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3
    np.testing.assert_allclose(u, expected[[0, 1, 0]], rtol=1e-12)


NAN = lambda p: jnp.nan * p["a"] * jnp.ones(3)
OTHER_PRIORS = {"a": dist.LogNormal(0.0, 0.5), "q": dist.Normal(0.0, 1.0).expand([2])}
LONGER_PRIORS = {"a": dist.LogNormal(0.0, 0.5), "b": dist.Normal(0.0, 1.0).expand([3])}

# Options of the model, init, and the sentence.
REFUSED = {
    "nan": (dict(forward=NAN), "auto", "forward returned NaN or infinity at all of"),
    "nan-prior": (dict(forward=NAN), "prior", "forward returned NaN or infinity at all of"),
    "scale": (dict(noise_scale=lambda p: -p["a"]), "auto", "noise_scale is zero or negative at 1000 of 1000"),
    "scale-zero": (dict(noise_scale=lambda p: 0 * p["a"]), "prior", "noise_scale is zero or negative at"),
    "unknown": (dict(), "best", 'init="best" is unknown: use "auto", "prior", "truth"'),
    "kind": (dict(), 3.0, 'init must be "auto", "prior", "truth", a dictionary or a trace, not float'),
    "no-truth": (dict(), "truth", "this model does not know its true parameters"),
    "missing": (dict(), {"a": 1.0}, r"init: values for \['b'\] are missing"),
    "shape": (dict(), {"a": 1.0, "b": [1.0]}, r'init: "b" has shape \(1,\), not \(2,\)'),
    "outside": (dict(), {"a": -1.0, "b": [0.0, 0.0]}, "init: the posterior density is zero or not finite"),
    "nan-value": (dict(), {"a": 1.0, "b": [np.nan, 0.0]}, "init: the posterior density is zero or not finite"),
    "nan-there": (dict(forward=NAN), {"a": 1.0, "b": [0.0, 0.0]}, "init: the posterior density is zero or not"),
    "truth-shape": (dict(truth={"a": 1.0, "b": 0.0}), "truth", r'"b" has shape \(\), not \(2,\)'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_no_start_is_explained(case):
    options, init, complaint = REFUSED[case]
    with pytest.raises(tr.InputError, match=complaint):
        starting_points(small_model(**options), init, jr.key(0), 2)


def test_density_that_vanishes_everywhere_is_explained():
    """The residual and its scale are finite, but the noise law gives them no density."""
    model = small_model(noise=lambda p: dist.Normal(0.0, 1e-200 * p["a"]))
    with pytest.raises(tr.InputError, match=r"the posterior density is zero at all of .* prior draws"):
        starting_points(model, "auto", jr.key(0), 2)


@pytest.mark.parametrize(
    ("priors", "complaint"),
    [
        (OTHER_PRIORS, "the trace is not one of this model"),
        (LONGER_PRIORS, "the trace has 3 coordinates but the model has 4"),
    ],
)
def test_trace_of_another_model_is_refused(trace, priors, complaint):
    forward = lambda p: p["a"] * jnp.ones(3)
    with pytest.raises(tr.InputError, match=complaint):
        starting_points(small_model(priors=priors, forward=forward), trace, jr.key(0), 2)


def test_trace_without_coordinates_is_refused(trace):
    posterior_alone = tr.prior(small_model(), draws=2)
    with pytest.raises(tr.InputError, match="the trace is not one of this model"):
        starting_points(small_model(), posterior_alone, jr.key(0), 2)
