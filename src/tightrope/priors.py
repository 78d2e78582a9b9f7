"""Turn a prior into a map from unconstrained coordinates, standard normal wherever that is possible."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import erf, erfc, erfinv, ndtr
from numpyro.distributions import transforms

from tightrope.types import Array, InputError

ROOT_2 = math.sqrt(2.0)
LOG_2 = math.log(2.0)
LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)
FAR = 50.0  # scales; a truncation that far out changes no double
ASYMPTOTIC = 12.0  # fourteen terms of Mills' ratio have all digits from here on
NODES, WEIGHTS = (0.5 * x for x in np.polynomial.legendre.leggauss(8))  # on [-1/2, 1/2]

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
    """A parameter as a function of its coordinates u."""

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


@dataclass(frozen=True)
class NormalMap:
    """Coordinates that are standard normal; the map does the rest."""

    shape: tuple[int, ...]
    forward: Callable[[Array], Array]  # from normal draws to the value, both of this shape
    backward: Callable[[Array], Array]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def value(self, u: Array) -> Array:
        return jnp.broadcast_to(self.forward(jnp.asarray(u, float).reshape(self.shape)), self.shape)

    def energy(self, u: Array) -> Array:
        return 0.5 * jnp.sum(u**2) + self.size * LOG_ROOT_2PI

    def inverse(self, value: Array) -> Array:
        return self.backward(jnp.broadcast_to(jnp.asarray(value, float), self.shape)).reshape(self.size)


@dataclass(frozen=True)
class PushedMap:
    """Another map followed by a transform; the coordinates keep their law."""

    base: PriorMap
    transform: transforms.Transform
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.base.size

    def value(self, u: Array) -> Array:
        return self.transform(self.base.value(u))

    def energy(self, u: Array) -> Array:
        return self.base.energy(u)

    def inverse(self, value: Array) -> Array:
        return self.base.inverse(self.transform.inv(jnp.broadcast_to(jnp.asarray(value, float), self.shape)))


@dataclass(frozen=True)
class BijectedMap:
    """Coordinates that a bijection takes to the support, whatever their law."""

    distribution: dist.Distribution
    bijection: transforms.Transform
    batch_shape: tuple[int, ...]
    shape: tuple[int, ...]

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
    if (family := _family(distribution)) is not None:
        return NormalMap(shape, *family(distribution))
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
        share = width * ndtr(_lower_tail(z))
        return jnp.where(z <= 0, p.low + share, p.high - share)

    return forward, lambda x: _from_tails(jnp.log((x - p.low) / width), jnp.log((p.high - x) / width))


def _laplace(p: dist.Laplace):
    def forward(z):
        distance = -p.scale * (LOG_2 + log_ndtr(_lower_tail(z)))
        return jnp.where(z <= 0, p.loc - distance, p.loc + distance)

    def backward(x):
        distance = jnp.where(x <= p.loc, p.loc - x, x - p.loc)
        z = ndtri_exp(-LOG_2 - distance / p.scale)
        return jnp.where(x <= p.loc, z, -z)

    return forward, backward


def _logistic(p: dist.Logistic):
    def backward(x):
        y = (x - p.loc) / p.scale
        return _from_tails(-jax.nn.softplus(-y), -jax.nn.softplus(y))

    return lambda z: p.loc + p.scale * (log_ndtr(z) - log_ndtr(-z)), backward


def _cauchy(p: dist.Cauchy):
    def forward(z):
        distance = p.scale * _cotangent(_lower_tail(z), 1.0)
        return jnp.where(z <= 0, p.loc - distance, p.loc + distance)

    def backward(x):
        y = (x - p.loc) / p.scale
        return _from_tails(jnp.log(jnp.arctan2(1, -y) / jnp.pi), jnp.log(jnp.arctan2(1, y) / jnp.pi))

    return forward, backward


def _half_cauchy(p: dist.HalfCauchy):
    def forward(z):
        tail = _lower_tail(z)
        return p.scale * jnp.where(z <= 0, jnp.tan(0.5 * jnp.pi * ndtr(tail)), _cotangent(tail, 0.5))

    def backward(x):
        y = x / p.scale
        return _from_tails(jnp.log(2 / jnp.pi * jnp.arctan(y)), jnp.log(2 / jnp.pi * jnp.arctan2(1, y)))

    return forward, backward


def _gumbel(p: dist.Gumbel):
    def backward(x):
        log_p = -jnp.exp((p.loc - x) / p.scale)
        return _from_tails(log_p, _log1mexp(log_p))

    return lambda z: p.loc - p.scale * _log_minus_log_ndtr(z), backward


def _exponential(p: dist.Exponential):
    return lambda z: -log_ndtr(-z) / p.rate, lambda x: _from_tails(_log1mexp(-p.rate * x), -p.rate * x)


def _weibull(p: dist.Weibull):
    def backward(x):
        log_q = -((x / p.scale) ** p.concentration)
        return _from_tails(_log1mexp(log_q), log_q)

    return lambda z: p.scale * jnp.exp(_log_minus_log_ndtr(-z) / p.concentration), backward


def _multivariate_normal(p: dist.MultivariateNormal):
    def backward(x):
        factor = jnp.broadcast_to(p.scale_tril, x.shape + x.shape[-1:])
        return solve_triangular(factor, (x - p.loc)[..., None], lower=True)[..., 0]

    return lambda z: p.loc + jnp.einsum("...ij,...j->...i", p.scale_tril, z), backward


def _random_walk(p: dist.GaussianRandomWalk):
    scale = jnp.expand_dims(p.scale, -1)
    return lambda z: scale * jnp.cumsum(z, -1), lambda x: jnp.diff(x, axis=-1, prepend=0.0) / scale


def _half_normal(p: dist.HalfNormal):
    def forward(z):
        tail = _lower_tail(z)
        return p.scale * jnp.where(z <= 0, ROOT_2 * erfinv(ndtr(tail)), -ndtri_exp(log_ndtr(tail) - LOG_2))

    def backward(x):
        y = x / p.scale
        return _from_tails(jnp.log(erf(y / ROOT_2)), LOG_2 + log_ndtr(-y))

    return forward, backward


def _truncated(p: Any):
    low, high = getattr(p, "low", -jnp.inf), getattr(p, "high", jnp.inf)
    return _between(p.base_dist.loc, p.base_dist.scale, low, high)


def _between(loc, scale, low, high):
    """The normal distribution truncated to an interval, measured from the nearest of its ends and centre."""
    # Bounds too far out to matter come close enough for arithmetic, infinite ones among them.
    low, high = (
        jnp.maximum(low, jnp.minimum(high, loc) - FAR * scale),
        jnp.minimum(high, jnp.maximum(low, loc) + FAR * scale),
    )
    a, b, width = (low - loc) / scale, (high - loc) / scale, (high - low) / scale

    def forward(z):
        x, from_low, to_high, _ = truncated_quantile(*jnp.broadcast_arrays(z, a, b, width))
        near_end = jnp.where(from_low <= to_high, low + scale * from_low, high - scale * to_high)
        return jnp.where(jnp.minimum(from_low, to_high) <= jnp.abs(x), near_end, loc + scale * x)

    def backward(value):
        x, total = (value - loc) / scale, log_mass(a, b, width)
        below, above = log_mass(a, x, (value - low) / scale), log_mass(x, b, (high - value) / scale)
        return _from_tails(below - total, above - total)

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
    dist.HalfNormal: _half_normal,
}


def _family(distribution: dist.Distribution) -> Callable | None:
    """How to map standard normals to a distribution; none for a subclass, which may have another density."""
    is_truncated = isinstance(distribution, TRUNCATED) and type(distribution.base_dist) is dist.Normal
    return _truncated if is_truncated else NORMAL_MAPS.get(type(distribution))


# The normal distribution far into its tails. No branch that `where` discards may be infinite, or have an
# infinite slope, as the gradient would be NaN: arguments are chosen first, functions applied after.


def _lower_tail(z):
    """-|z|, with slope one at zero."""
    return jnp.where(z <= 0, z, -z)


def _from_tails(log_p, log_q):
    """The normal quantile of p = 1 - q, from whichever is smaller."""
    z = ndtri_exp(jnp.where(log_p <= log_q, log_p, log_q))
    return jnp.where(log_p <= log_q, z, -z)


def _log1mexp(x):
    """log(1 - exp(x)) for negative x."""
    is_small = x > -1.5
    small, large = jnp.where(is_small, x, -1.0), jnp.where(is_small, -1.0, x)
    return jnp.where(is_small, jnp.log(-jnp.expm1(small)), jnp.log1p(-jnp.exp(large)))


def _log_density(z):
    return -0.5 * z**2 - LOG_ROOT_2PI


def _log_minus_log_ndtr(z):
    """log(-log Phi(z)), which is log Phi(-z) to rounding from z = 8 on."""
    is_far = z > 8
    return jnp.where(is_far, log_ndtr(-z), jnp.log(-log_ndtr(jnp.where(is_far, 0.0, z))))


def _cotangent(tail, factor):
    """cot(factor pi Phi(tail)); the clip keeps it and two derivatives below overflow."""
    tail = jnp.maximum(tail, -37.0)
    angle = factor * jnp.pi * ndtr(tail)
    is_small = angle < 1e-4
    safe = jnp.where(is_small, 1.0, angle)
    ratio = jnp.where(is_small, 1 - angle**2 / 3, safe * jnp.cos(safe) / jnp.sin(safe))
    return ratio * jnp.exp(-log_ndtr(tail)) / (factor * jnp.pi)


@jax.custom_jvp
def log_ndtr(z: Array) -> Array:
    """log Phi(z), with the digits that jax's own loses from z = 1 to 8."""
    tail = -jnp.abs(z)
    share = 0.5 * erfc(-tail / ROOT_2)
    log_share = jnp.where(tail > -ASYMPTOTIC, jnp.log(share), _log_density(tail) + _log_far_mills(-tail))
    # XLA's log1p has two digits less where this takes log instead.
    return jnp.where(z <= 0, log_share, jnp.where(share > 0.25, jnp.log(1 - share), jnp.log1p(-share)))


