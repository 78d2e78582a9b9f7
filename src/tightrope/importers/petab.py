"""PEtab problems, the systems-biology standard for SBML models with data, as models to sample."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from tightrope.models import LEAST_PRECISION, Model
from tightrope.types import InputError

TABLES = ("sbml_files", "condition_files", "observable_files", "measurement_files")  # not what only pictures need
# Times rtol: how far predictions may jump where the solver takes another number of steps, relative to the data. With an
# rtol of 1e-7 and noise of 5 % residuals jump by up to 5e-8.
PRECISION = 1e-2


def from_petab(path: str | PathLike[str], *, rtol: float = 1e-7, atol: float = 1e-9, max_steps: int = 4096) -> Model:
    """The model of a PEtab problem, version 1, from its YAML file.

    Parameters have their PEtab names and are on the linear scale, whatever their parameterScale; `truth` are the
    nominal values. Each observable is a block of data, on the scale of its observableTransformation. Errors of the
    solver are below `rtol` relative to a state and `atol` in its units; more than `max_steps` steps are a failure.
    """
    if not (0 < rtol < 1 and atol > 0 and max_steps >= 1):
        raise InputError("rtol must be between 0 and 1, and atol and max_steps positive.")
    try:
        import petab.v1  # noqa: F401

        from tightrope.importers.odes import Tolerances
        from tightrope.importers.problems import Problem
    except ImportError as error:
        raise InputError(f"from_petab needs {error.name}: pip install 'tightrope[petab]'.") from None
    path = Path(path)
    read = read_problem(path)
    try:
        problem = Problem(read, Tolerances(rtol, atol, max_steps))
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    return Model(
        priors={name: prior.law for name, prior in problem.priors.items()},
        forward=problem,
        noise_scale=problem.noise_scales(),
        observed={name: observable.data for name, observable in problem.observables.items()},
        noise={name: observable.law for name, observable in problem.observables.items()},
        name=read.model.model_id or path.stem,
        truth=problem.nominal(),
        precision=min(PRECISION * rtol, LEAST_PRECISION),
    )


def read_problem(path: Path) -> Any:
    """The problem as petab reads it, if it is whole and of a kind that can be translated."""
    from petab.v1 import Problem, get_parameter_df, lint
    from petab.v1.yaml import load_yaml

    if not path.is_file():
        raise InputError(f"there is no PEtab problem {path}: give the path of its YAML file.")
    try:
        settings = load_yaml(path)
        refuse_unsupported(settings)
        core = {name: listed(files) for name, files in settings["problems"][0].items() if name in TABLES}
        # Parameters apart, because petab's own reader of the YAML file takes no list of their files.
        problem = Problem.from_yaml({"format_version": 1, "parameter_file": None, "problems": [core]}, str(path.parent))
        problem.parameter_df = get_parameter_df([path.parent / file for file in listed(settings.get("parameter_file"))])
        tables = {
            "condition": problem.condition_df,
            "observable": problem.observable_df,
            "measurement": problem.measurement_df,
            "parameter": problem.parameter_df,
        }
        missing = [name for name, table in tables.items() if table is None]
        if missing or problem.model is None:
            raise InputError(f"the problem has no {missing[0] if missing else 'SBML'} file.")
        lint.check_condition_df(problem.condition_df, problem.model, problem.observable_df)
        lint.check_observable_df(problem.observable_df)
        lint.check_measurement_df(problem.measurement_df, problem.observable_df)
        lint.assert_measurement_conditions_present_in_condition_table(problem.measurement_df, problem.condition_df)
        lint.check_parameter_df(
            problem.parameter_df,
            problem.model,
            problem.observable_df,
            problem.measurement_df,
            problem.condition_df,
        )
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    except Exception as error:  # petab raises whatever its parsers and checks do
        words = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path.name} is not a PEtab problem of version 1: {words}") from error
    return problem


def listed(files: Any) -> list[str]:
    """Files of one kind, of which there may be several, one or none."""
    return [files] if isinstance(files, str) else list(files or [])


def refuse_unsupported(settings: Any) -> None:
    """Refuse what petab would read, but not this."""
    if not isinstance(settings, dict) or "format_version" not in settings:
        raise InputError("it has no format_version, so it is not a PEtab problem.")
    version = str(settings["format_version"])
    if version.split(".")[0] != "1":
        raise InputError(f"format_version {version} is not supported: convert the problem to version 1.")
    if settings.get("extensions"):
        raise InputError(f"the extension {sorted(settings['extensions'])[0]} is not supported.")
    problems = settings.get("problems") or []
    if len(problems) != 1 or len(listed(problems[0].get("sbml_files"))) != 1:
        raise InputError("problems of several SBML models, or of none, are not supported.")
