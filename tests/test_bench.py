"""Benchmarks: draws are read as they come, times are charged fairly, and no ratio says more than was seen."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import tightrope as tr
from tightrope import bench
from tightrope.bench import judge, table, worker
from tightrope.bench.contenders import Batch, Nutpie, Task
from tightrope.environment import LOOPS
from tightrope.results import Converter

RULES = bench.Rules(ess=400.0, budget=100.0)


def test_posteriors_are_named_with_their_noise():
    assert bench.posterior_of("toy:0.01") == ("toy", {"sigma": 0.01})
    assert bench.posterior_of("lotka-volterra") == ("lotka-volterra", {})
    with pytest.raises(tr.InputError, match="noise scale, a number"):
        bench.posterior_of("toy:small")
    with pytest.raises(tr.InputError, match="did you mean"):
        bench.posterior_of("toi")


def test_peers_are_known_and_installed(monkeypatch):
    with pytest.raises(tr.InputError, match="against"):
        bench.contenders(["stan"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(tr.InputError, match="mici is not installed"):
        bench.contenders(["mici"])
    assert bench.contenders([]) == ["tightrope"]


def request(out, **options):
    return bench.Request(["toy"], [], out, print, RULES, **options)


@pytest.mark.parametrize(("contender", "num_processes"), [("tightrope", 1), ("mici", 2)])
def test_every_chain_has_its_start(contender, num_processes, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    starts = np.arange(8.0).reshape(4, 2)
    folders = bench.laid_out(request(tmp_path), "toy", {}, contender, starts)
    assert len(folders) == num_processes
    np.testing.assert_array_equal(np.concatenate([np.load(folder / "starts.npy") for folder in folders]), starts)
    tasks = [json.loads((folder / "task.json").read_text()) for folder in folders]
    assert sorted(core for task in tasks for core in task["affinity"]) == [3, 5]
    assert len({task["seed"] for task in tasks}) == num_processes


def test_peers_have_the_compiler_as_it_comes_unless_they_are_to_share_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_cpu_enable_fast_math=false {LOOPS}")  # the user's, and ours
    program = "import os, tightrope; print(os.environ.get('XLA_FLAGS'))"
    monkeypatch.setattr(judge, "WORKER", ["-c", program])

    def said(contender, **options):
        (folder,) = bench.laid_out(request(tmp_path, **options), "toy", {}, contender, np.zeros((1, 2)))
        assert judge.start(folder).wait() == 0
        return judge.last_words([folder])

    assert said("mici") == "--xla_cpu_enable_fast_math=false"
    assert said("tightrope") == said("mici", share_compiler=True) == os.environ["XLA_FLAGS"]


class Enough(Exception):
    pass


class Fake:
    """Independent draws, as many as are asked for, and then no more."""

    def __init__(self, task):
        self.random, self.shape, self.left = np.random.default_rng(task.seed), task.starts.shape, 3

    def prepare(self):
        pass

    def warm_up(self):
        return 0.0

    def draw(self, number):
        self.left -= 1
        if self.left < 0:
            raise Enough
        return Batch(self.random.normal(size=(self.shape[0], number, self.shape[1])), 7 * self.shape[0] * number)


def test_what_workers_leave_is_read_and_judged(tmp_path, monkeypatch):
    for module in (bench, worker):
        monkeypatch.setattr(module, "CONTENDERS", {"tightrope": Fake, "fake": Fake})
    folders = bench.laid_out(request(tmp_path), "toy", {}, "fake", np.zeros((4, 2)))
    for folder in folders:
        with pytest.raises(Enough):
            worker.work(folder)
    readers = [judge.Reader(folder) for folder in folders]
    found = judge.draws_in(readers)
    assert found.u.shape == (4, min(reader.num_draws for reader in readers), 2)
    assert found.steps_per_draw == 7
    assert found.seconds <= max(reader.seconds for reader in readers)
    assert judge.draws_in(readers).u.shape == found.u.shape  # nothing is read twice
    model = tr.zoo.load("toy")
    figures = judge.figures_of(Converter(model, model.quantities), found._replace(u=found.u[:, :50]))
    assert figures["ess_bulk"] > 100 and judge.has_converged(figures)
    assert judge.figures_of(None, found._replace(u=np.zeros((4, 50, 2))))["ess_bulk"] == 0


def test_draws_of_nutpie_count_from_when_the_clock_starts():
    chains = Nutpie(Task(None, np.zeros((2, 1)), num_warmup=3, seed=1, cores=1))
    draws = np.arange(12.0)[:, None]
    chains.chains.update({7: list(draws[:5]), 8: list(draws[:6])})  # by threads: three draws of warm-up in each
    chains.advance(1)
    chains.chains[7] += list(draws[5:8])
    chains.chains[8] += list(draws[6:9])
    batch = chains.draw(2)
    np.testing.assert_array_equal(batch.u, [draws[5:8]] * 2)


def test_a_process_that_dies_is_told_of(tmp_path, monkeypatch):
    program = [sys.executable, "-c", "print('no luck')"]
    folders = bench.laid_out(request(tmp_path), "toy", {}, "tightrope", np.zeros((4, 2)))

    def start(folder):
        with (folder / "said.txt").open("wb") as said:
            return subprocess.Popen(program, stdout=said)

    monkeypatch.setattr(judge, "start", start)
    found = judge.judged(None, folders, RULES)
    assert (found["status"], found["error"]) == ("failed", "exit code 0: no luck")


def test_what_is_finished_is_not_run_again(tmp_path, monkeypatch):
    """A posterior that was left half-way is run from its beginning, so that its ratios are of one call."""
    names, ran = ["tightrope", "mici"], []
    monkeypatch.setattr(bench, "contenders", lambda _: names)
    ends = lambda _, folders, rules: ran.append(folders[0].parent.name) or {"status": "failed"}
    monkeypatch.setattr(bench, "judged", ends)
    asked = request(tmp_path)
    bench.keep(asked, [row(name) for name in names])
    assert [found["contender"] for found in bench.bench(asked)] == names and not ran
    bench.keep(asked, [row("tightrope")])
    bench.bench(asked)
    assert ran == names
    for other in (request(tmp_path, chains=2), asked._replace(against=["numpyro"])):
        with pytest.raises(tr.InputError, match="give another --out"):
            bench.bench(other)


def row(contender, **changes):
    facts = {"status": "finished", "r_hat": 1.001, "ess_bulk": 500.0, "ess_tail": 600.0, "chains": 4, "draws": 1000}
    times = {"compile_time": 5.0, "warmup_time": 3.0, "sampling_time": 2.0, "steps_per_draw": 7.0}
    return {"posterior": "toy", "contender": contender, **facts, **times, **changes}


def cells_of(theirs):
    """The table's last line, by column."""
    line = table.as_markdown([row("tightrope"), theirs], RULES).splitlines()[-1]
    return dict(zip(table.COLUMNS, (cell.strip() for cell in line.split("|")[1:-1]), strict=True))


