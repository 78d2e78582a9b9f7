"""Reports: what they say is what the trace says, and any browser shows them."""

import json
import os
import shutil
import warnings
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray as xr
from browser import CHROMIUM, chromium
from matplotlib.figure import Figure
from typer.testing import CliRunner

import tightrope as tr
from tightrope import cli, results
from tightrope.kernel import Draw
from tightrope.report import html, pictures, sections
from tightrope.report.predictions import Series, share_covered
from tightrope.results import NoDraws
from tightrope.types import Info

OPTIONS = {"draws": 120, "warmup": 60, "chains": 2, "seed": 3, "progress": False}
NUM_PARTS = 60  # of the long vector


@pytest.fixture(autouse=True, scope="module")
def short_runs_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        yield


def tall(slope=1.0):
    return tr.Model(
        {"a": dist.Normal(0.0, 1.0).expand([2]), "s": dist.LogNormal(-1.0, 0.5)},
        lambda p: slope * jnp.array([p["a"].sum(), p["a"][0] ** 2, p["a"][1]]),
        "s",
        [1.0, 0.5, 0.3],
        coords={"which": ["left", "<right>"]},
        dims={"a": ["which"]},
        name="tall & thin",
    )


def long():
    return tr.Model(
        {"z": dist.Normal(0.0, 1.0).expand([NUM_PARTS]), "s": dist.LogNormal(-1.0, 0.5)},
        lambda p: {"left": p["z"][:3].sum(), "right": p["z"].reshape(30, 2)[:25]},
        0.5,
        {"left": 1.0, "right": np.zeros((25, 2))},
        name="long",
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Directories of runs that came to their end."""
    folder = tmp_path_factory.mktemp("runs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        tr.sample(tall(), **OPTIONS, store=folder / "tall")
        tr.sample(tr.zoo.load("toy", sigma=0.2), **OPTIONS, method="rwm", store=folder / "rwm")
        tr.sample(long(), **OPTIONS, method="nuts", store=folder / "long")
    return folder


class Reader(HTMLParser):
    """The texts of a page: headings, paragraphs and list items, rows of tables, and what pictures are said to show."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.texts, self.rows, self.pictures, self.open = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        target = {"h1": self.headings, "h2": self.headings, "p": self.texts, "li": self.texts, "dd": self.texts}
        if tag in target:
            target[tag].append("")
            self.open = target[tag]
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")
            self.open = self.rows[-1]
        elif tag == "svg":
            self.pictures.append(dict(attributes)["aria-label"])
            self.open = [""]

    def handle_endtag(self, tag):
        if tag in ("h1", "h2", "p", "li", "dd", "th", "td", "svg"):
            self.open = []

    def handle_data(self, data):
        if self.open:
            self.open[-1] += data

    def row(self, name, width):
        """The row of that name in the table of that many columns."""
        (found,) = [row[1:] for row in self.rows if row[0] == name and len(row) == width]
        return found


def read(run, path, model=None):
    return Reader(tr.report(run, path, model=model).read_text())


def test_a_report_tells_what_the_trace_says(runs, tmp_path):
    trace, page = tr.load(runs / "tall"), read(runs / "tall", tmp_path / "r.html", tall())
    assert page.headings[:2] == ["tall & thin", "✗Not converged"]
    assert page.headings[2:] == ["Estimates", "Chains", "Pairs", "Predictions", "Sampler", "Time", "What was run"]
    a = trace.posterior["a"].sel(which="<right>").values
    assert np.allclose([float(x) for x in page.row("a[<right>]", 8)[:2]], [a.mean(), a.std()], rtol=0.005)
    stats = trace.sample_stats
    for chain in range(2):
        step_size, acceptance, *counts, bfmi = page.row(f"chain {chain}", 11)
        own = stats.isel(chain=chain)
        assert (step_size, acceptance) == (f"{own.step_size[-1]:.3g}", f"{own.acceptance_rate.mean():.2f}")
        names = ("n_steps", "solver_iterations", "diverging", "reached_max_treedepth")
        names += ("projection_failed", "non_reversible", "non_finite")
        assert counts == [f"{int(own[name].sum()):,}" for name in names]
        energy = own.energy.values
        assert bfmi == f"{sum((energy[1:] - energy[:-1]) ** 2) / sum((energy - energy.mean()) ** 2):.2f}"
    found = tr.status(runs / "tall")["warnings"]
    assert found and {text[0].upper() + text[1:] for text in found} <= set(page.texts)
    told = " ".join(page.texts)
    for fact in ("seed 3", "target_accept 0.8", "warmup 60", f"tightrope {tr.__version__}", "data: 3"):
        assert fact in told
    assert page.row("sampling", 3)[0] == html.duration(trace.posterior.attrs["sampling_time"])
    kinds = (
        "Histograms of s,",
        "Chains of s",
        "Ranks of each chain's s",
        "Draws of a",
        "predictions of y",
        "step size",
    )
    assert all(any(kind in text for text in page.pictures) for kind in (*kinds, "energy", "solver iterations"))


def test_predictions_need_the_model_and_the_right_one(runs, tmp_path):
    page = read(runs / "tall", tmp_path / "r.html")
    assert any("model=" in text for text in page.texts) and not any("predict" in text for text in page.pictures)
    trace = tr.load(runs / "tall")
    for wrong in (tall(slope=1.1), tall().with_observed([1.0, 0.5, 0.4]), long()):
        with pytest.raises(tr.InputError, match="model: these draws are of another one"):
            tr.report(trace, tmp_path / "r.html", model=wrong)


def test_a_long_vector_is_shown_in_part(runs, tmp_path):
    page = read(runs / "long", tmp_path / "r.html", long())
    table = tr.summary(tr.load(runs / "long"))
    shown = [row[0] for row in page.rows if len(row) == 8 and row[0]]
    parts = table.loc[[name for name in table.index if name != "s"], "ess_bulk"].sort_values()
    assert set(shown) == {"s", *parts.index[: sections.MAX_ROWS - 1]}
    told = " ".join(page.texts)
    assert f"{sections.MAX_ROWS} of {NUM_PARTS + 1} rows" in told and f"6 of {NUM_PARTS + 1} quantities" in told
    assert {"Histograms of s, one for each chain", f"Histograms of {parts.index[0]}, one for each chain"} <= {
        *page.pictures
    }
    # One number, and two series of 25.
    assert sum("predictions of left" in text for text in page.pictures) == 1
    for kind in ("Intervals of predictions of right[", "Data right["):
        assert sum(kind in text for text in page.pictures) == 2


def test_the_zoo_is_known_and_a_random_walk_has_no_energy(runs, tmp_path):
    page = read(runs / "rwm", tmp_path / "r.html")
    assert "Histogram of predictions of y, and the datum" in page.pictures
    assert not any("energy" in text or "solver" in text for text in page.pictures)
    told = " ".join(page.texts)
    assert "rwm" in told and "toy, sigma 0.2" in told and "A closed loop" in told


def test_an_unfinished_run_says_so(runs, tmp_path):
    shutil.copytree(runs / "rwm", tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    record["options"]["draws"] = 500
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    result = CliRunner().invoke(cli.app, ["report", str(tmp_path / "run")])
    assert result.exit_code == 0 and str(tmp_path / "run" / "report.html") in result.output.replace("\n", "")
    page = Reader((tmp_path / "run" / "report.html").read_text())
    assert "Unfinished" in page.headings[1] and "Estimates" in page.headings
    assert any(text.startswith("So far: not converged.") for text in page.texts)
    assert any("180 of 560 iterations" in text and "tightrope resume" in text for text in page.texts)


def test_a_run_without_draws_has_a_report(tmp_path):
    with pytest.raises(NoDraws):
        tr.sample(tr.zoo.load("toy"), **OPTIONS, method="rwm", store=tmp_path / "run", max_time=1e-9)
    page = read(tmp_path / "run", None)
    assert "Unfinished" in page.headings[1] and page.headings[2:] == ["What was run"]
    assert "There are no draws yet." in page.texts


def flawless(trace, num_chains=4, num_draws=400):
    """The trace with independent draws of all quantities instead."""
    rng = np.random.default_rng(0)
    sizes = {"chain": np.arange(num_chains), "draw": np.arange(num_draws)}
    stats = trace.sample_stats.dataset.isel(chain=[0] * num_chains, draw=[0] * num_draws).assign_coords(sizes)
    posterior = xr.Dataset({"a": (("chain", "draw"), rng.normal(size=(num_chains, num_draws)))}, sizes)
    posterior.attrs = trace.posterior.attrs | {"quantities": ["a", "b"]}
    stats["lp"] = -(posterior["a"] ** 2) / 2
    return xr.DataTree(children={"posterior": xr.DataTree(posterior), "sample_stats": xr.DataTree(stats)})


def test_the_verdict(runs, tmp_path):
    trace = flawless(tr.load(runs / "rwm"))
    headline = lambda: read(trace, tmp_path / "r.html").headings[1]
    assert headline() == "✓Converged"
    trace.sample_stats["diverging"][0, :3] = True
    assert headline() == "!Converged, with reservations"
    trace.posterior["a"][0] += 2.0
    assert headline() == "✗Not converged"


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("odd", [np.nan, np.inf, 0.0, 1 + 2.0**-52])
def test_odd_quantities_are_shown(runs, tmp_path, odd):
    trace = flawless(tr.load(runs / "rwm"))
    b = xr.ones_like(trace.posterior["a"])
    b[1, 5] = odd
    trace.posterior["b"] = b
    page = read(trace, tmp_path / "r.html")
    assert "Chains of b from draw to draw" in " ".join(page.pictures)


def test_few_draws_are_shown(runs, tmp_path):
    trace = flawless(tr.load(runs / "rwm"), num_chains=1, num_draws=1)
    assert "There are too few draws to tell." in read(trace, tmp_path / "r.html").texts


def test_many_draws_make_no_large_file(runs, tmp_path):
    trace = flawless(tr.load(runs / "rwm"), num_chains=16, num_draws=10_000)
    assert tr.report(trace, tmp_path / "r.html").stat().st_size < 500_000


def test_a_page_is_always_the_same_and_stands_alone(runs, tmp_path):
    first, second = (tr.report(runs / "tall", tmp_path / name).read_text() for name in ("a.html", "b.html"))
    assert first == second
    assert not any(word in first for word in ("http:", "https:", "<script", "@import", "src="))
    assert "&lt;right&gt;" in first and "<right>" not in first


@pytest.mark.parametrize(
    ("run", "message"), [(3, "not of a int"), ("nowhere", "holds no run"), (xr.DataTree(), "no group posterior")]
)
def test_what_is_no_run_is_refused(run, message):
    with pytest.raises(tr.InputError, match=message):
        tr.report(run)


def test_a_trace_of_others_is_refused(runs, tmp_path):
    trace = flawless(tr.load(runs / "rwm"))
    del trace.posterior.attrs["sampling_time"], trace.sample_stats["energy"]
    with pytest.raises(tr.InputError, match=r"lacks .*sampling_time.*energy"):
        tr.report(trace, tmp_path / "r.html")


def test_a_place_that_cannot_be_written_is_told(runs, tmp_path):
    with pytest.raises(tr.StoreError, match=r"cannot write to .*No such file"):
        tr.report(flawless(tr.load(runs / "rwm")), tmp_path / "no" / "r.html")


@pytest.mark.slow
@pytest.mark.parametrize("name", tr.zoo.MODELS)
def test_every_model_of_the_zoo_has_a_report(name, tmp_path):
    """With draws from the prior for a trace: what matters here is what there is to show."""
    model = tr.zoo.load(name)
    num_chains, num_draws = 2, 20
    keys = jr.split(jr.key(0), num_chains * num_draws)
    u = jax.jit(jax.vmap(model.parameters.draw))(keys).reshape(num_chains, num_draws, -1)
    rows = np.zeros((num_chains, num_draws, Draw.width(model.d)))
    rows[..., : model.d] = u
    rows[..., model.d + 1 :] = np.random.default_rng(0).integers(1, 9, (*u.shape[:2], len(Info._fields)))
    times = {"compile_time": 1.0, "warmup_time": 1.0, "sampling_time": 1.0}
    attributes = {"method": "none", "seed": 0, **times}
    trace = results.collect(model, list(rows), num_warmup=0, attributes=attributes)
    trace.sample_stats["lp"][0, 0] = float(model.log_density(u[0, 0]))
    page = read(trace, tmp_path / "r.html", model)
    assert any("predictions" in text for text in page.pictures)
    assert (tmp_path / "r.html").stat().st_size < 2_000_000


# Pictures.


def drawn(draw):
    axis = Figure().add_subplot()
    draw(axis)
    return axis


def test_crosses_are_where_trajectories_diverged():
    x, y = np.random.default_rng(0).normal(size=(2, 2, 50))
    dots, crosses = drawn(pictures.scatter(x, y, np.arange(100) % 40 == 7, 0.0)).lines
    assert np.all(dots.get_xydata() == np.stack([x.ravel(), y.ravel()], axis=1))
    assert np.all(crosses.get_xydata() == dots.get_xydata()[[7, 47, 87]])


def test_ranks_of_chains_apart_are_apart():
    values = np.random.default_rng(0).normal([[-9.0], [9.0]], size=(2, 200))
    first, second = (patch.get_data().values for patch in drawn(pictures.ranks(values)).patches)
    half = len(first) // 2
    assert np.all(first[:half] == 2) and np.all(first[half:] == 0) and np.all(second == first[::-1])


def test_intervals_cover_what_they_should():
    y = np.append((np.arange(1000) + 0.5) / 1000, np.nan)  # a missing datum counts for nothing
    draws = np.repeat(np.linspace(0, 1, 2001)[:, None], len(y), axis=1)
    assert share_covered([Series("", np.arange(len(y)), y, draws)], 0.9) == pytest.approx(0.9)
    bars = drawn(pictures.intervals(np.arange(3), draws[:, :3], y[:3])).collections
    assert np.allclose(bars[0].get_segments()[0][:, 1], [0.05, 0.95])
    assert np.allclose(bars[1].get_segments()[0][:, 1], [0.25, 0.75])


def test_numbers_of_a_picture_keep_their_digits():
    svg = pictures.picture("", lambda axis: axis.set_yticks([0.01234], ["0.01234"]))
    assert ">0.01234<" in svg and "#0000" not in svg


# In a browser.


@pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("CI") != "true", reason="no Chromium here: apt-get install chromium"
)
def test_a_browser_shows_all_of_it(runs, tmp_path):
    path = tr.report(runs / "tall", tmp_path / "r.html", model=tall())
    expected = Reader(path.read_text())
    seen = {}
    with chromium(tmp_path / "profile") as page:
        for width, scheme in [(375, "light"), (375, "dark"), (1280, "light")]:
            page.show(path, width, scheme=scheme)
            assert page.events_of("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded") == []
            asked = [event["request"]["url"] for event in page.events_of("Network.requestWillBeSent")]
            assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
            assert page.evaluate("document.documentElement.scrollWidth") == width
            large = "[...document.querySelectorAll('svg')].filter(x => x.getBoundingClientRect().height > 100).length"
            assert page.evaluate(large) == len(expected.pictures)
            assert page.evaluate("document.querySelectorAll('table tr').length") == len(expected.rows)
            scrolls = "[...document.querySelectorAll('.table')].some(x => x.scrollWidth > x.clientWidth)"
            assert page.evaluate(scrolls) == (width == 375)
            colour = "getComputedStyle(document.querySelector('svg text')).fill"
            seen[scheme] = page.evaluate(colour), page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.show(path, 718, scheme="dark")  # the width of a sheet of paper
        page.call("Emulation.setEmulatedMedia", media="print")
        assert page.evaluate("document.documentElement.scrollWidth") == 718
        assert page.evaluate(colour) == seen["light"][0]
    brightness = {scheme: [sum(map(int, c[4:-1].split(","))) for c in colours] for scheme, colours in seen.items()}
    assert brightness["light"][0] + 300 < brightness["light"][1] and brightness["dark"][0] > brightness["dark"][1] + 300
