"""State space models: a hidden chain of states, each seen through noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.flatten_util import ravel_pytree

from tightrope.checks import blocks_of, check_data, law_of, trace_or_refuse
from tightrope.kalman import Chain
from tightrope.models import Model
from tightrope.observations import Params
from tightrope.parameters import Parameters, Prior
from tightrope.types import EPSILON, Array, InputError, Lift

NOISE = "nu"  # the name of what drives the states
STATES = "x"  # and of the states


class StateSpaceModel(Model):
    """A chain of states driven by standard normal `nu`, each seen once, through an invertible map.

    x_1 = initial(phi, nu_1), x_t = transition(phi, nu_t, x_{t-1}), y_t = observe(phi, x_t, eta_t).

    `residual(phi, x, y)` is the noise eta that explains y, and `inverse_observation(phi, y, eta)`, if given, the
    state; both are checked against `observe`. Time goes along the first axis of `observed`; where that is its
    only axis, states and noise are numbers. A step costs time and memory linear in the length of the chain.
    """

    def __init__(
        self,
        priors: Mapping[str, Prior],
        *,
        initial: Callable[[Params, Array], Array],
        transition: Callable[[Params, Array, Array], Array],
        observe: Callable[[Params, Array, Array], Any],
        residual: Callable[[Params, Array, Array], Any],
        inverse_observation: Callable[[Params, Array, Array], Any] | None = None,
        observed: Any = None,
        num_drives: int | None = None,  # length of nu_t, by default that of y_t
        noise: Any = None,
        derived: Mapping[str, Callable[[Params], Any]] | None = None,
        coords: Mapping[str, Any] | None = None,
        dims: Mapping[str, Any] | None = None,
        name: str = "state space model",
        truth: Mapping[str, Any] | None = None,
        quantities: Sequence[str] | None = None,
    ):
        (y,) = blocks_of("observed", observed).values()
        if y.ndim not in (1, 2) or len(y) < 2:
            raise InputError(f"observed has shape {y.shape}: it must be (T,) or (T, n), time first, T at least 2.")
        for key in (NOISE, STATES):
            if key in priors or key in (derived or {}):
                raise InputError(f'"{key}" names the chain\'s own: choose another name for the parameter.')
        shape = y.shape[1:] if num_drives is None else (num_drives,)
        drive = dist.Normal(0.0, 1.0).expand([len(y), *shape])
        self.describe(
            priors={**priors, NOISE: drive},
            derived={STATES: lambda params: self.observations.states(params), **(derived or {})},
            coords=coords,
            dims={NOISE: ["time"], STATES: ["time"], "y": ["time"], **(dims or {})} if y.ndim == 1 else dims,
            name=name,
            truth=truth,
            quantities=quantities or [*priors, *(derived or {})],
        )
        self.is_named = False
        self.observed, self.mask = {"y": y}, {"y": np.ones(y.shape, bool)}
        check_data(None, y, self.mask["y"])
        law = law_of(noise, self.abstract_params)
        self.observations = Links(Parameters(priors), initial, transition, observe, residual, law, y.shape)
        self.check(inverse_observation)

    def check(self, inverse_observation: Callable[[Params, Array, Array], Array] | None) -> None:
        """Refuse functions of the wrong shape, and a residual or an inverse that does not belong to `observe`."""
        links, params = self.observations, self.abstract_params
        y = jax.ShapeDtypeStruct(links.shape[1:], jnp.float64)
        nu = jax.ShapeDtypeStruct(self.parameters.shapes[NOISE][1:], jnp.float64)
        given = {
            "initial": (links.initial, (params, nu)),
            "transition": (links.transition, (params, nu, y)),
            "observe": (links.observe, (params, y, y)),
            "residual": (links.residual, (params, y, y)),
            "inverse_observation": (inverse_observation, (params, y, y)),
        }
        for argument, (function, args) in given.items():
            if function is not None:
                result = trace_or_refuse(argument, function, *args)
                if result.shape != y.shape:
                    raise InputError(f"{argument} returns shape {result.shape}, not {y.shape} as one observation.")
        for key, function in self.derived.items():
            trace_or_refuse(f'derived["{key}"]', function, self.abstract_params)

        def misses(key: Array) -> tuple[Array, Array]:
            draw_key, noise_key = jr.split(key)
            params = links.shared.values(links.shared.draw(draw_key))
            nu_key, eta_key = jr.split(noise_key)
            x = links.initial(params, jr.normal(nu_key, nu.shape))
            eta = links.law(params).sample(eta_key, y.shape)
            seen = links.observe(params, x, eta)
            inverse = x if inverse_observation is None else inverse_observation(params, seen, eta)
            relative = lambda a, b: jnp.max(jnp.abs(a - b) / (1 + jnp.abs(b)))
            return relative(links.residual(params, x, seen), eta), relative(inverse, x)

        found = [np.asarray(part) for part in jax.jit(jax.vmap(misses))(jr.split(jr.key(0), 20))]
        for argument, errors in zip(("residual", "inverse_observation"), found, strict=True):
            known = errors[~np.isnan(errors)]
            if known.size and np.median(known) > 1e-6:
                raise InputError(f"{argument} does not undo observe: its median error is {np.median(known):.1g}.")


class Links:
    """The residuals of a chain of states, and its derivatives link by link."""

    def __init__(
        self,
        shared: Parameters,
        initial: Callable[[Params, Array], Array],
        transition: Callable[[Params, Array, Array], Array],
        observe: Callable[[Params, Array, Array], Array],
        residual: Callable[[Params, Array, Array], Array],
        law: Callable[[Params], dist.Distribution],
        shape: tuple[int, ...],  # of the data
    ):
        self.shared = shared  # the parameters that all links share
        self.initial, self.transition, self.observe, self.residual = initial, transition, observe, residual
        self.law, self.shape = law, shape
        self.m = int(np.prod(shape))

    def states(self, params: Params) -> Array:
        """The path of the states, in the shape of the data."""
        nu = params[NOISE]

        def advance(x: Array, nu: Array) -> tuple[Array, Array]:
            x = jnp.asarray(self.transition(params, nu, x), float)
            return x, x

        first = jnp.asarray(self.initial(params, nu[0]), float)
        return jnp.concatenate([first[None], lax.scan(advance, first, nu[1:])[1]])

    def slopes(self, params: Params, x: Array, y: Array) -> tuple[Array, Array, Array]:
        """The residuals, and their derivatives in the states and in the data, (T, n, n)."""
        n = int(np.prod(self.shape[1:]))

        def one(x: Array, y: Array) -> tuple[Array, Array, Array]:
            residual = lambda x, y: jnp.ravel(
                self.residual(params, x.reshape(self.shape[1:]), y.reshape(self.shape[1:]))
            )
            x, y = x.reshape(n), y.reshape(n)
            return residual(x, y), jax.jacfwd(residual, 0)(x, y), jax.jacfwd(residual, 1)(x, y)

        return jax.vmap(one)(x, y)

    def lift(self, params: Params, y: Array) -> Lift:
        x, y = self.states(params), y.reshape(self.shape)
        e, in_x, in_y = self.slopes(params, x, y)
        size = lambda slopes, value: jnp.max(jnp.abs(slopes) @ jnp.abs(value.reshape(*e.shape, 1)))
        rounding = EPSILON * jnp.maximum(size(in_x, x), size(in_y, y))
        return Lift(e.ravel(), -log_abs_det(in_y).sum(), rounding)

    def links(self, u: Array, y: Array) -> tuple[Chain, Array, Array]:
        """The chain's derivatives at u, and what the shared coordinates do to states and residuals, (T, n, k)."""
        k, n = self.shared.d, int(np.prod(self.shape[1:]))
        v, nu = u[:k], u[k:].reshape(self.shape[0], -1)
        drive_shape = self.shape[1:] if nu.shape[1] == n else nu.shape[1:]
        y = y.reshape(self.shape[0], n)
        # The links see the parameters as one vector p, so that the maps of the priors are differentiated once.
        p, unravel = ravel_pytree(self.shared.values(v))
        of_v = jax.jacfwd(lambda v: ravel_pytree(self.shared.values(v))[0])(v)
        state = lambda x: x.reshape(self.shape[1:])
        drive = lambda nu: nu.reshape(drive_shape)
        flat = lambda value: jnp.ravel(jnp.asarray(value, float))
        initial = lambda p, nu: flat(self.initial(unravel(p), drive(nu)))
        transition = lambda p, nu, x: flat(self.transition(unravel(p), drive(nu), state(x)))
        residual = lambda p, x, y: flat(self.residual(unravel(p), state(x), state(y)))

        x = self.states({**unravel(p), NOISE: jax.vmap(drive)(nu)}).reshape(-1, n)
        first_p, first_nu = jax.jacfwd(initial, (0, 1))(p, nu[0])
        in_p, in_nu, in_x = jax.vmap(jax.jacfwd(transition, (0, 1, 2)), (None, 0, 0))(p, nu[1:], x[:-1])
        view_p, view_x = jax.vmap(jax.jacfwd(residual, (0, 1)), (None, 0, 0))(p, x, y)
        join = lambda first, rest: jnp.concatenate([first[None], rest])
        chain = Chain(carry=join(jnp.zeros((n, n)), in_x), drive=join(first_nu, in_nu), view=view_x)
        return chain, join(first_p, in_p) @ of_v, view_p @ of_v

    def smallest_scale(self, params: Params) -> Array:
        return jnp.ones(())  # the noise has no scale of its own here

    def noise_log_density(self, params: Params, e: Array) -> Array:
        return self.law(params).log_prob(e)

    def pointwise(self, params: Params, y: Array) -> dict[str, Array]:
        """Log-likelihood of each observation given its state."""
        e, _, in_y = self.slopes(params, self.states(params), y.reshape(self.shape))
        log_density = self.noise_log_density(params, e).sum(-1) + log_abs_det(in_y)
        return {"y": log_density}

    def simulate(self, key: Array, params: Params) -> dict[str, Array]:
        """Data with fresh noise from the states of these parameters."""
        eta = self.law(params).sample(key, self.shape)
        observe = lambda x, eta: jnp.asarray(self.observe(params, x, eta), float)
        return {"y": jax.vmap(observe)(self.states(params), eta)}


def log_abs_det(matrices: Array) -> Array:
    """log |det| of small matrices, shape (T,)."""
    if matrices.shape[-1] == 1:
        return jnp.log(jnp.abs(matrices[:, 0, 0]))
    return jnp.linalg.slogdet(matrices)[1]
