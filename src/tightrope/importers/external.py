"""A forward model outside JAX: NumPy, SciPy, or any simulator that Python can call."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tightrope.types import EPSILON, Array, InputError, MissingDerivatives

Params = Mapping[str, Any]
FLOOR = 1e-6  # a parameter smaller than this is taken for this large when a step is chosen
REMEMBERED = 10**6  # numbers of results that are kept: a step asks for some of them twice
LARGEST_ERROR = 1e-2  # of a Jacobian, beside differences
ORDER = {"forward": 0, "jacobian": 1, "second": 2}  # of the derivative


def external(
    forward: Callable[[Params], Any],
    jacobian: Callable[[Params], Mapping[str, Any]] | None = None,
    *,
    shape: int | Sequence[int],
    second: Callable[[Params], Mapping[str, Mapping[str, Any]]] | None = None,
    step: float = EPSILON ** (1 / 3),
    vectorized: bool = False,
    workers: int | Executor | None = None,
) -> External:
    """A function of the parameters that JAX can call and differentiate, from one that it cannot look into.

    `forward(params)` gets a dictionary of NumPy arrays and returns an array of the `shape`. `jacobian(params)` has an
    array of `shape + parameter's shape` for each parameter (none for those without influence), `second(params)` the
    same for each pair. Without a Jacobian there are central differences, with steps of `step` times the parameter:
    two calls a parameter, and a relative error of `step**2`, 4e-11, and of the error of `forward` divided by `step`.
    So where `forward` itself is good to 1e-9 only, 1e-3 is a better step.

    Exceptions and NaN are failed steps. With `vectorized` all functions get, and return, a further first axis of many
    points; with `workers`, a number of threads or an executor, points are shared among them.
    """
    given = {"forward": forward, "jacobian": jacobian, "second": second}
    for name, function in given.items():
        if not callable(function) and (function is not None or name == "forward"):
            raise InputError(f"{name} must be a function, not {type(function).__name__}.")
    if second is not None and jacobian is None:
        raise InputError("second is given without jacobian: give both, or neither.")
    if not 0 < step < 0.5:
        raise InputError(f"step={step} must lie between 0 and 0.5.")
    if isinstance(workers, int) and workers < 1:
        raise InputError(f"workers={workers} must be at least 1.")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    pool = ThreadPoolExecutor(workers) if isinstance(workers, int) else workers
    return External(forward, jacobian, second, sizes, step, vectorized, pool)


class External:
    """A forward model that is called from compiled code."""

    def __init__(
        self,
        forward: Callable[[Params], Any],
        jacobian: Callable[[Params], Any] | None,
        second: Callable[[Params], Any] | None,
        shape: tuple[int, ...],
        step: float,
        vectorized: bool,
        pool: Executor | None,
    ):
        self.forward, self.jacobian, self.second = forward, jacobian, second
        self.shape, self.step, self.vectorized, self.pool = shape, step, vectorized, pool
        self.memory: dict[Any, np.ndarray] = {}
        self.has_complained = False

    def __call__(self, params: Params) -> Array:
        values = {name: jnp.asarray(value, float) for name, value in params.items()}
        theta = jnp.concatenate([value.ravel() for value in values.values()])
        return predictions(Call(self, Layout.of(values)), theta)

    def try_out(self, draws: Iterable[Params]) -> None:
        """Call the functions outside of compiled code, where their mistakes can be shown, until a draw is good."""
        problems: list[str] = []
        for values in draws:
            theta = np.concatenate([np.ravel(value) for value in values.values()])
            call, kinds = Call(self, Layout.of(values)), [kind for kind in ORDER if getattr(self, kind) is not None]
            failed = [one for kind in kinds for one in call.results(kind, theta[None]) if isinstance(one, str)]
            if not failed:
                return call.check_slopes(theta)
            problems += failed
        raise InputError(f"{problems[0][:-1]}, and did not succeed at any of the prior draws tried.")

    def complain(self, problem: str) -> None:
        """Tell of the first failure; the others are counted."""
        if not self.has_complained:
            self.has_complained = True
            warnings.warn(f"{problem} That is a failed step, this time and whenever it happens again.", stacklevel=2)


class Layout(NamedTuple):
    """How parameters lie in a vector theta."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, params: Params) -> Layout:
        return cls(tuple(params), tuple(np.shape(value) for value in params.values()))

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def unpack(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """The parameters in a vector, or in many."""
        parts = np.split(theta, np.cumsum([math.prod(shape) for shape in self.shapes])[:-1], axis=-1)
        named = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape((*theta.shape[:-1], *shape)) for name, part, shape in named}

    def pack(self, value: Any, shape: tuple[int, ...], order: int) -> np.ndarray:
        """Something of a shape, or its derivatives by parameter, as one array; what is left out is zero."""
        if order == 0:
            if np.shape(value) != shape:
                raise ValueError(f"the result has shape {np.shape(value)}, not {shape}")
            return np.asarray(value, float)
        unknown = sorted(set(value) - set(self.names))
        if unknown:
            raise ValueError(f"there is no parameter {unknown[0]!r}")
        parts = [np.zeros((*shape, 0, *(self.size,) * (order - 1)))]
        for name, own in zip(self.names, self.shapes, strict=True):
            nothing: Any = np.zeros(shape + own) if order == 1 else {}
            part = self.pack(value.get(name, nothing), shape + own, order - 1)
            parts.append(part.reshape((*shape, -1, *(self.size,) * (order - 1))))
        return np.concatenate(parts, axis=len(shape))


