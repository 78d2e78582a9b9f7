"""Frames: each against the dense answer, and against the others."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from small import DENSE, FORWARD, Small, exact_draw

import tightrope as tr
from tightrope.frames import FRAMES, MIN_FORWARD, choose_frame, longest_loop

MODELS = ["sine", "bend", "fold"]
SIGMAS = [0.3, None]  # None has the noise scale among the coordinates
NUM_ERRORS = 5  # standard errors allowed between a sample moment and its expectation


def drawn(name, sigma, seed=3):
    return exact_draw(jr.key(seed), name, sigma)


def jacobian_of(model, u):
    return jax.jacfwd(lambda u: model.lift(u).e)(u)


def projector(jacobian):
    """I - N (N^T N)^-1 N^T with the normals N = [-J^T; I]."""
    normals = np.concatenate([-jacobian.T, np.eye(len(jacobian))])
    return np.eye(len(normals)) - normals @ np.linalg.solve(normals.T @ normals, normals.T)


def half_log_det(jacobian):
    return 0.5 * jnp.linalg.slogdet(jnp.eye(jacobian.shape[1]) + jacobian.T @ jacobian)[1]


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("frame", DENSE)
def test_tangent_vectors_are_those_of_the_dense_projector(frame, name, sigma):
    u, model = drawn(name, sigma)
    vectors = jr.normal(jr.key(1), (7, model.d + model.m))

    @jax.jit
    def run(u):
        _, _, made = FRAMES[frame].linearise(model, u)
        tangents = jax.vmap(made.tangent)(vectors)
        drawn = jax.vmap(made.draw)(jr.split(jr.key(2), 20_000))
        return jacobian_of(model, u), tangents, jax.vmap(made.tangent)(tangents), drawn

    jacobian, tangents, twice, draws = map(np.asarray, run(u))
    for moved in (tangents, draws[:100]):  # they stay tangent: J v_u = v_e
        np.testing.assert_allclose(moved[:, : model.d] @ jacobian.T, moved[:, model.d :], rtol=0, atol=1e-12)
    np.testing.assert_allclose(twice, tangents, rtol=0, atol=1e-13)
    dense = projector(jacobian)
    np.testing.assert_allclose(tangents, vectors @ dense, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.sum((vectors - tangents) * tangents, axis=1), 0, rtol=0, atol=1e-12)

    # Draws have the projector for their covariance.
    products = draws[:, :, None] * draws[:, None, :]
    for sample, expected in [(draws, 0.0), (products, dense)]:
        standard_error = sample.std(0) / np.sqrt(len(sample)) + 1e-15
        assert (np.abs(sample.mean(0) - expected) < NUM_ERRORS * standard_error).all()


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("frame", DENSE)
def test_linearisation_gives_the_lift_and_the_gradient_of_its_scale(frame, name, sigma):
    u, model = drawn(name, sigma)
    lift, gradient, direct = jax.jit(lambda u: (*FRAMES[frame].linearise(model, u)[:2], model.lift(u)))(u)
    np.testing.assert_allclose(lift.e, direct.e, rtol=1e-14)
    np.testing.assert_allclose(lift.log_scale, direct.log_scale, rtol=1e-14)
    jacobian = jax.jacfwd(lambda u: model.lift(u).e)(u)
    of_u = 2.0**-52 * (np.abs(jacobian) @ np.abs(u)).max()
    np.testing.assert_allclose(lift.rounding, max(direct.rounding, of_u), rtol=1e-12)
    # log s = u[-1] / 2 - 1, m times.
    expected = np.zeros(model.d)
    if sigma is None:
        expected[-1] = model.m / 2
    np.testing.assert_allclose(gradient, expected, atol=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_log_volume_is_the_dense_one(name):
    @jax.jit
    @jax.vmap
    def run(sigma):
        u, model = drawn(name, sigma)
        made = [FRAMES[frame].linearise(model, u)[2].log_volume for frame in DENSE]
        return jnp.stack(made), half_log_det(jacobian_of(model, u))

    ours, dense = run(jnp.array([1.0, 0.1, 0.01, 1e-3]))
    np.testing.assert_allclose(ours, np.repeat(dense[:, None], len(DENSE), axis=1), rtol=1e-9)
    assert np.all(np.diff(dense) > 1)  # the table is not flat


@pytest.mark.parametrize("name", MODELS)
def test_frames_agree_as_noise_vanishes(name):
    """An orthonormal factor has the condition number 1/sigma, so it loses no more than rounding / sigma."""
    vectors = jr.normal(jr.key(1), (5, sum(FORWARD[name][1:])))

    @jax.jit
    @jax.vmap
    def run(sigma):
        u, model = drawn(name, sigma)
        made = [FRAMES[frame].linearise(model, u)[2] for frame in DENSE]
        return [one.log_volume for one in made], [jax.vmap(one.tangent)(vectors) for one in made]

    sigmas = jnp.array([1e-2, 1e-4, 1e-6, 1e-8])
    (tall, wide), (tall_vectors, wide_vectors) = run(sigmas)
    allowed = 64 * 2.0**-52 / np.asarray(sigmas)
    assert (np.abs(tall - wide) < allowed * tall).all()
    assert (np.abs(tall_vectors - wide_vectors).max((1, 2)) < allowed).all()
    # As sigma falls, one unit of log 1/sigma for each direction that the data determine.
    rank = min(FORWARD[name][1:])
    np.testing.assert_allclose(np.diff(tall), rank * np.log(100), rtol=1e-3)


@pytest.mark.parametrize("sigma", [1.0, 0.05, None])
@pytest.mark.parametrize("name", MODELS)
def test_log_volume_gradient_is_the_dense_one(name, sigma):
    @jax.jit
    @jax.vmap
    def run(key):
        u, model = exact_draw(key, name, sigma)
        made = [FRAMES[frame].linearise(model, u)[2].log_volume_gradient(model, u) for frame in DENSE]
        return jnp.stack(made), jax.grad(lambda u: half_log_det(jacobian_of(model, u)))(u)

    ours, dense = run(jr.split(jr.key(4), 5))
    assert np.abs(dense).max() > 0.1
    for frame, gradient in zip(DENSE, np.moveaxis(ours, 1, 0), strict=True):
        np.testing.assert_allclose(gradient, dense, rtol=1e-8, atol=1e-8 * np.abs(dense).max(), err_msg=frame)


@pytest.mark.parametrize("num_turns", [MIN_FORWARD - 1, MIN_FORWARD])
def test_log_volume_gradient_goes_through_loops(num_turns):
    """Back through a short one and forward through a long one, to the same answer."""

    def forward(params):
        swing = lambda x, _: (x + 0.01 * jnp.sin(params["a"] * x + params["b"]), x)
        return lax.scan(swing, params["b"], length=num_turns)[1]

    priors = {"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)}
    model = tr.Model(priors=priors, forward=forward, noise_scale=0.1, observed=np.zeros(num_turns)).condition()
    residual, u = lambda u: model.lift(u).e, jnp.array([0.7, -0.4])
    assert longest_loop(residual, u) == num_turns
    is_forward = "reverse=True" not in str(jax.make_jaxpr(lambda u: gradient_at(model, u))(u))
    assert is_forward == (num_turns == MIN_FORWARD)
    dense = jax.grad(lambda u: half_log_det(jacobian_of(model, u)))(u)
    assert np.abs(dense).min() > 0.1
    np.testing.assert_allclose(gradient_at(model, u), dense, rtol=1e-8)


def gradient_at(model, u):
    return FRAMES["tall"].linearise(model, u)[2].log_volume_gradient(model, u)


@pytest.mark.parametrize("sigma", [0.3, 1e-3, None])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("frame", DENSE)
def test_projection_equation_starts_at_the_identity(frame, name, sigma):
    """With no move the start solves the equation, and its Jacobian there is the identity."""
    u, model = drawn(name, sigma)

    @jax.jit
    def run(u):
        lift, _, made = FRAMES[frame].linearise(model, u)
        equation = made.equation(model, u, lift.e, jnp.zeros(model.d + model.m))
        return equation.at(equation.start), jax.jacfwd(lambda s: equation.at(s).rho)(equation.start), lift.e

    trial, slope, e = run(u)
    assert slope.shape == ((model.d,) * 2 if frame == "tall" else (model.m,) * 2)
    # A direction that the data leave open is known to rounding / sigma, and De multiplies that by 1 / sigma.
    allowed = 64 * 2.0**-52 / (sigma or 0.1) ** 2
    np.testing.assert_allclose(slope, np.eye(len(slope)), rtol=0, atol=allowed)
    assert trial.error <= allowed
    np.testing.assert_array_equal(trial.u, u)
    np.testing.assert_allclose(trial.e, e, rtol=1e-12)


@pytest.mark.parametrize("name", ["bend", "fold"])
@pytest.mark.parametrize("frame", DENSE)
def test_trials_differ_from_the_move_as_the_equation_says(frame, name):
    """A trial's rest is the tangent part of its miss (tall), or its miss along e after a normal step (wide)."""
    u, model = drawn(name, None)

    @jax.jit
    def run(u):
        lift, _, made = FRAMES[frame].linearise(model, u)
        move = 0.3 * made.draw(jr.key(5))
        equation = made.equation(model, u, lift.e, move)
        s = equation.start + 0.1 * jr.normal(jr.key(6), equation.start.shape)
        trial = equation.at(s)
        return made, lift, move, s, trial, model.lift(trial.u).e, jacobian_of(model, u)

    made, lift, move, s, trial, e, jacobian = run(u)
    np.testing.assert_array_equal(trial.s, s)
    np.testing.assert_allclose(trial.e, e, rtol=1e-12)
    miss = np.concatenate([trial.u, trial.e]) - np.concatenate([u, lift.e]) - move
    dense = projector(np.asarray(jacobian))
    if frame == "tall":
        np.testing.assert_allclose(trial.rho @ made.basis, dense @ miss, atol=1e-12)
        np.testing.assert_allclose(trial.error, np.abs(trial.rho).max())
    else:
        gap = miss + s @ made.normals  # how far the point on the manifold is from the one a normal step away
        np.testing.assert_allclose(gap[: model.d], 0, atol=1e-13)
        np.testing.assert_allclose(trial.error, np.abs(gap[model.d :]).max())


def test_the_smaller_factor_is_chosen():
    sized = lambda name, sigma=1.0: Small(name, sigma, jnp.zeros(FORWARD[name][2]))
    assert choose_frame(sized("bend")) == "tall"  # 2 < 4
    assert choose_frame(sized("fold")) == "wide"  # 3 > 2
    assert choose_frame(sized("sine")) == "wide"  # 1 = 1
    assert choose_frame(sized("bend", None)) == "tall"  # 3 < 4, with log s
    for name in MODELS:
        u, model = drawn(name, 0.3)
        frame = FRAMES[choose_frame(model)]
        (first, *_) = jax.eval_shape(lambda u, frame=frame, model=model: frame.linearise(model, u)[2], u)
        assert first.shape == (min(model.d, model.m), model.d + model.m)
