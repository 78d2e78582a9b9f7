"""Models of NumPyro: the same density, the same draws, or a sentence on why not."""

import re
from pathlib import Path

import arviz_base
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree
from numpyro.contrib.control_flow import scan
from numpyro.infer import MCMC, init_to_value
from numpyro.infer import NUTS as NumPyroNUTS
from numpyro.infer.reparam import LocScaleReparam, TransformReparam
from numpyro.infer.util import log_density

import tightrope as tr

SCHOOLS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
SPREAD = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
X = np.linspace(0.1, 2.0, 6)
FIELD = np.sin(np.arange(12.0)).reshape(4, 3)
MIXING = np.array([[1.0, 0.0, 0.0], [0.5, 0.8, 0.0], [-0.3, 0.2, 0.5]])
SEEN = np.array([True, False, True, True, True, False])


def eight_schools(y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        z = numpyro.sample("z", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, SPREAD), obs=y)


def centred_schools(y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.LogNormal(1, 1))
    with numpyro.plate("school", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, SPREAD), obs=y)


def regression(x, y, sigma=1e-4):
    a = numpyro.sample("a", dist.LogNormal(0, 1).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("x", len(x)):
        mean = numpyro.deterministic("mean", a[0] * a[1] * jnp.exp(-b * x))
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def hares(y):
    """An ODE, seen through noise that multiplies."""
    rates = numpyro.sample("rates", dist.LogNormal(jnp.array([0.0, -1.0]), 0.3).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-2, 0.5))

    def advance(x, _):
        x = x + 0.1 * jnp.stack([x[0] * (rates[0] - x[1]), x[1] * (rates[1] * x[0] - 1)])
        return x, x

    path = lax.scan(advance, jnp.array([1.0, 0.5]), None, length=20)[1]
    numpyro.sample("y", dist.LogNormal(jnp.log(path[::5]), sigma).to_event(2), obs=y)


