import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from tightrope.streams import IMPL, sequence, stream


def test_numbers_are_those_of_the_reference():
    # The first of the authors' generator from the seed 1234567.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    places = jnp.arange(1, 5, dtype=jnp.uint64)
    assert sequence(jnp.uint64(1234567), places).tolist() == expected


def fraction_of_ones(words):
    """Of each bit, over all words."""
    bits = (np.asarray(words).ravel()[:, None] >> np.arange(64, dtype=np.uint64)) & 1
    return bits.mean(axis=0)


NUM_WORDS = 200_000
KEY = jr.key(7, impl=IMPL)
bits = lambda key: jr.bits(key, dtype=jnp.uint64)
WORDS = {
    "one key": lambda: jr.bits(KEY, (NUM_WORDS,), jnp.uint64),
    "keys of a split": lambda: jax.vmap(bits)(jr.split(KEY, NUM_WORDS)),
    "keys of iterations": lambda: jax.vmap(lambda i: bits(jr.fold_in(KEY, i)))(jnp.arange(NUM_WORDS)),
    "a split and its key": lambda: (
        jr.bits(KEY, (NUM_WORDS,), jnp.uint64)
        ^ jax.lax.bitcast_convert_type(jr.key_data(jr.split(KEY, NUM_WORDS)), jnp.uint64)
    ),
    "seeds": lambda: jax.vmap(lambda i: bits(jr.key(i, impl=IMPL)))(jnp.arange(NUM_WORDS)),
    "neighbours": lambda: jnp.diff(jr.bits(KEY, (NUM_WORDS + 1,), jnp.uint64)),
    "the same place of neighbouring iterations": lambda: jnp.diff(
        jax.vmap(lambda i: bits(jr.split(jr.fold_in(KEY, i))[1]))(jnp.arange(NUM_WORDS + 1))
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_each_bit_is_one_half_of_the_time(name):
    # Five standard errors, for 64 bits of 7 sources: a false alarm in 4000.
    error = np.abs(fraction_of_ones(jax.jit(WORDS[name])()) - 0.5)
    assert error.max() < 5 * 0.5 / np.sqrt(NUM_WORDS)


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_words_of_every_width(width):
    words = np.asarray(jr.bits(KEY, (50_000,), f"uint{width}")).astype(float) / 2.0**width
    assert abs(words.mean() - 0.5) < 5 * np.sqrt(1 / 12 / 50_000) + 2.0**-width


def test_normals_are_normal():
    x = np.sort(np.asarray(jr.normal(KEY, (NUM_WORDS,))))
    law = np.asarray(jax.scipy.special.ndtr(x))
    distance = np.abs(law - (np.arange(NUM_WORDS) + 0.5) / NUM_WORDS).max()
    assert distance < np.sqrt(np.log(2 / 1e-6) / (2 * NUM_WORDS))  # false alarm 1e-6


def test_streams_of_different_keys_differ():
    keys = jax.vmap(stream)(jr.split(jr.key(0), 1000))
    assert len(np.unique(np.asarray(jax.vmap(bits)(keys)))) == 1000


def test_a_number_does_not_depend_on_how_many_are_drawn_beside_it():
    many = jax.vmap(lambda i: jr.normal(jr.fold_in(KEY, i), (3,)))(jnp.arange(5))
    assert (many[4] == jr.normal(jr.fold_in(KEY, 4), (3,))).all()
