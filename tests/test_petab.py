"""PEtab problems, translated, beside solutions found in other ways."""

import shutil
import sys
from pathlib import Path

import diffrax
import jax
import jax.numpy as jnp
import libsbml
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from petab.v1.calculate import calculate_single_llh
from petab.v1.priors import Prior
from scipy.integrate import solve_ivp

import tightrope as tr
from tightrope.frames import Tall
from tightrope.importers.formulas import evaluate, evaluate_all, formula_of
from tightrope.importers.odes import Conditions, Override, Simulation, Tolerances, transposable
from tightrope.importers.rosenbrock import Rosenbrock, inverted
from tightrope.importers.sbml import equations_of
from tightrope.importers.tables import prior_of
from tightrope.projection import Solver, solver_tolerance

PROBLEMS = Path(__file__).parent / "petab"
TOLERANCES = Tolerances(1e-7, 1e-9, 4096)


# --- the two problems


@pytest.fixture(scope="module")
def conversion():
    return tr.from_petab(PROBLEMS / "conversion" / "problem.yaml")


@pytest.fixture(scope="module")
def receptor():
    return tr.from_petab(PROBLEMS / "receptor" / "problem.yaml")


def arrays(values):
    return {name: jnp.asarray(value) for name, value in values.items()}


def test_predictions_of_a_conversion_are_those_in_closed_form(conversion):
    values = {"A0": 3.0, "k1": 0.7, "k2": 0.4, "scale": 0.6}
    times = np.linspace(0.5, 6.0, 12)
    total = values["k1"] + values["k2"]
    left = (values["k2"] + values["k1"] * np.exp(-total * times)) / total
    expected = values["scale"] * values["A0"] * left
    found = jax.jit(conversion.observations.forward)(arrays(values))["seen"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert conversion.truth == pytest.approx({"A0": 2.0, "k1": 0.8, "k2": 0.3, "scale": 0.5})


def test_predictions_and_noise_of_receptors_are_those_of_scipy(receptor):
    values = {"kon": 0.6, "koff": 0.3, "kint": 0.25, "scale": 2.5, "sd_bound": 0.04, "sd_total": 0.03}

    def rate(t, x):
        binding, unbinding = values["kon"] * x[0] * x[1], values["koff"] * x[2]
        return [unbinding - binding, unbinding - binding, binding - unbinding - values["kint"] * x[2]]

    bound, whole = [], []
    for ligand in (1.0, 5.0):
        solution = solve_ivp(rate, (0, 10), [2.0, ligand, 0.0], rtol=1e-10, atol=1e-12, dense_output=True).sol
        bound += [np.log10(2.5 * solution(t)[2] + 0.05) for t in (0.25, 0.5, 1, 2, 4, 8)]
        whole += [solution(t)[0] + solution(t)[2] for t in (0, 1, 3, 6, 10)]
    found = jax.jit(receptor.observations.forward)(arrays(values))
    np.testing.assert_allclose(found["bound"], bound, atol=2e-6)
    np.testing.assert_allclose(found["whole"], whole, atol=2e-6)
    scales = {block.name: block.scales(arrays(values)) for block in receptor.observations.blocks}
    np.testing.assert_allclose(scales["bound"], 0.04)
    np.testing.assert_allclose(scales["whole"], 0.03)


def test_likelihood_is_that_of_petab(receptor):
    """Up to the derivative of the observable's scale, which depends on data alone."""
    table = pd.read_csv(PROBLEMS / "receptor" / "measurements.tsv", sep="\t")
    noises = {"bound": 0.03, "whole": 0.02}
    laws = {"bound": ("log10", "normal"), "whole": ("lin", "laplace")}
    predicted = {"bound": np.full(12, 0.1), "whole": np.full(10, 1.5)}
    params = arrays(receptor.truth)
    for block in receptor.observations.blocks:
        data = table[table.observableId == block.name].measurement.to_numpy()
        scale, law = laws[block.name]
        simulated = 10 ** predicted[block.name] if scale == "log10" else predicted[block.name]
        expected = [
            calculate_single_llh(m, s, scale, law, noises[block.name]) for m, s in zip(data, simulated, strict=True)
        ]
        e = (receptor.observed[block.name] - predicted[block.name]) / block.scales(params)
        found = block.law(params).log_prob(e) - jnp.log(block.scales(params))
        jacobian = np.log(data * np.log(10.0)) if scale == "log10" else 0.0
        np.testing.assert_allclose(found - jacobian, expected, rtol=1e-9)


KINDS = {
    "uniform": "0.02;3",
    "normal": "1;0.5",
    "laplace": "1;0.5",
    "logNormal": "0.2;0.7",
    "logLaplace": "0.2;0.7",
    "parameterScaleUniform": "-1;0.5",
    "parameterScaleNormal": "0.2;0.7",
    "parameterScaleLaplace": "0.2;0.7",
    None: None,
}


@pytest.mark.parametrize("scale", ["lin", "log", "log10"])
@pytest.mark.parametrize("kind", KINDS)
def test_priors_are_those_of_petab(kind, scale):
    row = {"parameterId": "a", "parameterScale": scale, "lowerBound": 0.01, "upperBound": 5.0}
    row |= {"objectivePriorType": kind, "objectivePriorParameters": KINDS[kind]}
    prior = prior_of(row)
    for x in (0.3, 0.9, 1.4):
        expected = Prior.from_par_dict(row, type_="objective").pdf(x)
        assert np.exp(prior.law.log_prob(jnp.asarray(x))) == pytest.approx(expected, rel=1e-6)


def test_a_nominal_value_on_a_bound_is_put_inside():
    prior = prior_of({"parameterId": "a", "parameterScale": "log10", "lowerBound": 0.01, "upperBound": 5.0})
    assert 0.01 < prior.inside(0.01) < 0.0101
    assert prior.inside(0.7) == pytest.approx(0.7)


def test_default_prior_is_uniform_on_the_scale_of_the_parameter(conversion, receptor):
    map_ = conversion.parameters
    middle = map_.values(jnp.zeros(4))
    assert float(middle["k1"]) == pytest.approx(1.0)  # between 1e-3 and 1e3 on log10
    assert isinstance(receptor.parameters.priors["scale"], dist.Uniform)


@pytest.mark.slow
def test_derivatives_are_those_of_differences(receptor):
    """Once forward, once back: what the tangent space and its force ask for."""
    c = receptor.condition()
    u = receptor.parameters.coordinates(receptor.truth)

    @jax.jit
    def look(u):
        _, _, frame = Tall.linearise(c, u)
        return frame.log_volume, frame.log_volume_gradient(c, u)

    direction, h = jnp.linspace(-1.0, 1.0, u.size), 1e-3
    difference = (look(u + h * direction)[0] - look(u - h * direction)[0]) / (2 * h)
    assert float(look(u)[1] @ direction) == pytest.approx(float(difference), rel=1e-3)


@pytest.mark.parametrize("name", ["conversion", "receptor"])
def test_no_more_is_asked_of_projections_than_the_jumps_of_the_solver_allow(name, request):
    """It takes another number of steps here and there, where the residuals jump by more than rounding."""
    model = request.getfixturevalue(name)
    c, u = model.condition(), model.parameters.coordinates(model.truth)
    lift = jax.jit(lambda places: jax.lax.map(c.lift, places))
    found = lift(u + jnp.linspace(0.0, 0.5, 4001)[:, None] * jnp.linspace(1.0, 0.5, u.size))
    jumps = np.abs(np.diff(found.e, n=4, axis=0)).max()
    assert 1e-12 < jumps < solver_tolerance(Solver(), found._replace(rounding=found.rounding.min()))


def test_a_solver_that_fails_gives_nan():
    model = tr.from_petab(PROBLEMS / "conversion" / "problem.yaml", max_steps=5)
    assert np.isnan(jax.jit(model.observations.forward)(arrays(model.truth))["seen"]).all()


@pytest.mark.slow
def test_chains_move_along_the_ridge(conversion):
    """Only the product of the scale and the first amount is known, to a thousandth; each alone to a few decades."""
    method = tr.LiftedHMC(num_steps=4, force="cheap")
    trace = tr.sample(conversion, method=method, draws=200, warmup=200, chains=1, seed=1, init="truth", progress=False)
    a, scale = (trace["posterior"][name].values.ravel() for name in ("A0", "scale"))
    assert np.std(np.log(a * scale)) < 0.01
    assert np.ptp(np.log10(a)) > 1.0


# --- SBML, bit by bit


def math_of(formula):
    return libsbml.writeMathMLToString(libsbml.parseL3Formula(formula)).split("?>")[1]


def document(parts, level="level3/version1/core", numbers='level="3" version="1"'):
    """An SBML document with these lists, by their names."""
    lists = "".join(f"<{name}>{''.join(items)}</{name}>" for name, items in parts.items())
    return f'<sbml xmlns="http://www.sbml.org/sbml/{level}" {numbers}><model id="m">{lists}</model></sbml>'


def compartment(name, size=1.0, constant="true"):
    return f'<compartment id="{name}" spatialDimensions="3" size="{size}" constant="{constant}"/>'


def species(name, initial='initialConcentration="1"', only="false", boundary="false", constant="false", home="c"):
    return (
        f'<species id="{name}" compartment="{home}" {initial} hasOnlySubstanceUnits="{only}" '
        f'boundaryCondition="{boundary}" constant="{constant}"/>'
    )


def parameter(name, value="1", constant="true"):
    return f'<parameter id="{name}" {f"value={chr(34)}{value}{chr(34)}" if value else ""} constant="{constant}"/>'


def reaction(name, law, reactants=(), products=(), fast="false", local=""):
    side = lambda refs: "".join(
        f'<speciesReference species="{ref}" stoichiometry="{number}" constant="true"/>' for ref, number in refs
    )
    lists = "".join(
        f"<{kind}>{side(refs)}</{kind}>"
        for kind, refs in (("listOfReactants", reactants), ("listOfProducts", products))
        if refs
    )
    law = f"<kineticLaw>{math_of(law)}{local}</kineticLaw>"
    return f'<reaction id="{name}" reversible="false" fast="{fast}">{lists}{law}</reaction>'


def rule(kind, variable, law):
    return f'<{kind} variable="{variable}">{math_of(law)}</{kind}>'


def start(symbol, law):
    return f'<initialAssignment symbol="{symbol}">{math_of(law)}</initialAssignment>'


def begun(equations):
    """The values of everything at time zero."""
    return evaluate_all(equations.beginning, {"time": 0.0})


def rates_at(equations, **states):
    """The rates, with these states and all else as to begin with."""
    begin = begun(equations)
    known = {name: begin[name] for name in equations.initial} | {"time": 0.0} | states
    known = {name: value for name, value in known.items() if name not in equations.assigned}
    values = evaluate_all(equations.assigned, known)
    return {name: float(evaluate(rate, values)) for name, rate in equations.rates.items()}


def test_amounts_and_concentrations_keep_their_units():
    """v changes amounts: a concentration in a volume of 4 by v/4, an amount by v; stoichiometries multiply."""
    parts = {
        "listOfCompartments": [compartment("c", 4.0)],
        "listOfSpecies": [
            species("dense", 'initialAmount="8"'),
            species("amount", 'initialConcentration="3"', only="true"),
            species("outside", boundary="true"),
        ],
        "listOfReactions": [reaction("v", "6", [("dense", 2), ("outside", 1)], [("amount", 3)])],
    }
    equations = equations_of(document(parts))
    assert begun(equations)["dense"] == 2.0 and begun(equations)["amount"] == 12.0
    assert rates_at(equations) == {"dense": -3.0, "amount": 18.0}


def test_a_compartment_that_grows_dilutes():
    parts = {
        "listOfCompartments": [compartment("c", 2.0, constant="false")],
        "listOfSpecies": [species("s", 'initialConcentration="5"')],
        "listOfRules": [rule("rateRule", "c", "0.5")],
    }
    equations = equations_of(document(parts))
    size = Conditions(1, {})
    states = jax.jit(Simulation(equations, size, np.array([[2.0]]), TOLERANCES).solve)(jnp.zeros(0))
    known = dict(zip(equations.rates, states[0, 0], strict=True))
    assert float(evaluate_all(equations.assigned, known)["s"]) == pytest.approx(10 / 3)


def test_rules_assignments_and_functions():
    definition = "<functionDefinition id='hill'>" + math_of("lambda(x, k, x^2 / (k^2 + x^2))") + "</functionDefinition>"
    local = '<listOfLocalParameters><localParameter id="k" value="7"/></listOfLocalParameters>'
    parts = {
        "listOfFunctionDefinitions": [definition],
        "listOfCompartments": [compartment("c")],
        "listOfSpecies": [species("s", ""), species("p")],
        "listOfParameters": [
            parameter("k", "2"),
            parameter("twice", None, constant="false"),
            parameter("dose", None, constant="false"),
            parameter("driven", "3", constant="false"),
        ],
        "listOfInitialAssignments": [start("s", "twice + 1")],
        "listOfRules": [
            rule("assignmentRule", "dose", "twice * hill(s, k)"),
            rule("assignmentRule", "twice", "2 * k"),
            rule("rateRule", "driven", "-driven * dose"),
        ],
        "listOfReactions": [reaction("v", "k * s", [("s", 1)], [("p", 1)], local=local)],
    }
    equations = equations_of(document(parts))
    assert begun(equations)["s"] == 5.0
    dose = 4 * 25 / 29
    assert rates_at(equations) == pytest.approx({"driven": -3 * dose, "s": -35.0, "p": 35.0})


def test_level_two_has_its_own_ways():
    """No sizes, attributes by default, stoichiometries by formulas, local parameters under another name."""
    definition = "<functionDefinition id='f'>" + math_of("lambda(a, b, a * b)") + "</functionDefinition>"
    local = '<listOfParameters><parameter id="q" value="5"/></listOfParameters>'
    number = f"<stoichiometryMath>{math_of('k')}</stoichiometryMath>"
    sides = f"""<listOfReactants><speciesReference species="s"/></listOfReactants>
    <listOfProducts><speciesReference species="p">{number}</speciesReference></listOfProducts>"""
    parts = {
        "listOfFunctionDefinitions": [definition],
        "listOfCompartments": ['<compartment id="c"/>'],
        "listOfSpecies": ['<species id="s" compartment="c" initialAmount="3"/>', '<species id="p" compartment="c"/>'],
        "listOfParameters": ['<parameter id="k" value="2"/>'],
        "listOfReactions": [
            f'<reaction id="v">{sides}<kineticLaw>{math_of("f(q, s) * k")}{local}</kineticLaw></reaction>'
        ],
    }
    equations = equations_of(document(parts, "level2/version4", 'level="2" version="4"'))
    assert rates_at(equations) == {"s": -30.0, "p": 60.0}


@pytest.mark.parametrize(
    "formula, expected",
    [
        ("piecewise(1, t < 3, 2, t < 5, 7)", [1, 2, 7]),
        ("piecewise(1, t < 3 && !(t < 1), 9)", [1, 9, 9]),
        ("(t >= 4) * 3 + xor(t > 2, t > 5)", [0, 4, 3]),
        ("max(t, 3) - min(t, 3) + abs(3 - t)", [2, 2, 6]),
        ("log10(100) + ln(exp(t)) + sqrt(t^2) + t^0.5", [6 + 2**0.5, 10.0 + 2, 14 + 6**0.5]),
        ("floor(t / 4) + factorial(3) + root(3, 8)", [8, 9, 9]),
        ("cot(t) * tan(t) + sec(t) * cos(t) + arccot(t) - arctan(1 / t) + coth(t) * tanh(t)", [3, 3, 3]),
    ],
)
def test_formulas_have_the_values_of_sbml(formula, expected):
    found = evaluate(formula_of(libsbml.parseL3Formula(formula)), {"t": jnp.array([2.0, 4.0, 6.0])})
    np.testing.assert_allclose(jnp.broadcast_to(found, (3,)), expected, rtol=1e-12)


def test_a_square_has_derivatives_at_zero():
    square = formula_of(libsbml.parseL3Formula("x^2.0"))
    assert jax.grad(jax.grad(jax.grad(lambda x: evaluate(square, {"x": x}))))(0.0) == 0.0


def test_a_pulse_is_not_stepped_over_and_its_end_has_a_derivative():
    """x' = 5 from time 40 to 40.1 and 0 else; the end is a parameter, so x grows by 5 per unit of it."""
    parts = {
        "listOfParameters": [parameter("x", "0", constant="false"), parameter("end", "40.1")],
        "listOfRules": [rule("rateRule", "x", "piecewise(5, (time >= 40) && (time < end), 0)")],
    }
    equations = equations_of(document(parts))
    assert sorted(map(str, equations.switches)) == ["40", "end"]
    conditions = Conditions(1, {"end": Override(np.ones(1, bool), lambda theta: theta)})
    simulation = Simulation(equations, conditions, np.array([[100.0]]), TOLERANCES)
    end = lambda theta: simulation.solve(theta)[0, 0, 0]
    x, slope = jax.jit(lambda theta: jax.jvp(end, (theta,), (jnp.ones(1),)))(jnp.array([40.1]))
    assert float(x) == pytest.approx(0.5, rel=1e-6)
    assert float(slope) == pytest.approx(5.0, rel=1e-6)


@pytest.mark.parametrize(
    "parts, word",
    [
        ({"listOfRules": [f"<algebraicRule>{math_of('1 - 1')}</algebraicRule>"]}, "algebraic rules"),
        (
            {
                "listOfEvents": [
                    f'<event id="e" useValuesFromTriggerTime="true"><trigger initialValue="true" persistent="true">'
                    f"{math_of('1 > 0')}</trigger></event>"
                ]
            },
            "events",
        ),
        ({"listOfReactions": [reaction("v", "1", fast="true")]}, "fast"),
        ({"listOfReactions": ['<reaction id="v" reversible="false" fast="false"/>']}, "no kinetic law"),
        (
            {
                "listOfParameters": [parameter("a", None, "false"), parameter("b", None, "false")],
                "listOfRules": [rule("assignmentRule", "a", "b"), rule("assignmentRule", "b", "a")],
            },
            "need each other",
        ),
        (
            {
                "listOfParameters": [parameter("a", None, "false")],
                "listOfRules": [rule("assignmentRule", "a", "delay(time, 1)")],
            },
            "delays",
        ),
    ],
)
def test_what_is_not_an_ode_is_refused_by_name(parts, word):
    with pytest.raises(tr.InputError, match=word):
        equations_of(document(parts))


# --- the solver


def test_the_solver_has_order_four():
    """An equation with the solution cos t: halving the step divides the error by sixteen."""
    rate = lambda t, y, args: -3.0 * (y - jnp.cos(t)) - jnp.sin(t) + 0.5 * (y**2 - jnp.cos(t) ** 2)

    def error(n):
        term, h = diffrax.ODETerm(rate), 2.0 / n
        step = lambda y, i: (Rosenbrock().step(term, i * h, (i + 1) * h, y, None, None, False)[0], None)
        return abs(float(jax.lax.scan(step, jnp.ones(1), jnp.arange(n) * 1.0)[0][0]) - np.cos(2.0))

    assert error(20) / error(40) == pytest.approx(16.0, rel=0.3)


def test_the_solver_takes_large_steps_where_equations_are_stiff():
    """y' = -1e6 (y - cos t) - sin t: a step of 0.1 is a hundred thousand times the time in which y comes back."""
    rate = lambda t, y, args: -1e6 * (y - jnp.cos(t)) - jnp.sin(t)
    y = Rosenbrock().step(diffrax.ODETerm(rate), 0.0, 0.1, jnp.ones(1), None, None, False)[0]
    assert float(y[0]) == pytest.approx(np.cos(0.1), abs=1e-6)


def test_errors_of_stiff_equations_are_smooth_functions_of_parameters():
    """z goes to x slowly, and x to y at a rate of 1e5: the derivative explains differences between close parameters."""
    parts = {
        "listOfCompartments": [compartment("c")],
        "listOfSpecies": [
            species(name, f'initialConcentration="{x}"') for name, x in (("x", 0), ("y", 100), ("z", 100))
        ],
        "listOfParameters": [parameter("k")],
        "listOfReactions": [
            reaction("slow", "k * exp(-0.03 * time) * z^2", [("z", 2)], [("x", 1)]),
            reaction("fast", "1e5 * x", [("x", 1)], [("y", 1)]),
            reaction("back", "0.006 * y", [("y", 1)], [("z", 2)]),
        ],
    }
    conditions = Conditions(1, {"k": Override(np.ones(1, bool), lambda theta: theta)})
    times = np.array([[2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 100.0, 240.0]])
    simulation = Simulation(equations_of(document(parts)), conditions, times, TOLERANCES)
    look = jax.jit(lambda k: jax.jvp(simulation.solve, (k,), (jnp.ones(1),)))
    h = 2e-11
    states, slopes = map(np.stack, zip(*(look(jnp.array([2e-4 + i * h])) for i in range(20)), strict=True))
    unexplained = np.diff(states, axis=0) - h * (slopes[1:] + slopes[:-1]) / 2
    assert np.abs(unexplained).max() < 1e-10


def test_a_state_that_goes_to_infinity_ends_the_solution_early():
    """x' = x^2 from 1 is infinite at time 1."""
    parts = {
        "listOfParameters": [parameter("x", "1", constant="false")],
        "listOfRules": [rule("rateRule", "x", "x^2")],
    }
    simulation = Simulation(
        equations_of(document(parts)), Conditions(1, {}), np.array([[2.0]]), Tolerances(1e-7, 1e-9, 10**9)
    )
    assert np.isnan(jax.jit(simulation.solve)(jnp.zeros(0))).all()


def test_inverses_need_pivots():
    matrix = jnp.array([[0.0, 2.0, 1.0], [1.0, 0.0, 0.0], [3.0, 1.0, 0.0]])
    np.testing.assert_allclose(inverted(matrix) @ matrix, np.eye(3), atol=1e-14)


def test_a_loop_has_second_derivatives_in_both_directions():
    def looped(x):
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x))[1]

    hessian = jax.jacrev(jax.jacfwd(lambda x: transposable(looped)(x).sum()))(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(hessian, np.diag([12.0, 48.0]))


def test_loops_of_several_lengths_in_a_batch_are_those_of_one_after_the_other():
    """Each doubles x until it is above 10, in as many rounds as that takes, so its slope is a power of 2."""
    doubled = transposable(lambda x: jax.lax.while_loop(lambda y: (y < 10).all(), lambda y: 2 * y, x))
    batch = jnp.array([[1.0], [3.0], [11.0]])
    np.testing.assert_allclose(jax.vmap(doubled)(batch), [[16.0], [12.0], [11.0]])
    for jacobian in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(jax.vmap(jacobian(doubled))(batch)[:, 0, 0], [16.0, 4.0, 1.0])


# --- conditions


DECAY = {
    "listOfCompartments": [compartment("c")],
    "listOfSpecies": [species("s")],
    "listOfParameters": [parameter("make"), parameter("decay"), parameter("twice", None, "false")],
    "listOfRules": [rule("assignmentRule", "twice", "2 * make")],
    "listOfReactions": [
        reaction("making", "make", (), [("s", 1)]),
        reaction("decaying", "decay * s", [("s", 1)], ()),
    ],
}


def written(folder, sbml, **tables):
    """A PEtab problem in a folder, and the path of its YAML file."""
    shutil.copy(PROBLEMS / "conversion" / "problem.yaml", folder)
    (folder / "model.xml").write_text(sbml)
    for name, rows in tables.items():
        (folder / f"{name}.tsv").write_text("\n".join("\t".join(row.split()) for row in rows) + "\n")
    return folder / "problem.yaml"


def decay_problem(folder, **tables):
    tables = {
        "parameters": [
            "parameterId parameterScale lowerBound upperBound nominalValue estimate",
            "decay log10 0.01 100 0.5 1",
            "basal log10 0.01 100 2 1",
        ],
        "conditions": ["conditionId make", "rest basal", "push 6"],
        "observables": ["observableId observableFormula noiseFormula", "o s 0.1*s+0.01"],
        "measurements": [
            "observableId preequilibrationConditionId simulationConditionId measurement time",
            "o rest push 4.5 0",
            "o rest push 8 2",
            "o rest push 12 inf",
        ],
    } | tables
    return written(folder, document(DECAY), **tables)


def test_conditions_begin_at_rest_and_end_there(tmp_path):
    """s' = make - decay s: at rest at basal / decay = 4, then towards 12; noise is a tenth of what is predicted."""
    model = tr.from_petab(decay_problem(tmp_path))
    params = arrays(model.truth)
    expected = np.array([4.0, 12 - 8 * np.exp(-1.0), 12.0])
    predicted = lambda p: (model.observations.forward(p)["o"], model.observations.blocks[0].scales(p))
    (found, scale), (slopes, _) = jax.jit(lambda p: jax.jvp(predicted, (p,), (p,)))(params)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    # Scaled up together, basal and decay speed things up: 2/0.5 and 8 exp(-t decay) with the derivative in both.
    by_decay = [0.0, -12 + 12 * np.exp(-1.0) + 8 * np.exp(-1.0), -12.0]
    np.testing.assert_allclose(slopes, by_decay, atol=1e-4)
    np.testing.assert_allclose(scale, 0.1 * expected + 0.01, rtol=1e-5)


# --- refusals


@pytest.mark.parametrize(
    "tables, word",
    [
        ({"observables": ["observableId observableFormula noiseFormula", "o s*missing 0.1"]}, "missing"),
        ({"measurements": ["observableId simulationConditionId measurement time", "o nowhere 1 1"]}, "nowhere"),
        ({"measurements": ["observableId simulationConditionId measurement time", "o push 1 -1"]}, "negative"),
        ({"conditions": ["conditionId make twice", "rest basal 1", "push 6 1"]}, "computes by a rule"),
        (
            {
                "observables": [
                    "observableId observableFormula noiseFormula observableTransformation",
                    "o s 0.1 log10",
                ],
                "measurements": ["observableId simulationConditionId measurement time", "o push 0 1"],
            },
            "must be positive",
        ),
        (
            {
                "parameters": [
                    "parameterId parameterScale lowerBound upperBound nominalValue estimate",
                    "decay log10 0.01 100 0.5 0",
                    "basal log10 0.01 100 2 0",
                ]
            },
            "no parameter to estimate",
        ),
        (
            {
                "parameters": [
                    "parameterId parameterScale lowerBound upperBound nominalValue estimate",
                    "decay log10 0.01 100 0.5 1",
                    "basal log10 0.01 100 NaN 0",
                ]
            },
            '"basal" is not estimated, and has no nominalValue',
        ),
        (
            {
                "parameters": [
                    "parameterId lowerBound upperBound estimate parameterScale objectivePriorType "
                    "objectivePriorParameters",
                    "decay 0.01 100 1 lin normal 1;-1",
                    "basal 0.01 100 1 lin normal 1;1",
                ]
            },
            "scale that is not positive",
        ),
    ],
)
def test_tables_that_make_no_sense_are_refused(tmp_path, tables, word):
    with pytest.raises(tr.InputError, match=word):
        tr.from_petab(decay_problem(tmp_path, **tables))


def test_other_versions_and_missing_files_are_refused(tmp_path):
    path = decay_problem(tmp_path)
    with pytest.raises(tr.InputError, match="there is no PEtab problem"):
        tr.from_petab(tmp_path / "other.yaml")
    path.write_text(path.read_text().replace("format_version: 1", "format_version: 2.0.0"))
    with pytest.raises(tr.InputError, match=r"format_version 2\.0\.0 is not supported"):
        tr.from_petab(path)
    path.write_text("a: 1")
    with pytest.raises(tr.InputError, match="no format_version"):
        tr.from_petab(path)


def test_files_may_be_named_alone_or_in_lists_and_pictures_are_left_out(tmp_path):
    path = decay_problem(tmp_path)
    words = path.read_text().replace("parameters.tsv", "[parameters.tsv]").replace("[model.xml]", "model.xml")
    path.write_text(words + "    visualization_files: [missing.tsv]\n")
    assert tr.from_petab(path).truth == pytest.approx({"decay": 0.5, "basal": 2.0})


def test_libraries_that_are_missing_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "petab.v1", None)
    with pytest.raises(tr.InputError, match=r"pip install 'tightrope\[petab\]'"):
        tr.from_petab("problem.yaml")