@log_ndtr.defjvp
def _(primals, tangents):
    (z,), (dz,) = primals, tangents
    out = log_ndtr(z)
    return out, jnp.exp(_log_density(z) - out) * dz


@jax.custom_jvp
def ndtri_exp(log_p: Array) -> Array:
    """The inverse of log_ndtr, by Newton's method in the smaller tail."""
    is_lower = log_p <= -LOG_2
    tail = jnp.where(is_lower, log_p, _log1mexp(jnp.where(is_lower, -1.0, log_p)))
    # The start is on the near side of the root of a concave function: one step over it, the rest monotone.
    drop, hazard = -LOG_2 - tail, math.sqrt(2 / math.pi)
    start = -2 * drop / (hazard + jnp.sqrt(hazard**2 + 2 * drop))

    def improve(_, z):
        reached = log_ndtr(z)
        return z - (reached - tail) * jnp.exp(reached - _log_density(z))

    z = jnp.where(jnp.isneginf(tail), tail, lax.fori_loop(0, 5, improve, start))
    return jnp.where(is_lower, z, -z)


@ndtri_exp.defjvp
def _(primals, tangents):
    (log_p,), (dlog_p,) = primals, tangents
    z = ndtri_exp(log_p)
    return z, jnp.exp(log_p - _log_density(z)) * dlog_p


