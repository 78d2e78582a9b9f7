"""Pictures for a page, as SVG whose colours are the page's own: one picture serves light, dark and print."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator, LogLocator, MaxNLocator, NullFormatter

WIDTH, HEIGHT = (
    3.3,
    1.5,
)  # of the picture, and of the box in it, in inches of 72 units; a page shows three side by side, a telephone one
MAX_POINTS = 2000  # in one picture
NUM_BINS = 30
NUM_COLOURS = 6  # of chains; then they come again

# What is drawn in these colours is shown in the page's, such as var(--chain-0).
NAMES = ("ink", "faint", "data", "band", *(f"chain-{i}" for i in range(NUM_COLOURS)))
COLOURS = {name: f"#0000{place + 1:02x}" for place, name in enumerate(NAMES)}
INK, FAINT, DATA, BAND = (COLOURS[name] for name in ("ink", "faint", "data", "band"))
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 0.9,
    "svg.fonttype": "none",  # the page's own type
    "svg.hashsalt": "tightrope",
    "path.simplify_threshold": 0.3,
}
Draw = Callable[[Axes], Any]


def picture(description: str, draw: Draw) -> str:
    """What a function draws on a pair of axes; the description is for those who do not see it."""
    with matplotlib.rc_context(STYLE):
        figure = Figure()
        axis = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        draw(axis)
        above, below = 0.1, 0.4 if axis.get_xlabel() else 0.24
        height = above + HEIGHT + below
        figure.set_size_inches(WIDTH, height)
        axis.set_position((0.15, below / height, 0.81, HEIGHT / height))
        for ruler in (axis.xaxis, axis.yaxis):
            if isinstance(ruler.get_major_locator(), AutoLocator):
                ruler.set_major_locator(MaxNLocator(5 if ruler is axis.xaxis else 4))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return inline(buffer.getvalue(), description)


def inline(svg: str, description: str) -> str:
    """A file's SVG as part of a page: short, with names of its own, in the page's colours."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*_\d+">', "<g>", body)
    own = zlib.crc32(f"{description}{svg}".encode())  # two pictures may have parts of the same name
    body = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>p{own:x}-", body)
    body = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), body)
    body = re.sub(r"\s*\n\s*", "\n", body)
    for name, colour in COLOURS.items():
        body = body.replace(colour, f"var(--{name})")
    box = re.search(r'viewBox="[^"]*"', body)
    assert box is not None
    label = f'role="img" aria-label="{escape(description)}"'
    return re.sub(r"<svg[^>]*>", lambda _: f"<svg {box[0]} {label}>", body, count=1)


def chain_colour(chain: int) -> str:
    return COLOURS[f"chain-{chain % NUM_COLOURS}"]


def bins(values: np.ndarray) -> list[float]:
    """Edges that cover all finite values, however close together those are."""
    seen = values[np.isfinite(values)]
    low, high = (seen.min(), seen.max()) if seen.size else (0.0, 1.0)
    slack = 1e-9 * max(abs(low), abs(high)) or 1.0
    if high - low < slack:
        low, high = low - slack, high + slack
    return np.linspace(low, high, NUM_BINS + 1).tolist()


def outline(axis: Axes, values: np.ndarray, edges: list[float]) -> None:
    """The histogram of each chain."""
    for chain, draws in enumerate(values):
        axis.stairs(np.histogram(draws, edges)[0], edges, color=chain_colour(chain))
    axis.set_ylim(0)
    hide_scale(axis)


def hide_scale(axis: Axes) -> None:
    """Leave out how many there are: the shape is what counts."""
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)


def marginals(values: np.ndarray) -> Draw:
    """How the draws of each chain are spread."""
    return lambda axis: outline(axis, values, bins(values))


def paths(values: np.ndarray) -> Draw:
    """Every chain from draw to draw."""

    def draw(axis: Axes) -> None:
        every = stride(values.size)
        for chain, draws in enumerate(values):
            place = np.arange(0, len(draws), every)
            axis.plot(place, draws[place], color=chain_colour(chain), linewidth=0.5, alpha=0.8)
        axis.margins(x=0)

    return draw


