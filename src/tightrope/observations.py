"""From predictions and data to residuals: the noise that explains what was seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist

from tightrope.types import EPSILON, Array, InputError, Lift

Params = Mapping[str, Array]
LAWS = (dist.Normal, dist.StudentT, dist.Laplace, dist.Logistic)


class Block(NamedTuple):
    """One observed array, and how its noise is made."""

    name: str
    shape: tuple[int, ...]
    kept: np.ndarray  # flat indices of the entries that were observed
    scale: Callable[[Params], Array]  # of the noise, broadcast to the shape
    factor: Callable[[Params], Array] | None  # lower triangular factor of the noise covariance
    law: Callable[[Params], dist.Distribution]  # of the independent noise, elementwise

    @property
    def size(self) -> int:
        return len(self.kept)

    def observed(self, values: Array) -> Array:
        """Those of its values that were observed, flat; where all were without a gather, so that XLA sees more."""
        whole = jnp.broadcast_to(values, self.shape).ravel()
        return whole if self.size == whole.size else whole[self.kept]

    def scales(self, params: Params) -> Array:
        return self.observed(jnp.asarray(self.scale(params), float))

    def kept_factor(self, params: Params) -> Array:
        """The factor of the covariance of what was observed."""
        assert self.factor is not None
        factor = jnp.asarray(self.factor(params), float)
        if self.size == factor.shape[0]:
            return factor
        rows = factor[self.kept]
        return jnp.linalg.cholesky(rows @ rows.T)


class Additive:
    """y = F(theta) + s(theta) L(theta) eta, block by block."""

    def __init__(self, forward: Callable[[Params], Any], blocks: list[Block], precision: float = EPSILON):
        self.forward = forward
        self.blocks = blocks
        self.precision = precision  # of predictions, relative to the data
        self.m = sum(block.size for block in blocks)

    def predictions(self, params: Params) -> dict[str, Array]:
        """What the forward model predicts, by block."""
        predicted = self.forward(params)
        if not isinstance(predicted, Mapping):
            predicted = {self.blocks[0].name: predicted}
        return {block.name: jnp.asarray(predicted[block.name], float) for block in self.blocks}

    def split(self, flat: Array) -> list[Array]:
        """Cut a vector of length m into blocks."""
        return jnp.split(flat, np.cumsum([block.size for block in self.blocks])[:-1])

    def lift(self, params: Params, y: Array) -> Lift:
        predicted = self.predictions(params)
        residuals, log_scale, rounding = [], jnp.zeros(()), jnp.zeros(())
        for block, data in zip(self.blocks, self.split(y), strict=True):
            scale = block.scales(params)
            e = (data - block.observed(predicted[block.name])) / scale
            log_scale += jnp.log(scale).sum()
            if block.factor is not None:
                factor = block.kept_factor(params)
                e = jax.scipy.linalg.solve_triangular(factor, e, lower=True)
                log_scale += jnp.log(jnp.diagonal(factor)).sum()
                scale = scale * jnp.diagonal(factor)
            rounding = jnp.maximum(rounding, self.precision * jnp.max(jnp.abs(data) / scale))
            residuals.append(e)
        return Lift(jnp.concatenate(residuals), log_scale, rounding)

    def smallest_scale(self, params: Params) -> Array:
        """The least of the noise scales, which must be positive."""
        return jnp.stack([block.scales(params).min() for block in self.blocks]).min()

    def is_normal(self, params: Params) -> bool:
        """Whether all noise is normal."""
        return all(isinstance(block.law(params), dist.Normal) for block in self.blocks)

    def information_map(self, params: Params, others: Params) -> Array:
        """A vector whose Jacobian in the others, where they are equal, squares to the Fisher information.

        For y ~ N(mu, A A^T): the whitened mean A^-1 mu', and (B + B^T) / sqrt 2 with B = A^-1 A'.
        """
        predicted, parts = self.predictions(others), []
        for block in self.blocks:
            law, other_law = block.law(params), block.law(others)
            scale, other_scale = block.scales(params) * law.scale, block.scales(others) * other_law.scale
            mean, offset = block.observed(predicted[block.name]), jnp.full(block.size, other_law.loc)
            if block.factor is None:
                mean = mean + block.scales(others) * offset
                parts += [mean / scale, jnp.sqrt(2.0) * other_scale / scale]
                continue
            mean = mean + block.scales(others) * (block.kept_factor(others) @ offset)
            factor = scale[:, None] * block.kept_factor(params)
            other_factor = other_scale[:, None] * block.kept_factor(others)
            whiten = lambda x, factor=factor: jax.scipy.linalg.solve_triangular(factor, x, lower=True)
            change = whiten(other_factor)
            parts += [whiten(mean), ((change + change.T) / jnp.sqrt(2.0)).ravel()]
        return jnp.concatenate(parts)

    def noise_log_density(self, params: Params, e: Array) -> Array:
        """Log density of each residual under its law, shape (m,)."""
        parts = zip(self.blocks, self.split(e), strict=True)
        return jnp.concatenate([block.law(params).log_prob(part) for block, part in parts])

    def pointwise(self, params: Params, y: Array) -> dict[str, Array]:
        """Log-likelihood of each observation (given those before it, where noise is correlated); NaN where masked."""
        log_density = self.noise_log_density(params, self.lift(params, y).e)
        result = {}
        for block, part in zip(self.blocks, self.split(log_density), strict=True):
            part = part - jnp.log(block.scales(params))
            if block.factor is not None:
                part = part - jnp.log(jnp.diagonal(block.kept_factor(params)))
            whole = jnp.full(int(np.prod(block.shape)), jnp.nan)
            result[block.name] = whole.at[block.kept].set(part).reshape(block.shape)
        return result

    def simulate(self, key: Array, params: Params) -> dict[str, Array]:
        """Predictions with fresh noise, masked entries too."""
        predicted, result = self.predictions(params), {}
        for block, block_key in zip(self.blocks, jr.split(key, len(self.blocks)), strict=True):
            eta = block.law(params).sample(block_key, block.shape)
            if block.factor is not None:
                eta = (jnp.asarray(block.factor(params), float) @ eta.ravel()).reshape(block.shape)
            result[block.name] = predicted[block.name] + block.scale(params) * eta
        return result


class General:
    """Noise that is not additive: the user gives the residual map e(params, y) and we differentiate it in y."""

    structure = "triangular"  # what de/dy looks like: this, or "elementwise"

    def __init__(
        self,
        residual: Callable[[Params, Any], Any],
        generate: Callable[[Params, Any], Any] | None,
        shapes: dict[str, tuple[int, ...]],
        is_named: bool,
        law: Callable[[Params], dist.Distribution],
    ):
        self.residual, self.generate, self.law = residual, generate, law
        self.names, self.shapes = list(shapes), list(shapes.values())
        self.is_named = is_named  # whether y is a dictionary of blocks
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.m = sum(self.sizes)

    def flat_residual(self, params: Params, y: Array) -> Array:
        e = self.residual(params, self.unravel(y))
        parts = [e[name] for name in self.names] if isinstance(e, Mapping) else [e]
        return jnp.concatenate([jnp.asarray(part, float).ravel() for part in parts])

    def unravel(self, y: Array) -> Any:
        parts = jnp.split(y, np.cumsum(self.sizes)[:-1])
        blocks = {n: p.reshape(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}
        return blocks if self.is_named else blocks[self.names[0]]

    def slopes(self, params: Params, y: Array) -> tuple[Array, Array]:
        """The residual, and the diagonal of de/dy."""
        residual = lambda y: self.flat_residual(params, y)
        if self.structure == "elementwise":
            return jax.jvp(residual, (y,), (jnp.ones_like(y),))
        return residual(y), jnp.diagonal(jax.jacfwd(residual)(y))

    def lift(self, params: Params, y: Array) -> Lift:
        e, slopes = self.slopes(params, y)
        return Lift(e, -jnp.log(jnp.abs(slopes)).sum(), EPSILON * jnp.max(jnp.abs(y * slopes)))

    def smallest_scale(self, params: Params) -> Array:
        return jnp.ones(())  # its sign does not matter here

    def noise_log_density(self, params: Params, e: Array) -> Array:
        return self.law(params).log_prob(e)

    def pointwise(self, params: Params, y: Array) -> dict[str, Array]:
        e, slopes = self.slopes(params, y)
        parts = jnp.split(self.noise_log_density(params, e) + jnp.log(jnp.abs(slopes)), np.cumsum(self.sizes)[:-1])
        return {n: p.reshape(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def simulate(self, key: Array, params: Params) -> dict[str, Array]:
        if self.generate is None:
            raise InputError(
                "generate is missing: a model given by residual= needs generate=(params, noise) -> y to simulate."
            )
        eta = self.law(params).sample(key, (self.m,))
        y = self.generate(params, self.unravel(eta))
        return dict(y) if isinstance(y, Mapping) else {self.names[0]: y}


def structure_of(slopes: np.ndarray) -> str | None:
    """What de/dy looks like; None when it is neither diagonal nor lower triangular."""
    if not np.any(slopes[~np.eye(len(slopes), dtype=bool)]):
        return "elementwise"
    return "triangular" if not np.any(np.triu(slopes, 1)) else None
