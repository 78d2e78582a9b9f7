"""Sample precise posteriors of under-determined models, at a speed that noise does not set."""

from tightrope.environment import tell_xla

tell_xla()

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)

from importlib.metadata import version  # noqa: E402

from tightrope import zoo  # noqa: E402
from tightrope.cells import Cell  # noqa: E402
from tightrope.compilation import keep_programs  # noqa: E402
from tightrope.diagnose import diagnose_model  # noqa: E402
from tightrope.diagnostics import SamplingWarning, summary  # noqa: E402
from tightrope.importers import external, from_numpyro, from_petab, from_pymc  # noqa: E402
from tightrope.methods import (  # noqa: E402
    HMC,
    MALA,
    NUTS,
    RWM,
    Auto,
    LiftedHMC,
    LiftedNUTS,
    LocalMALA,
    LocalRWM,
    RiemannianHMC,
    RiemannianNUTS,
    XifaraMALA,
)
from tightrope.models import Model  # noqa: E402
from tightrope.report import report  # noqa: E402
from tightrope.results import predict, prior  # noqa: E402
from tightrope.sampling import extend, load, resume, sample, status  # noqa: E402
from tightrope.state_space import StateSpaceModel  # noqa: E402
from tightrope.store import StoreError  # noqa: E402
from tightrope.sweep import sweep  # noqa: E402
from tightrope.types import InputError, SamplingError  # noqa: E402

keep_programs()

__version__ = version("tightrope")
__all__ = [
    "HMC",
    "MALA",
    "NUTS",
    "RWM",
    "Auto",
    "Cell",
    "InputError",
    "LiftedHMC",
    "LiftedNUTS",
    "LocalMALA",
    "LocalRWM",
    "Model",
    "RiemannianHMC",
    "RiemannianNUTS",
    "SamplingError",
    "SamplingWarning",
    "StateSpaceModel",
    "StoreError",
    "XifaraMALA",
    "diagnose_model",
    "extend",
    "external",
    "from_numpyro",
    "from_petab",
    "from_pymc",
    "load",
    "predict",
    "prior",
    "report",
    "resume",
    "sample",
    "status",
    "summary",
    "sweep",
    "zoo",
]
