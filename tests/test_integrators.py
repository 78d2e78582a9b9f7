"""Steps: the constrained one against the paper's own algorithm, and what a good integrator must keep."""

from itertools import product

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paper
import pytest
from cases import slow_but
from small import DENSE, FORWARD, Small, exact_draw

from tightrope.frames import FRAMES
from tightrope.geometry import GEOMETRIES, fisher, posterior_energy
from tightrope.implicit import IMPLICIT_SOLVERS, ImplicitSolver
from tightrope.integrators import DRIFTS, ConstrainedLeapfrog, GeneralisedLeapfrog, Langevin
from tightrope.projection import SOLVERS, Solver
from tightrope.systems import Lifted, Riemannian
from tightrope.types import Lift, State, Status

EXACT = 1e-13  # solver tolerance for comparisons with other algorithms


def integrator_of(model, frame, solver="newton", tolerance=EXACT):
    return ConstrainedLeapfrog(Lifted(model, FRAMES[frame]), Solver(solver, tolerance))


def drawn(name, sigma, seed=3):
    return exact_draw(jr.key(seed), name, sigma)


@pytest.mark.parametrize("sigma", slow_but([0.01, None], [0.3, 0.01, None]))
@pytest.mark.parametrize(
    ("frame", "name"), slow_but([("tall", "bend"), ("wide", "fold")], product(DENSE, ["bend", "fold"]))
)
@pytest.mark.parametrize("solver", slow_but(["newton", "broyden"], SOLVERS))
def test_step_is_the_papers(solver, frame, name, sigma):
    u, model = drawn(name, sigma)
    scale = lambda u: model.scale(u) * jnp.ones(model.m)
    problem = paper.problem(model.predict, scale, np.asarray(model.y))
    integrator = integrator_of(model, frame, solver)
    point = integrator.system.at(u)
    ambient = np.asarray(jr.normal(jr.key(4), (model.d + model.m,)))
    q = paper.lift(problem, np.asarray(u))
    p = paper.project_momentum(problem, ambient, q)
    np.testing.assert_allclose(point.frame.tangent(ambient), p, atol=1e-9)

    paper_solver = "symmetric" if solver == "symmetric" else "newton"
    end_q, end_p, failed = paper.constrained_step(problem, q, p, 0.1, solver=paper_solver, tolerance=1e-12)
    step = integrator.step(State(point, jnp.asarray(p)), 0.1)
    assert not failed and step.status == Status.OK
    np.testing.assert_allclose(jnp.concatenate([step.state.point.u, step.state.point.e]), end_q, atol=1e-9)
    np.testing.assert_allclose(step.state.momentum, end_p, atol=1e-9)
    before = paper.hamiltonian(problem, q, p)
    after = paper.hamiltonian(problem, end_q, end_p)
    ours = integrator.system.energy(step.state) - integrator.system.energy(State(point, jnp.asarray(p)))
    np.testing.assert_allclose(ours, after - before, atol=1e-8)


def trajectory(integrator, state, step_size, num_steps):
    """The end of a trajectory and the statuses on the way."""

    def body(state, _):
        step = integrator.step(state, step_size)
        return step.state, step.status

    return jax.jit(lambda state: jax.lax.scan(body, state, None, num_steps))(state)


@pytest.mark.parametrize("frame", DENSE)
def test_a_step_that_was_halved_can_be_undone(frame):
    """In reverse the step must pass its own check, which solves for the move that took halves.

    Up to rounding, that is: where a solver only just converges it may not do so again from 1e-9 beside.
    """

    def run(key):
        draw_key, momentum_key = jr.split(key)
        u, model = exact_draw(draw_key, "fold", 0.1)
        system = Lifted(model, FRAMES[frame])
        whole, halved = (ConstrainedLeapfrog(system, Solver("newton", max_halvings=number)) for number in (0, 2))
        state = State(system.at(u), system.draw_momentum(momentum_key, system.at(u)))
        there = halved.step(state, 1.2)
        back = halved.step(there.state, -1.2)
        return whole.step(state, 1.2).status, there.status, back.status, jnp.abs(back.state.point.u - u).max()

    at_once, there, back, distance = jax.jit(jax.vmap(run))(jr.split(jr.key(6), 2000))
    done, undone = np.asarray(there == Status.OK), np.asarray(back == Status.OK)
    rescued = done & np.asarray(at_once != Status.OK)
    assert rescued.sum() >= 20
    assert undone[rescued].mean() > 0.8 and undone[done].mean() > 0.99
    assert distance[done & undone].max() < 1e-6  # never elsewhere


