"""Sweeps: every cell once, the same wherever it runs, whatever happens to the others."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError, Future
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
import swept
import xarray as xr

import tightrope as tr
from tightrope import cells
from tightrope.cells import described, name_of, run_cell
from tightrope.engines import packed, run_apart
from tightrope.outlook import Outlook
from tightrope.store import Store
from tightrope.sweep import result_of, went

TIMED = ("compile_time", "warmup_time", "sampling_time", "ess_per_second")


@pytest.fixture(autouse=True, scope="module")
def quick_processes():
    """The processes of cells compile as the tests themselves do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setenv("JAX_COMPILATION_CACHE_DIR", jax.config.jax_compilation_cache_dir)
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep that nothing disturbed: its folder, its log, its table."""
    folder = tmp_path_factory.mktemp("sweep")
    table = tr.sweep(swept.cells(folder / "log"), folder / "cells", workers=2, keep_draws=True, progress=False)
    return folder / "cells", folder / "log", table


def records(directory):
    """What the cells of a directory found, without what a clock tells."""
    found = {}
    for file in sorted(Path(directory).glob("*.json")):
        record = json.loads(file.read_text())
        figures = {name: value for name, value in record["figures"].items() if name not in TIMED}
        found[file.name] = (record["status"], record["draws"], record["summary"], figures)
    return found


def runs(log, *parents):
    """The processes that ran each cell."""
    pairs = {tuple(line.split()) for line in Path(log).read_text().splitlines()}
    pids = {str(sigma): [] for sigma in swept.SIGMAS}
    for sigma, pid in pairs:
        if int(pid) not in {os.getpid(), *parents}:
            pids[sigma].append(int(pid))
    return pids


def is_alive(pid):
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def await_that(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def test_cells_find_the_exact_posterior(finished):
    directory, _, table = finished
    assert list(table["status"]) == ["finished"] * 3 and list(table["sigma"]) == list(swept.SIGMAS)
    for row in table.itertuples():
        found = json.loads(Path(row.file).read_text())["summary"]["a"]
        mean, sd = swept.exact(row.sigma)
        assert abs(found["mean"] - mean) < 5 * sd / row.ess**0.5
        assert 0.5 < found["sd"] / sd < 2
        assert row.ess_per_second == pytest.approx(row.ess / row.sampling_time)
    assert len(list(directory.glob("*.json"))) == 3


def test_a_cell_is_what_sample_gives(finished):
    _, _, table = finished
    cell = swept.cells(os.devnull)[0]
    figures = run_cell(cell)["figures"]
    for name in set(figures) - set(TIMED):
        assert table[name][0] == pytest.approx(figures[name], rel=1e-6), name
    file = Path(table["file"][0]).with_suffix(".nc")
    with xr.open_datatree(file, engine="h5netcdf") as trace:
        assert trace["posterior"].sizes == {"chain": 2, "draw": 300}


def test_finished_cells_are_not_run_again(finished):
    directory, log, table = finished
    assert all(len(pids) == 1 for pids in runs(log).values()), "each ran once"
    before = {file: file.stat().st_mtime_ns for file in directory.glob("*.json")}
    again = tr.sweep(swept.cells(log), directory, keep_draws=True, progress=False)
    assert again.equals(table)
    assert {file: file.stat().st_mtime_ns for file in directory.glob("*.json")} == before
    assert all(len(pids) == 1 for pids in runs(log).values())


@pytest.mark.slow
def test_dask_gives_the_same(finished, tmp_path):
    directory, log, _ = finished
    cells = swept.cells(log, swept.SIGMAS[:1])
    others = [dataclasses.replace(cell, labels={"sigma": "the same"}) for cell in cells]
    table = tr.sweep([*cells, *others], tmp_path, engine="dask", workers=1, progress=False)
    assert list(table["sigma"]) == [swept.SIGMAS[0], "the same"] and table["ess"].nunique() == 1
    (name, record), *others = records(tmp_path).items()
    assert record == records(directory)[name] and not others


def test_failed_cells_are_recorded_and_left_until_asked_for(finished, tmp_path, capfd):
    directory, log, _ = finished
    good, home = swept.cells(log)[0], os.getpid()
    for file in directory.glob(f"{name_of(good.definition())}.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())

    def forward(params):
        if os.getpid() != home:
            os._exit(7)
        return params["a"][None]

    fatal = tr.Model({"a": swept.dist.Normal(0.0, 1.0)}, forward, 0.1, [1.0])
    cells = [tr.Cell(model="toy", options={"sigma": -1.0}), tr.Cell(model=fatal), good]
    table = tr.sweep(cells, tmp_path, workers=2)
    assert list(table["status"]) == ["failed", "failed", "finished"]
    assert table["error"][0] == "noise_scale must be positive and finite everywhere."
    assert table["error"][1] == "its process ended with exit status 7"
    assert np.isnan(table["ess"][0]) and table["ess"][2] > 10
    assert "failed, noise_scale must be positive" in capfd.readouterr().err

    times = lambda: [Path(file).stat().st_mtime_ns for file in table["file"]]
    before = times()
    tr.sweep(cells, tmp_path, progress=False)
    assert times() == before
    tr.sweep(cells, tmp_path, progress=False, retry=True)
    assert [a > b for a, b in zip(times(), before, strict=True)] == [True, True, False]


def test_time_limit_leaves_cells_for_later(tmp_path):
    table = tr.sweep(swept.cells(tmp_path / "log"), tmp_path / "cells", workers=1, time_limit=0.3, progress=False)
    assert list(table["status"]) == ["missing"] * 3
    assert not list((tmp_path / "cells").glob("*.json*"))


def test_a_cell_out_of_time_is_unfinished():
    cell = tr.Cell(model="toy", chains=1, warmup=10**6, max_time=0.1, method="rwm", init="truth")
    record = run_cell(cell)
    assert record["status"] == "unfinished" and "warm-up iterations" in record["error"]


def test_a_cell_that_does_not_end_is_ended():
    """As one whose compilation takes longer than all its time: nothing in the process looks at a clock then."""
    here = os.getpid()

    def forward(params):
        if os.getpid() != here:
            time.sleep(600.0)
        return params["a"]

    model = tr.Model(priors={"a": dist.Normal(0.0, 1.0)}, forward=forward, noise_scale=1.0, observed=1.0)
    cell = tr.Cell(model=model, max_time=1.0)
    record = run_apart(packed(cell, False), 1, lambda: True).record
    assert record["status"] == "unfinished" and "ended from outside" in record["error"]
    assert record["run_time"] < 300


def test_a_cell_that_will_have_no_draws_is_given_up(monkeypatch):
    monkeypatch.setattr("tightrope.outlook.SHARE", 1e-3)
    given_up, is_hopeless = [], Outlook.is_hopeless
    monkeypatch.setattr(Outlook, "is_hopeless", lambda *args: given_up.append(is_hopeless(*args)) or given_up[-1])
    method = tr.RWM(metric="identity")
    record = run_cell(tr.Cell(model="toy", chains=1, warmup=10**10, max_time=120.0, method=method, init="truth"))
    assert record["status"] == "unfinished" and "warm-up iterations" in record["error"]
    assert given_up[-1] and not any(given_up[:-1])


def test_a_cell_is_allowed_what_loading_its_model_leaves(monkeypatch):
    allowed, load = [], cells.zoo.load
    monkeypatch.setattr(cells.zoo, "load", lambda name: (time.sleep(0.3), load(name))[1])
    monkeypatch.setattr(cells, "sample", lambda *_, max_time, **__: allowed.append(max_time))
    for max_time in (0.1, 100.0, None):
        run_cell(tr.Cell(model="toy", max_time=max_time))
    assert 0 < allowed[0] < 1e-3 and 90 < allowed[1] <= 99.7 and allowed[2] is None


def test_one_sweep_at_a_time(tmp_path):
    with Store.create(tmp_path).held(), pytest.raises(tr.StoreError, match="in use by another process"):
        tr.sweep([tr.Cell(model="toy")], tmp_path)


@pytest.mark.slow
def test_other_versions_are_told(finished, tmp_path):
    directory, log, _ = finished
    cell = swept.cells(log)[0]
    name = f"{name_of(cell.definition())}.json"
    (tmp_path / name).write_text((directory / name).read_text().replace(jax.__version__, "0.0.1"))
    with pytest.warns(UserWarning, match=r"made with jax 0\.0\.1, jaxlib 0\.0\.1"):
        tr.sweep([cell], tmp_path, progress=False)


def test_names_tell_cells_apart():
    cells = [
        tr.Cell(model="toy", options={"sigma": 1e-05}, method=tr.NUTS(metric="dense")),
        tr.Cell(model="toy", options={"sigma": 1e-05}, method=tr.NUTS(metric="dense"), draws=999),
        tr.Cell(model="toy", options={"sigma": 1e-05}, method=tr.NUTS(metric="dense"), labels={"line": "dense"}),
    ]
    first, second, third = (name_of(cell.definition()) for cell in cells)
    assert first.startswith("toy-sigma-1e-05-seed-0-nuts-metric-dense-") and second[:-12] == first[:-12]
    assert first != second and first == third
    assert described(tr.NUTS()) == "nuts" and described(tr.NUTS(metric="dense")) == "nuts(metric=dense)"
    models = [swept.line(sigma, os.devnull) for sigma in (0.1, 0.2)]
    names = {name_of(tr.Cell(model=model).definition())[-12:] for model in [*models, swept.line(0.1, os.devnull)]}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": "toi"}, 'did you mean "toy"'),
        ({"model": "toy", "options": {"sigmas": 1}}, "sigmas is not an option of toy"),
        ({"model": "toy", "method": "nutz"}, 'did you mean "nuts"'),
        ({"model": "toy", "draws": 0}, "draws=0 must be a whole number"),
        ({"model": "toy", "init": 3}, "init must be a word or a dictionary"),
        ({"model": 3}, "model must be a name or a tr.Model"),
    ],
)
def test_a_mistake_in_a_cell_is_refused(options, sentence):
    with pytest.raises(tr.InputError, match=sentence):
        tr.Cell(**options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cells": []}, "cells is empty"),
        ({"cells": [{"model": "toy"}]}, "cells must be tr.Cell objects"),
        ({"engine": "dusk"}, 'did you mean "dask"'),
        ({"workers": 0}, "workers=0"),
        ({"time_limit": -1}, "time_limit=-1"),
        ({"scheduler": "tcp://here:1"}, 'scheduler is for engine="dask"'),
    ],
)
def test_a_mistake_in_a_sweep_is_refused(options, sentence, tmp_path):
    with pytest.raises(tr.InputError, match=sentence):
        tr.sweep(**{"cells": [tr.Cell(model="toy")], "directory": tmp_path, "progress": False, **options})


def test_without_cloudpickle_a_model_of_ones_own_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(tr.InputError, match=r"needs cloudpickle \(pip install 'tightrope\[cluster\]'\)"):
        packed(swept.cells(os.devnull)[0], False)
    assert packed(tr.Cell(model="toy"), False)


def test_what_cannot_be_pickled_is_told(tmp_path):
    with (tmp_path / "file").open("w") as file:
        model = tr.Model({"a": swept.dist.Normal(0.0, 1.0)}, lambda p: (p["a"], file)[0][None], 0.1, [1.0])
        with pytest.raises(tr.InputError, match="holds something that cannot be pickled"):
            packed(tr.Cell(model=model), False)


@pytest.fixture
def cluster(tmp_path):
    """The address and the process of a scheduler, which has two workers in processes of their own."""
    file = tmp_path / "scheduler.json"
    start = lambda *words: subprocess.Popen(
        [sys.executable, "-m", "distributed.cli." + words[0], *words[1:], "--scheduler-file", str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    processes = [start("dask_scheduler", "--port", "0", "--no-dashboard", "--host", "127.0.0.1")]
    await_that(file.exists)
    processes += [start("dask_worker", "--nthreads", "1", "--no-dashboard") for _ in range(2)]
    yield json.loads(file.read_text())["address"], processes[0]
    for process in processes:
        process.terminate()
        process.wait(20)


@pytest.mark.slow
def test_workers_elsewhere_give_the_same(finished, cluster, tmp_path):
    directory, _, _ = finished
    tr.sweep(swept.cells(tmp_path / "log"), tmp_path / "cells", engine="dask", scheduler=cluster[0], keep_draws=True)
    assert records(tmp_path / "cells") == records(directory)
    pids = runs(tmp_path / "log")
    assert all(len(cell) == 1 for cell in pids.values()), pids
    for file in directory.glob("*.nc"):
        with xr.open_datatree(file) as one, xr.open_datatree(tmp_path / "cells" / file.name) as other:
            assert one["posterior"].dataset.equals(other["posterior"].dataset)
            assert one["sample_stats"].dataset.equals(other["sample_stats"].dataset)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=lambda how: how.name)
@pytest.mark.parametrize("engine", ["local", "dask"])
def test_a_sweep_that_was_stopped_goes_on(finished, engine, how, tmp_path, request):
    directory, _, _ = finished
    address = [request.getfixturevalue("cluster")[0]] if engine == "dask" else []
    cells, log = tmp_path / "cells", tmp_path / "log"
    sweeping = subprocess.Popen(
        [sys.executable, swept.__file__, str(cells), str(log), engine, *address],
        stderr=subprocess.PIPE,
    )
    # Stopped when one cell is done, and another is at work.
    began = lambda: {sigma for sigma, pids in runs(log, sweeping.pid).items() if pids}
    await_that(lambda: log.exists() and len(list(cells.glob("*.json"))) == 1 and len(began()) > 1, 180)
    sweeping.send_signal(how)
    _, errors = sweeping.communicate(timeout=60)
    assert sweeping.returncode not in (0, None)
    if how == signal.SIGINT:
        assert errors.decode().strip().endswith("KeyboardInterrupt")
    await_that(lambda: not any(is_alive(pid) for pids in runs(log, sweeping.pid).values() for pid in pids), 20)

    done = {file: file.stat().st_mtime_ns for file in cells.glob("*.json")}
    assert 0 < len(done) < 3
    scheduler = address[0] if address else None
    table = tr.sweep(swept.cells(log), cells, engine=engine, scheduler=scheduler, workers=1, progress=False)
    assert list(table["status"]) == ["finished"] * 3
    assert records(cells) == records(directory)
    assert {file: file.stat().st_mtime_ns for file in done} == done
    for name in done:
        sigma = json.loads(name.read_text())["labels"]["sigma"]
        assert len(runs(log, sweeping.pid)[str(sigma)]) == 1, "a cell that was done has run twice"


@pytest.mark.slow
def test_a_scheduler_that_is_gone_is_told(cluster, tmp_path):
    (address, scheduler), log = cluster, tmp_path / "log"
    sweeping = subprocess.Popen(
        [sys.executable, swept.__file__, str(tmp_path / "cells"), str(log), "dask", address], stderr=subprocess.PIPE
    )
    await_that(lambda: log.exists() and any(runs(log, sweeping.pid).values()), 180)
    scheduler.kill()
    _, errors = sweeping.communicate(timeout=120)
    assert sweeping.returncode == 1 and "SamplingError: the scheduler has given up cells" in errors.decode()
    await_that(lambda: not any(is_alive(pid) for pids in runs(log, sweeping.pid).values() for pid in pids), 60)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (CancelledError(), "start the same sweep again"),
        (OSError("no room"), "no cell can be run: OSError: no room"),
    ],
)
def test_an_engine_that_fails_ends_the_sweep(error, sentence):
    future = Future()
    future.set_exception(error)
    with pytest.raises(tr.SamplingError, match=sentence):
        result_of(future)


def test_a_cell_that_kills_workers_has_failed():
    future, killed = Future(), type("KilledWorker", (Exception,), {})
    future.set_exception(killed("three of them"))
    assert result_of(future).record == {"status": "failed", "error": "KilledWorker: three of them"}


def test_a_process_that_is_not_wanted_ends(tmp_path):
    log, looks = tmp_path / "log", iter([True, False])
    cell = swept.cells(log)[0]
    with pytest.raises(CancelledError):
        run_apart(packed(cell, False), 1, lambda: next(looks))
    assert not any(is_alive(pid) for pids in runs(log).values() for pid in pids)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"ess_per_second": 21.04, "r_hat": 1.004}, "21 ESS/s, R-hat 1.004"),
        ({"ess_per_second": 0.1, "r_hat": 4.2}, "not converged, R-hat 4.200"),
        ({"error": "no luck"}, "no luck"),
    ],
)
def test_how_a_cell_went_is_told(row, words):
    assert went(row) == words
