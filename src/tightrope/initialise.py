"""Starting points, without knowledge of the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr
from jax import lax

from tightrope.compilation import compiled, remembered
from tightrope.frames import FRAMES, choose_frame
from tightrope.models import Conditioned, Model
from tightrope.streams import stream
from tightrope.systems import cheap_force
from tightrope.types import Array, InputError, Lift, select

NUM_DRAWS = 1000  # prior draws to choose from
NUM_REFINED = 32  # of them, how many are refined at a time
MAX_BATCHES = 8  # of those: one in fifty descents meets the main mode of Boehm et al. (2014)
ENOUGH = 16  # refined draws in the best mode found, to look no further
MAX_NUMBERS = 10**7  # in all draws, where a model is large
MAX_ITERATIONS = 100


class Fit(NamedTuple):
    """The state of one Levenberg-Marquardt descent."""

    u: Array
    energy: Array
    damping: Array
    iterations: Array
    settled: Array  # how many iterations in a row have gained next to nothing


class Scaled(NamedTuple):
    """A residual map with its residuals multiplied."""

    model: Conditioned
    factor: Array

    @property
    def d(self) -> int:
        return self.model.d

    @property
    def m(self) -> int:
        return self.model.m

    def lift(self, u: Array) -> Lift:
        lift = self.model.lift(u)
        return lift._replace(e=self.factor * lift.e)

    def links(self, u: Array) -> Any:
        chain, drive, view = self.model.links(u)
        return chain._replace(view=self.factor * chain.view), drive, self.factor * view


def refine(model: Conditioned, u: Array, key: Array) -> Array:
    """Descend from a prior draw u to where the data are explained, near u.

    The target is randomised: 1/2 |v - u|^2 + 1/2 |e(v) - noise|^2 + log_scale(v) + log_volume(v). For a linear
    model its minimisers are draws of the posterior, so starts spread along what the data leave open.
    """
    frame, noise = FRAMES[choose_frame(model)], jr.normal(key, (model.m,))
    # With few coordinates the log volume is -d / m of the log scale, near enough, and needs no second derivatives.
    # With many it decides between noise that explains the data and noise that need not.
    is_tall = model.d < model.m
    scale_weight = 1 - model.d / model.m if is_tall else 1.0

    def energy(v: Array) -> Array:
        lift = model.lift(v)
        value = 0.5 * jnp.sum((v - u) ** 2) + 0.5 * jnp.sum((lift.e - noise) ** 2) + scale_weight * lift.log_scale
        if not is_tall:
            value += frame.linearise(model, v)[2].log_volume
        return jnp.where(jnp.isfinite(value), value, jnp.inf)

    def step(fit: Fit) -> Fit:
        # The u-part of a tangent projection is inverse(I + J^T J) (along_u + J^T along_e): the step of Levenberg and
        # Marquardt in any frame, once the residuals are divided by the root of the damping.
        v, root = fit.u, jnp.sqrt(1 + fit.damping)
        lift, log_scale_gradient, tangent_space = frame.linearise(Scaled(model, 1 / root), v)
        along_u = v - u + scale_weight * log_scale_gradient
        if not is_tall and model.has_second_derivatives:
            along_u += frame.linearise(model, v)[2].log_volume_gradient(model, v)
        elif not is_tall:
            along_u += cheap_force(model).log_volume_gradient(v, log_scale_gradient)
        along_e = root * (root * lift.e - noise)
        candidate = v - tangent_space.tangent(jnp.concatenate([along_u, along_e]))[: model.d] / root**2
        value = energy(candidate)
        is_better = value < fit.energy
        gain = jnp.where(is_better, fit.energy - value, 0.0)
        settled = jnp.where(is_better & (gain < 1e-3), fit.settled + 1, 0)
        damping = jnp.clip(fit.damping * jnp.where(is_better, 0.2, 5.0), 1e-6, 1e16)
        u_next, value = select(is_better, (candidate, value), (v, fit.energy))
        return Fit(u_next, value, damping, fit.iterations + 1, settled)

    def running(fit: Fit) -> Array:
        return (fit.iterations < MAX_ITERATIONS) & (fit.settled < 2) & (fit.damping < 1e15)

    zero = jnp.zeros((), int)
    return lax.while_loop(running, step, Fit(u, energy(u), jnp.array(1.0), zero, zero)).u


def prior_points(model: Model, key: Array, num_draws: int) -> np.ndarray:
    """Prior draws at which the posterior density is finite, best first."""

    @jax.jit
    def evaluate(y: Array, keys: Array) -> Any:
        conditioned = model.condition(y)

        def at(key: Array) -> Any:
            u = model.parameters.draw(key)
            lift = conditioned.lift(u)
            smallest = model.observations.smallest_scale(model.parameters.values(u))
            return u, conditioned.log_density(u), jnp.isfinite(lift.e).all(), smallest

        return lax.map(at, keys, batch_size=100)

    args = (model.data, jr.split(stream(key), num_draws))
    draws, log_density, e_is_finite, smallest_scale = map(
        np.asarray, compiled(lambda: evaluate.lower(*args), model.known_as("prior points", num_draws))(*args)
    )
    not_positive = int((smallest_scale <= 0).sum())
    if not_positive:
        raise InputError(
            f"noise_scale is zero or negative at {not_positive} of {num_draws} prior draws: it must be positive, "
            "for example a LogNormal parameter or jnp.exp of one."
        )
    finite = np.isfinite(log_density)
    if finite.any():
        return draws[finite][np.argsort(-log_density[finite])]
    if not e_is_finite.any():
        raise InputError(
            f"forward returned NaN or infinity at all of {num_draws} prior draws: check it at "
            'a draw of tr.prior(model), narrow the priors, or give init={"name": value, ...}.'
        )
    raise InputError(
        f"the posterior density is zero at all of {num_draws} prior draws: check the noise law and the priors, "
        'or give init={"name": value, ...}.'
    )


def as_good_as_the_best(model: Model, log_density: np.ndarray) -> np.ndarray:
    """Which of these log densities on the manifold could be of draws from the same mode as the highest."""
    # Among draws of a posterior the log density varies by about sqrt(d + m) / 2 around its mean.
    return near_the_best(log_density, 10 + 3 * np.sqrt(model.d + model.m))


def in_the_best_mode(model: Model, log_density: np.ndarray) -> np.ndarray:
    """Which refined points are not in a mode of next to no mass, by their log densities on the manifold.

    That is Laplace's approximation of the log mass of a mode. It is lower by half of a chi-squared number at draws of
    the mode: by 8 at most on the eight posteriors of the zoo that were looked at.
    """
    return near_the_best(log_density, 5 + model.d / 4)


def near_the_best(log_density: np.ndarray, margin: float) -> np.ndarray:
    """Which are numbers, and lower than the highest by no more than a margin."""
    log_density = np.where(np.isfinite(log_density), log_density, -np.inf)
    return log_density >= log_density.max() - margin


def refined_points(model: Model, u: np.ndarray, key: Array, num_chains: int) -> np.ndarray:
    """Prior draws, refined, the best first; chains are spread over those that are in a mode as good as the best."""
    noise_key, order_key, choice_key = jr.split(key, 3)
    at_a_time = min(max(min(NUM_REFINED, len(u) // 4), 2 * num_chains), len(u))
    # The best may explain the data by noise, and what is refined of them does so too: after them come any.
    candidates = np.concatenate([u[:at_a_time], shuffled(order_key, u[at_a_time:])])[: MAX_BATCHES * at_a_time]
    keys = jr.split(stream(noise_key), len(candidates))

    @jax.jit
    def descend(y: Array, u: Array, keys: Array) -> Any:
        conditioned = model.condition(y)
        frame = FRAMES[choose_frame(conditioned)]

        def at(u: Array, key: Array) -> tuple[Array, Array]:
            refined = refine(conditioned, u, key)
            # On the manifold: the density of u alone is the higher the less noise there is, whatever the mass there.
            log_volume = frame.linearise(conditioned, refined)[2].log_volume
            return refined, conditioned.log_density(refined) - log_volume

        # One after the other: each stops when it has settled, and loops over few numbers are what XLA does best.
        return lax.map(lambda start: at(*start), (u, keys))

    descents = compiled(
        lambda: descend.lower(model.data, candidates[:at_a_time], keys[:at_a_time]),
        model.known_as("descents", at_a_time),
    )
    refined, log_density = np.zeros((0, model.d)), np.zeros(0)
    for first in range(0, len(candidates) - at_a_time + 1, at_a_time):
        some = slice(first, first + at_a_time)
        found, densities = map(np.asarray, descents(model.data, candidates[some], keys[some]))
        refined, log_density = np.concatenate([refined, found]), np.concatenate([log_density, densities])
        good = np.flatnonzero(in_the_best_mode(model, log_density))
        # Else most descents end elsewhere, and perhaps none has met the main mode.
        if len(good) >= max(ENOUGH, num_chains):
            break
    return refined[np.resize(good[likelier_first(choice_key, log_density[good])], num_chains)]


class Start(NamedTuple):
    """Where chains could start: quick to find, and to be refined while the sampler compiles."""

    u: np.ndarray  # shape (num_chains, d), or prior draws, best first, if they are to be refined
    is_rough: bool

    def refined(self, model: Model, key: Array, num_chains: int) -> np.ndarray:
        """Coordinates to start the chains from, shape (num_chains, d)."""
        if not self.is_rough:
            return self.u
        given = [np.asarray(numbers).tobytes() for numbers in (model.data, self.u, jr.key_data(key))]
        name = model.known_as("starts", num_chains, hashlib.sha256(b"".join(given)).hexdigest())
        # Half a minute on hodgkin-huxley, again for every method that is compared there.
        return remembered(lambda: refined_points(model, self.u, key, num_chains), name)


def shuffled(key: Array, items: np.ndarray) -> np.ndarray:
    """In random order, by NumPy: JAX compiles a second to do it."""
    return generator(key).permutation(items)


def generator(key: Array) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jr.key_data(key)))


def likelier_first(key: Array, log_density: np.ndarray) -> np.ndarray:
    """Places in random order, as if drawn one by one in proportion to the root of a density.

    To the density itself, few would go first of a mode in which it varies by several nats; with no regard to it, those
    of a lesser mode would that descents meet ten times as often, as on the problem of Boehm et al. (2014).
    """
    return np.argsort(-log_density / 2 - generator(key).gumbel(size=len(log_density)))


def find_start(model: Model, init: Any, key: Array, num_chains: int) -> Start:
    """Candidates for the chains' starting points, or an error that says why there are none."""
    if isinstance(init, str):
        if init == "auto":
            num_draws = min(NUM_DRAWS, MAX_NUMBERS // (model.d + model.m))
            return Start(prior_points(model, key, max(num_draws, 4 * num_chains)), is_rough=True)
        if init == "prior":
            draw_key, choice_key = jr.split(key)
            u = prior_points(model, draw_key, 100 * num_chains)
            return Start(u[np.resize(shuffled(choice_key, np.arange(len(u))), num_chains)], is_rough=False)
        if init != "truth":
            raise InputError(
                f'init="{init}" is unknown: use "auto", "prior", "truth", a dictionary of values or a trace.'
            )
        if model.truth is None:
            raise InputError('init="truth", but this model does not know its true parameters: use init="auto".')
        init = model.truth
    if isinstance(init, xr.DataTree):
        return Start(last_draws(model, init, num_chains), is_rough=False)
    if isinstance(init, Mapping):
        return Start(np.tile(given_point(model, init), (num_chains, 1)), is_rough=False)
    raise InputError(f'init must be "auto", "prior", "truth", a dictionary or a trace, not {type(init).__name__}.')


def starting_points(model: Model, init: Any, key: Array, num_chains: int) -> np.ndarray:
    """Coordinates to start the chains from, shape (num_chains, d)."""
    find_key, refine_key = jr.split(key)
    return find_start(model, init, find_key, num_chains).refined(model, refine_key, num_chains)


def given_point(model: Model, values: Mapping[str, Any]) -> np.ndarray:
    """The coordinates of parameters that the user gives."""
    try:
        u = np.asarray(model.parameters.coordinates(values))
    except InputError as error:
        raise InputError(f"init: {error}") from None
    if not np.isfinite(u).all() or not np.isfinite(model.log_density(jnp.asarray(u))):
        raise InputError("init: the posterior density is zero or not finite at these values: choose others.")
    return u


def last_draws(model: Model, trace: xr.DataTree, num_chains: int) -> np.ndarray:
    """Where the chains of an earlier run ended."""
    names = model.parameters.names
    found = "unconstrained_posterior" in trace.children
    group = trace.children["unconstrained_posterior"].to_dataset() if found else xr.Dataset()
    if any(name not in group for name in names):
        raise InputError("init: the trace is not one of this model: its unconstrained_posterior lacks parameters.")
    last = [group[name].isel(draw=-1).values.reshape(group.sizes["chain"], -1) for name in names]
    u = np.concatenate(last, axis=1)
    if u.shape[1] != model.d:
        raise InputError(f"init: the trace has {u.shape[1]} coordinates but the model has {model.d}.")
    return u[np.resize(np.arange(len(u)), num_chains)]
