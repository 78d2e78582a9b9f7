"""What XLA is told before it starts."""

from __future__ import annotations

import os

# XLA makes one piece of machine code of a loop that holds few enough bytes, and else calls a kernel for each of its
# instructions. With its own limit, a kilobyte, the Jacobian of an ODE of 200 steps takes six times as long (JAX 0.9).
LOOPS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=2000000"
FLAGS, PLAIN = "XLA_FLAGS", "TIGHTROPE_PLAIN_XLA"  # variables; with the second the first is left alone


def tell_xla() -> None:
    """Ask for whole loops, unless the user has asked for other options or for none."""
    given = os.environ.get(FLAGS, "")
    if "xla_backend_extra_options" not in given and PLAIN not in os.environ:
        os.environ[FLAGS] = f"{given} {LOOPS}".strip()
    # XLA 0.9 takes programs that it kept for those of another machine, wrongly, and says so at length.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def without_ours() -> dict[str, str]:
    """The environment of a process in which XLA is as it comes."""
    return os.environ | {FLAGS: os.environ.get(FLAGS, "").replace(LOOPS, "").strip(), PLAIN: "yes"}
