"""Linear finite elements on the unit disc."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.spatial import Delaunay
from skfem import Basis, ElementTriP1, MeshTri
from skfem.models.poisson import laplace, unit_load

from tightrope.types import Array
from tightrope.zoo.block_tridiagonal import factorise

DIRECTIONS = np.array([(0, 1), (1, 0), (1, -1), (0, -1), (-1, 0), (-1, 1)])  # of the lattice: (row, column), turning
CORNERS = np.array([[(0, 0), (0, 1), (1, 0)], [(1, 1), (1, 0), (0, 1)]])  # of the two triangles of a cell


def ring(k: int) -> np.ndarray:
    """The nodes of ring k, anticlockwise from the first axis; ring 0 is the centre."""
    return np.arange(6 * k) + 1 + 3 * k * (k - 1) if k else np.zeros(1, int)


def disc(num_rings: int) -> MeshTri:
    """A centre and equally spaced rings of 6 k nodes, in Delaunay triangles: a hexagon of rows, made round."""
    sizes = [len(ring(k)) for k in range(num_rings + 1)]
    radius = np.repeat(np.arange(num_rings + 1), sizes) / num_rings
    angle = np.concatenate([2 * np.pi * np.arange(size) / size for size in sizes])
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)])
    return MeshTri(points, np.ascontiguousarray(Delaunay(points.T).simplices.T))


def hexagon(num_rings: int) -> np.ndarray:
    """The row and the column of each node of the disc in a lattice of triangles, shape (nodes, 2)."""
    places = [np.full((1, 2), num_rings)]
    for k in range(1, num_rings + 1):
        side, along = np.divmod(np.arange(6 * k), k)
        places.append(num_rings + k * DIRECTIONS[side] + along[:, None] * DIRECTIONS[(side + 2) % 6])
    return np.concatenate(places)


class Diffusion:
    """-div(c grad x) = f on the unit disc with x = 0 on its boundary; the last ring is the boundary.

    The mesh is a hexagon of a lattice, so that neighbours are found by shifts of arrays by one: a compiled scatter
    writes one number after the other. A row of it touches its neighbours only.
    """

    def __init__(self, num_rings: int):
        self.mesh = disc(num_rings)
        self.num_nodes, self.num_inner = self.mesh.nvertices, self.mesh.nvertices - 6 * num_rings
        self.corners = self.mesh.t  # the nodes of each triangle, shape (3, T)
        basis = Basis(self.mesh, ElementTriP1(), intorder=2)
        self.hats = np.stack([np.asarray(basis.basis[corner][0])[0] for corner in range(3)])  # at quadrature points
        self.areas = unit_load.assemble(basis)  # of each node: the lumped mass
        self.laplacian = laplace.assemble(basis).toarray()  # the stiffness of all nodes if c = 1

        self.places, size = hexagon(num_rings), 2 * num_rings + 1
        self.node_at = np.full((size, size), self.num_nodes)  # or that, where there is none
        self.node_at[tuple(self.places.T)] = np.arange(self.num_nodes)
        self.is_inner = self.node_at < self.num_inner
        # The stiffness between inner corners of each triangle if c = 1, by kind and cell, shape (2, N, N, 3, 3).
        self.local = np.zeros((2, size - 1, size - 1, 3, 3))
        local = laplace.coo_data(basis).tolocal()
        cells = self.places[self.corners].min(0)
        for triangle, (row, column) in enumerate(cells):
            kind = int(self.node_at[row, column] not in self.corners[:, triangle])
            nodes = self.node_at[tuple((CORNERS[kind] + (row, column)).T)]
            order = [list(self.corners[:, triangle]).index(node) for node in nodes]
            is_read = np.outer(nodes < self.num_inner, nodes < self.num_inner)
            self.local[kind, row, column] = is_read * local[triangle][np.ix_(order, order)]

    def conductivity(self, z: Array) -> Array:
        """The mean of exp(z) over each triangle, by second-order quadrature, by kind and cell."""
        on_lattice = jnp.append(z, 0.0)[self.node_at]
        at_point = lambda corners, hats: sum(hat * z for hat, z in zip(hats, corners, strict=True))
        means = [
            sum(jnp.exp(at_point(corners, hats)) for hats in self.hats.T) / self.hats.shape[1]
            for corners in at_corners(on_lattice)
        ]
        return jnp.stack(means)

    def rows(self, conductivity: Array) -> tuple[Array, Array]:
        """The stiffness by rows of the lattice, but for its rim: their own lower triangles, and those to the next."""
        entries = conductivity[..., None, None] * self.local
        stop = entries.shape[1]

        def along(shift: tuple[int, int]) -> Array:
            """The stiffness between each place and the one that is a shift away."""
            total = jnp.zeros(())
            for kind, corners in enumerate(CORNERS):
                for a, (row, column) in enumerate(corners):
                    for b in np.flatnonzero((corners - corners[a] == shift).all(1)):
                        total += entries[kind, 1 - row : stop - row, 1 - column : stop - column, a, b]
            return total

        identity, below = jnp.eye(stop - 1), jnp.eye(stop - 1, k=-1)
        diagonal = along((0, 0)) + ~self.is_inner[1:-1, 1:-1]  # a unit where there is no node
        own = identity * diagonal[..., None] + below * along((0, 1))[:, None]
        coupling = identity * along((1, 0))[..., None] + below * along((1, -1))[..., None]
        return own, coupling[:-1]

    def apply(self, conductivity: Array, x: Array) -> Array:
        """The stiffness times x, both by rows and zero where there is no inner node."""
        total = jnp.zeros(())
        for corners, places, local, c in zip(at_corners(jnp.pad(x, 1)), CORNERS, self.local, conductivity, strict=True):
            for (row, column), weights in zip(places, np.moveaxis(local, 2, 0), strict=True):
                flux = c * sum(weight * x for weight, x in zip(np.moveaxis(weights, -1, 0), corners, strict=True))
                total += jnp.pad(flux, ((row, 1 - row), (column, 1 - column)))
        return total[1:-1, 1:-1]

    def solve(self, conductivity: Array, load: Array, nodes: np.ndarray | None = None) -> Array:
        """The solution x at some inner nodes, or all; it and its derivatives of all orders share one factor."""
        factor = factorise(*self.rows(lax.stop_gradient(conductivity)))
        matrix = lambda x: self.apply(conductivity, x)
        rows = jnp.append(load, 0.0)[np.minimum(self.node_at, self.num_inner)[1:-1, 1:-1]]
        x = lax.custom_linear_solve(matrix, rows, lambda _, b: factor.solve(b), symmetric=True)
        row, column = self.places[np.arange(self.num_inner) if nodes is None else nodes].T - 1
        return x[row, column]


def at_corners(field: Array) -> list[list[Array]]:
    """A field on the lattice at the corners of its triangles, by kind and corner."""
    stop = len(field) - 1
    return [[field[row : row + stop, column : column + stop] for row, column in corners] for corners in CORNERS]
