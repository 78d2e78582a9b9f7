"""The posteriors of the paper, by name."""

from __future__ import annotations

import inspect
from typing import Any

from tightrope.methods import one_of
from tightrope.models import Model
from tightrope.types import InputError
from tightrope.zoo import lotka_volterra, toy

MODELS = {"toy": toy, "lotka-volterra": lotka_volterra}


def load(name: str, **options: Any) -> Model:
    """A posterior of the paper, such as `load("toy", sigma=0.01)`."""
    one_of("model", name, MODELS)
    known = inspect.signature(MODELS[name].load).parameters
    for option in options:
        if option not in known:
            raise InputError(f"{option} is not an option of {name}: it takes {list(known) or 'none'}.")
    return MODELS[name].load(**options)
