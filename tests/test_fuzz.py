"""Random models, many of them nonsense: each is sampled, or refused with a sentence of ours."""

import contextlib
import itertools
import warnings
from collections import Counter
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import tightrope as tr
from tightrope.frames import choose_frame

PRIORS = {
    "normal": lambda scale: dist.Normal(0.0, scale),
    "log-normal": lambda scale: dist.LogNormal(np.log(scale), 1.0),
    "half-normal": lambda scale: dist.HalfNormal(scale),
    "uniform": lambda scale: dist.Uniform(-scale, scale),
    "exponential": lambda scale: dist.Exponential(1 / scale),
    "gamma": lambda scale: dist.Gamma(2.0, 1 / scale),
    "beta": lambda scale: dist.Beta(2.0, 3.0),
    "cauchy": lambda scale: dist.Cauchy(0.0, scale),
    "student-t": lambda scale: dist.StudentT(4.0, 0.0, scale),
    "laplace": lambda scale: dist.Laplace(0.0, scale),
    "truncated": lambda scale: dist.TruncatedNormal(0.0, scale, low=-0.5 * scale, high=2 * scale),
    "vector": lambda scale: dist.MultivariateNormal(jnp.zeros(2), scale**2 * jnp.array([[1.0, 0.5], [0.5, 1.0]])),
    "simplex": lambda scale: dist.Dirichlet(jnp.ones(3)),
    "table": lambda scale: dist.Normal(0.0, scale).expand([2, 2]),
    "weibull": lambda scale: dist.Weibull(scale, 1.5),
    "discrete": lambda scale: dist.Poisson(scale),
    "improper": lambda scale: dist.ImproperUniform(dist.constraints.real, (), ()),
}
NOISES = ("normal", "student-t", "laplace", "logistic", "correlated", "residual")
SCALES = ("constant", "parameter", "function", "zero")
TROUBLES = (*["none"] * 5, "hole", "overflow", "flat", "everywhere")
DTYPES = ("float64", "float32", "int32")
FRAMES = ("tall", "wide", "markov")


class Spec(NamedTuple):
    """A model, in words."""

    priors: list[str]
    prior_scale: float
    num_data: int
    data_shape: str
    noise: str
    scale: str
    noise_scale: float
    trouble: str
    dtype: str
    is_chain: bool
    seed: int


specs = st.builds(
    Spec,
    priors=st.lists(st.sampled_from(list(PRIORS)[:-2]), min_size=1, max_size=3),
    prior_scale=st.sampled_from([1.0, 1.0, 1e-6, 1e6]),
    num_data=st.sampled_from([1, 2, 3, 12]),
    data_shape=st.sampled_from(["vector", "vector", "table", "scalar"]),
    noise=st.sampled_from(NOISES),
    scale=st.sampled_from([*SCALES[:-1] * 3, *SCALES]),
    noise_scale=st.sampled_from([1.0, 0.1, 1e-3, 1e-8, 1e4]),
    trouble=st.just("none"),
    dtype=st.sampled_from(DTYPES),
    is_chain=st.integers(0, 9).map(lambda number: number in (4, 7)),
    seed=st.integers(0, 1000),
)


def forward_of(spec, shape, random):
    """A smooth function of all parameters, with some trouble in it."""
    size = int(np.prod(shape))
    mix = random.normal(size=(size, 3))

    def forward(params):
        flat = jnp.concatenate([jnp.ravel(jnp.asarray(value, float)) for value in params.values()]) / spec.prior_scale
        total = jnp.arcsinh(flat).sum()
        features = jnp.stack([total, jnp.tanh(flat).sum(), jnp.sin(total)])
        if spec.trouble == "hole":
            features = jnp.where(total > 0.3, jnp.nan, features)
        if spec.trouble == "everywhere":
            features = features * jnp.nan
        if spec.trouble == "overflow":
            features = features + jnp.exp(jnp.exp(3 * total))
        if spec.trouble == "flat":
            features = 0 * features
        return (mix @ features).reshape(shape)

    return forward


