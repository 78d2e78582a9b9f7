"""State space models: the markov frame against the dense one, exact answers, and refusals."""

import arviz_base
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from cases import slow_but
from small import chain

import tightrope as tr
from tightrope.frames import FRAMES, choose_frame
from tightrope.integrators import ConstrainedLeapfrog
from tightrope.projection import SOLVERS, Solver, project
from tightrope.systems import Lifted
from tightrope.types import State
from tightrope.zoo import linear_gaussian

POSTERIORS = {
    "scalar": lambda: [tr.zoo.load("nonlinear-ssm", T=20, sigma=sigma) for sigma in (0.1, 1e-4, 10.0)],
    "volatility": lambda: [tr.zoo.load("stochastic-volatility", T=20)],
    "vector": lambda: [tr.zoo.load("linear-gaussian", T=20)],
    "crooked-vector": lambda: [crooked()],
    "one-drive": lambda: [crooked(num_drives=1)],
}


def crooked(num_drives=2, length=20, **options):
    """Two states that bend each other, seen through a map that is not linear; one noise may drive both."""
    drive = jnp.array([[0.5, 0.1], [0.2, 0.4]])[:, :num_drives]
    see = lambda x: x + 0.2 * jnp.sin(x[::-1])
    options = (
        dict(
            priors={"a": dist.Normal(0.5, 0.3).expand([2]), "s": dist.LogNormal(-1.0, 0.5)},
            initial=lambda phi, nu: phi["a"] + drive @ nu,
            transition=lambda phi, nu, x: jnp.tanh(x[::-1] * phi["a"]) + 0.3 * x + drive @ nu,
            observe=lambda phi, x, eta: see(x) + phi["s"] * eta,
            residual=lambda phi, x, y: (y - see(x)) / phi["s"],
            observed=jnp.zeros((length, 2)),
            num_drives=num_drives,
            truth={"a": jnp.array([0.6, 0.3]), "s": jnp.array(0.2), "nu": jr.normal(jr.key(1), (length, num_drives))},
        )
        | options
    )
    model = tr.StateSpaceModel(**options)
    return model.with_observed(model.simulate(jr.key(2), options["truth"]))


def at_truth(model):
    return jnp.asarray(model.parameters.coordinates(model.truth)), model.condition()


@pytest.mark.parametrize("name", slow_but(["vector"], POSTERIORS))
def test_markov_frame_is_the_dense_one(name):
    models = POSTERIORS[name]()
    vectors = jr.normal(jr.key(3), (3, models[0].d + models[0].m))

    @jax.jit
    def run(u, y):
        model = models[0].condition(y)
        assert choose_frame(model) == "markov"
        points = [Lifted(model, FRAMES[frame]).at(u) for frame in ("wide", "markov")]
        found = [(p.e, p.potential, p.log_volume, p.gradient, jax.vmap(p.frame.tangent)(vectors)) for p in points]
        projected, stepped = [], []
        move = 0.05 * points[0].frame.tangent(vectors[0])
        for point, frame in zip(points, ("wide", "markov"), strict=True):
            projected.append([project(Solver(s, 1e-11, 60), model, point, move) for s in SOLVERS])
            integrator = ConstrainedLeapfrog(Lifted(model, FRAMES[frame]), Solver(tolerance=1e-11))
            stepped.append(integrator.step(State(point, 20 * move), jnp.array(0.05)))
        return found, projected, stepped

    for model in models:
        u, _ = at_truth(model)
        (dense, markov), (dense_ends, markov_ends), (dense_step, markov_step) = run(u, model.data)
        for a, b in zip(dense, markov, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9)
        for a, b in zip(dense_ends, markov_ends, strict=True):
            assert a.status == b.status == 0
            np.testing.assert_allclose(b.u, a.u, atol=1e-9)
            np.testing.assert_allclose(b.e, a.e, atol=1e-9)
        assert markov_ends[0].iterations <= 6  # newton
        assert dense_step.status == markov_step.status == 0
        assert np.abs(markov_step.state.point.u - u).max() > 0.005
        np.testing.assert_allclose(markov_step.state.point.u, dense_step.state.point.u, atol=1e-9)
        np.testing.assert_allclose(markov_step.state.momentum, dense_step.state.momentum, atol=1e-9)


def test_markov_equation_starts_at_the_identity():
    u, model = at_truth(crooked(length=5))

    @jax.jit
    def run(u):
        lift, _, made = FRAMES["markov"].linearise(model, u)
        equation = made.equation(model, u, lift.e, jnp.zeros(model.d + model.m))
        return equation.at(equation.start), jax.jacfwd(lambda s: equation.at(s).rho)(equation.start)

    trial, slope = run(u)
    assert trial.error < 1e-12
    np.testing.assert_allclose(slope, np.eye(model.m), atol=1e-11)


@pytest.mark.slow
def test_gradient_of_the_log_volume_is_that_of_the_log_volume():
    model = chain(None, length=6)
    model = model._replace(
        y=model.observations.simulate(jr.key(4), model.parameters.values(jr.normal(jr.key(5), (8,))))["y"]
    )
    u = 0.5 * jr.normal(jr.key(6), (model.d,))
    log_volume = lambda u: FRAMES["wide"].linearise(model, u)[2].log_volume
    found = FRAMES["markov"].linearise(model, u)[2].log_volume_gradient(model, u)
    np.testing.assert_allclose(found, jax.grad(log_volume)(u), rtol=1e-9, atol=1e-10)


