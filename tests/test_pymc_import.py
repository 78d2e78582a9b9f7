"""Models of PyMC: the same density, the same draws, or a sentence on why not."""

import re
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from cases import slow_but

import tightrope as tr

pm = pytest.importorskip("pymc", reason="PyMC is missing: pip install 'tightrope[pymc]'")

import pymc.dims  # noqa: E402
import pytensor  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from pymc.distributions.transforms import Interval, log_exp_m1, ordered  # noqa: E402
from pymc.model.transform.conditioning import remove_value_transforms  # noqa: E402
from pytensor.compile.mode import Mode  # noqa: E402
from pytensor.graph.op import Op  # noqa: E402

SCHOOLS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
SPREAD = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
X = np.linspace(0.1, 2.0, 6)
FIELD = np.sin(np.arange(12.0)).reshape(4, 3)
FACTOR = np.array([[1.0, 0.0, 0.0], [0.5, 0.8, 0.0], [-0.3, 0.2, 0.5]])
POSITIVE = np.array([1.2, 0.7, 1.9, 3.1, 2.2, 0.4])
SLOW = Mode(linker="py", optimizer="fast_compile")  # in Python: there is nothing to compile


def every_prior():
    pm.Normal("normal", 1, 2, shape=2)
    pm.HalfNormal("half_normal", 0.3, size=(2, 1))
    pm.LogNormal("log_normal", [0.1, 0.2], 0.5)
    pm.Uniform("uniform", -1, [1, 2])
    pm.Gamma("gamma", 2, 3, shape=3)
    pm.InverseGamma("inverse_gamma", 3, 2)
    pm.Beta("beta", 2, 1.5)
    pm.Exponential("exponential", 2, default_transform=log_exp_m1)
    pm.Cauchy("cauchy", 0.2, 0.5)
    pm.HalfCauchy("half_cauchy", 0.5)
    pm.StudentT("student", 5, 0.1, sigma=0.5)
    pm.HalfStudentT("half_student", 5, 0.5)
    pm.Laplace("laplace", 0.1, 0.5)
    pm.Logistic("logistic", 0.1, 0.5)
    pm.Gumbel("gumbel", 0.1, 0.5)
    pm.Weibull("weibull", 2, 0.5)
    pm.Pareto("pareto", 3, 0.5)
    pm.Kumaraswamy("kumaraswamy", 2, 3)
    pm.TruncatedNormal("between", 0.5, 1, lower=0, upper=[2, 3])
    pm.Truncated("below", pm.Normal.dist(0, 2), upper=1)
    pm.MvNormal("precision", 0, tau=FACTOR @ FACTOR.T, shape=(2, 3))
    share = pm.Dirichlet("share", [2.0, 1.0, 3.0])
    pm.Normal("y", share, 1, observed=[0.1, 0.2, 0.3])


def given_others():
    mu = pm.Normal("mu", 0, 1)
    tau = pm.LogNormal("tau", 0, 0.5, shape=2)
    theta = pm.Normal("theta", mu, tau, shape=(3, 2))
    width = pm.Uniform("width", mu, mu + tau[0])
    above = pm.TruncatedNormal("above", mu, tau, lower=mu - 0.1)
    rate = pm.Gamma("rate", mu=tau, sigma=0.1 + theta[0] ** 2)
    walk = pm.MvNormal("walk", pt.stack([mu, width]), chol=pt.stack([[tau[0], 0], [mu, tau[1]]]))
    same = pm.Normal("same", shape=theta.shape)
    pm.Normal("y", (theta + same).sum(0) + above * rate + walk, tau, observed=[1.0, 2.0])


def every_law():
    mu = pm.Normal("mu", 0, 1)
    scale = pm.LogNormal("scale", 0, 1)
    df = pm.Gamma("df", 2, 0.1)
    pm.Normal("normal", 0.5 * mu * X, scale, observed=POSITIVE)
    pm.LogNormal("log_normal", mu, scale * X, observed=POSITIVE)
    pm.StudentT("student", df + X, mu, sigma=scale, observed=POSITIVE)
    pm.Laplace("laplace", mu, scale, observed=POSITIVE)
    pm.Logistic("logistic", mu, scale, observed=POSITIVE)
    pm.Cauchy("cauchy", mu, scale, observed=POSITIVE)
    pm.Gumbel("gumbel", mu, scale, observed=POSITIVE)
    pm.MvNormal("covariance", mu, FACTOR @ FACTOR.T, observed=FIELD)
    pm.MvNormal("factor", pt.stack([mu, scale, mu]), chol=scale * FACTOR, observed=FIELD)
    pm.Normal("number", mu, scale, observed=3)


