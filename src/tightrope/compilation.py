"""Keep compiled programs, and starts, from one process to the next, so that the second start of a model is quick."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import platform
import threading
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

MIN_SECONDS = 0.05  # of compilation, to be kept
MAX_BYTES = 2**30  # in all
MAKERS = ("jax", "jaxlib", "numpy", "numpyro", "scikit-fem", "scipy")
# Loops with kernels that XLA has planned to write in its newer way are never one piece of machine code: a step of the
# toy takes 10 us in place of 4. Later versions have no other way.
ONE_PIECE: dict[str, bool] = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 10) else {}
TRACING = threading.RLock()  # two threads that trace one function at a time are too many for JAX
HITS = threading.local()  # of each thread in JAX's own cache


def note_hit(event: str, **_: Any) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        HITS.number = num_hits() + 1


def num_hits() -> int:
    return getattr(HITS, "number", 0)


jax.monitoring.register_event_listener(note_hit)


def compiled(trace: Callable[[], Any], name: str | None = None, options: Mapping[str, bool] | None = None) -> Any:
    """What is traced, compiled with the options of XLA: one thread traces at a time, several compile.

    With a name of all that the program is, but for the software that makes it, it is kept whole, where programs are
    kept, and the next process need not even trace it. Programs of several names may be one.
    """
    settings = dict(options or {})
    file = None if name is None else file_of(name, settings)
    program = None if file is None else unkept(file)
    if program is not None:
        return program
    with TRACING:
        traced = trace()
    if file is None:
        return traced.compile(compiler_options=settings)
    twin = file_of(traced.as_text(), settings) or file
    program = unkept(twin)
    if program is None:
        hits = num_hits()
        program = traced.compile(compiler_options=settings)
        if num_hits() > hits:
            return program  # what XLA has read from its own cache it cannot write down again
        keep(twin, lambda: sealed(pickle.dumps(serialize(program))))
    keep(file, twin.read_bytes)
    return program


def remembered(find: Callable[[], np.ndarray], name: str | None = None) -> np.ndarray:
    """Numbers that take long to find; with a name of all that they depend on, but for the software, they are kept."""
    file = None if name is None else file_of(name)
    if file is None:
        return find()
    try:
        found = np.load(io.BytesIO(unsealed(file.read_bytes())))
        os.utime(file)
    except (OSError, ValueError):  # there are none, or they are damaged
        found = find()
        content = io.BytesIO()
        np.save(content, found)
        keep(file, lambda: sealed(content.getvalue()))
    return found


def file_of(name: str, options: Mapping[str, bool] | None = None) -> Path | None:
    """Where something is kept; nowhere, if the folder is not ours."""
    directory = jax.config.values["jax_compilation_cache_dir"]
    if directory != str(programs_folder()):
        return None
    is_quick = jax.config.values["jax_disable_most_optimizations"]
    settings = (jax.default_backend(), os.environ.get("XLA_FLAGS"), is_quick, *software())
    digest = hashlib.sha256("\n".join(map(str, (name, options, *settings))).encode()).hexdigest()
    return Path(directory) / f"tightrope-{digest[:32]}"


@cache
def software() -> tuple[str, ...]:
    """The versions of what programs are made with and from; of our own code every line."""
    source = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*")):
        if path.suffix in (".py", ".csv"):
            source.update(path.read_bytes())
    return source.hexdigest(), *(f"{name} {version(name)}" for name in MAKERS)


def keep(file: Path, content: Callable[[], bytes]) -> None:
    """Write something down, whole or not at all."""
    part = file.with_name(f"{file.name}-{os.getpid()}-{threading.get_ident()}")
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # no room, or nothing that XLA can write
        part.write_bytes(content())
        part.replace(file)


def sealed(content: bytes) -> bytes:
    """With a checksum before it: what is damaged must not run."""
    return hashlib.sha256(content).digest() + content


def unsealed(content: bytes) -> bytes:
    if sealed(content[32:]) != content:
        raise ValueError("damaged")
    return content[32:]


def unkept(file: Path) -> Any:
    """The program of a file; None if there is none, or none that can be read."""
    try:
        content = unsealed(file.read_bytes())
        find_lapack()
        program = deserialize_and_load(*pickle.loads(content))
        os.utime(file)  # what is used stays
    except Exception:  # there is none, or none that this JAX can read: it is made anew
        return None
    return program


@cache
def find_lapack() -> None:
    """Let JAX look up the functions of LAPACK, as it does when a call to one is traced: a kept program only calls."""
    with TRACING:
        jax.jit(jax.lax.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), float))


def keep_programs() -> None:
    """Let JAX keep what it compiles in the user's cache folder, unless the user has told it where or not to."""
    settings = jax.config.values
    is_quiet = os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3" or jax.__version_info__ >= (0, 12)  # not if JAX came before us
    if settings["jax_compilation_cache_dir"] or not settings["jax_enable_compilation_cache"] or not is_quiet:
        return
    directory = programs_folder()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        trim(directory, MAX_BYTES)
    except OSError:
        return  # a home that cannot be written to: all is compiled anew
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)


def programs_folder() -> Path:
    return cache_folder() / f"programs-{machine()}"


def cache_folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path("~/.cache").expanduser()) / "tightrope"


@cache
def machine() -> str:
    """A name for processors of this kind: in a home that machines share, each finds programs that it can run."""
    words = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        words += sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]


def trim(directory: Path, max_bytes: int) -> None:
    """Remove the oldest files until the rest is small enough."""
    files = [(entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(directory)]
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= max_bytes:
            break
        Path(path).unlink(missing_ok=True)
        total -= size
