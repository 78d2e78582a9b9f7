"""Draw the README's picture: the toy posterior getting thinner while a chain walks on.

python docs/make_images.py
"""

import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import tightrope as tr

SIGMAS = (0.5, 0.1, 0.01)
NUM_DRAWS = 200


def draw_posterior(axis, sigma):
    """The density, on a grid fine enough for the thinnest."""
    th0, th1 = np.meshgrid(np.linspace(-1.7, 1.7, 1200), np.linspace(-1.7, 1.7, 1200))
    residual = (1 - th1**2 - th0**2 * (th0**2 - 0.5)) / sigma
    log_density = -0.5 * (th0**2 + th1**2 + residual**2)
    axis.pcolormesh(th0, th1, np.exp(log_density - log_density.max()), cmap="Blues", shading="auto", rasterized=True)


def main():
    figure, axes = plt.subplots(1, len(SIGMAS), figsize=(10.5, 3.7), sharey=True)
    for axis, sigma in zip(axes, SIGMAS, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tr.SamplingWarning)
            trace = tr.sample(tr.zoo.load("toy", sigma=sigma), draws=NUM_DRAWS, chains=1, seed=2, progress=False)
        th0, th1 = trace.posterior["theta"].values[0].T
        step_size = float(trace.sample_stats["step_size"][0, -1])
        draw_posterior(axis, sigma)
        axis.plot(th0, th1, color="#d1603d", linewidth=0.35, alpha=0.8)
        axis.plot(th0, th1, ".", color="#d1603d", markersize=3)
        axis.set_title(rf"$\sigma$ = {sigma:g}, step size {step_size:.2f}", fontsize=11)
        axis.set_aspect("equal")
        axis.set_xlabel(r"$\theta_0$")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(r"$\theta_1$")
    figure.tight_layout()
    figure.savefig(Path(__file__).parent / "images" / "thin.png", dpi=110)


if __name__ == "__main__":
    main()
