"""Kinds of methods: the system, integrator, transition and warm-up that methods are made of, and their options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tightrope import transitions as trajectories
from tightrope.adaptation import fit_log_volume, shrunk_covariance, spreads, windows
from tightrope.checks import in_range, one_of
from tightrope.frames import FRAMES, choose_frame
from tightrope.geometry import GEOMETRIES
from tightrope.implicit import IMPLICIT_SOLVERS, ImplicitSolver
from tightrope.integrators import ConstrainedLeapfrog, GeneralisedLeapfrog, Integrator, Langevin, Leapfrog
from tightrope.projection import SOLVERS, Solver
from tightrope.systems import (
    Approximate,
    Differences,
    Euclidean,
    Lifted,
    Metric,
    Rescaled,
    Riemannian,
    cheap_force,
    surrogate_force,
)
from tightrope.transitions import Transition
from tightrope.types import Array, Info, InputError, ResidualMap

# Unknowns. A Jacobian of few rows costs about as much as the model: on poisson (10 rows) newton takes half the time of
# broyden, and on the toy (1) from as much to two thirds.
NEWTON = range(1, 17)
METRICS = ("identity", "diagonal", "dense")
LIFTED_METRICS = ("auto", "identity", "diagonal")
FORCES = ("auto", "exact", "cheap", "surrogate", "differences")


def check_solver(method: Lifting | Implicit) -> None:
    """Refuse to solve equations without end or to no end."""
    in_range("tolerance", method.tolerance, 0.0, 1.0)
    in_range("reverse_tolerance", method.reverse_tolerance, 0.0, 1.0)
    if method.max_iterations < 1:
        raise InputError(f"max_iterations={method.max_iterations} must be at least 1.")


class LiftedTuning(NamedTuple):
    """What the lifted methods learn."""

    lengths: Array | None  # of the coordinates u, in which positions are counted; None is one each
    force: Approximate | None  # what stands in for the log volume; None is nothing


class Window(NamedTuple):
    """A part of warm-up to tune by: the draws of chains, from which any goes on, one after the other."""

    u: np.ndarray
    log_volume: np.ndarray
    step_size: float  # at its end, of the chain with the shortest
    is_last: bool


class Retuned(NamedTuple):
    """What a method makes of a part of warm-up."""

    tuning: Any
    message: str = ""  # to the user, where there is something to say
    is_new_scale: bool = False  # so that step sizes of before mean nothing


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A way to sample, and the options that all of them share.

    Its tuning, a pytree, is what warm-up learns from the draws of all chains, besides step sizes.
    """

    name: ClassVar[str]
    target_accept: float = 0.8
    step_size: float | None = None  # a given step size is not adapted
    shared_step_size: bool = False  # after warm-up, all chains take the geometric mean of their step sizes

    def __post_init__(self) -> None:
        in_range("target_accept", self.target_accept, 0.0, 1.0)
        if self.step_size is not None:
            in_range("step_size", self.step_size, 0.0, float("inf"))

    def aim(self, info: Info) -> tuple[Array, float]:
        """What a transition says of the step size, as an acceptance, and what that should be."""
        return info.step_acceptance, self.target_accept

    def lengths(self, tuning: Any) -> Array | float:
        """The lengths in which the integrator counts positions."""
        return 1.0

    def suits_one_piece(self, model: ResidualMap) -> bool:
        """Whether steps are faster where XLA makes one piece of machine code of what it can."""
        return True

    def saved_like(self, tuning: Any, num_arrays: int) -> Any:
        """What the first tuning may have become, if a checkpoint has so many arrays of it."""
        return tuning

    @property
    @abstractmethod
    def transition(self) -> Transition:
        """What a chain does with the steps of the integrator."""

    @abstractmethod
    def integrator(self, model: ResidualMap, tuning: Any) -> Integrator:
        """Discrete time, with this tuning."""

    @abstractmethod
    def initial_tuning(self, model: ResidualMap) -> Any:
        """The tuning to begin warm-up with."""

    @abstractmethod
    def windows(self, model: ResidualMap, num_warmup: int) -> list[tuple[int, int]]:
        """The iterations whose draws are to tune by, window after window."""

    @abstractmethod
    def retuned(self, tuning: Any, window: Window) -> Retuned:
        """The tuning after a window."""


