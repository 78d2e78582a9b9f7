"""A NumPyro model as a tightrope one: latent sites are its priors, observed sites its data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.primitives import Messenger

from tightrope.importers.sites import Site, SitesModel, check_observed, kept_of
from tightrope.models import Model
from tightrope.observations import Params
from tightrope.parameters import Prior
from tightrope.priors import prior_map
from tightrope.types import Array, InputError

STACK = threading.RLock()  # numpyro has one stack of handlers for all threads


def from_numpyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Model:
    """The posterior of a NumPyro model called with these arguments, the data among them.

    Observed sites must have a law with location and scale (Normal, StudentT, Laplace, Logistic, Cauchy, Gumbel,
    MultivariateNormal), or be an elementwise transform of one (LogNormal). Plates name dimensions of the results,
    and `numpyro.deterministic` sites are among them.
    """
    if not callable(model):
        raise InputError(f"model must be a function with numpyro.sample statements, not {type(model).__name__}.")
    return model_of(Program(model, args, kwargs))


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


def model_of(program: Program) -> Model:
    """A model whose priors, predictions and noise are the sites of a program."""
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
    return SitesModel(
        program.run,
        observed,
        masks=masks,
        priors=priors,
        derived={name: lambda params, name=name: program.run(params)[name]["value"] for name in recorded},
        coords=None,
        dims={name: dims for name in shown if (dims := dims_of(sites[name]))},
        name=getattr(program.model, "__name__", "model"),
    )


def dims_of(site: Site) -> list[str] | None:
    """The dimensions of a site's values, of which plates have names."""
    shape = jnp.shape(site["value"])
    num_events = site["fn"].event_dim if site["type"] == "sample" else 0
    names = [f"{site['name']}_dim_{axis}" for axis in range(len(shape))]
    plates = {len(shape) - num_events + frame.dim: frame for frame in site["cond_indep_stack"]}
    found = {axis: frame.name for axis, frame in plates.items() if axis >= 0 and shape[axis] == frame.size}
    return [found.get(axis, name) for axis, name in enumerate(names)] if found else None
