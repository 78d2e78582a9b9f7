"""Random numbers for compiled chains: SplitMix64, a dozen instructions a number where Threefry is a loop.

Steele, Lea and Flood (2014). Keys are those of jax.random, and so is all that is drawn with them. A number is a hash of
its key and its place, so that a chain draws the same ones wherever a compiled call begins or ends.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import jax.random as jr
from jax import lax
from jax.extend.random import define_prng_impl

from tightrope.types import Array

GAMMA = 0x9E3779B97F4A7C15  # the odd number nearest to 2^64 over the golden ratio
# What a key may be asked for; each has a sequence of its own.
BITS, SPLIT, FOLD = 0x0, 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7


def mixed(x: Array) -> Array:
    """A bijection of 64-bit words in which each bit depends on all of them (Stafford's variant 13)."""
    x = (x ^ (x >> 30)) * jnp.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> 27)) * jnp.uint64(0x94D049BB133111EB)
    return x ^ (x >> 31)


def sequence(state: Array, places: Array) -> Array:
    """The numbers of the generator that starts from a state, at places counted from 1."""
    return mixed(state + places * jnp.uint64(GAMMA))


def numbers(key: Array, purpose: int, places: Array) -> Array:
    """The words of a key, two halves, for a purpose."""
    state = mixed(lax.bitcast_convert_type(key, jnp.uint64) ^ jnp.uint64(purpose))
    return sequence(state, places.astype(jnp.uint64))


def counted(shape: tuple[int, ...]) -> Array:
    """The places of an array, from 1."""
    return 1 + lax.iota(jnp.uint64, math.prod(shape)).reshape(shape)


def as_key(word: Array) -> Array:
    return lax.bitcast_convert_type(word, jnp.uint32)


def seed(number: Array) -> Array:
    return as_key(mixed(number.astype(jnp.uint64)))


def split(key: Array, shape: tuple[int, ...]) -> Array:
    return as_key(numbers(key, SPLIT, counted(shape)))


def fold_in(key: Array, number: Any) -> Array:
    return as_key(numbers(key, FOLD, number))


def random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    words = numbers(key, BITS, counted(shape))
    return (words >> (64 - bit_width)).astype(f"uint{bit_width}")


IMPL = define_prng_impl(
    key_shape=(2,), seed=seed, split=split, random_bits=random_bits, fold_in=fold_in, name="splitmix64", tag="sm64"
)


def stream(key: Array) -> Array:
    """A key of this generator, from one of any other."""
    return jr.wrap_key_data(jr.bits(key, (2,), jnp.uint32), impl=IMPL)
