"""The tables of a PEtab problem: priors, conditions and measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from numpyro.distributions import transforms

from tightrope.importers.odes import FOREVER, Conditions, Override
from tightrope.types import Array, InputError

MARGIN = 1e-6  # of the way between the bounds: how far inside a nominal value is put


class Prior(NamedTuple):
    """A prior of a parameter on the linear scale."""

    law: dist.Distribution
    low: float  # where it ends, on its own scale
    high: float
    is_log: bool  # whether that is the logarithm

    def inside(self, value: float) -> float:
        """The value, or one close to it that is not on a bound."""
        if not math.isfinite(self.high - self.low):
            return value
        margin = MARGIN * (self.high - self.low)
        x = min(max(logarithm(value) if self.is_log else value, self.low + margin), self.high - margin)
        return math.exp(x) if self.is_log else x


def logarithm(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def prior_of(row: Mapping[str, Any]) -> Prior:
    """The prior that a row of the parameter table asks for, truncated to the parameter's bounds."""
    scale = text(row.get("parameterScale")) or "lin"
    kind = text(row.get("objectivePriorType")) or "parameterScaleUniform"
    is_scaled = kind.startswith("parameterScale")
    is_log = kind.startswith("log") or (is_scaled and scale != "lin")
    unit = math.log(10.0) if is_scaled and scale == "log10" else 1.0  # all logarithms are natural here
    low, high = (logarithm(x) if is_log else float(x) for x in (row["lowerBound"], row["upperBound"]))
    given = text(row.get("objectivePriorParameters"))
    first, second = (unit * float(x) for x in given.split(";")) if given else (low, high)
    name = kind.removeprefix("parameterScale").removeprefix("log").lower()
    if name == "uniform":
        low, high = max(low, first), min(high, second)
        if not (math.isfinite(high - low) and low < high):
            raise InputError(f'the bounds of parameter "{row["parameterId"]}" leave no interval for a uniform prior.')
        law: dist.Distribution = dist.Uniform(low, high)
    else:
        if not second > 0:
            raise InputError(f'the prior of parameter "{row["parameterId"]}" has a scale that is not positive.')
        base = {"normal": dist.Normal, "laplace": dist.Laplace}[name](first, second)
        bound = lambda x: x if math.isfinite(x) else None
        law = dist.TruncatedDistribution(base, low=bound(low), high=bound(high))
    if is_log:
        law = dist.TransformedDistribution(law, transforms.ExpTransform())
    return Prior(law, low, high, is_log)


def text(cell: Any) -> str:
    """A cell of a table; nothing where it is empty."""
    return "" if cell is None or pd.isna(cell) else str(cell).strip()


class Cells(NamedTuple):
    """Cells of a table that are numbers, or names of parameters."""

    numbers: np.ndarray
    which: np.ndarray  # positions among the parameters, -1 for numbers

    def at(self, theta: Array) -> Any:
        return jnp.where(self.which >= 0, theta[self.which], self.numbers) if (self.which >= 0).any() else self.numbers


def cells_of(entries: Sequence[Any], names: Sequence[str], fixed: Mapping[str, float]) -> Cells:
    numbers, which = np.zeros(len(entries)), np.full(len(entries), -1)
    for i, entry in enumerate(entries):
        if entry in names:
            which[i] = names.index(entry)
        elif entry in fixed:
            numbers[i] = fixed[entry]
        else:
            try:
                numbers[i] = float(entry)
            except ValueError:
                raise InputError(f'"{entry}" is neither a number nor in the parameter table.') from None
    return Cells(numbers, which)


class Measurements(NamedTuple):
    """The measurement table, and the conditions and times that it asks for."""

    table: pd.DataFrame  # with the columns "condition" and "position", of a row's time among those of its condition
    conditions: list[str]  # to simulate, by name
    before: list[str]  # conditions that come to rest before others begin
    follows: np.ndarray  # for each of the conditions, which of those precedes it, -1 for none
    times: np.ndarray  # shape (C, T), each row in order and filled up with its last

    @classmethod
    def of(cls, table: pd.DataFrame) -> Measurements:
        times = table["time"].to_numpy(float)
        if not (times >= 0).all():
            raise InputError("the measurement table has times that are negative or not numbers.")
        simulated = [text(cell) for cell in table["simulationConditionId"]]
        rested = [text(cell) for cell in table.get("preequilibrationConditionId", [None] * len(table))]
        pairs = list(dict.fromkeys(zip(simulated, rested, strict=True)))
        condition = np.array([pairs.index(pair) for pair in zip(simulated, rested, strict=True)])
        times = np.where(np.isinf(times), FOREVER, times)
        asked = [np.unique(times[condition == i]) for i in range(len(pairs))]
        # Whether a system is at rest is seen by comparison with a tenth of the time.
        asked = [np.unique([*own, FOREVER / 10]) if own[-1] == FOREVER else own for own in asked]
        longest = max(map(len, asked))
        rows = np.stack([np.pad(own, (0, longest - len(own)), mode="edge") for own in asked])
        position = np.array([np.searchsorted(asked[i], time) for i, time in zip(condition, times, strict=True)])
        before = sorted({rest for _, rest in pairs if rest})
        follows = np.array([before.index(rest) if rest else -1 for _, rest in pairs])
        table = table.assign(condition=condition, position=position)
        return cls(table, [name for name, _ in pairs], before, follows, rows)


class Settings(NamedTuple):
    """What the condition table and the parameter table set in a model."""

    table: pd.DataFrame  # of conditions
    names: list[str]  # of the parameters to estimate
    fixed: Mapping[str, float]  # the other parameters of the parameter table
    inner: list[str]  # names in the SBML model, to which the parameter table gives values

    @property
    def columns(self) -> list[str]:
        return [name for name in self.table.columns if name != "conditionName"]

    def entries(self, column: str, conditions: Sequence[str]) -> list[Any]:
        """The cells of a column, None where they are empty."""
        cells = self.table[column]
        return [cells[name] if text(cells[name]) else None for name in conditions]

    def moving(self, conditions: Sequence[str]) -> list[str]:
        """The parameters that have influence on states."""
        mentioned = {*self.inner}.union(*(self.entries(column, conditions) for column in self.columns))
        return [name for name in self.names if name in mentioned]

    def conditions(self, conditions: Sequence[str], moving: Sequence[str]) -> Conditions:
        """The conditions, as functions of the parameters that have influence on states."""
        overrides = {}
        for name in self.inner:
            cells = cells_of([name] * len(conditions), moving, self.fixed)
            overrides[name] = Override(np.ones(len(conditions), bool), cells.at)
        for column in self.columns:
            entries = self.entries(column, conditions)
            applies = np.array([entry is not None for entry in entries])
            if applies.any():
                cells = cells_of([0.0 if entry is None else entry for entry in entries], moving, self.fixed)
                overrides[column] = Override(applies, cells.at)
        return Conditions(len(conditions), overrides)
