"""What the user writes about data and noise, looked at before anything compiles."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tightrope.observations import LAWS, Params
from tightrope.types import Array, InputError


def by_block(argument: str, value: Any, names: list[str]) -> dict[str, Any]:
    """One value per block: a dictionary with the blocks' names, or the same value for all."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(names, value)
    if set(value) != set(names):
        raise InputError(
            f"{argument} has the blocks {sorted(value)} but observed has {sorted(names)}: use the same names."
        )
    return dict(value)


def blocks_of(argument: str, value: Any) -> dict[str, np.ndarray]:
    """Named float64 arrays; an array alone is the block "y"."""
    if value is None:
        raise InputError(f"{argument} is missing: give the data as an array or a dictionary of arrays.")
    named = value if isinstance(value, Mapping) else {"y": value}
    for block in named.values():
        if isinstance(block, np.ma.MaskedArray):
            raise InputError(f"{argument} is a masked array: give its data, and mask= true where they are present.")
        if np.iscomplexobj(block):
            raise InputError(f"{argument} must be real numbers, not complex ones.")
    try:
        blocks = {str(key): np.asarray(block, np.float64) for key, block in named.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"{argument} must be numbers: {error}.") from None
    if not blocks or any(block.size == 0 for block in blocks.values()):
        raise InputError(f"{argument} is empty: give at least one number.")
    return blocks


def masks_of(mask: Any, observed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Which entries of each block were observed."""
    given = mask if isinstance(mask, Mapping) else dict.fromkeys(observed, mask)
    unknown = sorted(set(given) - set(observed))
    if unknown:
        raise InputError(f"mask has the blocks {unknown}, but observed has {sorted(observed)}: use the same names.")
    return {name: mask_of(given.get(name), values) for name, values in observed.items()}


def mask_of(mask: Any, values: np.ndarray) -> np.ndarray:
    """Which entries of one block were observed."""
    if mask is None:
        return np.ones(values.shape, bool)
    mask = np.asarray(mask)
    if mask.dtype != bool or mask.shape != values.shape:
        raise InputError(
            f"mask must be boolean with the shape {values.shape} of observed: true where data are present."
        )
    if not mask.any():
        raise InputError("mask leaves no data: it must be true where data are present.")
    return mask


def check_data(name: str | None, values: np.ndarray, mask: np.ndarray) -> None:
    """Refuse data that are not numbers."""
    bad = int((~np.isfinite(values) & mask).sum())
    if bad:
        where = f'observed["{name}"]' if name else "observed"
        raise InputError(
            f"{where} contains {bad} NaN or infinite values: mark missing data with mask=, false where missing."
        )


def law_of(noise: Any, abstract_params: Mapping[str, Any]) -> Callable[[Params], dist.Distribution]:
    """The law of the independent noise as a function of the parameters."""
    if noise is None:
        noise = dist.Normal(0.0, 1.0)
    if isinstance(noise, dist.Distribution):
        check_law(noise)
        return lambda params: noise
    if isinstance(noise, type) or not callable(noise):
        kind = noise.__name__ if isinstance(noise, type) else type(noise).__name__
        raise InputError(f"noise must be a numpyro distribution, such as dist.StudentT(4.0), not {kind}.")

    def look(params: Params) -> Array:
        law = noise(params)
        check_law(law)
        return law.log_prob(0.0)

    trace_or_refuse("noise", look, abstract_params)
    return noise


def check_law(law: Any) -> None:
    """Refuse what cannot be the law of one residual."""
    if not isinstance(law, LAWS) or law.batch_shape or law.event_shape:
        names = ", ".join(known.__name__ for known in LAWS)
        raise InputError(f"noise must be a scalar law among {names}: other noise is given by residual=.")


def factor_of(
    covariance: Any, factor: Any, size: int, abstract_params: Mapping[str, Any]
) -> Callable[[Params], Array] | None:
    """The lower triangular factor of the noise covariance as a function of the parameters."""
    if covariance is None and factor is None:
        return None
    argument, given = ("noise_cov", covariance) if factor is None else ("noise_tril", factor)
    if callable(given):
        shape = trace_or_refuse(argument, given, abstract_params).shape
    else:
        given = np.asarray(given, float)
        shape = given.shape
    if shape != (size, size):
        raise InputError(f"{argument} has shape {shape}, not {(size, size)} as the number of data says.")
    if callable(given):
        return given if factor is not None else lambda params: jnp.linalg.cholesky(given(params))
    if not np.isfinite(given).all():
        raise InputError(f"{argument} contains NaN or infinite values.")
    if factor is not None:
        if np.any(np.triu(given, 1)) or not (np.diagonal(given) > 0).all():
            raise InputError("noise_tril must be lower triangular with a positive diagonal.")
        return lambda params: jnp.asarray(given)
    if not np.allclose(given, given.T):
        raise InputError("noise_cov is not symmetric.")
    try:
        root = np.linalg.cholesky(given)
    except np.linalg.LinAlgError:
        raise InputError("noise_cov is not positive definite.") from None
    return lambda params: jnp.asarray(root)


def trace_or_refuse(argument: str, function: Callable[..., Any], *args: Any) -> Any:
    """The shapes that a user's function returns, or a sentence on why JAX cannot trace it."""
    if not callable(function):
        raise InputError(f"{argument} must be a function, not {type(function).__name__}.")
    try:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
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
    kinds = {str(leaf.dtype) for leaf in jax.tree.leaves(shapes)}
    if kinds & {"complex64", "complex128"}:
        raise InputError(f"{argument} returns complex numbers: return real ones.")
    coarse = kinds & {"float32", "float16", "bfloat16"}
    if coarse:
        raise InputError(
            f"{argument} returns {min(coarse)}, too coarse for precise data: leave out dtype= and astype, and make "
            "arrays after importing tightrope, which switches float64 on."
        )
    if "f32[" in str(program):
        warn_of_float32(argument)
    return shapes


def is_float32(x: Any) -> bool:
    return getattr(x, "dtype", None) == np.float32


def warn_of_float32(argument: str) -> None:
    """Tell of numbers that are not what they were meant to be: 0.1 becomes 0.10000000149."""
    warnings.warn(
        f"{argument} contains float32 numbers, which have seven digits: make arrays after importing tightrope, which "
        "switches float64 on, and leave out dtype= and astype.",
        stacklevel=4,
    )


def one_of(argument: str, value: Any, names: Any) -> None:
    """Refuse an unknown name, with the nearest known one."""
    if value not in names:
        near = get_close_matches(str(value), names, n=1, cutoff=0.3)
        hint = f'did you mean "{near[0]}"?' if near else f"use one of {', '.join(names)}."
        raise InputError(f'{argument}="{value}" is unknown: {hint}')


def in_range(argument: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside an open interval."""
    if not low < value < high:
        raise InputError(f"{argument}={value} must lie between {low:g} and {high:g}.")
