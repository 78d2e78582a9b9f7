"""Models that were written for something else."""

from tightrope.importers.numpyro import from_numpyro

__all__ = ["from_numpyro"]
