"""Shared settings."""

import tempfile
from pathlib import Path

import jax

import tightrope  # noqa: F401, switches float64 on before any test makes an array

# Many tests sample the same small models: let the workers of one session share what they compile.
cache = Path(tempfile.gettempdir()) / "tightrope-test-compilations"
jax.config.update("jax_compilation_cache_dir", str(cache))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
