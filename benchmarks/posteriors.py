"""Sample every posterior from several seeds, and keep how it went as a table.

    python benchmarks/posteriors.py [NAME ...] [--seeds 1 2 3] [--results runs/posteriors.jsonl] [--table FILE]

Each run has 4 chains, 500 iterations of warm-up and 1000 draws, what `tightrope run NAME --warmup 500` does. Runs that
the results already hold are not made again, so a stopped benchmark goes on where it was.
"""

import argparse
import json
import warnings
from pathlib import Path

import tightrope as tr
from tightrope.diagnostics import performance
from tightrope.types import FAILURES

CASES = [
    ("toy", 0.1),
    ("toy", 1e-2),
    ("toy", 1e-8),
    ("nonlinear-ssm", 1e-3),
    ("nonlinear-ssm", 1e-1),
    ("nonlinear-ssm", 10.0),
    ("fitzhugh-nagumo", 1.0),
    ("fitzhugh-nagumo", 0.1),
    ("fitzhugh-nagumo", 0.01),
    ("fitzhugh-nagumo", 1e-4),
    ("hodgkin-huxley", 1.0),
    ("hodgkin-huxley", 0.1),
    ("hodgkin-huxley", 0.01),
    ("poisson", 1e-3),
    ("poisson", 1e-1),
    ("poisson", 1.0),
    ("lotka-volterra", None),
    ("soil-hn-t35", None),
    ("soil-ak-t25", None),
    ("squid-potassium", None),
    ("squid-sodium", None),
    ("stochastic-volatility", None),
    ("linear-gaussian", None),
]
DRAWS, WARMUP, CHAINS = 1000, 500, 4
COLUMNS = {
    "name": "{name}",
    "sigma": "{sigma}",
    "seed": "{seed}",
    "R-hat": "{r_hat:.4f}",
    "min ESS": "{ess:.0f}",
    "ESS/s": "{ess_per_second:.3g}",
    "step": "{step_size:.3g}",
    "steps/draw": "{steps_per_draw:.1f}",
    "acceptance": "{acceptance:.2f} ({lowest_acceptance:.2f})",
    "diverging": "{diverging:.2%}",
    "failed": "{projection_failed:.2%}",
    "irreversible": "{non_reversible:.2%}",
    "non-finite": "{non_finite:.2%}",
    "compile / warm-up / sampling s": "{compile_time:.0f} / {warmup_time:.0f} / {sampling_time:.0f}",
}


def run(name, sigma, seed):
    """The figures of one run."""
    model = tr.zoo.load(name, **({} if sigma is None else {"sigma": sigma}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        trace = tr.sample(model, DRAWS, WARMUP, CHAINS, seed, progress=False)
    return {"name": name, "sigma": sigma, "seed": seed, **performance(trace)}


def passes(row):
    """Whether a run may be trusted, and all of its chains moved."""
    return row["r_hat"] <= 1.01 and row["lowest_acceptance"] >= 0.4 and row["ess"] >= 400


def as_table(rows):
    """The rows in Markdown, those that do not pass marked."""
    line = lambda cells: f"| {' | '.join(cells)} |"
    cells = [
        [
            form.format(**{**row, "sigma": "" if row["sigma"] is None else f"{row['sigma']:g}"})
            for form in COLUMNS.values()
        ]
        for row in rows
    ]
    marked = [
        [*row_cells[:3], f"**{row_cells[3]}**" if not passes(row) else row_cells[3], *row_cells[4:]]
        for row, row_cells in zip(rows, cells, strict=True)
    ]
    return "\n".join([line(COLUMNS), line(["---"] * len(COLUMNS)), *map(line, marked)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--results", type=Path, default=Path("runs/posteriors.jsonl"))
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.touch()
    rows = [json.loads(line) for line in options.results.read_text().splitlines()]
    done = {(row["name"], row["sigma"], row["seed"]): row for row in rows}
    for seed in options.seeds:
        for name, sigma in CASES:
            if (name, sigma, seed) in done or (options.names and name not in options.names):
                continue
            row = done[name, sigma, seed] = run(name, sigma, seed)
            with options.results.open("a") as file:
                print(json.dumps(row), file=file)
            print(as_table([row]).splitlines()[-1], flush=True)
    rows = [done[name, sigma, seed] for name, sigma in CASES for seed in options.seeds if (name, sigma, seed) in done]
    if options.table:
        options.table.write_text(f"{TEXT}\n{as_table(rows)}\n")
    print(f"{sum(map(passes, rows))} of {len(rows)} runs pass")


TEXT = f"""# How every posterior runs

Made by `python benchmarks/posteriors.py --table docs/posteriors.md`: {CHAINS} chains, {WARMUP} iterations of warm-up
and {DRAWS} draws, method and starts as they come. A run passes with R-hat at most 1.01 and bulk ESS at least 400 for
the worst of the quantities that `tightrope run` prints, and acceptance at least 0.4 in the worst chain (in
parentheses). The R-hat of one that does not is **bold**. Failures are shares of integrator steps
({", ".join(FAILURES)}), diverging of transitions. Seconds are those of a shared machine with two cores.
"""


if __name__ == "__main__":
    main()