@pytest.mark.parametrize(
    ("frame", "name"), slow_but([("tall", "bend"), ("wide", "fold")], product(DENSE, ["bend", "fold"]))
)
def test_energy_error_falls_as_the_square_of_the_step(frame, name):
    u, model = drawn(name, None)
    integrator = integrator_of(model, frame)
    point = integrator.system.at(u)
    state = State(point, integrator.system.draw_momentum(jr.key(1), point))
    sizes, errors = np.array([0.02, 0.01, 0.005, 0.0025]), []
    for size in sizes:
        end, statuses = trajectory(integrator, state, size, round(0.4 / size))
        assert not statuses.any()
        errors.append(abs(integrator.system.energy(end) - integrator.system.energy(state)))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert abs(slope - 2.0) < 0.1, slope


@pytest.mark.slow
@pytest.mark.parametrize(("frame", "name"), [*product(DENSE, ["bend", "fold"])])
def test_step_is_symplectic(frame, name):
    """The pull-back of the two-form du ^ dp by a step is the two-form, on vectors tangent to the bundle."""
    u, model = drawn(name, None)
    integrator = integrator_of(model, frame)
    direct = paper_free_step(integrator)
    velocity = jr.normal(jr.key(5), (model.d,))
    jacobian = jax.jit(jax.jacfwd(direct))(jnp.concatenate([u, velocity]))
    form = jax.jit(jax.vmap(lambda z: two_form(model, z)))(
        jnp.stack([jnp.concatenate([u, velocity]), direct(jnp.concatenate([u, velocity]))])
    )
    np.testing.assert_allclose(jacobian.T @ form[1] @ jacobian, form[0], atol=1e-6)


def embed(model, z):
    """(q, p) in ambient space from coordinates (u, v) of the tangent bundle: q = (u, e), p = (v, J v)."""
    u, v = z[: model.d], z[model.d :]
    e, along = jax.jvp(lambda u: model.lift(u).e, (u,), (v,))
    return jnp.concatenate([u, e]), jnp.concatenate([v, along])


def two_form(model, z):
    """The matrix of the ambient two-form dq ^ dp in the coordinates (u, v)."""
    q_slope, p_slope = jax.jacfwd(lambda z: embed(model, z))(z)
    return q_slope.T @ p_slope - p_slope.T @ q_slope


def paper_free_step(integrator):
    """One step in the coordinates (u, v), differentiable: the projection is solved by plain Newton iterations."""
    model, step_size = integrator.system.model, 0.1
    normals = lambda u: jnp.concatenate([-jax.jacfwd(lambda u: model.lift(u).e)(u).T, jnp.eye(model.m)])

    def step(z):
        u = z[: model.d]
        q, p = embed(model, z)
        moved = q + step_size * (p - 0.5 * step_size * integrator.system.at(u).gradient)
        gap = lambda s: (moved - normals(u) @ s)[model.d :] - model.lift((moved - normals(u) @ s)[: model.d]).e
        s = jnp.zeros(model.m)
        for _ in range(12):
            s = s - jnp.linalg.solve(jax.jacfwd(gap)(s), gap(s))
        end = moved - normals(u) @ s
        point = integrator.system.at(end[: model.d])
        p = point.frame.tangent((end - q) / step_size) - 0.5 * step_size * point.gradient
        return jnp.concatenate([end[: model.d], p[: model.d]])

    return step


