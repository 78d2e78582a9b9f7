"""The figures: what they show holds on a grid small enough for a test."""

import contextlib

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from cases import slow_but
from scipy.optimize import minimize

import tightrope as tr
from tightrope.cells import name_of
from tightrope.plots import cell_edges, heat_maps
from tightrope.reproduce import (
    DEFAULT,
    PAPER,
    QUICK,
    TARGETS,
    Claim,
    Length,
    Request,
    acceptance,
    description,
    pairs,
    pictures,
    reproduce,
    run_all,
    sticking,
)
from tightrope.reproduce.acceptance import acceptance_grid, largest_steps, points_on_the_loop, row_of_grid
from tightrope.reproduce.curvature import chart_of, extremes, hessian_at_mode, slope_and_curvature
from tightrope.reproduce.density import posteriors, surfaces
from tightrope.reproduce.efficiency import collapses, converges, fall, keeps_its_pace, never_converges
from tightrope.reproduce.families import FAMILIES, HMC, LIFTED, Rates, agree, medians, rates_in, sets, spread
from tightrope.reproduce.fields import disc
from tightrope.reproduce.loop import points
from tightrope.reproduce.measured import OURS, beats, exception, told_ratio
from tightrope.reproduce.step_sizes import step_slopes
from tightrope.reproduce.sticking import most_in_a_row

MUCH_COMPUTED = True
OF_DRAWS = ("figure-c5", "figure-c6")

SIGMAS = np.array([1e-4, 1e-2])
STEPS = np.logspace(-5, 0, 11)


def limits(method):
    toy = lambda sigma: tr.zoo.load("toy", sigma=sigma)
    row = row_of_grid(method, toy, STEPS, points_on_the_loop(4), num_draws=40)
    grid = acceptance_grid(row, SIGMAS, STEPS, 4, seed=1)
    assert grid.sizes == {"sigma": 2, "step_size": 11, "chain": 4}
    return largest_steps(grid.mean("chain"))


METHODS = [tr.RWM(metric="identity"), tr.XifaraMALA(), tr.RiemannianHMC(solver="fixed-point", num_steps=10, jitter=0.0)]


@pytest.mark.parametrize("method", slow_but([], METHODS), ids=lambda method: method.name)
def test_steps_shrink_with_the_noise(method):
    small, large = limits(method)
    assert 0.7 < np.log10(large / small) / 2 < 1.3


@pytest.mark.slow
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
    grid = np.array([1e-4, 1e-3, 1e-2, 1e-1])
    # Steps up to the noise are accepted, for one of two methods.
    accepted = {"RWM": grid[:, None] >= grid[None, :], "lifted": np.ones((4, 4))}

    def row_of(method, model_of, step_sizes, starts, num_draws):
        values = accepted["lifted" if method.name == "lifted-hmc" else "RWM"]
        return lambda sigma, keys: np.repeat(1.0 * values[grid == sigma].T, 4, axis=-1)

    monkeypatch.setattr(acceptance, "GRID", grid)
    monkeypatch.setattr(acceptance, "row_of_grid", row_of)
    told = []
    shrinking, steady = acceptance.figure_2(Request("figure-2", tmp_path, told.append, QUICK))
    with xr.open_dataset(tmp_path / "figure-2.nc", engine="h5netcdf") as saved:
        assert saved["acceptance"].dims == ("method", "sigma", "step_size", "chain")
        assert saved.attrs["command"] == "tightrope reproduce figure-2 --quick" and saved.attrs["seed"] == 1
    assert (tmp_path / "figure-2.png").exists()
    assert shrinking.is_borne_out and "RWM 1.00" in shrinking.found and steady.is_borne_out
    assert any(line.startswith("RWM") and line.endswith("slope 1.00") for line in told), told


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


@pytest.mark.parametrize("target", slow_but(["figure-1"], ["figure-1", "figure-3"]))
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
    assert len(list((tmp_path / "cells").glob("*.json"))) == 9
    assert all((tmp_path / f"figure-4.{kind}").stat().st_size > 10_000 for kind in ("png", "svg"))
    assert all("not converged" in line for line in told[:9])


