"""The right law: exact draws of the lifted posterior stay exact draws after any number of transitions.

Draw u from the prior and eta from the noise, and let y = F(u) + s eta: then (u, eta) is an exact draw of the
posterior given y. After some transitions, each with its own y, u and e must still be standard normal. The
distance of their empirical laws from it is bounded by the inequality of Dvoretzky, Kiefer and Wolfowitz, with a
false-alarm rate of 1e-6 for each of the marginals. Every mutant fails under the very seed and threshold
that the true kernel passes.
"""

import functools
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from cases import law_but
from jax import lax
from jax.scipy.special import ndtr
from small import DENSE, exact_draw

from tightrope import integrators
from tightrope.frames import FRAMES, Tall
from tightrope.geometry import GEOMETRIES
from tightrope.implicit import ImplicitSolver
from tightrope.integrators import DRIFTS, ConstrainedLeapfrog, GeneralisedLeapfrog, Langevin, Leapfrog
from tightrope.kinds import METRICS
from tightrope.projection import SOLVERS, Solver, project
from tightrope.streams import stream
from tightrope.systems import (
    Approximate,
    Differences,
    Euclidean,
    Lifted,
    Metric,
    Rescaled,
    Riemannian,
    Walk,
    cheap_force,
)
from tightrope.transitions import HMC, NUTS, run
from tightrope.types import Status, select

MUCH_COMPUTED = True

REPLICATES = 50_000
FEWER = 20_000  # of the kernels that solve an equation by derivatives of derivatives
SEED = 20230


def threshold(replicates):
    """The distance from its law that a sample exceeds once in a million."""
    return np.sqrt(np.log(2 / 1e-6) / (2 * replicates))


assert 0.0120 < threshold(REPLICATES) < 0.0121


class Outcome(NamedTuple):
    """What some transitions did to exact draws."""

    distance: np.ndarray  # of each marginal of (u, e) from the standard normal law
    moved: float  # mean distance travelled in (u, e)
    failure_rate: float  # of steps
    non_reversible_rate: float
    threshold: float  # of the distance

    @property
    def is_exact(self) -> bool:
        return bool(self.distance.max() < self.threshold)


def distance_from_normal(x):
    """Largest distance between the empirical law of a sample and the standard normal one."""
    law = np.asarray(ndtr(jnp.sort(x)))
    steps = np.arange(len(x) + 1) / len(x)
    return max(np.max(steps[1:] - law), np.max(law - steps[:-1]))


def outcome_of(build, transition, name, sigma, step_size, num_transitions, replicates=REPLICATES, longest=1.0):
    """Run the kernel on exact draws; `build` makes an integrator from a model."""
    return outcomes_of(build, transition, name, [sigma], step_size, num_transitions, replicates, longest)[0]


def outcomes_of(build, transition, name, sigmas, step_size, num_transitions, replicates=REPLICATES, longest=1.0):
    """What the kernel does at several noise scales; None is one to infer. Known ones share a compiled program.

    Coordinates are counted in lengths, from one to the longest; where that is not one, `build` gets a Rescaled model.
    """

    @functools.partial(jax.jit, static_argnames="is_inferred")
    def run_all(sigma, is_inferred):
        def replicate(key):
            draw_key, chain_key = jr.split(key)
            u, model = exact_draw(draw_key, name, None if is_inferred else sigma)
            lengths = jnp.linspace(1.0, longest, model.d)
            integrator = build(model if longest == 1.0 else Rescaled(model, lengths))

            def body(point, key):
                return run(transition, integrator, key, point, step_size)

            start = integrator.system.at(u / lengths)
            point, info = lax.scan(body, start, jr.split(stream(chain_key), num_transitions))
            failed = info.projection_failed + info.non_reversible + info.non_finite
            end = lengths * point.u
            moved = jnp.linalg.norm(jnp.concatenate([end - u, point.e - start.e]))
            return end, point.e, moved, failed.sum(), info.non_reversible.sum(), info.n_steps.sum()

        # Small batches: the replicates of one wait for those of its steps that are the hardest to solve.
        return lax.map(replicate, jr.split(jr.key(SEED), replicates), batch_size=100)

    def outcome(sigma):
        u, e, moved, failed, non_reversible, steps = run_all(1.0 if sigma is None else sigma, sigma is None)
        marginals = np.concatenate([u, e], axis=1).T
        distances = np.array([distance_from_normal(marginal) for marginal in marginals])
        rate = lambda count: float(count.sum() / steps.sum())
        return Outcome(distances, float(moved.mean()), rate(failed), rate(non_reversible), threshold(replicates))

    return [outcome(sigma) for sigma in sigmas]


