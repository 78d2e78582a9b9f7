"""Simulation-based calibration (Talts et al. 2018): where does the truth rank among the draws, over many data sets?

    python tests/calibration.py --picture docs/images/calibration.png

Parameters are drawn from the prior and data from the model; given the data, the rank of the truth among independent
draws is uniform, for any quantity. Ranks of the log-likelihood and of the squared norm of the noise, which depend on
the data, see errors that ranks of parameters alone do not (Modrak et al. 2023).
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from jax import lax

import tightrope as tr
from tightrope.kernel import Draw, Kernel
from tightrope.streams import stream

NUM_DATA_SETS, NUM_WARMUP, NUM_DRAWS, THIN = 400, 100, 200, 4
MAX_DEPTH = 4
FALSE_ALARM = 1e-5  # for each quantity
BAND = np.sqrt(np.log(2 / FALSE_ALARM) / (2 * NUM_DATA_SETS))  # Dvoretzky, Kiefer and Wolfowitz

TIMES = jnp.linspace(0.0, 3.0, 8)


def decay(noise_factor=1.0):
    """More data than parameters."""
    return tr.Model(
        {"a": dist.LogNormal(0.0, 1.0), "k": dist.LogNormal(0.0, 0.5), "s": dist.LogNormal(-2.0, 0.5)},
        lambda p: p["a"] * jnp.exp(-p["k"] * TIMES),
        lambda p: noise_factor * p["s"],
        np.zeros(8),
    )


def product():
    """More parameters than data, which are precise."""
    return tr.Model(
        {"a": dist.Normal(0.0, 1.0), "b": dist.HalfNormal(1.0), "c": dist.Uniform(-1.0, 1.0)},
        lambda p: jnp.array([p["a"] * p["b"] + p["c"] ** 2, p["a"] + p["c"]]),
        0.02,
        np.zeros(2),
    )


def chain():
    """States in a row."""
    return tr.StateSpaceModel(
        {"rho": dist.Uniform(-1.0, 1.0), "s": dist.LogNormal(-1.0, 0.5)},
        initial=lambda phi, nu: nu,
        transition=lambda phi, nu, x: phi["rho"] * x + nu,
        observe=lambda phi, x, eta: jnp.sinh(x) + phi["s"] * eta,
        residual=lambda phi, x, y: (y - jnp.sinh(x)) / phi["s"],
        observed=np.zeros(6),
    )


MODELS = {"decay": decay, "product": product, "chain": chain}


def simulated(model, key):
    """Coordinates from the prior, and data given them."""
    draw_key, noise_key = jr.split(key)
    u = model.parameters.draw(draw_key)
    blocks = model.observations.simulate(noise_key, model.parameters.values(u))
    return u, jnp.concatenate([jnp.ravel(block) for block in blocks.values()])


def sampled(model, y, u, keys, num_warmup, num_draws, max_depth=MAX_DEPTH):
    """Draws of u given each of many data sets, shape (data set, draw, d), by the compiled part of the sampler."""
    kernel, stop = Kernel(model, tr.LiftedNUTS(force="exact", max_depth=max_depth), num_warmup), num_warmup + num_draws
    tuning = kernel.method.initial_tuning(model.condition())
    kernel.capacity = (
        stop * 2**max_depth
    )  # steps, enough for all draws in one call; XLA makes its loop quick below 2 MB

    def given(y, u, key):
        chains = kernel._begin(y, tuning, stream(key)[None], u[None], jnp.array(0), jnp.full(1, 0.3))
        return kernel._advance(y, tuning, chains, jnp.array(stop), jnp.array(kernel.capacity))[1][0, num_warmup:stop]

    # One after the other: none waits for the longest trees of another.
    return Draw.unpack(np.asarray(jax.jit(lambda *sets: lax.map(lambda one: given(*one), sets))(y, u, keys))).u


def quantities(model, u, y):
    """What is ranked: coordinates, the log-likelihood, and the squared norm of the noise."""
    posterior = model.condition(y)
    lift = posterior.lift(u)
    likelihood = -posterior.noise_energy(u, lift.e) - lift.log_scale
    return jnp.concatenate([u, jnp.stack([likelihood, jnp.sum(lift.e**2)])])


def ranks(model, fitted=None, seed=1):
    """Ranks of the truth between 0 and 1, shape (data set, quantity), where another model may be fitted."""
    fitted = model if fitted is None else fitted
    data_key, chain_key, tie_key = jr.split(jr.key(seed), 3)
    truth, y = jax.jit(jax.vmap(lambda key: simulated(model, key)))(jr.split(data_key, NUM_DATA_SETS))
    u = sampled(fitted, y, truth, jr.split(chain_key, NUM_DATA_SETS), NUM_WARMUP, NUM_DRAWS)[:, THIN - 1 :: THIN]
    of_draws = jax.jit(jax.vmap(jax.vmap(lambda u, y: quantities(fitted, u, y), (0, None))))(u, y)
    of_truth = jax.jit(jax.vmap(lambda u, y: quantities(fitted, u, y)))(truth, y)
    below = np.asarray(of_draws < of_truth[:, None]).sum(1)
    return (below + np.asarray(jr.uniform(tie_key, below.shape))) / (of_draws.shape[1] + 1)


def distances(found):
    """Of each quantity's ranks from the uniform law."""
    ordered, steps = np.sort(found, axis=0), np.arange(len(found) + 1)[:, None] / len(found)
    return np.maximum((steps[1:] - ordered).max(0), (ordered - steps[:-1]).max(0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, required=True)
    options = parser.parse_args()
    figure, axes = plt.subplots(1, len(MODELS), figsize=(12, 3.5), sharey=True, layout="constrained")
    for axis, (name, build) in zip(axes, MODELS.items(), strict=True):
        model = build()
        found = ranks(model)
        print(name, "distances", np.round(distances(found), 3), f"band {BAND:.3f}", flush=True)
        levels = np.linspace(0, 1, 200)
        for column in range(found.shape[1]):
            excess = (found[:, column][:, None] <= levels).mean(0) - levels
            place = column - model.d
            label = {-2: "log-likelihood", -1: "squared noise"}.get(place)
            color = {-2: "tab:orange", -1: "tab:red"}.get(place, "tab:blue")
            axis.plot(levels, excess, color=color, label=label, linewidth=1.5 if label else 0.7)
        axis.axhspan(-BAND, BAND, color="0.92", zorder=0)
        axis.set(title=f"{name}: {model.d} coordinates, {model.m} data", xlabel="rank of the truth")
    axes[0].set_ylabel("ECDF minus uniform")
    axes[0].legend(frameon=False)
    figure.savefig(options.picture, dpi=120)


if __name__ == "__main__":
    main()
