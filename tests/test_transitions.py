"""Trajectories: the turning test against a plain recursion, and what a transition reports."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from small import Small

from tightrope.frames import Tall
from tightrope.integrators import ConstrainedLeapfrog
from tightrope.projection import Solver
from tightrope.systems import Lifted
from tightrope.transitions import HMC, NUTS, run
from tightrope.transitions.nuts import Arrow, Checkpoints
from tightrope.types import State, Status, Step


def turns(velocities, momenta):
    """Whether a stretch of states turns, or any of the halves that it is made of: by recursion."""
    if len(momenta) == 1:
        return False
    middle = len(momenta) // 2

    def against(first, last, total):
        return velocities[first] @ total <= 0 or velocities[last] @ total <= 0

    left, right = momenta[:middle].sum(0), momenta[middle:].sum(0)
    return (
        turns(velocities[:middle], momenta[:middle])
        or turns(velocities[middle:], momenta[middle:])
        or against(0, -1, left + right)
        or against(0, middle, left + momenta[middle])
        or against(middle - 1, -1, right + momenta[middle - 1])
    )


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_subtrees_turn_as_by_recursion(depth):
    size, dimension, rng = 2**depth, 3, np.random.default_rng(depth)
    metric = np.diag([1.0, 2.0, 0.5])

    @jax.jit
    def iteratively(momenta):
        def body(carry, item):
            checkpoints, total, before, found = carry
            index, momentum = item
            arrow = Arrow(metric @ momentum, momentum)
            checkpoints = checkpoints.mark(index, arrow, before, total)
            total = total + momentum
            return (checkpoints, total, arrow, found | checkpoints.turns(index, arrow, total)), None

        zero = jnp.zeros(dimension)
        start = (Checkpoints.empty(5, dimension), zero, Arrow(zero, zero), jnp.array(False))
        return jax.lax.scan(body, start, (jnp.arange(size), momenta))[0][3]

    answers = []
    for _ in range(300):
        # A slow drift and some noise, so that some of the stretches turn and some do not.
        momenta = np.array([1.0, 0.5, 0]) + 1.2 / depth * rng.normal(size=(size, dimension)).cumsum(0)
        expected = turns(momenta @ metric, momenta)
        assert iteratively(momenta) == expected
        answers.append(expected)
    assert 3 <= sum(answers) <= 297


class Oscillator:
    """A system of one coordinate whose exact flow is a rotation; steps fail beyond a wall."""

    def __init__(self, wall=np.inf):
        self.system, self.wall = self, wall

    def at(self, u):
        lifted = Lifted(Small("sine", 1.0, jnp.zeros(1)), Tall)
        return lifted.at(u)._replace(potential=0.5 * u @ u)

    def draw_momentum(self, key, point):
        return jr.normal(key, (1,))

    def velocity(self, state):
        return state.momentum

    def energy(self, state):
        return 0.5 * state.point.u @ state.point.u + 0.5 * state.momentum @ state.momentum

    def step(self, state, step_size):
        c, s = jnp.cos(step_size), jnp.sin(step_size)
        u = c * state.point.u + s * state.momentum
        status = jnp.where(jnp.abs(u[0]) > self.wall, Status.PROJECTION_FAILED, Status.OK)
        return Step(State(self.at(u), c * state.momentum - s * state.point.u), status, jnp.array(3))


def chain(transition, integrator, step_size, num_draws=4000):
    def body(point, key):
        point, info = run(transition, integrator, key, point, step_size)
        return point, (point.u, info)

    keys = jr.split(jr.key(0), num_draws)
    return jax.jit(lambda: jax.lax.scan(body, integrator.at(jnp.array([0.1])), keys)[1])()


def test_exact_flow_is_always_accepted_and_stops_at_half_a_turn():
    u, info = chain(NUTS(8), Oscillator(), jnp.array(0.2))
    np.testing.assert_allclose(info.acceptance_rate, 1.0, rtol=1e-9)
    # 0.2 rad a step: half a turn is 15.7 steps, so no tree has more than 31; few that start fast have less than 7.
    assert info.n_steps.max() <= 31 and 7 < info.n_steps.mean() < 24
    assert abs(u.var() - 1) < 0.1 and not info.diverging.any()


@pytest.mark.parametrize("transition", [HMC(5), NUTS(6)], ids=["static", "nuts"])
def test_failed_steps_end_the_trajectory_and_count_against_it(transition):
    u, info = chain(transition, Oscillator(wall=1.0), jnp.array(0.3))
    failed = info.projection_failed > 0
    assert 0.2 < failed.mean() < 0.9 and info.projection_failed.max() == 1
    assert jnp.abs(u).max() <= 1.0
    assert (info.acceptance_rate[failed] < 1).all()
    np.testing.assert_array_equal(info.solver_iterations, 3 * info.n_steps)


def test_maximum_depth_is_reported():
    _, info = chain(NUTS(2), Oscillator(), jnp.array(0.01))
    # All but those that start next to a turning point.
    assert info.reached_max_treedepth.mean() > 0.95 and info.n_steps.max() == 3


def test_jitter_spreads_the_step_size():
    _, info = chain(HMC(2, jitter=0.2), Oscillator(), jnp.array(0.5))
    assert 0.4 <= info.step_size.min() < 0.42 and 0.58 < info.step_size.max() <= 0.6


def test_static_trajectory_accepts_by_the_change_of_energy():
    model = Small("bend", 0.3, jnp.array([0.2, -0.4, 0.1, 0.5]))
    integrator = ConstrainedLeapfrog(Lifted(model, Tall), Solver("newton"))
    point = integrator.system.at(jnp.array([0.2, -0.4]))

    def outcome(key):
        after, info = run(HMC(2), integrator, key, point, 0.9)
        return info.acceptance_rate, (after.u != point.u).any()

    rate, moved = jax.jit(jax.vmap(outcome))(jr.split(jr.key(1), 5000))
    error = (moved - rate).mean() / np.sqrt((rate * (1 - rate)).mean() / 5000)
    assert abs(error) < 4 and 0.3 < rate.mean() < 0.99
