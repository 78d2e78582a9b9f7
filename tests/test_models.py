"""Models: the density against priors and likelihoods written out, simulation, prediction, and what is refused."""

import functools
import warnings

import cloudpickle
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import tightrope as tr
from tightrope.parameters import Parameters, alike

NUM_ERRORS = 5  # standard errors allowed between a sample moment and its expectation

PRIORS = {
    "a": dist.Normal(0.5, 0.7),
    "b": dist.LogNormal(jnp.array([0.0, -0.3]), 0.5),
    "c": lambda p: dist.Uniform(p["a"] - 1, p["a"] + p["b"][0]),
    "s": dist.LogNormal(-1.0, 0.3),
    "t": dist.FoldedDistribution(dist.Normal(4.0, 1.0)),  # no map of a normal: a bijection with its Jacobian
}
TIMES = np.linspace(0.1, 1.0, 4)
Y = np.array([0.3, -0.2, 0.9, 1.4])
TABLE = np.arange(6.0).reshape(2, 3) / 3
MASK = np.array([True, False, True, True])
TABLE_MASK = np.array([[True, True, False], [False, True, True]])
SCALES = np.array([0.2, 0.5, 0.3, 1.0])
FACTOR = np.tril(np.array([[1.0, 0, 0, 0], [0.5, 0.8, 0, 0], [-0.3, 0.2, 1.1, 0], [0.1, 0.4, -0.6, 0.7]]))
COVARIANCE = FACTOR @ FACTOR.T


def curve(p):
    return p["a"] + p["b"][0] * jnp.sin(TIMES * p["c"]) + p["b"][1] * TIMES


def sheet(p):
    return p["a"] * jnp.arange(1.0, 3.0)[:, None] + jnp.stack([p["b"][0], p["b"][1], p["c"]])


def blocks(p):
    return {"curve": curve(p), "sheet": sheet(p), "point": p["c"] ** 2}


def kernel(p):
    """The covariance of an Ornstein-Uhlenbeck process."""
    return jnp.exp(-jnp.abs(TIMES[:, None] - TIMES) * p["t"])


def normal(p, loc, scale, y):
    return dist.Normal(loc, scale).log_prob(y).sum()


def correlated(p, covariance, kept=slice(None)):
    """A multivariate normal likelihood of those data that are kept."""
    covariance = covariance[kept][:, kept]
    return dist.MultivariateNormal(curve(p)[kept], covariance).log_prob(Y[kept])


def with_nan(values, mask):
    return np.where(mask, values, np.nan)


OBSERVED_BLOCKS = {"curve": Y, "sheet": TABLE, "point": 0.7}

