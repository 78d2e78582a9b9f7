"""The toy's level sets, on which its posteriors close as the noise vanishes."""

import numpy as np


def radii(angles: np.ndarray, level: np.ndarray | float = 1.0) -> np.ndarray:
    """How far from the origin F equals a level above zero, in the directions of the angles."""
    # On a ray, cos^4 r^4 + (sin^2 - cos^2 / 2) r^2 = level; each root is written so that nothing cancels.
    square, linear = np.cos(angles) ** 4, np.sin(angles) ** 2 - np.cos(angles) ** 2 / 2
    size = np.abs(linear) + np.sqrt(linear**2 + 4 * square * level)
    with np.errstate(divide="ignore"):
        return np.sqrt(np.where(linear < 0, size / (2 * square), 2 * level / size))


def points(angles: np.ndarray, level: np.ndarray | float = 1.0) -> np.ndarray:
    """The points there, in a last axis."""
    return radii(angles, level)[..., None] * np.stack(np.broadcast_arrays(np.cos(angles), np.sin(angles)), axis=-1)
