"""The paper's constrained HMC, dense and in ambient coordinates, and exact answers for small posteriors.

An independent reference for tests: positions are q = (theta, eta), constraint forces are multipliers, every
linear system is an explicit m x m solve. Algorithm numbers are those of Au, Graham and Thiery.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Problem(NamedTuple):
    """A lifted posterior as callables from float64 NumPy arrays to float64 NumPy arrays."""

    constraint: Callable  # q -> C(q) = F(theta) + s(theta) eta - y, shape (m,)
    jacobian: Callable  # q -> DC(q), shape (m, d + m)
    potential: Callable  # q -> U(q) = prior + noise + 1/2 log det(DC DC^T)
    grad_potential: Callable  # q -> grad U(q) in the ambient space, shape (d + m,)
    noise: Callable  # theta -> eta = (y - F(theta)) / s(theta), shape (m,)


def problem(forward, scale, y, noise_energy=None):
    """Lift y = forward(theta) + scale(theta) eta with theta ~ N(0, I) and eta ~ exp(-noise_energy).

    `forward` maps theta to (m,), `scale` maps it to (m,) or a scalar, `noise_energy` maps eta to a scalar and
    is 1/2 |eta|^2 by default; all three are traced by JAX.
    """
    y = np.atleast_1d(np.asarray(y, dtype=np.float64))
    (m,) = y.shape
    noise_energy = noise_energy or half_square

    def constraint(q):
        theta, eta = q[:-m], q[-m:]
        return forward(theta) + scale(theta) * eta - y

    jacobian = jax.jacfwd(constraint)

    def potential(q):
        theta, eta = q[:-m], q[-m:]
        jac = jacobian(q)
        _, log_det_gram = jnp.linalg.slogdet(jac @ jac.T)
        return half_square(theta) + noise_energy(eta) + 0.5 * log_det_gram

    def noise(theta):
        return (y - forward(theta)) / scale(theta)

    return Problem(*map(in_float64, (constraint, jacobian, potential, jax.grad(potential), noise)))


def half_square(x):
    return 0.5 * (x @ x)


def in_float64(function):
    """Compile `function` in double precision, whatever precision the calling test runs in."""
    compiled = jax.jit(function)

    def call(x):
        with jax.enable_x64(True):
            return np.asarray(compiled(np.asarray(x, dtype=np.float64)))

    return call


def lift(problem, theta):
    """The one point q = (theta, eta) of the manifold above `theta`."""
    return np.concatenate([np.asarray(theta, dtype=np.float64), problem.noise(theta)])


def hamiltonian(problem, q, p):
    """H(q, p) = U(q) + 1/2 |p|^2."""
    return float(problem.potential(q) + half_square(p))


def project_momentum(problem, p, q):
    """Remove the normal part of `p` at `q`: (I - DC^T (DC DC^T)^-1 DC) p."""
    jac = problem.jacobian(q)
    return p - jac.T @ np.linalg.solve(jac @ jac.T, jac @ p)


@np.errstate(over="ignore", invalid="ignore")  # a diverging solve reports failure, not a warning
def project_position(problem, q_tilde, q, solver="newton", tolerance=1e-9, max_iterations=50):
    """Solve C(q_tilde - DC(q)^T multiplier) = 0; return the point and whether the solve failed.

    "newton" uses DC(q_m) DC(q)^T, renewed at every iterate; "symmetric" uses DC(q) DC(q)^T throughout.
    """
    if solver not in ("newton", "symmetric"):
        raise ValueError(f'solver must be "newton" or "symmetric", not {solver!r}')
    normals = problem.jacobian(q)
    multiplier = np.zeros(normals.shape[0])
    point = q_tilde
    for iteration in range(max_iterations + 1):
        residual = problem.constraint(point)
        if np.max(np.abs(residual)) < tolerance:
            return point, False
        if iteration == max_iterations or not np.all(np.isfinite(residual)):
            break
        left = problem.jacobian(point) if solver == "newton" else normals
        try:
            multiplier = multiplier + np.linalg.solve(left @ normals.T, residual)
        except np.linalg.LinAlgError:
            break
        point = q_tilde - normals.T @ multiplier
    return point, True


def constrained_step(problem, q, p, eps, **solver_options):
    """Algorithm 2: one constrained leapfrog step; return (q, p, failed), the start where the solve failed.

    `solver_options` are those of `project_position`.
    """
    p_half = project_momentum(problem, p - 0.5 * eps * problem.grad_potential(q), q)
    q_new, failed = project_position(problem, q + eps * p_half, q, **solver_options)
    if failed:
        return q, p, True
    p_half = (q_new - q) / eps
    p_new = project_momentum(problem, p_half - 0.5 * eps * problem.grad_potential(q_new), q_new)
    return q_new, p_new, False


def constrained_hmc(problem, rng, q, eps, num_steps, reverse_tolerance=2e-8, **solver_options):
    """Algorithm 3: one transition from `q`; return the next position and how the transition ended.

    It ends "accepted", or at `q` again by "forward failed", "reverse failed", "irreversible" or "rejected".
    """
    q_n, p_n = q, project_momentum(problem, rng.standard_normal(q.shape), q)
    start_energy = hamiltonian(problem, q_n, p_n)
    for _ in range(num_steps):
        q_next, p_next, failed = constrained_step(problem, q_n, p_n, eps, **solver_options)
        if failed:
            return q, "forward failed"
        q_back, _, failed = constrained_step(problem, q_next, p_next, -eps, **solver_options)
        if failed:
            return q, "reverse failed"
        # Negated so that a return to NaN is a miss.
        if not np.max(np.abs(q_back - q_n)) < reverse_tolerance:
            return q, "irreversible"
        q_n, p_n = q_next, p_next
    log_ratio = start_energy - hamiltonian(problem, q_n, p_n)
    if rng.uniform() < np.exp(min(log_ratio, 0.0)):
        return q_n, "accepted"
    return q, "rejected"


def linear_gaussian_posterior(A, s, y):
    """Mean and covariance of theta ~ N(0, I) given y = A theta + s eta, eta ~ N(0, I), s a scalar or (m,)."""
    A, y = np.asarray(A, dtype=np.float64), np.asarray(y, dtype=np.float64)
    s = np.broadcast_to(s, y.shape)
    left, singular, right = np.linalg.svd(A / s[:, None])
    rank = singular.size
    mean = right[:rank].T @ (singular / (1 + singular**2) * (left[:, :rank].T @ (y / s)))
    precision = 1 + np.pad(singular, (0, A.shape[1] - rank)) ** 2
    return mean, (right.T / precision) @ right


def toy_moments(sigma):
    """(E theta0^2, E theta1^2, E |theta0|) given F = theta1^2 + theta0^2 (theta0^2 - 1/2) = 1 - sigma eta.

    theta ~ N(0, I) and eta ~ N(0, 1). Quadrature runs over a Cartesian box while the noise is wide, and along
    level curves of F once twelve standard deviations stay clear of the saddle at F = 0.
    """
    theta0, theta1, log_weight = toy_box(sigma) if sigma >= 0.05 else toy_level_curves(sigma)
    weight = np.exp(log_weight - np.max(log_weight))
    return tuple(float(np.sum(weight * g) / np.sum(weight)) for g in (theta0**2, theta1**2, theta0))


def toy_box(sigma, num_nodes=500, num_deviations=12):
    """Nodes and log weights on the quadrant theta >= 0, out to F = 1 + num_deviations sigma."""
    # F + 1/16 = theta1^2 + (theta0^2 - 1/4)^2.
    radius = np.sqrt(17 / 16 + num_deviations * sigma)
    theta0, weight0 = gauss_legendre(num_nodes, 0.0, np.sqrt(radius + 0.25))
    theta1, weight1 = gauss_legendre(num_nodes, 0.0, radius)
    theta0, theta1 = theta0[:, None], theta1[None, :]
    eta = (1 - theta1**2 - theta0**2 * (theta0**2 - 0.5)) / sigma
    return theta0, theta1, toy_log_density(theta0, theta1, eta) + np.log(weight0[:, None] * weight1)


def toy_level_curves(sigma, num_nodes=150, num_deviations=12):
    """Nodes and log weights along a quarter of each closed curve F = 1 - sigma eta > 0.

    With r^2 = F + 1/16, a^2 = r + 1/4 and b^2 = r - 1/4, theta1^2 = (a^2 - theta0^2) (theta0^2 + b^2).
    The angle theta0 = a sin(t) makes dtheta0 dtheta1 = sigma deta dt / (2 sqrt(theta0^2 + b^2)), smooth in t.
    """
    eta, eta_weight = gauss_legendre(num_nodes, -num_deviations, num_deviations)
    angle, angle_weight = gauss_legendre(num_nodes, 0.0, np.pi / 2)
    eta, angle = eta[:, None], angle[None, :]
    radius = np.sqrt(17 / 16 - sigma * eta)
    theta0 = np.sqrt(radius + 0.25) * np.sin(angle)
    slope = np.sqrt(theta0**2 + radius - 0.25)
    theta1 = np.sqrt(radius + 0.25) * np.cos(angle) * slope
    log_weight = np.log(eta_weight[:, None] * angle_weight) - np.log(slope)
    return theta0, theta1, toy_log_density(theta0, theta1, eta) + log_weight


def toy_log_density(theta0, theta1, eta):
    return -0.5 * (theta0**2 + theta1**2 + eta**2)


def gauss_legendre(num_nodes, low, high):
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    return low + (high - low) * (nodes + 1) / 2, (high - low) / 2 * weights
