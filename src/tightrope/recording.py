"""What a run leaves in its directory as it goes: its draws, and all that it needs to go on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr

from tightrope.kernel import Draw
from tightrope.models import Model
from tightrope.results import GROUPS, Converter, NoDraws
from tightrope.store import DRAWS, Store
from tightrope.streams import IMPL

MAX_BYTES = 200_000_000  # of draws that are read at once; more are read when they are looked at


CHOICE = ("choice", "choice_time")  # what `auto` found, and the seconds that the other sampler took


class Options(NamedTuple):
    """What a run is asked for, besides its model, method and starting points."""

    draws: int
    warmup: int
    chains: int
    seed: int
    thin: int
    keep: list[str] | None
    save_warmup: bool
    cores: int


class Recorder:
    """The way from the rows of a run to its directory."""

    def __init__(self, store: Store, converter: Converter, options: Options, label: str = "warmup"):
        self.store, self.converter, self.options, self.label = store, converter, options, label
        self.num_warmup = options.warmup
        self.shape = (options.chains, options.warmup, Draw.width(converter.model.d))

    @classmethod
    def of(cls, store: Store, model: Model, options: Options) -> Recorder:
        return cls(store, Converter(model, options.keep), options)

    def of_rival(self) -> Recorder:
        """For another run that takes the place of the first."""
        return Recorder(self.store, self.converter, self.options, "rival")

    def allot(self, is_new: bool) -> None:
        """Room for all the draws that are asked for."""
        chains, saves_warmup = self.options.chains, self.options.save_warmup
        if is_new:
            self.store.allot(self.converter.template(chains, saves_warmup, {"seed": self.options.seed}))
        for name in GROUPS:
            self.store.lengthen(name, self.places(self.options.draws))
            if saves_warmup:
                self.store.lengthen(f"warmup_{name}", self.places(self.num_warmup))

    def places(self, count: int) -> int:
        """How many of so many draws are kept."""
        return -(-count // self.options.thin)

    def write(self, chain: int, start: int, rows: np.ndarray) -> None:
        """Rows of a chain from an iteration on."""
        in_warmup = max(0, self.num_warmup - start)
        warming, drawn = rows[:in_warmup], rows[in_warmup:]
        if len(warming):
            self.store.write_rows(self.label, self.shape, chain, start, warming)
            if self.options.save_warmup:
                self.write_draws(chain, start, warming, "warmup_")
        if len(drawn):
            self.write_draws(chain, max(0, start - self.num_warmup), drawn)

    def write_draws(self, chain: int, start: int, rows: np.ndarray, prefix: str = "") -> None:
        """Those of the rows that are kept."""
        kept = rows[-start % self.options.thin :: self.options.thin]
        if len(kept):
            self.store.write_draws(self.converter.groups(kept[None], prefix), chain, self.places(start))

    def read_warmup(self, chain: int, stop: int) -> np.ndarray:
        """The first rows of a chain."""
        return self.store.read_rows(self.label, chain, stop)

    def save(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        """A checkpoint, and for those who watch how far the run is."""
        counts = {
            "draws": [self.places(max(0, iteration - self.num_warmup)) for iteration in facts["iterations"]],
            "warmup": [self.places(min(iteration, self.num_warmup)) for iteration in facts["iterations"]],
        }
        self.store.save(arrays, {**facts, **counts, "updated": time.time()})


def counts(store: Store) -> dict[str, list[int]]:
    """How many draws of each chain the groups hold."""
    known, options = store.status(), store.record()["options"]
    found = {}
    for name in GROUPS if known else ():
        found[name] = known["draws"]
        if options["save_warmup"]:
            found[f"warmup_{name}"] = known["warmup"]
    return found


def trace_of(store: Store) -> xr.DataTree:
    """The draws that every chain has."""
    known, held = store.status(), counts(store)
    if not any(min(lengths) for lengths in held.values()):
        raise NoDraws(
            f"{store.path} has no draws yet: it is in warm-up. Wait for it, or go on with it by tr.resume or "
            f"`tightrope resume {store.path}`."
        )
    children = dict(store.draws().children)
    for name, lengths in held.items():
        children[name] = xr.DataTree(children[name].to_dataset().isel(draw=slice(min(lengths))))
        if not min(lengths):
            del children[name]
    trace = xr.DataTree(children=children)
    if trace.nbytes < MAX_BYTES:
        with store.reading(DRAWS):
            trace = trace.load()
    if "posterior" in trace.children:
        names = ("method", *CHOICE, "compile_time", "warmup_time", "sampling_time")
        trace["posterior"].attrs |= {name: known[name] for name in names if name in known}
    return trace


def is_key(x: Any) -> bool:
    return bool(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))


def flattened(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a pytree by number; of keys, what is inside."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return {f"{prefix}/{i}": np.asarray(jr.key_data(x) if is_key(x) else x) for i, x in enumerate(leaves)}


def unflattened(prefix: str, arrays: Mapping[str, np.ndarray], like: Any) -> Any:
    """The pytree of such arrays, of the structure and types of another."""
    leaves, structure = jax.tree.flatten(like)
    found = [arrays[f"{prefix}/{i}"] for i in range(len(leaves))]
    made = [
        jr.wrap_key_data(jnp.asarray(x), impl=IMPL) if is_key(y) else jnp.asarray(x)
        for x, y in zip(found, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, made)
