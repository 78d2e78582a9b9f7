"""A Cholesky factor of matrices on nodes in rows, of which each touches its neighbours only."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.sparse import csgraph, csr_array

from tightrope.types import Array


class Rows(NamedTuple):
    """Nodes in rows, numbered from both ends: rows of equal depth go together, the middle row comes last.

    A symmetric matrix is kept as blocks, by depth and side: a row's own, and beside it the coupling to the next.
    """

    depth: np.ndarray  # of each node's row, from the nearer end
    side: np.ndarray  # of each node's row, 0 or 1
    place: np.ndarray  # of each node in its row
    nodes: np.ndarray  # by depth, side and place; -1 where a row is shorter than the longest

    @classmethod
    def from_end(cls, end: np.ndarray, edges: np.ndarray) -> Rows:
        """Rows by their distance from the one at an end, over edges between nodes; an odd number of them."""
        size = edges.max() + 1
        graph = csr_array((np.ones(edges.shape[1]), edges), (size, size))
        row = csgraph.dijkstra(graph, directed=False, indices=end, min_only=True).astype(int)
        middle = row.max() // 2
        depth, side = middle - abs(row - middle), (row > middle).astype(int)
        order = np.argsort(row, kind="stable")
        place = np.empty_like(row)
        place[order] = np.arange(size) - np.searchsorted(row[order], row[order])
        nodes = np.full((middle + 1, 2, place.max() + 1), -1)
        nodes[depth, side, place] = np.arange(size)
        return cls(depth, side, place, nodes)

    @property
    def padding(self) -> np.ndarray:
        """The blocks of zero, but for a unit diagonal where there is no node; the middle row has one side."""
        empty = self.nodes < 0
        empty[-1, 1] = False
        blocks = np.zeros((*self.nodes.shape, 2 * self.nodes.shape[-1]))
        depth, side, place = np.nonzero(empty)
        blocks[depth, side, place, place] = 1.0
        return blocks

    def slots(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Where entries (i, j) are in the flat blocks; -1 for those that the factor does not read."""
        is_ahead = self.depth[j] > self.depth[i]
        is_lower = (self.depth[j] == self.depth[i]) & (self.place[j] <= self.place[i])
        column = self.place[j] + self.nodes.shape[-1] * is_ahead
        slot = np.ravel_multi_index((self.depth[i], self.side[i], self.place[i], column), self.padding.shape)
        return np.where(is_ahead | is_lower, slot, -1)


class Factor(NamedTuple):
    """What elimination from both ends leaves."""

    rows: Rows
    lower: Array  # by depth and side, the Cholesky factor of a row once those before it are gone
    link: Array  # by depth and side, lower^-1 times the coupling to the next row
    middle: Array  # the Cholesky factor of the last row

    def solve(self, b: Array) -> Array:
        """Substitute from both ends to the middle, and back."""
        nodes = self.rows.nodes
        by_row = jnp.where(nodes < 0, 0.0, b[nodes])[..., None]

        def inward(update: Array, row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            lower, link, b = row
            y = divide(lower, b - update)
            return link.mT @ y, y

        def outward(x: Array, row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            lower, link, y = row
            x = divide(lower, y - link @ x, transpose_a=True)
            return x, x

        update, y = lax.scan(inward, jnp.zeros_like(by_row[0]), (self.lower, self.link, by_row[:-1]))
        last = divide(self.middle, divide(self.middle, (by_row[-1] - update).sum(0)), transpose_a=True)
        both = jnp.stack([last, last])
        _, x = lax.scan(outward, both, (self.lower, self.link, y), reverse=True)
        return jnp.concatenate([x, both[None]])[self.rows.depth, self.rows.side, self.rows.place, 0]


def factorise(rows: Rows, blocks: Array) -> Factor:
    """Eliminate a row after another, from both ends at once."""
    own, coupling = jnp.split(blocks, 2, -1)

    def eliminate(update: Array, row: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        own, coupling = row
        lower = cholesky(own - update)
        link = divide(lower, coupling)
        return link.mT @ link, (lower, link)

    update, (lower, link) = lax.scan(eliminate, jnp.zeros_like(own[0]), (own[:-1], coupling[:-1]))
    return Factor(rows, lower, link, cholesky((own[-1] - update).sum(0)))


def cholesky(a: Array) -> Array:
    return lax.linalg.cholesky(a, symmetrize_input=False)


def divide(lower: Array, b: Array, **options: bool) -> Array:
    return lax.linalg.triangular_solve(lower, b, left_side=True, lower=True, **options)