# What the model is given, and the log-likelihood written out.
CASES = {
    "scale-name": (dict(noise_scale="s"), lambda p: normal(p, curve(p), p["s"], Y)),
    "scale-number": (dict(noise_scale=0.3), lambda p: normal(p, curve(p), 0.3, Y)),
    "scale-array": (dict(noise_scale=SCALES), lambda p: normal(p, curve(p), SCALES, Y)),
    "scale-function": (
        dict(noise_scale=lambda p: p["s"] * (1 + TIMES * p["t"])),
        lambda p: normal(p, curve(p), p["s"] * (1 + TIMES * p["t"]), Y),
    ),
    "scale-vector-name": (
        dict(forward=lambda p: sheet(p)[:, :2], noise_scale="b", observed=TABLE[:, :2]),
        lambda p: normal(p, sheet(p)[:, :2], p["b"], TABLE[:, :2]),
    ),
    "student": (
        dict(noise_scale="s", noise=dist.StudentT(4.0)),
        lambda p: dist.StudentT(4.0, curve(p), p["s"]).log_prob(Y).sum(),
    ),
    "laplace": (
        dict(noise_scale=SCALES, noise=dist.Laplace(0.0, 1.0)),
        lambda p: dist.Laplace(curve(p), SCALES).log_prob(Y).sum(),
    ),
    "logistic": (
        dict(noise_scale="s", noise=dist.Logistic(0.0, 1.0)),
        lambda p: dist.Logistic(curve(p), p["s"]).log_prob(Y).sum(),
    ),
    "law-with-location": (
        dict(noise_scale="s", noise=dist.Normal(0.5, 2.0)),
        lambda p: normal(p, curve(p) + 0.5 * p["s"], 2 * p["s"], Y),
    ),
    "law-function": (
        dict(noise_scale="s", noise=lambda p: dist.StudentT(2 + p["t"])),
        lambda p: dist.StudentT(2 + p["t"], curve(p), p["s"]).log_prob(Y).sum(),
    ),
    "cov": (dict(noise_scale=0.3, noise_cov=COVARIANCE), lambda p: correlated(p, 0.09 * COVARIANCE)),
    "cov-function": (dict(noise_scale="s", noise_cov=kernel), lambda p: correlated(p, p["s"] ** 2 * kernel(p))),
    "cov-scales": (
        dict(noise_scale=SCALES, noise_cov=COVARIANCE),
        lambda p: correlated(p, SCALES[:, None] * COVARIANCE * SCALES),
    ),
    "cov-mask": (
        dict(noise_scale=SCALES, noise_cov=COVARIANCE, mask=MASK, observed=with_nan(Y, MASK)),
        lambda p: correlated(p, SCALES[:, None] * COVARIANCE * SCALES, MASK),
    ),
    "cov-function-mask": (
        dict(noise_scale="s", noise_cov=kernel, mask=MASK),
        lambda p: correlated(p, p["s"] ** 2 * kernel(p), MASK),
    ),
    "tril": (dict(noise_scale="s", noise_tril=FACTOR), lambda p: correlated(p, p["s"] ** 2 * COVARIANCE)),
    "tril-function": (
        dict(noise_scale=1.0, noise_tril=lambda p: p["t"] * FACTOR),
        lambda p: correlated(p, p["t"] ** 2 * COVARIANCE),
    ),
    "tril-mask": (
        dict(noise_scale="s", noise_tril=lambda p: p["t"] * FACTOR, mask=MASK),
        lambda p: correlated(p, (p["s"] * p["t"]) ** 2 * COVARIANCE, MASK),
    ),
    "tril-student": (
        dict(noise_scale=0.3, noise_tril=FACTOR, noise=dist.StudentT(5.0)),
        lambda p: (
            dist.StudentT(5.0).log_prob(jnp.linalg.solve(0.3 * FACTOR, Y - curve(p))).sum()
            - jnp.linalg.slogdet(0.3 * FACTOR)[1]
        ),
    ),
    "sheet": (
        dict(forward=sheet, noise_scale="s", observed=TABLE),
        lambda p: normal(p, sheet(p), p["s"], TABLE),
    ),
    "sheet-mask": (
        dict(forward=sheet, noise_scale=[0.1, 0.2, 0.4], observed=with_nan(TABLE, TABLE_MASK), mask=TABLE_MASK),
        lambda p: jnp.where(TABLE_MASK, dist.Normal(sheet(p), jnp.array([0.1, 0.2, 0.4])).log_prob(TABLE), 0.0).sum(),
    ),
    "sheet-cov-mask": (
        dict(forward=lambda p: curve(p).reshape(2, 2), noise_scale="s", noise_cov=kernel)
        | dict(observed=with_nan(Y, MASK).reshape(2, 2), mask=MASK.reshape(2, 2)),
        lambda p: correlated(p, p["s"] ** 2 * kernel(p), MASK),
    ),
    "blocks": (
        dict(forward=blocks, noise_scale="s", observed=OBSERVED_BLOCKS),
        lambda p: sum(normal(p, blocks(p)[key], p["s"], OBSERVED_BLOCKS[key]) for key in OBSERVED_BLOCKS),
    ),
    "blocks-each-its-own": (
        dict(forward=blocks, observed={**OBSERVED_BLOCKS, "sheet": with_nan(TABLE, TABLE_MASK)})
        | dict(noise_scale={"sheet": lambda p: p["b"][0], "point": 0.2, "curve": "s"}, mask={"sheet": TABLE_MASK})
        | dict(noise={"sheet": dist.Laplace(), "curve": None, "point": lambda p: dist.StudentT(p["t"])})
        | dict(noise_cov={"curve": COVARIANCE, "sheet": None, "point": None}),
        lambda p: (
            correlated(p, p["s"] ** 2 * COVARIANCE)
            + jnp.where(TABLE_MASK, dist.Laplace(sheet(p), p["b"][0]).log_prob(TABLE), 0.0).sum()
            + dist.StudentT(p["t"], p["c"] ** 2, 0.2).log_prob(0.7)
        ),
    ),
    "multiplicative": (  # y = F exp(s eta)
        dict(observed=np.exp(Y), residual=lambda p, y: jnp.log(y / jnp.exp(curve(p))) / p["s"]),
        lambda p: dist.LogNormal(curve(p), p["s"]).log_prob(np.exp(Y)).sum(),
    ),
    "autoregressive": (  # y_i = F_i + phi (y_{i-1} - F_{i-1}) + s eta_i
        dict(residual=lambda p, y: autoregressive_noise(p, y)),
        lambda p: dist.MultivariateNormal(curve(p), autoregressive_covariance(p)).log_prob(Y),
    ),
    "residual-blocks": (
        dict(observed={"z": TABLE, "y": Y}, noise=lambda p: dist.StudentT(p["t"]))
        | dict(residual=lambda p, y: {"y": (y["y"] - curve(p)) / p["s"], "z": jnp.sinh(y["z"]) - y["y"].sum() * 0}),
        lambda p: (
            dist.StudentT(p["t"], curve(p), p["s"]).log_prob(Y).sum()
            + (dist.StudentT(p["t"]).log_prob(jnp.sinh(TABLE)) + jnp.log(jnp.cosh(TABLE))).sum()
        ),
    ),
}


