"""Fixed-step solvers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
from jax import lax

State = TypeVar("State")  # a pytree; scalars in a tuple run faster than a stacked vector


def rk4(rate: Callable[[State], State], start: State, step: float, num_steps: int) -> State:
    """The path of x' = rate(x) at each of the steps after the start, by the classical Runge-Kutta method."""

    def move(x: State, time: float, slope: State) -> State:
        return jax.tree.map(lambda x, k: x + time * k, x, slope)

    def advance(x: State, _: None) -> tuple[State, State]:
        k1 = rate(x)
        k2 = rate(move(x, 0.5 * step, k1))
        k3 = rate(move(x, 0.5 * step, k2))
        k4 = rate(move(x, step, k3))
        mean = jax.tree.map(lambda k1, k2, k3, k4: (k1 + 2 * k2 + 2 * k3 + k4) / 6, k1, k2, k3, k4)
        x = move(x, step, mean)
        return x, x

    return lax.scan(advance, start, None, length=num_steps)[1]
