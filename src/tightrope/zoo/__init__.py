"""The posteriors of the paper, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from tightrope.checks import one_of
from tightrope.models import Model
from tightrope.types import InputError
from tightrope.zoo import (
    fitzhugh_nagumo,
    hodgkin_huxley,
    linear_gaussian,
    lotka_volterra,
    nonlinear_ssm,
    poisson,
    soil,
    squid,
    stochastic_volatility,
    toy,
)

MODELS: dict[str, Callable[..., Model]] = {
    "toy": toy.toy,
    "nonlinear-ssm": nonlinear_ssm.nonlinear_ssm,
    "fitzhugh-nagumo": fitzhugh_nagumo.fitzhugh_nagumo,
    "hodgkin-huxley": hodgkin_huxley.hodgkin_huxley,
    "poisson": poisson.poisson,
    "lotka-volterra": lotka_volterra.lotka_volterra,
    "soil-hn-t35": soil.soil_hn_t35,
    "soil-ak-t25": soil.soil_ak_t25,
    "squid-potassium": squid.squid_potassium,
    "squid-sodium": squid.squid_sodium,
    "stochastic-volatility": stochastic_volatility.stochastic_volatility,
    "linear-gaussian": linear_gaussian.linear_gaussian,
}


def options(name: str) -> list[str]:
    """What `load` may be told about a posterior."""
    return list(inspect.signature(MODELS[name]).parameters)


def description(name: str) -> str:
    """A posterior in a line."""
    return documentation(name).splitlines()[0]


def documentation(name: str) -> str:
    """The equations of a posterior, the source of its data, and where it differs from the paper's print."""
    return inspect.getdoc(MODELS[name]) or ""


def check(name: str, given: Iterable[str]) -> None:
    """Refuse a name, or names of options, that there are not."""
    one_of("model", name, MODELS)
    for option in given:
        if option not in options(name):
            raise InputError(f"{option} is not an option of {name}: it takes {options(name) or 'none'}.")


def load(name: str, **given: Any) -> Model:
    """A posterior of the paper, such as `load("toy", sigma=0.01)`; its `documentation` says what it is."""
    check(name, given)
    model = MODELS[name](**given)
    model.name, model.documentation = name, documentation(name)
    model.origin = {"name": name, "options": given}
    return model