def slope(p):
    return jnp.tanh(p["a"])


def autoregressive_noise(p, y):
    deviation = y - curve(p)
    return (deviation - slope(p) * jnp.pad(deviation[:-1], (1, 0))) / p["s"]


def autoregressive_covariance(p):
    """Var of a recursion from zero: s^2 sum_k phi^(i - k) phi^(j - k)."""
    lags = np.arange(4)[:, None] - np.arange(4)
    powers = jnp.where(lags >= 0, slope(p) ** jnp.maximum(lags, 0), 0.0)
    return p["s"] ** 2 * powers @ powers.T


def build(options):
    given = dict(priors=PRIORS, observed=Y) | options
    if "residual" not in options:
        given = dict(forward=curve) | given
    return tr.Model(**given)


@functools.cache
def drawn():
    """Coordinates, the parameters there, and the log prior density of the coordinates from that of the parameters."""
    parameters = Parameters(PRIORS)
    flat = lambda u: jnp.concatenate([jnp.ravel(value) for value in parameters.values(u).values()])

    def at(u):
        values = parameters.values(u)
        laws = {key: law if isinstance(law, dist.Distribution) else law(values) for key, law in PRIORS.items()}
        log_prob = sum(law.log_prob(values[key]).sum() for key, law in laws.items())
        return values, log_prob + jnp.linalg.slogdet(jax.jacfwd(flat)(u))[1]

    u = jr.normal(jr.key(0), (5, parameters.d))
    return u, *jax.jit(jax.vmap(at))(u)


@pytest.mark.parametrize("case", CASES)
def test_log_density_is_prior_and_likelihood(case):
    options, likelihood = CASES[case]
    model = build(options)
    u, values, prior = drawn()
    log_density, expected = jax.jit(jax.vmap(lambda u, p: (model.log_density(u), likelihood(p))))(u, values)
    np.testing.assert_allclose(log_density, prior + expected, rtol=1e-10)
    assert model.m == sum(mask.sum() for mask in model.mask.values())


def test_structure_of_the_residual_is_found():
    assert build(CASES["multiplicative"][0]).observations.structure == "elementwise"
    assert build(CASES["autoregressive"][0]).observations.structure == "triangular"


@pytest.mark.parametrize(
    "residual",
    [
        lambda p, y: (y - p["a"])[::-1],
        lambda p, y: y - y.mean() - p["a"],
        lambda p, y: jnp.linalg.solve(COVARIANCE, y) - p["a"],
        lambda p, y: y.at[2].add(1e-3 * p["a"] * y[3] ** 2),
    ],
)
def test_residual_that_looks_ahead_is_refused(residual):
    with pytest.raises(tr.InputError, match="residual: entry i of the noise may depend only on"):
        build(dict(residual=residual))


def test_rounding_is_that_of_the_data():
    y = np.array([[1e3, 5.0], [2.0, -1e6]])
    rounding = lambda model: jax.jit(lambda u: model.condition().lift(u).rounding)(jnp.zeros(model.d)) / 2.0**-52
    for mask, scale, largest in [(None, 1e-3, 1e9), (np.abs(y) < 1e6, 1e-3, 1e6), (None, [1e-9, 1.0], 1e12)]:
        model = tr.Model({"a": dist.Normal(0, 1)}, lambda p: p["a"] * jnp.ones((2, 2)), scale, y, mask=mask)
        np.testing.assert_allclose(rounding(model), largest, rtol=1e-12)
    model = build(CASES["multiplicative"][0])
    np.testing.assert_allclose(rounding(model), np.exp(1.0), rtol=1e-12)  # y de/dy = 1 / s, whatever y


# Parameters


