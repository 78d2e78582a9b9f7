"""All that is known of a run, from its directory or from a trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from tightrope import sampling, zoo
from tightrope.diagnostics import MAX_R_HAT, MIN_ESS_PER_CHAIN, findings, performance, scalars, summary
from tightrope.kernel import Draw
from tightrope.models import Model
from tightrope.results import NoDraws
from tightrope.store import Store
from tightrope.types import Info, InputError

TIMES = ("compile_time", "warmup_time", "sampling_time")


class Account(NamedTuple):
    """What a report tells."""

    trace: xr.DataTree  # without groups, if there are no draws yet
    record: Mapping[str, Any]  # what was asked: run.json, or what little a trace says
    status: Mapping[str, Any]  # how far the run is; empty for a trace
    directory: Path | None
    warmup_step_sizes: np.ndarray  # (chain, iteration)
    model: Model | None
    is_model_given: bool  # by the caller, rather than found in the zoo
    table: pd.DataFrame  # the summary

    @property
    def has_draws(self) -> bool:
        return "posterior" in self.trace.children

    @property
    def is_finished(self) -> bool:
        return self.status.get("stage", "finished") == "finished"

    @property
    def posterior(self) -> xr.Dataset:
        return self.trace.children["posterior"].to_dataset()

    @property
    def stats(self) -> xr.Dataset:
        return self.trace.children["sample_stats"].to_dataset()

    @property
    def is_converged(self) -> bool:
        """Whether chains agree and have enough effective draws; NaN is neither."""
        num_chains = self.stats.sizes["chain"]
        agree = num_chains == 1 or self.table["r_hat"].max() <= MAX_R_HAT
        enough = self.table[["ess_bulk", "ess_tail"]].min().min() >= MIN_ESS_PER_CHAIN * num_chains
        return bool(agree and enough)

    def findings(self) -> list[str]:
        return findings(self.trace, self.table)

    def performance(self) -> dict[str, float]:
        return performance(self.trace, self.table)

    def quantities(self) -> dict[str, np.ndarray]:
        """The draws of each row of the summary."""
        names = list(dict.fromkeys(label.partition("[")[0] for label in self.table.index))
        # In the order of the rows: ArviZ writes dates in another way than we do.
        return dict(zip(self.table.index, scalars(self.posterior[names]).values(), strict=True))

    def most_telling(self, limit: int) -> list[str]:
        """Rows of the summary worth a look: of each quantity the part that mixes worst, then the next worst."""
        worst = list(self.table.sort_values("ess_bulk", na_position="last").index)
        of_each: dict[str, str] = {}
        for label in worst:
            of_each.setdefault(label.partition("[")[0], label)
        chosen = set(list(dict.fromkeys([*of_each.values(), *worst]))[:limit])
        return [label for label in self.table.index if label in chosen]


def account_of(run: xr.DataTree | Path | str, model: Model | None) -> Account:
    """What there is to tell of a trace, or of a run directory."""
    if isinstance(run, xr.DataTree):
        return of_trace(run, model)
    if isinstance(run, str | Path):
        return of_directory(Store.open(run), model)
    raise InputError(f"a report is of a trace or of a run directory, not of a {type(run).__name__}.")


def of_trace(trace: xr.DataTree, model: Model | None) -> Account:
    for name in ("posterior", "sample_stats"):
        if name not in trace.children:
            raise InputError(f"the trace has no group {name}: a report needs draws as tr.sample returns them.")
    attributes, stats = trace.children["posterior"].attrs, trace.children["sample_stats"].dataset
    missing = [name for name in TIMES if name not in attributes] + [name for name in Info._fields if name not in stats]
    if missing:
        raise InputError(f"the trace lacks {missing}: a report needs draws as tr.sample returns them.")
    record = {
        "model": {"name": attributes.get("model", "model")},
        "method": {"name": attributes.get("method", "unknown"), "options": {}},
        "options": {name: attributes[name] for name in ("seed",) if name in attributes},
        "versions": {"tightrope": attributes.get("tightrope_version", "unknown")},
    }
    warmup = trace.children.get("warmup_sample_stats")
    sizes = (stats.isel(draw=slice(0)) if warmup is None else warmup.dataset)["step_size"].values
    return Account(trace, record, {}, None, sizes, model, model is not None, summary(trace))


def of_directory(store: Store, given: Model | None) -> Account:
    record, model = store.record(), given
    origin = record["model"]["zoo"]
    if model is None and origin is not None:
        model = zoo.load(origin["name"], **origin["options"])
    try:
        trace = sampling.load(store.path)
    except NoDraws:
        trace = xr.DataTree()
    table = summary(trace) if "posterior" in trace.children else pd.DataFrame()
    status = sampling.status(store.path) | {"updated": store.status().get("updated")}
    sizes = warmup_step_sizes(store)
    return Account(trace, record, status, store.path, sizes, model, given is not None, table)


def warmup_step_sizes(store: Store) -> np.ndarray:
    """Step sizes in warm-up, as far as every chain has come."""
    known, num_chains = store.status(), store.record()["options"]["chains"]
    stop = min([store.record()["options"]["warmup"], *known.get("iterations", [0])])
    if not stop:
        return np.zeros((num_chains, 0))
    label = "rival" if known.get("is_rival") else "warmup"
    rows = [store.read_rows(label, chain, stop) for chain in range(num_chains)]
    return np.asarray(Draw.unpack(np.stack(rows)).info.step_size)