def nested_plates(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    rows, columns = numpyro.plate("row", 4, dim=-2), numpyro.plate("column", 3, dim=-1)
    with rows:
        a = numpyro.sample("a", dist.Normal(mu, 1))
    with columns:
        b = numpyro.sample("b", dist.Exponential(jnp.exp(mu)))
    with rows, columns:
        numpyro.sample("y", dist.Laplace(a + b, 0.3), obs=y)


def multivariate(y, **form):
    mean = numpyro.sample("mean", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("case", 4):
        numpyro.sample("y", dist.MultivariateNormal(mean, **form), obs=y)


def unknown_covariance(y):
    factor = numpyro.sample("factor", dist.LKJCholesky(3, 2.0))
    scale = numpyro.sample("scale", dist.LogNormal(0, 0.5), sample_shape=(3,))
    numpyro.sample("y", dist.MultivariateNormal(0.0, scale_tril=scale[:, None] * factor), obs=y)


def heavy_tails(y):
    df = numpyro.sample("df", dist.Gamma(2.0, 0.1))
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.StudentT(df + X, mu, 0.2 + 0.1 * X), obs=y)


def masked(y, mask):
    mu = numpyro.sample("mu", dist.LogNormal(0, 1))
    nu = numpyro.sample("nu", dist.Normal(0, 1))
    with numpyro.plate("case", len(y)):
        with numpyro.handlers.mask(mask=mask):
            numpyro.sample("y", dist.LogNormal(jnp.log(mu) * X, 0.3), obs=y)
        numpyro.sample("z", dist.StudentT(2.0 + mu, nu, 1.0).mask(~mask), obs=y)


def several_sites(y):
    """A block of each further law."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.LogNormal(0, 1))
    for name, law in (("logistic", dist.Logistic), ("cauchy", dist.Cauchy), ("gumbel", dist.Gumbel)):
        numpyro.sample(name, law(mu, scale * X), obs=y)
    stretch = dist.transforms.AffineTransform(1.0, -scale)
    transform = [stretch, dist.transforms.SigmoidTransform()]
    numpyro.sample("share", dist.TransformedDistribution(dist.StudentT(4.0, mu, X), transform), obs=y / 4)
    numpyro.sample("rows", dist.MultivariateNormal(mu, MIXING @ MIXING.T), obs=FIELD)


NON_CENTRED = numpyro.handlers.reparam(centred_schools, config={"theta": LocScaleReparam(0)})
TRANSFORMED = numpyro.handlers.reparam(regression, config={"a": TransformReparam()})
FIXED = numpyro.handlers.substitute(centred_schools, data={"tau": jnp.array(2.0)})
GIVEN = numpyro.handlers.condition(nested_plates, data={"a": FIELD[:, :1]})

POSITIVE = np.array([1.2, 0.7, 1.9, 3.1, 2.2, 0.4])
MODELS = {
    "eight schools": (eight_schools, (SCHOOLS,), {}),
    "centred": (centred_schools, (SCHOOLS,), {}),
    "made non-centred": (NON_CENTRED, (SCHOOLS,), {}),
    "regression": (regression, (X, np.exp(-X)), {}),
    "reparametrised prior": (TRANSFORMED, (X, np.exp(-X)), {"sigma": 0.1}),
    "ordinary differential equation": (hares, (np.full((4, 2), 0.8),), {}),
    "plates": (nested_plates, (FIELD,), {}),
    "covariance": (multivariate, (FIELD,), {"covariance_matrix": MIXING @ MIXING.T}),
    "precision": (multivariate, (FIELD,), {"precision_matrix": MIXING @ MIXING.T}),
    "factors": (multivariate, (FIELD,), {"scale_tril": MIXING * np.arange(1.0, 5.0)[:, None, None]}),
    "unknown covariance": (unknown_covariance, (FIELD,), {}),
    "heavy tails": (heavy_tails, (POSITIVE,), {}),
    "masks": (masked, (POSITIVE, SEEN), {}),
    "several sites": (several_sites, (POSITIVE,), {}),
    "fixed site": (FIXED, (SCHOOLS,), {}),
    "conditioned site": (GIVEN, (FIELD,), {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_density_is_that_of_numpyro(name):
    program, args, kwargs = MODELS[name]
    model = tr.from_numpyro(program, *args, **kwargs)

    def both(key):
        u = model.parameters.draw(key)
        params = model.parameters.values(u)
        expected, _ = log_density(program, args, kwargs, params)
        # A factor of a correlation matrix has more entries than coordinates: its bijection tells the volume.
        if "factor" in params:
            prior = sum(site["fn"].log_prob(params[key]).sum() for key, site in sites(program, args, params).items())
            return model.log_density(u) + model.parameters.energy(u), expected - prior
        slopes = jax.jacfwd(lambda u: ravel_pytree(model.parameters.values(u))[0])(u)
        likelihood = sum(jnp.nansum(part) for part in model.observations.pointwise(params, model.data).values())
        return jnp.stack([model.log_density(u), likelihood - model.parameters.energy(u)]), (
            expected + jnp.linalg.slogdet(slopes)[1]
        )

    found, expected = jax.jit(jax.vmap(both))(jr.split(jr.key(1), 5))
    assert np.isfinite(found).all() and np.ptp(expected) > 0.1
    np.testing.assert_allclose(found.T, np.broadcast_to(expected, found.T.shape), rtol=1e-9, atol=1e-9)


def sites(program, args, params):
    """The latent sites where they have these values."""
    traced = numpyro.handlers.trace(numpyro.handlers.substitute(program, data=params)).get_trace(*args)
    return {name: site for name, site in traced.items() if name in params}


@pytest.mark.parametrize("name", ["unknown covariance", "masks", "several sites", "ordinary differential equation"])
def test_simulated_data_have_standard_noise(name):
    program, args, kwargs = MODELS[name]
    model = tr.from_numpyro(program, *args, **kwargs)

    def noise_and_level(key):
        params_key, data_key = jr.split(key)
        params = model.parameters.values(model.parameters.draw(params_key))
        simulated = model.simulate(data_key, params)
        kept = [simulated[block].ravel()[np.flatnonzero(mask)] for block, mask in model.mask.items()]
        e = model.observations.lift(params, jnp.concatenate(kept)).e
        return e, model.observations.noise_log_density(params, e)

    e, log_density = jax.jit(jax.vmap(noise_and_level))(jr.split(jr.key(0), 2000))
    # All laws but Gumbel's, whose median is -log log 2, are symmetric: signs are fair coins, within 5 standard errors.
    medians = np.concatenate(
        [
            np.full(int(mask.sum()), -np.log(np.log(2)) if block == "gumbel" else 0.0)
            for block, mask in model.mask.items()
        ]
    )
    assert np.abs((e > medians).mean(0) - 0.5).max() < 5 * 0.5 / np.sqrt(2000)
    assert np.isfinite(log_density).all()


def test_plates_are_dimensions_and_deterministic_sites_are_derived():
    model = tr.from_numpyro(eight_schools, SCHOOLS)
    assert model.name == "eight_schools" and model.quantities == ["mu", "tau", "z", "theta"]
    assert model.dims == {"z": ["school"], "theta": ["school"], "y": ["school"]}
    nested = tr.from_numpyro(nested_plates, FIELD)
    assert nested.dims == {"a": ["row", "a_dim_1"], "b": ["column"], "y": ["row", "column"]}
    assert tr.from_numpyro(multivariate, FIELD, covariance_matrix=np.eye(3)).dims == {"y": ["case", "y_dim_1"]}
    made = tr.from_numpyro(NON_CENTRED, SCHOOLS)
    assert made.parameters.names == ["mu", "tau", "theta_decentered"] and list(made.derived) == ["theta"]


def test_only_sites_that_depend_on_others_have_conditional_priors():
    priors = tr.from_numpyro(nested_plates, FIELD).parameters.priors
    assert [isinstance(prior, dist.Distribution) for prior in priors.values()] == [True, False, False]


def test_the_example_samples_a_thin_posterior():
    page = (Path(__file__).parent.parent / "docs" / "bring-your-own.md").read_text()
    example = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "from_numpyro" in block)
    names = {}
    exec(example.replace("1000", "150").replace("seed=1", "seed=1, cores=2, progress=False"), names)
    draws = names["trace"]["posterior"]
    # Only the product of the two is known, to a few parts in 10^4; each for itself is as wide as a prior.
    product = draws["a"].prod("a_dim_0")
    assert abs(float(product.mean()) - 2) < 3e-4 and float(product.std()) < 3e-4
    assert float(np.log(draws["a"]).std(["chain", "draw"]).min()) > 0.3
    assert draws["mean"].dims == ("chain", "draw", "time") and float(draws["mean"].std(["chain", "draw"]).max()) < 2e-4
    assert tr.predict(names["model"], names["trace"])["log_likelihood"]["y"].shape == (2, 150, 6)


def latent_and(*statements):
    def model():
        a = numpyro.sample("a", dist.Normal(0, 1))
        for statement in statements:
            statement(a)

    return model


SEEN_A = lambda a: numpyro.sample("y", dist.Normal(a, 1), obs=1.0)


def subsampled(a):
    with numpyro.plate("batch", 10, subsample_size=5):
        numpyro.sample("y", dist.Normal(a, 1), obs=jnp.ones(5))


def scaled(a):
    with numpyro.handlers.scale(scale=2.0):
        SEEN_A(a)


def chained(a):
    scan(lambda x, _: (numpyro.sample("x", dist.Normal(x, 1)), None), a, jnp.arange(3))


def observe(law, value=1.0, **options):
    return latent_and(lambda a: numpyro.sample("y", law(a), obs=value, **options))


IMPROPER = dist.ImproperUniform(dist.constraints.real, (), ())
BASE = dist.Normal(0.0, 1.0)
REFUSALS = {
    "discrete latent": (latent_and(lambda a: numpyro.sample("k", dist.Poisson(3.0)), SEEN_A), '"k".*discrete'),
    "improper prior": (latent_and(lambda a: numpyro.sample("b", IMPROPER), SEEN_A), '"b".*improper'),
    "param": (latent_and(lambda a: numpyro.param("p", 1.0), SEEN_A), '"p" is a numpyro.param'),
    "factor": (latent_and(SEEN_A, lambda a: numpyro.factor("f", -a)), '"f" is a numpyro.factor'),
    "Poisson": (observe(lambda a: dist.Poisson(jnp.exp(a)), 3), '"y".*Poisson cannot be lifted.*StudentT'),
    "Bernoulli": (observe(lambda a: dist.Bernoulli(logits=a), 1), '"y".*Bernoulli.*cannot be lifted'),
    "Gamma in disguise": (observe(lambda a: dist.InverseGamma(2.0, 1.0)), '"y".*Gamma cannot be lifted'),
    "folded": (observe(lambda a: dist.FoldedDistribution(dist.Normal(a, 1.0))), '"y".*folded'),
    "mixed": (
        observe(
            lambda a: dist.TransformedDistribution(BASE.expand([2]).to_event(1), dist.transforms.OrderedTransform())
        ),
        '"y".*not elementwise',
    ),
    "subsampled plate": (latent_and(subsampled), 'plate "batch" is subsampled'),
    "scale": (latent_and(scaled), '"y": handlers.scale'),
    "scan": (latent_and(chained, SEEN_A), "scan and cond.*StateSpaceModel"),
    "obs_mask": (
        observe(lambda a: dist.Normal(a, 1).expand([2]), jnp.ones(2), obs_mask=jnp.array([True, False])),
        '"y_unobserved" is made by obs_mask.*handlers.mask',
    ),
    "mask that depends": (
        observe(lambda a: dist.Normal(a, 1).expand([2]).mask(a > jnp.array([0.0, -9.0])), jnp.ones(2)),
        "mask depends on latent sites",
    ),
    "nothing observed": (latent_and(), "no observed site"),
    "all masked": (observe(lambda a: dist.Normal(a, 1).mask(False)), "no observed site"),
    "nothing latent": (lambda: numpyro.sample("y", BASE, obs=1.0), "no latent site"),
    "NaN": (observe(lambda a: dist.Normal(a, 1), jnp.nan), '"y".*1 NaN'),
    "outside": (observe(lambda a: dist.LogNormal(a, 1), -1.0), '"y": 1 of its data are outside'),
    "one datum for many": (observe(lambda a: dist.Normal(a * jnp.ones(3), 1)), r'"y".*shape \(\).*\(3,\)'),
    "its own mistake": (latent_and(lambda a: a.nothing), "model raised AttributeError"),
    "no model": (3, "model must be a function"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_translated_is_refused(name):
    model, message = REFUSALS[name]
    with pytest.raises(tr.InputError, match=message):
        tr.from_numpyro(model)


SAMPLED = {
    "eight schools": (eight_schools, (SCHOOLS,), {}),
    "regression": (regression, (X, np.exp(-X) + 0.1 * np.cos(9 * X)), {"sigma": 0.1}),
    "ordinary differential equation": (hares, (np.array([[1.2, 0.5], [1.6, 0.5], [2.1, 0.6], [2.5, 0.9]]),), {}),
    "covariance": (multivariate, (FIELD,), {"covariance_matrix": MIXING @ MIXING.T}),
    "heavy tails": (heavy_tails, (POSITIVE,), {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLED)
def test_draws_agree_with_those_of_numpyro(name):
    program, args, kwargs = SAMPLED[name]
    model = tr.from_numpyro(program, *args, **kwargs)
    ours = tr.sample(model, 2000, 1000, chains=4, seed=1, method="lifted-nuts", progress=False)["posterior"]
    options = dict(num_warmup=1000, num_samples=2000, num_chains=4, chain_method="vectorized", progress_bar=False)
    # From a place of ours: by its own start, a chain of NumPyro may stay in a mode far below the others.
    start = {name: ours[name].values[0, -1] for name in model.parameters.names}
    kernel = NumPyroNUTS(program, target_accept_prob=0.95, dense_mass=True, init_strategy=init_to_value(values=start))
    mcmc = MCMC(kernel, **options)
    mcmc.run(jr.key(2), *args, **kwargs)
    theirs = arviz_base.from_dict({"posterior": mcmc.get_samples(group_by_chain=True)})["posterior"]
    for parameter in model.quantities:
        # Of logarithms where values are positive: tails without moments have no standard errors.
        log = np.log if parameter in ("tau", "df", "sigma", "rates", "a") else np.asarray
        draws = [log(part[parameter].values) for part in (ours, theirs)]
        for moment in (np.mean, np.std):
            (value, error), (expected, their_error) = (with_error(moment, part) for part in draws)
            distance = np.abs(value - expected) / np.hypot(error, their_error)
            print(f"\n{name} {parameter} {moment.__name__}: {distance.max():.2f} standard errors apart at the most")
            assert distance.max() < 4, (parameter, distance)


def with_error(moment, draws):
    """A moment of draws of four chains, and its standard error, from forty batches."""
    batches = [moment(batch, axis=0) for chain in draws for batch in np.split(chain, 10)]
    return moment(draws, axis=(0, 1)), np.std(batches, axis=0, ddof=1) / np.sqrt(len(batches))
