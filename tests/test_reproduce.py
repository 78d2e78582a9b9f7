"""The figures: what they show holds on a grid small enough for a test."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from cases import slow_but

import tightrope as tr
from tightrope.plots import cell_edges, heat_maps
from tightrope.reproduce import DEFAULT, PAPER, QUICK, TARGETS, Length, Request, acceptance, description, reproduce
from tightrope.reproduce.acceptance import acceptance_grid, largest_steps, points_on_the_loop
from tightrope.reproduce.density import posteriors, surfaces
from tightrope.reproduce.efficiency import FAMILIES, medians, sets, spread
from tightrope.reproduce.loop import points

MUCH_COMPUTED = True

SIGMAS = np.array([1e-4, 1e-2])
STEPS = np.logspace(-5, 0, 11)


def limits(method):
    toy = lambda sigma: tr.zoo.load("toy", sigma=sigma)
    grid = acceptance_grid(method, toy, SIGMAS, STEPS, points_on_the_loop(4), num_draws=40, seed=1)
    assert grid.sizes == {"sigma": 2, "step_size": 11, "chain": 4}
    return largest_steps(grid.mean("chain"))


METHODS = [tr.RWM(metric="identity"), tr.XifaraMALA(), tr.RiemannianHMC(solver="fixed-point", num_steps=10, jitter=0.0)]


@pytest.mark.parametrize("method", slow_but(METHODS[:1], METHODS), ids=lambda method: method.name)
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
    heat_maps(grid, tmp_path / "map")
    assert all((tmp_path / f"map.{kind}").stat().st_size > 10_000 for kind in ("png", "svg"))


def test_figure_is_drawn_from_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(acceptance, "GRID", np.array([1e-4, 1e-3, 1e-2, 1e-1]))
    told = []
    acceptance.heat_maps({"RWM": tr.RWM(metric="identity")}, Request("figure", tmp_path, told.append, QUICK))
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
        reproduce(Request("figure2", tmp_path, print))


def test_every_target_says_what_it_shows():
    assert all(description(target).endswith(".") for target in TARGETS)


def test_level_sets_have_their_level():
    forward = tr.zoo.load("toy").observations.forward
    angles = np.linspace(0, 2 * np.pi, 50)
    for level in (2.0, 0.3, 1e-9):
        found = [float(forward({"theta": point})[0]) for point in points(angles, level)]
        np.testing.assert_allclose(found, level, atol=1e-14, rtol=1e-9)


def test_posteriors_in_the_plane_have_the_right_shape():
    found = posteriors()
    cell = float(found["theta0"][1] - found["theta0"][0]) ** 2
    np.testing.assert_allclose(found["density"].sum(["theta0", "theta1"]) * cell, 1.0)
    th0, th1 = np.meshgrid(found["theta0"], found["theta1"])
    residual = (1 - th1**2 - th0**2 * (th0**2 - 0.5)) / 0.1
    near, energy = residual**2 < 100, (th0**2 + th1**2 + residual**2) / 2
    assert np.ptp(np.log(found["density"].sel(sigma=0.1).values[near]) + energy[near]) < 1e-9


def test_surfaces_carry_the_density_of_the_lifted_posterior():
    found = surfaces().sel(sigma=0.1)
    th0, th1 = np.moveaxis(found["place"].values, -1, 0)
    noise = (1 - th1**2 - th0**2 * (th0**2 - 0.5)) / 0.1
    np.testing.assert_allclose(noise, np.broadcast_to(found["noise"].values[:, None], noise.shape), atol=1e-9)
    # Prior and noise are standard normal; the area of the graph is sqrt(1 + |grad e|^2) times that of the plane.
    gradient = np.stack([4 * th0**3 - th0, 2 * th1]) / 0.1
    log_density = -(th0**2 + th1**2 + noise**2) / 2 - np.log1p((gradient**2).sum(0)) / 2
    np.testing.assert_allclose(found["lifted"], np.exp(log_density - log_density.max()), rtol=1e-9)


@pytest.mark.parametrize("target", ["figure-1", "figure-3"])
def test_drawings_are_left_with_their_data(target, tmp_path):
    reproduce(Request(target, tmp_path, lambda line: None, QUICK))
    assert all((tmp_path / f"{target}.{kind}").stat().st_size > 20_000 for kind in ("nc", "png", "svg"))
    with xr.open_dataset(tmp_path / f"{target}.nc", engine="h5netcdf") as saved:
        assert saved.attrs["command"] == f"tightrope reproduce {target} --quick"


def test_lengths_are_those_of_the_protocol():
    assert spread(FAMILIES["figure-6"].sigmas, QUICK) == [1e-4, 1e-2, 1.0]
    assert spread(FAMILIES["figure-6"].sigmas, DEFAULT) == list(FAMILIES["figure-6"].sigmas)
    assert len(FAMILIES["figure-4"].methods) == 9 and len(FAMILIES["figure-5"].methods) == 5
    assert {method.target_accept for method in FAMILIES["figure-4"].methods.values()} == {0.9}
    cells = sets(Request("figure-4", None, print, PAPER), "lifted", model="toy")
    assert [(cell.init, cell.seed) for cell in cells] == [(init, k) for init in ("auto", "prior") for k in (1, 2, 3)]
    assert {(cell.chains, cell.warmup, cell.draws, cell.max_time) for cell in cells} == {(4, 1000, 2500, 3600.0)}
    assert {cell.labels["line"] for cell in cells} == {"lifted", "lifted, from the prior"}


def test_no_ess_is_quoted_of_chains_that_disagree():
    table = pd.DataFrame(
        {
            "line": ["a"] * 3 + ["b"] * 3,
            "ess_per_second": [5.0, 7.0, 90.0, 5.0, 80.0, 90.0],
            "is_converged": [True, True, True, True, False, False],
        }
    )
    found = medians(table, ["line"])
    assert found["a"] == 7.0 and np.isnan(found["b"])


# A moment of each, for whether all of it is there.
TINY = Length("", 2, 12, 12, 1, 5.0, 1)


@pytest.fixture
def quick_processes(monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


@pytest.mark.slow
def test_a_sweep_becomes_a_picture(tmp_path, quick_processes):
    told = []
    reproduce(Request("figure-4", tmp_path, told.append, TINY))
    table = pd.read_csv(tmp_path / "figure-4.csv")
    assert len(table) == 9 and "failed" not in set(table["status"]), table["error"].tolist()
    assert len(list((tmp_path / "figure-4-cells").glob("*.json"))) == 9
    assert all((tmp_path / f"figure-4.{kind}").stat().st_size > 10_000 for kind in ("png", "svg"))
    assert len(told) == 10 and all("not converged" in line for line in told[:9])


def test_the_table_stands_beside_the_papers(tmp_path, monkeypatch):
    def found(cells, directory, **_):
        rows = [{"model": cell.model, **cell.labels, "seed": cell.seed, "d": 7, "m": 25} for cell in cells]
        return pd.DataFrame(rows).assign(status="finished", r_hat=1.0, ess_per_second=lambda t: 10.0 + t["seed"])

    monkeypatch.setattr("tightrope.reproduce.efficiency.sweep", found)
    told = []
    reproduce(Request("table-1", tmp_path, told.append, TINY._replace(num_sets=3)))
    assert "| soil-hn-t35 | 7 | 25 | 12 | 6.6 | 12 | 2.1 | 12 | 3.4 | 12 |" in told
    assert told[2] in (tmp_path / "table-1.md").read_text()
    assert (tmp_path / "table-1.png").exists()


@pytest.mark.parametrize("target", FAMILIES)
def test_cells_are_those_of_the_family(target, tmp_path, monkeypatch):
    asked = []

    def run(request, cells):
        asked.extend(cells)
        raise InterruptedError

    monkeypatch.setattr("tightrope.reproduce.efficiency.run", run)
    with pytest.raises(InterruptedError):
        reproduce(Request(target, tmp_path, print, TINY._replace(num_sigmas=None)))
    family = FAMILIES[target]
    assert {cell.model for cell in asked} == {family.model}
    found = [(cell.options["sigma"], cell.labels["line"]) for cell in asked]
    assert found == [(sigma, line) for sigma in family.sigmas for line in family.methods]


@pytest.mark.parametrize(("limit", "last"), [(0.1, "100"), (np.inf, "not converged"), (np.nan, "not converged")])
def test_a_figure_against_noise_is_drawn_of_what_was_found(limit, last, tmp_path, monkeypatch):
    def found(cells, directory, **_):
        rows = [{**cell.options, **cell.labels, "is_hmc": "HMC" in cell.labels["line"]} for cell in cells]
        table = pd.DataFrame(rows).assign(status="finished", ess_per_second=100.0)
        is_bad = (table["sigma"] < limit) & (table["is_hmc"] | np.isinf(limit))
        return table.assign(r_hat=np.nan if np.isnan(limit) else 1.0 + 0.2 * is_bad)

    monkeypatch.setattr("tightrope.reproduce.efficiency.sweep", found)
    told = []
    reproduce(Request("figure-4", tmp_path, told.append, QUICK))
    assert told[0].endswith(f"1e-05: {last} 1e-03: {last} 1e+00: {last}")
    assert told[3].endswith(f"1e-05: not converged 1e-03: not converged 1e+00: {last}")
    assert all((tmp_path / f"figure-4.{kind}").exists() for kind in ("csv", "png", "svg"))
