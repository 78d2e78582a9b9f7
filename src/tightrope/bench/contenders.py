"""Samplers of a benchmark: Tightrope and its peers, each with its chains of one process."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import count
from threading import get_ident
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax

from tightrope.kernel import Draw
from tightrope.methods import method_of
from tightrope.models import Model
from tightrope.progress import Progress
from tightrope.runs import Run

TARGET_ACCEPT = 0.8  # of every peer, as they come
MAX_DRAWS = 100_000


class Task(NamedTuple):
    """What a contender is to sample."""

    model: Model
    starts: np.ndarray  # coordinates, shape (chain, d)
    num_warmup: int
    seed: int
    cores: int


class Batch(NamedTuple):
    """Some more draws."""

    u: np.ndarray  # coordinates, shape (chain, draw, d)
    num_steps: int  # of the integrator, in all chains


class Contender(Protocol):
    """Chains that go through these stages."""

    def prepare(self) -> None:
        """Compile."""

    def warm_up(self) -> float:
        """Adapt; the seconds of it that were compilation all the same."""

    def draw(self, number: int) -> Batch:
        """About so many further draws of each chain."""


class Tightrope:
    """The lifted sampler as it comes."""

    def __init__(self, task: Task):
        sizes = (task.num_warmup, MAX_DRAWS, len(task.starts), task.cores)
        self.run = Run(task.model, method_of("lifted-nuts"), *sizes, jr.key(task.seed), may_move=True)
        self.task, self.progress, self.drawn = task, Progress(False), 0

    def prepare(self) -> None:
        self.run.prepare()
        self.run.place(self.task.starts)

    def warm_up(self) -> float:
        before = self.run.compile_time
        self.run.warm_up(self.progress)
        return self.run.compile_time - before

    def draw(self, number: int) -> Batch:
        first, self.drawn = self.task.num_warmup + self.drawn, self.drawn + number
        self.run.draw(self.progress, self.drawn)
        rows = [rows.since(first)[:number] for group in self.run.groups for rows in group.rows]
        draws = Draw.unpack(np.stack(rows))
        return Batch(draws.u, int(draws.info.n_steps.sum()))


class Program(Protocol):
    """A chain that JAX can compile."""

    def begin(self, key: Any, u: Any) -> Any:
        """The chain, warmed up."""

    def step(self, state: Any) -> tuple[Any, tuple[Any, Any]]:
        """The chain one draw on; its coordinates and its number of steps."""


class Compiled:
    """Chains of a program one after the other, as they have one core."""

    SIZES = (10, 200)  # draws of a call, for each of which there is a program

    def __init__(self, task: Task, program: Program):
        self.task, self.program = task, program
        self.keys = jr.split(jr.key(task.seed), len(task.starts))
        self.states: list[Any] = []

    def prepare(self) -> None:
        self.begin = jax.jit(self.program.begin).lower(self.keys[0], self.task.starts[0]).compile()
        like = jax.eval_shape(self.program.begin, self.keys[0], self.task.starts[0])
        step = lambda state, _: self.program.step(state)
        many = lambda size: jax.jit(lambda state: lax.scan(step, state, length=size))
        self.advance = {size: many(size).lower(like).compile() for size in self.SIZES}

    def warm_up(self) -> float:
        chains = zip(self.keys, self.task.starts, strict=True)
        self.states = [jax.block_until_ready(self.begin(key, u)) for key, u in chains]
        return 0.0

    def draw(self, number: int) -> Batch:
        size = max([size for size in self.SIZES if size <= number], default=self.SIZES[0])
        u: list[Any] = [[] for _ in self.states]
        num_steps = 0
        for _ in range(max(1, number // size)):
            for chain, state in enumerate(self.states):
                self.states[chain], (draws, steps) = self.advance[size](state)
                u[chain].append(np.asarray(draws))
                num_steps += int(np.sum(steps))
        return Batch(np.stack([np.concatenate(draws) for draws in u]), num_steps)


class NumPyro:
    """NUTS of NumPyro."""

    def __init__(self, task: Task, is_dense: bool):
        from numpyro.infer import NUTS

        self.num_warmup = task.num_warmup
        potential = lambda u: -task.model.log_density(u)
        self.kernel = NUTS(potential_fn=potential, dense_mass=is_dense, target_accept_prob=TARGET_ACCEPT)

    def begin(self, key: Any, u: Any) -> Any:
        state = self.kernel.init(key, self.num_warmup, init_params=u, model_args=(), model_kwargs={})
        return lax.fori_loop(0, self.num_warmup, lambda _, state: self.kernel.sample(state, (), {}), state)

    def step(self, state: Any) -> tuple[Any, tuple[Any, Any]]:
        state = self.kernel.sample(state, (), {})
        return state, (state.z, state.num_steps)


class BlackJAX:
    """NUTS of BlackJAX after its window adaptation, with a dense metric where that is not too large."""

    MAX_DENSE = 200  # coordinates

    def __init__(self, task: Task):
        import blackjax

        self.nuts, self.num_warmup, self.log_density = blackjax.nuts, task.num_warmup, task.model.log_density
        self.adaptation = blackjax.window_adaptation(
            blackjax.nuts,
            self.log_density,
            is_mass_matrix_diagonal=task.model.d > self.MAX_DENSE,
            target_acceptance_rate=TARGET_ACCEPT,
        )

    def begin(self, key: Any, u: Any) -> Any:
        warm_key, key = jr.split(key)
        (state, parameters), _ = self.adaptation.run(warm_key, u, num_steps=self.num_warmup)
        return key, state, {name: parameters[name] for name in ("step_size", "inverse_mass_matrix")}

    def step(self, state: Any) -> tuple[Any, tuple[Any, Any]]:
        key, state, parameters = state
        key, step_key = jr.split(key)
        state, info = self.nuts(self.log_density, **parameters).step(step_key, state)
        return (key, state, parameters), (state.position, info.num_integration_steps)


class Nutpie:
    """nutpie with its low-rank metric: its own threads, one a chain, which run on until the process ends.

    Draws are taken where it expands them: a look at its trace may wait for a chain that waits for the look to end.
    """

    def __init__(self, task: Task):
        self.task, self.taken = task, task.num_warmup
        self.chains: defaultdict[int, list[np.ndarray]] = defaultdict(list)  # what each thread has drawn
        self.steps: Counter[int] = Counter()

    def prepare(self) -> None:
        import nutpie
        from nutpie.compiled_pyfunc import from_pyfunc

        model, starts, turn = self.task.model, self.task.starts, count()
        both = jax.jit(jax.value_and_grad(model.log_density)).lower(starts[0]).compile()

        def density(u: np.ndarray) -> tuple[float, np.ndarray]:
            self.steps[get_ident()] += 1
            value, slope = both(jnp.asarray(u))
            return float(value), np.asarray(slope)

        def expand(u: np.ndarray) -> dict[str, np.ndarray]:
            self.chains[get_ident()].append(np.array(u))
            return {"u": np.asarray(u)}

        self.nutpie = nutpie
        self.compiled = from_pyfunc(
            model.d,
            lambda: density,
            lambda *_: expand,
            [np.dtype(float)],
            [(model.d,)],
            ["u"],
            make_initial_point_fn=lambda _: starts[next(turn) % len(starts)].copy(),
        )

    def warm_up(self) -> float:
        self.sampler = self.nutpie.sample(
            self.compiled,
            draws=MAX_DRAWS,
            tune=self.task.num_warmup,
            chains=len(self.task.starts),
            cores=len(self.task.starts),
            seed=self.task.seed,
            low_rank_modified_mass_matrix=True,
            target_accept=TARGET_ACCEPT,
            progress_bar=False,
            save_warmup=False,
            blocking=False,
        )
        self.advance(1)  # what was drawn before the clock starts does not count
        return 0.0

    def advance(self, number: int) -> tuple[slice, int]:
        """Wait until every chain has so many draws more; where these are, and the steps meanwhile."""
        first, before = self.taken, self.steps.total()
        while len(self.chains) < len(self.task.starts) or min(map(len, self.chains.values())) < first + number:
            time.sleep(0.01)
        self.taken = min(map(len, self.chains.values()))
        return slice(first, self.taken), self.steps.total() - before

    def draw(self, number: int) -> Batch:
        window, num_steps = self.advance(number)
        return Batch(np.stack([draws[window] for draws in self.chains.values()]), num_steps)


class Mici:
    """Constrained HMC of Mici, dynamic trajectories, on the same manifold {(u, e): e = e(u)}."""

    def __init__(self, task: Task):
        self.task = task

    def prepare(self) -> None:
        import mici

        posterior = self.task.model.condition()
        d, m = posterior.d, posterior.m
        self.d = d
        split = lambda q: (q[:d], q[d:])

        def energy(q: Any) -> Any:
            u, e = split(q)
            return posterior.prior_energy(u) + posterior.noise_energy(u, e) + posterior.lift(u).log_scale

        residual = lambda u: posterior.lift(u).e
        slopes = (jax.jacfwd if d < m else jax.jacrev)(residual)  # where it is the shorter way
        constraint = jax.jit(lambda q: q[d:] - residual(q[:d]))
        jacobian = jax.jit(lambda q: jnp.concatenate([-slopes(q[:d]), jnp.eye(m)], axis=1))
        product = jax.grad(lambda u, weights: -jnp.sum(weights * slopes(u)))
        contracted = jax.jit(lambda q, matrix: jnp.concatenate([product(q[:d], matrix[:, :d]), jnp.zeros(m)]))
        value, gradient = jax.jit(energy), jax.jit(jax.grad(energy))
        numpy = lambda function: lambda *args: np.asarray(function(*args))
        system = mici.systems.DenseConstrainedEuclideanMetricSystem(
            neg_log_dens=lambda q: float(value(q)),
            constr=numpy(constraint),
            dens_wrt_hausdorff=False,
            grad_neg_log_dens=numpy(gradient),
            jacob_constr=numpy(jacobian),
            mhp_constr=lambda q: lambda matrix: np.asarray(contracted(q, matrix)),
        )
        integrator = mici.integrators.ConstrainedLeapfrogIntegrator(system)
        self.sampler = mici.samplers.DynamicMultinomialHMC(system, integrator, np.random.default_rng(self.task.seed))
        self.adapter = mici.adapters.DualAveragingStepSizeAdapter(TARGET_ACCEPT)
        self.states: list[Any] = [np.concatenate([u, residual(u)]) for u in self.task.starts]
        for function in (value, gradient, constraint, jacobian):
            jax.block_until_ready(function(self.states[0]))
        jax.block_until_ready(contracted(self.states[0], np.ones((m, d + m))))

    def sampled(self, num_warmup: int, number: int) -> Any:
        """Go on, and remember where the chains are."""
        found = self.sampler.sample_chains(
            num_warmup,
            number,
            self.states,
            adapters=[self.adapter] if num_warmup else [],
            trace_funcs=[lambda state: {"u": state.pos[: self.d]}],
            display_progress=False,
        )
        self.states = found.final_states
        return found

    def warm_up(self) -> float:
        self.sampled(self.task.num_warmup, 1)
        return 0.0

    def draw(self, number: int) -> Batch:
        found = self.sampled(0, number)
        return Batch(np.stack(found.traces["u"]), int(sum(np.sum(n) for n in found.statistics["n_step"])))


OURS = "tightrope"
CONTENDERS: dict[str, Callable[[Task], Contender]] = {
    OURS: Tightrope,
    "numpyro-dense": lambda task: Compiled(task, NumPyro(task, is_dense=True)),
    "numpyro-diagonal": lambda task: Compiled(task, NumPyro(task, is_dense=False)),
    "nutpie": Nutpie,
    "blackjax": lambda task: Compiled(task, BlackJAX(task)),
    "mici": Mici,
}
