"""Turn a prior into a map from unconstrained coordinates, standard normal wherever that is possible."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import ndtr, ndtri
from numpyro.distributions import transforms

from tightrope.tails import (
    LOG_2,
    LOG_ROOT_2PI,
    Interval,
    cotangent,
    from_tails,
    log1mexp,
    log_minus_log_ndtr,
    log_ndtr,
    lower_tail,
    mass,
    ndtri_exp,
    truncated_offset,
)
from tightrope.types import Array, InputError, select

Pair: TypeAlias = tuple[Callable[[Array], Array], Callable[[Array], Array]]  # from a standard normal z, and back

FAR = 37.0  # scales; a truncation that far out changes no double

TRUNCATED = (
    dist.LeftTruncatedDistribution,
    dist.RightTruncatedDistribution,
    dist.TwoSidedTruncatedDistribution,
)
# Older versions of numpyro do not have them all.
POINT_MASSES = tuple(
    getattr(dist, name)
    for name in (
        "HurdleProbs",
        "HurdleLogits",
        "LeftCensoredDistribution",
        "RightCensoredDistribution",
        "IntervalCensoredDistribution",
    )
    if hasattr(dist, name)
)


class PriorMap(Protocol):
    """A parameter as a function of its coordinates u; a pytree, so that maps of a kind can be stacked."""

    @property
    def size(self) -> int:
        """Number of coordinates."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the value."""

    def value(self, u: Array) -> Array: ...

    def energy(self, u: Array) -> Array:
        """Minus the normalised log density of u."""

    def inverse(self, value: Array) -> Array: ...

    def draw(self, key: Array) -> Array:
        """Coordinates of a draw from the prior."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NormalMap:
    """Coordinates that are standard normal; the map does the rest."""

    shape: tuple[int, ...] = field(metadata={"static": True})
    family: Callable[[Any], Pair] = field(metadata={"static": True})
    law: Any  # what the family needs to know

    @property
    def forward(self) -> Callable[[Array], Array]:
        """From normal draws to the value, both of the map's shape."""
        return self.family(self.law)[0]

    @property
    def backward(self) -> Callable[[Array], Array]:
        return self.family(self.law)[1]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def value(self, u: Array) -> Array:
        return jnp.broadcast_to(self.forward(jnp.asarray(u, float).reshape(self.shape)), self.shape)

    def energy(self, u: Array) -> Array:
        return 0.5 * jnp.sum(u**2) + self.size * LOG_ROOT_2PI

    def draw(self, key: Array) -> Array:
        return jr.normal(key, (self.size,))

    def inverse(self, value: Array) -> Array:
        return self.backward(jnp.broadcast_to(jnp.asarray(value, float), self.shape)).reshape(self.size)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PushedMap:
    """Another map followed by a transform; the coordinates keep their law."""

    base: PriorMap
    transform: transforms.Transform
    shape: tuple[int, ...] = field(metadata={"static": True})

    @property
    def size(self) -> int:
        return self.base.size

    def value(self, u: Array) -> Array:
        return self.transform(self.base.value(u))

    def energy(self, u: Array) -> Array:
        return self.base.energy(u)

    def draw(self, key: Array) -> Array:
        return self.base.draw(key)

    def inverse(self, value: Array) -> Array:
        return self.base.inverse(self.transform.inv(jnp.broadcast_to(jnp.asarray(value, float), self.shape)))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BijectedMap:
    """Coordinates that a bijection takes to the support, whatever their law."""

    distribution: dist.Distribution
    bijection: transforms.Transform
    batch_shape: tuple[int, ...] = field(metadata={"static": True})
    shape: tuple[int, ...] = field(metadata={"static": True})

    @property
    def size(self) -> int:
        return math.prod(self._free_shape)

    @property
    def _free_shape(self) -> tuple[int, ...]:
        return self.bijection.inverse_shape(self.shape)

    def value(self, u: Array) -> Array:
        return self.bijection(u.reshape(self._free_shape))

    def energy(self, u: Array) -> Array:
        u = u.reshape(self._free_shape)
        value = self.bijection(u)
        log_prob = jnp.broadcast_to(self.distribution.log_prob(value), self.batch_shape)
        return -jnp.sum(log_prob) - jnp.sum(self.bijection.log_abs_det_jacobian(u, value))

    def draw(self, key: Array) -> Array:
        return self.inverse(self.distribution.expand(self.batch_shape).sample(key))

    def inverse(self, value: Array) -> Array:
        return self.bijection.inv(jnp.broadcast_to(jnp.asarray(value, float), self.shape)).reshape(self.size)


def prior_map(distribution: Any) -> PriorMap:
    """The map of a numpyro distribution, whose parameters may be traced."""
    if isinstance(distribution, type):
        raise InputError(f"the prior is the class {distribution.__name__}; call it to make a distribution.")
    if not isinstance(distribution, dist.Distribution):
        kind = type(distribution).__name__
        raise InputError(f"the prior is of type {kind}; give a numpyro distribution, as dist.Normal(0, 1).")
    return _build(distribution, distribution.batch_shape)


