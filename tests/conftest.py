"""Shared settings."""

import tempfile
from pathlib import Path

import jax
import pytest

import tightrope  # noqa: F401, switches float64 on before any test makes an array

# Many tests sample the same small models: let the workers of one session share what they compile.
cache = Path(tempfile.gettempdir()) / "tightrope-test-compilations"
jax.config.update("jax_compilation_cache_dir", str(cache))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


# Programs that run for a moment only compile in half the time, and take three times as long for a step: for a test
# that asks for it, or for all of a module that says QUICK_COMPILATION = True.


def compile_quickly(wanted):
    jax.config.update("jax_disable_most_optimizations", wanted)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True, scope="module")
def as_the_module_says(request):
    yield from compile_quickly(getattr(request.module, "QUICK_COMPILATION", False))


@pytest.fixture
def quick_compilation():
    yield from compile_quickly(True)
