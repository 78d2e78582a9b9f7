"""What the model predicts, beside the data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
import xarray as xr

from tightrope.models import Model
from tightrope.report import pictures
from tightrope.report.account import Account
from tightrope.report.html import figures, paragraph, section
from tightrope.report.pictures import picture
from tightrope.results import GROUPS, predict
from tightrope.types import InputError

MAX_DRAWS = 400  # that predictions are made of
MAX_SERIES = 6  # of data that are shown


class OtherModel(InputError):
    """A model whose draws these are not."""


class Series(NamedTuple):
    """Data along one axis, and draws of what they might have been."""

    title: str
    place: np.ndarray
    y: np.ndarray  # NaN where missing
    draws: np.ndarray  # (draw, place)


def predictions(account: Account) -> str:
    """The section of a report; it says why, if there is nothing to show."""
    try:
        simulated = predicted(account)
    except InputError as error:
        if isinstance(error, OtherModel) and account.is_model_given:
            raise
        return section("Predictions", paragraph(f"No predictions: {error}"))
    blocks = account.trace.children["observed_data"].data_vars
    every = [series for name, y in blocks.items() for series in cut(str(name), y, simulated[name])]
    note = "Histograms are of new data that the posterior predicts, and lines are the data."
    if any(len(series.y) > 1 for series in every):
        note = (
            "Dots are the data. The colour is strong over the central 50 % and faint over the central 90 % of new data "
            f"that the posterior predicts: there lie {share_covered(every, 0.5):.0%} and "
            f"{share_covered(every, 0.9):.0%} of the data, {sum(np.isfinite(s.y).sum() for s in every)} in all."
        )
    if len(every) > MAX_SERIES:
        note += f" Shown are {MAX_SERIES} of {len(every)} series."
    shown = [one for series in every[:MAX_SERIES] for one in views(series)]
    return section("Predictions", paragraph(note), figures(shown, "wide"))


def views(series: Series) -> Iterator[tuple[str, str]]:
    """Titled pictures: data amid predictions, as they are and, noise being small, from close by."""
    title, place, y, draws = series
    if len(y) == 1:
        drawn = pictures.histogram(draws[:, 0], y[0])
        yield title, picture(f"Histogram of predictions of {title}, and the datum", drawn)
        return
    yield title, picture(f"Intervals of predictions of {title}, and the data", pictures.intervals(place, draws, y))
    middle = np.median(draws, axis=0)
    drawn = pictures.intervals(place, draws - middle, y - middle)
    yield f"{title}, less the median", picture(f"Data {title} less the median of their predictions", drawn)


def share_covered(every: Sequence[Series], level: float) -> float:
    """Of the data, the share within the central interval of their predictions."""
    inside = []
    for _, _, y, draws in every:
        low, high = np.quantile(draws, ((1 - level) / 2, (1 + level) / 2), axis=0)
        inside.append(((low <= y) & (y <= high))[np.isfinite(y)])
    return float(np.concatenate(inside).mean())


def cut(name: str, y: xr.DataArray, simulated: xr.DataArray) -> Iterator[Series]:
    """A block of data as series along its first axis, one for each entry in the others."""
    first, others = y.dims[:1], y.dims[1:]
    place = y[first[0]].values if first else np.zeros(1)
    if not np.issubdtype(place.dtype, np.number):
        place = np.arange(len(place))
    draws = simulated.transpose("chain", "draw", *y.dims).values.reshape(-1, len(place), y.size // len(place))
    values = y.values.reshape(len(place), -1)
    for column, label in enumerate(itertools.product(*(y[dim].values for dim in others))):
        entry = f"[{', '.join(map(str, label))}]" if label else ""
        yield Series(f"{name}{entry}", place, values[:, column], draws[:, :, column])


def predicted(account: Account) -> xr.Dataset:
    """New data from some of the draws."""
    model, trace = account.model, account.trace
    if model is None:
        raise InputError("they need the model, `tr.report(..., model=model)`.")
    if "observed_data" not in trace.children:
        raise InputError("the trace has no group observed_data.")
    other = OtherModel(f'model: these draws are of another one than "{model.name}", by their coordinates or densities.')
    if not has_coordinates(model, trace):
        raise other
    every = -(-account.stats["lp"].size // MAX_DRAWS)
    some = {
        name: xr.DataTree(trace.children[name].to_dataset().isel(draw=slice(None, None, every)))
        for name in GROUPS
        if name in trace.children
    }
    result = predict(model, xr.DataTree(children=some))
    if not has_densities(model, result):
        raise other
    return result.children["posterior_predictive"].to_dataset()


def first_draw(trace: xr.DataTree) -> xr.Dataset | None:
    """The coordinates u of one draw, by parameter, if the trace has them."""
    group = trace.children.get("unconstrained_posterior")
    return None if group is None else group.dataset.isel(chain=0, draw=0)


def has_coordinates(model: Model, trace: xr.DataTree) -> bool:
    """Whether a draw has as many coordinates of each parameter as the model."""
    draw = first_draw(trace)
    return draw is None or {name: part.size for name, part in draw.items()} == model.parameters.sizes


def has_densities(model: Model, trace: xr.DataTree) -> bool:
    """Whether prior and likelihood of a draw make up the log density that was noted when it was made."""
    draw, first = first_draw(trace), {"chain": 0, "draw": 0}
    if draw is None:
        return True
    u = np.concatenate([draw[name].values.ravel() for name in model.parameters.names])
    likelihood = sum(np.nansum(x.isel(first)) for x in trace.children["log_likelihood"].data_vars.values())
    lp = trace.children["sample_stats"]["lp"].isel(first)
    return bool(np.isclose(likelihood - jax.jit(model.parameters.energy)(u), lp, rtol=1e-4, atol=1e-2))
