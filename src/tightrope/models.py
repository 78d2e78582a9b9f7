"""Prior, forward model and noise: from what the user writes to a residual map."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist

from tightrope.checks import (
    blocks_of,
    by_block,
    check_data,
    factor_of,
    is_float32,
    law_of,
    masks_of,
    trace_or_refuse,
    warn_of_float32,
)
from tightrope.observations import Additive, Block, General, Params, structure_of
from tightrope.parameters import Parameters, Prior
from tightrope.types import EPSILON, Array, InputError, Lift, MissingDerivatives

LEAST_PRECISION = 1e-6  # of predictions, relative to the data; what jumps more has no manifold


class Conditioned(NamedTuple):
    """A model bound to data: a ResidualMap. The data are an argument, so that they may be traced."""

    parameters: Parameters
    observations: Any  # Additive, General or the links of a state space model
    y: Array

    @property
    def d(self) -> int:
        return self.parameters.d

    @property
    def m(self) -> int:
        return self.observations.m

    def prior_energy(self, u: Array) -> Array:
        return self.parameters.energy(u)

    def noise_energy(self, u: Array, e: Array) -> Array:
        return -self.observations.noise_log_density(self.parameters.values(u), e).sum()

    def lift(self, u: Array) -> Lift:
        return self.observations.lift(self.parameters.values(u), self.y)

    @property
    def has_links(self) -> bool:
        """Whether the residuals are those of a chain of states."""
        return hasattr(self.observations, "links")

    def links(self, u: Array) -> Any:
        """The derivatives of the chain, link by link."""
        return self.observations.links(u, self.y)

    @property
    def has_second_derivatives(self) -> bool:
        """Whether the model can be differentiated twice: one from outside JAX perhaps not."""
        return has_second_derivatives(self.parameters, self.observations)

    @property
    def prefers_first_derivatives(self) -> bool:
        """Whether the forward model says that second derivatives take too long."""
        forward = getattr(self.observations, "forward", None)
        return getattr(forward, "prefers_first_derivatives", False)

    @property
    def has_information(self) -> bool:
        """Whether noise is additive and normal."""
        is_normal = getattr(self.observations, "is_normal", None)
        return is_normal is not None and is_normal(self.parameters.values(jnp.zeros(self.d)))

    def information_map(self, u: Array, v: Array) -> Array:
        """Squares to the Fisher information of the data."""
        return self.observations.information_map(self.parameters.values(u), self.parameters.values(v))

    def log_density(self, u: Array) -> Array:
        lift = self.lift(u)
        return -self.prior_energy(u) - self.noise_energy(u, lift.e) - lift.log_scale


@lru_cache(maxsize=16)
def has_second_derivatives(parameters: Parameters, observations: Any) -> bool:
    """Whether tracing meets no derivative that is missing."""

    def twice(u: Array, y: Array) -> Array:
        slope = lambda u: jax.jvp(lambda u: Conditioned(parameters, observations, y).lift(u).e, (u,), (u,))[1]
        return jax.jvp(slope, (u,), (u,))[1]

    try:
        jax.eval_shape(twice, *(jax.ShapeDtypeStruct((size,), float) for size in (parameters.d, observations.m)))
    except MissingDerivatives:
        return False
    return True


class Model:
    """Parameters with priors, a forward model, noise and data: `y = F(theta) + s(theta) eta`.

    Give `forward` and `noise_scale`, or for noise that is not additive `residual(params, y)`, the noise that
    explains y, each entry of which may depend on y there and before. Where `forward` jumps a little from place to
    place, as adaptive solvers do, `precision` tells how much, relative to the data: no more is asked of projections.
    """

    def __init__(
        self,
        priors: Mapping[str, Prior],
        forward: Callable[[Params], Any] | None = None,
        noise_scale: str | float | Array | Callable[[Params], Any] | Mapping[str, Any] | None = None,
        observed: Any = None,
        *,
        noise: Any = None,
        noise_cov: Any = None,
        noise_tril: Any = None,
        mask: Any = None,
        residual: Callable[[Params, Any], Any] | None = None,
        generate: Callable[[Params, Any], Any] | None = None,
        derived: Mapping[str, Callable[[Params], Any]] | None = None,
        coords: Mapping[str, Any] | None = None,
        dims: Mapping[str, Any] | None = None,
        name: str = "model",
        truth: Mapping[str, Any] | None = None,
        quantities: Sequence[str] | None = None,
        precision: float | None = None,
    ):
        self.describe(priors, derived, coords, dims, name, truth, quantities)
        self.is_named = isinstance(observed, Mapping)
        self.observed = blocks_of("observed", observed)
        self.mask = masks_of(mask, self.observed)
        for key, value in self.observed.items():
            check_data(key if self.is_named else None, value, self.mask[key])
        if residual is not None:
            replaced = {
                "forward": forward,
                "noise_scale": noise_scale,
                "mask": mask,
                "noise_cov": noise_cov,
                "noise_tril": noise_tril,
                "precision": precision,
            }
            for argument, value in replaced.items():
                if value is not None:
                    raise InputError(f"residual replaces {argument}: give one or the other.")
            self.observations: Any = self.general(residual, generate, noise)
        else:
            self.observations = self.additive(forward, noise_scale, noise, noise_cov, noise_tril, precision)
        for key, function in self.derived.items():
            trace_or_refuse(f'derived["{key}"]', function, self.abstract_params)

    def describe(self, priors, derived, coords, dims, name, truth, quantities) -> None:
        """Note what the model is about, apart from its data."""
        jax.config.update("jax_enable_x64", True)
        self.name, self.truth, self.documentation = name, truth, ""
        self.origin: dict[str, Any] | None = None  # name and options in the zoo
        self.coords, self.dims = dict(coords or {}), dict(dims or {})
        self.derived = dict(derived or {})
        self.parameters = Parameters(priors)
        for key, prior in priors.items():
            if isinstance(prior, dist.Distribution) and any(is_float32(leaf) for leaf in jax.tree.leaves(prior)):
                warn_of_float32(f'priors["{key}"]')
        self.abstract_params = {
            key: jax.ShapeDtypeStruct(shape, jnp.float64) for key, shape in self.parameters.shapes.items()
        }
        clash = sorted(set(self.derived) & set(self.parameters.names))
        if clash:
            raise InputError(f"derived redefines the parameters {clash}: choose other names.")
        # What summaries and warnings are about; by default everything.
        self.quantities = list(quantities or (*self.parameters.names, *self.derived))
        for key in self.quantities:
            if key not in (*self.parameters.names, *self.derived):
                raise InputError(f'quantities names "{key}", which is neither a parameter nor derived.')

    @property
    def d(self) -> int:
        return self.parameters.d

    @property
    def m(self) -> int:
        return self.observations.m

    @property
    def data(self) -> Array:
        """What was observed, as one vector."""
        kept = [self.observed[key].ravel()[np.flatnonzero(self.mask[key])] for key in self.observed]
        return jnp.asarray(np.concatenate(kept))

    def condition(self, y: Array | None = None) -> Conditioned:
        """The residual map given data, by default the observed ones."""
        return Conditioned(self.parameters, self.observations, self.data if y is None else y)

    def known_as(self, program: str, *facts: Any) -> str | None:
        """A name of a program that samples it, given further facts, if that can be told without a look at the model."""
        if self.origin is None:
            return None
        # A noise scale that is inferred has made the data, which are an argument of every program.
        is_in_data = lambda option: option == "sigma" and option in self.parameters.names
        options = {option: value for option, value in self.origin["options"].items() if not is_in_data(option)}
        return repr((self.origin["name"], options, program, *facts))

    def log_density(self, u: Array) -> Array:
        """Log posterior density of the coordinates u, up to the evidence."""
        return self.condition().log_density(u)

    def simulate(self, key: Array, params: Params) -> Any:
        """Data that the model might give with these parameters."""
        simulated = self.observations.simulate(key, {name: jnp.asarray(value) for name, value in params.items()})
        return simulated if self.is_named else simulated[next(iter(self.observed))]

    def with_observed(self, observed: Any) -> Model:
        """The same model of other data, of the same shape."""
        if isinstance(observed, Mapping) != self.is_named:
            raise InputError("observed must have the same blocks as the model's own data.")
        given = blocks_of("observed", observed)
        if set(given) != set(self.observed):
            raise InputError(f"observed has the blocks {sorted(given)}, not {sorted(self.observed)} as the model.")
        other = copy.copy(self)
        other.origin = None
        other.observed = {key: given[key] for key in self.observed}
        for key, value in self.observed.items():
            if given[key].shape != value.shape:
                raise InputError(f"observed has shape {given[key].shape}, not {value.shape} as the model's own data.")
            check_data(key if self.is_named else None, given[key], self.mask[key])
        return other

    def additive(self, forward, noise_scale, noise, noise_cov, noise_tril, precision) -> Additive:
        """The residual map of y = F + s L eta."""
        if forward is None:
            raise InputError("forward is missing: give a function of the parameters, or residual=.")
        if noise_scale is None:
            raise InputError("noise_scale is missing: give a parameter's name, a number, an array or a function.")
        if noise_cov is not None and noise_tril is not None:
            raise InputError("noise_cov and noise_tril say the same thing: give one of them.")
        if precision is not None and not 0 < precision <= LEAST_PRECISION:
            raise InputError(f"precision={precision} must be positive and at most {LEAST_PRECISION:g}.")
        names = list(self.observed)
        predicted = trace_or_refuse("forward", forward, self.abstract_params)
        predicted = dict(predicted) if isinstance(predicted, Mapping) else {names[0]: predicted}
        if set(predicted) != set(names):
            raise InputError(f"forward returns the blocks {sorted(predicted)} but observed has {sorted(names)}.")
        for key in names:
            if predicted[key].shape != self.observed[key].shape:
                where = f' for block "{key}"' if self.is_named else ""
                raise InputError(
                    f"forward returns shape {predicted[key].shape}{where} but observed has shape "
                    f"{self.observed[key].shape}: they must be equal."
                )
        if hasattr(forward, "try_out"):  # compiled code could not show what it raises
            keys = jr.split(jr.key(0), 10)
            forward.try_out(self.parameters.values(self.parameters.draw(key)) for key in keys)
        scales = by_block("noise_scale", noise_scale, names)
        laws = by_block("noise", noise, names)
        covariances = by_block("noise_cov", noise_cov, names)
        factors = by_block("noise_tril", noise_tril, names)
        blocks = [
            Block(
                name=key,
                shape=self.observed[key].shape,
                kept=np.flatnonzero(self.mask[key]),
                scale=self.scale_of(scales[key], self.observed[key].shape),
                factor=factor_of(covariances[key], factors[key], self.observed[key].size, self.abstract_params),
                law=law_of(laws[key], self.abstract_params),
            )
            for key in names
        ]
        for block in blocks:
            is_normal = laws[block.name] is None or isinstance(laws[block.name], dist.Normal)
            if block.factor is not None and block.size < self.observed[block.name].size and not is_normal:
                raise InputError("mask: missing entries of correlated noise can be left out only if noise is Normal.")
        return Additive(forward, blocks, EPSILON if precision is None else max(float(precision), EPSILON))

    def scale_of(self, scale: Any, shape: tuple[int, ...]) -> Callable[[Params], Array]:
        """The noise scale as a function of the parameters."""
        if isinstance(scale, str):
            if scale not in self.parameters.names:
                raise InputError(f'noise_scale names "{scale}", which is not among the priors {self.parameters.names}.')
            function: Callable[[Params], Any] = lambda params: params[scale]
        elif callable(scale):
            function = scale
        elif isinstance(scale, jax.core.Tracer):
            function = lambda params: scale  # a whole range of scales at once: none to look at
        else:
            constant = np.asarray(scale, float)
            if not (np.isfinite(constant).all() and (constant > 0).all()):
                raise InputError("noise_scale must be positive and finite everywhere.")
            function = lambda params: constant
        result = trace_or_refuse("noise_scale", function, self.abstract_params)
        try:
            fits = np.broadcast_shapes(result.shape, shape) == shape
        except ValueError:
            fits = False
        if not fits:
            raise InputError(f"noise_scale has shape {result.shape}, which does not broadcast to {shape} of observed.")
        return function

    def general(self, residual, generate, noise) -> General:
        """The residual map that the user gives, after a look at its derivative in y."""
        shapes = {key: value.shape for key, value in self.observed.items()}
        general = General(residual, generate, shapes, self.is_named, law_of(noise, self.abstract_params))
        y = self.data
        e = trace_or_refuse("residual", general.flat_residual, self.abstract_params, y)
        if e.shape != y.shape:
            raise InputError(f"residual returns {e.size} values but observed has {y.size}: they must be as many.")

        # Entries that vanish at generic places vanish everywhere, for any map that is analytic in y.
        def slopes(key: Array) -> Array:
            draw_key, shift_key = jr.split(key)
            near = jnp.where(y == 0, 0.01, y) * jr.uniform(shift_key, y.shape, minval=0.9, maxval=1.1)
            params = self.parameters.values(self.parameters.draw(draw_key))
            return jax.jacfwd(lambda y: general.flat_residual(params, y))(near)

        found = np.asarray(jax.jit(jax.vmap(slopes))(jr.split(jr.key(0), 10)))
        finite = np.isfinite(found).all(axis=(1, 2))
        if not finite.any():
            raise InputError("residual: its derivative in y is NaN or infinite at all of 10 prior draws.")
        structure = structure_of(np.any(found[finite] != 0, axis=0))
        if structure is None:
            raise InputError(
                "residual: entry i of the noise may depend only on y[0], ..., y[i], but it depends on later ones: "
                "reorder the data or write the noise recursively."
            )
        general.structure = structure
        return general
