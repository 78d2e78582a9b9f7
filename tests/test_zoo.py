"""The posteriors that come along: forward models beside independent answers, derivatives, data."""

import functools
from importlib.resources import files

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

import tightrope as tr
from tightrope.zoo.gates import phi
from tightrope.zoo.simulated import SEED
from tightrope.zoo.soil import evolved_share
from tightrope.zoo.tables import read_table

SIZES = {
    "fitzhugh-nagumo": (9, 200),
    "hodgkin-huxley": (7, 1000),
    "lotka-volterra": (8, 42),
    "soil-hn-t35": (7, 25),
    "soil-ak-t25": (7, 25),
    "squid-potassium": (7, 136),
    "squid-sodium": (11, 142),
}
SIMULATED = ["fitzhugh-nagumo", "hodgkin-huxley"]
load = functools.cache(tr.zoo.load)


@functools.cache
def forward(name):
    return jax.jit(load(name).observations.forward)


def draws(name, number, seed=0):
    """Parameters drawn from the prior."""
    parameters = load(name).parameters
    return [parameters.values(parameters.draw(key)) for key in jr.split(jr.key(seed), number)]


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    model = load(name)
    assert (model.d, model.m) == SIZES[name]


@pytest.mark.parametrize("name", SIZES)
def test_pages(name):
    page = tr.zoo.documentation(name)
    assert len(tr.zoo.description(name)) < 60
    assert "~" in page or name == "lotka-volterra"
    assert max(map(len, page.splitlines())) <= 120


@pytest.mark.parametrize("file", [file for file in files("tightrope.zoo").iterdir() if file.name.endswith(".csv")])
def test_data_name_their_source(file):
    source, columns = file.read_text().splitlines()[:2]
    assert source.startswith("#") and any(str(year) in source for year in (1921, 1952, 2014))
    assert read_table(file.name).shape[1] == len(columns.split(","))


def test_unusable_noise_is_refused():
    with pytest.raises(tr.InputError, match="sigma must be positive"):
        tr.zoo.load("fitzhugh-nagumo", sigma=-0.1)


# Simulated data


@pytest.mark.parametrize("name", SIMULATED)
def test_simulated_noise_is_the_same_for_all_sigma(name):
    eta = np.asarray(jr.normal(jr.key(SEED), (load(name).m,)))
    for sigma in (1e-4, 1.0):
        model = load(name, sigma=sigma)
        assert model.truth["sigma"] == sigma
        np.testing.assert_array_equal(model.observed["y"], forward(name)(model.truth) + sigma * eta)


@pytest.mark.parametrize("name", SIMULATED)
def test_truth_explains_the_data(name):
    model = load(name, sigma=0.01)
    e = model.condition().lift(model.parameters.coordinates(model.truth)).e
    assert abs(np.mean(e**2) - 1) < 5 * np.sqrt(2 / model.m)


# Derivatives


@pytest.mark.parametrize("name", SIZES)
def test_derivatives_agree_with_differences(name):
    """At prior draws, along all coordinates, relative to the largest derivative."""
    model = load(name)
    predict = jax.jit(lambda u: model.observations.forward(model.parameters.values(u)).ravel())
    jacobian = jax.jit(jax.jacfwd(predict))
    keys = jr.split(jr.key(3), 4)
    points = [model.parameters.draw(key) for key in keys]
    if model.truth:
        points.append(model.parameters.coordinates(model.truth))
    h, num_finite = 1e-6, 0
    for u in points:
        exact = np.asarray(jacobian(u))
        # Fourth order, so that rounding alone is left.
        slope = lambda v, u=u: (
            8 * (predict(u + h * v) - predict(u - h * v)) - predict(u + 2 * h * v) + predict(u - 2 * h * v)
        )
        differences = np.stack([slope(v) / (12 * h) for v in np.eye(model.d)], axis=1)
        if np.isfinite(exact).all():
            np.testing.assert_allclose(exact, differences, atol=1e-5 * np.abs(exact).max())
            num_finite += 1
    assert num_finite > 2


# FitzHugh-Nagumo


