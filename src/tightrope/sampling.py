"""The driver: from a model and its options to a trace."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np
import xarray as xr

from tightrope import diagnostics, results
from tightrope.choice import decided, rival_of
from tightrope.initialise import find_start
from tightrope.kinds import Method
from tightrope.methods import Auto, method_of
from tightrope.models import Model
from tightrope.outlook import Outlook
from tightrope.progress import Progress
from tightrope.provenance import check_versions, method_in, model_in, record_of
from tightrope.recording import CHOICE, Options, Recorder, counts, trace_of
from tightrope.runs import Run
from tightrope.store import Store, facts_of
from tightrope.types import InputError


def check_count(argument: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{argument}={value} must be a whole number of at least {least}.")
    return int(value)


def check_time(max_time: float | None) -> None:
    if max_time is not None and not max_time > 0:
        raise InputError(f"max_time={max_time} must be a positive number of seconds.")


def sample(
    model: Model,
    draws: int = 1000,
    warmup: int = 1000,
    chains: int = 4,
    seed: int = 0,
    *,
    method: str | Method = "lifted-nuts",
    init: Any = "auto",
    thin: int = 1,
    keep: Sequence[str] | None = None,
    save_warmup: bool = False,
    max_time: float | None = None,
    give_up: bool = False,
    cores: int | None = None,
    progress: bool | None = None,
    store: Path | str | None = None,
) -> xr.DataTree:
    """Draw from the posterior of a model; the result has the groups of ArviZ.

    `max_time` is in seconds, and counts compilation, which it does not cut short; what there is by then is returned,
    as it is after Ctrl-C, which ends a run at once, without a look for what to warn of. With `give_up` a run stops
    in warm-up as soon as it is so slow that there would be no draws by then.
    With `store`, a new folder, draws are saved there as they come, and `resume` goes on after any death.
    """
    if not isinstance(model, Model):
        raise InputError(f"model must be a tr.Model, not {type(model).__name__}.")
    jax.config.update("jax_enable_x64", True)
    options = Options(
        draws=check_count("draws", draws, 1),
        warmup=check_count("warmup", warmup, 0),
        chains=check_count("chains", chains, 1),
        seed=check_count("seed", seed, 0),
        thin=check_count("thin", thin, 1),
        keep=None if keep is None else list(keep),
        save_warmup=bool(save_warmup),
        cores=check_count("cores", os.cpu_count() or 1 if cores is None else cores, 1),
    )
    check_time(max_time)
    if give_up and max_time is None:
        raise InputError("give_up needs max_time, which tells when it is too late.")
    results.check_keep(model, keep)
    method = method_of(method)
    if warmup == 0 and method.step_size is None:
        raise InputError("warmup=0 leaves no time to adapt the step size: give the method a step_size.")
    if store is None:
        return execute(model, method, options, init, None, max_time, progress, give_up)
    directory = Store.create(store)
    with directory.held():
        directory.begin(record_of(model, method, options, init))
        return execute(model, method, options, init, directory, max_time, progress, give_up)


def resume(
    store: Path | str, model: Model | None = None, *, max_time: float | None = None, progress: bool | None = None
) -> xr.DataTree:
    """Go on with a run that was stopped or died; its draws are those of a run that was never disturbed.

    A model of your own is passed again; those of the zoo are found by name.
    """
    return go_on(store, model, None, max_time, progress)


def extend(
    store: Path | str,
    draws: int,
    model: Model | None = None,
    *,
    max_time: float | None = None,
    progress: bool | None = None,
) -> xr.DataTree:
    """Go on with a run until it has so many draws in all."""
    return go_on(store, model, check_count("draws", draws, 1), max_time, progress)


def go_on(
    store: Path | str, model: Model | None, draws: int | None, max_time: float | None, progress: bool | None
) -> xr.DataTree:
    """Look at a directory, then run on, perhaps to more draws than before."""
    check_time(max_time)
    jax.config.update("jax_enable_x64", True)
    directory = Store.open(store)
    with directory.held():
        record = directory.record()
        check_versions(directory)
        model, options = model_in(directory, model), Options(**record["options"])
        if record["init"] is None and directory.checkpoint() is None:
            raise InputError(f"{store} has nothing to go on from: begin anew with tr.sample and the same init=.")
        directory.verify(counts(directory))
        if draws is not None:
            if draws < options.draws:
                raise InputError(f"draws={draws} is less than the {options.draws} that {store} was begun for.")
            options = options._replace(draws=draws)
            directory.rewrite(record | {"options": options._asdict()})
        return execute(model, method_in(directory), options, record["init"], directory, max_time, progress)


def load(store: Path | str) -> xr.DataTree:
    """The draws of a run so far, also while it goes on; many are read only as they are looked at."""
    directory = Store.open(store)
    directory.verify(counts(directory))
    return trace_of(directory)


def status(store: Path | str) -> dict[str, Any]:
    """How far a run is: its stage, iterations, rate, the seconds that it will still take, and warnings so far."""
    directory = Store.open(store)
    known = directory.status()
    warnings = diagnostics.findings(trace_of(directory)) if known and min(known["draws"]) else []
    return position(directory) | {"warnings": warnings}


def position(directory: Store) -> dict[str, Any]:
    """The same but for the warnings, at once however many draws there are."""
    record, known = directory.record(), directory.status()
    options = Options(**record["options"])
    iterations = known.get("iterations", [0] * options.chains)
    total = options.warmup + options.draws
    left = total - min(iterations)
    stage = "starting" if not known else "finished" if left <= 0 else "warm-up" if left > options.draws else "sampling"
    seconds, start = known.get("stage_time", 0.0), known.get("stage_start", 0)
    rate = (min(iterations) - start) / seconds if seconds else 0.0
    return {
        "model": record["model"]["name"],
        "method": known.get("method", record["method"]["name"]),
        "stage": stage,
        "is_running": directory.is_held(),
        "iterations": iterations,
        "total": total,
        "rate": rate,
        "remaining": left / rate if rate else None,
        "age": time.time() - known["updated"] if known else None,
    }


def execute(
    model: Model,
    method: Method,
    options: Options,
    init: Any,
    store: Store | None,
    max_time: float | None,
    progress: bool | None,
    give_up: bool = False,
) -> xr.DataTree:
    """Run to the end, from the beginning or from the last checkpoint."""
    deadline = time.monotonic() + (math.inf if max_time is None else max_time)
    with Progress(progress) as display:
        display.say(f"Finding starting points and compiling {method.name} for {model.name} ...")
        run, rival = begun(model, method, options, init, store)
        display.say(f"Compiled in {run.compile_time:.1f} s.")
        with stopping(run.stopped, deadline, display) as pressed:
            if rival is not None:
                run = decided(run, rival, display)
            if give_up:
                run.outlook = Outlook(deadline - time.monotonic())
            run.warm_up(display)
            run.draw(display, options.draws)
    trace = collected(run, options) if store is None else trace_of(store)
    if not pressed.is_set():
        diagnostics.warn(trace)
    return trace


def begun(model: Model, method: Method, options: Options, init: Any, store: Store | None) -> tuple[Run, Run | None]:
    """A run, compiled and where it is to go on from, and another if there is a choice to make between them."""
    is_auto = isinstance(init, str) and init == "auto"
    first = method.lifted() if isinstance(method, Auto) else method
    sizes = (options.warmup, options.draws, options.chains, options.cores)
    run, rival = Run(model, first, *sizes, jr.key(options.seed), may_move=is_auto), None
    saved = None if store is None else store.checkpoint()
    facts = {} if saved is None else facts_of(saved)
    if isinstance(method, Auto):
        rival = rival_of(run, method, options.cores)
        if rival is None:
            run.notes["choice"] = "no trial: too little warm-up, too many coordinates, or a step size given."
    if store is not None:
        run.recorder = Recorder.of(store, model, options)
        run.recorder.allot(is_new=saved is None)
        if rival is not None and facts.get("is_rival"):
            rival.recorder, run = run.recorder.of_rival(), rival
        if "choice" in facts:
            run.notes, rival = {name: facts[name] for name in (*CHOICE, "is_rival") if name in facts}, None
    with ThreadPoolExecutor(1) as pool:
        compiling = None if rival is None else pool.submit(rival.prepare)
        if saved is None:
            run.begin(find_start(model, init, run.find_key, options.chains))
        else:
            run.restore(saved)
        if compiling is not None:
            compiling.result()
    return run, rival


@contextlib.contextmanager
def stopping(stopped: threading.Event, deadline: float, display: Progress) -> Iterator[threading.Event]:
    """Ctrl-C, or the end of the time allowed, stops a run after its current steps; a second Ctrl-C aborts it."""
    pressed = threading.Event()

    def press(*_: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()
        stopped.set()
        display.say("Stopping after the current steps; press Ctrl-C again to abort.")

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if in_main else None
    left = deadline - time.monotonic()
    timer = None if math.isinf(left) else threading.Timer(max(0.0, left), stopped.set)
    try:
        if callable(before):  # else it is ignored, as in the background of a shell, or not for us to set
            signal.signal(signal.SIGINT, press)
        if timer is not None:
            timer.start()
        yield pressed
    finally:
        if timer is not None:
            timer.cancel()
        if callable(before):
            signal.signal(signal.SIGINT, before)


def collected(run: Run, options: Options) -> xr.DataTree:
    """The trace of a run that is in memory."""
    return results.collect(
        run.model,
        run.draws(),
        num_warmup=run.num_warmup,
        thin=options.thin,
        keep=options.keep,
        save_warmup=options.save_warmup,
        attributes={
            "method": run.method.name,
            **{name: run.notes[name] for name in CHOICE if name in run.notes},
            "seed": options.seed,
            "compile_time": run.compile_time,
            "warmup_time": run.warmup_time,
            "sampling_time": run.sampling_time,
        },
    )
