"""Runs that nothing can spoil: whatever happens, no draw is lost and none changes."""

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray as xr
from cases import slow_but

import tightrope as tr
from tightrope import choice, runs
from tightrope.results import NoDraws

DISTURBED = Path(__file__).parent / "disturbed.py"


@pytest.fixture(autouse=True)
def short_runs_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        yield


@pytest.fixture
def legs(monkeypatch):
    save_often(monkeypatch)


def save_often(monkeypatch):
    """After every few iterations."""
    monkeypatch.setattr(runs, "SECONDS_PER_CALL", 0.0)
    monkeypatch.setattr(runs, "FIRST_LEG", 0.03)
    monkeypatch.setattr(runs, "LONGEST_LEG", 0.03)
    monkeypatch.setattr(runs, "MAX_SHARE", 1e9)


def own_model(slope=1.0, forward=lambda a: [a.sum(), a[0] ** 2, a[1]]):
    return tr.Model(
        {"a": dist.Normal(0.0, 1.0).expand([2]), "s": dist.LogNormal(-1.0, 0.5)},
        lambda p: slope * jnp.array(forward(p["a"])),
        "s",
        [1.0, 0.5, 0.3],
        derived={"total": lambda p: p["a"].sum()},
        coords={"which": ["left", "right"]},
        dims={"a": ["which"]},
    )


OPTIONS = {"draws": 100, "warmup": 40, "chains": 2, "seed": 1, "progress": False}


@pytest.fixture(scope="module")
def undisturbed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        return tr.sample(own_model(), **OPTIONS)


def assert_same_draws(found, expected):
    assert set(found.children) == set(expected.children)
    for group in expected.children:
        assert set(found[group].data_vars) == set(expected[group].data_vars)
        for name, values in expected[group].data_vars.items():
            assert found[group][name].dims == values.dims
            assert found[group][name].dtype == values.dtype
            np.testing.assert_array_equal(found[group][name].values, values.values, err_msg=f"{group} {name}")


def stopping_save(condition, original=runs.Run.save):
    """A way to save that stops the run where a condition holds, as by Ctrl-C there."""

    def save(run, recorder):
        original(run, recorder)
        if condition(run):
            run.stopped.set()

    return save


def stop_at(monkeypatch, *iterations):
    """Runs stop where all chains have made so many, one time after the other."""
    left = list(iterations)

    def is_due(run):
        if not left or run.iterations().min() < left[0]:
            return False
        return bool(left.pop(0))

    monkeypatch.setattr(runs.Run, "save", stopping_save(is_due))


# Same bits.


def test_a_stored_run_has_the_same_draws(tmp_path, undisturbed, legs):
    trace = tr.sample(own_model(), store=tmp_path / "run", **OPTIONS)
    assert_same_draws(trace, undisturbed)
    assert_same_draws(tr.load(tmp_path / "run"), undisturbed)
    read = xr.open_datatree(tmp_path / "run" / "draws.zarr", engine="zarr", consolidated=False)
    np.testing.assert_array_equal(read["posterior"]["a"].coords["which"], ["left", "right"])
    known = {"method", "seed", "compile_time", "warmup_time", "sampling_time", "model", "quantities"}
    assert known <= set(trace.posterior.attrs)
    assert tr.status(tmp_path / "run")["stage"] == "finished"


def resumed_until_finished(path, model, **options):
    """Go on with a run as often as it is stopped; how often that was, by stage."""
    stages = Counter()
    with contextlib.suppress(NoDraws):
        tr.sample(model, store=path, **options)
    while (stage := tr.status(path)["stage"]) != "finished":
        stages[stage] += 1
        with contextlib.suppress(NoDraws):
            tr.resume(path, model, progress=False)
    return stages


@pytest.mark.parametrize("method", slow_but(["lifted-nuts"], ["lifted-nuts", "nuts"]))
def test_a_resumed_run_has_the_same_draws(tmp_path, legs, monkeypatch, method):
    options = OPTIONS | {"method": method, "thin": 3, "save_warmup": True}
    expected = tr.sample(own_model(), **options)
    stop_at(monkeypatch, 21, 50)
    stages = resumed_until_finished(tmp_path / "run", own_model(), **options)
    assert stages == {"warm-up": 1, "sampling": 1}
    assert_same_draws(tr.load(tmp_path / "run"), expected)


def test_a_resumed_run_counts_in_the_same_lengths(tmp_path, legs, monkeypatch):
    options = OPTIONS | {"warmup": 80, "method": tr.LiftedNUTS(metric="diagonal"), "save_warmup": True}
    lengths, restore = [], runs.Run.restore

    def noted(run, saved):
        restore(run, saved)
        lengths.append(np.asarray(run.tuning.lengths))

    monkeypatch.setattr(runs.Run, "restore", noted)
    expected = tr.sample(own_model(), **options)
    stop_at(monkeypatch, 15, 40, 100)
    assert resumed_until_finished(tmp_path / "run", own_model(), **options) == {"warm-up": 2, "sampling": 1}
    assert_same_draws(tr.load(tmp_path / "run"), expected)
    before, *after = lengths
    assert (before == 1).all() and all((found == after[0]).all() and (found < 1).any() for found in after)


