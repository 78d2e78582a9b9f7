"""Where a run comes from: its model, method and options as written into its directory, and as found there again."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tightrope import zoo
from tightrope.kernel import Draw
from tightrope.kinds import Method
from tightrope.methods import method_of
from tightrope.models import Model
from tightrope.recording import Options
from tightrope.store import Store, facts_of
from tightrope.types import InputError

PACKAGES = ("tightrope", "jax", "jaxlib", "numpy", "numpyro")  # of other versions, draws may have other last digits


def fingerprint(model: Model) -> str:
    """A digest of the posterior: priors, forward model, noise and data, and what is derived from them."""

    # What is computed of the priors beforehand may have other last digits elsewhere.
    parameters = model.parameters.bare()

    def all_of_it(u: Any, y: Any) -> Any:
        params, conditioned = parameters.values(u), model.condition(y)._replace(parameters=parameters)
        return conditioned.log_density(u), {name: f(params) for name, f in model.derived.items()}

    program = jax.jit(all_of_it).lower(jnp.zeros(model.d), model.data).as_text()
    # The leaves of a numpyro distribution come in another order in every process: take lines without names, and sort.
    lines = sorted(re.sub(r"[%@][\w#]+", "", line) for line in program.splitlines())
    digest = hashlib.sha256("\n".join([repr((model.parameters.shapes, list(model.derived))), *lines]).encode())
    digest.update(model.data.tobytes())
    return digest.hexdigest()


def has_densities(model: Model, saved: Mapping[str, np.ndarray]) -> bool:
    """Whether the last draws of a checkpoint have the log densities that the model says: orders do not escape this."""
    rows = saved["last"][np.asarray(facts_of(saved)["iterations"]) > 0]
    if not len(rows):
        return True
    draws = Draw.unpack(rows)
    found = jax.jit(jax.vmap(model.log_density))(draws.u)
    return bool(np.allclose(found, draws.info.lp, rtol=1e-4, atol=1e-2))


def record_of(model: Model, method: Method, options: Options, init: Any) -> dict[str, Any]:
    """What was asked, in words that JSON has."""
    return {
        "versions": {name: version(name) for name in PACKAGES},
        "model": {"name": model.name, "zoo": model.origin, "fingerprint": fingerprint(model)},
        "method": {"name": method.name, "options": dataclasses.asdict(method)},
        "options": options._asdict(),
        "init": init if isinstance(init, str) else None,  # values are in the first checkpoint
    }


def check_versions(store: Store) -> None:
    """Refuse to go on with other software than that a run began with."""
    for name, made in store.record()["versions"].items():
        if version(name) != made:
            raise InputError(
                f"{store.path} was made with {name} {made}, and this is {version(name)}: install that version to go on "
                "with the same draws, or read those there are with tr.load."
            )


def method_in(store: Store) -> Method:
    """The method of a run."""
    made = store.record()["method"]
    return method_of(made["name"], **made["options"])


def model_in(store: Store, given: Model | None) -> Model:
    """The model of a run: that of the zoo, or the one given, if it is the same."""
    made = store.record()["model"]
    if given is None and made["zoo"] is None:
        raise InputError(f'{store.path} is a run of your own model "{made["name"]}": pass it again, as model=.')
    model = zoo.load(made["zoo"]["name"], **made["zoo"]["options"]) if given is None else given
    saved = store.checkpoint()
    if fingerprint(model) != made["fingerprint"] or (saved is not None and not has_densities(model, saved)):
        raise InputError(
            f'{store.path} is a run of another model: "{made["name"]}" had other priors, another forward model, other '
            "noise or other data than this one."
        )
    return model
