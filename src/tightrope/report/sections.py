"""The sections of a report."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import arviz_stats
import numpy as np
import xarray as xr
from scipy.stats import rankdata

from tightrope.report import pictures
from tightrope.report.account import Account
from tightrope.report.html import coded, figures, items, pairs, paragraph, section, table
from tightrope.report.pictures import picture
from tightrope.types import FAILURES

MAX_ROWS = 40  # of the summary
MAX_QUANTITIES = 6  # whose chains are drawn
MAX_PAIRS = 6
MAX_SERIES = 6  # of data
MAX_CORRELATED = 300  # quantities among which pairs are sought


def everything(account: Account) -> str:
    """The page, without its head."""
    body = [verdict(account)]
    if account.has_draws:
        body += [estimates(account), chains(account), correlations(account), predictions(account)]
        body += [sampler(account), timing(account)]
    return f"{header(account)}<main>{''.join(body)}{what_was_run(account)}</main>{footer(account)}"


def header(account: Account) -> str:
    record = account.record
    method = account.posterior.attrs.get("method") if account.has_draws else None
    facts = [method or record["method"]["name"]]
    if account.has_draws:
        num_chains, num_draws = account.stats["lp"].shape
        facts.append(f"{num_chains} chain{'s' * (num_chains > 1)} of {num_draws} draws")
    if "seed" in record["options"]:
        facts.append(f"seed {record['options']['seed']}")
    name = coded(record["model"]["name"])
    return f"<header><p>Tightrope report</p><h1>{name}</h1><p>{coded(' · '.join(facts))}</p></header>"


def footer(account: Account) -> str:
    return f"<footer><p>Written by Tightrope {account.record['versions']['tightrope']}.</p></footer>"


def verdict(account: Account) -> str:
    """Whether the draws can be relied on, and why."""
    title, kind, texts = judgement(account)
    mark = {"good": "✓", "fair": "!", "poor": "✗"}[kind]
    content = "".join(paragraph(text) for text in texts)
    if account.has_draws:
        content += items(finding[0].upper() + finding[1:] for finding in account.findings())
    heading = f'<h2 id="verdict"><span class="mark" aria-hidden="true">{mark}</span>{title}</h2>'
    tiles = highlights(account) if account.has_draws else ""
    return f'<section class="verdict {kind}" aria-labelledby="verdict">{heading}{content}</section>{tiles}'


def judgement(account: Account) -> tuple[str, str, list[str]]:
    """The verdict: in a word, how good, and in sentences."""
    if not account.has_draws:
        return "Unfinished", "fair", [progress(account), "There are no draws yet."]
    word, kind, reason = convergence(account)
    if not account.is_finished:
        return "Unfinished", "fair", [progress(account), f"So far: {word.lower()}. {reason}"]
    return word, kind, [reason]


def convergence(account: Account) -> tuple[str, str, str]:
    """What to make of the draws there are: in a word, how good, and why."""
    num_chains, num_draws = account.stats["lp"].shape
    if not account.is_converged:
        few = "There are too few draws to tell."
        return "Not converged", "poor", few if num_draws < 8 else "Do not rely on these estimates yet."
    least = account.table[["ess_bulk", "ess_tail"]].min().min()
    reason = f"Every quantity has at least {least:.0f} effective draws, in bulk and in tails"
    reason += "." if num_chains == 1 else f", and R-hat is at most {account.table['r_hat'].max():.3f}."
    return ("Converged, with reservations", "fair", reason) if account.findings() else ("Converged", "good", reason)


def progress(account: Account) -> str:
    """How far a run is, and how to go on."""
    status = account.status
    done = f"The slowest chain has made {min(status['iterations'])} of {status['total']} iterations, warm-up included"
    if status["is_running"]:
        return f"{done}; the run goes on: make the report again later."
    return f"{done}, and the run was stopped. Go on with `tightrope resume {account.directory}`."


def highlights(account: Account) -> str:
    """The figures to see first."""
    figures = account.performance()
    return pairs(
        {
            "max R-hat": number(figures["r_hat"], ".3f"),
            "min bulk ESS": number(figures["ess"], ".0f"),
            "ESS a second": number(figures["ess_per_second"], ".3g"),
            "acceptance": f"{figures['acceptance']:.2f}",
            "steps a draw": f"{figures['steps_per_draw']:.1f}",
            "time sampling": duration(figures["sampling_time"]),
        },
        "tiles",
    )


def number(value: float, form: str) -> str:
    """A number, or a dash for none; large ones in full."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else format(value, form)