def missing():
    """What is missing is imputed: there are free variables in its place."""
    mu = pm.Normal("mu", 0, 1)
    sigma = pm.HalfNormal("sigma", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = pm.Normal("y", mu * X, sigma, observed=np.where(X > 1, np.nan, X))
        pm.StudentT("z", 4, y[::3], sigma=0.1, observed=np.ma.masked_array([1.0, 2.0], [False, True]))


def steps():
    """An ODE, seen through noise that multiplies, with data that may be set."""
    seen = pm.Data("seen", np.full((4, 2), 0.8))
    rates = pm.LogNormal("rates", [0.0, -1.0], 0.3)
    sigma = pm.LogNormal("sigma", -2, 0.5)
    advance = lambda x, rates: x + 0.1 * pt.stack([x[0] * (rates[0] - x[1]), x[1] * (rates[1] * x[0] - 1)])
    start = pt.constant([1.0, 0.5])
    path = pytensor.scan(advance, outputs_info=start, non_sequences=rates, n_steps=20, return_updates=False)
    y = pm.LogNormal("y", pm.math.log(path[::5]), sigma, observed=seen)
    pm.Deterministic("ratio", y / path[::5])


def schools():
    mu = pm.Normal("mu", 0, 5)
    tau = pm.HalfCauchy("tau", 5)
    z = pm.Normal("z", dims="school")
    theta = pm.Deterministic("theta", mu + tau * z, dims="school")
    pm.Normal("y", theta, SPREAD, observed=SCHOOLS, dims="school")


COORDS = {"school": list("ABCDEFGH"), "unused": [1, 2]}
CORRELATED = ("precision", "walk", "share")
MODELS = (every_prior, given_others, every_law, missing, steps)


def built(program, coords=None):
    with pm.Model(coords=coords) as model:
        program()
    return model


@pytest.mark.parametrize("program", slow_but(MODELS[1:], MODELS), ids=lambda program: program.__name__)
def test_the_density_is_that_of_pymc(program):
    theirs = built(program, COORDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = tr.from_pymc(theirs)
    parameters = model.parameters

    def ours(u):
        params, log_slopes = {}, 0.0
        for name, part in parameters.split(u).items():
            value = parameters.map_of(name, params).value
            params[name], slopes = jax.jvp(value, (part,), (jnp.ones_like(part),))
            if name in CORRELATED:  # of three that sum to one, two are free
                slopes = jnp.linalg.det(jax.jacfwd(lambda part: value(part).ravel()[: len(part)])(part))  # noqa: B023
            log_slopes += jnp.log(jnp.abs(slopes)).sum()
        likelihood = sum(part.sum() for part in model.observations.pointwise(params, model.data).values())
        return params, jnp.stack([model.log_density(u) - likelihood - log_slopes, likelihood])

    compiled = jax.jit(ours)
    params, found = zip(*[compiled(0.8 * jr.normal(jr.key(i), (model.d,))) for i in range(3)], strict=True)
    plain = remove_value_transforms(theirs)
    logp = plain.compile_fn([plain.varlogp, plain.observedlogp], inputs=plain.value_vars, mode=SLOW)
    names = {value.name: plain.values_to_rvs[value].name for value in plain.value_vars}
    points = [{value: np.asarray(point[name]) for value, name in names.items()} for point in params]
    found, expected = np.array(found), np.array([logp(point) for point in points])
    assert np.isfinite(expected).all() and np.ptp(expected[:, 0]) > 0.1
    # In some of PyMC's densities a constant, such as log 2, has single precision.
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_dimensions_coordinates_and_deterministics_stay():
    model = tr.from_pymc(built(schools, COORDS))
    assert model.parameters.names == ["mu", "tau", "z"] and list(model.derived) == ["theta"]
    assert model.coords == {"school": list("ABCDEFGH")}
    assert model.dims == {"z": ["school"], "theta": ["school"], "y": ["school"]}
    assert list(tr.from_pymc(built(missing)).derived) == ["y", "z"]


def test_only_variables_that_depend_on_others_have_conditional_priors():
    priors = tr.from_pymc(built(given_others)).parameters.priors
    assert [name for name, prior in priors.items() if isinstance(prior, dist.Distribution)] == ["mu", "tau", "same"]


def test_data_are_those_that_are_set():
    theirs = built(steps)
    with theirs:
        pm.set_data({"seen": np.full((4, 2), 0.3)})
    assert (tr.from_pymc(theirs).observed["y"] == 0.3).all()


def test_draws_of_a_linear_model_have_its_posterior():
    x = np.stack([np.ones(6), X], axis=1)
    y = x @ [1.0, -2.0] + 0.1 * np.cos(9 * X)
    with pm.Model(coords={"term": ["constant", "slope"]}) as theirs:
        beta = pm.Normal("beta", 0, 2, dims="term")
        pm.Deterministic("double", 2 * beta, dims="term")
        pm.Normal("y", x @ beta, 0.1, observed=y)
    precision = x.T @ x / 0.1**2 + np.eye(2) / 2**2
    mean, variances = np.linalg.solve(precision, x.T @ y / 0.1**2), np.diag(np.linalg.inv(precision))
    trace = tr.sample(tr.from_pymc(theirs), 1000, 500, chains=4, seed=1, cores=2, progress=False)
    draws = trace["posterior"]
    assert list(draws["double"]["term"].values) == ["constant", "slope"]
    np.testing.assert_array_equal(draws["double"].values, 2 * draws["beta"].values)
    check_moments(draws["beta"].values, mean, variances)


def check_moments(draws, mean, variance):
    """Mean and variance of draws are within 4 standard errors, from 40 batches, of what they should be."""
    assert len(np.unique(draws[..., 0])) > 0.5 * draws[..., 0].size
    for values, expected in ((draws, mean), ((draws - mean) ** 2, variance)):
        batches = [batch.mean(0) for chain in values for batch in np.array_split(chain, 40 // len(draws))]
        error = np.std(batches, axis=0, ddof=1) / np.sqrt(len(batches))
        distance = np.abs(values.mean((0, 1)) - expected) / error
        assert distance.max() < 4, distance


def test_the_example_walks_along_the_ridge():
    page = (Path(__file__).parent.parent / "docs" / "pymc.md").read_text()
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    names = {}
    exec(example.replace("seed=1", "seed=1, cores=2, progress=False"), names)
    draws = names["trace"]["posterior"]
    # The product of the two is known, to a few parts in 10^4. Given that, the log of either is N(log(2) / 2, 1/2).
    logs = np.log(draws["a"].values)
    assert 1e-5 < logs.sum(-1).std() < 3e-4
    check_moments(logs, np.log(2) / 2, 0.5)
    assert draws["mean"].dims == ("chain", "draw", "time") and float(draws["mean"]["time"][0]) == 0.1
    assert tr.predict(names["model"], names["trace"])["log_likelihood"]["y"].dims == ("chain", "draw", "time")


def seen(law, *args, observed=1.0, **options):
    """A model of observations with a law whose parameters are made of a Normal."""

    def program():
        a = pm.Normal("a")
        law("y", *(arg(a) for arg in args), observed=observed, **options)

    return program


def free(law, *args, **options):
    """A model with another free variable."""

    def program():
        a = pm.Normal("a")
        law("b", *args, **options)
        pm.Normal("y", a, 1, observed=1.0)

    return program


def with_potential():
    seen(pm.Normal, lambda a: a)()
    pm.Potential("wall", -(pm.modelcontext(None)["a"] ** 2))


def minibatch():
    y = pm.Minibatch(np.ones(20), batch_size=4)
    a = pm.Normal("a")
    pm.Normal("y", a, 1, observed=y, total_size=20)


def drawn_anew():
    a = pm.Normal("a")
    pm.Normal("y", a + pm.Normal.dist(), 1, observed=1.0)


def censored():
    a = pm.Normal("a")
    pm.Censored("y", pm.Normal.dist(a, 1), lower=0, upper=None, observed=1.0)


def partly_missing():
    a = pm.Normal("a")
    y = np.where(np.arange(12).reshape(4, 3) == 5, np.nan, FIELD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pm.MvNormal("y", a, np.eye(3), observed=y)


class Simulator(Op):
    itypes, otypes = (pt.dscalar,), (pt.dscalar,)

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0]


def outside_jax():
    pm.Normal("y", Simulator()(pm.Normal("a")), 1, observed=1.0)


def with_dims():
    pymc.dims.Normal("a")
    pm.Normal("y", 0, 1, observed=1.0)


def nothing_seen():
    pm.Normal("a")


def nothing_free():
    pm.Normal("y", 0, 1, observed=1.0)


def infinite_data():
    y = pm.Data("data", [1.0, np.inf])
    pm.Normal("y", pm.Normal("a"), 1, observed=y)


REFUSALS = {
    "discrete": (free(pm.Poisson, 3), '"b" is discrete .Poisson'),
    "flat": (free(pm.Flat), '"b": the prior Flat is improper'),
    "unknown prior": (free(pm.SkewNormal, 2), '"b": the prior SkewNormal is not translated.*Normal, LogN'),
    "own prior": (free(pm.CustomDist, 0.0, logp=lambda x, a: -((x - a) ** 2)), '"b": the prior CustomDist_b is not'),
    "ordered": (free(pm.Normal, shape=2, transform=ordered, initval=[0, 1]), '"b": the transform .* changes its prior'),
    "other bounds": (
        free(pm.Uniform, 0, 1, default_transform=Interval(0, 0.5)),
        '"b": the transform interval changes its prior',
    ),
    "impossible prior": (free(pm.Normal, 0, -1), '"b": .*invalid scale'),
    "Poisson": (seen(pm.Poisson, lambda a: pm.math.exp(a), observed=3), '"y": .* Poisson cannot be lifted.*StudentT'),
    "Bernoulli": (seen(pm.Bernoulli, pm.math.sigmoid, observed=1), '"y": .* Bernoulli cannot be lifted'),
    "Gamma": (seen(pm.Gamma, lambda a: a**2, lambda a: 1), '"y": .* Gamma cannot be lifted'),
    "censored": (censored, '"y": .* Censored.* cannot be lifted'),
    "potential": (with_potential, '"wall" is a pm.Potential'),
    "minibatch": (minibatch, '"y" is a minibatch'),
    "drawn anew": (drawn_anew, '"y" depends on numbers that are drawn anew'),
    "partly missing": (partly_missing, '"y_observed": entries that are missing'),
    "outside JAX": (outside_jax, '"y" needs what PyTensor cannot write in JAX'),
    "outside support": (seen(pm.LogNormal, lambda a: a, observed=-1.0), '"y": 1 of its data are outside'),
    "shapes": (seen(pm.Normal, lambda a: a * np.ones(3), observed=np.ones(2)), '"y": .*shape'),
    "infinity": (infinite_data, '"y": 1 of its data are NaN or infinite'),
    "dims": (with_dims, '"a" is one of pymc.dims'),
    "no covariance": (free(pm.MvNormal, [0, 0], -np.eye(2)), '"b": '),
    "nothing observed": (nothing_seen, "no observed variable"),
    "nothing free": (nothing_free, "no free variable"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_translated_is_refused(name):
    program, message = REFUSALS[name]
    model = built(program)
    with pytest.raises(tr.InputError, match=message):
        tr.from_pymc(model)


def test_what_is_no_model_is_refused():
    with pytest.raises(tr.InputError, match=r"model must be a pymc\.Model, not function"):
        tr.from_pymc(schools)


def test_without_pymc_a_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymc", None)
    monkeypatch.delitem(sys.modules, "tightrope.importers.pymc", raising=False)
    monkeypatch.delattr(tr.importers, "pymc", raising=False)
    with pytest.raises(tr.InputError, match=r"needs PyMC.*pip install 'tightrope\[pymc\]'"):
        tr.from_pymc(None)