def _build(distribution: dist.Distribution, batch_shape: tuple[int, ...]) -> PriorMap:
    """The map of a distribution whose batch is broadcast to a shape."""
    _check(distribution)
    shape = batch_shape + distribution.event_shape
    if isinstance(distribution, dist.ExpandedDistribution):
        return _build(distribution.base_dist, batch_shape)
    if isinstance(distribution, dist.Independent):
        return _build(distribution.base_dist, shape[: len(shape) - distribution.base_dist.event_dim])
    if isinstance(distribution, dist.FoldedDistribution):
        return _bijected(distribution, batch_shape)
    if isinstance(distribution, dist.TransformedDistribution):
        transform = transforms.ComposeTransform(distribution.transforms)
        base_shape = transform.inverse_shape(shape)
        base_batch_shape = base_shape[: len(base_shape) - distribution.base_dist.event_dim]
        return PushedMap(_build(distribution.base_dist, base_batch_shape), transform, shape)
    if (family_and_law := _family(distribution)) is not None:
        return NormalMap(shape, *family_and_law)
    return _bijected(distribution, batch_shape)


def _bijected(distribution: dist.Distribution, batch_shape: tuple[int, ...]) -> PriorMap:
    kind, support = type(distribution).__name__, distribution.support
    if support is not None and support.is_discrete:
        raise InputError(f"the prior {kind} is discrete; sum it out of the model or use a continuous one.")
    try:
        bijection = dist.biject_to(support)
    except NotImplementedError:
        remedy = "transform a prior on the real line instead"
        raise InputError(f"the prior {kind} has a support that no bijection reaches; {remedy}.") from None
    return BijectedMap(distribution, bijection, batch_shape, batch_shape + distribution.event_shape)


def _check(distribution: dist.Distribution) -> None:
    """Refuse what has no density, or none that integrates to one."""
    kind = type(distribution).__name__
    if isinstance(distribution, dist.MaskedDistribution):
        raise InputError("the prior is masked, so its density is not normalised; remove the mask.")
    if isinstance(distribution, dist.Delta):
        raise InputError("the prior is a Delta, a constant; write its value into the model instead.")
    if isinstance(distribution, POINT_MASSES):
        raise InputError(f"the prior {kind} has a point mass; use the continuous distribution inside it.")
    if isinstance(distribution, dist.ImproperUniform | dist.Unit) or _is_unbounded_uniform(distribution):
        raise InputError(f"the prior {kind} is improper; choose one of finite mass, as a wide Normal.")
    if isinstance(distribution, dist.TransformedDistribution):
        is_folded = any(isinstance(t, transforms.AbsTransform) for t in distribution.transforms)
        if is_folded and not isinstance(distribution, dist.FoldedDistribution):
            raise InputError("the prior's AbsTransform has no inverse; use dist.FoldedDistribution instead.")


def _is_unbounded_uniform(distribution: dist.Distribution) -> bool:
    if not isinstance(distribution, dist.Uniform):
        return False
    known = [x for x in (distribution.low, distribution.high) if not isinstance(x, jax.core.Tracer)]
    return not all(np.all(np.isfinite(x)) for x in known)


# Each of these pairs takes a standard normal z to the value, and back.


def _normal(p: dist.Normal):
    return lambda z: p.loc + p.scale * z, lambda x: (x - p.loc) / p.scale


def _uniform(p: dist.Uniform):
    width = p.high - p.low

    def forward(z):
        share = width * ndtr(lower_tail(z))
        return jnp.where(z <= 0, p.low + share, p.high - share)

    return forward, lambda x: from_tails(jnp.log((x - p.low) / width), jnp.log((p.high - x) / width))


def _laplace(p: dist.Laplace):
    def forward(z):
        distance = -p.scale * (LOG_2 + log_ndtr(lower_tail(z)))
        return jnp.where(z <= 0, p.loc - distance, p.loc + distance)

    def backward(x):
        distance = jnp.where(x <= p.loc, p.loc - x, x - p.loc)
        z = ndtri_exp(-LOG_2 - distance / p.scale)
        return jnp.where(x <= p.loc, z, -z)

    return forward, backward


def _logistic(p: dist.Logistic):
    def backward(x):
        y = (x - p.loc) / p.scale
        return from_tails(-jax.nn.softplus(-y), -jax.nn.softplus(y))

    return lambda z: p.loc + p.scale * (log_ndtr(z) - log_ndtr(-z)), backward


