"""The driver: from a model and its options to a trace."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.random as jr
import numpy as np
import xarray as xr

from tightrope import diagnostics, results
from tightrope.choice import choose, rival_of
from tightrope.initialise import find_start
from tightrope.kinds import Method
from tightrope.methods import Auto, method_of
from tightrope.models import Model
from tightrope.progress import Progress
from tightrope.runs import Run
from tightrope.types import InputError


def check_count(argument: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{argument}={value} must be a whole number of at least {least}.")
    return int(value)


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
    cores: int | None = None,
    progress: bool | None = None,
) -> xr.DataTree:
    """Draw from the posterior of a model; the result has the groups of ArviZ.

    `max_time` is in seconds, from when all is compiled; what there is by then is returned, as it is after Ctrl-C.
    """
    if not isinstance(model, Model):
        raise InputError(f"model must be a tr.Model, not {type(model).__name__}.")
    jax.config.update("jax_enable_x64", True)
    draws, warmup = check_count("draws", draws, 1), check_count("warmup", warmup, 0)
    chains, thin = check_count("chains", chains, 1), check_count("thin", thin, 1)
    seed = check_count("seed", seed, 0)
    cores = check_count("cores", os.cpu_count() or 1 if cores is None else cores, 1)
    if max_time is not None and not max_time > 0:
        raise InputError(f"max_time={max_time} must be a positive number of seconds.")
    results.check_keep(model, keep)
    method = method_of(method)
    if warmup == 0 and method.step_size is None:
        raise InputError("warmup=0 leaves no time to adapt the step size: give the method a step_size.")

    is_auto = isinstance(init, str) and init == "auto"
    first = method.lifted() if isinstance(method, Auto) else method
    run = Run(model, first, warmup, draws, chains, cores, jr.key(seed), may_move=is_auto)
    rival = rival_of(run, method, cores) if isinstance(method, Auto) else None
    choice = {"choice": "no trial: too little warm-up, too many coordinates, or a step size given."}
    timer = threading.Timer(max_time, run.stopped.set) if max_time is not None else None
    with Progress(progress) as display, ThreadPoolExecutor(1) as pool:
        display.say(f"Finding starting points and compiling {method.name} for {model.name} ...")
        start = find_start(model, init, run.find_key, chains)
        compiling = None if rival is None else pool.submit(rival.prepare)
        run.begin(start)
        if compiling is not None:
            compiling.result()
        display.say(f"Compiled in {run.compile_time:.1f} s.")
        if timer is not None:
            timer.start()
        try:
            if rival is not None:
                run.warm_up(display, until=warmup // 2)
                if run.may_go_on():
                    run, choice["choice"] = choose(run, rival, display)
                    display.say(f"Going on with {choice['choice']}")
            run.warm_up(display)
            run.draw(display, draws)
        finally:
            if timer is not None:
                timer.cancel()
    trace = results.collect(
        model,
        run.draws(),
        num_warmup=run.num_warmup,
        thin=thin,
        keep=keep,
        save_warmup=save_warmup,
        attributes={
            "method": run.method.name,
            **(choice if isinstance(method, Auto) else {}),
            "seed": seed,
            "compile_time": run.compile_time,
            "warmup_time": run.warmup_time,
            "sampling_time": run.sampling_time,
        },
    )
    diagnostics.warn(trace)
    return trace
