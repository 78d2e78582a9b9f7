"""Named priors, some given earlier ones, as one map from coordinates u to parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jax.experimental.xla_metadata import set_xla_metadata

from tightrope.priors import PriorMap, prior_map
from tightrope.types import Array, InputError

Prior: TypeAlias = Any  # a numpyro distribution, or a function from earlier parameters to one


class Earlier(dict):
    """The parameters before one; asking for another is the caller's mistake."""

    def __init__(self, values: Mapping[str, Array], name: str, all_names: list[str]):
        super().__init__(values)
        self.name, self.all_names = name, all_names

    def __missing__(self, key: str) -> Array:
        if key in self.all_names:
            raise InputError(
                f'priors: the prior of "{self.name}" uses "{key}", which comes later: move "{key}" before it.'
            )
        raise InputError(f'priors: the prior of "{self.name}" uses "{key}", which is not a parameter.')


class Parameters:
    """The map from u in R^d to named parameters, and its density."""

    def __init__(self, priors: Mapping[str, Prior]):
        if not isinstance(priors, Mapping) or not priors:
            raise InputError("priors must be a dictionary of numpyro distributions with at least one entry.")
        self.priors = dict(priors)
        self.names = list(self.priors)
        self.sizes: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        # Made here and not where they are traced: what a map can know beforehand is no part of any program then, and
        # leaves of a distribution have another order in every process, so that programs would be compiled anew.
        self.maps: dict[str, PriorMap] = {}  # of priors that stand alone
        for name, prior in self.priors.items():
            if not is_conditional(prior):
                self.maps[name] = self.map_of(name, {})
        self.groups = [(names, stacked([self.maps[name] for name in names])) for names in alike(self.priors)]
        values: dict[str, Any] = {}
        for name in self.names:
            shape = jax.eval_shape(lambda earlier, name=name: self.measure(name, earlier), values)
            values[name] = shape
            self.shapes[name] = shape.shape
        self.d = sum(self.sizes.values())
        if self.d == 0:
            raise InputError("priors define no free parameter.")

    def __getstate__(self) -> dict[str, Any]:
        """All but the program: a copy traces its own."""
        return {name: value for name, value in self.__dict__.items() if name != "maps_at"}

    def bare(self) -> Parameters:
        """The same, of the priors' own numbers alone."""
        parameters = copy.copy(self)
        parameters.maps, parameters.groups = {}, []
        return parameters

    def measure(self, name: str, earlier: Mapping[str, Array]) -> Array:
        """The value at u = 0, noting the number of coordinates on the way."""
        transform = self.map_of(name, earlier)
        self.sizes[name] = transform.size
        return transform.value(jnp.zeros(transform.size))

    def map_of(self, name: str, earlier: Mapping[str, Array]) -> PriorMap:
        """The map of one parameter, given those before it."""
        if name in self.maps:
            return self.maps[name]
        prior = self.priors[name]
        try:
            if is_conditional(prior):
                prior = prior(Earlier(earlier, name, self.names))
            return prior_map(prior)
        except InputError as error:
            text = str(error)
            raise InputError(text if text.startswith("priors") else f'priors["{name}"]: {text}') from None

    def split(self, u: Any) -> dict[str, Any]:
        """The coordinates of each parameter."""
        parts, start = {}, 0
        for name in self.names:
            parts[name] = u[start : start + self.sizes[name]]
            start += self.sizes[name]
        return parts

    def values(self, u: Array) -> dict[str, Array]:
        """The parameters at u."""
        return self.evaluate(u)[0]

    def energy(self, u: Array) -> Array:
        """Negative log prior density of u."""
        return self.evaluate(u)[1]

    def evaluate(self, u: Array) -> tuple[dict[str, Array], Array]:
        """The parameters at u and the negative log density."""
        # A call, and a call still in what XLA makes of it, which would else copy the maps to wherever a parameter is
        # used: a step of soil-hn-t35 takes two thirds of the time, and its program a fifth less to compile.
        return set_xla_metadata(self.maps_at(u), inlineable="false")

    @cached_property
    def maps_at(self) -> Callable[[Array], tuple[dict[str, Array], Array]]:
        """The same as a program, traced once: tracing all that samples takes half of the time that it takes without."""
        return jax.jit(self.trace)

    def trace(self, u: Array) -> tuple[dict[str, Array], Array]:
        """Follow the maps, one after the other."""
        parts = self.split(u)
        values: dict[str, Array] = {}
        energy = jnp.zeros(())

        def at(transform: PriorMap, part: Array) -> tuple[Array, Array]:
            return transform.value(part), transform.energy(part)

        # A map traced once for all parameters of a kind takes a fraction of the time to compile and to run.
        for names, maps in self.groups:
            found, energies = jax.vmap(at)(maps, jnp.stack([parts[name] for name in names]))
            values |= zip(names, found, strict=True)
            energy = energy + energies.sum()
        for place, (name, part) in enumerate(parts.items()):
            if name not in values:
                transform = self.map_of(name, {key: values[key] for key in self.names[:place]})
                values[name], prior_energy = at(transform, part)
                energy = energy + prior_energy
        return {name: values[name] for name in self.names}, energy

    def coordinates(self, values: Mapping[str, Any]) -> Array:
        """The u at which the parameters have these values."""
        missing = [name for name in self.names if name not in values]
        if missing:
            raise InputError(f"values for {missing} are missing: give every parameter of {self.names}.")
        given = {name: jnp.asarray(values[name], float) for name in self.names}
        parts = []
        for place, name in enumerate(self.names):
            if given[name].shape != self.shapes[name]:
                raise InputError(f'"{name}" has shape {given[name].shape}, not {self.shapes[name]} as its prior says.')
            earlier = {key: given[key] for key in self.names[:place]}
            parts.append(self.map_of(name, earlier).inverse(given[name]))
        return jnp.concatenate(parts)

    def draw(self, key: Array) -> Array:
        """Coordinates of a draw from the prior."""
        values: dict[str, Array] = {}
        parts = []
        for name, prior_key in zip(self.names, jr.split(key, len(self.names)), strict=True):
            transform = self.map_of(name, values)
            parts.append(transform.draw(prior_key))
            values[name] = transform.value(parts[-1])
        return jnp.concatenate(parts)


def is_conditional(prior: Prior) -> bool:
    """Whether it is a function of earlier parameters."""
    return not isinstance(prior, dist.Distribution) and callable(prior)


def stacked(maps: list[PriorMap]) -> PriorMap:
    """Maps that differ in their numbers alone, as one."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *maps)


def alike(priors: Mapping[str, Prior]) -> list[list[str]]:
    """The names of unconditional priors that differ in their numbers alone, two or more together."""
    kinds: dict[Any, list[str]] = {}
    for name, prior in priors.items():
        if isinstance(prior, dist.Distribution):
            leaves, structure = jax.tree.flatten(prior)
            kinds.setdefault((structure, tuple(jnp.shape(leaf) for leaf in leaves)), []).append(name)
    return [names for names in kinds.values() if len(names) > 1]