def test_fitzhugh_nagumo_agrees_with_scipy():
    truth = load("fitzhugh-nagumo").truth
    alpha, beta, gamma, delta, epsilon, zeta = (
        truth[name] for name in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")
    )
    rate = lambda t, x: [alpha * x[0] - beta * x[0] ** 3 + gamma * x[1], -delta * x[0] - epsilon * x[1] + zeta]
    times = 0.1 * np.arange(1, 201)
    path = solve_ivp(rate, (0, 20), [1.0, -1.0], t_eval=times, rtol=1e-10, atol=1e-12).y[0]
    # The step of 0.05 leaves an error of this size.
    np.testing.assert_allclose(forward("fitzhugh-nagumo")(truth), path, atol=5e-4)


def test_fitzhugh_nagumo_has_a_ridge():
    for params in [load("fitzhugh-nagumo").truth, *draws("fitzhugh-nagumo", 3)]:
        s = 1.7
        moved = params | {
            "x0": params["x0"] * np.array([1.0, s]),
            "gamma": params["gamma"] / s,
            "delta": params["delta"] * s,
            "zeta": params["zeta"] * s,
        }
        np.testing.assert_allclose(
            forward("fitzhugh-nagumo")(moved), forward("fitzhugh-nagumo")(params), rtol=1e-9, atol=1e-9
        )


# Hodgkin-Huxley


def plain_phi(x):
    """phi in extended precision, by its definition."""
    x = np.longdouble(x)
    return x / np.expm1(x) if x else np.longdouble(1)


def voltages(params, first_on=100):
    """The splitting once more, as a plain loop over steps."""
    g_na, g_k, g_m, g_l, v_t, k_tau = (float(params[name]) for name in ("gNa", "gK", "gM", "gL", "V_T", "k_tau"))

    def gates(v):
        w = v - v_t
        opening = {
            "m": 1.28 * plain_phi(-(w - 13) / 4),
            "h": 0.128 * np.exp(-(w - 17) / 18),
            "n": 0.16 * plain_phi(-(w - 15) / 5),
        }
        closing = {
            "m": 1.4 * plain_phi((w - 40) / 5),
            "h": 4 / (1 + np.exp(-(w - 40) / 5)),
            "n": 0.5 * np.exp(-(w - 10) / 40),
        }
        rest = {x: opening[x] / (opening[x] + closing[x]) for x in "mhn"}
        speed = {x: opening[x] + closing[x] for x in "mhn"}
        rest["p"] = 1 / (1 + np.exp(-(v + 35) / 10))
        speed["p"] = (3.3 * np.exp((v + 35) / 20) + np.exp(-(v + 35) / 20)) / k_tau
        return rest, speed

    v, path = np.longdouble(-75), []
    x = gates(v)[0]
    for step in range(1100):
        current = 3.248 if step >= first_on else 0.0
        sodium, potassium = g_na * x["m"] ** 3 * x["h"], g_k * x["n"] ** 4 + g_m * x["p"]
        total = sodium + potassium + g_l
        v_inf = (current + 53 * sodium - 107 * potassium - 75 * g_l) / total
        v = v_inf + (v - v_inf) * np.exp(-0.1 * total)
        rest, speed = gates(v)
        x = {name: rest[name] + (x[name] - rest[name]) * np.exp(-0.1 * speed[name]) for name in x}
        path.append(v)
    return np.array(path[100:], float)


def test_hodgkin_huxley_agrees_with_a_plain_loop():
    for params in [load("hodgkin-huxley").truth, *draws("hodgkin-huxley", 3)]:
        np.testing.assert_allclose(forward("hodgkin-huxley")(params), voltages(params), atol=1e-7)


def test_hodgkin_huxley_stimulus_starts_by_index():
    """One step later, as summed up time steps would have it, the spikes move by millivolts."""
    truth = load("hodgkin-huxley").truth
    v = np.asarray(forward("hodgkin-huxley")(truth))
    assert 3 < np.sqrt(np.mean((voltages(truth, first_on=101) - v) ** 2)) < 6
    # The current acts in the very first step that is seen.
    assert v[0] - voltages(truth, first_on=101)[0] > 0.1


