"""Options of the lifted sampler, one changed at a time, on one posterior: what a step costs, and what it brings.

    python benchmarks/options.py [NAME] [--sigma S] [--seeds 1 2]

Whole runs of 4 chains, 500 iterations of warm-up and 1000 draws. Time per step is of all cores together; only ratios of
one run mean anything on a shared machine.
"""

import argparse
import warnings

import tightrope as tr
from tightrope.diagnostics import performance

OPTIONS = [
    {},
    *({"solver": name} for name in ("newton", "symmetric", "broyden")),
    *({"max_halvings": number} for number in (0, 1, 3)),
    *({"metric": name} for name in ("identity", "diagonal")),
    *({"force": name} for name in ("exact", "cheap", "surrogate")),
    *({"target_accept": target} for target in (0.6, 0.7, 0.8, 0.95)),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="lotka-volterra")
    parser.add_argument("--sigma", type=float)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    asked = parser.parse_args()
    model = tr.zoo.load(asked.name, **({} if asked.sigma is None else {"sigma": asked.sigma}))
    print(f"{'option':24s} seed  iterations/step  us/step  ESS/step  ESS/s  R-hat")
    for options in OPTIONS:
        label = " ".join(f"{name}={value}" for name, value in options.items()) or "as it comes"
        for seed in asked.seeds:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", tr.SamplingWarning)
                trace = tr.sample(model, 1000, 500, 4, seed, method=tr.LiftedNUTS(**options), progress=False)
            stats, found = trace["sample_stats"], performance(trace)
            steps = int(stats["n_steps"].sum())
            print(
                f"{label:24s} {seed:4d}  {int(stats['solver_iterations'].sum()) / steps:15.1f}  "
                f"{1e6 * found['sampling_time'] / steps:7.0f}  {found['ess_per_step']:8.4f}  "
                f"{found['ess_per_second']:5.0f}  {found['r_hat']:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