def duration(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.1g} s"


def estimates(account: Account) -> str:
    """The summary."""
    shown = account.table.loc[account.most_telling(MAX_ROWS)]
    rows = [
        [
            label,
            *(number(row[key], ".4g") for key in ("mean", "sd", "eti89_lb", "eti89_ub")),
            *(number(row[key], ".0f") for key in ("ess_bulk", "ess_tail")),
            number(row["r_hat"], ".3f"),
        ]
        for label, row in shown.iterrows()
    ]
    columns = ["", "mean", "sd", "5.5 %", "94.5 %", "ESS bulk", "ESS tail", "R-hat"]
    return section("Estimates", table("Posterior summary", columns, rows), items(left_out(account, len(shown))))


def left_out(account: Account, num_shown: int) -> list[str]:
    """What is not shown, and where it is."""
    notes, total = [], len(account.table)
    if num_shown < total:
        notes.append(
            f"{num_shown} of {total} rows: of each quantity the one with the fewest effective draws, then the next."
        )
    named = {label.partition("[")[0] for label in account.table.index}
    for name, values in account.posterior.data_vars.items():
        if name not in named:
            size = values.size // (values.sizes["chain"] * values.sizes["draw"])
            notes.append(f"`{name}`, {size} numbers a draw, is in the trace.")
    return notes


def chains(account: Account) -> str:
    """Whether the chains agree, to the eye."""
    draws, labels = account.quantities(), account.most_telling(MAX_QUANTITIES)
    found = []
    for label in labels:
        values = draws[label]
        row = account.table.loc[label]
        facts = f"R-hat {number(row['r_hat'], '.3f')}, bulk ESS {number(row['ess_bulk'], '.0f')}"
        found += [
            (label, picture(f"Histograms of {label}, one for each chain", pictures.marginals(values))),
            (
                f"{label} from draw to draw",
                picture(f"Chains of {label} from draw to draw: {facts}", pictures.paths(values)),
            ),
            (
                f"ranks of {label}",
                picture(f"Ranks of each chain's {label} among all draws: {facts}", pictures.ranks(values)),
            ),
        ]
    note = "One colour a chain. Chains that agree have the same histograms, and ranks near the dashed line."
    if len(labels) < len(account.table):
        note += f" Shown are {len(labels)} of {len(account.table)} quantities, those that mix worst among them."
    return section("Chains", paragraph(note), figures(found))


def correlations(account: Account) -> str:
    """The pairs of quantities that know most of each other."""
    draws = account.quantities()
    labels = account.most_telling(MAX_CORRELATED)
    varying = [label for label in labels if np.ptp(draws[label]) > 0 and np.isfinite(draws[label]).all()]
    if len(varying) < 2:
        return ""
    matrix = np.corrcoef([rankdata(draws[label]) for label in varying])
    every = sorted(itertools.combinations(range(len(varying)), 2), key=lambda pair: -abs(matrix[pair]))
    found = []
    for i, j in every[:MAX_PAIRS]:
        a, b, size = varying[i], varying[j], round(matrix[i, j], 2) + 0.0  # not -0.00
        drawn = pictures.scatter(draws[a], draws[b], account.stats["diverging"].values.ravel(), size)
        title = f"{b} against {a}"
        found.append((title, picture(f"Draws of {title}, rank correlation {size:.2f}", drawn)))
    note = "ρ is the rank correlation."
    if len(every) > MAX_PAIRS:
        note = f"The {MAX_PAIRS} of {len(every)} pairs with the largest rank correlation ρ."
    return section("Pairs", paragraph(note), figures(found))