def test_hodgkin_huxley_fires_five_times():
    v = np.asarray(forward("hodgkin-huxley")(load("hodgkin-huxley").truth))
    assert np.sum((v[:-1] < 0) & (v[1:] >= 0)) == 5


def test_hodgkin_huxley_splits_the_equations():
    """Where nothing spikes, a step of 0.1 ms is small: a solver of high order comes close."""
    params = load("hodgkin-huxley").truth | {"gNa": 1e-3}
    g_k, g_m, g_l, v_t, k_tau = (params[name] for name in ("gK", "gM", "gL", "V_T", "k_tau"))

    def rate(t, state):
        v, n, p = state
        w = v - v_t
        a, b = 0.16 * float(plain_phi(-(w - 15) / 5)), 0.5 * np.exp(-(w - 10) / 40)
        tau = k_tau / (3.3 * np.exp((v + 35) / 20) + np.exp(-(v + 35) / 20))
        leak = g_l * (v + 75) + (g_k * n**4 + g_m * p) * (v + 107)
        return [3.248 * (t >= 10) - leak, a * (1 - n) - b * n, (1 / (1 + np.exp(-(v + 35) / 10)) - p) / tau]

    w = -75 - v_t
    a, b = 0.16 * float(plain_phi(-(w - 15) / 5)), 0.5 * np.exp(-(w - 10) / 40)
    start = [-75, a / (a + b), 1 / (1 + np.exp(4.0))]
    times = 10 + 0.1 * np.arange(1, 1001)
    path = solve_ivp(rate, (0, 110), start, t_eval=times, rtol=1e-9, atol=1e-9, max_step=0.1).y[0]
    np.testing.assert_allclose(forward("hodgkin-huxley")(params), path, atol=0.5)


# phi


def phi_series(x, order):
    """A derivative of phi near 0, from its Bernoulli numbers, in extended precision."""
    even = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798]
    numbers = [1, -1 / 2] + [value for b in even for value in (b, 0)]
    total, factorial = np.longdouble(0), np.longdouble(1)
    for n, b in enumerate(numbers):
        factorial *= max(n, 1)
        if n >= order:
            falling = np.prod([np.longdouble(n - i) for i in range(order)])
            total += np.longdouble(b) / factorial * falling * np.longdouble(x) ** (n - order)
    return float(total)


def phi_away(x, order):
    """A derivative of phi away from 0, from its formula, in extended precision."""
    x = np.longdouble(x)
    decay, rest = np.exp(-abs(x)), -np.expm1(-abs(x))
    value = abs(x) / rest * (decay if x > 0 else 1)
    # phi' = phi (1 / x - q) with q = exp(x) / (exp(x) - 1), q' = q - q^2.
    q = 1 / rest if x > 0 else -decay / rest
    slope = 1 / x - q
    return float([value, value * slope, value * (slope**2 - 1 / x**2 - q + q**2)][order])


DERIVATIVES = [phi, jax.grad(phi), jax.grad(jax.grad(phi))]


@pytest.mark.parametrize("order", range(3))
def test_phi_near_zero(order):
    for size in (0.0, 1e-300, 1e-16, 1e-12, 1e-8, 1e-4, 1e-2, 0.3, 0.499999, 0.5, 0.7):
        for x in (size, -size):
            np.testing.assert_allclose(DERIVATIVES[order](x), phi_series(x, order), rtol=2e-13, err_msg=f"at {x}")


@pytest.mark.parametrize("order", range(3))
def test_phi_away_from_zero(order):
    for x in (0.51, 1.0, 5.0, 40.0, 600.0, -0.51, -1.0, -5.0, -40.0, -600.0):
        np.testing.assert_allclose(DERIVATIVES[order](x), phi_away(x, order), rtol=1e-12, atol=1e-14, err_msg=f"at {x}")
    assert np.isfinite([DERIVATIVES[order](x) for x in (800.0, 1e6, -800.0, -1e6)]).all()


def test_phi_is_the_same_forward_and_backward():
    for x in (0.0, 1e-9, 3.0, -3.0):
        np.testing.assert_allclose(jax.jvp(phi, (x,), (1.0,))[1], jax.grad(phi)(x), rtol=1e-14)
        np.testing.assert_allclose(jax.hessian(phi)(x), jax.grad(jax.grad(phi))(x), rtol=1e-13)