MANY = {
    "n0": dist.Normal(0.0, 1.0),
    "free": dist.FoldedDistribution(dist.Normal(1.0, 1.0)),
    "l0": dist.LogNormal(0.0, 0.5).expand([2]),
    "n1": dist.Normal(3, 2),
    "t0": dist.TruncatedNormal(1.0, 0.5, low=0.0),
    "given": lambda p: dist.Normal(p["n0"] * p["n1"], p["l0"]),
    "t1": dist.TruncatedNormal(0.05, 0.05, low=0.01),
    "l1": dist.LogNormal(1.0, 2.0).expand([2]),
    "u0": dist.Uniform(-1.0, 1.0),
    "u1": dist.Uniform(2.0, 5.0),
    "m0": dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)),
    "m1": dist.MultivariateNormal(jnp.ones(2), jnp.array([[2.0, 0.3], [0.3, 1.0]])),
    "v0": dist.Normal(jnp.zeros(2), 1.0),
    "t2": dist.TruncatedNormal(0.05, 0.05, high=0.1),
    "n2": dist.Normal(-1.0, 0.1),
    "h0": dist.HalfNormal(1.0),
    "h1": dist.HalfNormal(3.0),
    "g0": dist.Gamma(2.0, 1.0),
    "g1": dist.Gamma(3.0, 0.5),
    "above": lambda p: dist.TruncatedNormal(p["n0"], 1.0, low=0.0),
}


def test_alike_priors_are_found():
    groups = [["n0", "n1", "n2"], ["l0", "l1"], ["t0", "t1"], ["u0", "u1"], ["m0", "m1"], ["h0", "h1"], ["g0", "g1"]]
    assert sorted(alike(MANY)) == sorted(groups)


def test_priors_prepared_together_are_as_one_by_one():
    parameters = cloudpickle.loads(cloudpickle.dumps(Parameters(MANY)))
    bare = parameters.bare()

    @jax.jit
    @jax.vmap
    def both(u):
        values, energy = {}, 0.0
        for name, part in parameters.split(u).items():
            transform = bare.map_of(name, values)
            values[name] = transform.value(part)
            energy += transform.energy(part)
        return parameters.evaluate(u), (values, energy)

    together, alone = both(jr.normal(jr.key(1), (20, parameters.d)))
    assert together[0].keys() == alone[0].keys() == MANY.keys()
    for name in MANY:
        np.testing.assert_allclose(together[0][name], alone[0][name], rtol=1e-12, err_msg=name)
    np.testing.assert_allclose(together[1], alone[1], rtol=1e-12)


def test_draws_and_values_go_there_and_back():
    parameters = Parameters({name: prior for name, prior in MANY.items() if name[0] != "t"})

    def both(key):
        u = parameters.draw(key)
        return u, parameters.coordinates(parameters.values(u))

    u, back = jax.jit(jax.vmap(both))(jr.split(jr.key(2), 5))
    np.testing.assert_allclose(back, u, rtol=1e-9, atol=1e-9)


def test_conditional_prior_sees_earlier_parameters_alone():
    parameters = Parameters(
        {"a": dist.Normal(0, 1), "b": lambda p: dist.Normal(sum(p.values()), 1.0), "c": dist.Normal(0, 1)}
    )
    u = jnp.array([1.0, 0.0, 10.0])
    assert parameters.values(u)["b"] == 1.0
    np.testing.assert_allclose(parameters.coordinates(parameters.values(u)), u)


# Simulation


PARAMS = {"a": 0.4, "b": jnp.array([0.8, 1.2]), "c": 0.1, "s": 0.5, "t": 3.0}
OTHER_PARAMS = {"a": -0.7, "b": jnp.array([2.0, 0.3]), "c": 1.3, "s": 0.05, "t": 3.0}


@jax.jit
def autoregressive_data(p, eta):
    step = lambda deviation, eta: (slope(p) * deviation + p["s"] * eta,) * 2
    return curve(p) + jax.lax.scan(step, 0.0, eta)[1]


MOMENTS = {
    "normal": (dict(noise_scale=SCALES), np.diag(SCALES**2)),
    "student": (dict(noise_scale="s", noise=dist.StudentT(10.0)), 0.25 * 10 / 8 * np.eye(4)),
    "laplace": (dict(noise_scale="s", noise=dist.Laplace()), 0.25 * 2 * np.eye(4)),
    "logistic": (dict(noise_scale="s", noise=dist.Logistic()), 0.25 * np.pi**2 / 3 * np.eye(4)),
    "law-function": (dict(noise_scale=1.0, noise=lambda p: dist.Normal(0.0, p["t"])), 9.0 * np.eye(4)),
    "cov": (dict(noise_scale=SCALES, noise_cov=COVARIANCE), SCALES[:, None] * COVARIANCE * SCALES),
    "tril-mask": (dict(noise_scale="s", noise_tril=FACTOR, mask=MASK), 0.25 * COVARIANCE),
    "autoregressive": (
        dict(residual=autoregressive_noise, generate=autoregressive_data),
        np.asarray(autoregressive_covariance(PARAMS)),
    ),
}