def predictions(account: Account) -> str:
    """What the model would predict, beside what was seen."""
    predicted, reason = account.predictions()
    if predicted is None:
        return section("Predictions", paragraph(reason))
    simulated = predicted.children["posterior_predictive"].dataset
    series = [
        (name, *one)
        for name, y in account.trace.children["observed_data"].data_vars.items()
        for one in cut(y, simulated[name])
    ]
    found = []
    for name, entry, place, y, draws in series[:MAX_SERIES]:
        title = f"{name}{entry}"
        if len(y) == 1:
            alone = pictures.histogram(draws[:, 0], y[0])
            found.append((title, picture(f"Histogram of predictions of {title}, and the datum", alone)))
            continue
        middle = np.median(draws, axis=0)
        drawn = pictures.intervals(place, draws, y)
        left = pictures.intervals(place, draws - middle, y - middle)
        found += [
            (title, picture(f"Intervals of predictions of {title}, and the data", drawn)),
            (f"{title}, less the median", picture(f"Data {title} less the median of their predictions", left)),
        ]
    y, draws = np.concatenate([s[3] for s in series]), np.concatenate([s[4] for s in series], axis=1)
    note = "Histograms are of new data that the posterior predicts, and lines are the data."
    if any(len(s[3]) > 1 for s in series):
        covered = [share_covered(y, draws, level) for level in (0.5, 0.9)]
        note = (
            "Dots are the data. The colour is strong over the central 50 % and faint over the central 90 % of new data "
            f"that the posterior predicts: there lie {covered[0]:.0%} and {covered[1]:.0%} of the data, "
            f"{np.isfinite(y).sum()} in all."
        )
    if len(series) > MAX_SERIES:
        note += f" Shown are {MAX_SERIES} of {len(series)} series."
    return section("Predictions", paragraph(note), figures(found, "wide"))


def share_covered(y: np.ndarray, draws: np.ndarray, level: float) -> float:
    """Of the data, the share within the central interval of their predictions."""
    low, high = np.quantile(draws, ((1 - level) / 2, (1 + level) / 2), axis=0)
    seen = np.isfinite(y)
    return float(((low <= y) & (y <= high))[seen].mean())