# Soil


def evolved_by_expm(t, k1, k2, a12, a21, gamma):
    flow = np.array([[-k1, a12 * k2], [a21 * k1, -k2]], float)
    return 1 - np.sum(expm(t * flow) @ [gamma, 1 - gamma])


FLOWS = {
    "apart": (0.8, 0.1, 0.3, 0.2, 0.4),
    "slow": (1e-3, 1e-5, 0.3, 0.2, 0.4),
    "equal": (0.3, 0.3, 0.0, 0.5, 0.4),
    "nearly equal": (0.3, 0.3 - 1e-9, 1e-12, 0.5, 0.4),
    "closed": (0.5, 0.2, 0.6, 0.4, 0.9),
}


@pytest.mark.parametrize("case", FLOWS)
def test_soil_agrees_with_expm(case):
    for t in (0.0, 1e-3, 1.0, 5.0, 42.0, 1e6):
        share = float(evolved_share(t, *FLOWS[case]))
        np.testing.assert_allclose(share, evolved_by_expm(t, *FLOWS[case]), rtol=1e-11, atol=1e-13, err_msg=f"at {t}")


def test_soil_series_meets_the_exponentials():
    """On both sides of the border between the two forms."""
    k1, k2, a12, a21, _ = FLOWS["apart"]
    border = 0.5 / np.sqrt(((k1 - k2) / 2) ** 2 + a12 * a21 * k1 * k2)
    for t in border * np.array([1 - 1e-12, 1 + 1e-12]):
        np.testing.assert_allclose(evolved_share(t, *FLOWS["apart"]), evolved_by_expm(t, *FLOWS["apart"]), rtol=1e-13)


def test_soil_loses_no_more_than_there_is():
    for flows in FLOWS.values():
        shares = np.array([evolved_share(t, *flows) for t in np.geomspace(1e-6, 1e9, 60)])
        assert (np.diff(shares) >= -1e-15).all() and (shares >= 0).all() and (shares <= 1).all()


def test_soil_derivatives_where_eigenvalues_meet():
    """Exact ones, of the limit k1 = k2 = k, a12 = 0: there x1 + x2 is known in closed form."""
    k, a21, gamma, t = 0.3, 0.5, 0.4, 7.0
    value = lambda k, a21: evolved_share(t, k, k, 0.0, a21, gamma)
    decay = np.exp(-k * t)
    np.testing.assert_allclose(value(k, a21), 1 - decay * (1 + gamma * a21 * k * t), rtol=1e-13)
    by_k, by_a21 = jax.grad(value, (0, 1))(k, a21)
    np.testing.assert_allclose(by_k, t * decay * (1 - gamma * a21 + gamma * a21 * k * t), rtol=1e-12)
    np.testing.assert_allclose(by_a21, -gamma * k * t * decay, rtol=1e-12)
    flows = jnp.array([k, k, 0.0, a21, gamma])
    total = lambda flows, t: evolved_share(t, *flows)
    for time in (1e-3, 7.0, 1e6):
        assert np.isfinite(jax.jacfwd(total)(flows, time)).all()
        assert np.isfinite(jax.hessian(total)(flows, time)).all()
    # All five slopes there, beside differences of the matrix exponential, which exists for a12 < 0 too.
    h = 1e-4
    differences = [
        (evolved_by_expm(t, *(flows + h * v)) - evolved_by_expm(t, *(flows - h * v))) / (2 * h) for v in np.eye(5)
    ]
    np.testing.assert_allclose(jax.jacfwd(total)(flows, t), differences, atol=1e-6)


@pytest.mark.parametrize("name", ["soil-hn-t35", "soil-ak-t25"])
def test_soil_predicts_what_has_evolved(name):
    day, evolved, _ = read_table(f"{name.replace('-', '_')}.csv").T
    np.testing.assert_array_equal(load(name).observed["y"], evolved)
    for params in draws(name, 3):
        flows = [float(params[key]) for key in ("k1", "k2", "a12", "a21", "gamma")]
        expected = float(params["C0"]) * np.array([evolved_by_expm(t, *flows) for t in day])
        np.testing.assert_allclose(forward(name)(params), expected, rtol=1e-9)
        assert params["k2"] <= params["k1"] and params["a12"] + params["a21"] <= 1