@pytest.mark.slow
def test_a_resumed_run_does_not_choose_again(tmp_path, legs, monkeypatch):
    """Dense NUTS, made to win, takes over from the lifted sampler, once."""
    races = []

    def race(run, rival, progress):
        races.append(original(run, rival, progress))
        return rival, "nuts: it had to."

    original = choice.race
    monkeypatch.setattr(choice, "race", race)
    stop_at(monkeypatch, 90, 130)
    options = OPTIONS | {"warmup": 100, "method": "auto"}
    resumed_until_finished(tmp_path / "run", own_model(), **options)
    trace = tr.load(tmp_path / "run")
    assert len(races) == 1
    assert trace.posterior.attrs["method"] == "nuts"
    assert trace.posterior.attrs["choice"] == "nuts: it had to."
    assert np.isfinite(trace.posterior["a"]).all() and len(np.unique(trace.posterior["a"][0, :, 0])) > 30


def test_an_extended_run_keeps_its_draws(tmp_path, undisturbed):
    tr.sample(own_model(), store=tmp_path / "run", **OPTIONS)
    trace = tr.extend(tmp_path / "run", 150, own_model(), progress=False)
    assert trace.posterior.sizes["draw"] == 150
    np.testing.assert_array_equal(trace.posterior["a"][:, :100], undisturbed.posterior["a"])
    assert len(np.unique(trace.posterior["a"][0, :, 0])) > 100
    with pytest.raises(tr.InputError, match="less than the 150"):
        tr.extend(tmp_path / "run", 120, own_model())


def test_an_unfinished_run_is_extended(stopped, undisturbed):
    trace = tr.extend(stopped, 150, own_model(), progress=False)
    assert trace.posterior.sizes["draw"] == 150
    np.testing.assert_array_equal(trace.posterior["a"][:, :100], undisturbed.posterior["a"])


def test_a_refused_extension_changes_nothing(stopped):
    with pytest.raises(tr.InputError, match="another model"):
        tr.extend(stopped, 150, own_model(slope=2.0))
    assert tr.status(stopped)["total"] == 140


# Faults: a sentence each, and what is saved is safe.


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    """A run that was stopped in sampling, with two checkpoints, and the same when it was in warm-up."""
    path = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        save_often(patch)
        stop_at(patch, 15, 60)
        with pytest.raises(NoDraws, match="tightrope resume"):
            tr.sample(own_model(), store=path / "sampling", **OPTIONS)
        shutil.copytree(path / "sampling", path / "warm-up")
        tr.resume(path / "sampling", own_model(), progress=False)
    for stage in ("warm-up", "sampling"):
        assert tr.status(path / stage)["stage"] == stage
    return path


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(stopped_once / "sampling", tmp_path / "run")


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[len(data) // 2] ^= 4
    path.write_bytes(data[: len(data) // 2] if how == "truncated" else data)


@pytest.mark.parametrize("how", ["flipped", "truncated"])
def test_a_damaged_checkpoint_is_replaced_by_the_one_before(stopped, undisturbed, how):
    damage(stopped / "checkpoint", how)
    assert_same_draws(tr.resume(stopped, own_model(), progress=False), undisturbed)


def test_damaged_checkpoints_are_told(stopped):
    damage(stopped / "checkpoint", "flipped")
    damage(stopped / "checkpoint.previous", "truncated")
    with pytest.raises(tr.StoreError, match=r"checkpoints in .* are damaged or gone: tr.load reads"):
        tr.resume(stopped, own_model())
    assert tr.load(stopped).posterior.sizes["draw"] > 0


@pytest.mark.parametrize(
    ("array", "how"),
    [("posterior/a", "flipped"), ("unconstrained_posterior/s", "truncated"), ("sample_stats/diverging", "lost")],
)
def test_damaged_draws_are_told(stopped, array, how):
    file = next(path for path in (stopped / "draws.zarr" / array / "c" / "1").rglob("*") if path.is_file())
    damage(file, how) if how != "lost" else file.unlink()
    for use in (lambda: tr.load(stopped), lambda: tr.resume(stopped, own_model())):
        with pytest.raises(tr.StoreError, match=f"{array} is damaged"):
            use()


def test_damaged_warmup_is_told(stopped_once, tmp_path):
    path = shutil.copytree(stopped_once / "warm-up", tmp_path / "run")
    damage(path / "warmup.zarr" / "c" / "0" / "0" / "0", "flipped")
    with pytest.raises(tr.StoreError, match=r"warmup.zarr is damaged"):
        tr.resume(path, own_model())


def test_another_model_is_refused(stopped):
    with pytest.raises(tr.InputError, match="another model"):
        tr.resume(stopped, own_model(slope=1.0 + 1e-12))
    with pytest.raises(tr.InputError, match="another model"):
        tr.resume(stopped, own_model(forward=lambda a: [a.sum(), a[1] ** 2, a[0]]))
    with pytest.raises(tr.InputError, match="another model"):
        tr.resume(stopped, own_model().with_observed([1.0, 0.5, 0.30001]))
    with pytest.raises(tr.InputError, match="pass it again"):
        tr.resume(stopped)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record["versions"].update(jax="0.1"), "was made with jax 0.1"),
        (lambda record: record.update(format=99), "format is 99"),
    ],
)
def test_another_version_is_refused(stopped, change, words):
    record = json.loads((stopped / "run.json").read_text())
    change(record)
    (stopped / "run.json").write_text(json.dumps(record))
    with pytest.raises(tr.InputError, match=words):
        tr.resume(stopped, own_model())