def outcome(
    function: Callable[[Params], Any], kind: str, layout: Layout, shape: tuple[int, ...], theta: np.ndarray
) -> np.ndarray | str:
    """What a function returns at a vector, or at many; or a sentence on why it does not."""
    try:
        return layout.pack(function(layout.unpack(theta)), theta.shape[:-1] + shape, ORDER[kind])
    except Exception as error:
        return f"{kind} raised {type(error).__name__}: {str(error).rstrip('.')}."


class Call(NamedTuple):
    """A model called with parameters of some layout."""

    external: External
    layout: Layout

    def shape(self, kind: str) -> tuple[int, ...]:
        """Of a result at one point."""
        return self.external.shape + (self.layout.size,) * ORDER[kind]

    def results(self, kind: str, points: np.ndarray) -> list[np.ndarray | str]:
        """What a function returns at each point."""
        external = self.external
        at = partial(outcome, getattr(external, kind), kind, self.layout, external.shape)
        if not external.vectorized:
            return list(external.pool.map(at, points) if external.pool else map(at, points))
        together = at(points)
        if not isinstance(together, str):
            return list(together)
        # What fails must not depend on its company.
        return [one if isinstance(one, str) else one[0] for one in map(at, points[:, None])]

    def compute(self, kind: str, points: np.ndarray) -> np.ndarray:
        """The results at points, NaN where there is none."""
        if kind == "jacobian" and self.external.jacobian is None:
            return self.differences(points)
        whole = np.full((len(points), *self.shape(kind)), np.nan)
        good = np.isfinite(points).all(axis=1)
        found = self.results(kind, points[good]) if good.any() else []
        for place, value in zip(np.flatnonzero(good), found, strict=True):
            if isinstance(value, str):
                self.external.complain(value)
            else:
                whole[place] = value
        return whole

    def differences(self, points: np.ndarray) -> np.ndarray:
        """The Jacobian by central differences."""
        width = self.external.step * np.maximum(np.abs(points), FLOOR)
        move = width[:, None, :] * np.eye(self.layout.size)  # one parameter at a time
        ends = np.stack([points[:, None] + move, points[:, None] - move])
        values = self.compute("forward", ends.reshape(-1, self.layout.size))
        above, below = values.reshape((*ends.shape[:-1], *self.external.shape))
        length = np.einsum("pii->pi", ends[0] - ends[1])  # as rounded, not as meant
        quotients = (above - below) / length.reshape(length.shape + (1,) * len(self.external.shape))
        return np.moveaxis(quotients, 1, -1)

    def check_slopes(self, theta: np.ndarray) -> None:
        """Refuse a Jacobian that is not that of the forward model, along some direction in each parameter."""
        if self.external.jacobian is None:
            return
        (slopes,) = self.compute("jacobian", theta[None])
        width = self.external.step * np.maximum(np.abs(theta), FLOOR) * np.cos(np.arange(theta.size))
        bounds = np.cumsum([0, *(math.prod(shape) for shape in self.layout.shapes)])
        for name, (start, stop) in zip(self.layout.names, pairwise(bounds), strict=True):
            move = np.where((start <= np.arange(theta.size)) & (np.arange(theta.size) < stop), width, 0.0)
            above, below = self.compute("forward", np.stack([theta + move, theta - move]))
            error = np.abs(2 * slopes @ move - (above - below)).max()
            if error > LARGEST_ERROR * (np.abs(slopes) @ np.abs(move)).max() + 64 * EPSILON * np.abs(above).max():
                raise InputError(f'jacobian does not agree with differences of forward in the parameter "{name}".')

    def recalled(self, kind: str, theta: np.ndarray) -> np.ndarray:
        """The results at a vector, or at many along further axes, remembered or computed."""
        theta, memory = np.asarray(theta), self.external.memory
        points = theta.reshape(-1, self.layout.size)
        keys = [(kind, self.layout, point.tobytes()) for point in points]
        found = {key: value for key in keys if (value := memory.get(key)) is not None}  # another thread may clear it
        missing = {key: point for key, point in zip(keys, points, strict=True) if key not in found}
        if missing:
            computed = dict(zip(missing, self.compute(kind, np.stack(list(missing.values()))), strict=True))
            found |= computed
            if len(memory) * math.prod(self.shape("jacobian")) > REMEMBERED:
                memory.clear()
            memory.update(computed)
        return np.stack([found[key] for key in keys]).reshape((*theta.shape[:-1], *self.shape(kind)))

    def traced(self, kind: str, theta: Array) -> Array:
        """The results as a part of a compiled program."""
        like = jax.ShapeDtypeStruct(self.shape(kind), jnp.float64)
        return jax.pure_callback(partial(self.recalled, kind), like, theta, vmap_method="broadcast_all")


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def predictions(call: Call, theta: Array) -> Array:
    return call.traced("forward", theta)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def slopes(call: Call, theta: Array) -> Array:
    return call.traced("jacobian", theta)


@predictions.defjvp
def _(call: Call, primals: Any, tangents: Any) -> tuple[Array, Array]:
    ((theta,), (direction,)) = primals, tangents
    return predictions(call, theta), slopes(call, theta) @ direction


@slopes.defjvp
def _(call: Call, primals: Any, tangents: Any) -> tuple[Array, Array]:
    if call.external.second is None:
        raise MissingDerivatives(
            "this needs second derivatives, which the model from outside JAX does not have: give tr.external second=, "
            "or choose nuts, or a lifted method with a cheap or surrogate force."
        )
    ((theta,), (direction,)) = primals, tangents
    return slopes(call, theta), call.traced("second", theta) @ direction
