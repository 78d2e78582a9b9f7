"""The squid's giant axon under voltage clamp: the conductances that Hodgkin and Huxley measured."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from tightrope.models import Model
from tightrope.zoo.gates import phi, relax, settle
from tightrope.zoo.tables import read_table


def clamped(rates, time, voltage):
    """The share of open gates at each time after the voltage steps from 0, where they had settled."""
    return relax(settle(*rates(0.0)), time, *rates(voltage))


def squid(table, conductance, locations) -> Model:
    """The posterior of either conductance, `locations` those of the log-normal priors."""
    time, depolarisation, observed = read_table(table).T
    record = [f"{d:g} mV, {t:.2f} ms" for d, t in zip(depolarisation, time, strict=True)]
    return Model(
        priors={name: dist.LogNormal(location, 1.0) for name, location in locations.items()},
        forward=lambda params: conductance(params, time, -depolarisation),
        noise_scale="sigma",
        observed=observed,
        coords={"record": record},
        dims={"y": ["record"]},
    )


def squid_potassium() -> Model:
    """Potassium conductance of the squid axon, voltage clamp.

    `y = gK n^4 + sigma eta`. The gate n has settled at V = 0 when the voltage steps to V = -depolarisation; then
    `n' = a_n (1 - n) - b_n n`, solved exactly, with

        a_n = k1 (V + k2) / (exp((V + k2) / k3) - 1)        b_n = k4 exp(V / k5)

    a_n is smooth where V + k2 = 0.

    Priors: k1, k4 ~ LogNormal(-3, 1), k2, k3, k5, gK ~ LogNormal(2, 1), sigma ~ LogNormal(0, 1).

    Data: 136 conductances in m.mho/cm^2 at 11 depolarisations (Hodgkin and Huxley 1952, digitised by Daly et al. 2015).
    The equations are those of the paper.
    """

    def conductance(params, time, voltage):
        k1, k2, k3, k4, k5 = (params[f"k{i}"] for i in range(1, 6))
        n = clamped(lambda v: (k1 * k3 * phi((v + k2) / k3), k4 * jnp.exp(v / k5)), time, voltage)
        return params["gK"] * n**4

    locations = {"k1": -3.0, "k2": 2.0, "k3": 2.0, "k4": -3.0, "k5": 2.0, "gK": 2.0, "sigma": 0.0}
    return squid("squid_potassium.csv", conductance, locations)


def squid_sodium() -> Model:
    """Sodium conductance of the squid axon, voltage clamp.

    `y = gNa m^3 h + sigma eta`. The gates m and h have settled at V = 0 when the voltage steps to V = -depolarisation;
    then `x' = a_x (1 - x) - b_x x`, solved exactly, with

        a_m = k1 (V + k2) / (exp((V + k2) / k3) - 1)        b_m = k4 exp(V / k5)
        a_h = k6 exp(V / k7)                                b_h = 1 / (exp((V + k8) / k9) + 1)

    a_m is smooth where V + k2 = 0.

    Priors: k1, k6 ~ LogNormal(-3, 1), k4 ~ LogNormal(0, 1), k9 ~ LogNormal(1, 1),
    k2, k3, k5, k7, k8, gNa ~ LogNormal(2, 1), sigma ~ LogNormal(0, 1).

    Data: 142 conductances in m.mho/cm^2 at 12 depolarisations (Hodgkin and Huxley 1952, digitised by Daly et al. 2015).

    The paper prints b_h with -1 in place of +1.
    """

    def conductance(params, time, voltage):
        k1, k2, k3, k4, k5, k6, k7, k8, k9 = (params[f"k{i}"] for i in range(1, 10))
        m = clamped(lambda v: (k1 * k3 * phi((v + k2) / k3), k4 * jnp.exp(v / k5)), time, voltage)
        h = clamped(lambda v: (k6 * jnp.exp(v / k7), jax.nn.sigmoid(-(v + k8) / k9)), time, voltage)
        return params["gNa"] * m**3 * h

    locations = {"k1": -3.0, "k2": 2.0, "k3": 2.0, "k4": 0.0, "k5": 2.0, "k6": -3.0, "k7": 2.0, "k8": 2.0, "k9": 1.0}
    return squid("squid_sodium.csv", conductance, locations | {"gNa": 2.0, "sigma": 0.0})
