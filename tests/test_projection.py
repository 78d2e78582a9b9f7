"""Projection: every solver in every frame reaches the point that the definition asks for, or says why not."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from small import DENSE, FORWARD, Small, exact_draw

from tightrope.frames import FRAMES, choose_frame
from tightrope.projection import (
    ROUNDING_FACTOR,
    SOLVERS,
    Broyden,
    LimitedBroyden,
    Newton,
    Solver,
    Symmetric,
    project,
    solver_tolerance,
)
from tightrope.systems import Lifted, cheap_force
from tightrope.types import Lift, Status


def point_at(model, frame, u):
    return Lifted(model, FRAMES[frame], cheap_force(model)).at(u)


def drawn(name, sigma, seed=3):
    return exact_draw(jr.key(seed), name, sigma)


class Chain:
    """Many coordinates and many data, each a bend of its neighbours."""

    d, m, sigma = 50, 40, 0.1
    y = jnp.zeros(m)

    def prior_energy(self, u):
        return 0.5 * u @ u

    def noise_energy(self, u, e):
        return 0.5 * e @ e

    def lift(self, u):
        predicted = jnp.sin(u[: self.m]) + 0.3 * u[1 : self.m + 1] * u[-self.m :]
        return Lift((self.y - predicted) / self.sigma, self.m * jnp.log(self.sigma), jnp.array(1e-15))


TOLERANCE = 1e-12


@pytest.mark.parametrize("sigma", [0.3, 0.01, None])
@pytest.mark.parametrize("name", ["sine", "bend", "fold"])
def test_solvers_and_frames_reach_the_point_of_the_definition(name, sigma):
    """The end is on the manifold; its displacement from (u, e) + move is normal at (u, e)."""
    u, model = drawn(name, sigma)
    ways = [(frame, solver) for frame in DENSE for solver in SOLVERS]

    @jax.jit
    def run(u):
        move = 0.1 * point_at(model, "wide", u).frame.draw(jr.key(7))
        ends = [
            project(Solver(solver, TOLERANCE, 60), model, point_at(model, frame, u), move) for frame, solver in ways
        ]
        lifts = [model.lift(end.u).e for end in ends]
        return move, ends, lifts, jax.jacfwd(lambda u: model.lift(u).e)(u), model.lift(u).e

    move, ends, lifts, jacobian, e = run(u)
    start = np.concatenate([u, e])
    first = np.concatenate([ends[0].u, ends[0].e])
    normals = np.concatenate([-jacobian.T, np.eye(model.m)])
    tangents = np.concatenate([np.eye(model.d), jacobian])
    size = np.abs(tangents).max()
    for (frame, solver), end, lifted in zip(ways, ends, lifts, strict=True):
        label = f"{frame} {solver}"
        assert end.status == Status.OK and 0 < end.iterations < 60, label
        np.testing.assert_allclose(end.e, lifted, rtol=1e-12, atol=1e-12, err_msg=label)
        q = np.concatenate([end.u, end.e])
        assert np.abs(q - start).max() > 0.01, label
        np.testing.assert_allclose(q, first, rtol=0, atol=1e-9, err_msg=label)
        # Normal: orthogonal to every tangent, and made of normals alone.
        miss = q - start - move
        np.testing.assert_allclose(tangents.T @ miss, 0, rtol=0, atol=1e-9 * size, err_msg=label)
        part = np.linalg.lstsq(normals, miss)[0]
        np.testing.assert_allclose(normals @ part, miss, rtol=0, atol=1e-9, err_msg=label)
        # So the tangent part of the displacement is the move.
        basis = np.linalg.qr(tangents)[0]
        np.testing.assert_allclose(basis @ (basis.T @ (q - start)), move, rtol=0, atol=1e-9, err_msg=label)


@pytest.mark.parametrize("frame", DENSE)
def test_newton_converges_fastest_and_broyden_beats_symmetric(frame):
    u, model = drawn("fold", 0.1)

    @jax.jit
    def run(u):
        point = point_at(model, frame, u)
        move = 0.3 * point.frame.draw(jr.key(7))
        return [
            project(Solver(solver, TOLERANCE, 60), model, point, move) for solver in ("newton", "broyden", "symmetric")
        ]

    ends = run(u)
    assert all(end.status == Status.OK for end in ends)
    assert ends[0].iterations < ends[1].iterations < ends[2].iterations


def test_directions_are_those_of_the_names():
    assert Solver("newton").direction(3) == Newton() and Solver("symmetric").direction(3) == Symmetric()
    assert isinstance(Solver("broyden", max_iterations=8).direction(8), Broyden)
    assert Solver("broyden", max_iterations=8).direction(9) == LimitedBroyden(8)
    assert isinstance(Solver("broyden", max_iterations=8).direction(9), LimitedBroyden)


def iterates(direction, equation, num_looks):
    """The trials of a direction, one after another."""
    trial = equation.at(equation.start)
    trial = jax.tree.map(jnp.zeros_like, trial)._replace(s=equation.start)
    step, memory, seen = jnp.zeros_like(equation.start), direction.begin(equation), []
    for _ in range(num_looks):
        trial, memory, step = direction.look(equation, memory, trial, step)
        seen.append(trial.s)
    return jnp.stack(seen)


@pytest.mark.parametrize("frame", DENSE)
@pytest.mark.parametrize("name", ["bend", "fold"])
def test_limited_broyden_has_the_iterates_of_broyden(name, frame):
    u, model = drawn(name, 0.3)

    @jax.jit
    def run(u):
        point = point_at(model, frame, u)
        equation = point.frame.equation(model, point.u, point.e, 0.3 * point.frame.draw(jr.key(7)))
        return iterates(Broyden(), equation, 5), iterates(LimitedBroyden(4), equation, 5)

    whole, limited = run(u)
    np.testing.assert_allclose(limited, whole, rtol=0, atol=1e-9)
    moved = np.abs(np.diff(whole, axis=0)).max(1)
    assert (moved > 1e-9).all()  # each look is a new one


def test_limited_broyden_serves_many_unknowns():
    model = Chain()
    u = 0.3 * jr.normal(jr.key(0), (model.d,))

    @jax.jit
    def run(u):
        point = point_at(model, "wide", u)
        move = 0.2 * point.frame.draw(jr.key(7))
        equation = point.frame.equation(model, point.u, point.e, move)
        ends = [project(Solver("broyden", 1e-9, count), model, point, move) for count in (39, 40)]
        return ends, iterates(Broyden(), equation, 8), iterates(LimitedBroyden(8), equation, 8)

    (limited_end, whole_end), whole, limited = run(u)
    assert isinstance(Solver(max_iterations=39).direction(model.m), LimitedBroyden)
    assert isinstance(Solver(max_iterations=40).direction(model.m), Broyden)
    assert limited_end.status == whole_end.status == Status.OK
    assert limited_end.iterations == whole_end.iterations > 4
    np.testing.assert_allclose(limited_end.u, whole_end.u, rtol=0, atol=1e-9)
    np.testing.assert_allclose(limited, whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize("frame", DENSE)
@pytest.mark.parametrize("solver", SOLVERS)
def test_iterations_are_counted_and_capped(solver, frame):
    u, model = drawn("fold", 0.1)

    def run(max_iterations):
        point = point_at(model, frame, u)
        move = 0.3 * point.frame.draw(jr.key(7))
        at_once = lambda cap: Solver(solver, 1e-9, cap, max_halvings=0)
        return [project(at_once(cap), model, point, size * move) for cap, size in max_iterations]

    free, capped, still, unlimited_still = jax.jit(lambda: run([(60, 1.0), (2, 1.0), (60, 0.0), (1, 0.0)]))()
    assert free.status == Status.OK and free.iterations > 2
    assert capped.status == Status.PROJECTION_FAILED and capped.iterations == 2
    # A zero move is no move, at once.
    for end in (still, unlimited_still):
        assert end.status == Status.OK and end.iterations == 0
        np.testing.assert_allclose(end.u, u, rtol=0, atol=1e-15)
    # Just enough iterations are enough.
    enough, short = jax.jit(lambda: run([(int(free.iterations), 1.0), (int(free.iterations) - 1, 1.0)]))()
    assert enough.status == Status.OK and enough.iterations == free.iterations
    assert short.status == Status.PROJECTION_FAILED


def moves_and_ends(name, solver, frame, halvings, num_moves=400, size=1.8):
    """Long moves from exact draws, and what comes of them with each number of halvings."""

    def run(key):
        draw_key, move_key = jr.split(key)
        u, model = exact_draw(draw_key, name, 0.1)
        point = point_at(model, frame, u)
        move = size * point.frame.draw(move_key)
        ends = [project(Solver(solver, max_halvings=number), model, point, move) for number in halvings]
        miss = lambda end: jnp.concatenate([end.u - u, end.e - point.e]) - move
        return ends, [model.lift(end.u).e for end in ends], [point.frame.tangent(miss(end)) for end in ends]

    return jax.jit(jax.vmap(run))(jr.split(jr.key(5), num_moves))


@pytest.mark.parametrize("frame", DENSE)
@pytest.mark.parametrize("solver", ["newton", "broyden"])
def test_halving_finds_the_point_of_the_definition_where_the_whole_move_fails(solver, frame):
    (at_once, halved), (_, e), (_, tangent) = moves_and_ends("fold", solver, frame, halvings=(0, 2))
    solved = lambda end: np.asarray(end.status == Status.OK)
    # Nothing is changed of what is solved at once.
    np.testing.assert_array_equal(halved.u[solved(at_once)], at_once.u[solved(at_once)])
    np.testing.assert_array_equal(halved.iterations[solved(at_once)], at_once.iterations[solved(at_once)])
    rescued = solved(halved) & ~solved(at_once)
    assert rescued.sum() > 0.2 * (~solved(at_once)).sum() > 4
    np.testing.assert_allclose(e[rescued], halved.e[rescued], rtol=0, atol=1e-9)
    np.testing.assert_allclose(tangent[rescued], 0, rtol=0, atol=1e-8)
    # All attempts count.
    assert (halved.iterations[~solved(at_once)] > at_once.iterations[~solved(at_once)]).all()


class Steep:
    """Two coordinates, three data that grow until they are no numbers."""

    d, m = 2, 3

    def prior_energy(self, u):
        return 0.5 * u @ u

    def noise_energy(self, u, e):
        return 0.5 * e @ e

    def lift(self, u):
        e = jnp.exp(3 * jnp.stack([u[0], u[1], u[0] + u[1]]))
        return Lift(jnp.where(e < 1e6, e, jnp.nan), jnp.zeros(()), jnp.array(1e-15))


def test_an_attempt_that_ends_in_nan_spoils_none_after_it():
    model = Steep()

    def run(key):
        start_key, move_key = jr.split(key)
        point = point_at(model, "tall", 0.5 * jr.normal(start_key, (model.d,)) - 0.3)
        move = 2.0 * point.frame.draw(move_key)
        return [project(Solver("broyden", max_halvings=number), model, point, move) for number in (0, 2)]

    at_once, halved = jax.jit(jax.vmap(run))(jr.split(jr.key(1), 1000))
    spoilt = np.asarray((at_once.status == Status.PROJECTION_FAILED) & ~jnp.isfinite(at_once.e).all(1))
    assert spoilt.sum() > 20
    assert (halved.status[spoilt] == Status.OK).mean() > 0.5


def test_no_move_is_halved_that_leads_to_where_the_model_has_no_number():
    model = Wall("fold", 0.5, jnp.zeros(2))

    @jax.jit
    def run(ambient):
        point = point_at(model, "wide", jnp.full(3, 0.1))
        return project(Solver(), model, point, point.frame.tangent(ambient))

    end = run(jnp.zeros(5).at[0].set(5.0))
    assert end.status == Status.NON_FINITE and end.iterations == 0


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_move_too_far_diverges(solver):
    """With no solution in reach the loop ends early and reports a failure."""

    class Parabola(Small):
        def lift(self, u):
            e = (u @ u - 1.0) * jnp.ones(2) / 0.01
            return Lift(e, jnp.zeros(()), jnp.array(1e-14))

    model = Parabola("fold", 0.01, jnp.zeros(2))

    @jax.jit
    def run(u):
        point = point_at(model, "wide", u)
        return project(Solver(solver), model, point, 50.0 * point.frame.tangent(jnp.array([0, 0, 1.0, 0, 0])))

    end = run(jnp.array([1.0, 0.0, 0.0]))
    assert end.status in (Status.PROJECTION_FAILED, Status.NON_FINITE)


class Wall(Small):
    """A model that gives NaN in one of its residuals beyond a wall."""

    def lift(self, u):
        lift = super().lift(u)
        return lift._replace(e=lift.e.at[-1].set(jnp.where(u[0] > 0.2, jnp.nan, lift.e[-1])))


class Overflow(Small):
    """A model that gives infinity there."""

    def lift(self, u):
        lift = super().lift(u)
        return lift._replace(e=lift.e.at[-1].set(jnp.where(u[0] > 0.2, jnp.inf, lift.e[-1])))


@pytest.mark.parametrize("kind", [Wall, Overflow])
@pytest.mark.parametrize("name", ["bend", "fold"])
def test_nan_is_never_convergence(name, kind):
    model = kind(name, 0.5, jnp.zeros(FORWARD[name][2]))
    ways = [(frame, solver) for frame in DENSE for solver in SOLVERS]

    @jax.jit
    def run(u, ambient):
        ends = []
        for frame, solver in ways:
            # A loose tolerance, to which infinity would be as good as anything.
            point = point_at(model, frame, u)
            ends.append(project(Solver(solver, tolerance=0.9), model, point, point.frame.tangent(ambient)))
        return ends

    u = jnp.full(model.d, 0.1)
    ambient = jnp.zeros(model.d + model.m).at[0].set(5.0)
    for way, end in zip(ways, run(u, ambient), strict=True):
        assert end.status == Status.NON_FINITE, way
    for way, end in zip(ways, run(u, -ambient / 50), strict=True):
        assert end.status == Status.OK, way


def nan_moves(model):
    """Moves with one NaN, in each place."""
    return jnp.where(jnp.eye(model.d + model.m, dtype=bool), jnp.nan, 0.01)


@pytest.mark.parametrize("frame", DENSE)
@pytest.mark.parametrize("name", ["bend", "fold"])
def test_move_with_a_nan_is_not_finite(name, frame):
    u, model = drawn(name, 0.3)
    run = lambda move: project(Solver(), model, point_at(model, frame, u), move).status
    assert (jax.jit(jax.vmap(run))(nan_moves(model)) == Status.NON_FINITE).all()


@pytest.mark.parametrize("frame", ["tall", "wide"])
def test_nan_in_a_coordinate_that_the_model_ignores_is_not_finite(frame):
    class Blind(Small):
        def lift(self, u):
            return super().lift(u.at[2].set(0.3))

    model = Blind("fold", 0.3, jnp.zeros(2))
    run = lambda move: project(Solver(), model, point_at(model, frame, jnp.full(3, 0.1)), move).status
    assert (jax.jit(jax.vmap(run))(nan_moves(model)) == Status.NON_FINITE).all()


@pytest.mark.parametrize("field", ["rounding", "e"])
def test_point_with_a_nan_does_not_converge(field):
    u, model = drawn("fold", 0.3)

    def run(u):
        point = point_at(model, "wide", u)
        point = point._replace(**{field: jnp.full_like(getattr(point, field), jnp.nan)})
        return project(Solver(), model, point, 0.1 * point.frame.draw(jr.key(1))).status

    assert jax.jit(run)(u) != Status.OK


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", ["sine", "fold"])
def test_tolerance_is_tied_to_rounding(name, solver):
    """At sigma = 1e-8 the residual is known to 1e-8 at best: the projection converges, to that and no better."""
    u, model = drawn(name, 1e-8)

    @jax.jit
    def run(u):
        point = point_at(model, choose_frame(model), u)
        move = 0.05 * point.frame.draw(jr.key(7))
        asked = Solver(solver, 1e-9, 60, max_halvings=0)
        end = project(asked, model, point, move)
        exact = point._replace(rounding=jnp.zeros(()))
        return point, solver_tolerance(asked, point), end, project(asked, model, exact, move), model.lift(end.u).e

    point, tolerance, end, strict, e = run(u)
    assert tolerance == ROUNDING_FACTOR * point.rounding > 1e-9
    assert end.status == Status.OK
    np.testing.assert_allclose(e, end.e, rtol=0, atol=float(tolerance))
    # Asked for more it walks about in the rounding errors, or away.
    assert strict.status == Status.PROJECTION_FAILED and strict.iterations > 2 * end.iterations


def test_tolerance_is_the_solvers_where_rounding_is_small():
    u, model = drawn("fold", 0.3)
    point = jax.jit(lambda u: point_at(model, "wide", u))(u)
    assert solver_tolerance(Solver(tolerance=1e-7), point) == 1e-7
