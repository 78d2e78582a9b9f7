"""Forward models outside JAX: the same numbers and derivatives, failures that are counted, and no deadlock."""

import os
import re
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tightrope as tr
from tightrope.kinds import Lifting
from tightrope.methods import method_of
from tightrope.provenance import fingerprint

PAGE = Path(__file__).parent.parent / "docs" / "bring-your-own.md"
POINT = {"a": jnp.array(0.7), "b": jnp.array([[1.5, -0.4]]), "idle": jnp.array([3.0])}


def formula(params, np=np):
    """Of the shape (2, 2), from a number and a matrix; one parameter has no influence."""
    a, b = params["a"], params["b"]
    x, y = b[..., 0, 0], b[..., 0, 1]
    return np.stack([np.stack([np.sin(a * x), a * y**2], -1), np.stack([x * y, np.exp(a)], -1)], -2)


def table(params, entries):
    """A matrix of two rows and columns from its nonzero entries, at one point or at many."""
    zero = np.zeros_like(params["a"])
    return np.stack([np.stack([entries.get((i, j), zero) for j in (0, 1)], -1) for i in (0, 1)], -2)


def in_b(x, y):
    """Derivatives in x and in y as one in b."""
    return np.stack([x, y], -1)[..., None, :]


def jacobian(params):
    a, x, y = params["a"], params["b"][..., 0, 0], params["b"][..., 0, 1]
    in_a = table(params, {(0, 0): x * np.cos(a * x), (0, 1): y**2, (1, 1): np.exp(a)})
    in_x = table(params, {(0, 0): a * np.cos(a * x), (1, 0): y})
    in_y = table(params, {(0, 1): 2 * a * y, (1, 0): x})
    return {"a": in_a, "b": in_b(in_x, in_y)}


def second(params):
    a, x, y = params["a"], params["b"][..., 0, 0], params["b"][..., 0, 1]
    sine, cosine = np.sin(a * x), np.cos(a * x)
    aa = table(params, {(0, 0): -(x**2) * sine, (1, 1): np.exp(a)})
    ax, ay = table(params, {(0, 0): cosine - a * x * sine}), table(params, {(0, 1): 2 * y})
    xx, xy = table(params, {(0, 0): -(a**2) * sine}), table(params, {(1, 0): np.ones_like(a)})
    yy = table(params, {(0, 1): 2 * a})
    bb = np.stack([in_b(xx, xy), in_b(xy, yy)], -3)[..., None, :, :, :]
    return {"a": {"a": aa, "b": in_b(ax, ay)}, "b": {"a": in_b(ax, ay), "b": bb}}


