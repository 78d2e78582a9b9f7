"""Draw the pictures of the README and of the documentation, all or some by name.

python docs/make_images.py [thin three-kinds lifted step noise]
"""

import io
import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import tightrope as tr
from tightrope.diagnostics import MAX_R_HAT_OF_ESS, performance

IMAGES = Path(__file__).parent / "images"
BLUE, RED, GREY = "#1b6ca8", "#d1603d", "#666666"


def save(figure, name, dpi=110):
    """As a PNG of 128 colours, which is a third as large."""
    whole = io.BytesIO()
    figure.savefig(whole, dpi=dpi)
    plt.close(figure)
    Image.open(whole).convert("RGB").quantize(128).save(IMAGES / f"{name}.png", optimize=True)


def tidy(axis):
    axis.spines[["top", "right"]].set_visible(False)


def toy_forward(th0, th1):
    return th1**2 + th0**2 * (th0**2 - 0.5)


def draw_density(axis, log_density, x, y):
    values = log_density(*np.meshgrid(x, y))
    axis.pcolormesh(x, y, np.exp(values - values.max()), cmap="Blues", shading="auto", rasterized=True)


def draw_toy(axis, sigma):
    """The density, on a grid fine enough for the thinnest."""
    log_density = lambda th0, th1: -0.5 * (th0**2 + th1**2 + ((1 - toy_forward(th0, th1)) / sigma) ** 2)
    draw_density(axis, log_density, *2 * [np.linspace(-1.7, 1.7, 1200)])


def thin():
    """The toy posterior getting thinner while a chain walks on."""
    sigmas = (0.5, 0.1, 0.01)
    figure, axes = plt.subplots(1, len(sigmas), figsize=(10.5, 3.7), sharey=True)
    for axis, sigma in zip(axes, sigmas, strict=True):
        trace = tr.sample(tr.zoo.load("toy", sigma=sigma), draws=200, chains=1, seed=2, progress=False)
        th0, th1 = trace.posterior["theta"].values[0].T
        step_size = float(trace.sample_stats["step_size"][0, -1])
        draw_toy(axis, sigma)
        axis.plot(th0, th1, color=RED, linewidth=0.35, alpha=0.8)
        axis.plot(th0, th1, ".", color=RED, markersize=3)
        axis.set_title(rf"$\sigma$ = {sigma:g}, step size {step_size:.2f}", fontsize=11)
        axis.set_aspect("equal")
        axis.set_xlabel(r"$\theta_0$")
        tidy(axis)
    axes[0].set_ylabel(r"$\theta_1$")
    figure.tight_layout()
    save(figure, "thin")


def three_kinds():
    """A posterior for any sampler, one for a metric, and one to lift."""
    grid = np.linspace(-2.2, 2.2, 900)
    normal = lambda a, b: -0.5 * (a**2 + b**2)
    kinds = {
        "wide": lambda a, b: normal(a, b) - 0.5 * ((a + 0.5 * b - 0.4) / 1.0) ** 2,
        "thin and straight": lambda a, b: normal(a, b) - 0.5 * ((a + b - 0.3) / 0.04) ** 2,
        "thin and crooked": lambda a, b: normal(a, b) - 0.5 * ((1 - toy_forward(a, b)) / 0.06) ** 2,
    }
    figure, axes = plt.subplots(1, len(kinds), figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, (title, log_density) in zip(axes, kinds.items(), strict=True):
        draw_density(axis, log_density, grid, grid)
        axis.set(title=title, aspect="equal", xticks=[-2, 0, 2], yticks=[-2, 0, 2], xlabel=r"$\theta_0$")
        tidy(axis)
    axes[0].set_ylabel(r"$\theta_1$")
    save(figure, "three-kinds")


def radius(angle, level):
    """How far out from the centre the toy's forward model has some value."""
    quartic, square = np.cos(angle) ** 4, np.sin(angle) ** 2 - 0.5 * np.cos(angle) ** 2
    return np.sqrt(2 * level / (square + np.sqrt(square**2 + 4 * quartic * level)))


def lifted():
    """The ribbon, and the surface whose shadow it is."""
    figure = plt.figure(figsize=(9.5, 4.4))
    angle, eta = np.meshgrid(np.linspace(0, 2 * np.pi, 161), np.linspace(-3, 3, 41))
    for place, sigma in enumerate((0.3, 0.05)):
        axis = figure.add_subplot(1, 2, place + 1, projection="3d")
        r = radius(angle, 1 - sigma * eta)
        x, y = r * np.cos(angle), r * np.sin(angle)
        density = np.exp(-0.5 * eta**2)
        axis.plot_surface(x, y, eta, facecolors=plt.cm.Blues(0.15 + 0.8 * density), rstride=1, cstride=1, shade=False)
        floor = np.full_like(x, -5.0)
        axis.plot_surface(
            x, y, floor, facecolors=plt.cm.Oranges(0.1 + 0.7 * density), rstride=1, cstride=1, shade=False
        )
        axis.set(
            xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), zlim=(-5, 3), zticks=[-3, 0, 3], xticks=[-1, 0, 1], yticks=[-1, 0, 1]
        )
        axis.set_title(rf"$\sigma$ = {sigma:g}", y=1.02)
        axis.set_xlabel(r"$\theta_0$", labelpad=-6)
        axis.set_ylabel(r"$\theta_1$", labelpad=-6)
        axis.set_zlabel(r"$\eta$", labelpad=-8)
        axis.tick_params(pad=-3, labelsize=8)
        axis.view_init(28, -60)
        axis.set_box_aspect((1, 1, 0.85), zoom=1.05)
    figure.subplots_adjust(left=0.0, right=0.97, bottom=0.02, top=0.94, wspace=0.02)
    save(figure, "lifted")


