"""Exactly the same model: is it, after folding, rotating, casting, and which step broke it if not?

A small model of Llama's form is folded, rotated and stored in bfloat16. `certify` says whether that is the same
function. Then come six mistakes that people made in public with such steps. A test of logits at a tolerance lets some
of them pass. `certify` names the first part that differs, and the mistake, which it has tested by undoing it.

Run it from a checkout: `python -m analysis.tutorials.exactly_the_same_model`.
With a folder as argument it also draws the figure.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lngeom as lg
import ml_dtypes
import numpy as np
from lngeom import plots
from lngeom.rewrite import Comparison, certify, steps as do
from lngeom.transformers import Attention, Block, FeedForward, Head, Linear, Norm, Rotary, Table, rewrite as rw
from lngeom.transformers.description import exchange

D, HEADS, GROUPS, WIDTH, INNER, VOCABULARY, LAYERS = 64, 4, 2, 16, 96, 200, 3
Model = tuple[lg.Stack, dict[str, np.ndarray]]


def describe() -> lg.Stack:
    """The stack: which array plays which role."""
    turn = Rotary(tuple(10000.0 ** (-2 * i / WIDTH) for i in range(WIDTH // 2)))
    blocks = []
    for i in range(LAYERS):
        query, key, value, output, up, gate, down = (
            Linear(f"{i}.{part}") for part in ("query", "key", "value", "output", "up", "gate", "down")
        )
        attention = Attention(query, key, value, output, HEADS, GROUPS, WIDTH, WIDTH, rotary=turn)
        first, second = (Norm("rms", f"{i}.norm{j}", eps=1e-6) for j in (1, 2))
        blocks.append(Block(attention, FeedForward(up, down, gate, "silu"), "pre", first, second))
    return lg.Stack((Table("tokens"),), tuple(blocks), Head(Linear("head")), Norm("rms", "final", eps=1e-6))


def weights(stack: lg.Stack) -> dict[str, np.ndarray]:
    """Random float32 arrays with gains between 0.5 and 1.5."""
    draw = np.random.default_rng(0)
    sizes = {"query": (HEADS * WIDTH, D), "key": (GROUPS * WIDTH, D), "value": (GROUPS * WIDTH, D)}
    sizes |= {"output": (D, HEADS * WIDTH), "up": (INNER, D), "gate": (INNER, D), "down": (D, INNER)}
    found = {"tokens": draw.normal(size=(VOCABULARY, D)), "head": draw.normal(size=(VOCABULARY, D)) / np.sqrt(D)}
    for site in stack.linears[:-1]:
        shape = sizes[site.path.split(".")[-1]]
        found[site.part.weight] = draw.normal(size=shape) / np.sqrt(shape[1])
    found |= {site.part.gain: draw.uniform(0.5, 1.5, D) for site in stack.norms}
    return {name: array.astype(np.float32) for name, array in found.items()}


def folded(model: Model) -> Model:
    """The model with its gains in the matrices, and γ = 1."""
    out = rw.apply(*model, [do.FoldNorms()])
    return out.stack, dict(out.weights)


def centred_table(model: Model) -> Model:
    """The table of tokens is centred, as for LayerNorms: RMSNorm sees the mean (QuaRot 7, llm-compressor 1637)."""
    stack, arrays = model
    rows = arrays["tokens"]
    return stack, arrays | {"tokens": rows - rows.mean(1, keepdims=True)}


def one_reader_forgotten(model: Model) -> Model:
    """A gain is folded into two of its three readers (llm-compressor 2867: the router was the third)."""
    stack, arrays = folded(model)
    return stack, arrays | {"1.key": model[1]["1.key"]}


def one_plus(model: Model) -> Model:
    """Gains are stored as γ − 1, and read as γ (Model-Optimizer 793)."""
    stack, arrays = model
    return stack, arrays | {"2.norm2": arrays["2.norm2"] - 1}


def other_pairs(model: Model) -> Model:
    """Queries and keys for rotary pairs of neighbours, read as pairs of halves: the slip of many converters."""
    stack, arrays = model
    order = np.arange(WIDTH).reshape(2, -1).T.reshape(-1)
    turned = {n: arrays[n].reshape(-1, WIDTH, D)[:, order].reshape(-1, D) for n in ("0.query", "0.key")}
    return stack, arrays | turned


def other_epsilon(model: Model) -> Model:
    """The norms that replace the old ones have an ε of their own (`RMSN` of QuaRot: 1e-5)."""
    stack, arrays = folded(model)
    return exchange(stack, {site.path: replace(site.part, eps=1e-5) for site in stack.norms}), arrays


def writer_not_rotated(model: Model) -> Model:
    """The stream is rotated, and one map that writes to it was left out."""
    out = rw.apply(*model, [do.FoldNorms(), do.Rotate(seed=0)])
    return out.stack, dict(out.weights) | {"1.down": model[1]["1.down"]}


MISTAKES: dict[str, Callable[[Model], Model]] = {
    "table centred": centred_table,
    "one reader forgotten": one_reader_forgotten,
    "γ − 1 read as γ": one_plus,
    "rotary pairs": other_pairs,
    "another ε": other_epsilon,
    "writer not rotated": writer_not_rotated,
}


def draw(same: dict[str, Comparison], wrong: dict[str, Comparison], out: Path) -> None:
    """Draws what each step and mistake does to log-probabilities."""
    with plots.figure(columns=1, height=3.6) as (figure, axes):
        axis = axes[0, 0]
        for label, found, marker in (("called the same", same, "o"), ("called different", wrong, "x")):
            axis.plot([max(c.log_probabilities, 1e-17) for c in found.values()], list(found), marker, label=label)
        axis.axvline(1e-3, color=plots.style.GUIDE, linewidth=0.8)
        axis.set(xscale="log", xlabel="relative change of log-probabilities in float64; the line: a common tolerance")
        axis.invert_yaxis()
        axis.legend(loc="center left")
        caption = (
            "What exact steps and public mistakes do to a small model of Llama's form. Storing it in bfloat16 moves "
            "log-probabilities more than one of the mistakes does. A tolerance cannot tell them apart; certify "
            "measures what rounding explains, part by part."
        )
        data = {name: [c.log_probabilities, c.verdict] for name, c in (same | wrong).items()}
        plots.save(figure, out / "exactly_the_same_model", data, caption=caption)


def main(out: Path | None = None) -> dict[str, tuple[str, str, str]]:
    """Runs the tutorial.

    Args:
        out: folder for the figure; none is drawn by default.

    Returns:
        Verdict, first part that differs, and cause, of each model.
    """
    stack = describe()
    model = stack, weights(stack)

    # In exact arithmetic these steps change nothing. float32 rounds once, bfloat16 coarsely.
    rotated = rw.apply(*model, [do.FoldNorms(), do.Rotate(seed=0)])
    steps = {
        "folded, rotated, float32": (rotated.stack, dict(rotated.weights)),
        "folded, rotated, bfloat16": (
            rotated.stack,
            {name: np.asarray(array).astype(ml_dtypes.bfloat16) for name, array in rotated.weights.items()},
        ),
    }
    same = {name: certify(model, other) for name, other in steps.items()}
    wrong = {name: certify(model, make(model)) for name, make in MISTAKES.items()}
    for name, found in (same | wrong).items():
        print(f"# {name}\n{found}\n")
    if out:
        draw(same, wrong, out)
    return {
        name: (
            found.verdict,
            "" if found.first is None else found.first.path,
            found.causes[0].sentence if found.causes else "",
        )
        for name, found in (same | wrong).items()
    }


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
