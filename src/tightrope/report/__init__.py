"""One page that tells how a run went, and what it found."""

from __future__ import annotations

from pathlib import Path

import xarray as xr

from tightrope.models import Model
from tightrope.report.account import account_of
from tightrope.report.html import page
from tightrope.store import StoreError, write

FILE = "report.html"


def report(
    trace_or_directory: xr.DataTree | Path | str, path: Path | str | None = None, model: Model | None = None
) -> Path:
    """Write a report of a run, one HTML file, and say where: by default beside the draws, or in this folder.

    Predictions need the model: those of the zoo are found by name, if the run has a directory.
    """
    from tightrope.report import sections  # here: what draws takes half a second to import, and few who sample draw

    account = account_of(trace_or_directory, model)
    target = (account.directory or Path()) / FILE if path is None else Path(path)
    text = page(f"{account.record['model']['name']}: Tightrope report", sections.everything(account))
    try:
        write(target, text.encode())
    except OSError as error:
        raise StoreError(f"cannot write to {target}: {error.strerror or error}.") from None
    return target
