"""Metrics of position: against their definitions, and derivatives where eigenvalues meet."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from small import exact_draw

import tightrope as tr
from tightrope.geometry import GEOMETRIES, fisher, lifted, posterior_energy, soft_absolute, softabs


def some_model(noise_scale, **options):
    """Two parameters, three data."""
    forward = lambda p: jnp.stack([p["a"], p["a"] * p["b"], jnp.sin(p["b"])])
    priors = {"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0), "s": dist.LogNormal(-1.0, 0.5)}
    return tr.Model(priors, forward, noise_scale, [0.1, 0.2, 0.3], **options)


U = jnp.array([0.3, -0.8, 0.4])


def normal_information(mean, covariance, u):
    """Dmu^T S^-1 Dmu + 1/2 tr(S^-1 dS S^-1 dS), as in any textbook."""
    slope, inverse = jax.jacfwd(mean)(u), jnp.linalg.inv(covariance(u))
    change = jnp.einsum("ij,jkl->ikl", inverse, jax.jacfwd(covariance)(u))
    return slope.T @ inverse @ slope + 0.5 * jnp.einsum("ijk,jil->kl", change, change)


TRIL = jnp.array([[1.0, 0, 0], [0.5, 0.8, 0], [-0.3, 0.2, 1.1]])
SCALES = {
    "constant": 0.3,
    "inferred": "s",
    "one for each datum": lambda p: p["s"] * jnp.array([1.0, 2.0, 3.0]) * jnp.exp(p["a"]),
}


@pytest.mark.parametrize("loc", [0.0, 0.7])
@pytest.mark.parametrize("factor", [None, TRIL], ids=["independent", "correlated"])
@pytest.mark.parametrize("scale", SCALES)
def test_fisher_metric_is_that_of_a_normal_law(scale, factor, loc):
    options = {} if factor is None else {"noise_tril": factor}
    model = some_model(SCALES[scale], noise=dist.Normal(loc, 1.0), **options).condition()
    values, additive = model.parameters.values, model.observations

    root = lambda u: additive.blocks[0].scales(values(u))[:, None] * (jnp.eye(3) if factor is None else factor)
    covariance = lambda u: root(u) @ root(u).T
    mean = lambda u: additive.predictions(values(u))["y"] + root(u) @ jnp.full(3, loc)
    expected = jnp.eye(model.d) + normal_information(mean, covariance, U)
    np.testing.assert_allclose(fisher(model, U), expected, rtol=1e-9)


def test_wide_normal_law_counts_in_the_fisher_metric():
    wide = some_model(0.3, noise=dist.Normal(0.0, 2.0)).condition()
    np.testing.assert_allclose(fisher(wide, U), fisher(some_model(0.6).condition(), U), rtol=1e-12)


def test_fisher_and_lifted_metrics_agree_where_the_scale_is_constant():
    model = some_model(0.3).condition()
    np.testing.assert_allclose(fisher(model, U), lifted(model, U), rtol=1e-12)


def test_softabs_is_l_coth_l_of_the_hessian():
    model = some_model(1e-3).condition()
    hessian = jax.hessian(lambda u: posterior_energy(model, u)[0])(U)
    eigenvalues, vectors = np.linalg.eigh(hessian)
    expected = (vectors * (eigenvalues / np.tanh(eigenvalues))) @ vectors.T
    np.testing.assert_allclose(softabs(model, U), expected, rtol=1e-8, atol=1e-6)


MATRICES = {
    "apart": np.diag([3.0, -1.0, 0.5]),
    "equal": np.eye(3),
    "nearly equal": np.diag([1.0, 1.0 + 1e-7, 2.0]),
    "zero": np.zeros((3, 3)),
    "opposite": np.diag([2.0, -2.0, 1e-6]),
    "large": np.diag([1e4, 1e3, -50.0]),
}


@pytest.mark.parametrize("name", MATRICES)
def test_softabs_derivative_holds_where_eigenvalues_meet(name):
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    matrix = jnp.asarray(turn @ MATRICES[name] @ turn.T)
    tangent = jr.normal(jr.key(1), (3, 3))
    tangent = tangent + tangent.T
    step = 1e-4
    difference = (soft_absolute(matrix + step * tangent) - soft_absolute(matrix - step * tangent)) / (2 * step)
    _, along = jax.jvp(soft_absolute, (matrix,), (tangent,))
    np.testing.assert_allclose(along, difference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_metrics_are_at_least_the_identity(geometry):
    def least(key):
        u, model = exact_draw(key, "bend", None)
        return jnp.linalg.eigvalsh(GEOMETRIES[geometry](model, u))[0]

    assert jax.jit(jax.vmap(least))(jr.split(jr.key(0), 200)).min() > 1 - 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tr.RiemannianNUTS, tr.LocalMALA])
def test_fisher_metric_is_refused_for_other_noise(kind):
    heavy = some_model(0.3, noise=dist.StudentT(4.0))
    with pytest.raises(tr.InputError, match="additive normal noise"):
        tr.sample(heavy, 10, 10, 1, method=kind())
    tr.sample(heavy, 3, 3, 1, method=kind(metric="lifted", step_size=0.1), progress=False)
