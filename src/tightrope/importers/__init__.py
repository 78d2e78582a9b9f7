"""Models that were written for something else."""

from typing import Any

from tightrope.importers.external import external
from tightrope.importers.numpyro import from_numpyro
from tightrope.importers.petab import from_petab
from tightrope.models import Model
from tightrope.types import InputError


def from_pymc(model: Any) -> Model:
    """The posterior of a PyMC model, computed in JAX.

    Free variables must be continuous. Observed variables must be Normal, LogNormal, StudentT, Laplace, Logistic,
    Cauchy, Gumbel or MvNormal. Deterministics are among the results; dims and coords stay.
    """
    try:
        from tightrope.importers import pymc  # takes seconds
    except ModuleNotFoundError as error:
        raise InputError(f"tr.from_pymc needs PyMC ({error}): pip install 'tightrope[pymc]' brings it.") from None
    return pymc.model_of(model)


__all__ = ["external", "from_numpyro", "from_petab", "from_pymc"]
