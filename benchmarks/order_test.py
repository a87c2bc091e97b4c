"""The order of `hj.Project` in eps, for states and for gradients.

    python benchmarks/order_test.py [figure.png]

Redraws Figure 4.1 of Anderson and Revzen: the affine system of Table 4.1, from
(-0.4, -0.15, 0.3) to t = 0.5, the root mean square error over the trajectory against
the flow by matrix exponentials. Beside it, that of the Jacobian of the final state,
which the paper does not have. float64, Tsit5, rtol = atol = 1e-13. Prints the slopes,
and takes a minute.
"""

import argparse

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from hybridjax.models import affine_octants, affine_octants_flow


matplotlib.use("Agg")
import matplotlib.pyplot as plt


jax.config.update("jax_enable_x64", True)

START = jnp.array([-0.4, -0.15, 0.3])
END = 0.5
TIMES = jnp.linspace(0.0, END, 201)
# Where the order is measured: below, rounding and the solver's tolerance take over;
# above, the neighbourhoods of different surfaces overlap.
FIT = (1e-5, 1e-2)


def projected(x0, eps):
    sol = hj.simulate(
        affine_octants(),
        0.0,
        END,
        x0,
        stepsize_controller=diffrax.PIDController(rtol=1e-13, atol=1e-13),
        event_method=hj.Project(eps),
        saveat=diffrax.SaveAt(ts=TIMES),
        max_steps=512,
        max_events=3,
    )
    return sol.x1, sol.xs


def rms(difference):
    return jnp.sqrt(jnp.mean(difference**2))


@jax.jit
@jax.vmap
def errors(eps):
    states = jax.vmap(lambda t: affine_octants_flow(t, START)[0])(TIMES)
    final = lambda x0: affine_octants_flow(jnp.asarray(END), x0)[0]
    jacobian, xs = jax.jacrev(lambda x0: projected(x0, eps), has_aux=True)(START)
    return rms(xs - states), rms(jacobian - jax.jacfwd(final)(START))


def main() -> None:
    parser = argparse.ArgumentParser(description="The order of `hj.Project`.")
    parser.add_argument("figure", nargs="?", default="order_test.png")
    options = parser.parse_args()

    eps = np.geomspace(1e-8, 1.0, 49)
    fit = (eps >= FIT[0]) & (eps <= FIT[1])
    figure, axes = plt.subplots(
        1, 2, figsize=(8, 3.4), sharex=True, layout="constrained"
    )
    titles = ("state, over the trajectory", "Jacobian of the final state")
    for axis, title, error in zip(axes, titles, errors(eps), strict=True):
        slope, level = np.polyfit(np.log(eps[fit]), np.log(error[fit]), 1)
        print(f"{title}: order {slope:.2f}")
        for k in range(0, eps.size, 8):
            print(f"    eps {eps[k]:.0e}    error {error[k]:.1e}")
        axis.axvspan(1 / FIT[1], 1 / FIT[0], color="0.92", label="fitted")
        axis.loglog(1 / eps, error, "o", ms=3, color="tab:red", label="measured")
        line = np.exp(level) * eps**slope
        axis.loglog(1 / eps, line, "--", color="tab:blue", label=f"order {slope:.2f}")
        axis.set(title=title, xlabel="1 / eps", ylim=(0.1 * np.min(error), 10))
        axis.legend(frameon=False)
    axes[0].set_ylabel("root mean square error")
    figure.savefig(options.figure, dpi=150)
    print(f"Saved {options.figure}.")


if __name__ == "__main__":
    main()
