"""What is installed: the wheel, its public names, and what importing it brings along."""

import inspect
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import tightrope as tr

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tightrope"
# Modules that take long, and that few need. (On Python 3.11 arviz-base asks matplotlib, not its pyplot, for settings.)
HEAVY = {
    "arviz",
    "arviz_plots",
    "arviz_stats",
    "blackjax",
    "distributed",
    "matplotlib.pyplot",
    "numba",
    "pymc",
    "pytensor",
    "scipy.stats",
    "tightrope.importers.pymc",
}


def run(*command, cwd):
    """A process that sees neither this folder nor the settings of this one."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONWARNINGS")}
    result = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def build_wheel(folder):
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    [wheel] = folder.glob("*.whl")
    return wheel


def test_the_wheel_has_the_package_and_its_data_and_nothing_else(tmp_path):
    with zipfile.ZipFile(build_wheel(tmp_path)) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
        [metadata] = [wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/METADATA")]
    files = {path.relative_to(ROOT / "src").as_posix() for path in SOURCE.rglob("*") if path.is_file()}
    assert packed == {name for name in files if "__pycache__" not in name}
    assert {"tightrope/py.typed", "tightrope/report/style.css", "tightrope/zoo/lynx_hare.csv"} <= packed
    assert {Path(name).suffix for name in packed} == {".py", ".csv", ".css", ".typed"}
    assert {"bench", "cluster", "dev", "pymc"} <= set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE))


@pytest.mark.slow
def test_the_wheel_runs_the_first_example_in_an_empty_environment(tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    run(*pip, "-c", ROOT / "constraints.txt", build_wheel(tmp_path), cwd=tmp_path)
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    assert "tr.Model(" in example
    (tmp_path / "example.py").write_text(example + "\nprint(tr.__file__)\n")
    printed = run(python, "example.py", cwd=tmp_path).stdout
    assert "x0[1]" in printed and printed.splitlines()[-1].startswith(str(tmp_path / "env"))


@pytest.mark.parametrize("name", tr.__all__)
def test_public_names_exist_and_say_what_they_are(name):
    said = inspect.getdoc(getattr(tr, name))
    assert said and not said.startswith(f"{name}("), f"{name} has no docstring of its own"  # a dataclass makes one


def test_importing_brings_nothing_heavy(tmp_path):
    code = "import sys, tightrope; print(*sys.modules)"
    brought = set(run(sys.executable, "-c", code, cwd=tmp_path).stdout.split())
    assert "tightrope" in brought and not brought & HEAVY


@pytest.mark.slow  # elsewhere too pytest makes errors of such warnings, where they are about this package
def test_nothing_that_is_used_is_deprecated(tmp_path):
    code = """
import jax
import tightrope as tr
jax.config.update("jax_disable_most_optimizations", True)
trace = tr.sample(tr.zoo.load("toy", sigma=0.1), draws=20, warmup=20, chains=1, seed=1, progress=False)
tr.summary(trace)
"""
    run(sys.executable, "-W", "error::DeprecationWarning", "-c", code, cwd=tmp_path)
