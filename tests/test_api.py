"""What a user meets first: bad input, the command line, and the example of the README."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray as xr
from cases import slow_but

import tightrope as tr

README = Path(__file__).parent.parent / "README.md"
GOOD = dict(
    priors={"a": dist.Normal(0, 1)}, forward=lambda p: p["a"] * jnp.ones(3), noise_scale=0.1, observed=np.ones(3)
)


def model(**changes):
    return tr.Model(**GOOD | changes)


def loop_over(params):
    return np.array([float(params["a"]) for _ in range(3)])


BAD_MODELS = {
    "unknown noise scale": (dict(noise_scale="sigma"), 'noise_scale names "sigma"'),
    "shape": (dict(observed=np.ones(4)), r"forward returns shape \(3,\) but observed has shape \(4,\)"),
    "NaN in observed": (dict(observed=[1, np.nan, 1]), "observed contains 1 NaN .* mask="),
    "zero noise scale": (dict(noise_scale=0.0), "noise_scale must be positive"),
    "negative noise scale": (dict(noise_scale=[-1, 1, 1]), "noise_scale must be positive"),
    "shape of noise scale": (dict(noise_scale=np.ones(4)), "noise_scale has shape"),
    "discrete prior": (dict(priors={"a": dist.Poisson(3.0)}), r'priors\["a"\].*discrete'),
    "improper prior": (
        dict(priors={"a": dist.ImproperUniform(dist.constraints.real, (), ())}),
        r'priors\["a"\].*improper',
    ),
    "prior that is not one": (dict(priors={"a": 3.0}), r'priors\["a"\].*numpyro distribution'),
    "no priors": (dict(priors={}), "priors must be"),
    "later parameter": (
        dict(priors={"a": lambda p: dist.Normal(p["b"], 1), "b": dist.Normal(0, 1)}),
        '"a" uses "b", which comes later',
    ),
    "unknown parameter in a prior": (dict(priors={"a": lambda p: dist.Normal(p["c"], 1)}), '"c", which is not'),
    "forward that is not traceable": (dict(forward=loop_over), "forward is not JAX-traceable.*jax.numpy"),
    "forward that branches": (
        dict(forward=lambda p: jnp.ones(3) if p["a"] > 0 else jnp.zeros(3)),
        "forward is not JAX-traceable.*jnp.where",
    ),
    "forward that asks for what is not there": (dict(forward=lambda p: p["b"]), "forward asks for 'b'"),
    "forward that is not a function": (dict(forward=3), "forward must be a function"),
    "noise law": (dict(noise=dist.Gamma(1.0, 1.0)), "noise must be a scalar law among"),
    "mask": (dict(mask=[True, False]), "mask must be boolean with the shape"),
    "covariance": (dict(noise_cov=-np.eye(3)), "noise_cov is not positive definite"),
    "masked array": (dict(observed=np.ma.masked_array(np.ones(3), [0, 0, 1])), "observed is a masked array.*mask="),
    "complex data": (dict(observed=np.ones(3) + 1j), "observed must be real"),
    "float32": (dict(forward=lambda p: jnp.ones(3, "float32")), "forward returns float32.*float64"),
    "no data": (dict(observed=None), "observed is missing"),
}


COARSE = np.linspace(0.1, 0.3, 3).astype("float32")


@pytest.mark.parametrize(
    "changes",
    [
        dict(forward=lambda p: p["a"] * jnp.asarray(COARSE)),
        dict(forward=lambda p: (p["a"].astype("float32") * jnp.ones(3)).astype(float)),
        dict(priors={"a": dist.Normal(jnp.asarray(COARSE)[0], 1.0)}),
    ],
)
def test_float32_inside_a_model_is_told(changes):
    with pytest.warns(UserWarning, match="contains float32 numbers"):
        model(**changes)


@pytest.mark.parametrize("case", BAD_MODELS)
def test_bad_model_is_refused_in_a_sentence(case):
    changes, message = BAD_MODELS[case]
    with pytest.raises(tr.InputError, match=message) as caught:
        model(**changes)
    assert "\n" not in str(caught.value)


BAD_RUNS = {
    "chains": (dict(chains=0), "chains=0 must be a whole number of at least 1"),
    "draws": (dict(draws=-1), "draws=-1 must be"),
    "seed": (dict(seed=1.5), "seed=1.5 must be"),
    "method": (dict(method="lifted-nut"), 'method="lifted-nut" is unknown: did you mean "lifted-nuts"'),
    "method object": (dict(method=3), "method must be a name"),
    "init": (dict(init="best"), 'init="best" is unknown'),
    "init values": (dict(init={"b": 1.0}), r"init: values for \['a'\] are missing"),
    "no truth": (dict(init="truth"), "does not know its true parameters"),
    "keep": (dict(keep=["b"]), 'keep names "b"'),
    "no warmup": (dict(warmup=0), "warmup=0"),
    "time": (dict(max_time=-1), "max_time=-1"),
}


@pytest.mark.parametrize("case", BAD_RUNS)
def test_bad_run_is_refused_before_compilation(case, monkeypatch):
    monkeypatch.setattr(tr.sampling.Run, "compile", None)
    options, message = BAD_RUNS[case]
    with pytest.raises(tr.InputError, match=message):
        tr.sample(model(), progress=False, **options)


def test_bad_options_of_a_method():
    with pytest.raises(tr.InputError, match='solver="newtom" is unknown: did you mean "newton"'):
        tr.LiftedNUTS(solver="newtom")
    with pytest.raises(tr.InputError, match="target_accept=2 must lie between 0 and 1"):
        tr.LiftedNUTS(target_accept=2)
    with pytest.raises(tr.InputError, match="max_halvings=-1 must be at least 0"):
        tr.LiftedNUTS(max_halvings=-1)
    with pytest.raises(tr.InputError, match='model="toi" is unknown: did you mean "toy"'):
        tr.zoo.load("toi")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(noise_scale=lambda p: -jnp.exp(p["a"])), "noise_scale is zero or negative at 1000 of 1000 prior draws"),
        (dict(noise_scale="a"), "noise_scale is zero or negative at .* of 1000 prior draws"),
        (dict(forward=lambda p: jnp.nan * p["a"] * jnp.ones(3)), "forward returned NaN or infinity at all of"),
    ],
)
def test_a_start_that_does_not_exist_is_explained_before_compilation(changes, message, monkeypatch):
    monkeypatch.setattr(tr.sampling.Run, "compile", None)
    with pytest.raises(tr.InputError, match=message):
        tr.sample(model(**changes), progress=False)


def command(*arguments):
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # as here, since few draws are asked for
    words = [sys.executable, "-m", "tightrope", *arguments]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600)


MISTAKES = [
    (["run", "lotka-voltera"], 'model="lotka-voltera" is unknown: did you mean "lotka-volterra"?'),
    (["run", "toy", "--chains", "0"], "chains=0 must be a whole number of at least 1."),
    (["run", "toy", "--solver", "newtons"], 'solver="newtons" is unknown: did you mean "newton"?'),
    (["run", "toy", "--sigma", "-1"], "noise_scale must be positive and finite everywhere."),
    (["run", "lotka-volterra", "--sigma", "1"], "sigma is not an option of lotka-volterra"),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    slow_but(MISTAKES[:2], MISTAKES),
)
def test_mistakes_on_the_command_line_exit_with_2_and_a_sentence(arguments, message):
    result = command(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("tightrope: ") and message in result.stderr
    assert "Traceback" not in result.stderr


def test_command_line(tmp_path):
    assert command("--version").stdout.split() == ["tightrope", tr.__version__]
    listed = command("models").stdout
    assert all(name in listed for name in tr.zoo.MODELS)
    out = tmp_path / "run"
    result = command("run", "toy", "--sigma", "1e-3", "--draws", "50", "--warmup", "50", "--out", str(out))
    assert result.returncode == 0, result.stderr
    assert "theta[0]" in result.stdout and "max R-hat" in result.stdout
    left = {"trace.nc", "summary.txt", "overview.png", "report.html", "draws.zarr"}
    assert left <= {path.name for path in out.iterdir()}
    assert "theta[1]" in (out / "summary.txt").read_text()
    with xr.open_datatree(out / "trace.nc", engine="h5netcdf") as trace:
        assert trace.posterior["theta"].shape == (4, 50, 2)
    assert command("run", "toy", "--out", str(out)).returncode == 2
    assert "toy by lifted-nuts: finished, not running" in command("status", str(out)).stdout


def run_examples(directory, monkeypatch, is_wanted):
    """The variables after those examples of the README that are wanted."""
    monkeypatch.chdir(directory)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    wanted = [block for block in blocks if is_wanted(block)]
    assert wanted
    scope = {"tr": tr}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.SamplingWarning)
        for block in wanted:
            exec(block, scope)
    return scope


@pytest.mark.usefixtures("much_computed")
def test_examples_of_the_readme_run(tmp_path, monkeypatch):
    sizes = run_examples(tmp_path, monkeypatch, lambda block: "sweep" not in block)["trace"].posterior.sizes
    assert (sizes["chain"], sizes["draw"]) == (4, 4000)


@pytest.mark.slow
def test_the_sweep_of_the_readme_runs(tmp_path, monkeypatch):
    assert len(run_examples(tmp_path, monkeypatch, lambda block: "sweep" in block)["table"]) == 4


FLAGS = """
import sys
import jax, jax.numpy as jnp, numpy as np
import numpyro.distributions as dist
off = lambda when: when == sys.argv[1] and jax.config.update("jax_enable_x64", False)
jnp.linspace(0.0, 1.0, 3)
off("before")
import tightrope as tr
off("after")
t = np.linspace(0.0, 1.0, 5)
priors = {"a": dist.Normal(0.0, 1.0), "s": dist.LogNormal(-3.0, 1.0)}
model = tr.Model(priors, lambda p: p["a"] * jnp.asarray(t), "s", 0.123456789012345 * t)
off("between")
trace = tr.sample(model, 20, 20, 2, progress=False)
print(trace.posterior["a"].dtype, float(trace.observed_data["y"][-1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after", "between"])
def test_numbers_are_long_whenever_the_user_switches_that_off(when):
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    words = [sys.executable, "-W", "ignore", "-c", FLAGS, when]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.stdout.split() == ["float64", "0.123456789012345"], ended.stderr
