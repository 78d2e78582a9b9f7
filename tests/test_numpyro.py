"""NUTS without the manifold: the same draws, at the same cost in steps, as NumPyro's."""

import warnings

import arviz_base
import arviz_stats
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from numpyro.infer import MCMC
from numpyro.infer import NUTS as NumPyroNUTS

import tightrope as tr
from tightrope.initialise import starting_points

MUCH_COMPUTED = True

# With 1000 draws the standard errors of standard deviations are up to a third too small: of 40 pieces of a long run.
DRAWS, WARMUP, CHAINS = 4000, 1000, 4


def ours(model, metric):
    """Draws of u, shape (chain, draw, d), and the mean number of steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        trace = tr.sample(model, DRAWS, WARMUP, CHAINS, seed=1, method=tr.NUTS(metric=metric), progress=False)
    group = trace["unconstrained_posterior"]
    parts = [group[name].values.reshape(CHAINS, DRAWS, -1) for name in model.parameters.names]
    return np.concatenate(parts, axis=2), float(trace["sample_stats"]["n_steps"].mean())


def theirs(model, metric):
    """The same by NumPyro, from starts of the same kind."""
    u = starting_points(model, "auto", jr.key(2), CHAINS)
    kernel = NumPyroNUTS(potential_fn=lambda u: -model.log_density(u), dense_mass=metric == "dense")
    options = dict(num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS, progress_bar=False)
    mcmc = MCMC(kernel, chain_method="vectorized", **options)
    mcmc.run(jr.key(3), init_params=jnp.asarray(u), extra_fields=("num_steps",))
    return np.asarray(mcmc.get_samples(group_by_chain=True)), float(mcmc.get_extra_fields()["num_steps"].mean())


def estimates(draws):
    """Means and standard deviations of each coordinate, and their standard errors."""
    trace = arviz_base.from_dict({"posterior": {"u": draws}})
    found = {}
    for kind, values in (("mean", draws.mean((0, 1))), ("sd", draws.std((0, 1)))):
        found[kind] = values, arviz_stats.mcse(trace, method=kind)["u"].values
    return found


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["dense", "diagonal"])
@pytest.mark.parametrize("name", ["lotka-volterra", "squid-potassium"])
def test_nuts_agrees_with_numpyro(name, metric):
    model = tr.zoo.load(name)
    (draws, steps), (their_draws, their_steps) = ours(model, metric), theirs(model, metric)
    found, expected = estimates(draws), estimates(their_draws)
    for kind in ("mean", "sd"):
        (value, error), (their_value, their_error) = found[kind], expected[kind]
        distance = np.abs(value - their_value) / np.hypot(error, their_error)
        print(f"\n{name} {metric} {kind}: {distance.max():.2f} standard errors apart at the most")
        assert distance.max() < 4, (kind, distance)
    print(f"{name} {metric}: {steps:.2f} steps a draw, {their_steps:.2f} of NumPyro")
    assert abs(np.log(steps / their_steps)) < np.log(1.25)