def cut(y: xr.DataArray, predicted: xr.DataArray) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """A block of data as series along its first axis: their entry in the others, places, data, and predictions."""
    first, others = y.dims[:1], y.dims[1:]
    place = np.arange(y.size) if not first else y[first[0]].values
    if not np.issubdtype(place.dtype, np.number):
        place = np.arange(len(place))
    draws = predicted.transpose("chain", "draw", *y.dims).values.reshape(-1, len(place), y.size // len(place))
    values = y.values.reshape(len(place), -1)
    labels = itertools.product(*(y[dim].values for dim in others))
    for column, label in enumerate(labels):
        entry = f"[{', '.join(map(str, label))}]" if label else ""
        yield entry, place, values[:, column], draws[:, :, column]


def sampler(account: Account) -> str:
    """Energies, step sizes, solver iterations, and what failed."""
    stats = account.stats
    steps, solver = stats["n_steps"].values, stats["solver_iterations"].values
    sizes = np.concatenate([account.warmup_step_sizes, stats["step_size"].values], axis=1)
    num_warmup = account.warmup_step_sizes.shape[1]
    title = "step size, warm-up left of the dashes" if num_warmup else "step size"
    drawn = {
        title: ("The step size of each chain", pictures.step_sizes(sizes, num_warmup)),
        "acceptance": ("Acceptance of each chain", pictures.marginals(stats["acceptance_rate"].values)),
    }
    note = ""
    if has_trajectories(stats):
        text = "Histograms of the energy about its mean and of its change from draw to draw"
        drawn["energy"] = (text, pictures.energies(stats["energy"].values))
        note = "An E-BFMI below 0.3 would say that the energy changes far less from draw to draw than it spreads."
    if np.ptp(steps):
        drawn["steps a draw"] = ("Histograms of integrator steps a draw", pictures.counts(steps))
    if solver.any():
        a_step = solver / np.maximum(steps, 1)
        drawn["solver iterations a step"] = ("Histograms of solver iterations a step", pictures.counts(a_step))
    found = [(title, picture(text, draw)) for title, (text, draw) in drawn.items()]
    return section("Sampler", by_chain(account), paragraph(note), figures(found))


def has_trajectories(stats: xr.Dataset) -> bool:
    """Whether energy has a say: it has none in proposals of a single step."""
    return bool(stats.sizes["draw"] > 1 and (stats["n_steps"] > 1).any())


def by_chain(account: Account) -> str:
    """Counts of what happened, a row for each chain."""
    stats = account.stats
    total = lambda name: [f"{count:,}" for count in stats[name].sum("draw").values]
    columns = {
        "step size": [f"{size:.3g}" for size in stats["step_size"].values[:, -1]],
        "acceptance": [f"{rate:.2f}" for rate in stats["acceptance_rate"].mean("draw").values],
        "steps": total("n_steps"),
        "solver iterations": total("solver_iterations"),
        "diverged": total("diverging"),
        "at full depth": total("reached_max_treedepth"),
        **{name.replace("_", " "): total(name) for name in FAILURES},
    }
    if has_trajectories(stats):
        with np.errstate(invalid="ignore", divide="ignore"):  # of a chain that never moved
            bfmi = arviz_stats.bfmi(stats["energy"]).values
        columns["E-BFMI"] = [number(value, ".2f") for value in bfmi]
    rows = [[f"chain {chain}", *values] for chain, values in enumerate(zip(*columns.values(), strict=True))]
    return table("Chain by chain", ["", *columns], rows)


def timing(account: Account) -> str:
    """Where the seconds went."""
    attributes, figures = account.posterior.attrs, account.performance()
    parts = {"compiling": figures["compile_time"], "warm-up": figures["warmup_time"]}
    parts["sampling"] = figures["sampling_time"]
    if "choice_time" in attributes:
        parts["the other sampler"] = float(attributes["choice_time"])
    total = sum(parts.values())
    steps = int(account.stats["n_steps"].sum())
    bar = "".join(f'<span style="flex-grow:{seconds / total:.4f}"></span>' for seconds in parts.values())
    rows = [[name, duration(seconds), f"{seconds / total:.0%}"] for name, seconds in parts.items()]
    a_second = lambda count: number(count / figures["sampling_time"], ".3g")
    rate = f"{a_second(steps)} integrator steps and {a_second(account.stats['lp'].size)} draws a second, in all chains."
    bar = f'<div class="bar" aria-hidden="true">{bar}</div>'
    return section("Time", bar, table("Wall clock", ["", "time", "share"], rows), paragraph(rate))


def what_was_run(account: Account) -> str:
    """Model, method, options, versions."""
    record = account.record
    facts = {"model": model_in_words(account), "method": record["method"]["name"]}
    if record["method"]["options"]:
        facts["method"] += f": {in_words(record['method']['options'])}"
    if account.has_draws:
        attributes = account.posterior.attrs
        if "choice" in attributes:
            facts["choice"] = f"{attributes['method']}: {attributes['choice']}"
    facts["options"] = in_words({**record["options"], "init": record.get("init")})
    facts["versions"] = in_words(record["versions"])
    if updated := account.status.get("updated"):
        facts["last saved"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(updated))
    if account.directory is not None:
        facts["folder"] = f"`{account.directory}`"
    pages = account.model.documentation.split("\n\n") if account.model else []
    about = f"<h3>The model</h3>{''.join(map(paragraph, pages))}" if any(pages) else ""
    return section("What was run", pairs(facts, "facts"), about)


def in_words(options: Mapping[str, Any]) -> str:
    """Those options that have a value."""
    return ", ".join(f"{name} {value}" for name, value in options.items() if value is not None)


def model_in_words(account: Account) -> str:
    """Its name, its options, and how large it is."""
    made = account.record["model"]
    text = made["name"]
    if options := in_words((made.get("zoo") or {}).get("options", {})):
        text += f", {options}"
    children = account.trace.children
    if "unconstrained_posterior" in children and "observed_data" in children:
        unknown = children["unconstrained_posterior"].dataset.isel(chain=0, draw=0)
        d = sum(values.size for values in unknown.data_vars.values())
        m = sum(int(np.isfinite(y).sum()) for y in children["observed_data"].data_vars.values())
        text += f"; coordinates: {d}, data: {m}"
    return text
