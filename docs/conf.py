"""How Sphinx builds the documentation: `make docs`."""

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

import latex2mathml.converter
from docutils import nodes

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import pages  # noqa: E402

project = "Tightrope"
author = "The Tightrope authors"
copyright = author
release = importlib.metadata.version("tightrope")

extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["numpyro-table.md", "reproduction/**"]

os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress not found")  # of tqdm, in every notebook

# Every cell of every page is run, and one that raises ends the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 900  # seconds a cell, on a busy machine
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"Tightrope {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_math_renderer = "mathml"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1b6ca8", "color-brand-content": "#1b6ca8"},
    "dark_css_variables": {"color-brand-primary": "#7fb8e6", "color-brand-content": "#7fb8e6"},
}

pages.write_all(HERE)


def inline_formula(translator, node):
    """Formulas are MathML, so that a page needs neither a script nor a network."""
    translator.body.append(latex2mathml.converter.convert(node.astext()))
    raise nodes.SkipNode


def block_formula(translator, node):
    translator.body.append(f'<div class="math">{latex2mathml.converter.convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def copy_report(app, error):
    """The report that the first page makes, beside the pages that show it."""
    if error is None and (HERE / pages.REPORT).exists():
        shutil.copy(HERE / pages.REPORT, app.outdir / "example-report.html")


def copy_reproduction(app, error):
    """The page that `tightrope reproduce` has left, with its pictures and their data, beside the one that shows it."""
    if error is None:
        records = shutil.ignore_patterns("cells")
        shutil.copytree(HERE / "reproduction", app.outdir / "reproduction", ignore=records, dirs_exist_ok=True)


def setup(app):
    app.add_html_math_renderer("mathml", inline_renderers=(inline_formula, None), block_renderers=(block_formula, None))
    app.connect("autodoc-process-docstring", lambda app, what, name, found, options, lines: pages.to_rst(lines))
    app.connect("build-finished", copy_report)
    app.connect("build-finished", copy_reproduction)
