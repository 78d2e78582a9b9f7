"""Models that were written for something else."""

from tightrope.importers.external import external
from tightrope.importers.numpyro import from_numpyro

__all__ = ["external", "from_numpyro"]