def test_the_table_stands_beside_the_papers(tmp_path, monkeypatch):
    def found(cells, directory, **_):
        rows = [{"model": cell.model, **cell.labels, "seed": cell.seed, "d": 7, "m": 25} for cell in cells]
        return pd.DataFrame(rows).assign(status="finished", r_hat=1.0, ess_per_second=lambda t: 10.0 + t["seed"])

    monkeypatch.setattr("tightrope.reproduce.families.sweep", found)
    told = []
    reproduce(Request("table-1", tmp_path, told.append, TINY._replace(num_sets=3)))
    assert "| soil-hn-t35 | 7 | 25 | 12 | 6.6 | 12 | 2.1 | 12 | 3.4 | 12 |" in told
    assert told[2] in (tmp_path / "table-1.md").read_text()
    assert (tmp_path / "table-1.png").exists()


def test_what_is_not_known_is_not_told():
    is_small = lambda slope: slope < 0.2
    found = [agree(slopes, is_small) for slopes in ([0.1, 0.0], [0.1, np.nan], [0.3, np.nan], [0.3, 0.1], [np.nan])]
    assert found == [True, None, False, False, None]


def test_a_posterior_without_draws_has_no_step_sizes(tmp_path):
    table = pd.DataFrame({"line": ["a", "b"], "sigma": [0.1, 1.0], "step_size": [0.1, 0.2], "status": "finished"})
    none = table.assign(step_size=np.nan, status="unfinished")
    pictures.step_sizes({"one": table, "two": none, "three": table, "four": none}, tmp_path / "steps")
    assert (tmp_path / "steps.png").stat().st_size > 10_000


def test_a_ratio_to_what_did_not_converge_is_put_into_words():
    assert [told_ratio(value) for value in (1.5, 0.0, np.nan)] == ["1.5", "not converged", "unknown"]
    assert "the other not converged" in told_ratio(np.inf)


@pytest.mark.parametrize(
    ("newton", "dense", "late", "is_so"),
    [
        (2.0, 1.0, (), True),
        (1.0, 2.0, (), False),
        (2.0, np.nan, (), True),
        (np.nan, np.nan, (), False),
        (np.nan, 1.0, ("lifted, Newton",), None),
        (2.0, np.nan, ("HMC, dense",), None),
    ],
)
def test_methods_of_the_table_are_compared_where_both_had_time(newton, dense, late, is_so):
    lines = {"lifted, Newton": newton, "HMC, dense": dense, OURS: 3.0}
    median = pd.DataFrame({"lotka-volterra": lines})
    is_late = pd.DataFrame({"lotka-volterra": {line: line in late for line in lines}})
    found = Rates(median, is_late, median.notna())
    assert beats(found, "HMC, dense", ["lotka-volterra"]).is_borne_out is is_so
    other = exception(found).is_borne_out
    assert other is (None if late else bool(dense > newton))
    assert ("out of time" in exception(found).found) is bool(late)


@pytest.mark.parametrize("target", FAMILIES)
def test_cells_are_those_of_the_family(target, tmp_path, monkeypatch):
    asked = []

    def run(request, cells, keep_draws):
        asked.extend(cells)
        raise InterruptedError

    monkeypatch.setattr("tightrope.reproduce.families.run", run)
    with pytest.raises(InterruptedError):
        reproduce(Request(target, tmp_path, print, TINY._replace(num_sigmas=None)))
    family = FAMILIES[target]
    assert {cell.model for cell in asked} == {family.model}
    found = [(cell.options["sigma"], cell.labels["line"]) for cell in asked]
    assert found == [(sigma, line) for sigma in family.sigmas for line in family.methods]


