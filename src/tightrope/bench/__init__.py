"""Tightrope and its peers on the same posteriors, from the same starts, on the same cores, one after the other."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np

from tightrope import zoo
from tightrope.bench.contenders import CONTENDERS, OURS
from tightrope.bench.judge import Rules, judged
from tightrope.bench.table import as_markdown
from tightrope.checks import one_of
from tightrope.diagnostics import MAX_R_HAT_OF_ESS
from tightrope.initialise import starting_points
from tightrope.results import Converter
from tightrope.store import write
from tightrope.types import InputError

__all__ = ["PEERS", "POSTERIORS", "QUICK", "Request", "Rules", "bench"]

PEERS = ("mici", "numpyro", "nutpie", "blackjax")
POSTERIORS = (
    "toy:0.01",
    "nonlinear-ssm:0.1",
    "fitzhugh-nagumo:0.1",
    "hodgkin-huxley:0.1",
    "poisson:0.1",
    *("lotka-volterra", "soil-hn-t35", "soil-ak-t25", "squid-potassium", "squid-sodium"),
)
QUICK = Rules(ess=100.0, r_hat=MAX_R_HAT_OF_ESS, budget=60.0)


class Request(NamedTuple):
    """What to compare, and for how long."""

    posteriors: Sequence[str]  # names in the zoo, with a noise scale perhaps: toy, toy:0.01
    against: Sequence[str]  # peers
    out: Path
    say: Callable[[str], None]
    rules: Rules = Rules()
    chains: int = 4
    warmup: int = 1000
    seed: int = 1
    share_compiler: bool = False  # peers too run with the setting of XLA that Tightrope makes, not as they come


def posterior_of(text: str) -> tuple[str, dict[str, float]]:
    """The name and options of toy:0.01."""
    name, _, sigma = text.partition(":")
    try:
        options = {"sigma": float(sigma)} if sigma else {}
    except ValueError:
        raise InputError(f'"{text}": what follows the colon is the noise scale, a number.') from None
    zoo.check(name, options)
    return name, options


def contenders(against: Sequence[str]) -> list[str]:
    """Ours, and those of the peers, which must be installed."""
    for peer in against:
        one_of("against", peer, PEERS)
        if importlib.util.find_spec(peer) is None:
            raise InputError(f"{peer} is not installed: pip install 'tightrope[bench]' brings all peers.")
    return [name for name in CONTENDERS if name == OURS or name.split("-")[0] in against]


def bench(request: Request) -> list[dict[str, Any]]:
    """Run all that the folder does not have yet, and keep what came of it there: results.json and results.md."""
    posteriors, names = [posterior_of(text) for text in request.posteriors], contenders(request.against)
    rows = finished(request, names)
    request.out.mkdir(parents=True, exist_ok=True)
    request.say(as_markdown(rows, request.rules).rstrip())
    for text, (name, options) in zip(request.posteriors, posteriors, strict=True):
        if any(row["posterior"] == text for row in rows):
            continue
        model = zoo.load(name, **options)
        quantities = Converter(model, model.quantities)
        starts = starting_points(model, "auto", jr.key(request.seed), request.chains)
        for contender in names:
            folders = laid_out(request, name, options, contender, starts)
            rows.append({"posterior": text, "contender": contender, **judged(quantities, folders, request.rules)})
            keep(request, rows)
            request.say(as_markdown([row for row in rows if row["posterior"] == text], request.rules).splitlines()[-1])
    return rows


def laid_out(request: Request, name: str, options: dict[str, float], contender: str, starts: np.ndarray) -> list[Path]:
    """A folder for each process of a contender: ours shares its cores out itself, others get a process a core."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    cores = cores[: len(starts)]
    shares = [cores] if contender == OURS else [[core] for core in cores]
    folders = []
    for place, (share, part) in enumerate(zip(shares, np.array_split(starts, len(shares)), strict=True)):
        folder = request.out / "work" / contender / str(place)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        task = {
            "model": name,
            "options": options,
            "contender": contender,
            "warmup": request.warmup,
            "seed": request.seed * len(shares) + place,
            "cores": len(share),
            "affinity": share,
            "has_our_compiler": contender == OURS or request.share_compiler,
        }
        (folder / "task.json").write_text(json.dumps(task))
        np.save(folder / "starts.npy", part)
        folders.append(folder)
    return folders


def finished(request: Request, names: list[str]) -> list[dict[str, Any]]:
    """What an earlier call has left of the posteriors on which it ran all contenders: ratios are of one call."""
    path = request.out / "results.json"
    if not path.exists():
        return []
    known = json.loads(path.read_text())
    rows = known.pop("rows")
    if known != json.loads(json.dumps(facts(request))):
        raise InputError(f"{request.out} has results of other versions, peers or settings: give another --out.")
    ran = lambda posterior: [row["contender"] for row in rows if row["posterior"] == posterior]
    return [row for row in rows if ran(row["posterior"]) == names]


def facts(request: Request) -> dict[str, Any]:
    """All that results depend on, but for the posterior."""
    packages = ("tightrope", "jax", "numpyro", *(peer for peer in request.against if peer != "numpyro"))
    return {
        "against": sorted(request.against),
        "versions": {name: version(name) for name in packages},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "rules": request.rules._asdict(),
        "compiler": "that of Tightrope" if request.share_compiler else "as each sampler comes",
        "chains": request.chains,
        "warmup": request.warmup,
        "seed": request.seed,
    }


def keep(request: Request, rows: list[dict[str, Any]]) -> None:
    """Write what is known so far."""
    write(request.out / "results.json", json.dumps(facts(request) | {"rows": rows}, indent=1).encode())
    write(request.out / "results.md", as_markdown(rows, request.rules).encode())