def test_a_damaged_status_is_read_from_the_checkpoint(stopped, undisturbed):
    before = tr.status(stopped)
    damage(stopped / "status.json", "truncated")
    assert tr.status(stopped)["iterations"] == before["iterations"]
    assert_same_draws(tr.resume(stopped, own_model(), progress=False), undisturbed)


def test_checkpoints_that_are_gone_are_told(stopped):
    for name in ("checkpoint", "checkpoint.previous"):
        (stopped / name).unlink()
    for use in (lambda: tr.resume(stopped, own_model()), lambda: tr.sample(own_model(), store=stopped, **OPTIONS)):
        with pytest.raises((tr.StoreError, tr.InputError), match=r"damaged or gone|already holds a run"):
            use()
    assert tr.load(stopped).posterior.sizes["draw"] > 0


def test_damaged_metadata_is_told(stopped):
    damage(stopped / "draws.zarr" / "posterior" / "a" / "zarr.json", "truncated")
    for use in (lambda: tr.load(stopped), lambda: tr.resume(stopped, own_model())):
        with pytest.raises(tr.StoreError, match="is damaged"):
            use()


def test_a_folder_without_a_checkpoint_is_taken_over(tmp_path):
    """What was refused after the folder was made can be asked again."""
    with pytest.raises(tr.InputError, match="init="):
        tr.sample(own_model(), store=tmp_path / "run", **OPTIONS, init="nowhere")
    (tmp_path / "run" / "warmup.zarr").mkdir()
    trace = tr.sample(own_model(), store=tmp_path / "run", **OPTIONS)
    assert trace.posterior.sizes["draw"] == 100


def test_a_damaged_record_is_told(stopped):
    damage(stopped / "run.json", "truncated")
    with pytest.raises(tr.StoreError, match=r"run.json cannot be read"):
        tr.status(stopped)


def test_folders_that_cannot_be_used_are_refused(tmp_path, stopped):
    (tmp_path / "file").touch()
    with pytest.raises(tr.InputError, match=r"cannot write to .*: Not a directory"):
        tr.sample(own_model(), store=tmp_path / "file" / "run", **OPTIONS)
    with pytest.raises(tr.InputError, match="already holds a run"):
        tr.sample(own_model(), store=stopped, **OPTIONS)
    for use in (tr.resume, tr.load, tr.status):
        with pytest.raises(tr.InputError, match="holds no run"):
            use(tmp_path)


def test_one_process_at_a_time(stopped):
    with (stopped / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(tr.StoreError, match="in use by another process"):
            tr.resume(stopped, own_model())
        assert tr.status(stopped)["is_running"]
        assert tr.load(stopped).posterior.sizes["draw"] > 0
    assert not tr.status(stopped)["is_running"]


def test_fingerprints_are_the_same_in_every_process():
    program = "import tightrope as tr; from tightrope.provenance import fingerprint; "
    program += "print(*[fingerprint(tr.zoo.load(name)) for name in ('lotka-volterra', 'squid-potassium')])"
    found = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
        ).stdout
        for environment in (os.environ | {"PYTHONHASHSEED": str(number)} for number in range(2))
    }
    assert len(found) == 1 and found != {"\n"}


# Processes that die.


def tightrope(path, *command, **environment):
    """The command line in a process of its own, which writes slowly."""
    settings = {"EVENTS": str(path.with_suffix(".events")), "CACHE": str(path.with_suffix(".cache")), **environment}
    settings["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # as here, for the same bits
    return [sys.executable, str(DISTURBED), *command], os.environ | settings


def run_whole(path, *command, **environment):
    arguments, environment = tightrope(path, *command, **environment)
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=600)


