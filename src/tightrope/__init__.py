"""Sample precise posteriors of under-determined models, at a speed that noise does not set."""

import jax

jax.config.update("jax_enable_x64", True)

from importlib.metadata import version  # noqa: E402

from tightrope import zoo  # noqa: E402
from tightrope.diagnostics import SamplingWarning, summary  # noqa: E402
from tightrope.methods import LiftedHMC, LiftedNUTS  # noqa: E402
from tightrope.models import Model  # noqa: E402
from tightrope.results import predict, prior  # noqa: E402
from tightrope.sampling import sample  # noqa: E402
from tightrope.state_space import StateSpaceModel  # noqa: E402
from tightrope.types import InputError  # noqa: E402

__version__ = version("tightrope")
__all__ = [
    "InputError",
    "LiftedHMC",
    "LiftedNUTS",
    "Model",
    "SamplingWarning",
    "StateSpaceModel",
    "predict",
    "prior",
    "sample",
    "summary",
    "zoo",
]
