"""Shared settings."""

import tightrope  # noqa: F401, switches float64 on before any test makes an array