# Squid


def gate_by_scipy(opening, closing, time, voltage):
    """The gate's own equation, from rest at V = 0, solved numerically."""
    start = opening(0.0) / (opening(0.0) + closing(0.0))
    rate = lambda t, x: opening(voltage) * (1 - x) - closing(voltage) * x
    return solve_ivp(rate, (0, time), [start], method="Radau", rtol=1e-9, atol=1e-12).y[0, -1]


PLACES = [0, 5, 40, 90, 135]  # of the records that are looked at
# The values that Hodgkin and Huxley found by hand, and those with a rate at its removable singularity.
POTASSIUM = {"k1": 0.01, "k2": 10.0, "k3": 10.0, "k4": 0.125, "k5": 80.0, "gK": 24.0}
SODIUM = {"k1": 0.1, "k2": 25.0, "k3": 10.0, "k4": 4.0, "k5": 18.0}
SODIUM |= {"k6": 0.07, "k7": 20.0, "k8": 30.0, "k9": 10.0, "gNa": 70.0}


@pytest.mark.parametrize("k2", [10.0, 63.0])
def test_squid_potassium_agrees_with_scipy(k2):
    time, depolarisation, _ = read_table("squid_potassium.csv").T
    k = POTASSIUM | {"k2": k2}
    predicted = forward("squid-potassium")(k)
    opening = lambda v: k["k1"] * k["k3"] * float(plain_phi((v + k["k2"]) / k["k3"]))
    closing = lambda v: k["k4"] * np.exp(v / k["k5"])
    for i in [*PLACES, np.flatnonzero(depolarisation == 63)[3]]:
        n = gate_by_scipy(opening, closing, time[i], -depolarisation[i])
        np.testing.assert_allclose(predicted[i], k["gK"] * n**4, rtol=1e-6)


def test_squid_sodium_agrees_with_scipy():
    time, depolarisation, _ = read_table("squid_sodium.csv").T
    predicted = forward("squid-sodium")(SODIUM)
    k = [None, *(SODIUM[f"k{i}"] for i in range(1, 10))]
    for i in PLACES:
        v = -depolarisation[i]
        m = gate_by_scipy(
            lambda v: k[1] * k[3] * float(plain_phi((v + k[2]) / k[3])), lambda v: k[4] * np.exp(v / k[5]), time[i], v
        )
        h = gate_by_scipy(lambda v: k[6] * np.exp(v / k[7]), lambda v: 1 / (np.exp((v + k[8]) / k[9]) + 1), time[i], v)
        np.testing.assert_allclose(predicted[i], SODIUM["gNa"] * m**3 * h, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "by_hand", "allowed"), [("squid-potassium", POTASSIUM, 2), ("squid-sodium", SODIUM, 4)]
)
def test_squid_data_are_what_the_model_is_about(name, by_hand, allowed):
    """The constants of 1952 come near the data: signs and units are right."""
    assert np.sqrt(np.mean((forward(name)(by_hand) - load(name).observed["y"]) ** 2)) < allowed


@pytest.mark.parametrize("name", ["nonlinear-ssm", "fitzhugh-nagumo", "hodgkin-huxley", "poisson", "toy"])
def test_programs_with_one_name_are_one(name):
    """Those of an inferred noise scale do not know which scale has made the data."""
    small, large = (tr.zoo.load(name, sigma=sigma) for sigma in (0.1, 1.0))
    text = lambda model: (
        jax.jit(lambda u, y: model.condition(y).lift(u)).lower(jnp.zeros(model.d), model.data).as_text()
    )
    is_one = small.known_as("lift", 1) == large.known_as("lift", 1)
    assert is_one == (name != "toy") == (text(small) == text(large))
    assert small.known_as("lift", 1) != small.known_as("lift", 2)
    other = small.with_observed(small.observed if small.is_named else next(iter(small.observed.values())))
    assert other.known_as("lift") is None
