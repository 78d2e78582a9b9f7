"""How long it takes until a posterior's chains begin: the first start of all, and the second.

    python benchmarks/compilation.py [NAME ...]

Each start is a process of its own, on both cores; before the first the folder of compiled programs is empty. `ready` is
all from the model to the first iteration, starting points too, and `compiled` what compiling the sampler took of it.
"""

import argparse
import multiprocessing
import os
import tempfile
import time

import tightrope as tr
from tightrope.methods import method_of
from tightrope.recording import Options
from tightrope.sampling import begun


def start(name):
    """Seconds until chains could begin, of compilation, and of both cores."""
    began, cpu = time.perf_counter(), time.process_time()
    options = Options(draws=1000, warmup=1000, chains=4, seed=1, thin=1, keep=None, save_warmup=False, cores=2)
    run, _ = begun(tr.zoo.load(name), method_of("lifted-nuts"), options, "auto", None)
    return time.perf_counter() - began, run.compile_time, time.process_time() - cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(tr.zoo.MODELS), metavar="NAME")
    for name in parser.parse_args().names:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            for which in ("first", "second"):
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    ready, compiled, cpu = pool.apply(start, (name,))
                print(
                    f"{name:22} {which:6}  ready {ready:5.1f} s, compiled {compiled:5.1f} s, CPU {cpu:5.1f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
