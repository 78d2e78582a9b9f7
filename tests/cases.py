"""Tables of cases for tests, of which `make test` runs a few and `make slow` the others."""

import pytest


def slow_but(quick, every):
    """The cases of a table, all but the quick ones marked as slow."""
    arguments = lambda case: case if isinstance(case, tuple) else (case,)
    return [pytest.param(*arguments(case), marks=[] if case in quick else [pytest.mark.slow]) for case in every]