def stride(size: int, limit: int = MAX_POINTS) -> int:
    """Of so many draws, every how many are drawn."""
    return max(1, -(-size // limit))


def ranks(values: np.ndarray) -> Draw:
    """How often each chain has ranks of all sizes among the draws of all: equally often, if they agree."""

    def draw(axis: Axes) -> None:
        order = np.argsort(np.argsort(values, axis=None, kind="stable")).reshape(values.shape)
        edges = np.linspace(0, values.size, min(20, max(2, values.shape[1] // 10)) + 1)
        expected = values.shape[1] / (len(edges) - 1)
        axis.axhline(1, color=FAINT, linestyle=(0, (4, 3)), linewidth=0.7)
        for chain, places in enumerate(order):
            axis.stairs(
                np.histogram(places, edges)[0] / expected, edges / values.size, baseline=None, color=chain_colour(chain)
            )
        axis.margins(x=0)
        axis.set_ylim(0, max(2, axis.get_ylim()[1]))

    return draw


def scatter(x: np.ndarray, y: np.ndarray, is_diverging: np.ndarray, correlation: float) -> Draw:
    """Draws of two quantities, and where trajectories diverged."""

    def draw(axis: Axes) -> None:
        every = stride(x.size, MAX_POINTS // 3)
        kept = np.arange(0, x.size, every)
        axis.plot(x.ravel()[kept], y.ravel()[kept], ".", color=COLOURS["chain-0"], markersize=2.4, alpha=0.7, mew=0)
        lost = np.flatnonzero(is_diverging)[:MAX_POINTS]
        axis.plot(x.ravel()[lost], y.ravel()[lost], "x", color=COLOURS["chain-1"], markersize=4)
        axis.set_xlabel(f"ρ = {correlation:.2f}".replace("-", "\N{MINUS SIGN}"))

    return draw


def intervals(place: np.ndarray, draws: np.ndarray, y: np.ndarray) -> Draw:
    """Predictions, an array (draw, place), as their median and central intervals of 50 and 90 %, and the data."""

    def draw(axis: Axes) -> None:
        low, inner_low, middle, inner_high, high = np.quantile(draws, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0)
        if len(place) > 60:
            axis.fill_between(place, low, high, color=BAND, alpha=0.3, linewidth=0)
            axis.fill_between(place, inner_low, inner_high, color=BAND, alpha=0.4, linewidth=0)
            axis.plot(place, middle, color=BAND, linewidth=0.8)
        else:
            axis.vlines(place, low, high, color=BAND, alpha=0.4, linewidth=2.5)
            axis.vlines(place, inner_low, inner_high, color=BAND, alpha=0.8, linewidth=2.5)
        axis.plot(place, y, ".", color=DATA, markersize=3 if len(place) > 60 else 4.5, mew=0)
        axis.margins(x=0.03)
        if np.issubdtype(place.dtype, np.integer):
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))

    return draw


def histogram(draws: np.ndarray, y: float) -> Draw:
    """Predictions of one number, and what it was."""

    def draw(axis: Axes) -> None:
        edges = bins(np.append(draws, y))
        axis.stairs(np.histogram(draws, edges)[0], edges, fill=True, color=BAND, alpha=0.5)
        axis.axvline(y, color=DATA, linewidth=1.4)
        hide_scale(axis)

    return draw


def energies(energy: np.ndarray) -> Draw:
    """How far the energy spreads, and how far it changes from draw to draw."""

    def draw(axis: Axes) -> None:
        spread = (energy - energy.mean(axis=1, keepdims=True)).ravel()
        change = np.diff(energy, axis=1).ravel()
        edges, share = bins(np.concatenate([spread, change])), lambda x: np.histogram(x, edges)[0] / len(x)
        axis.stairs(share(spread), edges, fill=True, color=COLOURS["chain-0"], alpha=0.45, label="energy")
        axis.stairs(share(change), edges, color=COLOURS["chain-1"], label="change")
        axis.legend(loc="upper right")
        hide_scale(axis)

    return draw


def step_sizes(sizes: np.ndarray, num_warmup: int) -> Draw:
    """The step size of each chain, from the start of warm-up if it was kept."""

    def draw(axis: Axes) -> None:
        every = stride(sizes.size)
        place = np.unique(np.append(np.arange(0, sizes.shape[1], every), sizes.shape[1] - 1))
        for chain, own in enumerate(sizes):
            axis.plot(place, own[place], color=chain_colour(chain), linewidth=0.7)
        if num_warmup:
            axis.axvline(num_warmup, color=FAINT, linestyle=(0, (4, 3)), linewidth=0.7)
        if sizes.max() > 5 * sizes.min():
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel("iteration")
        axis.margins(x=0)

    return draw


def counts(values: np.ndarray) -> Draw:
    """How often each number occurs, chain by chain."""

    def draw(axis: Axes) -> None:
        width = -(-(int(np.ptp(values)) + 1) // NUM_BINS)
        edges = np.arange(np.floor(values.min()) - 0.5, values.max() + width + 0.5, width)
        outline(axis, values, edges.tolist())
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))

    return draw
