"""The measured data: small tables whose first line names their source."""

from importlib.resources import files

import numpy as np


def read_table(name: str) -> np.ndarray:
    """The numbers of a table, one row a record."""
    with (files("tightrope.zoo") / name).open() as file:
        return np.loadtxt(file, delimiter=",", skiprows=2)
