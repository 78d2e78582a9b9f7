"""Giving up: only what cannot end in time."""

import pytest

from tightrope import outlook
from tightrope.outlook import Outlook


@pytest.fixture
def after(monkeypatch):
    """Whether there is no hope after so many seconds of eighty, with so many iterations."""
    clock = [0.0]
    monkeypatch.setattr(outlook.time, "perf_counter", lambda: clock[0])
    found = Outlook(80.0)

    def after(seconds, iteration, stop=100):
        clock[0] = seconds
        return found.is_hopeless(iteration, stop)

    return after


def test_a_pace_takes_time_to_tell(after):
    assert not after(0.0, 0) and not after(9.0, 0)
    assert after(10.5, 2)


def test_the_pace_is_that_of_late(after):
    for seconds, iteration in [(0.0, 0), (11.0, 8), (30.0, 50), (40.0, 58)]:
        assert not after(seconds, iteration)
    assert after(55.0, 60)


def test_a_stage_is_not_judged_by_the_one_before(after):
    assert not after(0.0, 0, 10) and not after(60.0, 9, 10)
    assert not after(70.0, 10)  # something was learnt, and compiled
    assert not after(79.0, 60)


def test_without_time_there_is_nothing_to_tell(monkeypatch):
    monkeypatch.setattr(outlook.time, "perf_counter", lambda: 5.0)
    assert not Outlook(-1.0).is_hopeless(0, 100)
