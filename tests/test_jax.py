"""What JAX must do, and some of its versions did not."""

import subprocess
import sys

FACTORS_ON_THREADS = """
from concurrent.futures import ThreadPoolExecutor
import jax
import jax.numpy as jnp
import tightrope

def factors(a):
    for _ in range(3):
        a = a + jax.vmap(jnp.linalg.qr)(a)[0]
    return a.sum()

many = jax.jit(lambda a: sum(factors(a + k) for k in range(6)))
a = jax.random.normal(jax.random.key(0), (32, 60, 9))
with ThreadPoolExecutor(3) as pool:
    print(len(list(pool.map(lambda _: float(many(a)), range(100)))))
"""


def test_batches_of_factors_end_when_threads_run_them():
    # JAX 0.10.0 to 0.11.0 wait forever here, at once: each batch waits for the threads that wait for it.
    done = subprocess.run([sys.executable, "-c", FACTORS_ON_THREADS], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["100"], done.stderr
