"""Check that imports inside the package point only downward."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "tightrope"
Name = tuple[str, ...]  # of a module: ("tightrope", "zoo", "toy"); a folder's is that of its __init__

# From top to bottom. A part may import the parts on the lines below its own.
LAYERS = """
    __main__
    cli
    reproduce bench
    report
    plots
    sweep
    engines
    cells
    importers
    sampling
    choice
    provenance
    runs
    progress
    recording
    results
    store
    zoo
    diagnostics diagnose
    initialise
    kernel
    methods
    kinds
    adaptation
    transitions
    integrators
    projection implicit
    systems
    frames geometry
    state_space
    models
    checks
    observations
    parameters
    priors
    tails
    kalman
    linalg streams outlook
    types
    compilation environment
"""
DEPTH = {part: depth for depth, line in enumerate(LAYERS.split("\n")) for part in line.split()}


def module_name(path: Path, source: Path) -> Name:
    parts = path.relative_to(source).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports(path: Path, package: Name, modules: set[Name]) -> Iterator[tuple[int, Name]]:
    """Each import of a module of this package, wherever in the file it stands, with its line."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # One dot is the package the file is in, each further dot one package up.
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            # `from a import b` is an import of the module a.b if there is one, and of a otherwise.
            names = [(*base, alias.name) if (*base, alias.name) in modules else base for alias in node.names]
        else:
            continue
        for name in names:
            if name[:1] == (PACKAGE,):
                yield node.lineno, name


def objection(importer: Name, imported: Name) -> str | None:
    """Why the one module may not import the other, if it may not."""
    name = ".".join(imported[1:]) or PACKAGE
    if len(imported) == 1:
        return f"imports {name} itself, which is above it"
    part, other = importer[1], imported[1]
    if other not in DEPTH:
        return None  # that file is complained of itself
    if part == other:
        # Inside a folder, files may import each other and __init__ collects them.
        return f"imports {name}, which collects it" if len(imported) == 2 and len(importer) > 2 else None
    if DEPTH[other] < DEPTH[part]:
        return f"imports {name}, which is above it"
    if DEPTH[other] == DEPTH[part]:
        return f"imports {name}, which is beside it"
    return None


def complaints(source: Path) -> Iterator[str]:
    """Each breach of the order in the package below `source`, as a line to print."""
    files = {path: module_name(path, source) for path in sorted((source / PACKAGE).rglob("*.py"))}
    if not files:
        yield f"{source / PACKAGE}: no Python files here"
    modules = set(files.values())
    for path, name in files.items():
        if name == (PACKAGE,):
            continue  # the package's own __init__ may import everything
        if name[1] not in DEPTH:
            yield f"{path}:1: {name[1]} is not in the list of layers, LAYERS in tools/check_imports.py"
            continue
        package = name if path.name == "__init__.py" else name[:-1]
        for line, imported in sorted(set(imports(path, package, modules))):
            if reason := objection(name, imported):
                yield f"{path}:{line}: {reason}"


def main(source: str = "src") -> int:
    found = list(complaints(Path(source)))
    for complaint in found:
        print(complaint)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
