"""Whether the draws can be relied on, and why."""

from __future__ import annotations

from tightrope.report.account import Account
from tightrope.report.html import duration, items, number, pairs, paragraph


def verdict(account: Account) -> str:
    """Whether the draws can be relied on, and why."""
    title, kind, texts = judgement(account)
    mark = {"good": "✓", "fair": "!", "poor": "✗"}[kind]
    content = "".join(paragraph(text) for text in texts)
    if account.has_draws:
        content += items(finding[0].upper() + finding[1:] for finding in account.findings())
    heading = f'<h2 id="verdict"><span class="mark" aria-hidden="true">{mark}</span>{title}</h2>'
    tiles = highlights(account) if account.has_draws else ""
    return f'<section class="verdict {kind}" aria-labelledby="verdict">{heading}{content}</section>{tiles}'


def judgement(account: Account) -> tuple[str, str, list[str]]:
    """The verdict: in a word, how good, and in sentences."""
    if not account.has_draws:
        return "Unfinished", "fair", [progress(account), "There are no draws yet."]
    word, kind, reason = convergence(account)
    if not account.is_finished:
        return "Unfinished", "fair", [progress(account), f"So far: {word.lower()}. {reason}"]
    return word, kind, [reason]


def convergence(account: Account) -> tuple[str, str, str]:
    """What to make of the draws there are: in a word, how good, and why."""
    num_chains, num_draws = account.stats["lp"].shape
    if not account.is_converged:
        few = "There are too few draws to tell."
        return "Not converged", "poor", few if num_draws < 8 else "Do not rely on these estimates yet."
    least = account.table[["ess_bulk", "ess_tail"]].min().min()
    reason = f"Every quantity has at least {least:.0f} effective draws, in bulk and in tails"
    reason += "." if num_chains == 1 else f", and R-hat is at most {account.table['r_hat'].max():.3f}."
    return ("Converged, with reservations", "fair", reason) if account.findings() else ("Converged", "good", reason)


def progress(account: Account) -> str:
    """How far a run is, and how to go on."""
    status = account.status
    done = f"The slowest chain has made {min(status['iterations'])} of {status['total']} iterations, warm-up included"
    if status["is_running"]:
        return f"{done}; the run goes on: make the report again later."
    return f"{done}, and the run was stopped. Go on with `tightrope resume {account.directory}`."


def highlights(account: Account) -> str:
    """The figures to see first."""
    found = account.performance()
    return pairs(
        {
            "max R-hat": number(found["r_hat"], ".3f"),
            "min bulk ESS": number(found["ess"], ".0f"),
            "ESS a second": number(found["ess_per_second"], ".3g"),
            "acceptance": f"{found['acceptance']:.2f}",
            "steps a draw": f"{found['steps_per_draw']:.1f}",
            "time sampling": duration(found["sampling_time"]),
        },
        "tiles",
    )
