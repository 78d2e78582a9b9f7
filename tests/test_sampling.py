"""The driver: what a run returns, that it repeats itself, and that it can be stopped."""

import signal
import threading
import time
import warnings
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import tightrope as tr
from tightrope import kinds, sampling
from tightrope.frames import Tall, Wide
from tightrope.initialise import Start
from tightrope.progress import Progress
from tightrope.systems import Approximate, Differences, Lifted
from tightrope.types import Info

QUIET = dict(progress=False)


@pytest.fixture(autouse=True)
def short_runs_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        yield


@pytest.fixture(scope="module")
def model():
    x = jnp.linspace(0, 1, 5)
    return tr.Model(
        priors={"a": dist.Normal(0, 1), "b": dist.LogNormal(0, 1).expand([2])},
        forward=lambda p: p["a"] + p["b"][0] * p["b"][1] * x,
        noise_scale=0.1,
        observed=np.array([0.1, 0.4, 0.5, 0.9, 1.1]),
        derived={"product": lambda p: p["b"].prod()},
        coords={"factor": ["first", "second"]},
        dims={"b": ["factor"]},
        name="line",
    )


@pytest.fixture(scope="module")
def trace(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        return tr.sample(model, draws=200, warmup=200, chains=3, seed=5, **QUIET)


def test_groups_and_names_are_those_of_arviz(trace):
    assert set(trace.children) == {"posterior", "sample_stats", "observed_data", "unconstrained_posterior"}
    assert list(trace.posterior.data_vars) == ["a", "b", "product"]
    assert trace.posterior["b"].dims == ("chain", "draw", "factor")
    assert trace.posterior.sizes["chain"] == 3 and trace.posterior.sizes["draw"] == 200
    expected = {
        "diverging",
        "acceptance_rate",
        "step_acceptance",
        "step_size",
        "tree_depth",
        "n_steps",
        "energy",
        "energy_error",
        "lp",
    }
    expected |= {"reached_max_treedepth", "solver_iterations", "projection_failed", "non_reversible", "non_finite"}
    assert set(trace.sample_stats.data_vars) == expected
    assert trace.sample_stats["diverging"].dtype == bool and trace.sample_stats["n_steps"].dtype == int
    attributes = {"tightrope_version", "model", "method", "seed", "compile_time", "warmup_time", "sampling_time"}
    assert attributes <= set(trace.posterior.attrs)
    assert trace.posterior.attrs["model"] == "line" and trace.posterior.attrs["method"] == "lifted-nuts"


def test_values_belong_together(model, trace):
    flat = {name: trace.posterior[name].values[1, 17] for name in ("a", "b")}
    u = model.parameters.coordinates(flat)
    np.testing.assert_allclose(trace.posterior["product"].values[1, 17], flat["b"].prod())
    np.testing.assert_allclose(trace.sample_stats["lp"].values[1, 17], model.log_density(u), rtol=1e-9)
    stored = [np.ravel(trace.unconstrained_posterior[name].values[1, 17]) for name in ("a", "b")]
    np.testing.assert_allclose(np.concatenate(stored), u, atol=1e-9)
    np.testing.assert_array_equal(trace.observed_data["y"], model.observed["y"])


def test_same_seed_same_draws_whatever_the_cores_and_calls(model, trace, monkeypatch):
    again = tr.sample(model, draws=200, warmup=200, chains=3, seed=5, **QUIET)
    np.testing.assert_array_equal(again.posterior["a"], trace.posterior["a"])
    other = tr.sample(model, draws=200, warmup=200, chains=3, seed=6, **QUIET)
    assert not np.array_equal(other.posterior["a"], trace.posterior["a"])
    # Calls of other lengths cut the run at other places, and nothing else.
    monkeypatch.setattr(tr.runs, "SECONDS_PER_CALL", 1e-4)
    cut = tr.sample(model, draws=200, warmup=200, chains=3, seed=5, **QUIET)
    np.testing.assert_array_equal(cut.posterior["a"], trace.posterior["a"])


def test_options_of_the_result(model, trace):
    result = tr.sample(
        model, draws=200, warmup=200, chains=3, seed=5, thin=4, keep=["a", "product"], save_warmup=True, **QUIET
    )
    assert list(result.posterior.data_vars) == ["a", "product"]
    np.testing.assert_array_equal(result.posterior["a"], trace.posterior["a"][:, ::4])
    assert result.warmup_posterior.sizes["draw"] == 50 and "warmup_sample_stats" in result.children


def test_chains_agree_with_quadrature(model):
    """The posterior of this model on a grid: all but the ridge of b is linear."""
    trace = tr.sample(model, draws=2000, warmup=500, chains=4, seed=1, **QUIET)
    x, y = np.linspace(0, 1, 5), model.observed["y"]
    product = np.exp(np.linspace(-6, 6, 4001))
    log_prior = -(np.log(product) ** 2) / 4  # log of the product of two standard log-normals is N(0, 2)
    design = y[None] - product[:, None] * x
    precision = 1 + 5 / 0.01
    mean = design.sum(1) / 0.01 / precision
    log_weight = log_prior - 0.5 * (design**2).sum(1) / 0.01 + 0.5 * precision * mean**2
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    table = tr.summary(trace)
    for name, expected in {"a": weight @ mean, "product": weight @ product}.items():
        assert abs(table.loc[name, "mean"] - expected) < 4 * table.loc[name, "mcse_mean"]


@pytest.mark.parametrize("method", [tr.LiftedHMC(num_steps=3, step_size=0.3), "lifted-hmc"])
def test_static_trajectories(model, method):
    trace = tr.sample(model, draws=100, warmup=100, chains=2, method=method, **QUIET)
    assert trace.posterior.attrs["method"] == "lifted-hmc"
    sizes = trace.sample_stats["step_size"].values
    if not isinstance(method, str):
        assert (trace.sample_stats["n_steps"] <= 3).all() and sizes.min() >= 0.24 and sizes.max() <= 0.36
    assert (np.diff(trace.sample_stats["lp"]) != 0).mean() > 0.5


def test_shared_step_size(model):
    trace = tr.sample(model, draws=20, warmup=100, chains=4, method=tr.LiftedNUTS(shared_step_size=True), **QUIET)
    assert len(np.unique(trace.sample_stats["step_size"])) == 1


def test_time_limit_returns_what_there_is(model):
    trace = tr.sample(model, draws=10**7, warmup=50, chains=2, max_time=10.0, **QUIET)
    assert 0 < trace.posterior.sizes["draw"] < 10**7
    assert np.isfinite(trace.posterior["a"]).all()


def test_time_that_ends_in_warmup_is_explained(model):
    with pytest.raises(RuntimeError, match="warm-up iterations, so there are no draws: raise max_time"):
        tr.sample(model, warmup=10**7, chains=2, max_time=0.5, **QUIET)
    trace = tr.sample(model, warmup=10**7, chains=2, max_time=10.0, save_warmup=True, **QUIET)
    with pytest.raises(tr.InputError, match="no draws to sum up"):
        tr.summary(trace)
    assert set(trace.children) >= {"warmup_posterior", "warmup_sample_stats"} and "posterior" not in trace.children


def test_time_that_ends_before_the_first_iteration_is_explained(model, tmp_path):
    for save_warmup in (False, True):
        with pytest.raises(RuntimeError, match="after 0 of 20 warm-up iterations, so there are no draws"):
            tr.sample(model, warmup=20, chains=2, max_time=1e-9, save_warmup=save_warmup, **QUIET)
    with pytest.raises(RuntimeError, match="has no draws yet"):
        tr.sample(model, draws=20, warmup=20, chains=2, max_time=1e-9, store=tmp_path / "run", **QUIET)
    assert tr.resume(tmp_path / "run", model, progress=False).posterior.sizes["draw"] == 20


def test_interrupt_returns_what_there_is_at_once(model, monkeypatch):
    monkeypatch.setattr(sampling.diagnostics, "warn", lambda trace: pytest.fail("looked at all draws after Ctrl-C"))

    def press():
        time.sleep(1.0)
        signal.raise_signal(signal.SIGINT)

    original = tr.sampling.Run.stage
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C

    def stage(self, progress, stop):
        if stop > 50:
            threading.Thread(target=press, daemon=True).start()
        return original(self, progress, stop)

    tr.sampling.Run.stage = stage
    try:
        trace = tr.sample(model, draws=10**7, warmup=50, chains=2, **QUIET)
    finally:
        tr.sampling.Run.stage = original
        signal.signal(signal.SIGINT, handler)
    assert 0 < trace.posterior.sizes["draw"] < 10**7


def test_trace_starts_another_run(model, trace):
    more = tr.sample(model, draws=20, warmup=20, chains=3, init=trace, **QUIET)
    assert more.posterior.sizes["draw"] == 20


def test_trace_survives_a_file(trace, tmp_path):
    trace.to_netcdf(tmp_path / "trace.nc", engine="h5netcdf")
    import xarray as xr

    with xr.open_datatree(tmp_path / "trace.nc", engine="h5netcdf") as copy:
        np.testing.assert_array_equal(copy.posterior["a"], trace.posterior["a"])


def test_prediction_and_prior(model, trace):
    predicted = tr.predict(model, trace)
    assert predicted.posterior_predictive["y"].shape == (3, 200, 5)
    assert predicted.log_likelihood["y"].shape == (3, 200, 5)
    averages = trace.posterior.mean(("chain", "draw"))
    line = float(averages["a"]) + float(averages["product"]) * np.linspace(0, 1, 5)
    error = 0.1 / np.sqrt(600)
    assert abs(predicted.posterior_predictive["y"].mean(("chain", "draw")) - line).max() < 5 * error
    before = tr.prior(model, draws=50)
    assert before.prior["b"].shape == (1, 50, 2) and before.prior_predictive["y"].shape == (1, 50, 5)


@pytest.mark.parametrize(
    ("forward", "bound"),
    [
        (lambda a: jnp.where(a > 0.5, jnp.nan, a), 0.5),
        (lambda a: a + 1e-300 * jnp.exp(jnp.exp(8 * a)), np.log(300 * np.log(10)) / 8),  # infinite a little further on
    ],
    ids=["nan", "overflow"],
)
def test_forward_that_fails_in_part_of_the_space_is_counted(forward, bound):
    """What is left is the posterior up to there."""
    wall = tr.Model(
        priors={"a": dist.Normal(0, 1)},
        forward=lambda p: forward(p["a"]) * jnp.ones(3),
        noise_scale=1.0,
        observed=[0.6, 0.4, 0.5],
    )
    trace = tr.sample(wall, draws=500, warmup=200, chains=2, **QUIET)
    assert trace.sample_stats["non_finite"].sum() > 50
    left = stats.truncnorm(-np.inf, (bound - 0.375) / 0.5, 0.375, 0.5)
    a = trace.posterior["a"].values
    assert a.max() <= bound + 1e-3
    error = left.std() / np.sqrt(float(tr.summary(trace)["ess_bulk"].min()))
    assert abs(a.mean() - left.mean()) < 4 * error


def test_a_chain_that_is_stuck_ends_the_run(model):
    with pytest.raises(tr.SamplingError, match=r"chains \[0, 1\] did not move once in 20 iterations of warm-up: .*;"):
        tr.sample(model, draws=20, warmup=20, chains=2, method=tr.LiftedNUTS(step_size=1e6), **QUIET)


@pytest.mark.slow
def test_a_warmup_of_one_iteration_says_nothing_about_being_stuck(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        assert tr.sample(model, draws=5, warmup=1, chains=2, **QUIET).posterior.sizes["draw"] == 5


def test_warnings_come_with_advice(model):
    with pytest.warns(tr.SamplingWarning, match="raise draws"):
        tr.sample(model, draws=30, warmup=30, chains=2, **QUIET)


def test_a_chain_that_never_moves_is_reported(model):
    with pytest.warns(tr.SamplingWarning, match="never moved"):
        tr.sample(model, draws=20, warmup=0, chains=2, method=tr.LiftedNUTS(step_size=1e6), **QUIET)


@pytest.mark.parametrize("method", [tr.LiftedNUTS(), tr.NUTS()])
@pytest.mark.parametrize("may_move", [True, False])
def test_a_chain_in_a_mode_without_mass_is_moved_unless_its_start_was_given(method, may_move):
    """There are modes at -2 and 4; the prior makes the second e^6 times as small as the first."""
    model = tr.Model({"x": dist.Normal()}, lambda p: (p["x"] - 1) ** 2, observed=np.array(9.0), noise_scale=1e-3)
    run = sampling.Run(model, method, 200, 20, chains=3, cores=1, key=jr.key(1), may_move=may_move)
    with Progress(False) as quiet:
        run.begin(Start(np.array([[4.0], [-2.0], [4.0]]), is_rough=False))
        run.warm_up(quiet)
    np.testing.assert_allclose(run.places()[:, 0], [-2, -2, -2] if may_move else [4, -2, 4], atol=0.01)


def test_there_is_always_a_chain_to_go_on_from():
    """One is on a hill too low to be of the other's mode, which is a needle and has no mass."""
    z = np.random.default_rng(0).normal(size=(2, 100))
    info = lambda lp: Info(**{name: np.zeros_like(lp) for name in Info._fields} | {"lp": lp})
    lp = np.array([[0.0], [40.0]]) - z**2 / 2
    rows = np.concatenate([(z * [[1.0], [1e-30]])[..., None], 0 * z[..., None], np.stack(info(lp), -1)], axis=-1)
    model = SimpleNamespace(d=1, m=1)
    run = SimpleNamespace(num_chains=2, stage_start=0, stage_stop=100, may_move=True, model=model, draws=lambda: rows)
    with Progress(False) as quiet:
        np.testing.assert_array_equal(sampling.Run.donors(run, quiet), [1, 1])


@pytest.mark.parametrize(("allowed", "is_exact"), [(-1.0, True), (1e9, False)])
def test_exact_force_takes_over_where_the_stand_in_misses(model, monkeypatch, allowed, is_exact):
    monkeypatch.setattr(kinds, "MAX_SURROGATE_ERROR", allowed)
    run = sampling.Run(model, tr.LiftedNUTS(), warmup=80, draws=20, chains=2, cores=2, key=jr.key(1))
    with Progress(False) as quiet:
        run.begin(sampling.find_start(model, "auto", run.find_key, 2))
        run.warm_up(quiet)
        run.draw(quiet, 20)
    assert (run.tuning.force is None) == is_exact
    assert all(len(rows) == 100 and np.isfinite(rows).all() for rows in run.draws())


def test_a_stand_in_gives_way_at_the_last_window_alone(model):
    rng = np.random.default_rng(1)
    u, log_volume = rng.normal(size=(60, 3)), 2 * rng.normal(size=60)
    window = lambda is_last: kinds.Window(u, log_volume, 0.3, is_last)
    force = lambda method, is_last: method.retuned(method.initial_tuning(model), window(is_last)).tuning.force
    assert force(tr.LiftedNUTS(), is_last=False) is not None
    assert force(tr.LiftedNUTS(), is_last=True) is None
    assert force(tr.LiftedNUTS(force="surrogate"), is_last=True) is not None


def test_lengths_are_learnt_where_steps_are_short_and_before_the_stand_in(model):
    """With other lengths the log volume is another: what was fitted before would not hold."""
    rng = np.random.default_rng(2)
    method, spread = tr.LiftedNUTS(), np.array([0.01, 0.5, 2.0])
    u = spread * rng.normal(size=(2000, 3))
    short = kinds.Window(u, 3 * u[:, 0], 0.01, is_last=False)
    first = method.initial_tuning(model.condition())
    learnt = method.retuned(first, short).tuning
    np.testing.assert_array_equal(learnt.lengths, [2**-7, 0.5, 2.0])
    assert learnt.force is first.force
    last = method.retuned(first, short._replace(is_last=True)).tuning  # too late for other lengths
    assert (last.lengths == 1).all() and last.force is not first.force
    fitted = method.retuned(learnt, short._replace(log_volume=3 * u[:, 0] / spread[0], is_last=True)).tuning
    assert fitted.lengths is learnt.lengths
    np.testing.assert_allclose(fitted.force.linear, [3 * 2**-7 / spread[0], 0, 0], atol=0.01)

    long = short._replace(step_size=0.3)
    assert (method.retuned(first, long).tuning.lengths == 1).all()
    assert (method.retuned(first, short._replace(u=u[:10])).tuning.lengths == 1).all()  # ten draws tell too little
    assert (tr.LiftedNUTS(metric="diagonal").retuned(first, long).tuning.lengths == learnt.lengths).all()
    assert tr.LiftedNUTS(metric="identity").initial_tuning(model.condition()).lengths is None
    assert tr.LiftedNUTS(frame="wide").initial_tuning(model.condition()).lengths is None
    assert tr.LiftedNUTS(step_size=0.01).initial_tuning(model.condition()).lengths is None


def test_lengths_change_no_posterior():
    """Of a linear model, whose posterior is known; the draws are those of u again."""
    A = np.array([[30.0, 1.0], [0.0, 0.5], [10.0, 0.0]])
    y = np.array([3.0, 1.0, 0.0])
    linear = tr.Model({"a": dist.Normal(0, 1).expand([2])}, lambda p: A @ p["a"], 1.0, y)
    covariance = np.linalg.inv(np.eye(2) + A.T @ A)
    trace = tr.sample(linear, 1000, 400, 4, 1, method=tr.LiftedNUTS(metric="diagonal"), **QUIET)
    draws, sd = trace.posterior["a"].values, np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(draws.mean((0, 1)) / sd, covariance @ A.T @ y / sd, atol=0.15)
    np.testing.assert_allclose(draws.std((0, 1)), sd, rtol=0.1)
    with pytest.raises(tr.InputError, match='metric="diagonal" is not for frame="markov"'):
        tr.LiftedNUTS(metric="diagonal").initial_tuning(tr.zoo.load("nonlinear-ssm", T=5).condition())


def test_a_run_that_gave_up_its_stand_in_can_be_restored(model):
    method = tr.LiftedNUTS()
    whole = method.initial_tuning(model.condition())
    exact = whole._replace(force=None)
    assert method.saved_like(whole, len(jax.tree.leaves(whole))) is whole
    assert method.saved_like(whole, len(jax.tree.leaves(exact))).force is None
    with pytest.raises(tr.InputError, match="an older Tightrope"):
        method.saved_like(whole, 3)


def test_lengths_make_long_steps_where_the_posterior_is_far_narrower_than_the_prior_and_bent():
    """A narrow ridge that turns back: where the residual is the square of a coordinate, its Jacobian says nothing."""
    x = np.linspace(-1, 1, 5)
    forward = lambda p: jnp.asarray(x) * (p["a"] + 300 * p["b"] ** 2) + p["c"]
    bent = tr.Model({name: dist.Normal(0, 1) for name in "abc"}, forward, 1.0, np.zeros(5))
    sizes = {}
    for metric in ("identity", "auto"):
        trace = tr.sample(bent, 200, 400, 2, 1, method=tr.LiftedNUTS(metric=metric), progress=False)
        sizes[metric] = float(trace.sample_stats.step_size.mean())
    assert sizes["auto"] > 3 * sizes["identity"], sizes


def test_the_force_is_the_gradient_of_all_but_what_it_misses(model):
    rng = np.random.default_rng(3)
    lifted = model.condition()
    u, direction, linear, root = *rng.normal(size=(3, lifted.d)), rng.normal(size=(lifted.d, lifted.d))
    force = Approximate(jnp.array(0.3), jnp.asarray(linear), jnp.asarray(root + root.T))

    @partial(jax.jit, static_argnums=0)
    def slopes(frame, force):
        """Along a direction: of the energy that the force follows, and what the force says."""
        system = Lifted(lifted, frame, force)
        followed = lambda point: (point.potential - point.missed, point.e)
        _, (slope, along) = jax.jvp(lambda u: followed(system.at(u)), (u,), (direction,))
        return slope, system.at(u).gradient @ jnp.concatenate([direction, along])

    for frame, known in ((Tall, force), (Wide, force), (Tall, None)):
        np.testing.assert_allclose(*slopes(frame, known), rtol=1e-9)
    for frame in (Tall, Wide):
        by_differences, exact = (slopes(frame, known)[1] for known in (Differences(), None))
        np.testing.assert_allclose(by_differences, exact, rtol=1e-2)
        assert by_differences != exact


def test_models_that_prefer_first_derivatives_get_differences(model):
    """In place of the exact force: where that is the first choice, or takes over from a stand-in."""
    exact = kinds.LiftedTuning(lengths=None, force=None)
    force = lambda model, **options: tr.LiftedNUTS(**options).integrator(model.condition(), exact).system.force
    forward = lambda p: model.observations.forward(p)
    forward.prefers_first_derivatives = True
    slow = tr.Model(model.parameters.priors, forward, 0.1, next(iter(model.observed.values())))
    assert force(slow) == Differences() and force(model) is None
    assert force(slow, force="exact") is None
    assert force(model, force="differences") == Differences()
    assert tr.LiftedNUTS().force_name(slow.condition()) == "surrogate"
    assert tr.LiftedNUTS(frame="wide").force_name(slow.condition()) == "differences"


def test_step_sizes_answer_to_what_the_force_knows_of():
    """Else none would be short enough where a stand-in is bad. A linear model, so that no projection fails."""
    d = 10
    A = np.random.default_rng(0).normal(size=(2 * d, d))
    linear = tr.Model({"a": dist.Normal(0, 1).expand([d])}, lambda p: A @ p["a"], 3.0, np.zeros(2 * d))
    bad = kinds.LiftedTuning(None, Approximate(jnp.array(1.0), jnp.full(d, 0.5), jnp.zeros((d, d))))
    kind = type("Bad", (tr.LiftedNUTS,), {"initial_tuning": lambda method, model: bad})
    method = kind(force="cheap", metric="identity")
    trace = tr.sample(linear, draws=300, warmup=600, chains=2, seed=1, method=method, **QUIET)
    means = trace.sample_stats.mean()
    assert means["step_acceptance"] == pytest.approx(0.8, abs=0.05) and means["acceptance_rate"] < 0.7
    assert means["step_size"] > 0.5


def test_a_projection_that_fails_counts_for_more_than_a_rejection():
    """But for less where the trajectory had come far. An acceptance that is the target counts as such."""
    infos = SimpleNamespace(
        step_acceptance=jnp.array([0.0, 0.0, 0.0, 0.7, 0.0]),
        projection_failed=jnp.array([1, 0, 0, 0, 1]),
        non_reversible=jnp.array([0, 2, 0, 0, 0]),
        n_steps=jnp.array([3, kinds.FAR, 1, 7, 4 * kinds.FAR]),
    )
    reached, target = tr.LiftedNUTS(target_accept=0.7).aim(infos)
    np.testing.assert_allclose(reached, [0.0, 0.0, 0.6, target, 0.75 * target])
    reached, target = tr.NUTS(target_accept=0.7).aim(infos)
    np.testing.assert_allclose(reached, [0.0, 0.0, 0.0, target, 0.0])


def test_trees_are_short_early_in_warmup(model):
    method = tr.LiftedNUTS(step_size=0.02, max_depth=6)
    trace = tr.sample(model, draws=2, warmup=20, chains=2, seed=1, method=method, save_warmup=True, **QUIET)
    depth = trace["warmup_sample_stats"]["tree_depth"].values
    assert (depth[:, :5] == 4).all()
    assert (depth[:, 5:] > 4).any()


@pytest.mark.parametrize("init", ["auto", "prior"])
def test_chains_left_behind_in_a_far_worse_mode_are_moved(monkeypatch, init):
    """The start is ours to choose with "auto" alone."""
    forward = lambda p: jnp.stack([p["a"] ** 2, 0.2 * p["a"]])
    model = tr.Model({"a": dist.Normal(0.0, 1.0)}, forward, 0.01, [1.0, 0.2])
    start = Start(np.array([[1.0], [-1.0], [1.0], [-1.0]]), is_rough=False)
    monkeypatch.setattr(sampling, "find_start", lambda *args: start)
    means = tr.sample(model, 50, 100, progress=False, init=init).posterior["a"].mean("draw")
    np.testing.assert_allclose(means, [1, 1, 1, 1] if init == "auto" else [1, -1, 1, -1], atol=0.1)
