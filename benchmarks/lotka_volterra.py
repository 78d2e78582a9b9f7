"""Lotka-Volterra: Tightrope and NumPyro's NUTS with a dense metric, one after the other in one run.

    python benchmarks/lotka_volterra.py [--chains 4] [--draws 1000] [--warmup 1000] [--seed 1]

Both get the same log density or the residual map that makes it, the same starting points and the same cores, each
in a process of its own. NumPyro runs its chains vectorised and one after the other, as it comes and with the
compiler setting that `import tightrope` makes. Seconds of sampling are those after warm-up, without compilation;
only their ratio means anything on a shared machine.
"""

import argparse
import multiprocessing
import os
import time

import arviz_base
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from numpyro.infer import MCMC, NUTS

import tightrope as tr
from tightrope.environment import without_ours
from tightrope.initialise import starting_points


def measure(label, draws, seconds, compile_time):
    """Print and return min bulk ESS per second; coordinates u, shape (chain, draw, d)."""
    assert all(len(np.unique(chain[:, 0])) > 1 for chain in draws), f"{label}: a chain never moved"
    table = tr.summary(arviz_base.from_dict({"posterior": {"u": draws}}))
    ess, r_hat = table["ess_bulk"].min(), table["r_hat"].max()
    print(
        f"{label:46s} min bulk ESS {ess:6.0f}  R-hat {r_hat:.4f}  sampling {seconds:6.2f} s  "
        f"ESS/s {ess / seconds:7.1f}  compile {compile_time:5.1f} s",
        flush=True,
    )
    return ess / seconds


def tightrope(options):
    model = tr.zoo.load("lotka-volterra")
    trace = tr.sample(model, options.draws, options.warmup, options.chains, options.seed)
    group, times = trace["unconstrained_posterior"], trace["posterior"].attrs
    shape = (options.chains, options.draws, -1)
    draws = np.concatenate([group[name].values.reshape(shape) for name in model.parameters.names], axis=2)
    return measure("tightrope", draws, times["sampling_time"], times["compile_time"])


def numpyro(options, chain_method, setting):
    model = tr.zoo.load("lotka-volterra")
    u = starting_points(model, "auto", jr.key(options.seed), options.chains)
    kernel = NUTS(potential_fn=lambda u: -model.log_density(u), dense_mass=True)
    mcmc = MCMC(
        kernel,
        num_warmup=options.warmup,
        num_samples=options.draws,
        num_chains=options.chains,
        chain_method=chain_method,
        progress_bar=False,
    )
    key = jr.key(options.seed)
    started = time.perf_counter()
    mcmc.warmup(key, init_params=jnp.asarray(u if options.chains > 1 else u[0]))
    mcmc.run(key)
    first = time.perf_counter() - started
    # The same again from where it stands: nothing is compiled now.
    mcmc.post_warmup_state = mcmc.last_state
    started = time.perf_counter()
    mcmc.run(mcmc.post_warmup_state.rng_key)
    draws = np.asarray(jax.block_until_ready(mcmc.get_samples(group_by_chain=True)))
    seconds = time.perf_counter() - started
    return measure(f"numpyro, {chain_method}, {setting}", draws, seconds, max(0.0, first - 2 * seconds))


def in_own_process(function, *args, as_it_comes=False):
    """Call a function where JAX has the settings that Tightrope makes, or none."""
    before = dict(os.environ)
    if as_it_comes:
        os.environ |= without_ours()
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(function, args)
    finally:
        os.environ.clear()
        os.environ |= before


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("chains", 4), ("draws", 1000), ("warmup", 1000), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    ours = in_own_process(tightrope, options)
    for as_it_comes, setting in ((True, "as it comes"), (False, "with our compiler setting")):
        theirs = max(
            in_own_process(numpyro, options, chains, setting, as_it_comes=as_it_comes)
            for chains in ("vectorized", "sequential")
        )
        print(f"ratio of ESS per second of sampling to NumPyro {setting}: {ours / theirs:.1f}", flush=True)


if __name__ == "__main__":
    main()