@pytest.mark.parametrize("length", [QUICK, DEFAULT])
def test_all_runs_what_every_target_asks_for(length, tmp_path, monkeypatch):
    asked = {True: set(), False: set()}

    def swept(cells, directory, *, keep_draws, **_):
        assert directory == tmp_path / "cells"
        asked[keep_draws] |= {name_of(cell.definition()) for cell in cells}
        return pd.DataFrame({"file": []})

    monkeypatch.setattr("tightrope.reproduce.families.sweep", swept)
    monkeypatch.setattr("tightrope.reproduce.families.pd.read_csv", lambda file: pd.DataFrame())
    targets = [name for name in TARGETS if name.startswith(("table-", "figure-g")) or name in (*FAMILIES, *OF_DRAWS)]
    for target in targets:
        with contextlib.suppress(KeyError):  # there is nothing to draw
            TARGETS[target](Request(target, tmp_path, print, length))
    wanted, asked[True], asked[False] = dict(asked), set(), set()
    run_all(Request("all", tmp_path, print, length))
    assert asked == wanted and all(asked.values())


@pytest.mark.parametrize(("limit", "last"), [(0.1, "100"), (np.inf, "not converged"), (np.nan, "not converged")])
def test_a_figure_against_noise_is_drawn_of_what_was_found(limit, last, tmp_path, monkeypatch):
    def found(cells, directory, **_):
        rows = [{**cell.options, **cell.labels, "is_hmc": "HMC" in cell.labels["line"]} for cell in cells]
        table = pd.DataFrame(rows).assign(status="finished", ess_per_second=100.0)
        is_bad = (table["sigma"] < limit) & (table["is_hmc"] | np.isinf(limit))
        return table.assign(r_hat=np.nan if np.isnan(limit) else 1.0 + 0.2 * is_bad)

    monkeypatch.setattr("tightrope.reproduce.families.sweep", found)
    told = []
    reproduce(Request("figure-4", tmp_path, told.append, QUICK))
    assert told[0].endswith(f"1e-05: {last} 1e-03: {last} 1e+00: {last}")
    assert told[3].endswith(f"1e-05: not converged 1e-03: not converged 1e+00: {last}")
    assert all((tmp_path / f"figure-4.{kind}").exists() for kind in ("csv", "png", "svg"))


NONE = np.nan


def rates(late=False, **lines):
    """ESS per second by line, at three noise scales; none where it did not converge, or was late."""
    median = pd.DataFrame(lines, index=[1e-3, 1e-1, 1.0]).T
    return Rates(median, median.isna() & late, median.notna() | (not late))


def test_claims_are_judged_by_what_was_found():
    flat = rates(**dict.fromkeys(LIFTED, (50.0, 60.0, 100.0)), **dict.fromkeys(HMC, (1.0, 5.0, 100.0)))
    assert fall(flat.median.loc["HMC, dense"]) == 100 and fall(flat.median.loc["lifted, Newton"]) == 2
    assert keeps_its_pace(flat).is_borne_out and collapses(flat, "HMC", HMC).is_borne_out
    assert converges(flat).is_borne_out and not never_converges(flat).is_borne_out
    lines = {**dict.fromkeys(LIFTED, (NONE, 60.0, 100.0)), **dict.fromkeys(HMC, (NONE, NONE, NONE))}
    other = rates(**lines)
    assert fall(other.median.loc["HMC, dense"]) == np.inf
    assert keeps_its_pace(other).is_borne_out is False and collapses(other, "HMC", HMC).is_borne_out
    assert converges(other).is_borne_out is False and never_converges(other).is_borne_out
    assert "HMC, dense none left" in collapses(other, "HMC", HMC).found


def test_what_there_was_no_time_for_is_not_told():
    lines = {**dict.fromkeys(LIFTED, (NONE, 60.0, 100.0)), LIFTED[1]: (60.0, 60.0, 100.0)}
    late = rates(late=True, **lines)
    assert keeps_its_pace(late).is_borne_out is None and converges(late).is_borne_out is None
    assert f"{LIFTED[0]} unknown, {LIFTED[1]} 1.7 times" in keeps_its_pace(late).found
    none = rates(late=True, **dict.fromkeys(HMC, (NONE, NONE, NONE)))
    assert never_converges(none).is_borne_out is None
    some = rates(late=True, **{HMC[0]: (NONE, NONE, NONE), HMC[1]: (NONE, NONE, 1.0)})
    assert never_converges(some).is_borne_out is False
    slow = rates(late=True, **{**lines, LIFTED[1]: (1.0, 60.0, 100.0)})
    assert keeps_its_pace(slow).is_borne_out is False


