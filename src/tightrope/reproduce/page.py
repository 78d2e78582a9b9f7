"""One page of all that was reproduced into a folder: pictures, tables, and whether the paper's claims are borne out."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tightrope.report.html import coded, duration, pairs, paragraph, section, table
from tightrope.report.html import page as document
from tightrope.reproduce.request import CELLS, Claim, Request
from tightrope.store import as_json, write

INDEX, TITLE = "index.html", "The paper, reproduced"
PAPER = "Manifold lifting: scaling MCMC to the vanishing noise regime (Au, Graham and Thiery)"
MARKS = {True: ("good", "✓", "borne out"), False: ("poor", "✗", "not borne out"), None: ("fair", "?", "not told")}
Record = dict[str, Any]  # what is known of a target


def note(request: Request, description: str, claims: Sequence[Claim]) -> None:
    """Write down what a target has come to."""
    record = {
        "target": request.target,
        "description": description,
        "command": request.command,
        "claims": [claim._asdict() for claim in claims],
        "made": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("tightrope", "jax", "numpy")},
    }
    write(request.file(".json"), as_json(record))


def write_index(folder: Path, targets: Sequence[str]) -> Path:
    """The page, from the records and pictures in the folder."""
    files = {target: folder / f"{target}.json" for target in targets}
    records = {target: json.loads(file.read_bytes()) for target, file in files.items() if file.exists()}
    head = f"<header><p>Tightrope</p><h1>{TITLE}</h1><p>{PAPER}</p></header>"
    chapters = [chapter(folder, record) for record in records.values()]
    body = [overview(records, targets, seconds_of_runs(folder)), *chapters]
    foot = f"<footer><p>Written by Tightrope {version('tightrope')}.</p></footer>"
    write(folder / INDEX, document(TITLE, f"{head}<main>{''.join(body)}</main>{foot}").encode())
    return folder / INDEX


def seconds_of_runs(folder: Path) -> float:
    """What the cells took that the targets of a folder share."""
    records = (json.loads(file.read_bytes()) for file in (folder / CELLS).glob("*.json"))
    return sum(record.get("run_time", 0.0) for record in records)


def overview(records: Mapping[str, Record], targets: Sequence[str], seconds: float) -> str:
    """How many claims are borne out, and all of them at a glance."""
    claims = [(target, claim) for target, record in records.items() for claim in record["claims"]]
    told = [claim["is_borne_out"] for _, claim in claims]
    tiles = {
        "targets made": f"{len(records)} of {len(targets)}",
        "claims borne out": f"{told.count(True)}",
        "not borne out": f"{told.count(False)}",
        "not told by these runs": f"{told.count(None)}",
        "time of runs, on one core each": duration(seconds),
    }
    rows = "".join(
        f'<li><a href="#{target}">{escape(target)}</a> {mark(claim["is_borne_out"])} {coded(claim["text"])}</li>'
        for target, claim in claims
    )
    return f"{pairs(tiles, 'tiles')}{section('Claims', f'<ul class=claims>{rows}</ul>')}"


def chapter(folder: Path, record: Record) -> str:
    """A target: picture, table, claims, and where all of it comes from."""
    target = record["target"]
    content = [paragraph(record["description"])]
    for claim in record["claims"]:
        found = f'<br><span class="found">Found: {coded(claim["found"])}</span>'
        content.append(f'<p class="claim">{mark(claim["is_borne_out"])} {coded(claim["text"])}{found}</p>')
    if (folder / f"{target}.png").exists():
        alt = escape(f"{target}: {record['description']}")
        content.append(f'<a href="{target}.svg"><img src="{target}.png" alt="{alt}" loading="lazy"></a>')
    if (folder / f"{target}.md").exists():
        content.append(from_markdown(target, (folder / f"{target}.md").read_text()))
    data = sorted(path.name for path in folder.glob(f"{target}.*"))
    links = " · ".join(f'<a href="{name}">{escape(name)}</a>' for name in data)
    made = f"`{record['command']}`, {record['made']}, {record['machine']}"
    content.append(f'<p class="source">{coded(made)}<br>{links}</p>')
    return section(target, *content)


def mark(is_borne_out: bool | None) -> str:
    kind, sign, word = MARKS[is_borne_out]
    return f'<strong class="mark {kind}">{sign} {word}</strong>'


def from_markdown(caption: str, text: str) -> str:
    """The table of a file of Markdown."""
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return table(caption, rows[0], rows[2:])