def true_kernel(frame, solver, force="exact"):
    """The product, as shipped."""

    def build(model):
        forces = {
            "exact": lambda model: None,
            "differences": lambda model: Differences(),
            "cheap": cheap_force,
            "crooked": crooked_force,
        }
        system = Lifted(model, FRAMES[frame], forces[force](model))
        return ConstrainedLeapfrog(system, Solver(solver))

    return build


def crooked_force(model):
    """Any function of position will do, however bad."""
    return Approximate(jnp.array(0.3), 0.2 * jnp.ones(model.d), 0.1 * jnp.eye(model.d))


MODEL_OF = {"tall": "bend", "wide": "fold", "markov": "chain"}
TRANSITIONS = {"static": HMC(3, jitter=0.1), "nuts": NUTS(max_depth=3)}


SIGMAS = [1.0, 0.1, 1e-3, None]


# The chain of scans of the markov frame takes its time to compile, so there each solver has one kind of trajectory.
KERNELS = [
    *((solver, transition, frame) for solver in SOLVERS for transition in TRANSITIONS for frame in DENSE),
    ("newton", "static", "markov"),
    ("symmetric", "static", "markov"),
    ("broyden", "nuts", "markov"),
]
QUICK = [("broyden", "nuts", "tall")]


@pytest.mark.parametrize(("solver", "transition", "frame"), law_but(QUICK, KERNELS))
def test_exact_draws_stay_exact(solver, transition, frame):
    outcomes = outcomes_of(true_kernel(frame, solver), TRANSITIONS[transition], MODEL_OF[frame], SIGMAS, 0.5, 2)
    for sigma, outcome in zip(SIGMAS, outcomes, strict=True):
        assert outcome.is_exact, (sigma, outcome)
        assert outcome.moved > 0.3, (sigma, outcome)
        assert outcome.failure_rate < 0.5, (sigma, outcome)


@pytest.mark.parametrize(
    ("frame", "force"), law_but([], [*product(MODEL_OF, ["cheap", "crooked"]), ("tall", "differences")])
)
def test_any_force_of_position_is_right(frame, force):
    outcome = outcome_of(true_kernel(frame, "broyden", force), NUTS(3), MODEL_OF[frame], None, 0.5, 2)
    assert outcome.is_exact, outcome
    assert outcome.moved > 0.3


@pytest.mark.parametrize(("frame", "longest"), law_but([("tall", 0.2)], product(DENSE, [0.2, 3.0])))
def test_lengths_of_coordinates_change_no_law(frame, longest):
    outcome = outcome_of(true_kernel(frame, "broyden"), NUTS(3), MODEL_OF[frame], None, 0.5, 2, longest=longest)
    assert outcome.is_exact, outcome
    assert outcome.moved > 0.3


def some_metric(model, kind):
    """A metric that fits nothing in particular."""
    variances = jnp.linspace(0.5, 1.5, model.d)
    covariances = {"identity": jnp.ones(model.d), "diagonal": variances, "dense": jnp.diag(variances) + 0.2}
    return Metric.of(covariances[kind])