def test_what_is_late_is_told_from_what_does_not_converge():
    row = lambda line, status, r_hat: {
        "line": line,
        "sigma": 0.1,
        "status": status,
        "r_hat": r_hat,
        "ess_per_second": 9.0,
    }
    rows = [row("a", "finished", 1.2), row("b", "unfinished", NONE), row("c", "unfinished", 1.0)]
    table = pd.DataFrame(rows).assign(is_converged=lambda table: table["r_hat"] <= 1.05)
    found = rates_in(table, "sigma")
    assert found.median[0.1].isna().tolist() == [True, True, False]
    assert found.is_late[0.1].tolist() == [False, True, False]
    assert found.is_seen[0.1].tolist() == [True, False, True]


def test_slopes_of_steps_are_those_below_the_largest_noise():
    sigmas = np.array([1e-3, 1e-2, 1e-1, 1.0])
    steps = {"lifted": np.full(4, 0.3), "HMC": np.minimum(sigmas, 0.1)}
    table = pd.concat(pd.DataFrame({"line": line, "sigma": sigmas, "step_size": x}) for line, x in steps.items())
    np.testing.assert_allclose(step_slopes(table).loc[["lifted", "HMC"]], [0.0, 1.0], atol=1e-12)


@pytest.mark.parametrize(("moved", "most"), [("1111", 0), ("1001", 2), ("0010", 2), ("000", 3), ("", 0)])
def test_rejections_in_a_row_are_counted(moved, most):
    assert most_in_a_row(np.array([letter == "0" for letter in moved], bool)) == most


def neuron(random, reach, stuck=0):
    """Draws along a ridge, one chain of which may stick."""
    log_gamma = reach * random.normal(size=(2, 400))
    log_gamma[1, 100 : 101 + stuck] = log_gamma[1, 100]
    gamma = np.exp(log_gamma)
    x0 = np.stack([np.ones_like(gamma), -1 / gamma], axis=-1)
    values = {"gamma": gamma, "delta": 1 / gamma, "zeta": 0.2 / gamma}
    return xr.Dataset(
        {"x0": (("chain", "draw", "x0_dim_0"), x0), **{name: (("chain", "draw"), x) for name, x in values.items()}}
    ).assign_coords(x0_dim_0=[0, 1])


@pytest.mark.parametrize(("reach", "is_missed"), slow_but([(0.5, True)], [(0.5, True), (1.0, False), (None, None)]))
def test_missed_tails_are_seen(reach, is_missed, tmp_path, monkeypatch):
    random = np.random.default_rng(1)

    def found(request, cells):
        is_ours = cells[0].labels["line"].startswith("lifted")
        return [neuron(random, 1.0 if is_ours else reach)] if is_ours or reach else []

    monkeypatch.setattr(pairs, "kept_draws", found)
    (claim,) = pairs.figure_c5(Request("figure-c5", tmp_path, print, QUICK))
    assert claim.is_borne_out is is_missed
    assert (tmp_path / "figure-c5.png").stat().st_size > 20_000


@pytest.mark.parametrize(("stuck", "is_found"), [(60, True), (20, False)])
def test_a_chain_that_sticks_is_found(stuck, is_found, tmp_path, monkeypatch):
    random = np.random.default_rng(1)
    monkeypatch.setattr(
        sticking, "kept_draws", lambda request, cells: [neuron(random, 1.0), neuron(random, 1.0, stuck)]
    )
    (claim,) = sticking.figure_c6(Request("figure-c6", tmp_path, print, QUICK))
    assert claim.is_borne_out is is_found and f"at most {stuck} rejections" in claim.found
    assert (tmp_path / "figure-c6.png").exists()


