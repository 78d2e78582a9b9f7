"""The figures: what they show holds on a grid small enough for a test."""

import numpy as np
import pytest
import xarray as xr

import tightrope as tr
from tightrope.plots import cell_edges, heat_maps
from tightrope.reproduce import acceptance, reproduce
from tightrope.reproduce.acceptance import acceptance_grid, largest_steps, points_on_the_loop

SIGMAS = np.array([1e-4, 1e-2])
STEPS = np.logspace(-5, 0, 11)


def limits(method):
    toy = lambda sigma: tr.zoo.load("toy", sigma=sigma)
    grid = acceptance_grid(method, toy, SIGMAS, STEPS, points_on_the_loop(4), num_draws=40, seed=1)
    assert grid.sizes == {"sigma": 2, "step_size": 11, "chain": 4}
    return largest_steps(grid.mean("chain"))


@pytest.mark.parametrize(
    "method",
    [
        tr.RWM(metric="identity"),
        tr.XifaraMALA(),
        tr.RiemannianHMC(solver="fixed-point", num_steps=10, jitter=0.0),
    ],
    ids=lambda method: method.name,
)
def test_steps_shrink_with_the_noise(method):
    small, large = limits(method)
    assert 0.7 < np.log10(large / small) / 2 < 1.3


def test_lifted_steps_do_not_shrink():
    small, large = limits(tr.LiftedHMC(solver="newton", num_steps=10, jitter=0.0))
    assert abs(np.log10(large / small)) / 2 < 0.1


def test_points_are_on_the_loop_and_apart():
    points = points_on_the_loop(4)
    forward = tr.zoo.load("toy").observations.forward
    np.testing.assert_allclose([forward({"theta": point})[0] for point in points], 1.0, atol=1e-12)
    # The loop is symmetric about both axes, so quarters of it end on them.
    np.testing.assert_allclose(points.sum(0), 0.0, atol=0.01)


def test_largest_step_is_where_acceptance_falls_to_a_half():
    steps = np.array([0.01, 0.1, 1.0])
    rows = [[0.9, 0.75, 0.25], [0.4, 0.3, 0.0], [1.0, 1.0, 0.8]]
    means = xr.DataArray(rows, {"sigma": [1, 2, 3], "step_size": steps}, dims=("sigma", "step_size"))
    np.testing.assert_allclose(largest_steps(means), [10**-0.5, np.nan, 1.0])


def test_heat_maps_are_drawn(tmp_path):
    grid = xr.DataArray(np.random.default_rng(0).uniform(size=(4, 11, 11)), dims=("method", "sigma", "step_size"))
    grid = grid.assign_coords(method=list("abcd"), sigma=STEPS, step_size=STEPS)
    heat_maps(grid, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 10_000


def test_figure_is_drawn_from_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(acceptance, "GRID", np.array([1e-4, 1e-3, 1e-2, 1e-1]))
    told = []
    acceptance.heat_maps({"RWM": tr.RWM(metric="identity")}, tmp_path / "figure", True, told.append)
    with xr.open_dataset(tmp_path / "figure.nc", engine="h5netcdf") as saved:
        assert saved["acceptance"].dims == ("method", "sigma", "step_size", "chain")
        assert saved.attrs["command"] == "tightrope reproduce figure --quick" and saved.attrs["seed"] == 1
    assert (tmp_path / "figure.png").exists()
    assert any("slope 1." in line or "slope 0.9" in line for line in told), told


def test_cells_are_around_their_values():
    edges = cell_edges(STEPS)
    assert len(edges) == len(STEPS) + 1
    np.testing.assert_allclose(np.sqrt(edges[1:] * edges[:-1]), STEPS)


def test_unknown_target_is_refused(tmp_path):
    with pytest.raises(tr.InputError, match='did you mean "figure-2"'):
        reproduce("figure2", tmp_path, True, print)