def step():
    """A tangent move and its projection, across a surface that is a curve here."""
    surface = lambda u: 1.1 - 0.55 * u**2
    slope = lambda u: -1.1 * u
    start = -0.55
    tangent = np.array([1.0, slope(start)]) / np.hypot(1.0, slope(start))
    normal = np.array([-tangent[1], tangent[0]])
    here = np.array([start, surface(start)])
    moved = here + 1.05 * tangent
    distances = np.linspace(-2.0, 0.0, 20001)
    along = moved[:, None] + normal[:, None] * distances
    back = along[:, np.argmin(np.abs(along[1] - surface(along[0])))]
    figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
    u = np.linspace(-1.35, 1.5, 300)
    axis.plot(u, surface(u), color=BLUE, linewidth=2.5)
    line = here[:, None] + tangent[:, None] * np.array([-0.5, 1.6])
    axis.plot(*line, color=GREY, linewidth=1, linestyle="--")
    arrow = dict(arrowstyle="-|>", color=RED, linewidth=1.8, shrinkA=0, shrinkB=0)
    axis.annotate("", moved, here, arrowprops=arrow)
    axis.annotate("", back, moved, arrowprops=arrow)
    axis.plot(*np.stack([here, back], axis=1), "o", color=BLUE, markersize=8)
    middle, half_way = (here + moved) / 2, (moved + back) / 2
    axis.annotate("1  move", middle, (-8, 10), textcoords="offset points", color=RED, ha="right")
    axis.annotate("2  come back", half_way, (10, 0), textcoords="offset points", color=RED, va="center")
    axis.annotate("start", here, (10, -16), textcoords="offset points")
    axis.annotate("end", back, (-10, -16), textcoords="offset points", ha="right")
    axis.annotate("tangent", line[:, 1], (6, -3), textcoords="offset points", color=GREY)
    axis.annotate("surface", (1.3, surface(1.3)), (10, 0), textcoords="offset points", color=BLUE)
    axis.set(aspect="equal", xlabel="parameters", ylabel="noise", xticks=[], yticks=[], ylim=(-0.15, 2.1))
    tidy(axis)
    save(figure, "step")


def noise():
    """Step sizes and costs on the toy as its noise vanishes, as they are measured."""
    sigmas = (1.0, 0.1, 0.01, 0.001)
    methods = {"lifted": (tr.LiftedNUTS(), BLUE, "o"), "NUTS, dense metric": (tr.NUTS(metric="dense"), RED, "s")}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for label, (method, colour, marker) in methods.items():
        rows = []
        for sigma in sigmas:
            model = tr.zoo.load("toy", sigma=sigma)
            rows.append(performance(tr.sample(model, seed=1, method=method, max_time=60, progress=False)))
            print(label, sigma, {key: rows[-1][key] for key in ("r_hat", "step_size", "ess_per_step")}, flush=True)
        good = np.array([row["r_hat"] <= MAX_R_HAT_OF_ESS for row in rows])
        cost = np.array([1 / row["ess_per_step"] for row in rows])
        style = dict(color=colour, marker=marker, label=label)
        axes[0].loglog(sigmas, [row["step_size"] for row in rows], **style)
        axes[1].loglog(np.array(sigmas)[good], cost[good], **style)
    for axis, text in zip(axes, ("step size", "steps for an effective draw"), strict=True):
        axis.set(xlabel=r"noise scale $\sigma$", ylabel=text)
        axis.invert_xaxis()
        axis.grid(alpha=0.3)
        tidy(axis)
    axes[0].legend(frameon=False)
    save(figure, "noise")


PICTURES = {"thin": thin, "three-kinds": three_kinds, "lifted": lifted, "step": step, "noise": noise}


if __name__ == "__main__":
    warnings.simplefilter("ignore", tr.SamplingWarning)
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
