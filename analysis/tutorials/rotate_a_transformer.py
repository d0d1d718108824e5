"""From LayerNorm to a rotated RMSNorm model, with a certificate.

A small transformer of GPT-2's form has a few coordinates with large activations, which low-precision formats handle
badly. Five exact steps rotate them away. Steps that would change the function are refused, and say by how much.

Run it from a checkout: `python -m analysis.tutorials.rotate_a_transformer`.
With a folder as argument it also draws the figure.
"""

import sys
from dataclasses import replace
from pathlib import Path

import jax
import lngeom as lg
import numpy as np
from lngeom import plots
from lngeom.rewrite import steps as do
from lngeom.transformers import Attention, Block, FeedForward, Head, Linear, Norm, Table, hidden, rewrite as rw

D, HEADS, INNER, VOCABULARY, POSITIONS, LAYERS = 64, 4, 128, 50, 12, 2
STEPS = [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.ToRMSNorm(), do.Rotate(seed=0)]


def norm(name: str) -> Norm:
    """A LayerNorm with gain and bias."""
    return Norm("layer", f"{name}.gain", f"{name}.bias", eps=1e-5)


def linear(name: str) -> Linear:
    """A linear map with a bias, its matrix stored as [out, in]."""
    return Linear(f"{name}.weight", f"{name}.bias")


def describe() -> lg.Stack:
    """The stack: which array plays which role. Readers, writers and preconditions follow from this."""
    blocks = []
    for i in range(LAYERS):
        maps = (linear(f"{i}.{part}") for part in ("query", "key", "value", "output"))
        query, key, value, output = maps
        attention = Attention(query, key, value, output, HEADS, HEADS, D // HEADS, D // HEADS)
        network = FeedForward(linear(f"{i}.up"), linear(f"{i}.down"), activation="gelu")
        blocks.append(Block(attention, network, "pre", norm(f"{i}.norm1"), norm(f"{i}.norm2")))
    tables = (Table("tokens"), Table("positions", "position"))
    return lg.Stack(tables, tuple(blocks), Head(Linear("tokens")), norm("final"))


def weights(stack: lg.Stack) -> dict[str, np.ndarray]:
    """Random float32 arrays; three coordinates of the stream are twenty times as large as the others."""
    draw = np.random.default_rng(0)
    loud = np.where(np.isin(np.arange(D), [5, 23, 42]), 20.0, 1.0)
    found = {"tokens": draw.normal(size=(VOCABULARY, D)) * loud, "positions": draw.normal(size=(POSITIONS, D)) * loud}
    for site in stack.linears:
        name, part = site.part.weight, site.path.split(".")[-1]
        out, into = {"up": (INNER, D), "down": (D, INNER)}.get(part, (D, D))
        if name != "tokens":
            found[name] = draw.normal(size=(out, into)) / np.sqrt(into) * (loud[:, None] if out == D else 1.0)
            found[site.part.bias] = draw.normal(size=out) * 0.1
    for site in stack.norms:
        found[site.part.gain], found[site.part.bias] = draw.uniform(0.5, 1.5, D) / loud, draw.normal(size=D) * 0.1
    return {name: array.astype(np.float32) for name, array in found.items()}


def refusals(stack: lg.Stack, arrays: dict[str, np.ndarray]) -> dict[str, float]:
    """Steps out of order, and how far they would move the logits, relative to the largest."""
    cases = {
        "fold into the tied table": [do.FoldNorms()],
        "RMSNorm before centring": [do.Untie(), do.FoldNorms(), do.ToRMSNorm()],
        "rotate with the gains": [do.Untie(), do.CentreWriters(), do.ToRMSNorm(), do.Rotate(seed=0)],
        "balance units of a GELU": [do.Balance()],
    }
    found = {}
    for name, steps in cases.items():
        try:
            rw.apply(stack, arrays, steps)
        except rw.Refused as error:
            print(f"{name}: {error}\n")
            found[name] = error.difference
    return found


def largest(stack: lg.Stack, arrays, tokens: np.ndarray) -> np.ndarray:
    """Largest |x| of each coordinate of the stream before the final norm, over the typical size of an entry."""
    x = np.asarray(hidden(replace(stack, final=None), arrays, jax.numpy.asarray(tokens)), np.float64)
    return np.abs(x).max((0, 1)) / np.sqrt(np.mean(x**2))


def draw(exact: dict[str, float], wrong: dict[str, float], sizes: dict[str, np.ndarray], out: Path) -> None:
    """Draws what each step changes, and the coordinates before and after."""
    with plots.figure(columns=2, height=3.2) as (figure, axes):
        left, right = axes[0]
        left.plot(list(exact.values()), list(exact), "o", label="done")
        left.plot(list(wrong.values()), list(wrong), "x", label="refused")
        left.set(xlabel="relative change of the logits, float64", xscale="log")
        left.invert_yaxis()
        left.legend()
        for label, values in sizes.items():
            right.plot(np.sort(values)[::-1], label=label)
        right.set(xlabel="coordinates, largest first", ylabel="largest |x| over root mean square", yscale="log")
        right.legend()
        caption = (
            "Left: each step in turn changes the logits by rounding errors only (untying by nothing, drawn at 1e-17); "
            "steps that are refused would have changed them by a large part. Right: three coordinates of the stream "
            "stand out before the rotation, none after it."
        )
        data = {"exact": exact, "refused": wrong, "largest": {k: v.tolist() for k, v in sizes.items()}}
        plots.save(figure, out / "rotate_a_transformer", data, caption=caption)


def main(out: Path | None = None) -> dict[str, float]:
    """Runs the tutorial.

    Args:
        out: folder for the figure; none is drawn by default.

    Returns:
        Relative changes and the largest coordinates.
    """
    stack = describe()
    arrays = weights(stack)
    wrong = refusals(stack, arrays)

    # In order, every step is exact. The certificate holds the error in float64 and in float32, and a control.
    found = rw.apply(stack, arrays, STEPS)
    print(found.certificate)
    names = ("untie", "fold", "centre", "RMSNorm", "rotate")
    exact = {
        name: max(rw.apply(stack, arrays, STEPS[: i + 1]).certificate.exact.relative, 1e-17)
        for i, name in enumerate(names)
        if out or name == "rotate"
    }

    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (8, POSITIONS))
    sizes = {"original": largest(stack, arrays, tokens), "rotated": largest(found.stack, found.weights, tokens)}
    for name, size in sizes.items():
        print(f"{name}: the largest coordinate is {size.max():.1f} times the root mean square")
    if out:
        draw(exact, wrong, sizes, out)
    return {
        "passed": float(found.certificate.passed),
        "exact": exact["rotate"],
        "least refused": min(wrong.values()),
        "original": float(sizes["original"].max()),
        "rotated": float(sizes["rotated"].max()),
    }


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
