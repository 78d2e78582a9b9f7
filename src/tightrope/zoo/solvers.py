"""Fixed-step solvers."""

from __future__ import annotations

from collections.abc import Callable

from jax import lax

from tightrope.types import Array


def rk4(rate: Callable[[Array], Array], start: Array, step: float, num_steps: int) -> Array:
    """The path of x' = rate(x) at each of the steps after the start, by the classical Runge-Kutta method."""

    def advance(x: Array, _: None) -> tuple[Array, Array]:
        k1 = rate(x)
        k2 = rate(x + 0.5 * step * k1)
        k3 = rate(x + 0.5 * step * k2)
        k4 = rate(x + step * k3)
        x = x + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return x, x

    return lax.scan(advance, start, None, length=num_steps)[1]
