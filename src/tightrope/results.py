"""From rows of draws to the groups that ArviZ knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import arviz_base
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr
from jax import lax

from tightrope.kernel import Draw
from tightrope.models import Model
from tightrope.types import Array, InputError

GROUPS = ("posterior", "sample_stats", "unconstrained_posterior")  # those that have the draws
BATCH = 100  # draws that are converted at once


class NoDraws(RuntimeError):
    """A run that was stopped before it had anything to return."""


def over_draws(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one draw, for arrays whose first two axes are chain and draw.

    It is compiled for a batch, once, and applied draw by draw: the last bits do not depend on which were at hand.
    """
    batch = jax.jit(lambda *arrays: lax.map(lambda one: function(*one), arrays))

    def apply(*arrays: Any) -> Any:
        sizes = arrays[0].shape[:2]
        flat, total = [array.reshape(-1, *array.shape[2:]) for array in arrays], sizes[0] * sizes[1]
        parts = []
        for start in range(0, total, BATCH):
            index = np.arange(start, start + BATCH)
            part = batch(*[array[np.minimum(index, total - 1)] for array in flat])
            parts.append(jax.tree.map(lambda x: np.asarray(x)[: total - start], part))  # noqa: B023
        return jax.tree.map(lambda *x: np.concatenate(x).reshape(*sizes, *x[0].shape[1:]), *parts)

    return apply


class Converter:
    """Rows of draws as posterior, coordinates and statistics."""

    def __init__(self, model: Model, keep: Sequence[str] | None = None):
        self.model = model
        self.names = [name for name in (*model.parameters.names, *model.derived) if keep is None or name in keep]
        self.values = over_draws(self.parameters)

    def parameters(self, u: Array) -> dict[str, Array]:
        """Parameters and derived quantities at one draw."""
        params = self.model.parameters.values(u)
        values = params | {name: jnp.asarray(f(params), float) for name, f in self.model.derived.items()}
        return {name: values[name] for name in self.names}

    def groups(self, rows: np.ndarray, prefix: str = "") -> dict[str, dict[str, Any]]:
        """The groups of one part of a run, from rows of shape (chain, draw, number)."""
        draws = Draw.unpack(rows)
        values = self.values(draws.u) if draws.u.size else self.nothing(rows.shape[:2])
        return {
            # Through a compiled function a dictionary comes out in the order of its keys.
            f"{prefix}posterior": {name: values[name] for name in self.names},
            f"{prefix}sample_stats": draws.info._asdict(),
            f"{prefix}unconstrained_posterior": coordinates_of(self.model, draws.u),
        }

    def nothing(self, sizes: tuple[int, ...]) -> dict[str, np.ndarray]:
        """The parameters of no draws."""
        shapes = jax.eval_shape(self.parameters, jax.ShapeDtypeStruct((self.model.d,), float))
        return {name: np.zeros((*sizes, *value.shape)) for name, value in shapes.items()}

    def template(self, num_chains: int, save_warmup: bool, attributes: Mapping[str, Any]) -> xr.DataTree:
        """A result without draws."""
        rows = np.zeros((num_chains, 0, Draw.width(self.model.d)))
        groups = self.groups(rows) | (self.groups(rows, "warmup_") if save_warmup else {})
        return tree(self.model, groups | observed(self.model), attributes)


def observed(model: Model) -> dict[str, dict[str, Any]]:
    """The group of the data."""
    return {"observed_data": {name: np.where(model.mask[name], y, np.nan) for name, y in model.observed.items()}}


def coordinates_of(model: Model, u: np.ndarray) -> dict[str, np.ndarray]:
    """The coordinates u by parameter, in the parameter's shape where they are as many."""
    parts = {}
    for name, part in model.parameters.split(np.moveaxis(u, -1, 0)).items():
        shape = model.parameters.shapes[name]
        shape = shape if int(np.prod(shape)) == len(part) else part.shape[:1]
        parts[name] = np.moveaxis(part, 0, -1).reshape(*u.shape[:2], *shape)
    return parts


