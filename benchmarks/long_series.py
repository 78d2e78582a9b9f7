"""A hidden autoregression of 1000, 10000 and 100000 states: time per integrator step, and memory.

    python benchmarks/long_series.py [--lengths 1000 10000 100000] [--draws 10]

Whole runs of two chains, with a step size that is given and shrinks as the fourth root of the length, and trees of at
most 7 steps, each run in a process of its own. The slope is that of log time over log length.
"""

import argparse
import multiprocessing
import resource
import warnings

import numpy as np

import tightrope as tr


def run(length, draws):
    """Milliseconds of a step of both chains, the share of steps that failed, and the peak of memory in GiB."""
    model = tr.zoo.load("nonlinear-ssm", sigma=0.1, T=length)
    method = tr.LiftedNUTS(step_size=0.2 * (1000 / length) ** 0.25, max_depth=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        trace = tr.sample(model, draws, 0, 2, seed=1, method=method, init="truth", keep=["mu"], progress=False)
    stats = trace["sample_stats"]
    steps = stats["n_steps"].values.sum(axis=1).max()
    failed = float(stats["projection_failed"].sum() + stats["non_finite"].sum()) / float(stats["n_steps"].sum())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return 1e3 * trace["posterior"].attrs["sampling_time"] / steps, failed, peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--draws", type=int, default=10)
    options = parser.parse_args()
    times = []
    for length in options.lengths:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            milliseconds, failed, peak = pool.apply(run, (length, options.draws))
        times.append(milliseconds)
        print(f"T {length:7d}: {milliseconds:8.2f} ms a step, {failed:.1%} failed, peak {peak:.2f} GiB", flush=True)
    slope = np.polyfit(np.log(options.lengths), np.log(times), 1)[0]
    print(f"slope {slope:.2f}")


if __name__ == "__main__":
    main()
