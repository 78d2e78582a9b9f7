"""Prior, forward model and noise: from what the user writes to a residual map."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist

from tightrope.observations import LAWS, Additive, Block, General, Params, by_block, structure_of
from tightrope.parameters import Parameters, Prior
from tightrope.types import Array, InputError, Lift


class Conditioned(NamedTuple):
    """A model bound to data: a ResidualMap. The data are an argument, so that they may be traced."""

    parameters: Parameters
    observations: Additive | General
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

    def log_density(self, u: Array) -> Array:
        lift = self.lift(u)
        return -self.prior_energy(u) - self.noise_energy(u, lift.e) - lift.log_scale


class Model:
    """Parameters with priors, a forward model, noise and data: `y = F(theta) + s(theta) eta`.

    Give `forward` and `noise_scale`, or for noise that is not additive `residual(params, y)`, the noise that
    explains y, each entry of which may depend on y there and before.
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
    ):
        jax.config.update("jax_enable_x64", True)
        self.name, self.truth = name, truth
        self.coords, self.dims = dict(coords or {}), dict(dims or {})
        self.derived = dict(derived or {})
        self.parameters = Parameters(priors)
        self.abstract_params = {
            key: jax.ShapeDtypeStruct(shape, jnp.float64) for key, shape in self.parameters.shapes.items()
        }
        clash = sorted(set(self.derived) & set(self.parameters.names))
        if clash:
            raise InputError(f"derived redefines the parameters {clash}: choose other names.")

        self.is_named = isinstance(observed, Mapping)
        self.observed = blocks_of("observed", observed)
        self.mask = {key: mask_of(key, mask, value) for key, value in self.observed.items()}
        for key, value in self.observed.items():
            check_data(key if self.is_named else None, value, self.mask[key])
        if residual is not None:
            if forward is not None or noise_scale is not None or mask is not None:
                raise InputError("residual replaces forward, noise_scale and mask: give one or the other.")
            self.observations: Additive | General = self.general(residual, generate, noise)
        else:
            self.observations = self.additive(forward, noise_scale, noise, noise_cov, noise_tril)
        for key, function in self.derived.items():
            trace_or_refuse(f'derived["{key}"]', function, self.abstract_params)

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

    def log_density(self, u: Array) -> Array:
        """Log posterior density of the coordinates u, up to the evidence."""
        return self.condition().log_density(u)

    def simulate(self, key: Array, params: Params) -> Any:
        """Data that the model might give with these parameters."""
        simulated = self.observations.simulate(key, params)
        return simulated if self.is_named else simulated[next(iter(self.observed))]

    def with_observed(self, observed: Any) -> Model:
        """The same model of other data, of the same shape."""
        if isinstance(observed, Mapping) != self.is_named:
            raise InputError("observed must have the same blocks as the model's own data.")
        other = copy.copy(self)
        other.observed = blocks_of("observed", observed)
        for key, value in self.observed.items():
            if key not in other.observed or other.observed[key].shape != value.shape:
                raise InputError(f"observed must have the shape {value.shape} of the model's own data.")
            check_data(key if self.is_named else None, other.observed[key], self.mask[key])
        return other

    def additive(self, forward, noise_scale, noise, noise_cov, noise_tril) -> Additive:
        """The residual map of y = F + s L eta."""
        if forward is None:
            raise InputError("forward is missing: give a function of the parameters, or residual=.")
        if noise_scale is None:
            raise InputError("noise_scale is missing: give a parameter's name, a number, an array or a function.")
        if noise_cov is not None and noise_tril is not None:
            raise InputError("noise_cov and noise_tril say the same thing: give one of them.")
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
                factor=factor_of(covariances[key], factors[key], self.observed[key].size),
                law=law_of(laws[key]),
            )
            for key in names
        ]
        return Additive(forward, blocks)

    def scale_of(self, scale: Any, shape: tuple[int, ...]) -> Callable[[Params], Array]:
        """The noise scale as a function of the parameters."""
        if isinstance(scale, str):
            if scale not in self.parameters.names:
                raise InputError(f'noise_scale names "{scale}", which is not among the priors {self.parameters.names}.')
            function: Callable[[Params], Any] = lambda params: params[scale]
        elif callable(scale):
            function = scale
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
        general = General(residual, generate, shapes, self.is_named, law_of(noise))
        y = self.data
        e = trace_or_refuse("residual", general.flat_residual, self.abstract_params, y)
        if e.shape != y.shape:
            raise InputError(f"residual returns {e.size} values but observed has {y.size}: they must be as many.")

        # Entries that vanish at three generic places vanish everywhere, for any map that is analytic in y.
        def slopes(key: Array) -> Array:
            draw_key, shift_key = jr.split(key)
            near = y + 0.01 * (1 + jnp.abs(y)) * jr.normal(shift_key, y.shape)
            params = self.parameters.values(self.parameters.draw(draw_key))
            return jax.jacfwd(lambda y: general.flat_residual(params, y))(near)

        pattern = np.asarray(jax.jit(jax.vmap(slopes))(jr.split(jr.key(0), 3)))
        structure = structure_of(np.any(pattern != 0, axis=0))
        if structure is None:
            raise InputError(
                "residual: entry i of the noise may depend only on y[0], ..., y[i], but it depends on later ones: "
                "reorder the data or write the noise recursively."
            )
        general.structure = structure
        return general


