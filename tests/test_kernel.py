"""The compiled part: chains that advance together give the draws of chains run one transition at a time."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from cases import slow_but

import tightrope as tr
from tightrope.kernel import CAPACITY, Draw, Kernel
from tightrope.transitions import run

NUM_DRAWS, STEP_SIZE = 40, 0.4
METHODS = {"nuts": tr.LiftedNUTS(step_size=STEP_SIZE), "static": tr.LiftedHMC(step_size=STEP_SIZE, num_steps=3)}


def one_by_one(kernel, key, u):
    """The draws of one chain, each transition run to its end before the next."""
    tuning = kernel.method.initial_tuning(kernel.model.condition())
    integrator = kernel.integrator(kernel.model.data, tuning)

    def body(point, iteration):
        key_now = jr.fold_in(key, iteration)
        point, info = run(kernel.method.transition, integrator, key_now, point, jnp.array(STEP_SIZE))
        return point, Draw.of(point, info, 1.0).pack()

    return jax.lax.scan(body, integrator.system.at(u), jnp.arange(NUM_DRAWS))[1]


@pytest.mark.parametrize("name", slow_but(["nuts"], METHODS))
def test_a_group_gives_the_draws_of_single_chains(name):
    kernel = Kernel(tr.zoo.load("toy", sigma=0.1), METHODS[name], num_warmup=0)
    y, keys = kernel.model.data, jr.split(jr.key(1), 3)
    tuning = kernel.method.initial_tuning(kernel.model.condition())
    u = jnp.array([[0.0, 1.0], [0.3, -1.0], [1.1, 0.1]])
    chains = kernel.begin(y, tuning, keys, u, jnp.array(0), jnp.full(3, STEP_SIZE))
    found = [[] for _ in keys]
    done = np.zeros(3, int)
    for num_steps in (1, 7, 2, CAPACITY):  # calls that end in the middle of a trajectory, and one to the end
        chains, rows = kernel.advance(y, tuning, chains, jnp.array(NUM_DRAWS), jnp.array(num_steps))
        after = np.asarray(chains.iteration)
        for chain in range(3):
            found[chain].append(np.asarray(rows)[chain, : after[chain] - done[chain]])
        done = after
    assert (done == NUM_DRAWS).all()
    expected = jax.jit(jax.vmap(lambda key, u: one_by_one(kernel, key, u)))(keys, u)
    # The two programs differ in their last bits, which forty transitions of a chaotic flow may magnify.
    np.testing.assert_allclose(np.stack([np.concatenate(rows) for rows in found]), expected, rtol=1e-6, atol=1e-6)


def test_rows_survive_packing():
    kernel = Kernel(tr.zoo.load("toy"), METHODS["nuts"], num_warmup=0)
    rows = np.asarray(jax.jit(lambda: one_by_one(kernel, jr.key(0), jnp.array([0.0, 1.0])))())
    draws = Draw.unpack(rows)
    assert draws.u.shape == (NUM_DRAWS, 2) and draws.info.n_steps.dtype == int and draws.info.diverging.dtype == bool
    log_density = jax.vmap(kernel.model.log_density)(draws.u)
    np.testing.assert_allclose(draws.info.lp, log_density, rtol=1e-9)
    np.testing.assert_array_equal(draws.info.step_size, STEP_SIZE)
