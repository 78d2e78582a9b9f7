"""Commands."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
import xarray as xr
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tightrope import bench as benchmark
from tightrope import plots, sampling, zoo
from tightrope import reproduce as targets
from tightrope.diagnose import diagnose_model
from tightrope.diagnostics import SamplingWarning, findings, performance, summary
from tightrope.frames import choose_frame
from tightrope.methods import METHODS, method_of
from tightrope.models import Model
from tightrope.report import report as write_report
from tightrope.results import NoDraws
from tightrope.sampling import sample
from tightrope.store import Store, StoreError
from tightrope.types import InputError, SamplingError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Sample precise posteriors of under-determined models, at a speed that noise does not set.",
)
console = Console()


def show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"tightrope {version('tightrope')}", highlight=False)
        raise typer.Exit


@app.callback()
def root(
    wanted: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(help="One of them, to read its page: equations, priors, data.")] = None,
) -> None:
    """List the posteriors that come along, or tell all about one."""
    if name is not None:
        console.print(zoo.load(name).documentation, highlight=False, markup=False, soft_wrap=True)
        return
    table = Table("name", "d", "m", "frame", "options", "description", box=None)
    for name in zoo.MODELS:
        model = zoo.load(name)
        options = ", ".join(zoo.options(name))
        frame = choose_frame(model.condition())
        table.add_row(name, str(model.d), str(model.m), frame, options, zoo.description(name))
    console.print(table)


@app.command()
def methods() -> None:
    """List the methods."""
    table = Table("name", "description", box=None)
    for name, method in METHODS.items():
        table.add_row(name, (method.__doc__ or "").splitlines()[0])
    console.print(table)


@app.command()
def diagnose(
    model: Annotated[str, typer.Argument(help="A name that `tightrope models` lists.")],
    sigma: Annotated[float | None, typer.Option(help="Noise scale of the data, where the model takes one.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same points to look from.")] = 0,
) -> None:
    """Tell how thin and how crooked a posterior is, and advise on a method, before it is sampled."""
    posterior = zoo.load(model, **({} if sigma is None else {"sigma": sigma}))
    console.print(str(diagnose_model(posterior, seed)), highlight=False, markup=False, soft_wrap=True)


@app.command()
def reproduce(
    target: Annotated[str, typer.Argument(help="A figure or table of the paper, `all`, or `list` to see them.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer draws and noise scales.")] = False,
    paper: Annotated[bool, typer.Option("--paper", help="As many runs and draws as the paper has.")] = False,
    engine: Annotated[str, typer.Option(help="local, or dask for the workers of a scheduler.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Runs side by side; by default one a core.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="Address of a scheduler of Dask.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the data and the picture.")] = Path("runs/reproduce"),
) -> None:
    """Make a figure or table of the paper and a page of all that is made; after Ctrl-C, the same command goes on."""
    if target == "list":
        table = Table("name", "description", box=None)
        for name in targets.TARGETS:
            table.add_row(name, targets.description(name))
        console.print(table)
        return
    if quick and paper:
        raise InputError("--quick and --paper exclude each other: give one of them.")
    length = targets.QUICK if quick else targets.PAPER if paper else targets.DEFAULT
    say = lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)
    targets.reproduce(targets.Request(target, out, say, length, engine, workers, scheduler))


@app.command()
def bench(
    posteriors: Annotated[list[str] | None, typer.Argument(help="toy, toy:0.01 with a noise scale, ...")] = None,
    against: Annotated[str, typer.Option(help="Peers, with commas between them.")] = "mici,numpyro,nutpie,blackjax",
    chains: Annotated[int, typer.Option(help="Chains of each sampler.")] = 4,
    warmup: Annotated[int, typer.Option(help="Iterations of warm-up of each sampler.")] = 1000,
    budget: Annotated[float | None, typer.Option(help="Seconds that each may take; 600 by default.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A minute and 100 effective draws each.")] = False,
    seed: Annotated[int, typer.Option(help="Of starting points and samplers.")] = 1,
    share_compiler: Annotated[
        bool, typer.Option("--share-compiler", help="Peers run with our setting of XLA, not as they come.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for results.json and results.md.")] = Path("runs/bench"),
) -> None:
    """Run Tightrope and its peers on the same posteriors.

    Each until it has 400 effective draws and an R-hat of at most 1.01, or until its time is up.
    """
    rules = benchmark.QUICK if quick else benchmark.Rules()
    if budget is not None:
        sampling.check_time(budget)
        rules = rules._replace(budget=budget)
    say = lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)
    peers = [peer.strip() for peer in against.split(",") if peer.strip()]
    count = sampling.check_count
    sizes = (count("chains", chains, 1), count("warmup", warmup, 1), count("seed", seed, 0))
    chosen = posteriors or benchmark.POSTERIORS
    benchmark.bench(benchmark.Request(chosen, peers, out, say, rules, *sizes, share_compiler))


def show_summary(trace: xr.DataTree) -> str:
    """Print what the run found and how it went; the same as plain text."""
    table = summary(trace)
    shown = Table("", "mean", "sd", "5.5%", "94.5%", "ESS bulk", "ESS tail", "R-hat", box=None)
    for name, row in table.iterrows():
        estimates = [f"{row[key]:.4g}" for key in ("mean", "sd", "eti89_lb", "eti89_ub")]
        sizes = [f"{row[key]:.0f}" for key in ("ess_bulk", "ess_tail")]
        shown.add_row(escape(str(name)), *estimates, *sizes, f"{row['r_hat']:.4f}")
    stats, figures = trace.children["sample_stats"].dataset, performance(trace)
    step_sizes = " ".join(f"{size:.3g}" for size in stats["step_size"].values[:, -1])
    lines = [
        f"step sizes {step_sizes}; acceptance {figures['acceptance']:.2f}; "
        f"{figures['steps_per_draw']:.1f} integrator steps a draw",
        f"min bulk ESS {figures['ess']:.0f}: {figures['ess_per_step']:.3g} per integrator step, "
        f"{figures['ess_per_second']:.3g} per second of sampling; max R-hat {figures['r_hat']:.4f}",
        f"compiled in {figures['compile_time']:.1f} s, warmed up in {figures['warmup_time']:.1f} s, "
        f"sampled in {figures['sampling_time']:.1f} s",
    ]
    text = io.StringIO()
    for target in (console, Console(file=text, width=110)):
        target.print(shown)
        for line in lines:
            target.print(line, highlight=False, soft_wrap=True)
    return text.getvalue()


@app.command()
def run(
    model: Annotated[str, typer.Argument(help="A name that `tightrope models` lists.")],
    sigma: Annotated[float | None, typer.Option(help="Noise scale of the data, where the model takes one.")] = None,
    method: Annotated[str, typer.Option(help="A name that `tightrope methods` lists.")] = "lifted-nuts",
    solver: Annotated[str | None, typer.Option(help="newton, symmetric, broyden, auto or fixed-point.")] = None,
    force: Annotated[str | None, typer.Option(help="exact, differences, cheap, surrogate or auto.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="identity, diagonal, dense, auto, fisher, lifted, softabs.")
    ] = None,
    target_accept: Annotated[float | None, typer.Option(help="Acceptance that warm-up aims at.")] = None,
    step_size: Annotated[float | None, typer.Option(help="A step size to keep, instead of adapting one.")] = None,
    init: Annotated[str, typer.Option(help="auto, prior or truth.")] = "auto",
    chains: Annotated[int, typer.Option(help="Number of chains.")] = 4,
    warmup: Annotated[int, typer.Option(help="Warm-up iterations of each chain.")] = 1000,
    draws: Annotated[int, typer.Option(help="Draws of each chain.")] = 1000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for draws as they come, a summary, a report.")] = None,
) -> None:
    """Sample a posterior, print a summary, and keep the draws if --out is given."""
    given = {
        "solver": solver,
        "force": force,
        "metric": metric,
        "target_accept": target_accept,
        "step_size": step_size,
    }
    chosen = method_of(method, **{name: value for name, value in given.items() if value is not None})
    posterior = zoo.load(model, **({} if sigma is None else {"sigma": sigma}))
    with warnings.catch_warnings(), resumable(out):
        warnings.simplefilter("ignore", SamplingWarning)
        trace = sample(posterior, draws, warmup, chains, seed, method=chosen, init=init, store=out)
    finish(trace, out, posterior)


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(help="What --out was.")],
    draws: Annotated[int | None, typer.Option(help="Go on to so many draws of each chain.")] = None,
) -> None:
    """Go on with a run that was stopped or died, as if nothing had happened."""
    with warnings.catch_warnings(), resumable(directory):
        warnings.simplefilter("ignore", SamplingWarning)
        trace = sampling.resume(directory) if draws is None else sampling.extend(directory, draws)
    finish(trace, directory)


@app.command()
def status(directory: Annotated[Path, typer.Argument(help="What --out was.")]) -> None:
    """Say how far a run is, also while it goes on."""
    found = sampling.status(directory)
    working = "running" if found["is_running"] else "not running"
    lines = [f"{found['model']} by {found['method']}: {found['stage']}, {working}"]
    done = " ".join(map(str, found["iterations"]))
    lines.append(f"iterations of each chain {done}, of {found['total']} with warm-up")
    if found["rate"]:
        left = "" if found["stage"] == "finished" else f"; about {found['remaining']:.0f} s to go"
        lines.append(f"{found['rate']:.3g} iterations a second{left}; saved {found['age']:.0f} s ago")
    if found["stage"] != "finished" and not found["is_running"]:
        lines.append(f"go on with: tightrope resume {directory}")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    for warning in found["warnings"]:
        console.print(f"[yellow]Warning:[/] {escape(warning)}", highlight=False, soft_wrap=True)


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="What --out was.")],
    out: Annotated[Path | None, typer.Option(help="The file, by default report.html beside the draws.")] = None,
) -> None:
    """Write a page with pictures about a run, also while it goes on."""
    console.print(f"Left {write_report(directory, out)}", highlight=False, soft_wrap=True)


@contextlib.contextmanager
def resumable(directory: Path | None) -> Iterator[None]:
    """Say how to go on, where a run is stopped."""
    try:
        yield
    except (KeyboardInterrupt, NoDraws) as error:
        if directory is None or not (directory / "run.json").exists():
            raise
        raise Stopped(directory) from error


class Stopped(RuntimeError):
    """A run that was stopped before its end."""

    def __init__(self, directory: Path):
        look = f"See what there is with: tightrope report {directory}"
        super().__init__(f"stopped; all is saved. {look}\nGo on with: tightrope resume {directory}")


def finish(trace: xr.DataTree, out: Path | None, model: Model | None = None) -> None:
    """Print what a run found, and leave it beside the draws; one that was stopped ends at once."""
    if out is not None and sampling.position(Store(out))["stage"] != "finished":
        raise Stopped(out)
    text = show_summary(trace)
    for finding in findings(trace):
        console.print(f"[yellow]Warning:[/] {escape(finding)}", highlight=False, soft_wrap=True)
        text += f"Warning: {finding}\n"
    if out is None:
        return
    with Store(out).saving():
        trace.to_netcdf(out / "trace.nc", engine="h5netcdf")
        (out / "summary.txt").write_text(text)
        plots.overview(trace, out / "overview.png")
    write_report(out, model=model)
    left = f"Left trace.nc, summary.txt, overview.png and report.html in {out}/"
    console.print(left, highlight=False, soft_wrap=True)


def main() -> Any:
    """Run a command; a user's mistake is one sentence and exit status 2."""
    try:
        app()
    except InputError as error:
        print(f"tightrope: {error}", file=sys.stderr)
        sys.exit(2)
    except (StoreError, SamplingError) as error:
        print(f"tightrope: {error}", file=sys.stderr)
        sys.exit(1)
    except Stopped as error:
        print(f"tightrope: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(130)  # all is saved, and an orderly end takes JAX most of a second
    except (KeyboardInterrupt, NoDraws) as error:
        print(f"tightrope: {str(error) or 'interrupted'}", file=sys.stderr)
        sys.exit(130)