@pytest.mark.parametrize(
    ("changes", "sampler", "sampling", "whole"),
    [
        (dict(sampling_time=20.0), "peer", "10", "2.8"),
        (dict(status="out of time", ess_bulk=100.0, sampling_time=80.0), "peer (out of time)", "> 50", "> 11"),
        (
            dict(status="out of time", r_hat=1.02, ess_bulk=1000.0, sampling_time=80.0),
            "peer (out of time)",
            "> 20",
            "> 4.4",
        ),
        (
            dict(status="out of time", r_hat=1.2, sampling_time=80.0),
            "peer (out of time, not converged)",
            "> 50",
            "> 11",
        ),
        (dict(status="failed", r_hat=None), "peer (failed, not converged)", "", ""),
    ],
)
def test_ratios_say_no_more_than_was_seen(changes, sampler, sampling, whole):
    """Ours has 250 effective draws a second, and 50 with all that comes before."""
    found = cells_of(row("peer", **changes))
    assert found["sampler"] == sampler
    assert (found["ours is faster, sampling"], found["ours is faster, whole run"]) == (sampling, whole)
    assert (found["bulk ESS"] == "") == ("not converged" in sampler)


@pytest.mark.parametrize(
    ("changes", "enough"),
    [({}, True), (dict(r_hat=1.02), False), (dict(ess_bulk=390.0), False), (dict(r_hat=None), False)],
)
def test_enough_are_many_draws_of_chains_that_agree(changes, enough):
    assert judge.is_enough(row("peer", **changes), RULES) == enough


def test_a_peer_without_draws_has_used_up_its_time():
    nothing = {"posterior": "toy", "contender": "peer", "status": "out of time", "draws": 0}
    assert cells_of(nothing)["ours is faster, sampling"] == "> 62.5"
