"""The Poisson posterior: elements against closed forms and a plain assembly, derivatives against differences."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg
from skfem import Basis, BilinearForm, ElementTriP1, condense
from skfem.helpers import dot, grad
from skfem.models.poisson import unit_load

import tightrope as tr
from tightrope.frames import bilinear_gradient
from tightrope.zoo.elements import DIRECTIONS, Diffusion
from tightrope.zoo.poisson import SENSORS, matern_factor


@pytest.fixture(scope="module")
def elements():
    return Diffusion(12)


@pytest.fixture(scope="module")
def model():
    return tr.zoo.load("poisson", sigma=0.1)


@pytest.fixture(scope="module")
def u(model):
    return jnp.asarray(np.random.default_rng(1).normal(size=model.d))


def temperatures(elements, z):
    solve = jax.jit(lambda z: elements.solve(elements.conductivity(z), 100 * elements.areas[: elements.num_inner]))
    return solve(z)


def test_mesh(elements):
    assert elements.mesh.p.shape == (2, 469) and elements.corners.shape == (3, 864)
    np.testing.assert_allclose(np.hypot(*elements.mesh.p[:, elements.num_inner :]), 1)
    # A polygon of 72 sides.
    np.testing.assert_allclose(elements.areas.sum(), 36 * np.sin(np.pi / 36))


def test_sensors(elements):
    x, y = elements.mesh.p[:, SENSORS]
    np.testing.assert_allclose(np.hypot(x, y), [0] + [1 / 3] * 3 + [2 / 3] * 6)
    turns = np.concatenate([np.arange(3) / 3, np.arange(6) / 6])
    expected = np.exp(2j * np.pi * turns)
    np.testing.assert_allclose((x + 1j * y)[1:] / np.hypot(x, y)[1:], expected, atol=1e-12)


def test_neighbours_of_the_mesh_are_neighbours_on_the_lattice(elements):
    i, j = elements.mesh.facets
    shifts = elements.places[i] - elements.places[j]
    assert (shifts[:, None] == DIRECTIONS).all(-1).any(1).all()
    assert (elements.node_at[tuple(elements.places.T)] == np.arange(elements.num_nodes)).all()


def test_the_factor_is_that_of_the_stiffness(elements):
    rng = np.random.default_rng(4)
    conductivity = jnp.asarray(rng.uniform(0.5, 2.0, elements.local.shape[:3]))
    x = np.zeros(elements.node_at.shape)
    x[tuple(elements.places[: elements.num_inner].T)] = rng.normal(size=elements.num_inner)
    load = elements.apply(conductivity, jnp.asarray(x[1:-1, 1:-1]))
    assert not load[~elements.is_inner[1:-1, 1:-1]].any()
    by_node = lambda rows: np.pad(rows, 1)[tuple(elements.places[: elements.num_inner].T)]
    np.testing.assert_allclose(elements.solve(conductivity, by_node(load)), by_node(x[1:-1, 1:-1]), rtol=1e-9)


def test_constant_conductivity_has_a_closed_form():
    """x = 25 (1 - r^2) exp(-z), with a root mean square error of order h^2."""
    errors = []
    for num_rings in (6, 12, 24):
        elements = Diffusion(num_rings)
        r = np.hypot(*elements.mesh.p[:, : elements.num_inner])
        x = temperatures(elements, jnp.full(elements.num_nodes, 0.7))
        square = (x - 25 * (1 - r**2) * np.exp(-0.7)) ** 2
        errors.append(np.sqrt(square @ elements.areas[: elements.num_inner]))
    assert errors[1] < 0.01
    assert all(3.5 < coarse / fine < 4.5 for coarse, fine in pairwise(errors)), errors


def test_forward_agrees_with_a_plain_assembly(model, elements, u):
    z = model.parameters.values(u)["z"]
    basis = Basis(elements.mesh, ElementTriP1(), intorder=2)
    stiffness = BilinearForm(lambda x, v, w: np.exp(w.z) * dot(grad(x), grad(v)))
    matrix = stiffness.assemble(basis, z=basis.interpolate(np.asarray(z)))
    inner, load, *_ = condense(matrix, 100 * unit_load.assemble(basis), D=elements.mesh.boundary_nodes())
    expected = scipy.sparse.linalg.spsolve(inner.tocsc(), load)
    np.testing.assert_allclose(temperatures(elements, z), expected, rtol=1e-11)
    params = {"z": z, "sigma": jnp.array(0.1)}
    np.testing.assert_allclose(model.observations.forward(params), expected[SENSORS], rtol=1e-11)


def test_prior(elements, model):
    """Unit standard deviation at the centre, and the covariance of the stochastic equation."""
    kappa = 4.0
    factor = matern_factor(elements, kappa)
    np.testing.assert_allclose(factor[0] @ factor[0], 1)
    operator = kappa**2 * np.diag(elements.areas) + elements.laplacian
    white = operator @ factor
    np.testing.assert_allclose(
        white @ white.T / (white[0] @ white[0]), np.diag(elements.areas / elements.areas[0]), atol=1e-9
    )
    v = jnp.arange(470.0) / 470
    np.testing.assert_allclose(model.parameters.values(v)["z"], factor @ v[:469], atol=1e-12)
    assert (model.d, model.m) == (470, 10)


def test_truth_explains_the_data_by_the_same_noise_at_each_sigma():
    noises = []
    for sigma in (1e-3, 1.0):
        model = tr.zoo.load("poisson", sigma=sigma)
        noises.append(model.condition().lift(model.parameters.coordinates(model.truth)).e)
    np.testing.assert_allclose(*noises, rtol=1e-8)


def test_jacobian_agrees_with_differences(model, u):
    residual = jax.jit(lambda u: model.condition().lift(u).e)
    jacobian = jax.jit(jax.jacrev(residual))(u)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(residual))(u), jacobian, rtol=1e-9, atol=1e-9)
    for direction in np.random.default_rng(2).normal(size=(3, model.d)):
        step = 1e-5 * direction
        difference = (residual(u + step) - residual(u - step)) / 2e-5
        np.testing.assert_allclose(jacobian @ direction, difference, rtol=1e-6, atol=1e-6 * abs(jacobian).max())


def test_second_derivatives_agree_with_differences(model, u):
    rng = np.random.default_rng(3)
    left, right = rng.normal(size=(model.m, model.m)), rng.normal(size=(model.d, model.m))
    conditioned = model.condition()
    gradient = jax.jit(lambda u: bilinear_gradient(conditioned, u, left.T, right.T))(u)
    bilinear = jax.jit(lambda u: jnp.sum(left * (jax.jacrev(lambda u: conditioned.lift(u).e)(u) @ right)))
    for direction in rng.normal(size=(3, model.d)):
        step = 1e-5 * direction
        difference = (bilinear(u + step) - bilinear(u - step)) / 2e-5
        np.testing.assert_allclose(gradient @ direction, difference, rtol=1e-5, atol=1e-7 * abs(bilinear(u)))
