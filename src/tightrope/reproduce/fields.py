"""The conductivity of the disc that is to be found, and the temperature that it makes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import xarray as xr

from tightrope import zoo
from tightrope.reproduce import pictures
from tightrope.reproduce.request import Claim, Request
from tightrope.zoo.elements import Diffusion
from tightrope.zoo.poisson import NUM_RINGS, SENSORS, SOURCE


def figure_c4(request: Request) -> list[Claim]:
    """The true conductivity of the disc, and its temperature with the mesh and the sensors."""
    data = disc().assign_attrs(command=request.command)
    data.to_netcdf(request.file(".nc"), engine="h5netcdf")
    with xr.open_dataset(request.file(".nc"), engine="h5netcdf") as saved:
        pictures.disc(saved, request.file(""))
    request.left(".nc", ".png", ".svg")
    return []


def disc() -> xr.Dataset:
    """Nodes, triangles, the true field and its solution at the nodes, and which of them are seen."""
    elements, truth = Diffusion(NUM_RINGS), zoo.load("poisson").truth
    assert truth is not None
    load = jnp.asarray(SOURCE * elements.areas[: elements.num_inner])
    inner = elements.solve(elements.conductivity(jnp.asarray(truth["z"])), load)
    temperature = np.pad(np.asarray(inner), (0, elements.num_nodes - elements.num_inner))
    return xr.Dataset(
        {
            "place": (("coordinate", "node"), elements.mesh.p),
            "corners": (("corner", "triangle"), elements.corners),
            "z": ("node", np.asarray(truth["z"])),
            "temperature": ("node", temperature),
            "sensor": ("sensor_number", SENSORS),
        }
    )
