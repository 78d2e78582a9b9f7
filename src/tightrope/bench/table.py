"""What came of a benchmark, as a table in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tightrope.bench.contenders import OURS
from tightrope.bench.judge import Rules, has_converged

COLUMNS = (
    "posterior",
    "sampler",
    "R-hat",
    "bulk ESS",
    "tail ESS",
    "ESS/s sampling",
    "ESS/s whole run",
    "steps/draw",
    "us/step",
    "compile + warm-up + sampling s",
    "ours is faster, sampling",
    "ours is faster, whole run",
)
Row = Mapping[str, Any]


def sampling_seconds(row: Row) -> float | None:
    return row.get("sampling_time")


def whole_seconds(row: Row) -> float | None:
    """All of the run, compilation too."""
    if sampling_seconds(row) is None or "warmup_time" not in row:
        return None
    return row["compile_time"] + row["warmup_time"] + row["sampling_time"]


def rate(row: Row, seconds: float | None) -> float | None:
    """Effective draws per second, where there are any to speak of."""
    return row["ess_bulk"] / seconds if seconds and row.get("ess_bulk") and has_converged(row) else None


def ratio(ours: Row, theirs: Row, seconds_of: Any, rules: Rules) -> str:
    """How many times as fast ours is; a bound where theirs was stopped before it had drawn enough."""
    mine, other = rate(ours, seconds_of(ours)), rate(theirs, seconds_of(theirs))
    if mine is None or theirs["status"] == "failed":
        return ""
    if theirs["status"] == "finished" and other is not None:
        return f"{mine / other:.3g}"
    reached = max(rules.ess, theirs["ess_bulk"] or 0.0) if has_converged(theirs) else rules.ess
    return f"> {mine * (seconds_of(theirs) or rules.budget) / reached:.3g}"


def cells(row: Row, ours: Row | None, rules: Rules) -> list[str]:
    """A row of the table."""
    shown = lambda value, form: "" if value is None else form.format(value)
    converged = has_converged(row)
    sizes = [shown(row.get(name), "{:.0f}") if converged else "" for name in ("ess_bulk", "ess_tail")]
    rates = [shown(rate(row, seconds(row)), "{:.3g}") for seconds in (sampling_seconds, whole_seconds)]
    steps, draws = row.get("steps_per_draw"), row.get("draws")
    per_step = None if not steps or not draws else 1e6 * row["sampling_time"] / (steps * draws * row["chains"])
    times = [shown(row.get(name), "{:.3g}") for name in ("compile_time", "warmup_time", "sampling_time")]
    others = None if row is ours else ours
    ratios = ["" if others is None else ratio(others, row, of, rules) for of in (sampling_seconds, whole_seconds)]
    verdict = "" if row["status"] == "finished" else f" ({row['status']}{'' if converged else ', not converged'})"
    return [
        row["posterior"],
        row["contender"] + verdict,
        shown(row.get("r_hat"), "{:.4f}"),
        *sizes,
        *rates,
        shown(steps, "{:.1f}"),
        shown(per_step, "{:.3g}"),
        " + ".join(times),
        *ratios,
    ]


def as_markdown(rows: Sequence[Row], rules: Rules) -> str:
    """All rows; those of peers beside ours on the same posterior."""
    ours = {row["posterior"]: row for row in rows if row["contender"] == OURS}
    line = lambda cells: f"| {' | '.join(cells)} |"
    body = [line(cells(row, ours.get(row["posterior"]), rules)) for row in rows]
    return "\n".join([line(COLUMNS), line(["---"] * len(COLUMNS)), *body, ""])