def simulate_many(model, params, num_draws=20_000, seed=5):
    return jax.jit(jax.vmap(lambda key: model.simulate(key, params)))(jr.split(jr.key(seed), num_draws))


@pytest.mark.parametrize("case", MOMENTS)
def test_simulated_data_have_the_right_moments(case):
    options, covariance = MOMENTS[case]
    y = np.asarray(simulate_many(build(options), PARAMS))
    deviation = y - curve(PARAMS)
    products = deviation[:, :, None] * deviation[:, None, :]
    for sample, expected in [(deviation, 0.0), (products, covariance)]:
        standard_error = sample.std(0) / np.sqrt(len(sample))
        assert (np.abs(sample.mean(0) - expected) < NUM_ERRORS * standard_error).all()
        assert (standard_error < 0.02 * np.sqrt(covariance.max() ** (sample.ndim - 1))).all()  # enough to see an error


ROUND_TRIPS = {
    "normal": (dict(noise_scale="s"), scipy.stats.norm.cdf),
    "student": (dict(noise_scale=SCALES, noise=dist.StudentT(4.0)), scipy.stats.t(4).cdf),
    "mask": (dict(noise_scale="s", mask=MASK), scipy.stats.norm.cdf),
    "cov": (dict(noise_scale="s", noise_cov=kernel), scipy.stats.norm.cdf),
    "tril-mask": (dict(noise_scale="s", noise_tril=FACTOR, mask=MASK), scipy.stats.norm.cdf),
    "tril-laplace": (dict(noise_scale="s", noise_tril=FACTOR, noise=dist.Laplace()), scipy.stats.laplace.cdf),
    "sheet": (dict(forward=sheet, observed=TABLE, noise_scale="s", mask=TABLE_MASK), scipy.stats.norm.cdf),
    "autoregressive": (dict(residual=autoregressive_noise, generate=autoregressive_data), scipy.stats.norm.cdf),
    "multiplicative": (
        CASES["multiplicative"][0] | dict(generate=lambda p, eta: jnp.exp(curve(p) + p["s"] * eta)),
        scipy.stats.norm.cdf,
    ),
}


def recovered_noise(model, params, num_draws=4000):
    """The residuals of simulated data at the parameters that made them, shape (num_draws, m)."""
    u = model.parameters.coordinates(params)
    kept = np.flatnonzero(model.mask["y"])

    def noise(key):
        y = model.simulate(key, params).ravel()[kept]
        return model.condition(y).lift(u).e

    return np.asarray(jax.jit(jax.vmap(noise))(jr.split(jr.key(6), num_draws)))


@pytest.mark.parametrize("case", ROUND_TRIPS)
def test_lift_recovers_the_noise_of_a_simulation(case):
    options, cdf = ROUND_TRIPS[case]
    model = build(options)
    e = recovered_noise(model, PARAMS)
    assert e.shape[1] == model.m
    # The same key makes the same noise, whatever the parameters.
    np.testing.assert_allclose(recovered_noise(model, OTHER_PARAMS), e, rtol=1e-6, atol=1e-9)
    # Dvoretzky-Kiefer-Wolfowitz: a false alarm once in 1e6, an error of 0.1 in the scale is seen.
    bound = np.sqrt(np.log(2 / 1e-6) / (2 * len(e)))
    assert all(scipy.stats.kstest(column, cdf).statistic < bound for column in e.T)
    assert scipy.stats.kstest(2 * e[:, 0], cdf).statistic > bound
    correlation = np.corrcoef(e.T) - np.eye(model.m)
    assert np.abs(correlation).max() < NUM_ERRORS / np.sqrt(len(e))


def test_masked_correlated_noise_that_is_not_normal_keeps_its_law_or_is_refused():
    mask, factor = np.array([False, True, True, True]), np.tril(np.ones((4, 4)))
    try:
        model = build(dict(noise_scale="s", noise_tril=factor, noise=dist.Laplace(), mask=mask))
    except tr.InputError:
        return
    e = recovered_noise(model, PARAMS, num_draws=40_000)
    bound = np.sqrt(np.log(2 / 1e-6) / (2 * len(e)))
    assert all(scipy.stats.kstest(column, scipy.stats.laplace.cdf).statistic < bound for column in e.T)


def test_masked_data_are_simulated_too_and_change_nothing_else():
    whole = build(dict(noise_scale="s")).simulate(jr.key(0), PARAMS)
    part = build(dict(noise_scale="s", mask=MASK, observed=with_nan(Y, MASK))).simulate(jr.key(0), PARAMS)
    np.testing.assert_array_equal(whole, part)
    assert np.isfinite(part).all()


