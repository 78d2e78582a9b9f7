"""The sections of a report."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import arviz_stats
import numpy as np
import xarray as xr
from scipy.stats import rankdata

from tightrope.report import pictures
from tightrope.report.account import Account
from tightrope.report.html import coded, duration, figures, items, number, pairs, paragraph, section, table
from tightrope.report.pictures import picture
from tightrope.report.predictions import predictions
from tightrope.report.verdict import verdict
from tightrope.types import FAILURES

MAX_ROWS = 40  # of the summary
MAX_QUANTITIES = 6  # whose chains are drawn
MAX_PAIRS = 6
MAX_CORRELATED = 300  # quantities among which pairs are sought


def everything(account: Account) -> str:
    """The page, without its head."""
    body = [verdict(account)]
    if account.has_draws:
        body += [estimates(account), chains(account), correlations(account), predictions(account)]
        body += [sampler(account), timing(account)]
    foot = f"<footer><p>Written by Tightrope {version('tightrope')}.</p></footer>"
    return f"{header(account)}<main>{''.join(body)}{what_was_run(account)}</main>{foot}"


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
        path, rank = f"{label} from draw to draw", f"ranks of {label}"
        found += [
            (label, picture(f"Histograms of {label}, one for each chain", pictures.marginals(values))),
            (path, picture(f"Chains of {label} from draw to draw: {facts}", pictures.paths(values))),
            (rank, picture(f"Ranks of each chain's {label} among all draws: {facts}", pictures.ranks(values))),
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
        note = f"The {MAX_PAIRS} pairs of {len(varying)} quantities with the largest rank correlation ρ."
    if account.stats["diverging"].any():
        note += " Crosses are where trajectories diverged."
    return section("Pairs", paragraph(note), figures(found))


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
    attributes, found = account.posterior.attrs, account.performance()
    parts = {"compiling": found["compile_time"], "warm-up": found["warmup_time"], "sampling": found["sampling_time"]}
    if "choice_time" in attributes:
        parts["the other sampler"] = float(attributes["choice_time"])
    total = sum(parts.values())
    steps = int(account.stats["n_steps"].sum())
    bar = "".join(f'<span style="flex-grow:{seconds / total:.4f}"></span>' for seconds in parts.values())
    rows = [[name, duration(seconds), f"{seconds / total:.0%}"] for name, seconds in parts.items()]
    a_second = lambda count: number(count / found["sampling_time"], ".3g")
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
