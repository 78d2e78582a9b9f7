"""Tables of cases for tests, of which `make test` runs a few and `make slow`, or `make laws`, the others."""

import pytest


def slow_but(quick, every, mark=pytest.mark.slow):
    """The cases of a table, all but the quick ones marked as slow."""
    arguments = lambda case: case if isinstance(case, tuple) else (case,)
    return [pytest.param(*arguments(case), marks=[] if case in quick else [mark]) for case in every]


def law_but(quick, every):
    """The same for kernels whose law is tested: so many that they have a command of their own."""
    return slow_but(quick, every, pytest.mark.laws)
