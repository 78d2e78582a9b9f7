"""The methods by name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from tightrope.checks import one_of
from tightrope.kinds import Flat, FlatStep, Implicit, Lifting, LocalStep, Method, Static, Turning
from tightrope.types import InputError


@dataclass(frozen=True, kw_only=True)
class LiftedNUTS(Turning, Lifting):
    """Constrained HMC on the lifted manifold, with trajectories that end when they turn back."""

    name: ClassVar[str] = "lifted-nuts"


@dataclass(frozen=True, kw_only=True)
class Auto(Turning, Lifting):
    """lifted-nuts, or nuts with a dense metric where a short trial in warm-up finds that three times as fast."""

    name: ClassVar[str] = "auto"

    def lifted(self) -> LiftedNUTS:
        """The sampler to begin with."""
        return LiftedNUTS(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})


@dataclass(frozen=True, kw_only=True)
class LiftedHMC(Static, Lifting):
    """Constrained HMC on the lifted manifold, with a fixed number of steps: the paper's Algorithm 3."""

    name: ClassVar[str] = "lifted-hmc"


@dataclass(frozen=True, kw_only=True)
class NUTS(Turning, Flat):
    """HMC on the posterior of the coordinates, with trajectories that end when they turn back: what Stan does."""

    name: ClassVar[str] = "nuts"


@dataclass(frozen=True, kw_only=True)
class HMC(Static, Flat):
    """HMC on the posterior of the coordinates, with a fixed number of steps."""

    name: ClassVar[str] = "hmc"


@dataclass(frozen=True, kw_only=True)
class RiemannianNUTS(Turning, Implicit):
    """HMC with a metric that changes from place to place, with trajectories that end when they turn back."""

    name: ClassVar[str] = "riemannian-nuts"


@dataclass(frozen=True, kw_only=True)
class RiemannianHMC(Static, Implicit):
    """HMC with a metric that changes from place to place, with a fixed number of steps."""

    name: ClassVar[str] = "riemannian-hmc"


@dataclass(frozen=True, kw_only=True)
class RWM(FlatStep):
    """Random walk: normal proposals around the present point."""

    name: ClassVar[str] = "rwm"
    drift: ClassVar[str] = "none"
    target_accept: float = 0.234


@dataclass(frozen=True, kw_only=True)
class MALA(FlatStep):
    """Langevin: normal proposals around a point that is moved along the gradient."""

    name: ClassVar[str] = "mala"
    drift: ClassVar[str] = "gradient"
    target_accept: float = 0.574


@dataclass(frozen=True, kw_only=True)
class LocalRWM(LocalStep):
    """Random walk with proposals as wide as the metric at the present point says."""

    name: ClassVar[str] = "local-rwm"
    drift: ClassVar[str] = "none"
    target_accept: float = 0.234


@dataclass(frozen=True, kw_only=True)
class LocalMALA(LocalStep):
    """Langevin with the metric at the present point, its change left out: simplified manifold MALA."""

    name: ClassVar[str] = "local-mala"
    drift: ClassVar[str] = "gradient"
    target_accept: float = 0.574


@dataclass(frozen=True, kw_only=True)
class XifaraMALA(LocalStep):
    """Langevin with the metric at the present point and its change: Xifara's position-dependent MALA."""

    name: ClassVar[str] = "xifara-mala"
    drift: ClassVar[str] = "corrected"
    target_accept: float = 0.574


METHODS: dict[str, type[Method]] = {
    cls.name: cls
    for cls in (
        LiftedNUTS,
        Auto,
        LiftedHMC,
        NUTS,
        HMC,
        RiemannianNUTS,
        RiemannianHMC,
        RWM,
        MALA,
        LocalRWM,
        LocalMALA,
        XifaraMALA,
    )
}


def method_of(method: str | Method, **options: Any) -> Method:
    """The method of a name, or a method itself, with some of its options replaced."""
    if not isinstance(method, str):
        if not isinstance(method, Method):
            raise InputError(f"method must be a name or a method such as tr.LiftedNUTS(), not {type(method).__name__}.")
        return dataclasses.replace(method, **options)
    one_of("method", method, METHODS)
    kind = METHODS[method]
    unknown = sorted(set(options) - {field.name for field in dataclasses.fields(kind)})
    if unknown:
        raise InputError(f"method {method} has no option {unknown[0]}.")
    return kind(**options)