def kalman_smoother(model, sigma):
    """Means and covariances of (mu, x_t) given all data, by a filter and a smoother of the state (mu, x_t)."""
    y, A, G, H = np.asarray(model.observed["y"]), linear_gaussian.ROTATION, linear_gaussian.DRIVE, linear_gaussian.VIEW
    zero, one = np.zeros((2, 2)), np.eye(2)
    carry = np.block([[one, zero], [one - A, A]])
    drive = np.block([[zero, zero], [zero, G @ G.T]])
    view = np.block([zero, H])
    mean, covariance = np.zeros(4), np.block([[one, one], [one, one + G @ G.T]])
    filtered, predicted = [], []
    for datum in y:
        predicted.append((mean, covariance))
        spread = view @ covariance @ view.T + sigma**2 * one
        gain = covariance @ view.T @ np.linalg.inv(spread)
        mean, covariance = mean + gain @ (datum - view @ mean), covariance - gain @ spread @ gain.T
        filtered.append((mean, covariance))
        mean, covariance = carry @ mean, carry @ covariance @ carry.T + drive
    smoothed = [filtered[-1]]
    for (mean, covariance), (ahead, ahead_covariance) in zip(filtered[-2::-1], predicted[:0:-1], strict=True):
        gain = covariance @ carry.T @ np.linalg.inv(ahead_covariance)
        later, later_covariance = smoothed[-1]
        covariance = covariance + gain @ (later_covariance - ahead_covariance) @ gain.T
        smoothed.append((mean + gain @ (later - ahead), covariance))
    smoothed.reverse()
    return np.array([mean for mean, _ in smoothed]), np.array([np.diag(covariance) for _, covariance in smoothed])


@pytest.mark.slow
@pytest.mark.usefixtures("much_computed")
def test_linear_gaussian_posterior_is_that_of_the_kalman_smoother():
    sigma = 0.1
    model = tr.zoo.load("linear-gaussian", sigma=sigma)
    trace = tr.sample(model, draws=1000, warmup=300, chains=4, seed=1, progress=False)
    mean, variance = kalman_smoother(model, sigma)
    summary = tr.summary(trace, ["mu", "x"])
    exact = np.concatenate([mean[0, :2], mean[:, 2:].ravel()]), np.sqrt([*variance[0, :2], *variance[:, 2:].ravel()])
    assert (np.abs(summary["mean"] - exact[0]) < 4.5 * summary["mcse_mean"]).all()  # the largest of 202
    # Variances as means of squares around the exact mean, whose standard error their own ESS gives.
    draws = np.concatenate([trace["posterior"][name].values.reshape(4, 1000, -1) for name in ("mu", "x")], axis=2)
    squares = arviz_base.from_dict({"posterior": {"square": ((draws - exact[0]) / exact[1]) ** 2}})
    spread = tr.summary(squares)
    assert (np.abs(spread["mean"] - 1) < 4.5 * spread["mcse_mean"]).all()
    ratio = summary["sd"] / exact[1]
    assert abs(ratio.mean() - 1) < 0.01 and (np.abs(ratio - 1) < 0.1).all()
    assert summary["r_hat"].max() < 1.02
    assert (summary["mcse_mean"] < 0.1 * exact[1]).all()  # so the test could fail


def test_states_and_shapes_reach_the_trace():
    model = crooked()
    trace = tr.sample(model, draws=20, warmup=20, chains=2, seed=1, progress=False)
    assert trace["posterior"]["x"].shape == (2, 20, 20, 2)
    assert set(tr.summary(trace).index) == {"a[0]", "a[1]", "s"}
    predicted = tr.predict(model, trace)
    assert predicted["posterior_predictive"]["y"].shape == (2, 20, 20, 2)
    assert predicted["log_likelihood"]["y"].shape == (2, 20, 20)


REFUSED = {
    "residual": (dict(residual=lambda phi, x, y: (y - x) / phi["s"]), "residual does not undo observe"),
    "inverse": (dict(inverse_observation=lambda phi, y, eta: y), "inverse_observation does not undo observe"),
    "shape": (dict(transition=lambda phi, nu, x: x[0]), r"transition returns shape \(\), not \(2,\)"),
    "name": (dict(priors={"nu": dist.Normal(0, 1)}), '"nu" names the chain'),
    "derived": (dict(derived={"x": lambda p: p["s"]}), '"x" names the chain'),
    "data": (dict(observed=np.zeros((2, 3, 4))), r"observed has shape \(2, 3, 4\): it must be \(T,\) or \(T, n\)"),
    "nan": (dict(observed=np.full((20, 2), np.nan)), "observed"),
    "unknown": (dict(initial=lambda phi, nu: phi["b"] + nu), "initial"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused(case):
    options, complaint = REFUSED[case]
    with pytest.raises(tr.InputError, match=complaint):
        crooked(**options)


def test_markov_frame_needs_a_chain():
    with pytest.raises(tr.InputError, match="is for a tr"):
        tr.sample(tr.zoo.load("toy"), draws=1, method=tr.LiftedNUTS(frame="markov"), progress=False)
