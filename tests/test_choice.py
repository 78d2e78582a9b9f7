"""The trial: each sampler is chosen where it is faster by far."""

import warnings
from types import SimpleNamespace

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import tightrope as tr
from tightrope.choice import Mark, Racer, lags, leader, race, rival_of
from tightrope.progress import Progress
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


def racer(rate, speed, iteration, has_failed=False):
    """A run of 1000 iterations of warm-up and 1000 draws, so far."""
    return SimpleNamespace(
        rate=lambda: rate,
        speed=lambda: speed,
        has_learnt=iteration >= 150,
        is_settled=iteration >= 300,
        is_past=lambda share: iteration >= share,
        has_failed=has_failed,
        run=SimpleNamespace(num_warmup=1000, num_draws=1000),
    )


@pytest.mark.parametrize(
    ("lifted", "dense", "winner"),
    [
        (racer(0, 10, 20), racer(101, 160, 200), "dense"),  # more than ten times what the other could make
        (racer(0, 10, 20), racer(99, 160, 200), None),
        (racer(5, 10, 200), racer(0, 60, 120), None),  # nothing is known of NUTS
        (racer(5, 10, 200), racer(4, 60, 160), "lifted"),
        (racer(5, 50, 300), racer(14, 60, 400), "lifted"),
        (racer(5, 50, 300), racer(16, 60, 400), "dense"),  # now it is known what the other does make
        (racer(5, 50, 300), racer(0, 2, 100), None),  # NUTS might become ten times as fast
        (racer(5, 50, 300), racer(0, 1, 100), "lifted"),  # and even that would not do
        (racer(0, 50, 300), racer(0, 60, 100), None),  # stands still: NUTS gets its chance
        (racer(8, 50, 200), racer(20, 60, 599), None),
        (racer(8, 50, 200), racer(20, 60, 600), "lifted"),  # no later than this, if it is known what it makes
        (racer(0, 50, 90), racer(20, 60, 600), None),
        (racer(0, 50, 90), racer(20, 60, 1000), "dense"),  # nor later than this in any case
        (racer(0, 50, 1000), racer(0, 60, 200), "lifted"),
        (racer(0, 0, 1000, has_failed=True), racer(0, 1, 10), "dense"),
        (racer(0, 1, 10), racer(0, 0, 1000, has_failed=True), "lifted"),
    ],
)
def test_who_leads(lifted, dense, winner):
    assert leader(lifted, dense) is {"lifted": lifted, "dense": dense, None: None}[winner]


@pytest.mark.parametrize(
    ("speed", "rival_speed", "expected"), [(10, 31, True), (10, 29, False), (0, 0, False), (0, 1, True)]
)
def test_who_lags(speed, rival_speed, expected):
    """Before the first turn nobody does."""
    assert lags(racer(0, speed, 20), racer(0, rival_speed, 20)) is expected


def test_speed_is_that_of_the_last_draws_and_waits_for_a_metric():
    """A hundred slow draws, then a metric, then fast ones."""
    racer = Racer(SimpleNamespace(num_warmup=300, windows={100: slice(75, 100), 250: slice(100, 250)}))
    racer.marks += [Mark(40, 40.0), Mark(100, 100.0), Mark(149, 104.0)]
    assert racer.speed() == pytest.approx(109 / 64) and not racer.has_learnt
    racer.marks += [Mark(155, 105.0)]
    assert racer.speed() == pytest.approx(11.0) and racer.has_learnt


def travelling(iteration, stop):
    """A coordinate that makes its way until some iteration, and independent draws of it from there."""
    rng, places = np.random.default_rng(0), np.arange(iteration)
    return np.where(places < stop, 100.0 * (stop - places), rng.normal(size=(4, iteration)))[..., None]


@pytest.mark.parametrize(("stop", "is_known"), [(30, True), (90, True), (200, False)])
def test_draws_on_the_way_tell_no_rate(stop, is_known):
    u = travelling(200, stop)
    run = SimpleNamespace(num_warmup=400, model=SimpleNamespace(d=1))
    run.seen = lambda window: SimpleNamespace(u=u[:, window], info=SimpleNamespace(lp=u[:, window, 0]))
    racer = Racer(run)
    racer.marks += [Mark(50, 5.0), Mark(100, 10.0), Mark(150, 15.0), Mark(200, 20.0)]
    assert racer.rate() == (pytest.approx(10.0, rel=0.5) if is_known else 0.0)


def test_a_race_that_is_stopped_has_no_winner():
    method = tr.LiftedNUTS()
    run = Run(tr.zoo.load("toy"), method, warmup=200, draws=10, chains=2, cores=1, key=jr.key(1))
    rival = rival_of(run, method, cores=1)
    run.place(np.zeros((2, 2)))
    run.stopped.set()
    with Progress(False) as quiet:
        assert race(run, rival, quiet) == (None, "")
