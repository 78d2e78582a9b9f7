"""Effective draws per second of the paper's methods on its posteriors, as the noise vanishes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tightrope.reproduce import pictures
from tightrope.reproduce.families import HMC, LIFTED, RIEMANNIAN, Rates, agree, family_table, rates_in, told
from tightrope.reproduce.request import Claim, Request

FLAT, STEEP = 3.0, 10.0  # a fall by less is none to speak of, one by more is a collapse


def figure_4(request: Request) -> list[Claim]:
    """Effective draws per second and R-hat on the toy, all methods, as its noise vanishes."""
    found = against_noise(request)
    return [keeps_its_pace(found), collapses(found, "HMC, Riemannian or not,", HMC + RIEMANNIAN)]


def figure_5(request: Request) -> list[Claim]:
    """The same for the nonlinear state space model."""
    found = against_noise(request)
    return [keeps_its_pace(found), collapses(found, "HMC with either metric", HMC)]


def figure_6(request: Request) -> list[Claim]:
    """The same for FitzHugh and Nagumo's neuron."""
    found = against_noise(request)
    return [keeps_its_pace(found), collapses(found, "HMC with a diagonal metric", HMC[:1])]


def figure_7(request: Request) -> list[Claim]:
    """The same for Hodgkin and Huxley's neuron."""
    found = against_noise(request)
    return [converges(found), never_converges(found)]


def figure_8(request: Request) -> list[Claim]:
    """The same for the conductivity of a disc."""
    found = against_noise(request)
    return [keeps_its_pace(found), never_converges(found)]


def against_noise(request: Request) -> Rates:
    """Run a family, then draw and tell what the file holds."""
    table = family_table(request, request.target)
    found = rates_in(table, "sigma")
    for line in table["line"].unique():
        pairs = zip(found.median.loc[line].items(), found.is_late.loc[line], strict=True)
        values = " ".join(f"{sigma:.0e}: {told(value, late)}" for (sigma, value), late in pairs)
        request.say(f"{line:28} ESS/s at sigma  {values}")
    pictures.efficiency(table, found.median, request.file(""))
    request.left(".csv", ".png", ".svg")
    return found


def fall(values: pd.Series) -> float:
    """How many times slower the smallest noise is than the largest; infinity if it does not converge there at all."""
    thin, wide = values.iloc[0], values.dropna()
    return np.inf if np.isnan(thin) else float(wide.iloc[-1] / thin)


def told_falls(falls: dict[str, float]) -> str:
    word = lambda value: "unknown" if np.isnan(value) else "none left" if np.isinf(value) else f"{value:.2g} times"
    words = [f"{line} {word(value)}" for line, value in falls.items()]
    return "from the largest noise to the smallest " + ", ".join(words)


def keeps_its_pace(found: Rates) -> Claim:
    is_known = {line: not found.is_late.loc[line].iloc[0] for line in LIFTED}
    falls = {line: fall(found.median.loc[line]) if is_known[line] else np.nan for line in LIFTED}
    text = "The lifted sampler keeps its pace as the noise vanishes, with every solver."
    return Claim(text, agree(list(falls.values()), lambda value: value < FLAT), told_falls(falls))


def collapses(found: Rates, who: str, lines: Sequence[str]) -> Claim:
    falls = {line: fall(found.median.loc[line]) for line in lines}
    text = f"{who} slows down or stops converging as the noise vanishes."
    return Claim(text, all(value > STEEP for value in falls.values()), told_falls(falls))


def converges(found: Rates) -> Claim:
    line, *_ = LIFTED
    converged = found.median.loc[line].notna().astype(float).mask(found.is_late.loc[line])
    text = "The lifted sampler by Newton converges at every noise scale."
    return Claim(text, agree(list(converged), bool), told_counts(counts(found, [line]), converged.size))


def never_converges(found: Rates) -> Claim:
    at, text = counts(found, HMC), "HMC converges at no noise scale, with either metric."
    is_known = bool(found.is_seen.loc[list(HMC)].to_numpy().all())
    return Claim(text, False if any(at.values()) else is_known or None, told_counts(at, found.median.shape[1]))


def counts(found: Rates, lines: Sequence[str]) -> dict[str, int]:
    """At how many noise scales each line converges."""
    return {line: int(found.median.loc[line].notna().sum()) for line in lines}


def told_counts(counts: dict[str, int], total: int) -> str:
    return ", ".join(f"{line} converged at {number} of {total} noise scales" for line, number in counts.items())
