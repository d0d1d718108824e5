r"""How good is a block diagonal by neuron? The paper's step from one GLM to "deep networks" (Section 5.2), measured.

The paper derives the Fisher matrix of one normalized GLM by neuron blocks and calls it "easily applied to deep
networks". Here a small network of two normalized hidden layers classifies digits; its exact Fisher matrix F is compared
with the blocks of its neurons alone, B: relative errors in the Frobenius and the spectral norm, and the cosine between
the natural gradients $(F + \lambda I)^{-1} g$ and $(B + \lambda I)^{-1} g$.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from lngeom import plots
from lngeom.methods import AbstractNormalizer
from lngeom.plots.axes import common_legend, span
from lngeom.plots.style import COLOUR_OF, DASHES, MARKERS

from analysis.experiments.datasets import bundled_digits

ARMS: dict[str, AbstractNormalizer] = {
    "none": lg.normalizers.Identity(),
    "batch": lg.normalizers.BatchNorm(1e-5),
    "weight": lg.normalizers.WeightNorm(),
    "layer": lg.normalizers.LayerNorm(1e-5),
    "RMS": lg.normalizers.RMSNorm(1e-5),
}
LAYERS = [
    {"first.weights": 0, "first.bias": 0, "first.gain": 0},
    {"second.weights": 0, "second.bias": 0, "second.gain": 0},
    {"readout.weights": 0, "readout.bias": 0},
]
DAMPINGS = 10.0 ** np.arange(-6.0, 1.0)


@dataclass(frozen=True)
class Quality:
    """How far the blocks are from the matrix.

    Attributes:
        frobenius: |B − F| / |F|, Frobenius norms.
        spectral: the same in spectral norms.
        cosine: between the two natural gradients, at each of `DAMPINGS` (relative to the largest eigenvalue of F).
        loss: of the network, in nats.
    """

    frobenius: float
    spectral: float
    cosine: Float[np.ndarray, " K"]
    loss: float


def network(normalizer: AbstractNormalizer):
    """Logits of a network whose hidden layers are tanh(g ⊙ n + b), as a function of parameters and inputs."""

    def apply(params: dict, inputs: Float[Array, "N D"]) -> Float[Array, "N C"]:
        x = inputs
        for name in ("first", "second"):
            layer = params[name]
            n = normalizer(layer["weights"], x)
            x = jnp.tanh(layer["gain"][None, :] * n + layer["bias"][None, :])
        return x @ params["readout"]["weights"].T + params["readout"]["bias"][None, :]

    return apply


def initial(key: jax.Array, inputs: int, hidden: int, classes: int = 10) -> dict:
    """Weights N(0, 1/D), gains of one, biases of zero."""
    sizes = {"first": (hidden, inputs), "second": (hidden, hidden), "readout": (classes, hidden)}
    params = {}
    for k, (name, (units, width)) in zip(jax.random.split(key, 3), sizes.items(), strict=True):
        params[name] = {"weights": jax.random.normal(k, (units, width)) / width**0.5, "bias": jnp.zeros(units)}
        if name != "readout":
            params[name]["gain"] = jnp.ones(units)
    return params


def data(samples: int) -> tuple[Array, Array]:
    """Digits as means over 2 × 2 pixels, centred and scaled, with their labels."""
    digits = bundled_digits()
    images = digits.train_images[:samples].reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(samples, 16)
    return jnp.asarray((images - images.mean()) / images.std(), float), jnp.asarray(digits.train_labels[:samples])


def block_diagonal(
    F: lg.FisherOperator, layers: list[dict[str, int]], matrix: Float[Array, "P P"] | None = None
) -> Float[Array, "P P"]:
    """The Fisher blocks of all neurons in place, zero elsewhere.

    A neuron's parameters are its incoming weights with its bias and gain.

    Args:
        F: a Fisher operator.
        layers: for each layer, the paths of its leaves and the axis of each that runs over neurons.
        matrix: the Fisher matrix, where it is known.

    Returns:
        A matrix in the order of `ravel_pytree`.

    Raises:
        ValueError: if a path is unknown or occurs twice.
    """
    sizes = {name: leaf.shape for name, leaf in zip(F.leaves, jax.tree.leaves(F.in_structure()), strict=True)}
    named = [name for layer in layers for name in layer]
    if wrong := sorted({name for name in named if name not in sizes or named.count(name) > 1}):
        raise ValueError(f"each layer must name leaves once, of {list(sizes)}; got {wrong}")
    neuron = {name: np.full(shape, -1) for name, shape in sizes.items()}
    first = 0
    for layer in layers:
        for name, axis in layer.items():
            along = [1] * len(sizes[name])
            along[axis] = -1
            neuron[name][:] = first + np.arange(sizes[name][axis]).reshape(along)
        first += max(sizes[name][axis] for name, axis in layer.items())
    owner = np.concatenate([neuron[name].reshape(-1) for name in sizes])
    same = (owner[:, None] == owner[None, :]) & (owner >= 0)[:, None]
    return jnp.where(same, F.as_matrix() if matrix is None else matrix, 0)


def quality(
    F: lg.FisherOperator, gradient: Float[Array, " P"], loss: float, layers: list[dict[str, int]] = LAYERS
) -> Quality:
    """Compares the exact matrix with the blocks of the neurons of these layers."""
    exact = F.as_matrix()
    blocks = block_diagonal(F, layers, exact)
    spectra = [jnp.linalg.eigh(matrix) for matrix in (exact, blocks)]
    largest = spectra[0][0][-1]

    def natural(spectrum: tuple[Array, Array], damping: float) -> Array:
        values, vectors = spectrum
        return vectors @ ((vectors.T @ gradient) / (jnp.maximum(values, 0) + damping * largest))

    pairs = [[natural(spectrum, damping) for spectrum in spectra] for damping in DAMPINGS]
    cosine = [float(a @ b / jnp.linalg.norm(a) / jnp.linalg.norm(b)) for a, b in pairs]
    error = jnp.linalg.eigvalsh(blocks - exact)
    return Quality(
        float(jnp.linalg.norm(blocks - exact) / jnp.linalg.norm(exact)),
        float(jnp.max(jnp.abs(error)) / largest),
        np.asarray(cosine),
        loss,
    )


def measure(
    arms: tuple[str, ...] = tuple(ARMS), *, samples: int = 256, hidden: int = 12, steps: int = 200, seed: int = 0
) -> dict[str, dict[str, Quality]]:
    """Quality of the blocks in each arm, at random weights and after training with Adam.

    Args:
        arms: of `ARMS`.
        samples: images, of which the Fisher matrix is a mean and on which the network is trained.
        hidden: units of each hidden layer.
        steps: of training, with the whole batch.
        seed: of the weights.

    Returns:
        For each arm, quality at "start" and "trained"; "trained" only if there are any steps.
    """
    with jax.enable_x64(True):
        X, labels = data(samples)
        family = lg.families.Categorical()
        optimizer = optax.adam(1e-2)
        result = {}
        for arm in arms:
            normalizer = ARMS[arm]
            apply = network(normalizer)

            def loss(params: dict, apply=apply) -> Array:
                return -jnp.mean(family.log_prob(apply(params, X), labels))

            value_and_grad = jax.jit(jax.value_and_grad(loss))

            def step(carry, _, loss=loss):
                params, state = carry
                updates, state = optimizer.update(jax.grad(loss)(params), state, params)
                return (optax.apply_updates(params, updates), state), None

            def train(params: dict, step=step) -> dict:
                return jax.lax.scan(step, (params, optimizer.init(params)), None, steps)[0][0]

            params = initial(jax.random.key(seed), X.shape[1], hidden)
            stages = {"start": params} | ({"trained": jax.jit(train)(params)} if steps else {})
            result[arm] = {}
            for stage, at in stages.items():
                value, gradient = value_and_grad(at)
                coupled = normalizer.couples_samples
                F = lg.fisher(apply, at, X, family=family, batch_coupled=coupled, check=False)
                result[arm][stage] = quality(F, ravel_pytree(gradient)[0], float(value))
    return result


def title(data: Mapping[str, Any]) -> str:
    """What the blocks of all trained networks miss at least."""
    least = min(found["trained"]["frobenius"] for arm, found in data.items() if arm != "dampings")
    return f"Blocks of single neurons miss at least {100 * least:.0f} % of a trained network's Fisher matrix"


def numbers(data: Mapping[str, Any]) -> str:
    """The range of the trained networks' errors, and of the cosines with the least and the most damping."""
    trained = [found["trained"] for arm, found in data.items() if arm != "dampings"]
    errors = span((t["frobenius"] for t in trained), lambda v: f"{100 * v:.0f} %")
    least, most = (span((t["cosine"][k] for t in trained), lambda v: f"{v:.2f}") for k in (0, -1))
    return (
        f"Blocks of single neurons miss {errors} of the trained Fisher matrix; their natural gradient has cosine "
        f"{least} to the exact one with little damping, {most} with much"
    )


