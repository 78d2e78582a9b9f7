"""The toy's posterior in the plane, and lifted above it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from tightrope import zoo
from tightrope.frames import FRAMES
from tightrope.reproduce import pictures
from tightrope.reproduce.loop import points
from tightrope.reproduce.request import Claim, Request
from tightrope.systems import Lifted

SIGMAS = (0.5, 0.1, 0.02)
EXTENT, NUM_POINTS = 1.75, 601  # of a grid fine enough for the thinnest
MAX_CHANGE = 0.05  # of a density that is to stay
NUM_ANGLES, NUM_NOISES, MAX_NOISE = 361, 41, 2.0  # of the surface


def figure_1(request: Request) -> list[Claim]:
    """The toy's posterior at three noise scales, and the curve that it closes on."""
    save(request, posteriors())
    with xr.open_dataset(request.file(".nc"), engine="h5netcdf") as saved:
        pictures.densities(saved, request.file(""))
        misfits = mean_misfits(saved)
    request.left(".nc", ".png", ".svg")
    found = ", ".join(f"{misfit:.3f} at {sigma:g}" for sigma, misfit in zip(SIGMAS, misfits, strict=True))
    text = "As the noise vanishes the posterior closes on the curve F = 1."
    return [Claim(text, bool(np.all(misfits < SIGMAS)), f"mean of |F - 1| {found}")]


def figure_3(request: Request) -> list[Claim]:
    """The same posteriors lifted to a surface in three dimensions, where they stay wide."""
    save(request, posteriors().merge(surfaces()))
    with xr.open_dataset(request.file(".nc"), engine="h5netcdf") as saved:
        pictures.surfaces(saved, request.file(""))
        lifted = saved["lifted"].sum("angle")
        shares = (lifted.sel(noise=1.0) / lifted.sel(noise=0.0)).values
    request.left(".nc", ".png", ".svg")
    found = ", ".join(f"{share:.2f} at {sigma:g}" for sigma, share in zip(SIGMAS, shares, strict=True))
    text = "As the noise vanishes the lifted density stays as wide as the law of the noise in units of its scale."
    is_so = bool(abs(shares[-1] - np.exp(-0.5)) < MAX_CHANGE)
    return [Claim(text, is_so, f"density where that noise is 1, relative to none, {found}; a normal law's is 0.61")]


def mean_misfits(data: xr.Dataset) -> np.ndarray:
    """The posterior mean of |F - 1| for each noise scale."""
    th0, th1 = data["theta0"], data["theta1"]
    misfit = abs(th1**2 + th0**2 * (th0**2 - 0.5) - 1)
    return (misfit * data["density"]).sum(["theta0", "theta1"]).values / data["density"].sum(
        ["theta0", "theta1"]
    ).values


def save(request: Request, data: xr.Dataset) -> None:
    packed = {name: {"zlib": True, "dtype": "float32"} for name in data.data_vars}  # enough for a picture
    data.assign_attrs(command=request.command).to_netcdf(request.file(".nc"), engine="h5netcdf", encoding=packed)


def posteriors() -> xr.Dataset:
    """Densities on a grid in the plane, which integrate to one there, and the limiting curve."""
    axis = np.linspace(-EXTENT, EXTENT, NUM_POINTS)
    grid = jnp.stack(jnp.meshgrid(axis, axis), axis=-1)  # a coordinate of the toy is its parameter
    densities = []
    for sigma in SIGMAS:
        log_density = np.asarray(jax.jit(jax.vmap(jax.vmap(zoo.load("toy", sigma=sigma).log_density)))(grid))
        density = np.exp(log_density - log_density.max())
        densities.append(density / (density.sum() * (axis[1] - axis[0]) ** 2))
    angles = np.linspace(0, 2 * np.pi, NUM_ANGLES)
    return xr.Dataset(
        {"density": (("sigma", "theta1", "theta0"), densities), "curve": (("angle", "coordinate"), points(angles))},
        {"sigma": list(SIGMAS), "theta0": axis, "theta1": axis, "angle": angles},
    )


def surfaces() -> xr.Dataset:
    """Points of the manifolds where the noise is at most 2, and the lifted density there, relative to its maximum."""
    angles, noises = np.linspace(0, 2 * np.pi, NUM_ANGLES), np.linspace(-MAX_NOISE, MAX_NOISE, NUM_NOISES)
    places, densities = [], []
    for sigma in SIGMAS:
        theta = points(angles[None, :], 1 - sigma * noises[:, None])
        system = Lifted(zoo.load("toy", sigma=sigma).condition(), FRAMES["wide"], None)
        potential = np.asarray(jax.jit(jax.vmap(jax.vmap(lambda u: system.at(u).potential)))(jnp.asarray(theta)))  # noqa: B023
        places.append(theta)
        densities.append(np.exp(potential.min() - potential))
    return xr.Dataset(
        {
            "place": (("sigma", "noise", "angle", "coordinate"), places),
            "lifted": (("sigma", "noise", "angle"), densities),
        },
        {"sigma": list(SIGMAS), "noise": noises, "angle": angles},
    )
