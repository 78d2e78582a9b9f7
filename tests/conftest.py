"""Shared settings."""

import contextlib
import tempfile
import warnings
from pathlib import Path

import jax
import pytest

import tightrope  # noqa: F401, switches float64 on before any test makes an array

# Many tests sample the same small models: let the workers of one session share what they compile.
cache = Path(tempfile.gettempdir()) / "tightrope-test-compilations"
jax.config.update("jax_compilation_cache_dir", str(cache))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def pytest_configure(config):
    """The arviz that PyMC brings writes a file on its first import of a day, and workers that do so at once fail."""
    if not hasattr(config, "workerinput"):
        with contextlib.suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            import arviz  # noqa: F401


# Most programs run here for a moment only: they compile in half the time, and take three times as long for a step. Not
# so in a module that says MUCH_COMPUTED = True, or for a test that asks for it.


def compile_quickly(wanted):
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", wanted)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(autouse=True, scope="module")
def as_the_module_says(request):
    yield from compile_quickly(not getattr(request.module, "MUCH_COMPUTED", False))


@pytest.fixture
def much_computed():
    yield from compile_quickly(False)