def draw_data(data: Mapping[str, Any], configuration: Mapping[str, Any], stem: Path | str) -> list[Path]:
    """Draws errors and cosines of all arms.

    Args:
        data: as `draw` writes them.
        configuration: its settings.
        stem: path of the figure without a suffix.

    Returns:
        The paths written.
    """
    arms = [arm for arm in data if arm != "dampings"]
    methods = {arm: arm if arm == "none" else f"{arm} norm" for arm in arms}
    with plots.figure(1, 3, height=2.7, width_ratios=[1, 1, 1.3]) as (fig, axes):
        for ax, name in zip(axes[0], ("frobenius", "spectral"), strict=False):
            for k, arm in enumerate(arms[::-1]):
                colour = COLOUR_OF[methods[arm]]
                start, trained = (data[arm][stage][name] for stage in ("start", "trained"))
                ax.plot([start, trained], [k, k], color=colour, linestyle="-", linewidth=1)
                ax.plot([start], [k], color=colour, marker="o", fillstyle="none", linestyle="none")
                ax.plot([trained], [k], color=colour, marker="o", linestyle="none")
            ax.set(xlabel="|B − F| / |F|", xlim=(0, 1), ylim=(-0.6, len(arms) - 0.4))
            ax.set_title(f"error, {name.replace('f', 'F', 1) if name == 'frobenius' else name} norm")
            ax.set_yticks(range(len(arms)), arms[::-1] if ax is axes[0, 0] else [""] * len(arms))
        right = axes[0, 2]
        for arm in arms:
            method = methods[arm]
            style = {"color": COLOUR_OF[method], "linestyle": DASHES[method], "marker": MARKERS[method]}
            right.semilogx(data["dampings"], data[arm]["trained"]["cosine"], label=method, **style)
        right.set(title="natural gradients, trained", ylabel="cosine to the exact one", ylim=(0, 1.02))
        right.set_xlabel("damping ÷ largest eigenvalue")
        common_legend(fig, [right])
        return plots.save(
            fig,
            stem,
            data,
            title=title(data),
            caption=(
                f"{numbers(data)}. "
                "The Fisher matrix F of a small network on digits against the blocks B of its neurons alone, without "
                "and with normalization of both hidden layers. Hollow: at random weights; filled: after training. "
                "Right: cosine between the natural gradients of the blocks and of the exact matrix. One network for "
                "each normalizer."
            ),
            configuration=configuration,
        )


def draw(
    result: dict[str, dict[str, Quality]], configuration: dict, stem: Path | str = "figures/neuron_blocks"
) -> list[Path]:
    """Draws a result.

    Args:
        result: what `measure` gave, with both stages.
        configuration: its settings.
        stem: path of the figure without a suffix.

    Returns:
        The paths written.
    """
    found = {arm: {stage: vars(quality) for stage, quality in stages.items()} for arm, stages in result.items()}
    return draw_data({"dampings": DAMPINGS} | found, configuration, stem)


if __name__ == "__main__":
    draw(
        measure(samples=256, hidden=12, steps=200, seed=0),
        {"samples": 256, "inputs": 16, "hidden": 12, "steps": 200, "seed": 0, "optimizer": "Adam, rate 0.01"},
    )