@pytest.mark.slow
@pytest.mark.parametrize("frame", DENSE)
def test_differentiable_step_is_the_step(frame):
    """So that what is shown symplectic is what is shipped."""
    u, model = drawn("bend", None)
    integrator = integrator_of(model, frame)
    z = jnp.concatenate([u, jr.normal(jr.key(5), (model.d,))])
    state = State(integrator.system.at(u), embed(model, z)[1])
    shipped = integrator.step(state, 0.1).state
    expected = paper_free_step(integrator)(z)
    np.testing.assert_allclose(jnp.concatenate([shipped.point.u, shipped.momentum[: model.d]]), expected, atol=1e-9)


@pytest.mark.parametrize("sigma", [0.3, 1e-6])
@pytest.mark.parametrize(("frame", "name"), [("tall", "bend"), ("wide", "fold")])
def test_long_trajectories_stay_on_the_manifold(frame, name, sigma):
    u, model = drawn(name, sigma)
    integrator = integrator_of(model, frame, "broyden", tolerance=1e-9)
    point = integrator.system.at(u)
    start = State(point, integrator.system.draw_momentum(jr.key(1), point))

    def body(state, _):
        step = integrator.step(state, 0.2)
        failed = step.status != Status.OK
        # A failed step turns back, as a rejected trajectory would.
        flipped = state._replace(momentum=-state.momentum)
        return jax.tree.map(lambda a, b: jnp.where(failed, a, b), flipped, step.state), failed

    end, failed = jax.jit(lambda state: jax.lax.scan(body, state, None, 10_000))(start)
    assert failed.mean() < 0.05
    assert abs(integrator.system.energy(end) - integrator.system.energy(start)) < 5
    jacobian = jax.jacfwd(lambda u: model.lift(u).e)(end.point.u)
    v, along = end.momentum[: model.d], end.momentum[model.d :]
    allowed = 1e-9 * (1 + jnp.abs(jacobian).max())
    assert jnp.abs(jacobian @ v - along).max() < allowed  # J p = 0 for the constraint e - e(u)
    np.testing.assert_array_equal(end.point.e, model.lift(end.point.u).e)


@pytest.mark.parametrize(("frame", "name"), [("tall", "bend"), ("wide", "fold")])
def test_step_back_returns(frame, name):
    u, model = drawn(name, None)
    integrator = integrator_of(model, frame)
    point = integrator.system.at(u)
    state = State(point, integrator.system.draw_momentum(jr.key(1), point))
    there = integrator.step(state, 0.3)
    back = integrator.step(there.state, -0.3)
    assert there.status == back.status == Status.OK
    np.testing.assert_allclose(back.state.point.u, u, atol=1e-9)
    np.testing.assert_allclose(back.state.momentum, state.momentum, atol=1e-8)


def test_several_solutions_are_seen():
    """Some steps of the sine model lead to ends from which the way back leads elsewhere: they are flagged."""
    integrator = lambda model: integrator_of(model, "tall", tolerance=1e-9)

    def status(key):
        draw_key, momentum_key = jr.split(key)
        u, model = exact_draw(draw_key, "sine", 0.3)
        point = integrator(model).system.at(u)
        return integrator(model).step(State(point, point.frame.draw(momentum_key)), 0.8).status

    statuses = jax.jit(jax.vmap(status))(jr.split(jr.key(0), 2000))
    assert 0.05 < (statuses == Status.NON_REVERSIBLE).mean() < 0.5


class Linear:
    """y = A u + s eta."""

    A = np.array([[1.0, 0.5, -0.2], [0.3, -1.0, 0.7]])
    d, m, s, y = 3, 2, 0.05, np.array([0.4, -1.2])

    def prior_energy(self, u):
        return 0.5 * u @ u

    def noise_energy(self, u, e):
        return 0.5 * e @ e

    def lift(self, u):
        return Lift((self.y - self.A @ u) / self.s, self.m * jnp.log(self.s), jnp.array(1e-16))


