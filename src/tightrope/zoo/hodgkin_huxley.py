"""A cortical neuron under a current stimulus: five spikes."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax

from tightrope.models import Model
from tightrope.zoo.gates import phi, relax, settle
from tightrope.zoo.simulated import simulate

STEP = 0.1  # ms
NUM_STEPS = 1100
FIRST_ON = 100  # the step that starts at 10 ms, from which on the stimulus is on and the voltage is seen
STIMULUS = 3.248
REST = -75.0  # mV


def rates(v, v_t, k_tau):
    """How fast the gates m, h, n, p open and close at the voltage v."""
    w = v - v_t
    speed = (3.3 * jnp.exp((v + 35) / 20) + jnp.exp(-(v + 35) / 20)) / k_tau
    share = jax.nn.sigmoid((v + 35) / 10)
    opening = (
        1.28 * phi(-(w - 13) / 4),
        0.128 * jnp.exp(-(w - 17) / 18),
        0.16 * phi(-(w - 15) / 5),
        share * speed,
    )
    closing = (
        1.4 * phi((w - 40) / 5),
        4 * jax.nn.sigmoid((w - 40) / 5),
        0.5 * jnp.exp(-(w - 10) / 40),
        (1 - share) * speed,
    )
    return jnp.stack(opening), jnp.stack(closing)


def hodgkin_huxley(sigma: float = 0.1) -> Model:
    """A neuron that fires five times, its voltage seen.

    `V' = I(t) - gNa m^3 h (V - 53) - gK n^4 (V + 107) - gM p (V + 107) - gL (V + 75)`, in mV and ms,
    `I = 3.248` for 10 <= t <= 110 and 0 before, and each gate x = m, h, n follows `x' = a_x (1 - x) - b_x x`.
    The model is that of Pospischil et al. (2008). With `w = V - V_T` and `phi(x) = x / (exp(x) - 1)`,

        a_m = 1.28 phi(-(w - 13) / 4)           b_m = 1.4 phi((w - 40) / 5)
        a_h = 0.128 exp(-(w - 17) / 18)         b_h = 4 / (1 + exp(-(w - 40) / 5))
        a_n = 0.16 phi(-(w - 15) / 5)           b_n = 0.5 exp(-(w - 10) / 40)

    and `p' = (p_inf - p) / tau_p`, `p_inf = 1 / (1 + exp(-(V + 35) / 10))`,
    `tau_p = k_tau / (3.3 exp((V + 35) / 20) + exp(-(V + 35) / 20))`. At first V = -75 and all gates have settled.
    `y_i = V(10 + 0.1 i) + sigma eta_i`, i = 1, ..., 1000.

    The solver is a Lie-Trotter splitting with a step of 0.1 ms: the exact solution for V with the gates held, then for
    the gates with V held. The stimulus is on in steps 100 to 1099, counted from 0: summed up time steps reach 10
    ms one step late.

    Priors: gNa ~ LogNormal(4, 1), gK ~ LogNormal(2, 1), gM, gL ~ LogNormal(-3, 1), V_T ~ Normal(-60, 10),
    k_tau ~ LogNormal(8, 1), sigma ~ LogNormal(0, 1).

    Data: simulated at gNa = 50, gK = 5, gM = 0.07, gL = 0.1, V_T = -60, k_tau = 1000 and the sigma given, by the same
    solver, from a fixed seed; the noise eta is one vector for all sigma.

    The paper prints a_m and a_n without their minus sign, and b_m with the wrong one in its exponent.
    """
    current = np.where(np.arange(NUM_STEPS) >= FIRST_ON, STIMULUS, 0.0)

    def forward(params):
        g_na, g_k, g_m, g_l = params["gNa"], params["gK"], params["gM"], params["gL"]
        v_t, k_tau = params["V_T"], params["k_tau"]

        def advance(state, stimulus):
            v, gates = state
            m, h, n, p = gates
            sodium, potassium = g_na * m**3 * h, g_k * n**4 + g_m * p
            conductance = sodium + potassium + g_l
            target = (stimulus + 53 * sodium - 107 * potassium - 75 * g_l) / conductance
            v = target + (v - target) * jnp.exp(-STEP * conductance)
            return (v, relax(gates, STEP, *rates(v, v_t, k_tau))), v

        start = (jnp.asarray(REST), settle(*rates(REST, v_t, k_tau)))
        return lax.scan(advance, start, jnp.asarray(current))[1][FIRST_ON:]

    truth = {"gNa": 50.0, "gK": 5.0, "gM": 0.07, "gL": 0.1, "V_T": -60.0, "k_tau": 1000.0, "sigma": sigma}
    return Model(
        priors={
            "gNa": dist.LogNormal(4.0, 1.0),
            "gK": dist.LogNormal(2.0, 1.0),
            "gM": dist.LogNormal(-3.0, 1.0),
            "gL": dist.LogNormal(-3.0, 1.0),
            "V_T": dist.Normal(-60.0, 10.0),
            "k_tau": dist.LogNormal(8.0, 1.0),
            "sigma": dist.LogNormal(0.0, 1.0),
        },
        forward=forward,
        noise_scale="sigma",
        observed=simulate(forward, truth),
        coords={"time": np.arange(FIRST_ON + 1, NUM_STEPS + 1) / 10},
        dims={"y": ["time"]},
        truth=truth,
    )