KINDS = {
    "differences": (dict(), 1e-9),
    "coarse differences": (dict(step=1e-3), 1e-5),
    "jacobian": (dict(jacobian=jacobian), 1e-13),
    "second": (dict(jacobian=jacobian, second=second), 1e-13),
    "vectorized": (dict(vectorized=True), 1e-9),
    "vectorized jacobian": (dict(vectorized=True, jacobian=jacobian, second=second), 1e-13),
    "threads": (dict(workers=2), 1e-9),
    "executor": (dict(workers=ThreadPoolExecutor(2)), 1e-9),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_derivatives_are_those_of_jax(kind):
    options, tolerance = KINDS[kind]
    outside = tr.external(formula, shape=(2, 2), **options)
    inside = lambda params: formula(params, jnp)
    spread = lambda value, size: value * (1 + 0.1 * jnp.arange(size).reshape(size, *[1] * value.ndim))
    points = {name: spread(value, 3) for name, value in POINT.items()}
    functions = [lambda f: f, jax.jacfwd, jax.jacrev]
    if "second" in options:
        functions += [lambda f: jax.jacfwd(jax.jacfwd(f)), lambda f: jax.jacrev(jax.jacfwd(f))]
    for function in functions:
        found, expected = (jax.jit(jax.vmap(function(f)))(points) for f in (outside, inside))
        for value, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(value, right, rtol=tolerance, atol=tolerance)


def test_nested_batches_and_eager_calls():
    outside = tr.external(formula, shape=(2, 2))
    points = {name: value * jnp.ones((2, 3, *value.shape)) for name, value in POINT.items()}
    np.testing.assert_allclose(jax.vmap(jax.vmap(outside))(points)[1, 2], formula(POINT), rtol=1e-15)
    np.testing.assert_allclose(outside(POINT), formula(POINT), rtol=1e-15)


def test_a_point_is_computed_once():
    calls = []
    outside = tr.external(lambda params: calls.append(1) or formula(params), shape=(2, 2))
    twice = jax.vmap(lambda params: outside(params) + outside({**params, "a": params["a"] + 0.0}))
    points = {name: value * jnp.ones((5, *[1] * value.ndim)) for name, value in POINT.items()}
    jax.block_until_ready(jax.jit(twice)(points))
    assert len(calls) == 1
    jax.block_until_ready(jax.jit(jax.jacfwd(outside))(POINT))
    assert len(calls) == 1 + 2 * 4


def loop(params):
    """The toy, of which a part has no value."""
    x, y = params["theta"]
    if x > 0.8:
        raise ArithmeticError("the solver gave up")
    return [y**2 + x**2 * (x**2 - 0.5) if y > -1.2 else np.nan]


def toy(forward=loop, **options):
    priors = {"theta": dist.Normal(0.0, 1.0).expand([2])}
    return tr.Model(priors, tr.external(forward, shape=1, **options), noise_scale=0.1, observed=[1.0])


def test_failures_are_counted_and_the_first_is_told():
    model = toy(step=1e-4)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trace = tr.sample(model, 150, 50, chains=2, seed=1, method=tr.LiftedHMC(num_steps=3), progress=False)
    theta, stats = trace["posterior"]["theta"].values, trace["sample_stats"]
    assert theta[..., 0].max() < 0.8 and theta[..., 1].min() > -1.2
    assert theta[..., 0].min() < -0.8 and int(stats["non_finite"].sum()) > 0
    complaints = [str(warning.message) for warning in told if "gave up" in str(warning.message)]
    assert len(complaints) == 1 and "forward raised ArithmeticError" in complaints[0]


def test_the_force_is_cheap_where_second_derivatives_are_missing():
    without = toy().condition()
    assert method_of("lifted-nuts").force_name(without) == "cheap"
    assert method_of("lifted-nuts", force="surrogate").force_name(without) == "surrogate"
    with pytest.raises(tr.InputError, match='force="exact" needs second derivatives'):
        method_of("lifted-nuts", force="exact").initial_tuning(without)
    with pytest.raises(tr.InputError, match="needs second derivatives"):
        tr.sample(toy(), 1, 10, method=tr.RiemannianNUTS(metric="lifted"), progress=False)
    slope = lambda params: {
        "theta": np.array([[4 * params["theta"][0] ** 3 - params["theta"][0], 2 * params["theta"][1]]])
    }
    bend = lambda params: {"theta": {"theta": np.diag([12 * params["theta"][0] ** 2 - 1, 2.0])[None]}}
    complete = toy(jacobian=slope, second=bend).condition()
    assert method_of("lifted-nuts").force_name(complete) == "exact"
    # The gradient of the log volume, against that of the same model in JAX.
    u = jnp.array([0.3, -1.1])
    method: Lifting = method_of("lifted-nuts", force="exact")
    found, expected = (
        jax.jit(lambda u, model=model: method.integrator(model, method.initial_tuning(model)).system.at(u).gradient)(u)
        for model in (complete, tr.zoo.load("toy", sigma=0.1).condition())
    )
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_two_models_of_the_same_function_have_the_same_fingerprint():
    assert fingerprint(toy()) == fingerprint(toy()) != fingerprint(toy().with_observed([2.0]))


def fail(params):
    raise KeyError("no such file")


WRONG = lambda params: {"theta": np.array([[4 * params["theta"][0] ** 3, 2 * params["theta"][1]]])}
REFUSALS = {
    "exception": (lambda: toy(fail), "forward raised KeyError: 'no such file'"),
    "shape": (lambda: toy(lambda params: np.zeros(2)), r"forward raised ValueError.*shape \(2,\), not \(1,\)"),
    "wrong Jacobian": (lambda: toy(jacobian=WRONG), 'jacobian does not agree with differences.*"theta"'),
    "shape of Jacobian": (
        lambda: toy(jacobian=lambda params: {"theta": np.zeros(2)}),
        r"jacobian raised ValueError.*shape \(2,\), not \(1, 2\)",
    ),
    "unknown parameter": (lambda: toy(jacobian=lambda params: {"phi": 0}), "jacobian.*there is no parameter 'phi'"),
    "second alone": (lambda: toy(second=fail), "second is given without jacobian"),
    "step": (lambda: toy(step=1.0), "step=1.0 must lie between"),
    "workers": (lambda: toy(workers=0), "workers=0 must be at least 1"),
    "not a function": (lambda: toy(3), "forward must be a function"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_mistakes_are_refused(name):
    make, message = REFUSALS[name]
    with pytest.raises(tr.InputError, match=message):
        make()


CHECK = """
draws = trace["posterior"]
assert draws.sizes["chain"] == 4
assert abs(float(draws["mu"].mean()) - 10) < 0.1 and 0.04 < float(draws["mu"].std()) < 0.16
assert float(trace["sample_stats"]["acceptance_rate"].mean()) > 0.6
"""


@pytest.mark.slow
def test_the_example_samples_four_chains_on_two_threads():
    example = next(b for b in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "external" in b)
    example = example.replace("1000", "40").replace("seed=1", "seed=1, cores=2, progress=False")
    # In a process of its own, so that a deadlock is a failure.
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    subprocess.run([sys.executable, "-c", example + CHECK], check=True, timeout=300, env=environment)
