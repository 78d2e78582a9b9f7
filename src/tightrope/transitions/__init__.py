"""Markov transitions, one integrator step at a time.

A transition is a small machine: `start` it at a point, `advance` it and `settle` it where it pauses until it is done,
`finish` it. Chains in one batch then never wait for each other's trajectories: each advances by a step, whatever
transition it is in.
"""

from tightrope.transitions.base import Transition, run
from tightrope.transitions.hmc import HMC
from tightrope.transitions.nuts import NUTS

__all__ = ["HMC", "NUTS", "Transition", "run"]
