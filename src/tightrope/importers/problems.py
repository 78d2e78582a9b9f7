"""A PEtab problem as functions of its parameters: predictions and noise scales, observable by observable."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import sympy as sp
from petab.v1.math import sympify_petab
from petab.v1.measurements import split_parameter_replacement_list

from tightrope.importers.formulas import TIME, evaluate, names_in, tidied
from tightrope.importers.odes import FOREVER, Simulation, Tolerances
from tightrope.importers.sbml import equations_of
from tightrope.importers.tables import Cells, Measurements, Settings, cells_of, prior_of, text
from tightrope.observations import Params
from tightrope.types import Array, InputError

LAWS = {"normal": dist.Normal(0.0, 1.0), "laplace": dist.Laplace(0.0, 1.0)}
SCALES: dict[str, Callable] = {"lin": lambda x: x, "log": jnp.log, "log10": jnp.log10}


class Observable(NamedTuple):
    """What is measured, how often, and with which noise."""

    formula: sp.Basic
    noise: sp.Basic
    scale: str  # of the noise: lin, log or log10
    law: dist.Distribution
    conditions: np.ndarray  # of each measurement, shape (r,)
    positions: np.ndarray  # of its time among those of the condition, shape (r,)
    placeholders: dict[str, Cells]  # values of parameters that measurements set
    data: np.ndarray  # on the scale


class Problem:
    """What petab has read, translated: a forward model."""

    prefers_first_derivatives = True  # a solution with its second derivatives takes minutes to compile

    def __init__(self, problem: Any, tolerances: Tolerances):
        rows = {row["parameterId"]: row for row in problem.parameter_df.reset_index().to_dict("records")}
        self.priors = {name: prior_of(row) for name, row in rows.items() if int(row["estimate"]) == 1}
        self.values = {name: float(row.get("nominalValue", math.nan)) for name, row in rows.items()}
        self.names = list(self.priors)
        if not self.names:
            raise InputError("the parameter table has no parameter to estimate.")
        self.fixed = {name: value for name, value in self.values.items() if name not in self.priors}
        if unset := [name for name, value in self.fixed.items() if math.isnan(value)]:
            raise InputError(f'parameter "{unset[0]}" is not estimated, and has no nominalValue.')
        self.equations = equations_of(problem.model.to_sbml_str())
        self.measurements = Measurements.of(problem.measurement_df)
        inner = [name for name in self.values if name in self.equations.initial]
        self.settings = Settings(problem.condition_df, self.names, self.fixed, inner)
        self.moving = self.settings.moving([*self.measurements.before, *self.measurements.conditions])
        self.simulation = self.simulated(tolerances)
        self.observables = {
            name: self.observable(name, row)
            for name, row in problem.observable_df.iterrows()
            if (self.measurements.table["observableId"] == name).any()
        }
        self.refuse_undefined()

    def simulated(self, tolerances: Tolerances) -> Simulation:
        """The solver of all conditions."""
        equations, measured = self.equations, self.measurements
        if not equations.rates:
            raise InputError("nothing in the SBML model changes in time.")
        if measured.before and equations.depends_on_time:
            raise InputError("pre-equilibration of a model whose rates depend on time is not supported.")
        if equations.thresholds:
            where = equations.thresholds[0]
            warnings.warn(f'should rates jump at "{where}", derivatives do not know of the jump.', stacklevel=4)
        for column in self.settings.columns:
            if column in equations.assigned and column not in equations.initial:
                raise InputError(f'the condition table sets "{column}", which the SBML model computes by a rule.')
        conditions = self.settings.conditions(measured.conditions, self.moving)
        if not measured.before:
            return Simulation(equations, conditions, measured.times, tolerances)
        times = np.tile([FOREVER / 10, FOREVER], (len(measured.before), 1))
        before = Simulation(equations, self.settings.conditions(measured.before, self.moving), times, tolerances)
        return Simulation(equations, conditions, measured.times, tolerances, before, measured.follows)

    def observable(self, name: str, row: Any) -> Observable:
        measured = self.measurements.table[self.measurements.table["observableId"] == name]
        placeholders = {}
        for kind in ("observable", "noise"):
            cells = measured.get(f"{kind}Parameters", pd.Series(index=measured.index, dtype=object))
            replaced = [split_parameter_replacement_list(cell if text(cell) else None) for cell in cells]
            for i in range(max(map(len, replaced))):
                entries = [values[i] for values in replaced]
                placeholders[f"{kind}Parameter{i + 1}_{name}"] = cells_of(entries, self.names, self.fixed)
        scale = text(row.get("observableTransformation")) or "lin"
        data = measured["measurement"].to_numpy(float)
        return Observable(
            tidied(sympify_petab(row["observableFormula"])),
            tidied(sympify_petab(row["noiseFormula"])),
            scale,
            LAWS[text(row.get("noiseDistribution")) or "normal"],
            measured["condition"].to_numpy(),
            measured["position"].to_numpy(),
            placeholders,
            np.asarray(SCALES[scale](data)),
        )

    def refuse_undefined(self) -> None:
        """Refuse formulas with names that nothing gives a value."""
        equations, simulation = self.equations, self.simulation
        formulas = [*equations.rates.values(), *equations.assigned.values(), *equations.initial.values()]
        inner = {*equations.rates, *equations.assigned, *equations.initial, TIME.name}
        if unknown := sorted(names_in(formulas) - inner):
            raise InputError(f'the SBML model uses "{unknown[0]}", which it does not define.')
        for name, found in self.observables.items():
            known = inner | {*self.values, *found.placeholders, *simulation.conditions.overrides}
            formulas += [found.formula, found.noise]
            if unknown := sorted(names_in(formulas[-2:]) - known):
                raise InputError(f'observable "{name}" uses "{unknown[0]}", which is not defined.')
        for each in (simulation, simulation.before):
            overrides = each.conditions.overrides if each is not None else {}
            for name in sorted(names_in(formulas) | equations.rates.keys()) if each is not None else ():
                is_set = name in overrides and overrides[name].applies.all()
                if equations.initial.get(name) is sp.nan and not is_set:
                    raise InputError(f'"{name}" of the SBML model has no value, and no table sets it.')

    def nominal(self) -> dict[str, float] | None:
        """The nominal values, inside of the bounds, if there are any."""
        if any(math.isnan(self.values[name]) for name in self.names):
            return None
        return {name: prior.inside(self.values[name]) for name, prior in self.priors.items()}

    def __call__(self, params: Params) -> dict[str, Array]:
        """Predictions of all measurements, on the scales of their observables."""
        begin, states = self.begin(params), self.states(params)
        predicted = {}
        for name, found in self.observables.items():
            value = self.value(found.formula, found, params, begin, states)
            predicted[name] = jnp.broadcast_to(SCALES[found.scale](value), found.data.shape)
        return predicted

    def noise_scales(self) -> dict[str, Callable[[Params], Array]]:
        return {name: partial(self.noise_scale, found) for name, found in self.observables.items()}

    def noise_scale(self, observable: Observable, params: Params) -> Array:
        """The noise scale of each measurement."""
        needs_states = self.equations.reached(names_in([observable.noise])) & self.equations.rates.keys()
        states = self.states(params) if needs_states else None
        scale = self.value(observable.noise, observable, params, self.begin(params), states)
        return jnp.broadcast_to(jnp.asarray(scale, float), observable.data.shape)

    def begin(self, params: Params) -> dict[str, Any]:
        """The values of all names at time zero, for all conditions."""
        return self.simulation.conditions.begin(self.equations, vector(params, self.moving))

    def states(self, params: Params) -> Array:
        """The states of all conditions at their times."""
        return self.simulation.states(vector(params, self.moving))

    def value(
        self, formula: sp.Basic, observable: Observable, params: Params, begin: dict[str, Any], states: Array | None
    ) -> Any:
        """The value of a formula for each measurement of an observable; states may be left out where none is needed."""
        simulation, rows, positions = self.simulation, observable.conditions, observable.positions
        theta = vector(params, self.names)
        known: dict[str, Any] = {**self.fixed, **{name: theta[i] for i, name in enumerate(self.names)}}
        known |= {name: cells.at(theta) for name, cells in observable.placeholders.items()}
        for name in simulation.conditions.overrides:
            known[name] = jnp.broadcast_to(begin[name], (simulation.conditions.size,))[rows]
        if states is None:
            states = jnp.zeros((*simulation.times.shape, len(simulation.names)))
        constants = simulation.stacked(begin, simulation.constants)[rows]
        time = simulation.times[rows, positions]
        known |= simulation.known_for([formula], time, constants, states[rows, positions])
        return evaluate(formula, known)


def vector(params: Params, names: list[str]) -> Array:
    """Parameters as one vector."""
    return jnp.stack([jnp.asarray(params[name], float) for name in names]) if names else jnp.zeros(0)