def flat_kernel(metric, system=Euclidean):
    """HMC without a manifold."""
    return lambda model: Leapfrog(system(model, some_metric(model, metric)))


@pytest.mark.parametrize(("metric", "transition"), law_but([("diagonal", "static")], product(METRICS, TRANSITIONS)))
def test_methods_without_a_manifold_are_right(metric, transition):
    outcome = outcome_of(flat_kernel(metric), TRANSITIONS[transition], "bend", None, 0.3, 2)
    assert outcome.is_exact, outcome
    assert outcome.moved > 0.3


def riemannian_kernel(geometry, solver="newton", system=Riemannian, implicit=ImplicitSolver):
    """HMC with a metric of position."""
    return lambda model: GeneralisedLeapfrog(system(model, GEOMETRIES[geometry]), implicit(solver, max_iterations=12))


@pytest.mark.parametrize(
    ("geometry", "solver", "transition"),
    law_but(
        [],
        [
            ("fisher", "newton", "nuts"),
            ("fisher", "fixed-point", "static"),
            ("lifted", "newton", "static"),
            ("softabs", "newton", "static"),
        ],
    ),
)
def test_riemannian_methods_are_right(geometry, solver, transition):
    kernel = riemannian_kernel(geometry, solver)
    outcome = outcome_of(kernel, TRANSITIONS[transition], "bend", None, 0.3, 2, FEWER)
    assert outcome.is_exact, outcome
    assert outcome.moved > 0.3
    assert outcome.failure_rate < 0.1


def walking_kernel(drift, is_local, integrator=Langevin):
    """Normal proposals with a metric of position, or with the same one everywhere."""

    def build(model):
        everywhere = Euclidean(model, some_metric(model, "dense"))
        return integrator(Riemannian(model, GEOMETRIES["fisher"]) if is_local else everywhere, drift)

    return build


@pytest.mark.parametrize(
    ("drift", "is_local"),
    law_but([("gradient", False)], [("none", False), ("gradient", False), *((drift, True) for drift in DRIFTS)]),
)
def test_methods_of_one_step_are_right(drift, is_local):
    outcome = outcome_of(walking_kernel(drift, is_local), HMC(1), "bend", None, 0.7, 5)
    assert outcome.is_exact, outcome
    assert outcome.moved > 0.3


# Mutants. Each is the true kernel with one thing wrong, and the place where that shows.


class NoLogDeterminant(Lifted):
    """The potential without the volume element."""

    def at(self, u):
        point = super().at(u)
        return point._replace(potential=point.potential - point.log_volume)


class PriorOfLengths(Lifted):
    """The prior of coordinates as they are counted."""

    def at(self, u):
        point, (model, lengths) = super().at(u), self.model
        return point._replace(potential=point.potential + model.prior_energy(u) - model.prior_energy(lengths * u))


class UnprojectedMomentum(Lifted):
    """Momenta that leave the tangent space."""

    def draw_momentum(self, key, point):
        return jr.normal(key, (self.model.d + self.model.m,))


class MomentumForce(ConstrainedLeapfrog):
    """A force that looks at the momentum."""

    def step(self, state, step_size):
        point, momentum = state
        factor = 1 + 0.9 * jnp.tanh(3 * momentum[0])
        return super().step(state._replace(point=point._replace(gradient=factor * point.gradient)), step_size)


class NoReverseCheck(ConstrainedLeapfrog):
    """Any end that a projection finds will do."""

    def step(self, state, step_size):
        original = integrators.has_returned
        integrators.has_returned = lambda *args: jnp.array(True)
        try:
            return super().step(state, step_size)
        finally:
            integrators.has_returned = original