def _log_far_mills(x):
    """log of Q(x) / phi(x), asymptotically."""
    x = jnp.maximum(x, ASYMPTOTIC)
    series = 1.0
    for k in range(27, 0, -2):
        series = 1.0 - k / x**2 * series
    return jnp.log(series / x)


def _log_mills(x):
    """log of Q(x) / phi(x) for x >= 0."""
    return jnp.where(x < ASYMPTOTIC, log_ndtr(-x) - _log_density(x), _log_far_mills(x))


def _scaled_mass(a, b, width):
    """Distance c of the interval from zero, and the log of the integral of exp((c^2 - y^2) / 2) over it."""
    c = jnp.maximum(jnp.maximum(a, -b), 0.0)
    fall = width * (c + 0.5 * width)  # of the log density, from the near end to the far one
    steps = width[..., None] * (0.5 + NODES)
    mean = jnp.exp(-steps * (c[..., None] + 0.5 * steps)) @ WEIGHTS
    near, far = _log_mills(jnp.stack([c, c + width]))
    tails = near + _log1mexp(far - fall - near)
    outside = jnp.where(fall < 1, jnp.log(width * mean), tails)
    up_to_b, up_to_a = erf(jnp.stack([b, a]) / ROOT_2)
    inside = jnp.log(math.sqrt(0.5 * math.pi) * (up_to_b - up_to_a))
    return c, jnp.where((a <= 0) & (b >= 0), inside, outside)


@jax.custom_jvp
def log_mass(a: Array, b: Array, width: Array) -> Array:
    """log(Phi(b) - Phi(a)), where width is b - a with all its digits."""
    c, scaled = _scaled_mass(*jnp.broadcast_arrays(a, b, width))
    return scaled + _log_density(c)