def _cauchy(p: dist.Cauchy):
    def forward(z):
        distance = p.scale * cotangent(lower_tail(z), 1.0)
        return jnp.where(z <= 0, p.loc - distance, p.loc + distance)

    def backward(x):
        y = (x - p.loc) / p.scale
        return from_tails(jnp.log(jnp.arctan2(1, -y) / jnp.pi), jnp.log(jnp.arctan2(1, y) / jnp.pi))

    return forward, backward


def _half_cauchy(p: dist.HalfCauchy):
    def forward(z):
        tail = lower_tail(z)
        return p.scale * jnp.where(z <= 0, jnp.tan(0.5 * jnp.pi * ndtr(tail)), cotangent(tail, 0.5))

    def backward(x):
        y = x / p.scale
        return from_tails(jnp.log(2 / jnp.pi * jnp.arctan(y)), jnp.log(2 / jnp.pi * jnp.arctan2(1, y)))

    return forward, backward


def _gumbel(p: dist.Gumbel):
    def backward(x):
        log_p = -jnp.exp((p.loc - x) / p.scale)
        return from_tails(log_p, log1mexp(log_p))

    return lambda z: p.loc - p.scale * log_minus_log_ndtr(z), backward


def _exponential(p: dist.Exponential):
    return lambda z: -log_ndtr(-z) / p.rate, lambda x: from_tails(log1mexp(-p.rate * x), -p.rate * x)


def _weibull(p: dist.Weibull):
    def backward(x):
        log_q = -((x / p.scale) ** p.concentration)
        return from_tails(log1mexp(log_q), log_q)

    return lambda z: p.scale * jnp.exp(log_minus_log_ndtr(-z) / p.concentration), backward


def _multivariate_normal(p: dist.MultivariateNormal):
    def backward(x):
        factor = jnp.broadcast_to(p.scale_tril, x.shape + x.shape[-1:])
        return solve_triangular(factor, (x - p.loc)[..., None], lower=True)[..., 0]

    return lambda z: p.loc + jnp.einsum("...ij,...j->...i", p.scale_tril, z), backward


def _random_walk(p: dist.GaussianRandomWalk):
    scale = jnp.expand_dims(p.scale, -1)
    return lambda z: scale * jnp.cumsum(z, -1), lambda x: jnp.diff(x, axis=-1, prepend=0.0) / scale


class Bounds(NamedTuple):
    """A normal distribution between two bounds."""

    loc: Array
    scale: Array
    low: Array
    high: Array
    interval: Interval  # between them, in scales around the centre

    @classmethod
    def of(cls, loc: Any, scale: Any, low: Any, high: Any) -> Bounds:
        # Bounds too far out to matter come close enough for arithmetic, infinite ones among them.
        low, high = (
            jnp.maximum(low, jnp.minimum(high, loc) - FAR * scale),
            jnp.minimum(high, jnp.maximum(low, loc) + FAR * scale),
        )
        interval = Interval.of((low - loc) / scale, (high - loc) / scale, (high - low) / scale)
        return cls(jnp.asarray(loc), jnp.asarray(scale), low, high, interval)


def _between(p: Bounds):
    """Measured from the end on the side of z."""

    def forward(z):
        is_upper = z > 0
        interval = select(is_upper, p.interval.mirrored(), p.interval)
        offset = p.scale * truncated_offset(lower_tail(z), interval)
        return jnp.where(is_upper, p.high - offset, p.low + offset)

    def backward(value):
        x = (value - p.loc) / p.scale
        below = mass(p.interval.a, x, (value - p.low) / p.scale) / p.interval.mass
        above = mass(-p.interval.b, -x, (p.high - value) / p.scale) / p.interval.mass
        z = ndtri(jnp.minimum(below, above))
        return jnp.where(below <= above, z, -z)

    return forward, backward


NORMAL_MAPS: dict[type, Callable] = {
    dist.Normal: _normal,
    dist.Uniform: _uniform,
    dist.Laplace: _laplace,
    dist.Logistic: _logistic,
    dist.Cauchy: _cauchy,
    dist.HalfCauchy: _half_cauchy,
    dist.Gumbel: _gumbel,
    dist.Exponential: _exponential,
    dist.Weibull: _weibull,
    dist.MultivariateNormal: _multivariate_normal,
    dist.GaussianRandomWalk: _random_walk,
}


def _family(distribution: dist.Distribution) -> tuple[Callable[[Any], Pair], Any] | None:
    """How to map standard normals to a distribution; none for a subclass, which may have another density."""
    if type(distribution) is dist.HalfNormal:
        return _between, Bounds.of(0.0, distribution.scale, 0.0, jnp.inf)
    if isinstance(distribution, TRUNCATED) and type(distribution.base_dist) is dist.Normal:
        base, ends = distribution.base_dist, {"low": -jnp.inf, "high": jnp.inf}
        low, high = (getattr(distribution, name, end) for name, end in ends.items())
        return _between, Bounds.of(base.loc, base.scale, low, high)
    family = NORMAL_MAPS.get(type(distribution))
    return None if family is None else (family, distribution)