@pytest.mark.parametrize(
    ("target", "power", "is_so"), [("figure-g2", 1, True), ("figure-g4", 1, False), ("figure-g4", 2, True)]
)
def test_a_gaussian_is_known_by_its_symmetry(target, power, is_so, tmp_path, monkeypatch):
    values = np.random.default_rng(1).normal(size=(3, 4, 500)) ** power
    draws = xr.Dataset({name: (("chain", "draw"), x) for name, x in zip("abc", values, strict=True)})
    monkeypatch.setattr(pairs, "kept_draws", lambda request, cells, group: [draws])
    (claim,) = TARGETS[target](Request(target, tmp_path, print, QUICK))
    assert claim.is_borne_out is is_so
    assert (tmp_path / f"{target}.png").exists()


@pytest.mark.slow
def test_the_way_to_the_mode_starts_at_the_truth():
    for sigma in (1e-3, 1.0):
        model = tr.zoo.load("nonlinear-ssm", sigma=sigma, T=6)
        truth = model.parameters.coordinates(model.truth)
        chart, start = chart_of(model, truth)
        np.testing.assert_allclose(chart(start), truth, atol=1e-9)


@pytest.mark.slow
def test_the_posterior_is_steeper_where_noise_is_smaller():
    found = [extremes(hessian_at_mode(tr.zoo.load("nonlinear-ssm", sigma=sigma, T=6))) for sigma in (1e-3, 1.0)]
    small, large = (x["largest"] / x["smallest"] for x in found)
    assert small > 1e4 * large


def test_a_search_that_leaves_the_chart_turns_back():
    slope, curvature = slope_and_curvature(lambda v: jnp.sqrt(v) - 1)
    outside = np.array([-1.0, 2.0])
    assert (
        slope(outside)[0] == np.inf and np.isfinite(slope(outside)[1]).all() and np.isfinite(curvature(outside)).all()
    )
    tried = []
    look = lambda v: tried.append(v.min()) or slope(v)
    options = {"initial_trust_radius": 100.0}
    found = minimize(look, [5.0, 0.01], jac=True, hess=curvature, method="trust-exact", options=options)
    assert found.success and min(tried) < 0
    np.testing.assert_allclose(found.x, 1.0, atol=1e-3)


def test_the_disc_is_the_models():
    data, model = disc(), tr.zoo.load("poisson")
    seen = data["temperature"].values[data["sensor"].values]
    np.testing.assert_allclose(seen, model.observations.forward(model.truth), rtol=1e-9)
    assert data["temperature"].values[-1] == 0.0 and len(data["z"]) == 469


def test_a_page_tells_which_claims_are_borne_out(tmp_path, monkeypatch):
    def good(request):
        """Something good."""
        request.file(".png").write_bytes(b"")
        request.file(".md").write_text("By `x`.\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n")
        return [Claim("It is <good>.", True, "1 of 1"), Claim("It is bad.", False, "none")]

    def broken(request):
        """Something that fails."""
        raise ValueError("no luck")

    def other(request):
        """Something that has no time."""
        return [Claim("Nobody knows.", None, "no draws")]

    def failing(request):
        raise tr.StoreError("no room")

    monkeypatch.setattr("tightrope.reproduce.run_all", failing)
    monkeypatch.setattr("tightrope.reproduce.TARGETS", {"figure-x": good, "figure-y": broken, "figure-z": other})
    told = []
    with pytest.raises(tr.SamplingError, match="not made: figure-y"):
        reproduce(Request("all", tmp_path, told.append, QUICK))
    assert "StoreError: no room" in told
    text = (tmp_path / "index.html").read_text()
    assert (
        "It is &lt;good&gt;." in text and "✓ borne out" in text and "✗ not borne out" in text and "? not told" in text
    )
    assert '<img src="figure-x.png"' in text and "<td>2</td>" in text and "figure-y" not in text
    assert "2 of 3" in text and "tightrope reproduce figure-x --quick" in text
    assert "figure-y: ValueError: no luck" in told
    assert any(line.startswith("figure-x: It is bad. Not borne out: none.") for line in told)