def test_blocks_are_simulated_by_name():
    model = build(CASES["blocks"][0])
    y = model.simulate(jr.key(0), PARAMS)
    assert {key: value.shape for key, value in y.items()} == {"curve": (4,), "sheet": (2, 3), "point": ()}
    quiet = model.simulate(jr.key(0), PARAMS | {"s": 1e-12})
    for key, value in blocks(PARAMS).items():
        np.testing.assert_allclose(quiet[key], value, atol=1e-10)


def test_simulation_without_generate_is_refused():
    with pytest.raises(tr.InputError, match="generate is missing"):
        build(CASES["autoregressive"][0]).simulate(jr.key(0), PARAMS)


# Other data


def test_with_observed_is_the_model_of_other_data():
    options = CASES["sheet-mask"][0]
    model = build(options)
    other = np.where(TABLE_MASK, TABLE + 1.5, np.nan)
    u = jnp.full(model.d, 0.3)
    before = model.log_density(u)
    moved = model.with_observed(other)
    np.testing.assert_allclose(moved.log_density(u), build(options | dict(observed=other)).log_density(u), rtol=1e-12)
    assert moved.log_density(u) != before == model.log_density(u)


@pytest.mark.parametrize(
    ("observed", "complaint"),
    [
        (np.zeros(3), r"observed has shape \(3,\), not \(2, 3\)"),
        ({"y": TABLE}, "observed must have the same blocks"),
        (np.full((2, 3), np.nan), "observed contains 4 NaN or infinite values"),
        (None, "observed is missing"),
        ("abc", "observed must be numbers"),
    ],
)
def test_with_observed_refuses(observed, complaint):
    with pytest.raises(tr.InputError, match=complaint):
        build(CASES["sheet-mask"][0]).with_observed(observed)


@pytest.mark.parametrize("case", ["blocks", "residual-blocks"])
def test_order_of_blocks_does_not_matter(case):
    model = build(CASES[case][0])
    u = jnp.full(model.d, 0.3)
    reordered = dict(reversed(model.observed.items()))
    np.testing.assert_allclose(model.with_observed(reordered).log_density(u), model.log_density(u), rtol=1e-12)


def test_with_observed_refuses_a_block_too_many():
    model = build(CASES["blocks"][0])
    with pytest.raises(tr.InputError, match="observed"):
        model.with_observed({**OBSERVED_BLOCKS, "another": np.zeros(2)})


# What is refused

