"""The methods by name: which system, integrator, transition and warm-up each is made of."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar

from tightrope.frames import FRAMES, choose_frame
from tightrope.integrators import ConstrainedLeapfrog
from tightrope.projection import SOLVERS, Solver
from tightrope.systems import Approximate, Lifted, cheap_force, surrogate_force
from tightrope.transitions import HMC, NUTS, Transition
from tightrope.types import InputError, ResidualMap

MAX_NEWTON = 16  # unknowns
FORCES = ("auto", "exact", "cheap", "surrogate")


def one_of(argument: str, value: Any, names: Any) -> None:
    """Refuse an unknown name, with the nearest known one."""
    if value not in names:
        near = get_close_matches(str(value), names, n=1, cutoff=0.3)
        hint = f'did you mean "{near[0]}"?' if near else f"use one of {', '.join(names)}."
        raise InputError(f'{argument}="{value}" is unknown: {hint}')


def in_range(argument: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside an open interval."""
    if not low < value < high:
        raise InputError(f"{argument}={value} must lie between {low:g} and {high:g}.")


@dataclass(frozen=True, kw_only=True)
class Lifting:
    """Options that the lifted methods share."""

    solver: str = "auto"  # newton, symmetric, broyden, or auto: newton where few unknowns make it cheap, else broyden
    force: str = "auto"  # exact, cheap, surrogate, or auto: surrogate where d < m, else exact
    frame: str = "auto"  # tall, wide, or markov for a state space model
    target_accept: float = 0.8
    step_size: float | None = None  # a given step size is not adapted
    shared_step_size: bool = False  # after warm-up, all chains take the geometric mean of their step sizes
    tolerance: float = 1e-9
    max_iterations: int = 32
    reverse_tolerance: float = 2e-8

    def __post_init__(self) -> None:
        one_of("solver", self.solver, ("auto", *SOLVERS))
        one_of("force", self.force, FORCES)
        one_of("frame", self.frame, ("auto", *FRAMES))
        in_range("target_accept", self.target_accept, 0.0, 1.0)
        in_range("tolerance", self.tolerance, 0.0, 1.0)
        in_range("reverse_tolerance", self.reverse_tolerance, 0.0, 1.0)
        if self.step_size is not None:
            in_range("step_size", self.step_size, 0.0, float("inf"))
        if self.max_iterations < 1:
            raise InputError(f"max_iterations={self.max_iterations} must be at least 1.")

    def frame_name(self, model: ResidualMap) -> str:
        if self.frame == "markov" and not getattr(model, "has_links", False):
            raise InputError('frame="markov" is for a tr.StateSpaceModel: use "auto".')
        return choose_frame(model) if self.frame == "auto" else self.frame

    def solver_name(self, model: ResidualMap) -> str:
        if self.solver != "auto":
            return self.solver
        # A Jacobian of few rows costs about as much as the model: on poisson (10 data) newton takes half the time.
        return "newton" if self.frame_name(model) == "wide" and model.m <= MAX_NEWTON else "broyden"

    def force_name(self, model: ResidualMap) -> str:
        if self.force != "auto":
            return self.force
        return "surrogate" if self.frame_name(model) == "tall" else "exact"

    def initial_force(self, model: ResidualMap) -> Approximate | None:
        """The force to begin warm-up with; None is the exact one."""
        name = self.force_name(model)
        if name == "exact":
            return None
        return cheap_force(model) if name == "cheap" else surrogate_force(model)

    def integrator(self, model: ResidualMap, force: Approximate | None) -> ConstrainedLeapfrog:
        solver = Solver(self.solver_name(model), self.tolerance, self.max_iterations, self.reverse_tolerance)
        return ConstrainedLeapfrog(Lifted(model, FRAMES[self.frame_name(model)], force), solver)


@dataclass(frozen=True, kw_only=True)
class LiftedNUTS(Lifting):
    """Constrained HMC on the lifted manifold, with trajectories that end when they turn back."""

    name: ClassVar[str] = "lifted-nuts"
    max_depth: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.max_depth <= 20:
            raise InputError(f"max_depth={self.max_depth} must lie between 1 and 20.")

    @property
    def transition(self) -> Transition:
        return NUTS(self.max_depth)


@dataclass(frozen=True, kw_only=True)
class LiftedHMC(Lifting):
    """Constrained HMC on the lifted manifold, with a fixed number of steps: the paper's Algorithm 3."""

    name: ClassVar[str] = "lifted-hmc"
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
        return HMC(self.num_steps, self.jitter)


Method = LiftedNUTS | LiftedHMC
METHODS: dict[str, type[LiftedNUTS] | type[LiftedHMC]] = {cls.name: cls for cls in (LiftedNUTS, LiftedHMC)}


def method_of(method: str | Method, **options: Any) -> Method:
    """The method of a name, or a method itself, with some of its options replaced."""
    if not isinstance(method, str):
        if not isinstance(method, LiftedNUTS | LiftedHMC):
            raise InputError(f"method must be a name or a method such as tr.LiftedNUTS(), not {type(method).__name__}.")
        return dataclasses.replace(method, **options)
    one_of("method", method, METHODS)
    kind = METHODS[method]
    unknown = sorted(set(options) - {field.name for field in dataclasses.fields(kind)})
    if unknown:
        raise InputError(f"method {method} has no option {unknown[0]}.")
    return kind(**options)
