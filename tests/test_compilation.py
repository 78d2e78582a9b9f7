import os
import subprocess
import sys

import tightrope as tr
from tightrope import compilation

PROGRAM = """
import tightrope as tr, jax
kept = []
jax.monitoring.register_event_listener(lambda event, **_: kept.append(event))
program, u = jax.jit(tr.zoo.load("lotka-volterra").log_density), jax.numpy.zeros(8)
kept.clear()
program(u)
print(jax.config.jax_compilation_cache_dir, "/jax/compilation_cache/cache_hits" in kept)
"""


SAMPLE = """
import hashlib, sys, warnings
import tightrope as tr
from tightrope import initialise
from tightrope.kernel import Kernel

traced, advance = [], Kernel._advance
Kernel._advance = lambda self, *args: traced.append(args) or advance(self, *args)
found, refined_points = [], initialise.refined_points
initialise.refined_points = lambda *args: found.append(args) or refined_points(*args)
warnings.simplefilter("ignore", tr.SamplingWarning)
model = tr.zoo.load("toy", sigma=float(sys.argv[1]))
trace = tr.sample(model, 20, 20, 2, seed=1, method=tr.LiftedNUTS(max_depth=int(sys.argv[2])), progress=False)
print(len(traced), len(found), hashlib.sha256(trace["posterior"]["theta"].values.tobytes()).hexdigest())
"""


def start(home, program=PROGRAM, *arguments, **settings):
    """What a process prints that keeps its programs in a home, and what it says besides."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "TF_CPP"))}
    environment = ours | {"XDG_CACHE_HOME": str(home), **settings}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split(), done.stderr


def test_a_second_process_finds_the_programs_of_the_first(tmp_path):
    """Whatever order its hashes have, and without a word."""
    for hash_seed, is_found in (("1", "False"), ("2", "True")):
        (directory, found), said = start(tmp_path, PYTHONHASHSEED=hash_seed)
        assert directory.startswith(str(tmp_path / "tightrope"))
        assert found == is_found
        assert said == ""


def test_a_posterior_of_the_zoo_is_traced_and_its_starts_are_found_once(tmp_path):
    run = lambda sigma, depth: start(tmp_path, SAMPLE, sigma, depth, JAX_DISABLE_MOST_OPTIMIZATIONS="1")[0]
    (traced, found, draws), (*again, same) = run("0.1", "4"), run("0.1", "4")
    assert (traced, found, *again) == ("1", "1", "0", "0") and same == draws
    (*of_other_noise, others), (*of_shorter_trees, _) = run("0.2", "4"), run("0.1", "3")
    assert of_other_noise == ["1", "1"] and of_shorter_trees == ["1", "0"] and others != draws
    for file in tmp_path.rglob("tightrope-*"):
        content = file.read_bytes()
        file.write_bytes(content[:-1000] + bytes(1000))
    *mended, still_the_same = run("0.1", "4")
    assert mended == ["1", "1"] and still_the_same == draws


OPTIONS = """
from tightrope.compilation import file_of
print(*(file_of("program", options) for options in ({}, {"fast": True}, {"fast": False})))
"""


def test_a_program_is_known_by_its_options(tmp_path):
    files = start(tmp_path, OPTIONS)[0]
    assert "None" not in files and len({*files}) == 3


def test_filters_are_not_one_piece():
    lifted, flat = tr.LiftedNUTS(), tr.NUTS()
    chain, toy = (tr.zoo.load(name).condition() for name in ("nonlinear-ssm", "toy"))
    assert [method.suits_one_piece(model) for method in (lifted, flat) for model in (chain, toy)] == [0, 1, 1, 1]


def test_where_the_user_says(tmp_path):
    (directory, _), _ = start(tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine"))
    assert directory == str(tmp_path / "mine")
    (directory, _), _ = start(tmp_path, JAX_ENABLE_COMPILATION_CACHE="false")
    assert directory == "None"


def test_a_home_that_cannot_be_written_to_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    (directory, _), said = start(tmp_path / "file")
    assert directory == "None"
    assert said == ""


def test_the_oldest_programs_go_first(tmp_path):
    for age, name in enumerate(["new", "older", "oldest"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    compilation.trim(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "older"]
    compilation.trim(tmp_path, 200)
    assert len(list(tmp_path.iterdir())) == 2
