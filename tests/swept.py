"""A small sweep whose every run leaves a line in a log; by itself, for tests that kill it.

python tests/swept.py DIRECTORY LOG ENGINE [SCHEDULER]
"""

import os
import signal
import sys

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import tightrope as tr

SIGMAS = (0.3, 0.1, 0.03)
WEIGHTS = np.array([1.0, 1.5, 2.0])


def line(sigma, log):
    """y = w a + sigma eta, whose posterior is normal; its functions know a JAX array and who traces them."""
    weights = jnp.asarray(WEIGHTS)

    def forward(params):
        with open(log, "a") as file:
            print(sigma, os.getpid(), file=file)
        return weights * params["a"]

    return tr.Model({"a": dist.Normal(0.0, 1.0)}, forward, sigma, WEIGHTS / 2, name=f"line-{sigma}")


def exact(sigma):
    """Mean and standard deviation of a."""
    precision = 1 + WEIGHTS @ WEIGHTS / sigma**2
    return WEIGHTS @ WEIGHTS / 2 / sigma**2 / precision, precision**-0.5


def cells(log, sigmas=SIGMAS):
    shared = {"method": tr.RWM(metric="identity"), "init": {"a": 0.4}, "chains": 2, "warmup": 100, "draws": 300}
    return [tr.Cell(model=line(sigma, log), seed=3, labels={"sigma": sigma}, **shared) for sigma in sigmas]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background of a shell
    directory, log, engine, *scheduler = sys.argv[1:]
    tr.sweep(cells(log), directory, engine=engine, workers=1, scheduler=scheduler[0] if scheduler else None)