# Chains stick where projections fail, more than where energies are too high. So the step size, at a target of 0.8, lets
# at most 8 % of the trajectories be cut short, not 20 %; benchmarks/README.md has what that costs and brings.
CUT_SHORT = -1.5

# A trajectory that has come further than this many steps has lost the less, the further: else shorter steps, and with
# them longer trajectories in which one of the many may fail, would lead to shorter steps still. With 32, a run of
# fitzhugh-nagumo at noise 1, whose trees have up to 63 steps, had 890 effective draws in place of 2830.
FAR = 64

# A stand-in that misses the log volume by this much keeps acceptance below 0.48, however short the steps. Exact steps
# take two to four times as long: on sodium, missed by 0.5, they give 23 effective draws per second in place of 79.
MAX_SURROGATE_ERROR = 1.0

# Steps below this, where lengths of about one should allow far longer ones: the posterior is much narrower than the
# prior and bends on its own scale. Its spread is then the better unit, and elsewhere mostly not: benchmarks/README.md.
SHORT_STEP = 0.05
MIN_DRAWS = 20  # of all chains, to tell lengths by


@dataclass(frozen=True, kw_only=True)
class Lifting(Method):
    """Options that the lifted methods share."""

    solver: str = "auto"  # newton, symmetric, broyden, or auto: newton where few unknowns make it cheap, else broyden
    force: str = "auto"  # exact, differences, cheap, surrogate, or auto: see force_name
    frame: str = "auto"  # tall, wide, or markov for a state space model
    metric: str = "auto"  # identity, diagonal, or auto: diagonal where d < m and steps would be short
    tolerance: float = 1e-9
    max_iterations: int = 32
    reverse_tolerance: float = 2e-8
    max_halvings: int = 2  # of a move for which no solution is found

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("solver", self.solver, ("auto", *SOLVERS))
        one_of("force", self.force, FORCES)
        one_of("frame", self.frame, ("auto", *FRAMES))
        one_of("metric", self.metric, LIFTED_METRICS)
        check_solver(self)
        if self.max_halvings < 0:
            raise InputError(f"max_halvings={self.max_halvings} must be at least 0.")

    def aim(self, info: Info) -> tuple[Array, float]:
        """Acceptance, or CUT_SHORT where a projection ended the trajectory early, on the scale from there to 1."""
        was_cut_short = info.projection_failed + info.non_reversible > 0
        on_scale = lambda acceptance: (acceptance - CUT_SHORT) / (1 - CUT_SHORT)
        target = on_scale(self.target_accept)
        cut_short = target * (1 - jnp.minimum(1.0, FAR / info.n_steps))
        return jnp.where(was_cut_short, cut_short, on_scale(info.step_acceptance)), target

    def frame_name(self, model: ResidualMap) -> str:
        if self.frame == "markov" and not getattr(model, "has_links", False):
            raise InputError('frame="markov" is for a tr.StateSpaceModel: use "auto".')
        return choose_frame(model) if self.frame == "auto" else self.frame

    def suits_one_piece(self, model: ResidualMap) -> bool:
        return self.frame_name(model) != "markov"  # its filters take half as long again

    def solver_name(self, model: ResidualMap) -> str:
        if self.solver != "auto":
            return self.solver
        return "newton" if self.frame_name(model) == "wide" and model.m in NEWTON else "broyden"

    def force_name(self, model: ResidualMap) -> str:
        """By default a surrogate where d < m and else the exact one, if the model's second derivatives allow."""
        if self.force in ("auto", "exact") and not getattr(model, "has_second_derivatives", True):
            if self.force == "exact":
                raise InputError(
                    'force="exact" needs second derivatives, which this model from outside JAX does not have: use '
                    '"cheap", "surrogate" or "differences", or give tr.external second=.'
                )
            return "cheap"
        if self.force != "auto":
            return self.force
        return "surrogate" if self.frame_name(model) == "tall" else self.true_force_name(model)

    def true_force_name(self, model: ResidualMap) -> str:
        """How the gradient of the log volume itself is found, where nothing stands in for it."""
        prefers_differences = self.force == "auto" and getattr(model, "prefers_first_derivatives", False)
        return "differences" if prefers_differences or self.force == "differences" else "exact"

    def may_learn_lengths(self, model: ResidualMap) -> bool:
        """Whether the lengths of coordinates are not one for good.

        Where many are tied together each varies far more than it may by itself, so with d >= m they are by default.
        """
        if self.metric == "diagonal" and self.frame_name(model) == "markov":
            raise InputError('metric="diagonal" is not for frame="markov": use "auto".')
        is_open = self.metric == "auto" and self.step_size is None and self.frame_name(model) == "tall"
        return self.metric == "diagonal" or is_open

    def initial_tuning(self, model: ResidualMap) -> LiftedTuning:
        name = self.force_name(model)
        forces = {"cheap": cheap_force, "surrogate": surrogate_force}
        lengths = jnp.ones(model.d) if self.may_learn_lengths(model) else None
        return LiftedTuning(lengths, forces[name](model) if name in forces else None)

    def lengths(self, tuning: LiftedTuning) -> Array | float:
        return 1.0 if tuning.lengths is None else tuning.lengths

    def saved_like(self, tuning: LiftedTuning, num_arrays: int) -> LiftedTuning:
        for known in (tuning, tuning._replace(force=None)):
            if len(jax.tree.leaves(known)) == num_arrays:
                return known
        raise InputError("this run was begun by an older Tightrope, which knew no lengths: begin it anew.")

    def windows(self, model: ResidualMap, num_warmup: int) -> list[tuple[int, int]]:
        quarter = num_warmup // 4
        found = [(quarter // 2, quarter), (quarter, 2 * quarter)]
        if self.force_name(model) == "surrogate":
            return found
        return found[:1] if self.may_learn_lengths(model) else []

    def retuned(self, tuning: LiftedTuning, window: Window) -> Retuned:
        """Lengths, once, or a stand-in for the log volume by a fit to the draws; the truth, where none fits.

        Never both: with other lengths the log volume is another.
        """
        lengths, force = tuning
        awaits_fit = force is not None and force.linear is not None
        is_time = lengths is not None and not (awaits_fit and window.is_last)
        is_needed = self.metric == "diagonal" or window.step_size < SHORT_STEP
        if is_time and is_needed and len(window.u) >= MIN_DRAWS:
            return Retuned(tuning._replace(lengths=jnp.asarray(spreads(window.u))), is_new_scale=True)
        u = window.u / np.asarray(self.lengths(tuning))
        fitted = fit_log_volume(u, window.log_volume) if awaits_fit else None
        if fitted is None:
            return Retuned(tuning)
        if self.force == "auto" and window.is_last and fitted.error > MAX_SURROGATE_ERROR:
            message = "The log volume is not quadratic: compiling again, for its true gradient ..."
            return Retuned(tuning._replace(force=None), message)
        return Retuned(tuning if fitted.force is None else tuning._replace(force=fitted.force))

    def integrator(self, model: ResidualMap, tuning: LiftedTuning) -> ConstrainedLeapfrog:
        limits = (self.tolerance, self.max_iterations, self.reverse_tolerance, self.max_halvings)
        solver = Solver(self.solver_name(model), *limits)
        uses_differences = tuning.force is None and self.true_force_name(model) == "differences"
        force = Differences() if uses_differences else tuning.force
        seen = model if tuning.lengths is None else Rescaled(model, tuning.lengths)
        return ConstrainedLeapfrog(Lifted(seen, FRAMES[self.frame_name(model)], force), solver)


@dataclass(frozen=True, kw_only=True)
class Flat(Method):
    """Options of the methods that move freely in u."""

    metric: str = "diagonal"  # identity, diagonal or dense: what of the posterior's covariance warm-up learns

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("metric", self.metric, METRICS)

    def initial_tuning(self, model: ResidualMap) -> Metric:
        return Metric.of(jnp.eye(model.d) if self.metric == "dense" else jnp.ones(model.d))

    def windows(self, model: ResidualMap, num_warmup: int) -> list[tuple[int, int]]:
        return [] if self.metric == "identity" else windows(num_warmup)

    def retuned(self, tuning: Metric, window: Window) -> Retuned:
        return Retuned(Metric.of(jnp.asarray(shrunk_covariance(window.u, self.metric == "dense"))))

    def integrator(self, model: ResidualMap, tuning: Metric) -> Integrator:
        return Leapfrog(Euclidean(model, tuning))


@dataclass(frozen=True, kw_only=True)
class Curved(Method):
    """Options of the methods that measure lengths in u by where they are."""

    metric: str = "fisher"  # fisher, lifted or softabs

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("metric", self.metric, GEOMETRIES)

    def initial_tuning(self, model: ResidualMap) -> None:
        if self.metric == "fisher" and not getattr(model, "has_information", False):
            raise InputError('metric="fisher" is for additive normal noise: use "lifted" or "softabs".')

    def windows(self, model: ResidualMap, num_warmup: int) -> list[tuple[int, int]]:
        return []

    def retuned(self, tuning: None, window: Window) -> Retuned:
        return Retuned(tuning)

    def system(self, model: ResidualMap) -> Riemannian:
        return Riemannian(model, GEOMETRIES[self.metric])


@dataclass(frozen=True, kw_only=True)
class Implicit(Curved):
    """Options of the Riemannian methods, whose steps are solutions of equations."""

    solver: str = "newton"  # newton or fixed-point
    tolerance: float = 1e-9
    max_iterations: int = 100
    reverse_tolerance: float = 2e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("solver", self.solver, IMPLICIT_SOLVERS)
        check_solver(self)

    def integrator(self, model: ResidualMap, tuning: None) -> GeneralisedLeapfrog:
        solver = ImplicitSolver(self.solver, self.tolerance, self.max_iterations, self.reverse_tolerance)
        return GeneralisedLeapfrog(self.system(model), solver)


@dataclass(frozen=True, kw_only=True)
class Turning(Method):
    """Trajectories that end when they turn back."""

    max_depth: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.max_depth <= 20:
            raise InputError(f"max_depth={self.max_depth} must lie between 1 and 20.")

    @property
    def transition(self) -> Transition:
        return trajectories.NUTS(self.max_depth)


@dataclass(frozen=True, kw_only=True)
class Static(Method):
    """Trajectories of a fixed number of steps."""

    num_steps: int = 4
    jitter: float = 0.2  # relative change of the step size between trajectories

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_steps < 1:
            raise InputError(f"num_steps={self.num_steps} must be at least 1.")
        if not 0 <= self.jitter < 1:
            raise InputError(f"jitter={self.jitter} must lie between 0 and 1.")

    @property
    def transition(self) -> Transition:
        return trajectories.HMC(self.num_steps, self.jitter)


@dataclass(frozen=True, kw_only=True)
class Single(Method):
    """One step at a time."""

    drift: ClassVar[str]

    @property
    def transition(self) -> Transition:
        return trajectories.HMC(1, can_diverge=False)


@dataclass(frozen=True, kw_only=True)
class FlatStep(Single, Flat):
    """A normal proposal with the same metric everywhere."""

    def integrator(self, model: ResidualMap, tuning: Metric) -> Langevin:
        return Langevin(Euclidean(model, tuning), self.drift)


@dataclass(frozen=True, kw_only=True)
class LocalStep(Single, Curved):
    """A normal proposal with the metric at the present point."""

    def integrator(self, model: ResidualMap, tuning: None) -> Langevin:
        return Langevin(self.system(model), self.drift)
