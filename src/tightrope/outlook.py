"""Whether a run in warm-up can have draws in time."""

from __future__ import annotations

import time

MOST_GAIN = 2  # in pace, until a stage of warm-up ends and something is learnt
SHARE = 1 / 8  # of the time allowed, to tell a pace by


class Outlook:
    """How warm-up comes along in the time that is left."""

    def __init__(self, seconds: float):
        self.span, self.deadline = SHARE * max(0.0, seconds), time.perf_counter() + seconds
        self.stop = 0  # where the present stage ends
        self.marks: list[tuple[float, int]] = []  # in it: by the clock, and iterations made by then

    def is_hopeless(self, iteration: int, stop: int) -> bool:
        """Whether the stage cannot end in time, whatever its pace may gain on that of late."""
        if stop != self.stop:
            self.stop, self.marks = stop, []
        now = time.perf_counter()
        self.marks.append((now, iteration))
        while len(self.marks) > 1 and self.marks[1][0] <= now - self.span:
            self.marks.pop(0)
        then, before = self.marks[0]
        if now - then <= self.span:
            return False
        pace = (iteration + 1 - before) / (now - then)  # the next one may be about to end
        return iteration + MOST_GAIN * pace * max(0.0, self.deadline - now) < stop
