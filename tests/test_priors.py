"""Priors as maps from u: the law, the tails, the way back, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.integrate
import scipy.special
import scipy.stats as st
from cases import slow_but
from numpy import log, log1p, pi, sqrt, tan
from numpyro.distributions import constraints, transforms
from scipy.special import logit

from tightrope.priors import NormalMap, PushedMap, prior_map
from tightrope.tails import log_ndtr, ndtri_exp
from tightrope.types import InputError

FACTOR = jnp.array([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [-0.3, 0.1, 0.4]])
WALK = dist.GaussianRandomWalk(jnp.array([0.5, 2.0]), num_steps=3)
SHIFTED_GAMMA = dist.TransformedDistribution(dist.Gamma(2.0, 1.5), transforms.AffineTransform(3.0, -2.0))
SOFTPLUS = [transforms.AffineTransform(1.0, 2.0), transforms.SoftplusTransform()]


# Distributions whose coordinates are standard normal.
NORMAL = {
    "Normal": dist.Normal(1.0, 2.0),
    "Normal-vector": dist.Normal(jnp.arange(3.0), 2),
    "Normal-expand": dist.Normal(1.0, 2.0).expand([2]),
    "Normal-expand-between": dist.Normal(jnp.arange(2.0)[:, None], 1.0).expand([2, 2, 3]),
    "Normal-to-event": dist.Normal(jnp.arange(3.0), 2.0).to_event(1),
    "LogNormal": dist.LogNormal(0.5, 0.8),
    "LogNormal-expand": dist.LogNormal(jnp.arange(2.0), 0.8).expand([3, 2]).to_event(1),
    "HalfNormal": dist.HalfNormal(2.0),
    "Uniform": dist.Uniform(-1, 3),
    "Uniform-vector": dist.Uniform(jnp.array([-1.0, 0.0]), jnp.array([[1.0], [2.0]])),
    "TruncatedNormal-none": dist.TruncatedNormal(1.0, 2.0),
    "TruncatedNormal-low": dist.TruncatedNormal(1.0, 2.0, low=0.5),
    "TruncatedNormal-high": dist.TruncatedNormal(1.0, 2.0, high=-3.0),
    "TruncatedNormal-both": dist.TruncatedNormal(1.0, jnp.array([0.5, 2.0]), low=0.0, high=1.3),
    "TruncatedNormal-far": dist.TruncatedNormal(0.0, 1.0, low=6.0),
    "Exponential": dist.Exponential(0.5),
    "Laplace": dist.Laplace(1.0, 2.0),
    "Logistic": dist.Logistic(1.0, 2.0),
    "Cauchy": dist.Cauchy(1.0, 2.0),
    "HalfCauchy": dist.HalfCauchy(2.0),
    "Gumbel": dist.Gumbel(1.0, 2.0),
    "Weibull": dist.Weibull(2.0, 0.7),
    "Pareto": dist.Pareto(2.0, 3.0),
    "LogUniform": dist.LogUniform(0.1, 20.0),
    "MultivariateNormal": dist.MultivariateNormal(jnp.arange(3.0), scale_tril=FACTOR),
    "MultivariateNormal-batch": dist.MultivariateNormal(jnp.ones((2, 3)), FACTOR @ FACTOR.T).expand([2, 2]),
    "GaussianRandomWalk": WALK,
    "RelaxedBernoulli": dist.RelaxedBernoulliLogits(0.7, 0.3),
    "Transformed": dist.TransformedDistribution(dist.Gumbel(jnp.zeros(2), 1.0), SOFTPLUS),
    "Ordered": dist.TransformedDistribution(dist.Normal(0, 1).expand([3]), transforms.OrderedTransform()),
}
# Those that a bijection reaches.
BIJECTED = {
    "Gamma": dist.Gamma(2.0, jnp.array([0.5, 3.0])),
    "Gamma-shifted": SHIFTED_GAMMA,
    "InverseGamma": dist.InverseGamma(3.0, 2.0),
    "Chi2": dist.Chi2(3.0),
    "Beta": dist.Beta(2.0, 0.7).expand([2]),
    "StudentT": dist.StudentT(4.0, 1.0, 2.0),
    "TruncatedCauchy": dist.TruncatedCauchy(0.0, 1.0, low=-1.0, high=3.0),
    "FoldedNormal": dist.FoldedDistribution(dist.Normal(1.0, 1.0)),
    "VonMises": dist.VonMises(0.5, 2.0),
    "Dirichlet": dist.Dirichlet(jnp.array([0.5, 1.0, 2.0, 4.0])),
    "LKJCholesky": dist.LKJCholesky(3, 1.5),
}
BOTH = {**NORMAL, **BIJECTED}
# The entries of a value that determine the others: densities refer to these.
FREE = {"Dirichlet": lambda x: x[:-1], "LKJCholesky": lambda x: x[jnp.tril_indices(3, -1)]}


def table(cases):
    return pytest.mark.parametrize("name", list(cases))


@functools.cache
def compiled(name):
    """Energy, log density, Jacobian and the way back, over a batch of u."""
    distribution, free = BOTH[name], FREE.get(name, jnp.ravel)
    prior = prior_map(distribution)

    def everything(u):
        value, jacobian = prior.value(u), jax.jacfwd(lambda u: free(prior.value(u)))(u)
        return prior.energy(u), jnp.sum(distribution.log_prob(value)), jacobian, prior.inverse(value)

    return prior.size, jax.jit(jax.vmap(everything))


@table(NORMAL)
def test_coordinates_are_standard_normal_where_they_can_be(name):
    prior = prior_map(NORMAL[name])
    while isinstance(prior, PushedMap):
        prior = prior.base
    assert isinstance(prior, NormalMap)
    u = jnp.linspace(-1, 2, prior.size)
    np.testing.assert_allclose(prior.energy(u), -st.norm.logpdf(u).sum(), rtol=1e-13)


@table(BOTH)
def test_energy_is_the_density_of_the_value_times_the_volume(name):
    size, everything = compiled(name)
    energy, log_prob, jacobian, _ = everything(1.2 * jr.normal(jr.key(1), (20, size)))
    np.testing.assert_allclose(energy, -log_prob - np.linalg.slogdet(jacobian)[1], rtol=1e-9, atol=1e-9)


@table(BOTH)
def test_inverse_undoes_value(name):
    size, everything = compiled(name)
    u = jr.uniform(jr.key(4), (20, size), minval=-3, maxval=3)
    np.testing.assert_allclose(everything(u)[-1], u, atol=1e-9)


@pytest.mark.parametrize(
    "name", ["Gamma-shifted", "InverseGamma", "Chi2", "TruncatedCauchy", "FoldedNormal", "VonMises"]
)
def test_energy_is_normalised(name):
    u = jnp.linspace(-60, 60, 40_001)
    density = jnp.exp(-jax.vmap(prior_map(BIJECTED[name]).energy)(u[:, None]))
    np.testing.assert_allclose(scipy.integrate.trapezoid(density, u), 1, rtol=1e-6)


NUM_DRAWS = 40_000
# Two-sample Kolmogorov-Smirnov distance that a true law exceeds with probability 1e-7.
KS_BOUND = sqrt(-0.5 * log(0.5e-7) * 2 / NUM_DRAWS)


def distances(draws, others):
    """KS distances of every coordinate, and of their sum, which sees correlations."""
    draws, others = (np.reshape(x, (NUM_DRAWS, -1)) for x in (draws, others))
    draws, others = (np.column_stack([x, x.sum(1)]) for x in (draws, others))
    return [st.ks_2samp(a, b, method="asymp").statistic for a, b in zip(draws.T, others.T, strict=True)]


# Wrappers and batches change no law.
@table(name for name in NORMAL if name == "TruncatedNormal-both" or "-" not in name)
def test_values_of_normal_draws_have_the_law_of_the_sampler(name):
    map_key, sampler_key = jr.split(jr.key(2))
    prior = prior_map(NORMAL[name])
    values = jax.jit(jax.vmap(prior.value))(jr.normal(map_key, (NUM_DRAWS, prior.size)))
    assert max(distances(values, NORMAL[name].sample(sampler_key, (NUM_DRAWS,)))) < KS_BOUND


def test_the_law_test_sees_a_scale_that_is_ten_percent_off():
    map_key, sampler_key = jr.split(jr.key(3))
    values = jax.vmap(prior_map(dist.Normal(0, 1.1)).value)(jr.normal(map_key, (NUM_DRAWS, 1)))
    assert min(distances(values, dist.Normal(0, 1).sample(sampler_key, (NUM_DRAWS,)))) > KS_BOUND


@table(BOTH)
def test_shapes_are_those_of_the_distribution(name):
    prior = prior_map(BOTH[name])
    assert prior.shape == BOTH[name].shape()
    assert jax.eval_shape(prior.value, jnp.zeros(prior.size)).shape == prior.shape
    assert jax.eval_shape(prior.inverse, jnp.zeros(prior.shape)).shape == (prior.size,)
    assert jax.eval_shape(prior.energy, jnp.zeros(prior.size)).shape == ()


@pytest.mark.parametrize(
    "distribution, size",
    [
        (dist.Dirichlet(jnp.ones((2, 4))), 6),
        (dist.LKJCholesky(4, 1.0).expand([2]), 12),
        (dist.ZeroSumNormal(1.0, event_shape=(4,)), 3),
        (dist.Uniform(0, 1).expand([2]).expand([3, 2]), 6),
    ],
    ids=["Dirichlet", "LKJCholesky", "ZeroSumNormal", "Uniform"],
)
def test_size_counts_the_free_coordinates(distribution, size):
    assert prior_map(distribution).size == size


def half_normal_below(p):
    return sqrt(2) * scipy.special.erfinv(p)


def half_normal_above(q):
    return -scipy.special.ndtri(q / 2)


# The quantile from the share p below it, for z < 0, and from the share q above it, for z > 0: written out, as
# those of scipy.stats lose digits in some tails. Then the law whose density gives the slope.
TAILS = {
    "Normal": (dist.Normal(1, 2), st.norm(1, 2).ppf, st.norm(1, 2).isf, st.norm(1, 2)),
    "LogNormal": (dist.LogNormal(0, 0.8), st.lognorm(0.8).ppf, st.lognorm(0.8).isf, st.lognorm(0.8)),
    "Uniform": (dist.Uniform(0, 3), lambda p: 3 * p, lambda q: 3 - 3 * q, st.uniform(0, 3)),
    "Uniform-to-zero": (dist.Uniform(-3, 0), lambda p: 3 * p - 3, lambda q: -3 * q, st.uniform(-3, 3)),
    "Exponential": (dist.Exponential(1), lambda p: -log1p(-p), lambda q: -log(q), st.expon()),
    "Laplace": (dist.Laplace(0, 1), lambda p: log(2 * p), lambda q: -log(2 * q), st.laplace()),
    "Logistic": (dist.Logistic(0, 1), lambda p: logit(p), lambda q: -logit(q), st.logistic()),
    "Cauchy": (dist.Cauchy(0, 1), lambda p: -1 / tan(pi * p), lambda q: 1 / tan(pi * q), st.cauchy()),
    "HalfCauchy": (
        dist.HalfCauchy(1),
        lambda p: tan(pi / 2 * p),
        lambda q: 1 / tan(pi / 2 * q),
        st.halfcauchy(),
    ),
    "HalfNormal": (dist.HalfNormal(1), half_normal_below, half_normal_above, st.halfnorm()),
    "TruncatedNormal": (
        dist.TruncatedNormal(0, 1, low=0),
        half_normal_below,
        half_normal_above,
        st.halfnorm(),
    ),
    "Gumbel": (dist.Gumbel(0, 1), lambda p: -log(-log(p)), lambda q: -log(-log1p(-q)), st.gumbel_r()),
    "Weibull": (dist.Weibull(1, 2), lambda p: sqrt(-log1p(-p)), lambda q: sqrt(-log(q)), st.weibull_min(2)),
    "Pareto": (dist.Pareto(1.0, 2.0), lambda p: 1 / sqrt(1 - p), lambda q: 1 / sqrt(q), st.pareto(2)),
    "LogUniform": (dist.LogUniform(1, 9), lambda p: 9**p, lambda q: 9 ** (1 - q), st.loguniform(1, 9)),
}


@table(TAILS)
def test_tails_are_exact_and_nothing_overflows(name):
    distribution, from_below, from_above, reference = TAILS[name]
    prior, step = prior_map(distribution), 1e-4
    z = np.array([-8, -6.5, -5, -3, -1, -0.1, 0.1, 1, 3, 5, 6.5, 8])
    below, above = scipy.special.ndtr(z[z < 0]), scipy.special.ndtr(-z[z > 0])
    expected = np.concatenate([from_below(below), from_above(above)])

    slope = jax.grad(lambda z: jnp.sum(prior.value(z)))
    evaluate = jax.jit(jax.vmap(lambda z: (prior.value(z), slope(z), jax.jacfwd(slope)(z))))
    points = np.concatenate([z, z - step, z + step, [0, -40, -38, -20, 20, 38, 40]])
    value, slope, curvature = (np.ravel(x) for x in evaluate(points[:, None]))
    assert all(np.all(np.isfinite(x)) for x in (value, slope, curvature))

    np.testing.assert_allclose(slope[36], st.norm.pdf(0) / reference.pdf(value[36]), rtol=1e-10)
    slope, behind, ahead, _ = np.split(slope, [12, 24, 36])
    np.testing.assert_allclose(value[:12], expected, rtol=1e-12)
    np.testing.assert_allclose(slope, st.norm.pdf(z) / reference.pdf(expected), rtol=1e-10)
    np.testing.assert_allclose(curvature[:12], (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8 * slope.min())


# Quantiles and their slopes at z, by mpmath with 60 digits.
TRUNCATED = {
    (0, 1, 10, np.inf): {
        -8: (10.0, 5.0031931439737501e-16),
        -3: (10.000133767937276, 0.00043946720513864435),
        3: (10.634595032040249, 0.30605838249380807),
        8: (13.019487060235545, 0.62016885286437349),
    },
    (0, 1, -np.inf, -12): {
        -8: (-14.616320030956788, 0.5530718391254629),
        -3: (-12.535123464801235, 0.26027595051504762),
        3: (-12.000111801010735, 0.00036730008152165806),
        8: (-12.0, 4.1815771598259757e-16),
    },
    (1, 0.5, 0, np.inf): {
        -8: (5.6300463697733814e-15, 4.5723679057887711e-14),
        -3: (0.011928746266791452, 0.03825081219873858),
        3: (2.5035012836864867, 0.49901063551767205),
        8: (5.0014165688068, 0.49982813200248215),
    },
    (0, 1, 0, 1e-3): {
        -8: (6.2209595374451774e-19, 5.0522702414918381e-18),
        -3: (1.349897806647533e-6, 4.431847673300754e-6),
        3: (0.00099865010151931453, 4.4318498832425972e-6),
        8: (0.0009999999999999994, 5.0522727676275904e-18),
    },
    (1, 2, -np.inf, np.inf): {-8: (-15.0, 2.0), -3: (-5.0, 2.0), 3: (7.0, 2.0), 8: (17.0, 2.0)},
    (0, 1, -40, 40): {-8: (-8.0, 1.0), -3: (-3.0, 1.0), 3: (3.0, 1.0), 8: (8.0, 1.0)},
    (-5, 1, -1, 0): {
        -8: (-0.99999999999999985, 1.1848105085325529e-15),
        -3: (-0.99968323416513556, 0.0010406326556810611),
        3: (-0.026643574838851592, 0.081916366274472083),
        8: (-1.3132423212305752e-14, 1.0665324311280577e-13),
    },
    (0, 1, 5, 5.001): {
        -8: (5.0, 5.0396605917779318e-18),
        -3: (5.0000013465332128, 4.4208162617917201e-6),
        3: (5.0009986467257199, 4.4429179354749388e-6),
        8: (5.0010000000000003, 5.0649245280801595e-18),
    },
}


def test_truncated_normals_are_exact():
    loc, scale, low, high = (jnp.array(x, float) for x in zip(*TRUNCATED, strict=True))
    prior = prior_map(dist.TruncatedNormal(loc, scale, low=low, high=high))
    evaluate = jax.jit(jax.vmap(lambda u: jax.jvp(prior.value, (u,), (jnp.ones_like(u),))))
    value, slope = evaluate(jnp.broadcast_to(jnp.array([-8.0, -3.0, 3.0, 8.0])[:, None], (4, len(TRUNCATED))))
    for i, (case, expected) in enumerate(TRUNCATED.items()):
        expected_value, expected_slope = np.array([expected[z] for z in (-8, -3, 3, 8)]).T
        np.testing.assert_allclose(value[:, i], expected_value, rtol=1e-12, err_msg=str(case))
        np.testing.assert_allclose(slope[:, i], expected_slope, rtol=1e-12, err_msg=str(case))


# A parameter k of a conditional prior, and where to test it.
CONDITIONAL = {
    "TN-high": (lambda k: dist.TruncatedNormal(0, 1, low=0, high=k), 0.7),
    "TN-low-far": (lambda k: dist.TruncatedNormal(0, 1, low=k), 11.0),
    "TN-all": (lambda k: dist.TruncatedNormal(k, k, low=k**2, high=3 * k), 0.8),
    "Uniform-high": (lambda k: dist.Uniform(-1, k), 2.0),
    "Uniform-low": (lambda k: dist.Uniform(k, 3), 2.0),
    "HalfNormal": (lambda k: dist.HalfNormal(k), 2.0),
    "Exponential": (lambda k: dist.Exponential(k), 2.0),
    "Cauchy": (lambda k: dist.Cauchy(k, k), 2.0),
    "Weibull": (lambda k: dist.Weibull(2.0, k), 0.7),
    "LogUniform": (lambda k: dist.LogUniform(0.1, k), 3.0),
    "MultivariateNormal": (lambda k: dist.MultivariateNormal(k[None], scale_tril=k[None, None]), 3.0),
    "Gamma-low": (
        lambda k: dist.TransformedDistribution(dist.Gamma(k), transforms.AffineTransform(k, 2.0)),
        1.5,
    ),
    "TruncatedCauchy": (lambda k: dist.TruncatedCauchy(0, 1, low=k), 1.5),
}


@pytest.mark.parametrize("name", slow_but([name for name in CONDITIONAL if name != "TN-high"], CONDITIONAL))
def test_parameters_carry_two_derivatives(name):
    make, k = CONDITIONAL[name]

    def observed(x):
        """All that a conditional prior contributes, as a function of k and z."""
        prior = prior_map(make(x[0]))
        return jnp.stack([prior.value(x[1:]).reshape(()), prior.energy(x[1:])])

    first = jax.jacrev(observed)
    evaluate = jax.jit(jax.vmap(lambda x: (observed(x), first(x), jax.jacfwd(first)(x))))
    centres = jnp.array([[k, z] for z in (-3.0, -0.5, 0.1, 0.7, 3.0)])
    steps = 1e-5 * jnp.array([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1]])
    value, jacobian, hessian = evaluate((centres[:, None] + steps).reshape(-1, 2))
    value, jacobian = value.reshape(5, 5, 2), jacobian.reshape(5, 5, 2, 2)
    np.testing.assert_allclose(jacobian[:, 0], slopes(value), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(hessian.reshape(5, 5, 2, 2, 2)[:, 0], slopes(jacobian), rtol=1e-7, atol=1e-8)


def slopes(x):
    """Central differences over the second axis, by k and by z."""
    return jnp.moveaxis(x[:, 1:3] - x[:, 3:5], 1, -1) / 2e-5


def test_a_value_at_a_traced_bound_moves_with_it():
    def values(low, high):
        return prior_map(dist.TruncatedNormal(jnp.zeros(2), 1, low=low, high=high)).value(jnp.array([-8.0, 8.0]))

    by_low, by_high = jax.jit(jax.jacrev(values, (0, 1)))(0.2, 0.9)
    np.testing.assert_allclose(by_low, [1, 0], atol=1e-13)
    np.testing.assert_allclose(by_high, [0, 1], atol=1e-13)


def test_log_ndtr_and_its_inverse_agree_with_scipy():
    z = np.concatenate([np.linspace(-40, 8, 4001), [-1e3, -100.0, 20.0]])
    np.testing.assert_allclose(log_ndtr(z), scipy.special.log_ndtr(z), rtol=1e-13)
    log_p = np.concatenate([-np.logspace(-250, 5, 4001), [-log(2)]])
    np.testing.assert_allclose(ndtri_exp(log_p), scipy.special.ndtri_exp(log_p), rtol=1e-11, atol=1e-15)


def test_ndtri_exp_undoes_log_ndtr_with_two_derivatives():
    def there_and_back(z):
        return ndtri_exp(log_ndtr(z))

    z = jnp.linspace(-30, 8, 77)
    slope = jax.grad(there_and_back)
    value, slopes, curvatures = jax.jit(jax.vmap(lambda z: (there_and_back(z), slope(z), jax.jacfwd(slope)(z))))(z)
    np.testing.assert_allclose(value, z, atol=1e-13)
    np.testing.assert_allclose(slopes, 1, rtol=1e-11)
    np.testing.assert_allclose(curvatures, 0, atol=1e-9)


REFUSED = {
    "number": (1.5, "of type float; give a numpyro distribution"),
    "function": (lambda p: dist.Normal(0, 1), "of type function"),
    "class": (dist.Normal, "the class Normal; call it"),
    "scipy": (st.norm(), "of type rv_continuous_frozen"),
    "Poisson": (dist.Poisson(2.0), "Poisson is discrete; .* use a continuous one"),
    "Bernoulli-wrapped": (dist.Bernoulli(0.5).expand([3]).to_event(1), "Bernoulli.* is discrete"),
    "ImproperUniform": (
        dist.ImproperUniform(constraints.real, (), ()),
        "improper; choose one of finite mass",
    ),
    "ImproperUniform-wrapped": (dist.ImproperUniform(constraints.real, (), ()).expand([2]), "improper"),
    "Uniform-infinite": (dist.Uniform(0, jnp.array([1.0, jnp.inf])), "Uniform is improper"),
    "Masked": (dist.Normal(0, 1).expand([2]).mask(jnp.array([True, False])), "remove the mask"),
    "Masked-wrapped": (
        dist.Normal(0, 1).expand([2]).mask(jnp.array([True, False])).to_event(1),
        "remove the mask",
    ),
    "Delta": (dist.Delta(1.0), "Delta, a constant"),
    "Hurdle": (dist.HurdleLogNormal(0.5, 0.0, 1.0), "point mass"),
    "Censored": (dist.LeftCensoredDistribution(dist.Normal(0, 1), 1.0), "point mass"),
    "Absolute": (
        dist.TransformedDistribution(dist.Normal(0, 1), transforms.AbsTransform()),
        "FoldedDistribution",
    ),
    "Sphere": (dist.ProjectedNormal(jnp.ones(2)), "no bijection reaches"),
}


@table(REFUSED)
def test_refuses_what_is_no_prior(name):
    distribution, message = REFUSED[name]
    with pytest.raises(InputError, match=message) as error:
        prior_map(distribution)
    assert str(error.value).startswith("the prior") and str(error.value).endswith(".") and "\n" not in str(error.value)
