"""SBML models as ordinary differential equations, in formulas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import libsbml
import sympy as sp

from tightrope.importers.formulas import TIME, formula_of, in_order, names_in, symbol, tidied
from tightrope.types import InputError

AMOUNT = "amount of "  # names the state of a species whose compartment changes its size


class Equations(NamedTuple):
    """x' = rates(x, t), with names for everything that has a value."""

    rates: dict[str, sp.Expr]  # of the states
    assigned: dict[str, sp.Expr]  # what follows from states, constants and time at every moment, in order
    initial: dict[str, sp.Expr]  # values of states and constants to begin with, NaN where none is given

    @property
    def beginning(self) -> dict[str, sp.Expr]:
        """The values of everything to begin with, in order."""
        return in_order({**self.assigned, **self.initial})

    def reached(self, names: set[str]) -> set[str]:
        """These names, and all that are needed to know their values at some time."""
        found: set[str] = set()
        while names - found:
            found |= names
            names = names_in(self.assigned[name] for name in found & self.assigned.keys())
        return found

    def assigned_for(self, formulas: Iterable[sp.Basic]) -> dict[str, sp.Expr]:
        """What has to be assigned before these formulas have values, in order."""
        needed = self.reached(names_in(formulas))
        return {name: formula for name, formula in self.assigned.items() if name in needed}

    def state_of(self, name: str) -> str | None:
        """The state that a value to begin with belongs to."""
        return next((state for state in (name, AMOUNT + name) if state in self.rates), None)

    @property
    def depends_on_time(self) -> bool:
        return TIME.name in self.reached(names_in(self.rates.values()))

    @property
    def switches(self) -> list[sp.Expr]:
        """When rates jump or bend because of a condition on time, as far as that does not depend on states."""
        formulas = [*self.rates.values(), *self.assigned.values()]
        found = []
        for condition in sorted({c for f in formulas for c in f.atoms(sp.core.relational.Relational)}, key=str):
            gap = self.written_out(condition.lhs - condition.rhs)
            slope = sp.diff(gap, TIME) if TIME in gap.free_symbols else sp.S.Zero
            needed = names_in([gap]) - {TIME.name}
            if slope != 0 and TIME not in slope.free_symbols and not needed & self.rates.keys():
                found.append(-gap.subs(TIME, 0) / slope)
        return found

    @property
    def thresholds(self) -> list[str]:
        """Conditions on states, at which a rate may jump."""
        formulas = [*self.rates.values(), *self.assigned.values()]
        conditions = sorted({c for f in formulas for c in f.atoms(sp.core.relational.Relational)}, key=str)
        return [str(c) for c in conditions if self.reached(names_in([c])) & self.rates.keys()]

    def written_out(self, formula: sp.Expr) -> sp.Expr:
        """The formula in terms of states, constants and time."""
        while names := sorted(names_in([formula]) & self.assigned.keys()):
            formula = formula.subs({symbol(name): self.assigned[name] for name in names})
        return formula


def equations_of(text: str) -> Equations:
    """The equations of an SBML document."""
    document = libsbml.readSBMLFromString(text)
    model = document.getModel()
    if model is None or document.getNumErrors(libsbml.LIBSBML_SEV_FATAL):
        raise InputError("the SBML file cannot be read: petablint may tell where it is wrong.")
    refuse_unsupported(document, model)
    simplify(document)
    return Translation(document.getModel()).equations()


def refuse_unsupported(document: Any, model: Any) -> None:
    """Refuse, by its name, what has no place in an ordinary differential equation."""
    for i in range(document.getNumPlugins() if document.getLevel() > 2 else 0):
        package = document.getPlugin(i).getPackageName()
        if document.getPkgRequired(package):
            raise InputError(f'the SBML model needs the package "{package}", which is not supported.')
    if model.getNumEvents():
        raise InputError(f'the SBML model has events ("{model.getEvent(0).getId()}"), which are not supported.')
    for rule in model.getListOfRules():
        if rule.isAlgebraic():
            raise InputError("the SBML model has algebraic rules, which are not supported.")
    for reaction in model.getListOfReactions():
        if reaction.isSetFast() and reaction.getFast():
            raise InputError(f'reaction "{reaction.getId()}" of the SBML model is fast, which is not supported.')
        if not reaction.isSetKineticLaw() or reaction.getKineticLaw().getMath() is None:
            raise InputError(f'reaction "{reaction.getId()}" of the SBML model has no kinetic law.')