def build(spec):
    """The model of a spec."""
    random = np.random.default_rng(spec.seed)
    priors: dict[str, Any] = {f"p{i}": PRIORS[name](spec.prior_scale) for i, name in enumerate(spec.priors)}
    if spec.is_chain:
        return chain(spec, priors, random)
    shape = {"vector": (spec.num_data,), "table": (spec.num_data, 2), "scalar": ()}[spec.data_shape]
    observed = np.asarray(random.normal(size=shape)).astype(spec.dtype)
    forward = forward_of(spec, shape, random)
    if spec.noise == "residual":
        residual = lambda params, y: (y - forward(params)) / spec.noise_scale
        return tr.Model(priors, residual=residual, observed=observed)
    scale: Any = spec.noise_scale
    if spec.scale == "parameter":
        priors, scale = priors | {"s": dist.LogNormal(np.log(spec.noise_scale), 1.0)}, "s"
    if spec.scale == "function":
        scale = lambda params: spec.noise_scale * (1 + jnp.abs(jnp.ravel(params["p0"])[0]) / spec.prior_scale)
    if spec.scale == "zero":
        scale = 0.0
    laws = {"student-t": dist.StudentT(4.0), "laplace": dist.Laplace(), "logistic": dist.Logistic()}
    size = max(1, int(np.prod(shape)))
    cov = 0.5 * np.eye(size) + 0.5 if spec.noise == "correlated" else None
    return tr.Model(priors, forward, scale, observed, noise=laws.get(spec.noise), noise_cov=cov)


def chain(spec, priors, random):
    """A hidden autoregression whose coefficients come from the priors."""
    share = lambda phi: jnp.tanh(jnp.ravel(phi["p0"])[0] / spec.prior_scale)
    see = {"hole": lambda x: jnp.where(x > 0.5, jnp.nan, x), "everywhere": lambda x: x * jnp.nan}
    observe = see.get(spec.trouble, lambda x: x)
    return tr.StateSpaceModel(
        priors,
        initial=lambda phi, nu: nu,
        transition=lambda phi, nu, x: share(phi) * x + nu,
        observe=lambda phi, x, eta: observe(x) + spec.noise_scale * eta,
        residual=lambda phi, x, y: (y - observe(x)) / spec.noise_scale,
        observed=random.normal(size=max(2, spec.num_data)).astype(spec.dtype),
    )


def outcome(spec):
    """What comes of a few draws: "sampled", or the kind of error. One in four are as by default, others quick."""
    options = {} if spec.seed % 4 == 0 else {"method": "lifted-hmc", "init": "prior"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            trace = tr.sample(build(spec), draws=4, warmup=12, chains=1, seed=1, progress=False, **options)
        except (tr.InputError, tr.SamplingError) as error:
            assert str(error).endswith("."), error
            return type(error).__name__
    for group in ("posterior", "unconstrained_posterior"):
        for name, values in trace[group].data_vars.items():
            assert np.isfinite(values).all(), (name, values)
    return "sampled"


def for_each(number, num_models, function):
    """Apply a function to random specs, the same ones every time; first priors and troubles come in turn."""
    turn = itertools.count(number * num_models)

    def on(spec):
        place = next(turn)
        first, trouble = list(PRIORS)[place % len(PRIORS)], TROUBLES[place % len(TROUBLES)]
        function(spec._replace(priors=[first, *spec.priors[1:]], trouble=trouble))

    options = settings(
        max_examples=num_models,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(options(given(specs)(on)))()


def outcomes(number, num_models):
    found = Counter()
    for_each(number, num_models, lambda spec: found.update([outcome(spec)]))
    return found


SHARDS, PER_SHARD = 8, 25


def test_a_few_random_models():
    found = outcomes(100, 3)
    assert found["sampled"] >= 1, found


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SHARDS))
def test_random_models(number):
    found = outcomes(number, PER_SHARD)
    assert found["sampled"] >= 0.6 * found.total(), found


@pytest.mark.slow
def test_every_kind_occurs():
    """Ten times at least among the random models, of each prior, noise law and frame."""
    seen = Counter()

    def note(spec):
        seen.update({*spec.priors, f"{spec.noise} noise", spec.dtype, spec.trouble})
        with contextlib.suppress(tr.InputError):
            seen[choose_frame(build(spec).condition())] += 1

    for number in range(SHARDS):
        for_each(number, PER_SHARD, note)
    noises = [f"{noise} noise" for noise in NOISES]
    rare = {kind: seen[kind] for kind in (*PRIORS, *noises, *FRAMES, *DTYPES, *TROUBLES) if seen[kind] < 10}
    assert not rare
