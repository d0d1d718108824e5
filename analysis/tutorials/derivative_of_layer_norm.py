"""The derivative of layer norm, and five ways to get it wrong.

Run it from a checkout: `python -m analysis.tutorials.derivative_of_layer_norm`.
With a folder as argument it also draws the figure.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from lngeom import checks, plots
from lngeom.checks.derivatives import Answer, Derivatives

EPS = 1e-5


def parts(a: Any) -> tuple[Any, Any]:
    """Normalized inputs n = (a − μ)/σ and σ = √(variance + ε), for inputs [… H]."""
    centred = a - jnp.mean(a, -1, keepdims=True)
    scale = jnp.sqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + EPS)
    return centred / scale, scale


def mean(g: Any) -> Any:
    """The mean over the units of a row."""
    return jnp.mean(g, -1, keepdims=True)


# With c the cotangent of the outputs g ⊙ n, the gradient in the inputs is (c ⊙ g − m(c ⊙ g) − n m(c ⊙ g ⊙ n)) / σ,
# where m is the mean over units, and that in the gain g is c ⊙ n. The terms with m say that μ and σ depend on inputs.


def right(a: Any, gain: Any, c: Any) -> tuple[Any, Any]:
    """The gradients in the inputs and in the gain."""
    n, scale = parts(a)
    g = c * gain
    return (g - mean(g) - n * mean(g * n)) / scale, c * n


def constant_statistics(a: Any, gain: Any, c: Any) -> tuple[Any, Any]:
    """First way: μ and σ are taken for constants."""
    return c * gain / parts(a)[1], right(a, gain, c)[1]


def without_the_mean(a: Any, gain: Any, c: Any) -> tuple[Any, Any]:
    """Second way: the term of μ is forgotten, as in a kernel that was written for RMS norm."""
    n, scale = parts(a)
    g = c * gain
    return (g - n * mean(g * n)) / scale, right(a, gain, c)[1]


def without_the_gain(a: Any, gain: Any, c: Any) -> tuple[Any, Any]:
    """Third way: the cotangent is not multiplied by the gain. At a gain of 1, as layers start, no one sees it."""
    return right(a, jnp.ones_like(gain), c)[0], right(a, gain, c)[1]


def inputs_for_normalized_ones(a: Any, gain: Any, c: Any) -> tuple[Any, Any]:
    """Fourth way: the gradient in the gain is made of the inputs, and not of the normalized inputs."""
    return right(a, gain, c)[0], c * a


def kept_from_the_forward_pass(a: Any, gain: Any, c: Any) -> tuple[Any, Any]:
    """Fifth way: right once, but what it uses is cut off from the inputs, so that second derivatives are wrong."""
    return right(jax.lax.stop_gradient(a), jax.lax.stop_gradient(gain), c)


WAYS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "right": right,
    "statistics as constants": constant_statistics,
    "mean forgotten": without_the_mean,
    "gain forgotten": without_the_gain,
    "inputs for n": inputs_for_normalized_ones,
    "cut off": kept_from_the_forward_pass,
}


class Norm(eqx.Module):
    """Layer norm of a sample [H] with a backward pass by hand; its outputs are right for each of them."""

    gain: Any
    backward: Callable[..., tuple[Any, Any]] = eqx.field(static=True)

    def __call__(self, a: Any) -> Any:
        """The outputs."""

        @jax.custom_vjp
        def norm(a, gain):
            return parts(a)[0] * gain

        norm.defvjp(lambda a, gain: (norm(a, gain), (a, gain)), lambda kept, c: self.backward(*kept, c))
        return norm(a, self.gain)


def draw(reports: dict[str, Derivatives], out: Path) -> None:
    """Draws the error of first and second derivatives, for each way."""
    with plots.figure(height=3.2) as (figure, axes):
        axis = axes[0, 0]
        for route, marker, label in (("vjp", "o", "first derivative"), ("vjp∘vjp", "x", "second derivative")):
            errors = [max(report[route].deviation, 1e-16) for report in reports.values()]
            axis.plot(errors, list(reports), marker, label=label)
        axis.axvline(reports["right"]["vjp"].tolerance, color=plots.style.GUIDE, linewidth=0.8)
        axis.set(
            xscale="log", xlabel="largest relative error of a derivative; beyond the line, rounding does not explain it"
        )
        axis.invert_yaxis()
        axis.legend(loc="center", bbox_to_anchor=(0.6, 0.5))
        caption = (
            "Errors of first and second derivatives (reverse mode) of six backward passes of layer norm, beside "
            "differences of its outputs. The outputs are right in all six. One has right first derivatives and wrong "
            "second ones."
        )
        data = {name: {r.route: r.deviation for r in report.results} for name, report in reports.items()}
        plots.save(figure, out / "derivative_of_layer_norm", data, caption=caption)


def main(out: Path | None = None) -> dict[str, str]:
    """Runs the tutorial.

    Args:
        out: folder for the figure; none is drawn by default.

    Returns:
        The diagnosis of each way; "" for the right one.
    """
    # `check_derivatives` knows no formula of layer norm. It differentiates the layer in every mode that the framework
    # has, and compares with differences of the layer's own outputs in float64.
    gain = jnp.ones(6)  # the check moves parameters, so that faults show
    reports = {name: checks.check_derivatives(Norm(gain, backward)) for name, backward in WAYS.items()}
    print(reports["right"], "\n")
    for name, report in reports.items():
        print(f"{name}:", *(report.diagnosis or ["nothing is wrong"]), sep="\n  ")

    # The fifth way passes every test of gradients. A Hessian, a gradient penalty or Gauss-Newton products need more.
    assert reports["cut off"]["vjp"].answer is Answer.RIGHT

    if out:
        draw(reports, out)

    # From a shell: `lngeom check mypackage.layers:MyNorm --derivatives`, which exits with 1 where one is wrong.
    return {name: " ".join(report.diagnosis) for name, report in reports.items()}


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
