"""Trajectories that double until they turn back.

Hoffman and Gelman (2014), with multinomial weights, biased progressive sampling and the generalised turning
test of Betancourt (2017), and the checks across subtrees that Stan added. Built leaf by leaf, without recursion.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax

from tightrope.integrators import Integrator
from tightrope.transitions.base import Counts, leaf_of
from tightrope.types import Array, Info, Packed, Point, State, select


class Arrow(NamedTuple):
    """What the turning test sees of a state."""

    velocity: Array
    momentum: Array


def is_turning(first: Arrow, last: Arrow, momentum_sum: Array) -> Array:
    """Whether either end of a stretch of states moves against the sum of their momenta."""
    along = lambda arrow: (arrow.velocity * momentum_sum).sum(-1)
    return (along(first) <= 0) | (along(last) <= 0)


class Stretch(NamedTuple):
    """A run of neighbouring states, in the order in which they were found."""

    first: Arrow
    last: Arrow
    momentum_sum: Array


def turns_across(one: Stretch, other: Stretch) -> Array:
    """Whether two adjacent stretches turn, together or where they meet."""
    return (
        is_turning(one.first, other.last, one.momentum_sum + other.momentum_sum)
        | is_turning(one.first, other.first, one.momentum_sum + other.first.momentum)
        | is_turning(one.last, other.last, one.last.momentum + other.momentum_sum)
    )


class Checkpoints(NamedTuple):
    """The starts of the unfinished subtrees around the newest leaf, one per level, outermost first."""

    start: Arrow  # of the subtree's first leaf
    before: Arrow  # of the leaf before that
    sum_before: Array  # momenta of all leaves before the subtree's first

    @classmethod
    def empty(cls, max_depth: int, size: int) -> Checkpoints:
        zeros = jnp.zeros((max(max_depth, 1), size))
        return cls(Arrow(zeros, zeros), Arrow(zeros, zeros), zeros)

    def mark(self, index: Array, start: Arrow, before: Arrow, sum_before: Array) -> Checkpoints:
        """Note an even leaf as the start of a subtree."""
        level = jnp.where(index % 2 == 0, innermost(index), len(self.sum_before))  # out of range is dropped
        note = lambda rows, row: rows.at[level].set(row, mode="drop")
        return jax.tree.map(note, self, Checkpoints(start, before, sum_before))

    def turns(self, index: Array, last: Arrow, momentum_sum: Array) -> Array:
        """Whether any subtree that leaf `index` completes turns, as a whole or across its halves."""
        num_completed = lax.population_count(index ^ (index + 1)) - 1  # trailing ones of index
        at = lambda level: jax.tree.map(lambda rows: rows[level], self)

        def is_left(look: tuple[Array, Array]) -> Array:
            level, turning = look
            return (level > innermost(index) - num_completed) & ~turning

        def outward(look: tuple[Array, Array]) -> tuple[Array, Array]:
            level, _ = look
            # The right half of the subtree at one level is the subtree at the next.
            whole, half = at(level), at(level + 1)
            left = Stretch(whole.start, half.before, half.sum_before - whole.sum_before)
            right = Stretch(half.start, last, momentum_sum - half.sum_before)
            across = turns_across(left, right) & (level < innermost(index))
            return level - 1, across | is_turning(whole.start, last, momentum_sum - whole.sum_before)

        return lax.while_loop(is_left, outward, (innermost(index), jnp.array(False)))[1]


def innermost(index: Array) -> Array:
    """The level of the smallest subtree that holds a leaf and the one beside it."""
    return lax.population_count(index >> 1)


class Subtree(NamedTuple):
    """The half that is being added."""

    forward: Array  # the direction of time
    last: Packed  # the newest leaf, a state; at first, the end of the tree that it grows from
    size: Array  # number of leaves
    proposal: Packed  # one of them, by weight
    proposal_energy_error: Array
    log_weight: Array
    momentum_sum: Array
    checkpoints: Checkpoints


class Tree(NamedTuple):
    """A trajectory under way."""

    key: Array
    step_size: Array
    initial_energy: Array
    initial_missed: Array
    left: Packed  # a state
    right: Packed
    depth: Array
    depth_limit: Array
    proposal: Packed
    proposal_energy_error: Array
    log_weight: Array
    momentum_sum: Array
    subtree: Subtree
    acceptance_sum: Array
    step_acceptance_sum: Array
    counts: Counts
    diverging: Array
    is_complete: Array  # the subtree is as large as the tree
    done: Array

    @property
    def pauses(self) -> Array:
        return self.is_complete | self.done


def ends(tree: Tree) -> tuple[State, State]:
    """The end of a tree far from its subtree, and the one that the subtree grows from."""
    far_end, near_end = select(tree.subtree.forward, (tree.left, tree.right), (tree.right, tree.left))
    return far_end.open(), near_end.open()


# Early in warm-up a step size may be far too small, and a force without second derivatives lets the energy drift the
# longer a trajectory is, whatever the step. Deep trees then take hours and teach that steps should be smaller still.
EARLY_DEPTH = 4


class NUTS(NamedTuple):
    """The no-U-turn sampler."""

    max_depth: int = 10

    def start(
        self, integrator: Integrator, key: Array, point: Point, step_size: Array, is_early: Array | bool = False
    ) -> Tree:
        momentum_key, direction_key, key = jr.split(key, 3)
        state = State(point, integrator.system.draw_momentum(momentum_key, point))
        zero, no, packed = jnp.array(0.0), jnp.array(False), Packed.of(state)
        subtree = Subtree(
            forward=jr.bernoulli(direction_key),
            last=packed,
            size=jnp.zeros((), int),
            proposal=packed,
            proposal_energy_error=zero,
            log_weight=jnp.array(-jnp.inf),
            momentum_sum=jnp.zeros_like(state.momentum),
            checkpoints=Checkpoints.empty(self.max_depth, state.momentum.size),
        )
        return Tree(
            key=key,
            step_size=step_size,
            initial_energy=integrator.system.energy(state),
            initial_missed=point.missed,
            left=packed,
            right=packed,
            depth=jnp.zeros((), int),
            depth_limit=jnp.where(is_early, min(EARLY_DEPTH, self.max_depth), self.max_depth),
            proposal=packed,
            proposal_energy_error=zero,
            log_weight=zero,
            momentum_sum=state.momentum,
            subtree=subtree,
            acceptance_sum=zero,
            step_acceptance_sum=zero,
            counts=Counts.zero(),
            diverging=no,
            is_complete=no,
            done=no,
        )

    def advance(self, integrator: Integrator, tree: Tree) -> Tree:
        leaf_key, _ = self.keys(tree)
        arrow = lambda state: Arrow(integrator.system.velocity(state), state.momentum)

        previous = tree.subtree.last.open()
        sign = jnp.where(tree.subtree.forward, 1.0, -1.0)
        step = integrator.step(previous, sign * tree.step_size)
        leaf = leaf_of(integrator, step, tree.initial_energy, tree.initial_missed)
        newest = arrow(leaf.state)

        subtree = self.add_leaf(leaf_key, tree.subtree, leaf, newest, arrow(previous))
        turning = subtree.checkpoints.turns(subtree.size - 1, newest, subtree.momentum_sum)
        done = leaf.failed | leaf.diverging | turning
        return tree._replace(
            subtree=subtree,
            acceptance_sum=tree.acceptance_sum + leaf.acceptance,
            step_acceptance_sum=tree.step_acceptance_sum + leaf.step_acceptance,
            counts=tree.counts.add(step),
            diverging=leaf.diverging,
            is_complete=~done & (subtree.size == 1 << tree.depth),
            done=done,
        )

    def settle(self, integrator: Integrator, tree: Tree) -> Tree:
        """Join a complete subtree to the tree, which may turn there, or be deep enough."""
        arrow = lambda state: Arrow(integrator.system.velocity(state), state.momentum)
        subtree, (far_end, near_end) = tree.subtree, ends(tree)
        old = Stretch(arrow(far_end), arrow(near_end), tree.momentum_sum)
        first_leaf = jax.tree.map(lambda x: x[0], subtree.checkpoints.start)
        turning = turns_across(old, Stretch(first_leaf, arrow(subtree.last.open()), subtree.momentum_sum))

        merge_key, direction_key = jr.split(self.keys(tree)[1])
        merged = self.merge(merge_key, direction_key, tree)
        merged = merged._replace(is_complete=jnp.array(False), done=turning | (merged.depth >= tree.depth_limit))
        return select(tree.is_complete, merged, tree)

    def keys(self, tree: Tree) -> tuple[Array, Array]:
        """For the next leaf, and for the tree as it is."""
        leaf_key, tree_key = jr.split(jr.fold_in(tree.key, tree.counts.n_steps))
        return leaf_key, tree_key

    def add_leaf(self, key, subtree: Subtree, leaf, newest: Arrow, previous: Arrow) -> Subtree:
        """The subtree with one more leaf, which becomes the proposal with its share of the weight."""
        log_weight = jnp.logaddexp(subtree.log_weight, -leaf.energy_error)
        chosen = jnp.log(jr.uniform(key)) < -leaf.energy_error - log_weight
        last = Packed.of(leaf.state)
        return Subtree(
            forward=subtree.forward,
            last=last,
            size=subtree.size + 1,
            proposal=select(chosen, last, subtree.proposal),
            proposal_energy_error=jnp.where(chosen, leaf.energy_error, subtree.proposal_energy_error),
            log_weight=log_weight,
            momentum_sum=subtree.momentum_sum + leaf.state.momentum,
            checkpoints=subtree.checkpoints.mark(subtree.size, newest, previous, subtree.momentum_sum),
        )

    def merge(self, merge_key: Array, direction_key: Array, tree: Tree) -> Tree:
        """The tree of twice the size, with an empty subtree at one of its ends."""
        subtree = tree.subtree
        chosen = jnp.log(jr.uniform(merge_key)) < subtree.log_weight - tree.log_weight
        left = select(subtree.forward, tree.left, subtree.last)
        right = select(subtree.forward, subtree.last, tree.right)
        forward = jr.bernoulli(direction_key)
        return tree._replace(
            left=left,
            right=right,
            depth=tree.depth + 1,
            proposal=select(chosen, subtree.proposal, tree.proposal),
            proposal_energy_error=jnp.where(chosen, subtree.proposal_energy_error, tree.proposal_energy_error),
            log_weight=jnp.logaddexp(tree.log_weight, subtree.log_weight),
            momentum_sum=tree.momentum_sum + subtree.momentum_sum,
            subtree=subtree._replace(
                forward=forward,
                last=select(forward, right, left),
                size=jnp.zeros((), int),
                log_weight=jnp.array(-jnp.inf),
                momentum_sum=jnp.zeros_like(subtree.momentum_sum),
            ),
        )

    def finish(self, tree: Tree) -> tuple[Point, Info]:
        # A trajectory that a projection ended counts as rejected, as a static one would be. A smaller step helps
        # against those, but not where the model itself fails, so there only the step that failed counts.
        was_cut_short = tree.counts.projection_failed + tree.counts.non_reversible > 0
        mean = lambda total: jnp.where(was_cut_short, 0.0, total / tree.counts.n_steps)
        point = tree.proposal.open().point
        return point, Info(
            acceptance_rate=mean(tree.acceptance_sum),
            step_acceptance=mean(tree.step_acceptance_sum),
            step_size=tree.step_size,
            tree_depth=tree.depth,
            reached_max_treedepth=tree.depth >= self.max_depth,
            diverging=tree.diverging,
            energy=tree.initial_energy + tree.proposal_energy_error,
            energy_error=tree.proposal_energy_error,
            lp=point.log_density,
            **tree.counts._asdict(),
        )