def check_keep(model: Model, keep: Sequence[str] | None) -> None:
    """Refuse names that the model does not have."""
    known = [*model.parameters.names, *model.derived]
    for name in keep or ():
        if name not in known:
            raise InputError(f'keep names "{name}", which is not among {known}.')


def tree(model: Model, groups: Mapping[str, Mapping[str, Any]], attributes: Mapping[str, Any]) -> xr.DataTree:
    """Groups of arrays as a DataTree, with the model's coordinates and dimensions."""
    result = arviz_base.from_dict(
        dict(groups), coords=model.coords, dims=model.dims, save_warmup=True, check_conventions=False
    )
    for name in ("posterior", "prior"):
        if name in result.children:
            result[name].attrs |= {
                "tightrope_version": version("tightrope"),
                "model": model.name,
                "quantities": model.quantities,
                **attributes,
            }
    return result


def collect(
    model: Model,
    rows: Sequence[np.ndarray],
    *,
    num_warmup: int,
    thin: int = 1,
    keep: Sequence[str] | None = None,
    save_warmup: bool = False,
    attributes: Mapping[str, Any],
) -> xr.DataTree:
    """The result of a run, cut to what every chain has reached."""
    length = min(len(chain) for chain in rows)
    if length <= num_warmup and not (save_warmup and length):
        raise NoDraws(
            f"the run was stopped after {length} of {num_warmup} warm-up iterations, so there are no draws: raise "
            "max_time, lower warmup, or look at the warm-up with save_warmup=True."
        )
    stacked, converter = np.stack([chain[:length] for chain in rows]), Converter(model, keep)
    groups: dict[str, dict[str, Any]] = {}
    if length > num_warmup:
        groups |= converter.groups(stacked[:, num_warmup::thin])
    if save_warmup and num_warmup:
        groups |= converter.groups(stacked[:, :num_warmup:thin], "warmup_")
    return tree(model, groups | observed(model), attributes)


def predict(model: Model, trace: xr.DataTree, seed: int = 0) -> xr.DataTree:
    """The trace with the groups `posterior_predictive` and `log_likelihood` added."""
    posterior = trace.children["posterior"].dataset
    missing = [name for name in model.parameters.names if name not in posterior]
    if missing:
        raise InputError(f"trace lacks the parameters {missing} of the model: sample without keep=, or keep them.")
    params = {name: posterior[name].values for name in model.parameters.names}
    sizes = params[model.parameters.names[0]].shape[:2]
    keys = jr.split(jr.key(seed), sizes)
    y = model.data

    def at(key: Array, *values: Array) -> Any:
        named = dict(zip(params, values, strict=True))
        return model.observations.simulate(key, named), model.observations.pointwise(named, y)

    simulated, log_likelihood = over_draws(at)(keys, *params.values())
    added = tree(model, {"posterior_predictive": simulated, "log_likelihood": log_likelihood}, {})
    return xr.DataTree(children={**trace.children, **added.children})


def prior(model: Model, draws: int = 1000, seed: int = 0) -> xr.DataTree:
    """Draws of the parameters from their prior, and of the data given them."""
    if draws < 1:
        raise InputError(f"draws={draws} must be a whole number of at least 1.")
    draw_key, noise_key = jr.split(jr.key(seed))
    u = np.asarray(jax.jit(jax.vmap(model.parameters.draw))(jr.split(draw_key, draws)))[None]
    params = over_draws(model.parameters.values)(u)
    names = list(params)
    simulate = lambda key, *values: model.observations.simulate(key, dict(zip(names, values, strict=True)))
    simulated = over_draws(simulate)(jr.split(noise_key, (1, draws)), *params.values())
    return tree(model, {"prior": Converter(model).values(u), "prior_predictive": simulated}, {"seed": seed})
