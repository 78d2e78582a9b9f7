"""A run directory: what was asked, the draws, and checkpoints from which to go on after any death.

    run.json              what was asked, by whom: options, seed, versions, fingerprint of the model
    draws.zarr            the draws, in the groups of ArviZ; xarray reads them while the run goes on
    warmup.zarr           rows of warm-up, which a resumed run learns from; rival.zarr, if dense NUTS took over
    checkpoint[.previous] all that the chains need to go on
    status.json           how far the run is
    lock                  held by the process that runs

A file is written beside its place and put there by one rename. Nothing is ever unpickled. Checkpoints are flushed to
the disk, draws are not: a loss of power, unlike the death of the process, may cost the latest of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import math
import os
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import xarray as xr
import zarr
from zarr.codecs import ZstdCodec

from tightrope.types import InputError

FORMAT = 1
MAX_CHUNK, CHUNK_BYTES = 10_000, 1_000_000  # draws of a chain in one file, and bytes
CHECKED = ZstdCodec(level=1, checksum=True)  # a flipped bit is found when the file is read
RUN, STATUS, CHECKPOINT, PREVIOUS, LOCK = "run.json", "status.json", "checkpoint", "checkpoint.previous", "lock"
DRAWS = "draws.zarr"


class StoreError(RuntimeError):
    """A run directory that cannot be written, or read as asked: one sentence that names it and the remedy."""


class Store:
    """A run directory, held by one process at a time."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.arrays: dict[str, zarr.Array] = {}  # those that are open, by name
        self.is_latest_whole = False  # whether the latest checkpoint may take the place of the one before

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep others from writing, until done or dead."""
        with self.saving():
            file = (self.path / LOCK).open("a")
        with file:
            for attempt in range(10):  # one who only looks has it for a moment
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.05 * (attempt > 0))
            else:
                raise StoreError(f"{self.path} is in use by another process: wait for it, or stop it.")
            yield

    def is_held(self) -> bool:
        """Whether some process is running this."""
        if not (self.path / LOCK).exists():
            return False
        with (self.path / LOCK).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Say in a sentence what the operating system refuses."""
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"cannot write to {self.path}: {error.strerror or error}. All that was saved before is safe: mend "
                f"that, and go on with `tightrope resume {self.path}`."
            ) from error

    @classmethod
    def create(cls, path: Path | str) -> Store:
        """A directory, perhaps a new one."""
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
            (Path(path) / LOCK).touch()
        except OSError as error:
            raise InputError(f"store: cannot write to {path}: {error.strerror or error}.") from None
        return cls(path)

    def begin(self, record: Mapping[str, Any]) -> None:
        """Note what is asked, unless a run has come so far here that it can go on."""
        if any((self.path / name).exists() for name in (CHECKPOINT, PREVIOUS, STATUS)):
            raise InputError(
                f"store: {self.path} already holds a run: go on with it by tr.resume or "
                f"`tightrope resume {self.path}`, or choose another folder."
            )
        self.rewrite({"format": FORMAT, **record})

    @classmethod
    def open(cls, path: Path | str) -> Store:
        """A directory that a run was begun in."""
        store = cls(path)
        if not (store.path / RUN).is_file():
            raise InputError(f"{path} holds no run: it has no {RUN}.")
        made = store.record().get("format")
        if made != FORMAT:
            raise InputError(f"{path} was made by another version of Tightrope: its format is {made}, not {FORMAT}.")
        return store

    def record(self) -> dict[str, Any]:
        """What was asked."""
        return self.read_json(RUN)

    def rewrite(self, record: Mapping[str, Any]) -> None:
        """Ask for something else."""
        with self.saving():
            write(self.path / RUN, as_json(record))

    def status(self) -> dict[str, Any]:
        """How far the run is; empty before its first checkpoint."""
        if not (self.path / STATUS).exists():
            return {}
        try:
            return self.read_json(STATUS)
        except StoreError:
            saved = self.checkpoint()
            return {} if saved is None else facts_of(saved)

    def read_json(self, name: str) -> dict[str, Any]:
        try:
            return json.loads((self.path / name).read_bytes())
        except (OSError, ValueError):
            raise StoreError(f"{self.path / name} cannot be read, or is damaged.") from None

    def save(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        """A new checkpoint; the one before is kept. Facts are what JSON has words for, and what status tells."""
        buffer, text = io.BytesIO(), as_json(facts)
        np.savez(buffer, **arrays, facts=np.frombuffer(text, np.uint8))  # type: ignore[arg-type]
        data = buffer.getvalue()
        latest = self.path / CHECKPOINT
        with self.saving():
            write(latest.with_suffix(".new"), hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
            if self.is_latest_whole:
                latest.replace(self.path / PREVIOUS)
            latest.with_suffix(".new").replace(latest)
            flush_folder(self.path)
            self.is_latest_whole = True
            write(self.path / STATUS, text)

    def checkpoint(self) -> dict[str, np.ndarray] | None:
        """The latest checkpoint that is whole; None if the run died before the first."""
        files = [self.path / name for name in (CHECKPOINT, PREVIOUS) if (self.path / name).exists()]
        for file in files:
            with contextlib.suppress(OSError, ValueError, zipfile.BadZipFile, KeyError):
                digest, _, data = file.read_bytes().partition(b"\n")
                if hashlib.sha256(data).hexdigest().encode() == digest:
                    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                        self.is_latest_whole = file.name == CHECKPOINT
                        return dict(arrays)
        if files or (self.path / STATUS).exists():
            raise StoreError(
                f"the checkpoints in {self.path} are damaged or gone: tr.load reads the draws there are, but to go on "
                "begin anew in another folder."
            )
        return None

    # The draws.

    def allot(self, template: xr.DataTree) -> None:
        """Groups like those of a template, which has no draws."""
        with self.saving():
            coding = {
                f"/{name}": {
                    variable: encoding(array) for variable, array in group.variables.items() if "draw" in array.dims
                }
                for name, group in template.children.items()
                if "draw" in group.dims
            }
            spelt_out(template).to_zarr(self.path / DRAWS, mode="w", encoding=coding, consolidated=False, zarr_format=3)

    def lengthen(self, group: str, size: int) -> None:
        """Room for more draws in a group."""
        with self.saving():
            for _, array in zarr.open_group(self.path / DRAWS, path=group, mode="r+").arrays():
                names = dimensions(array)
                axis = names.index("draw") if "draw" in names else None
                if axis is not None and array.shape[axis] < size:
                    array.resize((*array.shape[:axis], size, *array.shape[axis + 1 :]))
                    if names == ("draw",):
                        array[:] = np.arange(size)

    def write_draws(self, groups: Mapping[str, Mapping[str, np.ndarray]], chain: int, start: int) -> None:
        """Draws of one chain, arrays of shape (1, draw, ...), from a place on."""
        with self.saving():
            for group, variables in groups.items():
                for name, values in variables.items():
                    array = self.array(f"{DRAWS}/{group}/{name}")
                    array[chain : chain + 1, start : start + values.shape[1]] = values

    def write_rows(self, label: str, shape: tuple[int, ...], chain: int, start: int, rows: np.ndarray) -> None:
        """Rows of one chain's warm-up."""
        with self.saving():
            name = f"{label}.zarr"
            if not (self.path / name / "zarr.json").exists():
                zarr.create_array(
                    self.path / name,
                    shape=shape,
                    chunks=(1, chunk(shape[2]), shape[2]),
                    dtype=float,
                    compressors=CHECKED,
                    fill_value=np.nan,
                    overwrite=True,
                )
            self.array(name)[chain, start : start + len(rows)] = rows

    def read_rows(self, label: str, chain: int, stop: int) -> np.ndarray:
        """The first rows of one chain's warm-up."""
        if not stop:
            return np.zeros((0, 0))
        with self.reading(f"{label}.zarr"):
            rows = np.asarray(self.array(f"{label}.zarr")[chain, :stop])
        if not np.isfinite(rows[:, 0]).all():
            self.fail(f"{label}.zarr")
        return rows

    def array(self, name: str) -> zarr.Array:
        """An array, open for reading and writing."""
        if name not in self.arrays:
            # Else a file that holds zeros alone is left out, and cannot be told from one that was lost.
            with zarr.config.set({"array.write_empty_chunks": True}):
                self.arrays[name] = zarr.open_array(self.path / name, mode="r+")
        return self.arrays[name]

    def verify(self, counts: Mapping[str, list[int]]) -> None:
        """Read all draws once, so many of each chain in each group, and complain of what is damaged or lost."""
        for group, lengths in counts.items():
            with self.reading(f"{DRAWS}/{group}"):
                found = list(zarr.open_group(self.path / DRAWS, path=group, mode="r").arrays())
            for name, array in found:
                if dimensions(array)[:2] != ("chain", "draw"):
                    continue
                place = f"{DRAWS}/{group}/{name}"
                for chain, length in enumerate(lengths):
                    for start in range(0, length, array.chunks[1]):
                        with self.reading(place):
                            array[chain, start : min(start + array.chunks[1], length)]
                        first = ".".join(["c", str(chain), str(start // array.chunks[1]), *["0"] * (array.ndim - 2)])
                        if not (self.path / place / first.replace(".", "/")).exists():
                            self.fail(place)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, ValueError, KeyError):
            self.fail(name)

    def fail(self, name: str) -> NoReturn:
        raise StoreError(
            f"{self.path / name} is damaged: part of it does not match its checksum, or is missing. The other arrays "
            "can still be read with xarray.open_datatree."
        ) from None

    def draws(self) -> xr.DataTree:
        """All that there is room for, yet to be read."""
        try:
            return xr.open_datatree(self.path / DRAWS, engine="zarr", consolidated=False, cache=False, chunks=None)
        except (OSError, ValueError, KeyError):
            raise StoreError(f"{self.path / DRAWS} cannot be read, or is damaged.") from None


def spelt_out(tree: xr.DataTree) -> xr.DataTree:
    """Labels as strings of any length, the kind that zarr has a specification for."""
    labels = lambda data: {name: x.astype(object) for name, x in data.coords.items() if x.dtype.kind == "U"}
    return xr.map_over_datasets(lambda data: data.assign_coords(labels(data)), tree)  # type: ignore[return-value]


def chunk(numbers: int) -> int:
    """How many draws of so many numbers go into one file."""
    return max(1, min(MAX_CHUNK, CHUNK_BYTES // (8 * max(1, numbers))))


def dimensions(array: zarr.Array) -> tuple[str | None, ...]:
    """The names of an array's axes."""
    return getattr(array.metadata, "dimension_names", None) or ()


def encoding(array: Any) -> dict[str, Any]:
    """How a variable, its draws yet to come, is cut into files."""
    if array.dims == ("draw",):
        return {"chunks": (MAX_CHUNK,)}
    shape = array.shape[2:]
    return {"chunks": (1, chunk(math.prod(shape)), *shape), "compressors": (CHECKED,)}


def as_json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=1, default=lambda x: x.tolist()).encode()


def facts_of(saved: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The part of a checkpoint that is not arrays."""
    return json.loads(saved["facts"].tobytes())


def write(path: Path, data: bytes) -> None:
    """All of a file or nothing."""
    beside = path.with_name(f"{path.name}.partial")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    """Make renames last through a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
