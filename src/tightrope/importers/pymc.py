"""A PyMC model as a tightrope one: free variables are its priors, observed variables its data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pymc
import pytensor
import pytensor.tensor as pt
from numpyro import validation_enabled
from pymc.distributions.transforms import LogExpM1, LogTransform, _default_transform
from pytensor.compile.mode import JAX
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import clone_get_equiv
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import graph_inputs
from pytensor.link.jax.dispatch import jax_funcify
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from tightrope.importers.sites import SitesModel, check_observed
from tightrope.models import Model
from tightrope.observations import Params
from tightrope.parameters import Prior
from tightrope.types import Array, InputError

Variable = Any  # a tensor of pytensor
FAR = float(np.finfo(float).max)
Kind = Callable[..., dist.Distribution]  # from the parameters of PyMC's random variable


def truncated_normal(loc: Array, scale: Array, low: Array, high: Array) -> dist.Distribution:
    """A normal between bounds that may be infinite, which NumPyro's may not; so far out it is no matter."""
    return dist.TruncatedNormal(loc, scale, low=jnp.maximum(low, -FAR), high=jnp.minimum(high, FAR))


# By the class of the random variable. Those of noise that can be solved for:
LAWS: dict[str, Kind] = {
    "NormalRV": dist.Normal,
    "LogNormalRV": dist.LogNormal,
    "StudentTRV": dist.StudentT,
    "LaplaceRV": dist.Laplace,
    "LogisticRV": dist.Logistic,
    "CauchyRV": dist.Cauchy,
    "GumbelRV": dist.Gumbel,
    "MvNormalRV": lambda mean, factor: dist.MultivariateNormal(mean, scale_tril=factor),
}
PRIORS: dict[str, Kind] = LAWS | {
    "UniformRV": dist.Uniform,
    "HalfNormalRV": lambda loc, scale: dist.HalfNormal(scale),
    "HalfCauchyRV": dist.HalfCauchy,
    "HalfStudentTRV": lambda df, scale: dist.FoldedDistribution(dist.StudentT(df, 0.0, scale)),
    "TruncatedNormalRV": truncated_normal,
    "ExponentialRV": lambda scale: dist.Exponential(1 / scale),
    "GammaRV": lambda shape, scale: dist.Gamma(shape, 1 / scale),
    "InvGammaRV": dist.InverseGamma,
    "BetaRV": dist.Beta,
    "WeibullBetaRV": lambda shape, scale: dist.Weibull(scale, shape),
    "ParetoRV": lambda shape, low: dist.Pareto(low, shape),
    "KumaraswamyRV": dist.Kumaraswamy,
    "DirichletRV": dist.Dirichlet,
}
IMPROPER = ("FlatRV", "HalfFlatRV")
HOMES = ("pytensor.tensor.random.basic", "pymc.distributions.continuous")  # where these classes are


@dataclass(frozen=True, eq=False)
class Function:
    """Tensors as a JAX function of the free variables."""

    names: list[str]  # of the variables that they depend on
    compute: Callable[..., Sequence[Any]]

    def __call__(self, params: Params) -> list[Any]:
        return list(self.compute(*(params[name] for name in self.names)))


@dataclass(frozen=True, eq=False)
class Law:
    """The distribution of a variable, given others."""

    kind: Kind
    parameters: Function
    size: tuple[int, ...] | None  # of the batch, where it is not that of the parameters

    def __call__(self, params: Params) -> dist.Distribution:
        law = self.kind(*(jnp.asarray(parameter, float) for parameter in self.parameters(params)))
        return law if self.size in (None, law.batch_shape) else law.expand(self.size)


