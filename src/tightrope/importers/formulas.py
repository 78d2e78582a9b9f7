"""Formulas of SBML and PEtab: from MathML to sympy, and from sympy to JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import libsbml
import sympy as sp
from sympy.logic.boolalg import Boolean

from tightrope.types import InputError

Values = Mapping[str, Any]  # of symbols, by name: numbers or arrays that broadcast
AVOGADRO = 6.02214179e23  # as SBML defines it


def symbol(name: str) -> sp.Symbol:
    return sp.Symbol(name, real=True)  # as petab's own are


TIME = symbol("time")


def is_claim(value: Any) -> bool:
    return isinstance(value, Boolean) and not isinstance(value, sp.Expr)  # a symbol is both to sympy


def number(value: Any) -> sp.Expr:
    """A claim as one or zero; other values as they are."""
    if value in (sp.true, sp.false):
        return sp.Integer(int(bool(value)))
    return sp.Piecewise((1, value), (0, True)) if is_claim(value) else value


def claim(value: Any) -> Boolean:
    """A number as the claim that it is not zero; claims as they are."""
    return value if is_claim(value) else sp.Ne(value, 0)


def chained(relation: Callable) -> Callable:
    """a < b < c, as MathML allows."""
    return lambda *args: sp.And(*(relation(number(a), number(b)) for a, b in pairwise(args)))


def piecewise(*args: Any) -> sp.Expr:
    pairs = [(number(value), claim(condition)) for value, condition in zip(args[::2], args[1::2], strict=False)]
    otherwise = number(args[-1]) if len(args) % 2 else sp.nan
    return sp.Piecewise(*pairs, (otherwise, True))


def logarithm(*args: Any) -> sp.Expr:
    base, value = args if len(args) == 2 else (sp.Integer(10), args[0])
    return sp.log(value) / sp.log(base)


def root(*args: Any) -> sp.Expr:
    degree, value = args if len(args) == 2 else (sp.Integer(2), args[0])
    return value ** (1 / degree)


NUMERIC: dict[int, Callable] = {  # functions of numbers, by the type of their node
    libsbml.AST_PLUS: sp.Add,
    libsbml.AST_TIMES: sp.Mul,
    libsbml.AST_MINUS: lambda a, b=None: -a if b is None else a - b,
    libsbml.AST_DIVIDE: lambda a, b: a / b,
    libsbml.AST_POWER: sp.Pow,
    libsbml.AST_FUNCTION_POWER: sp.Pow,
    libsbml.AST_FUNCTION_ROOT: root,
    libsbml.AST_FUNCTION_LOG: logarithm,
    libsbml.AST_FUNCTION_LN: sp.log,
    libsbml.AST_FUNCTION_EXP: sp.exp,
    libsbml.AST_FUNCTION_ABS: sp.Abs,
    libsbml.AST_FUNCTION_FLOOR: sp.floor,
    libsbml.AST_FUNCTION_CEILING: sp.ceiling,
    libsbml.AST_FUNCTION_FACTORIAL: lambda a: sp.gamma(a + 1),
    libsbml.AST_FUNCTION_MAX: sp.Max,
    libsbml.AST_FUNCTION_MIN: sp.Min,
    **{
        getattr(libsbml, f"AST_FUNCTION_{prefix}{name}{suffix}"): getattr(
            sp, f"{'a' if prefix else ''}{name}{suffix}".lower()
        )
        for prefix in ("", "ARC")
        for name in ("SIN", "COS", "TAN", "COT", "SEC", "CSC")
        for suffix in ("", "H")
    },
}
LOGICAL: dict[int, Callable] = {  # of claims
    libsbml.AST_LOGICAL_AND: sp.And,
    libsbml.AST_LOGICAL_OR: sp.Or,
    libsbml.AST_LOGICAL_XOR: sp.Xor,
    libsbml.AST_LOGICAL_NOT: sp.Not,
    libsbml.AST_LOGICAL_IMPLIES: sp.Implies,
}
MIXED: dict[int, Callable] = {  # of either, which they sort out
    libsbml.AST_FUNCTION_PIECEWISE: piecewise,
    libsbml.AST_RELATIONAL_EQ: chained(sp.Eq),
    libsbml.AST_RELATIONAL_NEQ: chained(sp.Ne),
    libsbml.AST_RELATIONAL_LT: chained(sp.Lt),
    libsbml.AST_RELATIONAL_LEQ: chained(sp.Le),
    libsbml.AST_RELATIONAL_GT: chained(sp.Gt),
    libsbml.AST_RELATIONAL_GEQ: chained(sp.Ge),
}
CONSTANTS: dict[int, Any] = {
    libsbml.AST_CONSTANT_E: sp.E,
    libsbml.AST_CONSTANT_PI: sp.pi,
    libsbml.AST_CONSTANT_TRUE: sp.true,
    libsbml.AST_CONSTANT_FALSE: sp.false,
    libsbml.AST_NAME_TIME: TIME,
    libsbml.AST_NAME_AVOGADRO: sp.Float(AVOGADRO),
}


def formula_of(node: Any) -> sp.Expr:
    """The number that a MathML formula of an SBML file stands for."""
    return number(translated(node))


def translated(node: Any) -> Any:
    """A MathML formula, a number or a claim."""
    kind = node.getType()
    if kind == libsbml.AST_NAME:
        return symbol(node.getName())
    if kind == libsbml.AST_INTEGER:
        return sp.Integer(node.getInteger())
    if node.isNumber():
        return tidied(sp.Float(node.getValue()))
    if kind in CONSTANTS:
        return CONSTANTS[kind]
    args = [translated(node.getChild(i)) for i in range(node.getNumChildren())]
    if kind in NUMERIC:
        return NUMERIC[kind](*map(number, args))
    if kind in LOGICAL:
        return LOGICAL[kind](*map(claim, args))
    if kind in MIXED:
        return MIXED[kind](*args)
    if kind == libsbml.AST_FUNCTION_DELAY:
        raise InputError("the SBML model has delays, which are not supported.")
    raise InputError(f'the SBML model uses "{node.getName() or libsbml.formulaToL3String(node)}", not supported.')


def tidied(formula: sp.Basic) -> Any:
    """The formula with whole numbers written so: a square is then a product, with derivatives everywhere."""
    whole = {x: sp.Integer(int(x)) for x in formula.atoms(sp.Float) if float(x).is_integer() and abs(x) < 2**31}
    return formula.xreplace(whole)


def product(*args: Any) -> Any:
    return reduce(lambda a, b: a * b, args)


def power(base: Any, exponent: Any) -> Any:
    return jnp.sqrt(base) if isinstance(exponent, float) and exponent == 0.5 else base**exponent


def select(*pairs: tuple[Any, Any]) -> Any:
    """The first value whose condition holds."""
    (value, condition), *rest = pairs
    if condition is True or not rest:
        return value if condition is True else jnp.where(condition, value, jnp.nan)
    return jnp.where(condition, value, select(*rest))


OPERATIONS: dict[type, Callable] = {
    sp.Add: lambda *args: reduce(lambda a, b: a + b, args),
    sp.Mul: product,
    sp.Pow: power,
    sp.exp: jnp.exp,
    sp.log: jnp.log,
    sp.Abs: jnp.abs,
    sp.sign: jnp.sign,
    sp.floor: jnp.floor,
    sp.ceiling: jnp.ceil,
    sp.gamma: jax.scipy.special.gamma,
    sp.Max: lambda *args: reduce(jnp.maximum, args),
    sp.Min: lambda *args: reduce(jnp.minimum, args),
    **{getattr(sp, name): getattr(jnp, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{getattr(sp, f"a{name}"): getattr(jnp, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    sp.Eq: jnp.equal,
    sp.Ne: jnp.not_equal,
    sp.StrictLessThan: jnp.less,
    sp.LessThan: jnp.less_equal,
    sp.StrictGreaterThan: jnp.greater,
    sp.GreaterThan: jnp.greater_equal,
    sp.And: lambda *args: reduce(jnp.logical_and, args),
    sp.Or: lambda *args: reduce(jnp.logical_or, args),
    sp.Not: jnp.logical_not,
    sp.functions.elementary.piecewise.ExprCondPair: lambda value, condition: (value, condition),
    sp.Piecewise: select,
}
REWRITTEN = (sp.cot, sp.sec, sp.csc, sp.coth, sp.sech, sp.csch)  # by sine and cosine
INVERTED = {  # acot(x) = atan(1/x), and so on
    sp.acot: sp.atan,
    sp.asec: sp.acos,
    sp.acsc: sp.asin,
    sp.acoth: sp.atanh,
    sp.asech: sp.acosh,
    sp.acsch: sp.asinh,
}


def evaluate(formula: sp.Basic, values: Values) -> Any:
    """The value of a formula, given those of its symbols."""
    if isinstance(formula, sp.Symbol):
        return values[formula.name]
    if formula in (sp.true, sp.false):
        return bool(formula)
    if not formula.free_symbols and isinstance(formula, sp.Expr):
        return int(formula) if formula.is_Integer else constant(formula)
    kind = type(formula)
    if kind in REWRITTEN:
        return evaluate(formula.rewrite(sp.exp if kind in REWRITTEN[3:] else sp.cos), values)
    if kind in INVERTED:
        return evaluate(INVERTED[kind](1 / formula.args[0]), values)
    if kind is sp.Xor:
        return evaluate(formula.to_nnf(), values)
    if kind not in OPERATIONS:
        raise InputError(f'the formula "{formula}" uses {kind.__name__}, which is not supported.')
    return OPERATIONS[kind](*(evaluate(part, values) for part in formula.args))


def constant(formula: sp.Basic) -> float:
    try:
        return float(formula)
    except TypeError:
        raise InputError(f'the formula "{formula}" is not a real number.') from None


def evaluate_all(formulas: Mapping[str, sp.Basic], values: Values) -> dict[str, Any]:
    """The values, and those of formulas that each need only values before them."""
    found = dict(values)
    for name, formula in formulas.items():
        found[name] = evaluate(formula, found)
    return found


def names_in(formulas: Iterable[sp.Basic]) -> set[str]:
    """The names of the symbols that formulas have."""
    return {free.name for formula in formulas for free in formula.free_symbols}


def in_order(formulas: Mapping[str, sp.Basic]) -> dict[str, sp.Basic]:
    """The formulas, each after those that it needs."""
    needs = {name: sorted(names_in([formula]) & formulas.keys()) for name, formula in formulas.items()}
    try:
        return {name: formulas[name] for name in TopologicalSorter(needs).static_order()}
    except CycleError as error:
        circle = ", ".join(sorted(set(error.args[1])))
        raise InputError(f"the formulas of {circle} need each other: such loops are not supported.") from None