# Options, and a piece of the sentence that refuses them.
REFUSED = {
    "nan": (dict(noise_scale=1.0, observed=[np.nan, 1, 2, 3]), "observed contains 1 NaN or infinite"),
    "no-forward": (dict(forward=None, noise_scale=1.0), "forward is missing"),
    "no-scale": (dict(), "noise_scale is missing"),
    "no-precision": (dict(noise_scale=0.1, precision=0.0), "precision=0.0 must be positive"),
    "no-manifold": (dict(noise_scale=0.1, precision=1e-3), "at most 1e-06"),
    "shape": (dict(noise_scale=1.0, observed=Y[:3]), r"forward returns shape \(4,\) but observed has shape \(3,\)"),
    "blocks": (dict(forward=blocks, noise_scale=1.0), "forward returns the blocks"),
    "scale-name": (dict(noise_scale="q"), 'noise_scale names "q"'),
    "scale-key": (dict(noise_scale=lambda p: p["q"]), "noise_scale asks for 'q'"),
    "scale-sign": (dict(noise_scale=-1.0), "noise_scale must be positive"),
    "scale-shape": (dict(noise_scale=np.ones(3)), "noise_scale has shape"),
    "scale-blocks": (dict(noise_scale={"q": 1.0}), "noise_scale has the blocks"),
    "mask-shape": (dict(noise_scale=1.0, mask=MASK[:2]), "mask must be boolean"),
    "mask-type": (dict(noise_scale=1.0, mask=np.ones(4)), "mask must be boolean"),
    "mask-empty": (dict(noise_scale=1.0, mask=np.zeros(4, bool)), "mask leaves no data"),
    "law": (dict(noise_scale=1.0, noise=dist.Gamma(1.0, 1.0)), "noise must be a scalar law among"),
    "law-batch": (dict(noise_scale=1.0, noise=dist.Normal(jnp.zeros(4), 1.0)), "noise must be a scalar law among"),
    "law-kind": (dict(noise_scale=1.0, noise=3.0), "noise must be a numpyro distribution"),
    "cov-shape": (dict(noise_scale=1.0, noise_cov=np.eye(3)), "noise_cov has shape"),
    "cov-indefinite": (dict(noise_scale=1.0, noise_cov=-np.eye(4)), "noise_cov is not positive definite"),
    "tril-upper": (dict(noise_scale=1.0, noise_tril=COVARIANCE), "noise_tril must be lower triangular"),
    "cov-and-tril": (dict(noise_scale=1.0, noise_cov=COVARIANCE, noise_tril=FACTOR), "give one of them"),
    "residual-and-mask": (dict(residual=autoregressive_noise, mask=MASK), "residual replaces"),
    "residual-size": (dict(residual=lambda p, y: y[:3]), "residual returns 3 values but observed has 4"),
    "derived": (dict(noise_scale=1.0, derived={"a": lambda p: p["b"]}), "derived redefines"),
    "untraceable": (dict(forward=lambda p: np.sin(float(p["a"])), noise_scale=1.0), "forward is not JAX-traceable"),
    "mask-name": (dict(noise_scale=1.0, mask={"typo": MASK}), "mask"),
    "residual-and-cov": (dict(residual=autoregressive_noise, noise_cov=COVARIANCE), "noise_cov"),
    "residual-and-tril": (dict(residual=autoregressive_noise, noise_tril=FACTOR), "noise_tril"),
    "cov-function-shape": (dict(noise_scale=1.0, noise_cov=lambda p: jnp.eye(3)), "noise_cov"),
    "tril-function-shape": (dict(noise_scale=1.0, noise_tril=lambda p: jnp.eye(6)), "noise_tril"),
    "cov-not-symmetric": (dict(noise_scale=1.0, noise_cov=np.eye(4) + np.triu(np.ones((4, 4)), 1)), "noise_cov"),
    "cov-nan": (dict(noise_scale=1.0, noise_cov=np.full((4, 4), np.nan)), "noise_cov"),
    "tril-nan": (dict(noise_scale=1.0, noise_tril=np.tril(np.full((4, 4), np.nan), -1) + np.eye(4)), "noise_tril"),
    "law-function-key": (dict(noise_scale=1.0, noise=lambda p: dist.StudentT(p["q"])), "noise"),
    "law-function-kind": (dict(noise_scale=1.0, noise=lambda p: p["s"]), "noise"),
    "law-function-discrete": (dict(noise_scale=1.0, noise=lambda p: dist.Poisson(p["s"])), "noise"),
    "law-class": (dict(noise_scale=1.0, noise=dist.Normal), "noise"),
    "law-function-batch": (dict(noise_scale=1.0, noise=lambda p: dist.StudentT(p["b"])), "noise"),
    "cov-function-untraceable": (dict(noise_scale=1.0, noise_cov=lambda p: np.eye(4) * float(p["s"])), "noise_cov"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_refused(case):
    options, complaint = REFUSED[case]
    with pytest.raises(tr.InputError, match=complaint):
        build(options)


def test_residual_of_positive_data_near_zero_is_accepted():
    observed = np.array([0.004, 0.003, 0.002, 0.001])
    model = build(dict(observed=observed, residual=lambda p, y: (jnp.sqrt(y) - curve(p)) / p["s"]))
    assert model.observations.structure == "elementwise"


# Prediction


@pytest.fixture(scope="module")
def sheet_model():
    return tr.Model(
        {"a": dist.Normal(0.0, 1.0), "b": dist.LogNormal(0.0, 0.5).expand([3])},
        lambda p: p["a"] * jnp.arange(1.0, 3.0)[:, None] + p["b"],
        lambda p: 0.1 + p["b"][0],
        with_nan(TABLE, TABLE_MASK),
        mask=TABLE_MASK,
        noise=dist.StudentT(5.0),
        derived={"twice": lambda p: 2 * p["b"]},
        coords={"row": [10, 20], "column": ["x", "y", "z"]},
        dims={"b": ["column"], "twice": ["column"], "y": ["row", "column"]},
    )


@pytest.fixture(scope="module")
def sheet_trace(sheet_model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        method = tr.LiftedHMC(num_steps=2, step_size=0.2, force="cheap")
        return tr.sample(sheet_model, draws=20, warmup=20, chains=2, progress=False, method=method)


@pytest.fixture(scope="module")
def predicted(sheet_model, sheet_trace):
    return tr.predict(sheet_model, sheet_trace)


def test_predict_adds_groups(sheet_model, sheet_trace, predicted):
    assert set(predicted.children) == set(sheet_trace.children) | {"posterior_predictive", "log_likelihood"}
    for group in ("posterior_predictive", "log_likelihood"):
        y = predicted[group]["y"]
        assert y.dims == ("chain", "draw", "row", "column") and y.shape == (2, 20, 2, 3)
        assert list(y["row"].values) == [10, 20] and list(y["column"].values) == ["x", "y", "z"]
    assert np.isfinite(predicted["posterior_predictive"]["y"]).all()
    other = tr.predict(sheet_model, sheet_trace, seed=4)
    assert not np.isclose(other["posterior_predictive"]["y"], predicted["posterior_predictive"]["y"]).any()
    np.testing.assert_array_equal(other["log_likelihood"]["y"], predicted["log_likelihood"]["y"])


def test_log_likelihood_sums_to_the_likelihood(sheet_trace, predicted):
    log_likelihood = predicted["log_likelihood"]["y"].values
    np.testing.assert_array_equal(np.isnan(log_likelihood), np.broadcast_to(~TABLE_MASK, log_likelihood.shape))
    posterior = sheet_trace["posterior"]
    predicted = posterior["a"].values[..., None, None] * np.arange(1, 3)[:, None] + posterior["b"].values[..., None, :]
    scale = 0.1 + posterior["b"].values[..., :1, None]
    expected = scipy.stats.t(5, predicted, scale).logpdf(TABLE)
    np.testing.assert_allclose(log_likelihood[..., TABLE_MASK], expected[..., TABLE_MASK], rtol=1e-9)
    prior = scipy.stats.norm.logpdf(sheet_trace["unconstrained_posterior"]["a"].values)
    prior += scipy.stats.norm.logpdf(sheet_trace["unconstrained_posterior"]["b"].values).sum(-1)
    lp = sheet_trace["sample_stats"]["lp"].values
    np.testing.assert_allclose(np.nansum(log_likelihood, (-1, -2)) + prior, lp, rtol=1e-9)


def test_pointwise_log_likelihood_of_correlated_noise_is_conditional():
    model = build(CASES["cov-mask"][0])
    pointwise = np.asarray(jax.jit(model.observations.pointwise)(PARAMS, model.data)["y"])
    covariance = (SCALES[:, None] * COVARIANCE * SCALES)[MASK][:, MASK]
    joint = [
        scipy.stats.multivariate_normal(curve(PARAMS)[MASK][:k], covariance[:k, :k]).logpdf(Y[MASK][:k])
        for k in range(1, 4)
    ]
    np.testing.assert_allclose(pointwise[MASK], np.diff(joint, prepend=0.0), rtol=1e-10)
    assert np.isnan(pointwise[~MASK]).all()


@pytest.mark.parametrize("case", ["multiplicative", "autoregressive", "residual-blocks"])
def test_pointwise_log_likelihood_of_a_residual_sums_to_the_likelihood(case):
    options, likelihood = CASES[case]
    model = build(options)
    pointwise = jax.jit(model.observations.pointwise)(PARAMS, model.data)
    assert {key: value.shape for key, value in pointwise.items()} == {k: v.shape for k, v in model.observed.items()}
    np.testing.assert_allclose(sum(value.sum() for value in pointwise.values()), likelihood(PARAMS), rtol=1e-10)


def test_predict_refuses_a_trace_that_lacks_parameters(sheet_model, sheet_trace):
    trace = sheet_trace.copy()
    trace["posterior"] = trace["posterior"].to_dataset().drop_vars("b")
    with pytest.raises(tr.InputError, match=r"trace lacks the parameters \['b'\]"):
        tr.predict(sheet_model, trace)


def test_prior_draws(sheet_model):
    draws = tr.prior(sheet_model, draws=4000, seed=2)
    prior, y = draws["prior"], draws["prior_predictive"]["y"]
    assert prior["b"].dims == ("chain", "draw", "column") and y.dims == ("chain", "draw", "row", "column")
    assert y.shape == (1, 4000, 2, 3)
    np.testing.assert_array_equal(prior["twice"], 2 * prior["b"])
    bound = np.sqrt(np.log(2 / 1e-6) / (2 * 4000))  # Dvoretzky-Kiefer-Wolfowitz, false alarm 1e-6
    assert scipy.stats.kstest(prior["a"].values.ravel(), "norm").statistic < bound
    for column in range(3):
        log_b = np.log(prior["b"].values[0, :, column]) / 0.5
        assert scipy.stats.kstest(log_b, "norm").statistic < bound
    # Each row of data is made with the parameters of its own draw.
    a, b = prior["a"].values[0], prior["b"].values[0]
    e = (y.values[0] - a[:, None, None] * np.arange(1, 3)[:, None] - b[:, None]) / (0.1 + b[:, :1, None])
    for column in e.reshape(4000, 6).T:
        assert scipy.stats.kstest(column, scipy.stats.t(5).cdf).statistic < bound


@pytest.mark.parametrize("draws", [0, -3])
def test_prior_refuses_no_draws(sheet_model, draws):
    with pytest.raises(tr.InputError, match="draws="):
        tr.prior(sheet_model, draws=draws)