def test_a_full_disk_is_told_and_loses_nothing(tmp_path):
    """Files may not grow beyond 20 kB, for a while."""
    path, command = tmp_path / "run", ("run", "toy", "--chains", "2", "--warmup", "200", "--draws", "3000")
    ended = run_whole(path, *command, "--out", str(path), LIMIT="20000")
    assert ended.returncode == 1, ended.stderr
    assert "File too large. All that was saved before is safe" in ended.stderr
    assert "Traceback" not in ended.stderr
    ended = run_whole(path, "resume", str(path))
    assert ended.returncode == 0, ended.stderr
    expected = tr.sample(tr.zoo.load("toy"), 3000, 200, 2, progress=False)
    assert_same_draws(tr.load(path), expected)


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None
        time.sleep(0.01)


def events(path):
    file = path.with_suffix(".events")
    return file.read_text().splitlines() if file.exists() else []


def under_way(lines):
    """What a process was at when it died."""
    begun = Counter()
    for line in lines:
        verb, event = line.split(" ", 1)
        begun[event] += 1 if verb == "begin" else -1
    return {event for event in begun if begun[event] > 0}


POSTERIORS = {
    "toy": ["--warmup", "300", "--draws", "2000"],
    "lotka-volterra": ["--warmup", "200", "--draws", "1000"],
    "nonlinear-ssm": ["--warmup", "60", "--draws", "60"],
}
MOMENTS = [
    "compilation",
    "warm-up",
    "write",
    "sampling",
    "write",
    "warm-up",
    "compilation",
    "write",
    "sampling",
    "write",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", POSTERIORS)
def test_killed_ten_times_and_resumed(tmp_path, name):
    path, chance, fell = tmp_path / "run", random.Random(1), Counter()
    sizes = dict(zip(*[iter(POSTERIORS[name])] * 2, strict=True))
    for number, moment in enumerate(MOMENTS):
        path.with_suffix(".events").unlink(missing_ok=True)
        is_new = not (path / "run.json").exists()
        command = (
            ("run", name, "--seed", "1", *POSTERIORS[name], "--out", str(path)) if is_new else ("resume", str(path))
        )
        arguments, environment = tightrope(path, *command)
        process = subprocess.Popen(
            arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        wanted = {moment, "sampling"} if moment == "warm-up" else {moment}  # warm-up may be over
        reached = lambda wanted=wanted: wanted & under_way(events(path))
        wait_for(reached, process)
        time.sleep(chance.uniform(0.0, 0.6 if moment != "write" else 0.3))
        if moment != "compilation":  # which comes once; a leg of the others takes a tenth of a second
            wait_for(reached, process)
        process.kill()
        assert process.wait() == -signal.SIGKILL, f"kill {number} came too late"
        fell.update(under_way(events(path)))
    assert {"compilation", "warm-up", "sampling", "write"} <= set(fell), fell
    ended = run_whole(path, "resume", str(path))
    assert ended.returncode == 0, ended.stderr
    expected = tr.sample(tr.zoo.load(name), int(sizes["--draws"]), int(sizes["--warmup"]), seed=1, progress=False)
    assert_same_draws(tr.load(path), expected)


def test_ctrl_c_in_a_terminal(tmp_path):
    """Another process asks how far it is; then one key press ends it, with all saved."""
    path = tmp_path / "run"
    arguments, environment = tightrope(path, "run", "toy", "--draws", "100000", "--out", str(path), TERMINAL="yes")
    terminal, inner = os.openpty()
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # also where a shell runs these tests in its background
    process = subprocess.Popen(
        arguments, env=environment, stdin=inner, stdout=inner, stderr=inner, start_new_session=True, preexec_fn=heed
    )
    os.close(inner)
    shown = []
    reader = threading.Thread(target=lambda: read_all(terminal, shown))
    reader.start()
    wait_for(lambda: events(path).count("begin sampling") > 3, process)
    asked = run_whole(tmp_path / "other", "status", str(path))
    assert asked.returncode == 0 and "sampling, running" in asked.stdout and "s to go" in asked.stdout
    pressed = time.perf_counter()
    os.write(terminal, b"\x03")
    process.wait(timeout=60)
    print(f"ended {time.perf_counter() - pressed:.2f} s after the key press")
    reader.join(timeout=10)
    text = b"".join(shown).decode()
    assert process.returncode == 130
    assert f"tightrope resume {path}" in text.replace("\r\n", "")
    assert "Traceback" not in text
    found = tr.status(path)
    assert found["stage"] == "sampling" and not found["is_running"]
    assert tr.load(path).posterior.sizes["draw"] == min(found["iterations"]) - 1000


def read_all(terminal, shown):
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 4096):
            shown.append(data)
