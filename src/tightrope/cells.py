"""One run of a sweep: what it is, what it is called, and what it leaves."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import re
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tightrope import zoo
from tightrope.diagnostics import performance, summary
from tightrope.kinds import Method
from tightrope.methods import method_of
from tightrope.models import Model
from tightrope.provenance import PACKAGES, fingerprint
from tightrope.results import NoDraws
from tightrope.sampling import check_count, check_time, sample
from tightrope.types import InputError

FINISHED, UNFINISHED, FAILED, MISSING = "finished", "unfinished", "failed", "missing"  # what became of a cell
SHORTEST = 1e-9  # seconds: no time at all
COUNTS = {"chains": 1, "warmup": 0, "draws": 1, "seed": 0, "cores": 1}  # and their least values


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a sweep: a posterior, a method, and how long."""

    model: str | Model  # a name in the zoo, or a model of your own
    options: Mapping[str, Any] = field(default_factory=dict)  # of a model in the zoo, such as sigma
    method: str | Method = "lifted-nuts"
    init: str | Mapping[str, Any] = "auto"
    chains: int = 4
    warmup: int = 1000
    draws: int = 1000
    seed: int = 0
    cores: int = 1  # that its chains share; a result depends on it in its last bits
    max_time: float | None = None  # seconds of all; given up before where there would be no draws by then
    labels: Mapping[str, Any] = field(default_factory=dict)  # further columns of the table; no part of what is run

    def __post_init__(self) -> None:
        if isinstance(self.model, str):
            zoo.check(self.model, self.options)
        elif not isinstance(self.model, Model):
            raise InputError(f"model must be a name or a tr.Model, not {type(self.model).__name__}.")
        elif self.options:
            raise InputError("options are those of a model in the zoo: put columns of your own into labels.")
        if not isinstance(self.init, str | Mapping):
            raise InputError(f"init must be a word or a dictionary of values, not {type(self.init).__name__}.")
        method_of(self.method)
        for name, least in COUNTS.items():
            check_count(name, getattr(self, name), least)
        check_time(self.max_time)

    def definition(self) -> dict[str, Any]:
        """All that the draws depend on, in words that JSON has."""
        method, is_known = method_of(self.method), isinstance(self.model, str)
        own = lambda model: {"name": model.name, "fingerprint": fingerprint(model)}
        return {
            "model": {"name": self.model, "options": dict(self.options)} if is_known else own(self.model),
            "method": {"name": method.name, "options": dataclasses.asdict(method)},
            **{name: getattr(self, name) for name in ("init", *COUNTS, "max_time")},
        }


def described(method: Method) -> str:
    """A method's name, and its options where they are not as they come."""
    changed = [
        f"{option.name}={getattr(method, option.name)}"
        for option in dataclasses.fields(method)
        if getattr(method, option.name) != option.default
    ]
    return f"{method.name}({', '.join(changed)})" if changed else method.name


def name_of(definition: Mapping[str, Any]) -> str:
    """A name for the files of a cell: words to read, and a digest of all."""
    model, method = definition["model"], definition["method"]
    method = described(method_of(method["name"], **method["options"]))
    options = [f"{key}={value}" for key, value in model.get("options", {}).items()]
    words = " ".join([model["name"], *options, f"seed={definition['seed']}", method])
    text = json.dumps(definition, sort_keys=True, default=lambda value: np.asarray(value).tolist())
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', words)[:80].strip('-.')}-{digest[:12]}"


def run_cell(cell: Cell, draws: Path | None = None, began: float | None = None) -> dict[str, Any]:
    """Sample, and say how it went, well or not; keep the draws too where a file is named for them."""
    began = time.time() if began is None else began
    facts = provenance(began)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            facts |= outcome(cell, draws, began)
    except NoDraws as error:
        facts |= {"status": UNFINISHED, "error": str(error)}
    except Exception as error:
        facts["error"] = sentence(error)
    return facts | {"run_time": time.time() - began}


def overdue(cell: Cell, began: float) -> dict[str, Any]:
    """The record of a run that is ended from outside, because it did not end itself."""
    error = f"it was ended from outside: max_time, {cell.max_time:g} s, was over, and it still compiled or wrote."
    return provenance(began) | {"status": UNFINISHED, "error": error, "run_time": time.time() - began}


def provenance(began: float) -> dict[str, Any]:
    """What is known of a run before it is made."""
    return {
        "status": FAILED,
        "error": None,
        "versions": {name: version(name) for name in PACKAGES},
        "host": platform.node(),
        "began": began,
    }


def outcome(cell: Cell, draws: Path | None, began: float) -> dict[str, Any]:
    """The figures and estimates of a run that gave any."""
    model = zoo.load(cell.model, **cell.options) if isinstance(cell.model, str) else cell.model
    left = None if cell.max_time is None else max(cell.max_time - (time.time() - began), SHORTEST)
    trace = sample(
        model,
        cell.draws,
        cell.warmup,
        cell.chains,
        cell.seed,
        method=cell.method,
        init=cell.init,
        max_time=left,
        give_up=left is not None,
        cores=cell.cores,
        progress=False,
    )
    if draws is not None:
        trace.to_netcdf(draws, engine="h5netcdf")
    reached, table = trace["posterior"].sizes["draw"], summary(trace)
    estimates = {str(name): {"mean": number(row["mean"]), "sd": number(row["sd"])} for name, row in table.iterrows()}
    return {
        "status": FINISHED if reached == cell.draws else UNFINISHED,
        "draws": reached,
        "d": model.d,
        "m": model.m,
        "figures": {name: number(value) for name, value in performance(trace).items()},
        "summary": estimates,
    }


def number(value: float) -> float | None:
    """A number that JSON has."""
    return float(value) if np.isfinite(value) else None


def sentence(error: BaseException) -> str:
    """What an error says, in a line; its kind as well, unless it is one that speaks for itself."""
    text = " ".join(str(error).split())
    is_ours = type(error).__module__.startswith("tightrope.")
    return text if is_ours else f"{type(error).__name__}: {text}"
