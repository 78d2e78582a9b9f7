"""A solver of stiff equations for diffrax, without iterations: fast where there are few states."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import diffrax
import jax
import jax.numpy as jnp

from tightrope.types import Array

LARGEST = 12  # number of states up to which a matrix is inverted by code that XLA fuses, not by a call of LAPACK
GAMMA = 1 / 4


class Stage(NamedTuple):
    """One of the linear equations of a step."""

    time: float  # at which the rate is taken, in steps
    drift: float  # weight of the rate's derivative along time
    state: tuple[float, ...]  # weights of the stages before, in the state at which the rate is taken
    memory: tuple[float, ...]  # and on the right-hand side, over the step


LATE = (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950)
STAGES = (
    Stage(0.0, 0.25, (), ()),
    Stage(0.386, -0.1043, (1.544,), (-5.6688,)),
    Stage(0.21, 0.1035, (0.9466785280815826, 0.2557011698983284), (-2.430093356833875, -0.2063599157091915)),
    Stage(
        0.63,
        -0.0362,
        (3.314825187068521, 2.896124015972201, 0.9986419139977817),
        (-0.1073529058151375, -9.594562251023355, -20.47028614809616),
    ),
    Stage(1.0, 0.0, LATE, (7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160)),
    Stage(
        1.0,
        0.0,
        (*LATE, 1.0),
        (8.083246795921522, -7.981132988064893, -31.52159432874371, 16.31930543123136, -6.058818238834054),
    ),
)


class Rosenbrock(diffrax.AbstractAdaptiveSolver):
    """Six linear equations with one matrix a step, of order four, with an error estimate of order three.

    RODAS of Hairer and Wanner, Solving Ordinary Differential Equations II (1996), section IV.6. What decays fast is
    gone after a step, from the state and from the error. Else, where equations are stiff, the sizes of steps, and with
    them the errors, would be erratic functions of the parameters, and no projection could converge to the end.
    """

    term_structure: ClassVar = diffrax.ODETerm
    interpolation_cls: ClassVar = diffrax.LocalLinearInterpolation  # none is needed: steps end where states are saved

    def order(self, terms: Any) -> int:
        return 4

    def init(self, terms, t0, t1, y0, args) -> None:
        return None

    def func(self, terms, t0, y0, args) -> Array:
        return terms.vf(t0, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump) -> tuple:
        rate = lambda t, y: terms.vf(t, y, args)
        h = t1 - t0
        along_t = jax.jvp(lambda t: rate(t, y0), (t0,), (jnp.ones_like(t0),))[1]
        slope = jax.jacfwd(lambda y: rate(t0, y))(y0)
        inverse = inverted(jnp.eye(y0.size) / (GAMMA * h) - slope)
        stages: list[Array] = []
        for stage in STAGES:
            y1 = y0 + combined(stage.state, stages, y0)
            known = rate(t0 + stage.time * h, y1) + stage.drift * h * along_t
            stages.append(inverse @ (known + combined(stage.memory, stages, y0) / h))
        error = stages[-1]
        y1 = y1 + error
        return y1, error, {"y0": y0, "y1": y1}, None, diffrax.RESULTS.successful


def combined(weights: tuple[float, ...], stages: list[Array], like: Array) -> Array:
    return sum((weight * stage for weight, stage in zip(weights, stages, strict=True)), jnp.zeros_like(like))


@jax.custom_jvp
def inverted(matrix: Array) -> Array:
    """The inverse, by elimination with pivots."""
    n = len(matrix)
    if n > LARGEST:
        return jnp.linalg.inv(matrix)
    rows = jnp.concatenate([matrix, jnp.eye(n)], axis=1)
    for k in range(n):
        best = k + jnp.argmax(jnp.abs(rows[k:, k]))
        pivot, other = rows[best] / rows[best, k], rows[k]
        rows = jnp.where((jnp.arange(n) == best)[:, None], other, rows)
        rows = (rows - rows[:, k : k + 1] * pivot).at[k].set(pivot)
    return rows[:, n:]


@inverted.defjvp
def _(primals, tangents):
    inverse = inverted(*primals)
    return inverse, -inverse @ tangents[0] @ inverse