def simplify(document: Any) -> None:
    """Write out what functions stand for, and give local parameters names of their own."""
    for option in ("promoteLocalParameters", "expandFunctionDefinitions"):
        properties = libsbml.ConversionProperties()
        properties.addOption(option, True)
        if document.convert(properties) != libsbml.LIBSBML_OPERATION_SUCCESS:
            raise InputError(f"the SBML model cannot be converted: {option} of libsbml failed.")


class Translation:
    """An SBML model whose parts are sorted into states, constants and what follows from them."""

    def __init__(self, model: Any):
        self.model = model
        rules = [rule for rule in model.getListOfRules() if rule.getMath() is not None]
        self.ruled = {rule.getVariable(): formula_of(rule.getMath()) for rule in rules if rule.isAssignment()}
        self.driven = {rule.getVariable(): formula_of(rule.getMath()) for rule in rules if rule.isRate()}
        self.started = {
            start.getSymbol(): formula_of(start.getMath())
            for start in model.getListOfInitialAssignments()
            if start.getMath() is not None
        }

    def equations(self) -> Equations:
        rates, assigned, initial = dict(self.driven), dict(self.ruled), {}
        for reaction in self.model.getListOfReactions():
            assigned[reaction.getId()] = formula_of(reaction.getKineticLaw().getMath())
        for name, value in self.given():
            if name not in self.ruled:
                initial[name] = self.started.get(name, value)
        changes = self.changes()
        for species in self.model.getListOfSpecies():
            name, size = species.getId(), symbol(species.getCompartment())
            if name in self.ruled or name in self.driven or species.getConstant():
                continue
            change = sp.S.Zero if species.getBoundaryCondition() else changes.get(name, sp.S.Zero)
            is_density = not species.getHasOnlySubstanceUnits()
            if is_density and self.varies(species.getCompartment()):
                rates[AMOUNT + name] = change
                assigned[name] = symbol(AMOUNT + name) / size
                initial[AMOUNT + name] = symbol(name) * size
            elif change != 0:
                rates[name] = change / size if is_density else change
        return Equations(rates, in_order(assigned), initial)

    def varies(self, compartment: str) -> bool:
        return compartment in self.ruled or compartment in self.driven

    def changes(self) -> dict[str, sp.Expr]:
        """How reactions change the amount of each species, in terms of the reactions' rates."""
        changes: dict[str, sp.Expr] = {}
        for reaction in self.model.getListOfReactions():
            sides = ((reaction.getListOfReactants(), -1), (reaction.getListOfProducts(), 1))
            for sign, reference in ((sign, reference) for side, sign in sides for reference in side):
                name = reference.getSpecies()
                flow = sign * self.stoichiometry(reference) * symbol(reaction.getId())
                factor = self.model.getSpecies(name).getConversionFactor() or self.model.getConversionFactor()
                changes[name] = changes.get(name, sp.S.Zero) + flow * (symbol(factor) if factor else 1)
        return changes

    @staticmethod
    def stoichiometry(reference: Any) -> sp.Expr:
        if reference.getId():
            return symbol(reference.getId())
        return stoichiometry_given(reference)

    def given(self) -> Iterator[tuple[str, sp.Expr]]:
        """The names of compartments, parameters, species and stoichiometries, with the values that they are given."""
        for compartment in self.model.getListOfCompartments():
            # Without a size it is one in all of Level 2, and PEtab's tools take it so in Level 3.
            yield compartment.getId(), value_of(compartment.getSize()) if compartment.isSetSize() else sp.S.One
        for parameter in self.model.getListOfParameters():
            yield parameter.getId(), value_of(parameter.getValue()) if parameter.isSetValue() else sp.nan
        for species in self.model.getListOfSpecies():
            yield species.getId(), species_given(species)
        for reaction in self.model.getListOfReactions():
            for side in (reaction.getListOfReactants(), reaction.getListOfProducts()):
                for reference in side:
                    if reference.getId():
                        yield reference.getId(), stoichiometry_given(reference)


def stoichiometry_given(reference: Any) -> sp.Expr:
    if reference.isSetStoichiometryMath():
        return formula_of(reference.getStoichiometryMath().getMath())
    value = reference.getStoichiometry()
    return value_of(value) if value == value else sp.S.One


def species_given(species: Any) -> sp.Expr:
    """The value that the species' name stands for to begin with: an amount, or an amount over a size."""
    size = symbol(species.getCompartment())
    is_amount = species.getHasOnlySubstanceUnits()
    if species.isSetInitialAmount():
        value = value_of(species.getInitialAmount())
        return value if is_amount else value / size
    if species.isSetInitialConcentration():
        value = value_of(species.getInitialConcentration())
        return value * size if is_amount else value
    return sp.nan


def value_of(value: float) -> sp.Expr:
    return tidied(sp.Float(value)) if value == value else sp.nan
