"""NumPyro models, as they stand, by Tightrope and by NumPyro's NUTS with a dense metric: a table.

    python benchmarks/numpyro_models.py [NAME ...] [--seed 1] [--table docs/numpyro-table.md]

Each sampler has 4 chains, 1000 iterations of warm-up and 1000 draws. Seconds are of processor time, compiling included.
"""

import argparse
import time
import warnings
from pathlib import Path

import arviz_base
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro.infer import MCMC, NUTS

import tightrope as tr


# schools
def eight_schools(y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        z = numpyro.sample("z", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, SPREAD), obs=y)


# regression
def regression(x, y, sigma):
    a = numpyro.sample("a", dist.LogNormal(0, 1).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("x", len(x)):
        mean = numpyro.deterministic("mean", a[0] * a[1] * jnp.exp(-b * x))
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


# sum
def regression_on_a_sum(x, y, sigma):
    a = numpyro.sample("a", dist.LogNormal(0, 1).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("x", len(x)):
        numpyro.sample("y", dist.Normal((a[0] + a[1]) * jnp.exp(-b * x), sigma), obs=y)


# hares
def hares(y):
    rates = numpyro.sample("rates", dist.LogNormal(jnp.array([0.0, -1.0]), 0.3).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-2, 0.5))

    def advance(x, _):
        x = x + 0.1 * jnp.stack([x[0] * (rates[0] - x[1]), x[1] * (rates[1] * x[0] - 1)])
        return x, x

    path = lax.scan(advance, jnp.array([1.0, 0.5]), None, length=20)[1]
    numpyro.sample("y", dist.LogNormal(jnp.log(path[::5]), sigma).to_event(2), obs=y)


# covariance
def multivariate(y, covariance):
    mean = numpyro.sample("mean", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("case", 4):
        numpyro.sample("y", dist.MultivariateNormal(mean, covariance), obs=y)


# tails
def heavy_tails(x, y):
    df = numpyro.sample("df", dist.Gamma(2.0, 0.1))
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.StudentT(df + x, mu, 0.2 + 0.1 * x), obs=y)


# data
SCHOOLS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
SPREAD = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
X = np.linspace(0.1, 2.0, 6)
PELTS = np.array([[1.2, 0.5], [1.6, 0.5], [2.1, 0.6], [2.5, 0.9]])
FIELD = np.sin(np.arange(12.0)).reshape(4, 3)
MIXING = np.array([[1.0, 0.0, 0.0], [0.5, 0.8, 0.0], [-0.3, 0.2, 0.5]])
POSITIVE = np.array([1.2, 0.7, 1.9, 3.1, 2.2, 0.4])
MODELS = {
    "eight schools": (eight_schools, (SCHOOLS,)),
    "regression, sigma 0.1": (regression, (X, np.exp(-X) + 0.1 * np.cos(9 * X), 0.1)),
    "regression, sigma 1e-4": (regression, (X, np.exp(-X) + 1e-4 * np.cos(9 * X), 1e-4)),
    "the same on a sum, 1e-4": (regression_on_a_sum, (X, 2 * np.exp(-X) + 1e-4 * np.cos(9 * X), 1e-4)),
    "hares and lynxes": (hares, (PELTS,)),
    "covariance": (multivariate, (FIELD, MIXING @ MIXING.T)),
    "heavy tails": (heavy_tails, (X, POSITIVE)),
}
# end of data

CHAINS, WARMUP, DRAWS = 4, 1000, 1000
HEAD = ["model", "sampler", "R-hat", "min ESS", "steps a draw", "ESS per 1000 steps", "divergences", "processor s"]
MAX_R_HAT = 1.05  # of chains whose ESS means something


def ours(program, args, seed):
    """A trace, and the number of steps and divergences."""
    model = tr.from_numpyro(program, *args)
    trace = tr.sample(model, DRAWS, WARMUP, CHAINS, seed, cores=1, progress=False)
    stats = trace["sample_stats"]
    return trace, model.parameters.names, int(stats["n_steps"].sum()), int(stats["diverging"].sum())


def theirs(program, args, seed):
    options = dict(num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS, chain_method="sequential")
    mcmc = MCMC(NUTS(program, dense_mass=True), progress_bar=False, **options)
    mcmc.run(jr.key(seed), *args, extra_fields=("num_steps", "diverging"))
    extra, names = mcmc.get_extra_fields(), list(mcmc.last_state.z)
    trace = arviz_base.from_dict({"posterior": mcmc.get_samples(group_by_chain=True)})
    return trace, names, int(extra["num_steps"].sum()), int(extra["diverging"].sum())


def row(name, sampler, run, seed):
    """The figures of one run; those of chains that do not agree have no effective draws."""
    program, args = MODELS[name]
    began = time.process_time()
    trace, names, steps, divergences = run(program, args, seed)
    seconds = time.process_time() - began
    table = tr.summary(trace, names)
    r_hat, ess = table["r_hat"].max(), table["ess_bulk"].min()
    agree = r_hat <= MAX_R_HAT
    figures = [f"{ess:.0f}", f"{steps / (CHAINS * DRAWS):.1f}", f"{1000 * ess / steps:.3g}"]
    figures = figures if agree else ["none", figures[1], "none"]
    return [
        name,
        sampler,
        f"{r_hat:.3f}" if agree else f"**{r_hat:.2f}**",
        *figures,
        str(divergences),
        f"{seconds:.0f}",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    numpyro.enable_validation(False)  # or a start at which the equation has no solution ends the run
    jax.config.update("jax_enable_compilation_cache", False)
    line = lambda cells: f"| {' | '.join(cells)} |"
    lines = [line(HEAD), line(["---"] * len(HEAD))]
    print("\n".join(lines), flush=True)
    for name in options.names or MODELS:
        for sampler, run in (("Tightrope", ours), ("NumPyro", theirs)):
            lines.append(line(row(name, sampler, run, options.seed)))
            print(lines[-1], flush=True)
    if options.table:
        options.table.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
