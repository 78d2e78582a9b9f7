"""Write the pages that are made of the code: the zoo, the reference, and the notebooks of examples/."""

import dataclasses
import inspect
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from matplotlib.ticker import MaxNLocator

import tightrope as tr
from tightrope.kinds import Method

REPORT = "report.html"  # made by a cell of start.md
MIN_DRAWN = 20  # data, to be drawn
EXAMPLES = Path(__file__).parent.parent / "examples"

# Sections of the reference, by where a name is defined; what fits nowhere comes last.
SECTIONS = {
    "Models": ("models", "state_space", "importers", "zoo"),
    "Before sampling": ("diagnose",),
    "Sampling": ("sampling",),
    "Results": ("diagnostics", "results", "report"),
    "Many runs": ("cells", "sweep"),
    "Methods": ("methods",),
    "Errors": ("types", "store"),
    "Further": ("",),
}


def write_all(folder):
    """All of them, into folders that git does not keep."""
    for name in tr.zoo.MODELS:
        write(folder / "zoo" / f"{name}.md", zoo_page(name))
    write(folder / "api.md", reference())
    for notebook in sorted(EXAMPLES.glob("*.ipynb")):
        write(folder / "examples" / notebook.name, notebook.read_text())


def write(path, text):
    """Leave a file alone that has this text: what has not changed is not run again."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def as_table(head, rows):
    cell = lambda value: str(value).replace("|", r"\|")
    line = lambda row: f"| {' | '.join(map(cell, row))} |"
    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


# The zoo


def zoo_page(name):
    """What a posterior is, from its documentation and from the model itself."""
    model, documentation = tr.zoo.load(name), tr.zoo.documentation(name)
    options = inspect.signature(tr.zoo.MODELS[name]).parameters.values()
    given = ", ".join(f"{option.name}={option.default}" for option in options)
    load = f'tr.zoo.load("{name}", {given})' if given else f'tr.zoo.load("{name}")'
    flags = "".join(f" --{option.name} {option.default}" for option in options if option.name == "sigma")
    priors = [
        [f"`{key}`", in_words(model.parameters.priors[key]), size(shape)]
        for key, shape in model.parameters.shapes.items()
    ]
    parts = [
        f"# {name}",
        documentation,
        *data_of(name, model),
        "## Parameters",
        as_table(["parameter", "prior", "numbers"], priors),
        "## Run it",
        f"```sh\ntightrope run {name}{flags} --seed 1\ntightrope diagnose {name}{flags}\n```",
        f"```python\nimport tightrope as tr\n\nmodel = {load}\ntrace = tr.sample(model, seed=1)\n"
        "print(tr.summary(trace))\n```",
    ]
    return "\n\n".join(parts) + "\n"


def data_of(name, model):
    """How many data there are, where they come from, and what they look like."""
    files = re.findall(r'"(\w+\.csv)"', inspect.getsource(tr.zoo.MODELS[name]))
    sources = [(Path(tr.zoo.__file__).parent / file).read_text().splitlines()[0].lstrip("# ") for file in files]
    numbers = f"The posterior has {model.d} coordinates and {model.m} data{'' if files else ', which are simulated'}."
    if model.m < MIN_DRAWN:
        return ["## Data", numbers]
    draw_data(model, Path(__file__).parent / "zoo" / f"{name}.png")
    return ["## Data", " ".join([numbers, *sources]), f"![The data of {name}]({name}.png)"]


def draw_data(model, path):
    y = model.observed["y"]
    axis_name = (model.dims.get("y") or ["datum"])[0]
    figure, axis = plt.subplots(figsize=(7, 2.4), layout="constrained")
    places = np.asarray(model.coords.get(axis_name, np.arange(len(y))))
    is_number = np.issubdtype(places.dtype, np.number)
    columns = y.reshape(len(y), -1).T
    labels = model.coords.get((model.dims.get("y") or ["datum", ""])[-1], range(len(columns)))
    for values, label in zip(columns, labels, strict=False):
        axis.plot(places if is_number else np.arange(len(y)), values, ".-", markersize=3, linewidth=0.5, label=label)
    if len(columns) > 1:
        axis.legend(frameon=False)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel=axis_name, ylabel="y")
    axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def size(shape):
    return " × ".join(map(str, shape)) or "1"


def in_words(prior):
    """A distribution as one would write it down."""
    while isinstance(prior, dist.Independent | dist.ExpandedDistribution):
        prior = prior.base_dist
    if not isinstance(prior, dist.Distribution):
        return "given those before it"
    kind = type(prior).__name__
    bounds = {"low": "above", "high": "below"}
    if hasattr(prior, "base_dist") and any(hasattr(prior, bound) for bound in bounds):
        cut = [f"{word} {number(getattr(prior, bound))}" for bound, word in bounds.items() if hasattr(prior, bound)]
        return f"{in_words(prior.base_dist)}, {' and '.join(cut)}"
    values = [getattr(prior, argument) for argument in ("loc", "low", "scale", "high") if hasattr(prior, argument)]
    if kind == "HalfNormal":
        values = [prior.scale]
    return f"{kind}({', '.join(map(number, values))})" if values and np.size(values[0]) < 10 else kind


def number(value):
    found = np.unique(np.asarray(value))
    return f"{found[0]:.4g}" if len(found) == 1 else "..."


# The reference


def reference():
    """Every public name, in sections."""
    parts = ["# Reference", "Everything below is in the module `tightrope`, here `tr`."]
    left = list(tr.__all__)
    for title, modules in SECTIONS.items():
        names = [name for name in left if module_of(name).startswith(modules)]
        left = [name for name in left if name not in names]
        if names:
            parts += [f"## {title}", *map(entry, names)]
    return "\n\n".join(parts) + "\n"


def module_of(name):
    value = getattr(tr, name)
    return (value.__name__ if inspect.ismodule(value) else value.__module__).removeprefix("tightrope.")


def entry(name):
    """One name: its docstring, and for a method its options."""
    value = getattr(tr, name)
    if inspect.ismodule(value):
        return directive("automodule", f"tightrope.{name}", ["members: load, documentation, description, options"])
    if not inspect.isclass(value):
        return directive("autofunction", f"tightrope.{name}")
    if issubclass(value, Method):
        return f"{directive('autoclass', f'tightrope.{name}', ['no-index-entry:'])}\n\n{options_of(value)}"
    if issubclass(value, tr.Model):
        members = "log_density, simulate, with_observed" if value is tr.Model else ""
        return directive("autoclass", f"tightrope.{name}", [f"members: {members}"] if members else [])
    if issubclass(value, Exception):
        return directive("autoexception", f"tightrope.{name}")
    return f"{directive('autoclass', f'tightrope.{name}')}\n\n{options_of(value)}"


def directive(kind, target, options=()):
    lines = [f".. {kind}:: {target}", *(f"   :{option}" for option in options)]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def options_of(kind):
    """The fields of a dataclass and what the comments beside them say."""
    said = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            said |= dict(re.findall(r"^    (\w+): [^#\n]*#\s*(.*)$", inspect.getsource(base), re.MULTILINE))
    rows = [[f"`{field.name}`", default_of(field), said.get(field.name, "")] for field in dataclasses.fields(kind)]
    return as_table(["option", "default", ""], rows)


def default_of(field):
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`"
    return "none" if field.default_factory is dataclasses.MISSING else f"`{field.default_factory()!r}`"


def to_rst(lines):
    """Docstrings are written as Markdown, of which code and indented formulas have to be told to Sphinx."""
    parts = re.split(r"(`[^`]*`)", "\n".join(lines))
    parts = [f"`{part}`" if part.startswith("`") else re.sub(r"([*|])", r"\\\1", part) for part in parts]
    found, before = [], ""
    for line in "".join(parts).split("\n"):
        is_formula = line.startswith("    ")
        if is_formula and not before.startswith("    ") and not before.strip():
            found += ["::", ""]
        found.append(line.replace("\\", "") if is_formula else line)
        before = line
    lines[:] = found