@pytest.mark.parametrize("frame", DENSE)
def test_linear_flow_is_harmonic(frame):
    """Theorem 1: theta'' = -(theta - mu), whatever A and s: half a period reflects about the posterior mean."""
    model = Linear()
    integrator = integrator_of(model, frame)
    mean, _ = paper.linear_gaussian_posterior(model.A, model.s, model.y)
    u = jnp.array([0.3, -0.4, 1.0])
    point = integrator.system.at(u)
    state = State(point, integrator.system.draw_momentum(jr.key(2), point))
    half, statuses = trajectory(integrator, state, jnp.pi / 2000, 2000)
    full, _ = trajectory(integrator, state, jnp.pi / 2000, 4000)
    assert not statuses.any()
    np.testing.assert_allclose(half.point.u, 2 * mean - u, atol=1e-5)
    np.testing.assert_allclose(full.point.u, u, atol=1e-5)


@pytest.mark.parametrize("frame", DENSE)
def test_hamiltonian_is_the_riemannian_one(frame):
    """Theorem 2: with p = M v the lifted Hamiltonian is that of Riemannian HMC with the metric M = I + De^T De."""
    for seed in range(5):
        u, model = drawn("fold", None, seed)
        system = Lifted(model, FRAMES[frame])
        point = system.at(u)
        momentum = system.draw_momentum(jr.key(seed), point)
        jacobian = jax.jacfwd(lambda u, model=model: model.lift(u).e)(u)
        metric = jnp.eye(model.d) + jacobian.T @ jacobian
        conjugate = momentum[: model.d] + jacobian.T @ momentum[model.d :]
        lift = model.lift(u)
        posterior = model.prior_energy(u) + model.noise_energy(u, lift.e) + lift.log_scale
        kinetic = 0.5 * conjugate @ jnp.linalg.solve(metric, conjugate)
        riemannian = posterior + 0.5 * jnp.linalg.slogdet(metric)[1] + kinetic
        np.testing.assert_allclose(system.energy(State(point, momentum)), riemannian, rtol=1e-10)


def test_forward_model_that_gives_nan_is_counted():
    class Wall(Small):
        def lift(self, u):
            lift = super().lift(u)
            return lift._replace(e=jnp.where(u[0] > 0.2, jnp.nan, lift.e))

    model = Wall("bend", 0.5, jnp.zeros(FORWARD["bend"][2]))
    integrator = integrator_of(model, "tall", "broyden")
    point = integrator.system.at(jnp.array([0.15, 0.0]))
    momentum = point.frame.tangent(jnp.array([50.0, 0, 0, 0, 0, 0]))
    assert integrator.step(State(point, momentum), 0.3).status == Status.NON_FINITE


# The generalised leapfrog