class Graph:
    """The tensors of a PyMC model, where free variables are arguments and observed ones have their data."""

    def __init__(self, model: pymc.Model):
        self.inputs = {rv.name: rv.type(name=rv.name) for rv in model.free_RVs}
        self.replaced: dict[Variable, Variable] = {rv: self.inputs[rv.name] for rv in model.free_RVs}
        self.data: dict[str, np.ndarray] = {}
        for rv in model.observed_RVs:
            [value] = self.function(rv.name, [model.rvs_to_values[rv]])({})
            self.data[rv.name] = np.asarray(value)
            self.replaced[rv] = pt.constant(self.data[rv.name])

    def function(self, name: str, tensors: Sequence[Variable]) -> Function:
        """Tensors that belong to a variable as a function in JAX."""
        # Shared variables, as of pm.Data, have the values that they have now.
        shared = [x for x in graph_inputs(tensors, blockers=list(self.replaced)) if isinstance(x, SharedVariable)]
        fixed = {x: pt.constant(x.get_value()) for x in shared if not isinstance(x.type, RandomType)}
        replaced = self.replaced | fixed
        copies = clone_get_equiv(list(replaced), tensors, copy_inputs=False, copy_orphans=False, memo=replaced)
        tensors = [copies[x] for x in tensors]
        found = set(graph_inputs(tensors))
        if any(isinstance(x.type, RandomType) for x in found):
            raise InputError(
                f'variable "{name}" depends on numbers that are drawn anew each time: give what is drawn a name and a '
                "prior, and the data whole, without pm.Minibatch."
            )
        names = [key for key, value in self.inputs.items() if value in found]
        graph = FunctionGraph([self.inputs[key] for key in names], tensors, clone=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of checks that JAX leaves out
                JAX.optimizer.rewrite(graph)
                return Function(names, jax_funcify(graph))
        except NotImplementedError as error:
            first_line = f"{error}\n".splitlines()[0]
            raise InputError(f'variable "{name}" needs what PyTensor cannot write in JAX ({first_line}).') from None

    def law(self, rv: Variable, kinds: Mapping[str, Kind], params: Params) -> Law:
        """The distribution of a variable, if it is among these kinds; its shape is found with these parameters."""
        op, node = rv.owner.op, rv.owner
        kind, tensors = kinds[type(op).__name__], list(op.dist_params(node))
        if type(op).__name__ == "MvNormalRV":
            tensors[1] = pt.linalg.cholesky(tensors[1])
        size, shape = op.size_param(node), None
        if isinstance(size.type, TensorType):
            [sizes] = self.function(rv.name, [size])(params)
            shape = tuple(int(length) for length in np.asarray(sizes))
        return Law(kind, self.function(rv.name, tensors), shape)


def model_of(model: pymc.Model) -> Model:
    """A model whose priors, predictions and noise are the variables of PyMC's."""
    if not isinstance(model, pymc.Model):
        raise InputError(f"model must be a pymc.Model, not {type(model).__name__}.")
    jax.config.update("jax_enable_x64", True)
    check(model)
    graph = Graph(model)
    priors: dict[str, Prior] = {}
    some: dict[str, Any] = {}  # values, for a look at shapes
    for rv in model.free_RVs:
        with named(rv.name):
            law = graph.law(rv, PRIORS, some)
            if law.parameters.names:
                priors[rv.name] = law
            else:
                with validation_enabled():
                    law({})
                priors[rv.name] = law({})
            some[rv.name] = jnp.ones(jax.eval_shape(law, some).shape())
    laws: dict[str, Law] = {}
    sites: dict[str, Any] = {}
    for rv in model.observed_RVs:
        with named(rv.name):
            laws[rv.name] = graph.law(rv, LAWS, some)
            fn, value = jax.eval_shape(laws[rv.name], some), graph.data[rv.name]
            if bad := int((~np.isfinite(value)).sum()):
                raise InputError(f"{bad} of its data are NaN or infinite: NaN in observed= itself would be imputed.")
            check_observed(fn, value)
            sites[rv.name] = {"fn": fn, "value": value}
    functions: dict[str, Function] = {}
    for x in model.deterministics:
        with named(x.name):
            functions[x.name] = graph.function(x.name, [x])
            jax.eval_shape(functions[x.name], some)
    shown = (*model.free_RVs, *model.deterministics, *model.observed_RVs)
    dims = {x.name: found for x in shown if (found := dims_of(model, x))}
    used = {dim for found in dims.values() for dim in found}
    with warnings.catch_warnings():
        # Numbers such as 0.5, which lose nothing by it, are kept in single precision by PyTensor.
        warnings.filterwarnings("ignore", message=".*contains float32 numbers")
        return SitesModel(
            lambda params: {name: {"fn": law(params)} for name, law in laws.items()},
            sites,
            masks={name: np.ones(values.shape, bool) for name, values in graph.data.items()},
            priors=priors,
            derived={
                name: lambda params, function=function: function(params)[0] for name, function in functions.items()
            },
            coords={dim: list(values) for dim, values in model.coords.items() if values is not None and dim in used},
            dims=dims,
            name=model.name or "model",
        )


@contextmanager
def named(name: str) -> Iterator[None]:
    """Puts the name of a variable before what is said about it."""
    start = f'variable "{name}"'
    try:
        yield
    except (ValueError, TypeError, LookupError) as error:  # of JAX too
        text = f"{error}\n".splitlines()[0]
        raise InputError(text if text.startswith(start) else f"{start}: {text}") from None


def check(model: pymc.Model) -> None:
    """Refuse what has no place in a lifted model."""
    if pytensor.config.floatX != "float64":
        raise InputError(
            "pytensor.config.floatX is not float64, and precise data need that: set it before PyMC is used."
        )
    for potential in model.potentials:
        raise InputError(f'"{potential.name}" is a pm.Potential, which is not noise: write it as an observed variable.')
    if not model.free_RVs:
        raise InputError("model has no free variable: there is nothing to infer.")
    if not model.observed_RVs:
        raise InputError("model has no observed variable: pass the data as observed=.")
    for rv in model.basic_RVs:
        if not isinstance(rv.type, TensorType):
            raise InputError(f'variable "{rv.name}" is one of pymc.dims: use the distributions of pymc itself.')
    for rv in model.observed_RVs:
        check_seen(rv)
    for rv in model.free_RVs:
        check_free(rv, model.rvs_to_transforms[rv])


def check_free(rv: Variable, transform: Any) -> None:
    """Refuse a free variable whose prior is not one of those that are known."""
    name, kind = rv.name, kind_of(rv)
    if rv.dtype.startswith(("int", "uint", "bool")):
        raise InputError(f'variable "{name}" is discrete ({kind}): sum it out of the model or use a continuous one.')
    if class_of(rv) in IMPROPER:
        raise InputError(
            f'variable "{name}": the prior {kind} is improper; choose one of finite mass, as a wide Normal.'
        )
    if class_of(rv) not in PRIORS:
        raise InputError(
            f'variable "{name}": the prior {kind} is not translated; make the variable, as a pm.Deterministic, of some '
            f"that have one of {', '.join(map(plain, PRIORS))}."
        )
    if not keeps_support(transform, _default_transform(rv.owner.op, rv)):
        raise InputError(f'variable "{name}": the transform {transform.name} changes its prior; leave out transform=.')


def keeps_support(transform: Any, usual: Any) -> bool:
    """Whether a variable has the same values as with its usual transform; how it gets to them is no matter here."""
    if transform is None or all(isinstance(each, (LogTransform, LogExpM1)) for each in (transform, usual)):
        return True
    bounds = [getattr(getattr(each, "args_fn", None), "__code__", None) for each in (transform, usual)]
    return type(transform) is type(usual) and bounds[0] is bounds[1]


def check_seen(rv: Variable) -> None:
    """Refuse an observed variable that is not noise with a location and a scale."""
    name, kind = rv.name, kind_of(rv)
    if kind == "MinibatchRandomVariable":
        raise InputError(f'variable "{name}" is a minibatch: leave out total_size, the data must all be seen.')
    if kind == "PartialObservedRV":
        raise InputError(f'variable "{name}": entries that are missing from correlated data cannot be imputed.')
    if class_of(rv) not in LAWS:
        names = ", ".join(map(plain, LAWS))
        raise InputError(
            f'variable "{name}": observations that are {kind} cannot be lifted: they must be one of {names}.'
        )


def class_of(rv: Variable) -> str:
    """The class of a random variable, if it is one of PyMC's own."""
    kind = type(rv.owner.op)
    return kind.__name__ if kind.__module__ in HOMES else ""


def kind_of(rv: Variable) -> str:
    """What a variable's distribution is called."""
    kind = type(rv.owner.op)
    name = getattr(kind, "_print_name", ("Unknown",))[0]
    return kind.__name__ if name == "Unknown" else name


def plain(kind: str) -> str:
    return kind.removesuffix("RV").replace("WeibullBeta", "Weibull").replace("InvGamma", "InverseGamma")


def dims_of(model: pymc.Model, x: Variable) -> list[str] | None:
    """The dimensions of a variable that has names for them."""
    found = model.named_vars_to_dims.get(x.name)
    return [dim or f"{x.name}_dim_{axis}" for axis, dim in enumerate(found)] if found else None
