"""A NumPyro model as a tightrope one: latent sites are its priors, observed sites its data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from numpyro import handlers
from numpyro.distributions import transforms
from numpyro.primitives import Messenger

from tightrope.checks import check_data, trace_or_refuse
from tightrope.models import Model
from tightrope.observations import Params
from tightrope.parameters import Prior
from tightrope.priors import prior_map
from tightrope.types import EPSILON, Array, InputError, Lift

LAWS = (dist.Normal, dist.StudentT, dist.Laplace, dist.Logistic, dist.Cauchy, dist.Gumbel, dist.MultivariateNormal)
WRAPPERS = (dist.MaskedDistribution, dist.ExpandedDistribution, dist.Independent)
Site = Mapping[str, Any]  # a message of numpyro

STACK = threading.RLock()  # numpyro has one stack of handlers for all threads


def from_numpyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Model:
    """The posterior of a NumPyro model called with these arguments, the data among them.

    Observed sites must have a law with location and scale (Normal, StudentT, Laplace, Logistic, Cauchy, Gumbel,
    MultivariateNormal), or be an elementwise transform of one (LogNormal). Plates name dimensions of the results,
    and `numpyro.deterministic` sites are among them.
    """
    if not callable(model):
        raise InputError(f"model must be a function with numpyro.sample statements, not {type(model).__name__}.")
    return NumPyroModel(Program(model, args, kwargs))


class Reached(Exception):
    """The end of a run that looks for the law of one site."""

    def __init__(self, law: dist.Distribution):
        self.law = law


class Until(Messenger):
    """Ends a run where a site is reached."""

    def __init__(self, name: str):
        super().__init__()
        self.name = name

    def process_message(self, msg: Site) -> None:
        if msg["type"] == "sample" and msg["name"] == self.name:
            raise Reached(law_at(msg))


class Checked(Messenger):
    """Refuses, before anything is drawn, sites that have no place in a lifted model."""

    def process_message(self, msg: Site) -> None:
        kind, name = msg["type"], msg.get("name")
        if kind == "control_flow":
            raise InputError("numpyro's scan and cond are not translated: use tr.StateSpaceModel, or jax.lax.scan.")
        if kind == "param":
            raise InputError(f'site "{name}" is a numpyro.param, without a prior: use numpyro.sample.')
        if kind == "plate" and msg["args"][1] not in (None, msg["args"][0]):
            raise InputError(f'plate "{name}" is subsampled: leave out subsample_size, the data must all be seen.')
        if kind != "sample":
            return
        if isinstance(msg["fn"], dist.Unit):
            raise InputError(f'site "{name}" is a numpyro.factor, which is not noise: write it as numpyro.sample.')
        if msg["scale"] is not None:
            raise InputError(f'site "{name}": handlers.scale changes its density, which is then not that of noise.')
        try:
            if msg["is_observed"]:
                check_observed(law_at(msg), msg["value"])
            else:
                prior_map(law_at(msg))
        except InputError as error:
            if str(name).endswith("_unobserved") and isinstance(msg["fn"], dist.MaskedDistribution):
                raise InputError(f'site "{name}" is made by obs_mask: use numpyro.handlers.mask instead.') from None
            raise InputError(f'site "{name}": {error}') from None


class Program(NamedTuple):
    """A NumPyro model and its arguments."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def run(self, values: Params, watcher: Messenger | None = None) -> dict[str, Site]:
        """The sites, where latent ones have these values."""
        watcher, recorder = watcher or Messenger(), handlers.trace()
        with STACK, watcher, recorder, handlers.substitute(data=dict(values)), handlers.seed(rng_seed=0):
            self.model(*self.args, **self.kwargs)
        return recorder.trace

    def law(self, name: str, earlier: Params) -> dist.Distribution:
        """The distribution of a latent site, given those before it."""
        try:
            self.run(earlier, Until(name))
        except Reached as reached:
            return reached.law
        raise InputError(f'site "{name}" comes and goes: a model must have the same sites every time.')

    def checked(self) -> dict[str, Site]:
        """The sites at a prior draw, if they can be translated."""
        try:
            return self.run({}, Checked())
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"model raised {type(error).__name__}: {error}") from error

    def priors(self, sites: Mapping[str, Site]) -> dict[str, Prior]:
        """The latent sites: distributions, or functions of earlier sites where they depend on those."""
        drawn = {name: site["value"] for name, site in sites.items() if is_latent(site)}
        priors: dict[str, Prior] = {}

        def look(values: Params) -> Array:
            for name, site in self.run(values).items():
                if site["type"] == "sample" and site["is_observed"]:
                    kept_of(site["fn"], jnp.shape(site["value"]))
                elif is_latent(site) and site["value"] is values[name]:  # else it was fixed by a handler of the model
                    law = law_at(site)
                    # Under vmap a number is traced if it depends on the latent sites, and only then.
                    is_given = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(law))
                    priors[name] = (lambda earlier, name=name: self.law(name, earlier)) if is_given else law
            return jnp.zeros(())

        if drawn:
            jax.vmap(look)({name: jnp.asarray(value)[None] for name, value in drawn.items()})
        return priors


