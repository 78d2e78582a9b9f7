"""Judge the choices of `auto`: run it, the lifted sampler and dense NUTS on every posterior, and see which was better.

    python benchmarks/auto.py [NAME ...] [--seed 1] [--table FILE]

Better is more effective draws per second of sampling; a sampler that does not converge (R-hat above 1.05) has none.
NUTS is stopped when it has taken as long as the lifted sampler, both with compilation, but not before 20 seconds, and
judged by what it has then. What `auto` costs is the time of the sampler that it gave up, in seconds and as a share of
the rest of the run without compilation. There are 4 chains, each of 1000 iterations of warm-up and 1000 draws; 200 of
each for nonlinear-ssm and poisson.
"""

import argparse
import warnings
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import tightrope as tr
from tightrope.diagnostics import performance
from tightrope.results import NoDraws

MAX_R_HAT = 1.05
LENGTHS = {"nonlinear-ssm": 200, "poisson": 200}  # iterations of warm-up and draws, where they are not 1000


def regression(num_data=5000, d=20):
    """Linear and much observed."""
    random = np.random.default_rng(0)
    x = random.normal(size=(num_data, d))
    x[:, 1] += 3 * x[:, 0]
    y = x.sum(1) + random.normal(size=num_data)
    return tr.Model({"b": dist.Normal(0.0, 1.0).expand([d])}, lambda p: jnp.asarray(x) @ p["b"], 1.0, y)


def saturating(num_data=3000):
    """A curve with four parameters, much observed."""
    t = np.linspace(0, 5, num_data)
    y = 2 * (1 - np.exp(-t)) + 0.3 + 0.3 * np.random.default_rng(1).normal(size=num_data)
    priors = {name: dist.LogNormal(0.0, 1.0) for name in ("a", "k", "s")} | {"c": dist.Normal(0.0, 1.0)}
    return tr.Model(priors, lambda p: p["a"] * (1 - jnp.exp(-p["k"] * t)) + p["c"], "s", y)


MODELS = {
    **{name: lambda name=name: tr.zoo.load(name) for name in list(tr.zoo.MODELS)[:10]},
    "regression": regression,
    "saturating": saturating,
}


def figures(model, length, seed, method, max_time=None):
    """Effective draws per second, all seconds but those of compilation, and the trace's own account."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        try:
            trace = tr.sample(model, length, length, 4, seed, method=method, max_time=max_time, progress=False)
        except NoDraws:
            return 0.0, max_time, {}
    found = performance(trace)
    rate = found["ess_per_second"] if found["r_hat"] < MAX_R_HAT else 0.0
    return rate, found["warmup_time"] + found["sampling_time"], trace.posterior.attrs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    lines = [
        "| posterior | lifted ESS/s | dense NUTS ESS/s | auto took | right | cost |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for name in options.names or MODELS:
        run = partial(figures, MODELS[name](), LENGTHS.get(name, 1000), options.seed)
        lifted, seconds, account = run("lifted-nuts")
        dense, _, _ = run(tr.NUTS(metric="dense"), max(20.0, seconds + account["compile_time"]))
        _, total, found = run("auto")
        other = found.get("choice_time", 0.0)  # none without a trial
        right = "yes" if found["method"] == ("nuts" if dense > lifted else "lifted-nuts") else "**no**"
        cost = f"{other:.2g} s, {other / (total - other):.0%}"
        lines.append(f"| {name} | {lifted:.3g} | {dense:.3g} | {found['method']} | {right} | {cost} |")
        print(lines[-1], f"<!-- {found['choice']} -->", flush=True)
    if options.table:
        text = __doc__.split("\n\n")[-1].strip()
        options.table.write_text(
            f"# What `auto` chooses\n\nMade by `python benchmarks/auto.py --table {options.table}`. {text}\n\n"
            + "\n".join(lines)
            + "\n"
        )


if __name__ == "__main__":
    main()
