"""A live table of a run, one line a chain; quiet when nobody is watching."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tightrope.diagnostics import bulk_ess
from tightrope.kernel import Draw
from tightrope.types import FAILURES

RECENT = 100  # transitions that the shown averages cover
SECONDS_PER_ESS = 2.0


class Progress:
    """The display; `show` may be called as often as one likes."""

    def __init__(self, wanted: bool | None):
        self.console = Console(stderr=True)
        self.is_live = self.console.is_terminal if wanted is None else wanted
        self.live: Live | None = None
        self.run: Any = None  # the one shown last
        self.began: dict[int, tuple[float, int]] = {}  # when sampling was first seen, and the draws by then, by chain
        self.ess: dict[int, tuple[float, float]] = {}  # when computed, and the value, by chain

    def __enter__(self) -> Progress:
        if self.is_live:
            self.live = Live(console=self.console, refresh_per_second=4).__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live is not None:
            self.live.__exit__(*error)

    def say(self, text: str) -> None:
        if self.is_live:
            self.console.print(text)

    def show(self, run: Any) -> None:
        if self.live is None:
            return
        if run is not self.run:
            self.run, self.began, self.ess = run, {}, {}
        total = run.num_warmup + run.num_draws
        table = Table("chain", "stage", "draws", "step size", "acceptance", "steps", "failures", "ESS/s", box=None)
        for group in run.groups:
            for place, chain in enumerate(group.index):
                table.add_row(
                    *self.line(run, chain, list(group.rows[place].parts), int(group.iterations[place]), total)
                )
        self.live.update(table)

    def line(self, run: Any, chain: int, rows: list[np.ndarray], iteration: int, total: int) -> list[str]:
        """One chain's row of the table."""
        stage = "warm-up" if iteration < run.num_warmup else "sampling"
        done = f"{iteration}/{total}"
        if not rows:
            return [str(chain), stage, done, "", "", "", "", ""]
        recent = Draw.unpack(np.concatenate(rows[-10:])[-RECENT:]).info
        steps = recent.n_steps.sum()
        failures = sum(getattr(recent, name).sum() for name in FAILURES)
        return [
            str(chain),
            stage,
            done,
            f"{recent.step_size[-1]:.3g}",
            f"{recent.acceptance_rate.mean():.2f}",
            f"{recent.n_steps.mean():.1f}",
            f"{failures / steps:.1%}",
            self.ess_per_second(run, chain, rows, iteration),
        ]

    def ess_per_second(self, run: Any, chain: int, rows: list[np.ndarray], iteration: int) -> str:
        """Effective draws of the log density per second of sampling."""
        now, drawn = time.perf_counter(), iteration - run.num_warmup
        if drawn <= 20:
            return ""
        began, drawn_then = self.began.setdefault(chain, (now, drawn))
        computed, value = self.ess.get(chain, (0.0, float("nan")))
        if now - computed > SECONDS_PER_ESS and now > began:
            lp = Draw.unpack(np.concatenate(rows)[-drawn:]).info.lp
            share = bulk_ess(np.asarray(lp)[None]) / len(lp)
            value = share * (drawn - drawn_then) / (now - began)
            self.ess[chain] = now, value
        return f"{value:.0f}" if np.isfinite(value) else ""