def riemannian(geometry, solver="newton"):
    u, model = drawn("bend", None)
    return u, GeneralisedLeapfrog(Riemannian(model, GEOMETRIES[geometry]), ImplicitSolver(solver))


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_riemannian_force_is_the_gradient_of_the_energy(geometry):
    u, integrator = riemannian(geometry)
    momentum = jr.normal(jr.key(1), u.shape)
    state = lambda u: State(integrator.system.at(u), momentum)
    energy = lambda u: integrator.system.energy(state(u))
    difference = jax.vmap(lambda along: (energy(u + along) - energy(u - along)) / 2e-5)
    force, expected = jax.jit(lambda: (integrator.system.force(state(u)), difference(1e-5 * jnp.eye(u.size))))()
    np.testing.assert_allclose(force, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("geometry", "solver"),
    slow_but([("fisher", "newton"), ("lifted", "fixed-point")], product(GEOMETRIES, IMPLICIT_SOLVERS)),
)
def test_generalised_leapfrog(geometry, solver):
    """It comes back, keeps the volume, and its energy error falls as the square of the step."""
    u, integrator = riemannian(geometry, solver)
    system, form = integrator.system, np.kron([[0, 1], [-1, 0]], np.eye(u.size))

    @jax.jit
    def walk(z, step_size, num_steps):
        """From coordinates and momenta to those after some steps, the change of energy, and whether all went well."""
        start = State(system.at(z[: u.size]), z[u.size :])

        def body(_, carry):
            step = integrator.step(carry[0], step_size)
            return step.state, carry[1] & (step.status == Status.OK)

        end, is_fine = jax.lax.fori_loop(0, num_steps, body, (start, jnp.array(True)))
        return jnp.concatenate([end.point.u, end.momentum]), system.energy(end) - system.energy(start), is_fine

    z = jnp.concatenate([u, jr.normal(jr.key(1), u.shape)])
    there, _, is_fine = walk(z, 0.1, 1)
    back, _, is_fine_back = walk(there, -0.1, 1)
    assert is_fine and is_fine_back
    np.testing.assert_allclose(back, z, atol=1e-7)

    ends = lambda z: walk(z, 0.1, 1)[0]
    jacobian = np.stack([(ends(z + along) - ends(z - along)) / 2e-4 for along in 1e-4 * jnp.eye(z.size)], axis=1)
    np.testing.assert_allclose(jacobian.T @ form @ jacobian, form, atol=2e-4)

    sizes = np.array([0.04, 0.02, 0.01])
    errors = [abs(walk(z, size, round(0.4 / size))[1]) for size in sizes]
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert abs(slope - 2.0) < 0.1, slope


def test_implicit_solvers_say_when_they_fail():
    for name in IMPLICIT_SOLVERS:
        solved = ImplicitSolver(name).solve(jnp.cos, jnp.ones(2))
        assert solved.status == Status.OK
        np.testing.assert_allclose(solved.x, 0.7390851332, atol=1e-8)
    assert ImplicitSolver("fixed-point").solve(lambda x: 2 * x, jnp.ones(2)).status == Status.PROJECTION_FAILED
    assert ImplicitSolver("fixed-point").solve(lambda x: 1e300 * x, jnp.ones(2)).status == Status.PROJECTION_FAILED
    assert ImplicitSolver().solve(lambda x: x / 0.0, jnp.ones(2)).status == Status.PROJECTION_FAILED


# Langevin steps


@pytest.mark.parametrize("drift", DRIFTS)
def test_langevin_energy_is_the_hastings_ratio(drift):
    """The change of energy in a step is the ratio of target and proposal densities, written out."""
    u, model = drawn("bend", None)
    integrator, size = Langevin(Riemannian(model, fisher), drift), 0.4
    system, point = integrator.system, integrator.system.at(u)
    state = State(point, system.draw_momentum(jr.key(1), point))
    end = integrator.step(state, size).state

    def proposal_log_density(start, other):
        metric, slopes = fisher(model, start), jax.jacfwd(lambda u: fisher(model, u))(start)
        gradient = jax.grad(lambda u: posterior_energy(model, u)[0])(start)
        correction = jnp.einsum("ijk,jk->i", slopes, jnp.linalg.inv(metric))
        along = {"none": 0 * gradient, "gradient": gradient, "corrected": gradient + correction}[drift]
        mean = start - 0.5 * size**2 * jnp.linalg.solve(metric, along)
        precision = metric / size**2
        gap = other - mean
        return 0.5 * jnp.linalg.slogdet(precision)[1] - 0.5 * gap @ precision @ gap

    there, back = proposal_log_density(u, end.point.u), proposal_log_density(end.point.u, u)
    expected = posterior_energy(model, end.point.u)[0] - posterior_energy(model, u)[0] + there - back
    np.testing.assert_allclose(system.energy(end) - system.energy(state), expected, rtol=1e-9)
    returned = integrator.step(State(end.point, -end.momentum), size).state
    np.testing.assert_allclose(returned.point.u, u, atol=1e-10)
    np.testing.assert_allclose(-returned.momentum, state.momentum, atol=1e-9)