def is_latent(site: Site) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def law_at(site: Site) -> dist.Distribution:
    """The distribution of a site, in its whole shape."""
    fn, sample_shape = site["fn"], site["kwargs"].get("sample_shape", ())
    return fn.expand(tuple(sample_shape) + fn.batch_shape) if sample_shape else fn


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

    def __init__(self, program: Program, sites: Mapping[str, Site], masks: Mapping[str, np.ndarray]):
        self.program, self.names = program, list(masks)
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
        sites, found = self.program.run(params), []
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
        sites, found = self.program.run(params) if needs_sites else {}, []
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
        sites, result = self.program.run(params), {}
        for name, site_key in zip(self.names, jr.split(key, len(self.names)), strict=True):
            fn = sites[name]["fn"]
            batch_shape = self.shapes[name][: len(self.shapes[name]) - fn.event_dim]
            result[name] = fn.expand(batch_shape).sample(site_key)
        return result


class NumPyroModel(Model):
    """A model whose priors, predictions and noise are the sites of a program."""

    def __init__(self, program: Program):
        jax.config.update("jax_enable_x64", True)
        sites = program.checked()
        priors = program.priors(sites)
        if not priors:
            raise InputError("model has no latent site: there is nothing to infer.")
        recorded = [name for name, site in sites.items() if site["type"] == "deterministic"]
        observed = {name: site for name, site in sites.items() if site["type"] == "sample" and site["is_observed"]}
        masks = {name: kept_of(site["fn"], jnp.shape(site["value"])) for name, site in observed.items()}
        masks = {name: mask for name, mask in masks.items() if mask.any()}
        if not masks:
            raise InputError("model has no observed site: pass the data to it, and on as obs= of numpyro.sample.")
        shown = (*priors, *recorded, *masks)
        self.describe(
            priors=priors,
            derived={name: lambda params, name=name: program.run(params)[name]["value"] for name in recorded},
            coords=None,
            dims={name: dims for name in shown if (dims := dims_of(sites[name]))},
            name=getattr(program.model, "__name__", "model"),
            truth=None,
            quantities=None,
        )
        self.is_named = True
        self.mask = masks
        self.observed = {name: np.asarray(sites[name]["value"], np.float64) for name in masks}
        self.observations = Sites(program, sites, masks)
        trace_or_refuse("model", self.observations.lift, self.abstract_params, self.data)


def dims_of(site: Site) -> list[str] | None:
    """The dimensions of a site's values, of which plates have names."""
    shape = jnp.shape(site["value"])
    num_events = site["fn"].event_dim if site["type"] == "sample" else 0
    names = [f"{site['name']}_dim_{axis}" for axis in range(len(shape))]
    plates = {len(shape) - num_events + frame.dim: frame for frame in site["cond_indep_stack"]}
    found = {axis: frame.name for axis, frame in plates.items() if axis >= 0 and shape[axis] == frame.size}
    return [found.get(axis, name) for axis, name in enumerate(names)] if found else None
