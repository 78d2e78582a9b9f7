"""Observed sites as residuals: the noise with location zero and scale one that explains the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from numpyro.distributions import transforms

from tightrope.checks import check_data, trace_or_refuse
from tightrope.models import Model
from tightrope.observations import Params
from tightrope.parameters import Prior
from tightrope.types import EPSILON, Array, InputError, Lift

LAWS = (dist.Normal, dist.StudentT, dist.Laplace, dist.Logistic, dist.Cauchy, dist.Gumbel, dist.MultivariateNormal)
WRAPPERS = (dist.MaskedDistribution, dist.ExpandedDistribution, dist.Independent)
Site = Mapping[str, Any]  # a message of numpyro: its law is "fn", and its data "value"
Run = Callable[[Params], Mapping[str, Site]]  # from the values of latent sites to the observed ones, perhaps others


class Standard(NamedTuple):
    """Data as noise of location zero and scale one."""

    e: Array
    log_scale: Array  # log |dy/de|, entry by entry


def standardised(fn: dist.Distribution, y: Array) -> Standard:
    """The noise that explains y, each entry given those before it."""
    if isinstance(fn, WRAPPERS):
        return standardised(fn.base_dist, y)
    if isinstance(fn, dist.TransformedDistribution):
        transform = transforms.ComposeTransform(fn.transforms)
        x = transform.inv(y)
        base = standardised(fn.base_dist, x)
        return Standard(base.e, base.log_scale + transform.log_abs_det_jacobian(x, y))
    if isinstance(fn, dist.MultivariateNormal):
        factor = jnp.broadcast_to(fn.scale_tril, y.shape + y.shape[-1:])
        e = solve_triangular(factor, (y - fn.loc)[..., None], lower=True)[..., 0]
        return Standard(e, jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)))
    return Standard((y - fn.loc) / fn.scale, jnp.broadcast_to(jnp.log(fn.scale), y.shape))


def core_of(fn: dist.Distribution) -> dist.Distribution:
    """The law inside a distribution, of which the rest is shape, mask and transform."""
    while isinstance(fn, (*WRAPPERS, dist.TransformedDistribution)):
        fn = fn.base_dist
    return fn


def kept_of(fn: dist.Distribution, shape: tuple[int, ...]) -> np.ndarray:
    """Which entries of an observed site count."""
    if isinstance(fn, dist.MaskedDistribution):
        mask = fn._mask
        if isinstance(mask, jax.core.Tracer):
            raise InputError("the mask depends on latent sites: it must be known beforehand.")
        mask = np.reshape(mask, np.shape(mask) + (1,) * (fn.event_dim if np.ndim(mask) else 0))
        return np.broadcast_to(mask, shape) & kept_of(fn.base_dist, shape)
    if isinstance(fn, (dist.ExpandedDistribution, dist.Independent)):
        return kept_of(fn.base_dist, shape)
    return np.ones(shape, bool)


def check_observed(fn: dist.Distribution, value: Any) -> None:
    """Refuse what is not noise with a location and a scale, and data that do not suit it."""
    kind, shape = type(fn).__name__, jnp.shape(value)
    core, inner = core_of(fn), fn
    while inner is not core:
        is_transformed = isinstance(inner, dist.TransformedDistribution)
        if is_transformed and any(t.domain.event_dim or t.codomain.event_dim for t in inner.transforms):
            raise InputError(f"the transform of its {kind} is not elementwise, so the noise cannot be solved for.")
        if is_transformed and (isinstance(inner, dist.FoldedDistribution) or not kept_of(inner.base_dist, shape).all()):
            raise InputError(f"its {kind} is folded or masked inside, so the noise cannot be solved for.")
        inner = inner.base_dist
    if type(core) not in LAWS:
        names = ", ".join(law.__name__ for law in LAWS)
        raise InputError(
            f"observations that are {type(core).__name__} cannot be lifted: they must be one of {names}, or an "
            "elementwise transform of one, such as LogNormal."
        )
    if np.broadcast_shapes(fn.shape(), shape) != shape:
        raise InputError(f"its data have shape {shape}, but its distribution has {fn.shape()}: one datum, one noise.")
    kept = kept_of(fn, shape)
    y = np.asarray(value, float)
    check_data(None, y, kept)
    inside = np.asarray(fn.support(jnp.asarray(np.where(kept, y, y[kept][0] if kept.any() else 1.0))))
    if not inside.all():
        raise InputError(f"{int((~inside).sum())} of its data are outside of the support of {kind}.")


class Sites:
    """The residuals of observed sites: the noise with location zero and scale one that explains each."""

    def __init__(self, run: Run, sites: Mapping[str, Site], masks: Mapping[str, np.ndarray]):
        self.run, self.names = run, list(masks)
        self.shapes = {name: mask.shape for name, mask in masks.items()}
        self.kept = {name: np.flatnonzero(mask) for name, mask in masks.items()}
        self.kinds = {name: type(core_of(sites[name]["fn"])) for name in masks}
        self.m = sum(map(len, self.kept.values()))

    def split(self, flat: Array) -> dict[str, Array]:
        """Cut a vector of length m into sites."""
        bounds = np.cumsum([len(kept) for kept in self.kept.values()])[:-1]
        return dict(zip(self.names, jnp.split(flat, bounds), strict=True))

    def select(self, name: str, whole: Array) -> Array:
        """The entries of a site that count."""
        return jnp.broadcast_to(whole, self.shapes[name]).ravel()[self.kept[name]]

    def spread(self, name: str, part: Array, elsewhere: Any) -> Array:
        """A whole site from the entries that count."""
        size = int(np.prod(self.shapes[name]))
        return jnp.full(size, elsewhere).at[self.kept[name]].set(part).reshape(self.shapes[name])

    def standard(self, params: Params, y: Array) -> Standard:
        sites, found = self.run(params), []
        for name, part in self.split(y).items():
            # What is masked has no influence, but must not be NaN: zero times that is NaN.
            standard = standardised(sites[name]["fn"], self.spread(name, part, part[0]))
            found.append([self.select(name, whole) for whole in standard])
        e, log_scale = (jnp.concatenate(parts) for parts in zip(*found, strict=True))
        return Standard(e, log_scale)

    def lift(self, params: Params, y: Array) -> Lift:
        e, log_scale = self.standard(params, y)
        return Lift(e, log_scale.sum(), EPSILON * jnp.max(jnp.abs(y) * jnp.exp(-log_scale)))

    def smallest_scale(self, params: Params) -> Array:
        return jnp.ones(())  # a scale that is not positive makes the density NaN, as it does in numpyro

    def noise_log_density(self, params: Params, e: Array) -> Array:
        """Log density of each residual under its law, shape (m,)."""
        needs_sites = dist.StudentT in self.kinds.values()
        sites, found = self.run(params) if needs_sites else {}, []
        for name, part in self.split(e).items():
            kind = self.kinds[name]
            if kind is dist.StudentT:
                law = kind(self.select(name, core_of(sites[name]["fn"]).df), 0.0, 1.0)
            else:
                law = (dist.Normal if kind is dist.MultivariateNormal else kind)(0.0, 1.0)
            found.append(law.log_prob(part))
        return jnp.concatenate(found)

    def pointwise(self, params: Params, y: Array) -> dict[str, Array]:
        """Log-likelihood of each observation (given those before it, where noise is correlated); NaN where masked."""
        e, log_scale = self.standard(params, y)
        parts = self.split(self.noise_log_density(params, e) - log_scale)
        return {name: self.spread(name, part, jnp.nan) for name, part in parts.items()}

    def simulate(self, key: Array, params: Params) -> dict[str, Array]:
        """Fresh data, masked entries too."""
        sites, result = self.run(params), {}
        for name, site_key in zip(self.names, jr.split(key, len(self.names)), strict=True):
            fn = sites[name]["fn"]
            batch_shape = self.shapes[name][: len(self.shapes[name]) - fn.event_dim]
            result[name] = fn.expand(batch_shape).sample(site_key)
        return result


class SitesModel(Model):
    """A model whose priors were found elsewhere, and whose data are observed sites."""

    def __init__(
        self,
        run: Run,
        observed: Mapping[str, Site],
        *,
        masks: Mapping[str, np.ndarray],
        priors: Mapping[str, Prior],
        derived: Mapping[str, Callable[..., Any]],
        coords: Mapping[str, Any] | None,
        dims: Mapping[str, Any],
        name: str,
    ):
        self.describe(priors, derived, coords, dims, name, truth=None, quantities=None)
        self.is_named = True
        self.mask = dict(masks)
        self.observed = {name: np.asarray(observed[name]["value"], np.float64) for name in masks}
        self.observations = Sites(run, observed, masks)
        trace_or_refuse("model", self.observations.lift, self.abstract_params, self.data)
