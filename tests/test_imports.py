"""The check that imports point only downward finds those that do not."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def check(source):
    command = [sys.executable, ROOT / "tools" / "check_imports.py", source]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_package_imports_downward():
    result = check("src")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("frames.py", "from tightrope.systems import Lifted", "imports systems, which is above it"),
        ("frames.py", "from .systems import Lifted", "imports systems, which is above it"),
        ("frames.py", "from . import linalg, systems", "imports systems, which is above it"),
        ("frames.py", "import tightrope.systems as s", "imports systems, which is above it"),
        ("frames.py", "def f():\n    from .systems import Lifted", "imports systems, which is above it"),
        ("frames.py", "from tightrope import sample", "imports tightrope itself, which is above it"),
        ("zoo/toy.py", "from ..cli import main", "imports cli, which is above it"),
        ("zoo/toy.py", "from . import load", "imports zoo, which collects it"),
        ("bench.py", "from tightrope.reproduce import figures", "imports reproduce, which is beside it"),
        ("stray.py", "", "stray is not in the list of layers"),
    ],
)
def test_other_imports_are_caught(tmp_path, file, line, complaint):
    write_package(tmp_path, {file: line})
    result = check(tmp_path)
    where = f"{tmp_path / 'tightrope' / file}:{len(line.splitlines()) or 1}: "
    assert result.returncode == 1
    assert result.stdout.startswith(where + complaint), result.stdout
    assert len(result.stdout.splitlines()) == 1


def test_downward_imports_pass(tmp_path):
    write_package(
        tmp_path,
        {
            "__init__.py": "from tightrope.sampling import sample",
            "systems.py": "import jax\nfrom . import linalg\nfrom .frames import Tall",
            "zoo/__init__.py": "from . import toy\nfrom tightrope.zoo.toy import model",
            "zoo/toy.py": "from tightrope.models import Model\nfrom . import shared",
            "zoo/shared.py": "",
        },
    )
    result = check(tmp_path)
    assert result.returncode == 0, result.stdout


def write_package(source, files):
    """A package with a file for each part used here, and the given files over them."""
    modules = [f"{part}.py" for part in ("cli", "bench", "sampling", "systems", "frames", "models", "linalg")]
    folders = ["__init__.py", "zoo/__init__.py", "zoo/toy.py", "reproduce/__init__.py"]
    for name, text in {**dict.fromkeys(modules + folders, ""), **files}.items():
        path = source / "tightrope" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