class WarmStart(ConstrainedLeapfrog):
    """The reverse solve starts from the answer, so it always returns."""

    def step(self, state, step_size):
        calls = []

        def warm_project(solver, model, point, move):
            calls.append(point)
            if len(calls) == 1:
                return project(solver, model, point, move)
            known = jnp.linalg.solve(point.frame.basis[:, : model.d].T, calls[0].u - point.u)
            frame = WarmFrame(point.frame.basis, point.frame.log_volume, known)
            return project(solver, model, point._replace(frame=frame), move)

        integrators.project = warm_project
        try:
            return super().step(state, step_size)
        finally:
            integrators.project = project


class HalfForWhole(ConstrainedLeapfrog):
    """Half a move will do where the whole has no solution."""

    def step(self, state, step_size):
        def half_project(solver, model, point, move):
            whole, half = (project(solver._replace(max_halvings=0), model, point, share * move) for share in (1, 0.5))
            return select(whole.status == Status.OK, whole, half)

        integrators.project = half_project
        try:
            return super().step(state, step_size)
        finally:
            integrators.project = project


class WarmFrame(NamedTuple):
    """A tall frame whose equation starts elsewhere."""

    basis: jax.Array
    log_volume: jax.Array
    known: jax.Array

    def equation(self, model, u, e, move):
        return WarmEquation(Tall(self.basis, self.log_volume).equation(model, u, e, move), self.known)


class WarmEquation(NamedTuple):
    """An equation with another start."""

    equation: object
    start: jax.Array

    def at(self, s):
        return self.equation.at(s)


class MomentaOfTheInverse(Euclidean):
    """Momenta with the covariance of positions."""

    def draw_momentum(self, key, point):
        return jnp.linalg.cholesky(self.metric.covariance) @ jr.normal(key, (self.model.d,))


class NoMetricGradient(Riemannian):
    """A metric taken for constant."""

    def at(self, u):
        point = super().at(u)
        frame = point.frame._replace(derivative=jnp.zeros_like(point.frame.derivative))
        return point._replace(frame=frame, gradient=point.gradient - frame.log_volume_gradient)


class NoReturn(ImplicitSolver):
    """Any end that the implicit equations lead to will do."""

    def has_returned(self, x, start):
        return jnp.array(True)


class Biased(Langevin):
    """Proposals judged otherwise than by their densities."""

    system = property(lambda self: self.walk(self.base))


class Symmetric(Walk):
    """As if the way back were as likely as the way there."""

    def energy(self, state):
        return -state.point.log_density


class NoDeterminant(Walk):
    """Without the determinants of the metric."""

    def energy(self, state):
        return self.base.energy(state) - state.point.log_volume


class Lenient(Walk):
    """Half of the energy is forgiven."""

    def energy(self, state):
        return 0.5 * self.base.energy(state)


class SymmetricLangevin(Biased):
    walk = Symmetric


class NoDeterminantLangevin(Biased):
    walk = NoDeterminant


class LenientLangevin(Biased):
    walk = Lenient


class UnweightedTree(NUTS):
    """Leaves are chosen alike, whatever their energy."""

    def add_leaf(self, key, subtree, leaf, newest, previous):
        flat = leaf._replace(energy_error=jnp.zeros_like(leaf.energy_error))
        return super().add_leaf(key, subtree, flat, newest, previous)


class GreedyTree(NUTS):
    """The newer half of a tree is always preferred."""

    def merge(self, merge_key, direction_key, tree):
        heavy = tree._replace(subtree=tree.subtree._replace(log_weight=tree.subtree.log_weight + 100))
        return super().merge(merge_key, direction_key, heavy)


def mutant(system=Lifted, integrator=ConstrainedLeapfrog, **limits):
    """The builder of a kernel with a part exchanged."""
    return lambda model: integrator(system(model, FRAMES["tall"]), Solver("broyden", **limits))