@log_mass.defjvp
def _(primals, tangents):
    (a, b, _), (da, db, _) = primals, tangents
    out = log_mass(*primals)
    return out, jnp.exp(_log_density(b) - out) * db - jnp.exp(_log_density(a) - out) * da


@jax.custom_jvp
def truncated_quantile(z: Array, a: Array, b: Array, width: Array) -> tuple[Array, Array, Array, Array]:
    """The x in [a, b] for which (Phi(x) - Phi(a)) / M = Phi(z), with M = Phi(b) - Phi(a).

    Returns x, x - a, b - x and log(M / phi(x)): derivatives of any order are functions of these.
    """
    log_p, below_a, below_b, log_q, above_a, above_b = log_ndtr(jnp.stack([z, a, b, -z, -a, -b]))
    x = _from_tails(
        jnp.logaddexp(log_q + below_a, log_p + below_b),
        jnp.logaddexp(log_q + above_a, log_p + above_b),
    )
    is_upper = x > 0.5 * (a + b)
    near, far = jnp.where(is_upper, -b, a), jnp.where(is_upper, -a, b)
    x = jnp.where(is_upper, -x, x)
    c, mass = _scaled_mass(a, b, width)
    t = _offset(jnp.where(is_upper, -z, z), near, far, width, x - near, c, mass)
    at_end = t <= jnp.maximum(jnp.abs(near + t), 1.0)  # else x has the more digits
    x, t = jnp.where(at_end, near + t, x), jnp.where(at_end, t, x - near)
    x, from_low, to_high = (
        jnp.where(is_upper, -x, x),
        jnp.where(is_upper, width - t, t),
        jnp.where(is_upper, t, width - t),
    )
    rise = jnp.where(a > 0, from_low * (x + a), jnp.where(b < 0, -to_high * (x + b), x**2))
    return x, from_low, to_high, mass + 0.5 * rise


@truncated_quantile.defjvp
def _(primals, tangents):
    (z, a, b, _), (dz, da, db, _) = primals, tangents
    x, from_low, to_high, log_ratio = out = truncated_quantile(*primals)
    # Densities at the ends, over that at x.
    log_low, log_high = 0.5 * from_low * (x + a), -0.5 * to_high * (x + b)
    log_p, log_q = log_ndtr(jnp.stack([z, -z]))
    by_low, by_high = log_q + log_low, log_p + log_high
    by_z = jnp.exp(log_ratio + _log_density(z)) * dz
    dx = by_z + jnp.exp(by_low) * da + jnp.exp(by_high) * db
    dfrom_low = by_z + jnp.expm1(by_low) * da + jnp.exp(by_high) * db
    dto_high = -by_z - jnp.exp(by_low) * da - jnp.expm1(by_high) * db
    dlog_ratio = x * dx + jnp.exp(log_high - log_ratio) * db - jnp.exp(log_low - log_ratio) * da
    return out, (dx, dfrom_low, dto_high, dlog_ratio)


def _offset(z, a, b, width, guess, c, mass):
    """Distance of the quantile from the end a, to all digits, by Newton's method on the smaller tail."""
    is_lower, tiny = z <= 0, jnp.finfo(z.dtype).tiny
    log_p, log_q = log_ndtr(jnp.stack([z, -z]))
    # Far out the law is exponential; where the density is all but constant, the mass has the digits.
    guess = jnp.where(a > 1e3, -jnp.logaddexp(log_q, log_p - a * width) / jnp.maximum(a, 1e3), guess)
    first = jnp.exp(jnp.minimum(log_p + mass + 0.5 * (a - c) * (a + c), 0.0))
    t = jnp.where(first * (1 + jnp.abs(a)) < 0.1, first, guess)

    def improve(_, t):
        t = jnp.clip(t, tiny, 0.75 * width)
        x = a + t
        start, end = jnp.where(is_lower, a, x), jnp.where(is_lower, x, b)
        c_part, part = _scaled_mass(start, end, jnp.where(is_lower, t, width - t))
        # c_part - c, without the subtraction.
        shift = jnp.where(c == 0, c_part, jnp.where((a > 0) == is_lower, 0.0, jnp.where(a > 0, t, width - t)))
        excess = part - mass - 0.5 * shift * (c_part + c) - jnp.where(is_lower, log_p, log_q)
        slope = jnp.exp(-0.5 * jnp.where((a > 0) & is_lower, t, x - c_part) * (x + c_part) - part)
        return t - jnp.where(is_lower, excess, -excess) / slope

    return jnp.clip(lax.fori_loop(0, 4, improve, t), tiny, width)
