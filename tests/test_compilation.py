import os
import subprocess
import sys

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


def start(home, **settings):
    """Where a process keeps its programs, and whether it found one there; what it says besides."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "TF_CPP"))}
    environment = ours | {"XDG_CACHE_HOME": str(home), **settings}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split(), done.stderr


def test_a_second_process_finds_the_programs_of_the_first(tmp_path):
    """Whatever order its hashes have, and without a word."""
    for hash_seed, is_found in (("1", "False"), ("2", "True")):
        (directory, found), said = start(tmp_path, PYTHONHASHSEED=hash_seed)
        assert directory.startswith(str(tmp_path / "tightrope"))
        assert found == is_found
        assert said == ""


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