BENT = dict(name="bend", sigma=None, step_size=0.5, num_transitions=2)
COARSE = dict(name="bend", sigma=None, step_size=1.1, num_transitions=4)  # energy errors that matter
SINE = dict(name="sine", sigma=0.3, step_size=0.8, num_transitions=10)  # at least 5 % of steps do not return
HALVED = dict(name="sine", sigma=1.0, step_size=0.8, num_transitions=20)  # five iterations are often too few
SMOOTH = dict(name="bend", sigma=None, step_size=0.3, num_transitions=4)
CURVED = dict(name="bend", sigma=None, step_size=0.3, num_transitions=2, replicates=FEWER)
WALK = dict(name="bend", sigma=None, step_size=0.7, num_transitions=5)

# A setting, the true transition and kernel, and those of mutants.
CASES = {
    "lifted, smooth": (
        BENT,
        (HMC(3), mutant()),
        {
            "no log-determinant": (HMC(3), mutant(system=NoLogDeterminant)),
            "force that looks at the momentum": (HMC(3), mutant(integrator=MomentumForce)),
        },
    ),
    "lifted, lengths": (
        dict(BENT, longest=0.5),
        (HMC(3), mutant()),
        {"prior of the lengths": (HMC(3), mutant(system=PriorOfLengths))},
    ),
    "lifted, coarse": (
        COARSE,
        (HMC(3), mutant()),
        {"unprojected initial momentum": (HMC(3), mutant(system=UnprojectedMomentum))},
    ),
    "lifted, several solutions": (
        SINE,
        (HMC(1), mutant()),
        {
            "no reverse check": (HMC(1), mutant(integrator=NoReverseCheck)),
            "warm-started solver": (HMC(1), mutant(integrator=WarmStart)),
        },
    ),
    "lifted, halves": (
        HALVED,
        (HMC(1), mutant(max_iterations=5)),
        {"half a move for a whole one": (HMC(1), mutant(integrator=HalfForWhole, max_iterations=5))},
    ),
    "trees": (
        COARSE,
        (NUTS(3), mutant()),
        {
            "leaves without weights": (UnweightedTree(3), mutant()),
            "newer half always preferred": (GreedyTree(3), mutant()),
        },
    ),
    "flat": (
        SMOOTH,
        (HMC(3), flat_kernel("dense")),
        {"momenta of another law": (HMC(3), flat_kernel("dense", MomentaOfTheInverse))},
    ),
    "Riemannian": (
        CURVED,
        (HMC(3), riemannian_kernel("fisher")),
        {"metric gradient dropped": (HMC(3), riemannian_kernel("fisher", system=NoMetricGradient))},
    ),
    "Riemannian, several solutions": (
        dict(SINE, replicates=FEWER),
        (HMC(1), riemannian_kernel("fisher")),
        {"no reverse check": (HMC(1), riemannian_kernel("fisher", implicit=NoReturn))},
    ),
    "local proposals": (
        WALK,
        (HMC(1), walking_kernel("gradient", True)),
        {
            "asymmetry dropped": (HMC(1), walking_kernel("gradient", True, SymmetricLangevin)),
            "determinants dropped": (HMC(1), walking_kernel("gradient", True, NoDeterminantLangevin)),
        },
    ),
    "random walk": (
        WALK,
        (HMC(1), walking_kernel("none", False)),
        {"wrong acceptance": (HMC(1), walking_kernel("none", False, LenientLangevin))},
    ),
}


@pytest.mark.parametrize("case", law_but(["lifted, several solutions"], CASES))
def test_mutants_are_caught(case):
    setting, (transition, build), mutants = CASES[case]
    true = outcome_of(build, transition, **setting)
    assert true.is_exact, true
    assert true.moved > 0.05
    if "several solutions" in case:
        assert true.non_reversible_rate >= 0.05
    for name, (mutant_transition, build_mutant) in mutants.items():
        wrong = outcome_of(build_mutant, mutant_transition, **setting)
        print(f"\n{case}, {name}: {wrong.distance.max():.4f} against {true.distance.max():.4f}, {true.threshold:.4f}")
        assert not wrong.is_exact, (name, wrong)
