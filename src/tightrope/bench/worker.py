"""A process of a benchmark: some chains of one contender, which draw until they are told to stop by a kill.

    python -m tightrope.bench.worker FOLDER

The folder has `task.json` and `starts.npy`; what is found goes there too, a file a batch, put into place by a rename.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from tightrope import zoo
from tightrope.bench.contenders import CONTENDERS, Task
from tightrope.store import write

FIRST_BATCH, SECONDS_PER_BATCH = 10, 1.0


def work(folder: Path) -> None:
    """Prepare, warm up and draw, and leave a note of each."""
    asked = json.loads((folder / "task.json").read_text())
    model = zoo.load(asked["model"], **asked["options"])
    task = Task(model, np.load(folder / "starts.npy"), asked["warmup"], asked["seed"], asked["cores"])
    note = lambda name, **facts: write(folder / f"{name}.json", json.dumps(facts).encode())

    began = time.perf_counter()
    contender = CONTENDERS[asked["contender"]](task)
    contender.prepare()
    compile_time = time.perf_counter() - began
    note("compiled", compile_time=compile_time)

    began = time.perf_counter()
    late = contender.warm_up()
    note("warm", compile_time=compile_time + late, warmup_time=time.perf_counter() - began - late)

    began, number, seconds = time.perf_counter(), FIRST_BATCH, 0.0
    for place in count():
        batch = contender.draw(number)
        took, seconds = time.perf_counter() - began - seconds, time.perf_counter() - began
        save(folder / f"batch-{place:05d}.npz", u=batch.u, num_steps=batch.num_steps, seconds=seconds)
        number = int(np.clip(batch.u.shape[1] * SECONDS_PER_BATCH / took, 1, 4 * batch.u.shape[1]))


def save(path: Path, **arrays: Any) -> None:
    """Arrays in a file that is there whole or not at all."""
    hidden = path.with_suffix(".part.npz")
    np.savez(hidden, **arrays)
    hidden.rename(path)


if __name__ == "__main__":
    work(Path(sys.argv[1]))