def blocks_of(argument: str, value: Any) -> dict[str, np.ndarray]:
    """Named float64 arrays; an array alone is the block "y"."""
    if value is None:
        raise InputError(f"{argument} is missing: give the data as an array or a dictionary of arrays.")
    named = value if isinstance(value, Mapping) else {"y": value}
    try:
        blocks = {str(key): np.asarray(block, np.float64) for key, block in named.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"{argument} must be numbers: {error}.") from None
    if not blocks or any(block.size == 0 for block in blocks.values()):
        raise InputError(f"{argument} is empty: give at least one number.")
    return blocks


def mask_of(name: str, mask: Any, values: np.ndarray) -> np.ndarray:
    """Which entries were observed."""
    own = mask.get(name) if isinstance(mask, Mapping) else mask
    if own is None:
        return np.ones(values.shape, bool)
    own = np.asarray(own)
    if own.dtype != bool or own.shape != values.shape:
        raise InputError(
            f"mask must be boolean with the shape {values.shape} of observed: true where data are present."
        )
    if not own.any():
        raise InputError("mask leaves no data: it must be true where data are present.")
    return own


def check_data(name: str | None, values: np.ndarray, mask: np.ndarray) -> None:
    """Refuse data that are not numbers."""
    bad = int((~np.isfinite(values) & mask).sum())
    if bad:
        where = f'observed["{name}"]' if name else "observed"
        raise InputError(
            f"{where} contains {bad} NaN or infinite values: mark missing data with mask=, false where missing."
        )


def law_of(noise: Any) -> Callable[[Params], dist.Distribution]:
    """The law of the independent noise as a function of the parameters."""
    if noise is None:
        noise = dist.Normal(0.0, 1.0)
    if not isinstance(noise, dist.Distribution):
        if callable(noise):
            return noise
        raise InputError(f"noise must be a numpyro distribution, such as StudentT(4.0), not {type(noise).__name__}.")
    if not isinstance(noise, LAWS) or noise.batch_shape or noise.event_shape:
        names = ", ".join(law.__name__ for law in LAWS)
        raise InputError(f"noise must be a scalar law among {names}: other noise is given by residual=.")
    return lambda params: noise


def factor_of(covariance: Any, factor: Any, size: int) -> Callable[[Params], Array] | None:
    """The lower triangular factor of the noise covariance as a function of the parameters."""
    if covariance is None and factor is None:
        return None
    if callable(covariance):
        return lambda params: jnp.linalg.cholesky(covariance(params))
    if callable(factor):
        return factor
    argument = "noise_cov" if factor is None else "noise_tril"
    matrix = np.asarray(covariance if factor is None else factor, float)
    if matrix.shape != (size, size):
        raise InputError(f"{argument} has shape {matrix.shape}, not {(size, size)} as the number of data says.")
    if factor is None:
        try:
            matrix = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            raise InputError("noise_cov is not positive definite.") from None
    elif np.any(np.triu(matrix, 1)) or not (np.diagonal(matrix) > 0).all():
        raise InputError("noise_tril must be lower triangular with a positive diagonal.")
    return lambda params: jnp.asarray(matrix)


def trace_or_refuse(argument: str, function: Callable[..., Any], *args: Any) -> Any:
    """The shapes that a user's function returns, or a sentence on why JAX cannot trace it."""
    if not callable(function):
        raise InputError(f"{argument} must be a function, not {type(function).__name__}.")
    try:
        shapes = jax.eval_shape(function, *args)
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"{argument} asks for {error}, which is not among the priors.") from error
    except (
        jax.errors.JAXTypeError,
        jax.errors.UnexpectedTracerError,
        jax.errors.NonConcreteBooleanIndexError,
    ) as error:
        first_line = str(error).splitlines()[0]
        raise InputError(
            f"{argument} is not JAX-traceable ({first_line}): write it with jax.numpy instead of numpy, "
            "jnp.where or lax.cond instead of if, lax.scan instead of loops that stop on values."
        ) from error
    except Exception as error:
        raise InputError(f"{argument} raised {type(error).__name__}: {error}") from error
    wrong = [leaf.dtype for leaf in jax.tree.leaves(shapes) if leaf.dtype != jnp.float64]
    if any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in wrong):
        raise InputError(f"{argument} returns complex numbers: return real ones.")
    return shapes
