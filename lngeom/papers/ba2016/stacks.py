"""Null spaces of transformer stacks: what the theory of `lngeom.transformers` predicts, and what a Jacobian says."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from lngeom._core.numerics import decide_rank
from lngeom.claims import Problem, Read, Verdict, claim, same_integer, vanishes
from lngeom.papers.ba2016.nullspace import TOPIC
from lngeom.transformers import Attention, Block, FeedForward, Head, Linear, Norm, Rotary, Stack, Table, logits
from lngeom.transformers.nullspace import predict

WIDTH, VOCABULARY, LENGTH, HEADS, HIDDEN, SAMPLES = 4, 6, 3, 2, 3, 48
MATRICES = {
    "query": (WIDTH, WIDTH),
    "key": (WIDTH, WIDTH),
    "value": (WIDTH, WIDTH),
    "output": (WIDTH, WIDTH),
    "up": (HIDDEN, WIDTH),
    "gate": (HIDDEN, WIDTH),
    "down": (WIDTH, HIDDEN),
    "head": (VOCABULARY, WIDTH),
}
"""Shapes of the linear maps of one block and of the head, outputs first."""


def pre_norm(kind: str) -> tuple[Stack, dict[str, tuple[int, ...]]]:
    """A pre-norm stack of one block, and the shapes of its arrays.

    Args:
        kind: "layer" (learned positions, biases, GELU) or "rms" (rotary positions, no biases, SwiGLU).

    Returns:
        The description, and shapes by name.
    """
    layer = kind == "layer"
    shapes: dict[str, tuple[int, ...]] = {"tokens": (VOCABULARY, WIDTH)}

    def linear(name: str) -> Linear:
        shapes[name] = MATRICES[name]
        if not layer:
            return Linear(name)
        shapes[f"{name} bias"] = MATRICES[name][:1]
        return Linear(name, f"{name} bias")

    def norm(name: str) -> Norm:
        shapes[f"{name} gain"] = (WIDTH,)
        if not layer:
            return Norm("rms", f"{name} gain")
        shapes[f"{name} bias"] = (WIDTH,)
        return Norm("layer", f"{name} gain", f"{name} bias")

    tables = (Table("tokens"),)
    if layer:
        shapes["positions"] = (LENGTH, WIDTH)
        tables += (Table("positions", "position"),)
    maps = [linear(name) for name in ("query", "key", "value", "output")]
    rotary = None if layer else Rotary((1.0,))
    attention = Attention(*maps, HEADS, HEADS, WIDTH // HEADS, WIDTH // HEADS, rotary=rotary)
    gate = None if layer else linear("gate")
    network = FeedForward(linear("up"), linear("down"), gate, "gelu" if layer else "silu")
    block = Block(attention, network, attention_norm=norm("before attention"), feed_forward_norm=norm("before network"))
    return Stack(tables, (block,), Head(linear("head")), norm("final")), shapes


def random_weights(problem: Problem, kind: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Gaussian weights in float64, with gains of both signs away from zero."""
    drawn = {name: np.asarray(problem.normal(f"{kind} {name}", *shape), float) for name, shape in shapes.items()}
    return {name: v + np.sign(v) * 0.5 if name.endswith("gain") else v for name, v in drawn.items()}


@partial(jax.jit, static_argnums=0)
def _jacobian(stack: Stack, weights, tokens):
    vector, unravel = ravel_pytree(weights)
    return jax.jacfwd(lambda v: logits(stack, unravel(v), tokens))(vector)


@claim(
    "nullspace.stacks",
    topic=TOPIC,
    source="Section 5.2 (not in the paper)",
    statement=(
        "The null space of the Fisher matrix of a pre-norm transformer under a softmax is spanned by its known "
        "symmetries: with layer norm, biases and learned positions, and with RMS norm, rotary positions and SwiGLU."
    ),
    assumptions=("generic weights, ε = 0", "every token is seen, and outputs are twice as many as parameters"),
    expected=Verdict.HOLDS,
    read=Read.OWN,
    why_numeric=(
        "That no direction but those of the symmetries is null is shown by the rank of one Jacobian in float64; it is "
        "not proved for stacks."
    ),
)
def stacks(problem: Problem):
    """Nullity of the Jacobian of log-probabilities of a stack of one block, against `lg.predicted_nullspace`."""
    for kind in ("layer", "rms"):
        stack, shapes = pre_norm(kind)
        weights = random_weights(problem, kind, shapes)
        tokens = np.random.default_rng(problem.seed).integers(0, VOCABULARY, (SAMPLES, LENGTH))
        predicted = predict(stack, weights, tokens, None)
        yield same_integer(f"{kind}: conditions that fail", sum(not c.holds for c in predicted.conditions), 0)
        with jax.enable_x64(True):
            jacobian = np.asarray(_jacobian(stack, weights, jnp.asarray(tokens)))
        seen = (jacobian - jacobian.mean(2, keepdims=True)).reshape(-1, predicted.parameters)
        found = decide_rank(np.linalg.svd(seen, compute_uv=False), *seen.shape)
        nullity = predicted.parameters - found.rank
        doubt = "" if found.certain else "the rank is not certain"
        yield same_integer(f"{kind}: measured and predicted nullity", nullity, predicted.dimension, uncertain=doubt)
        closed = predict(stack, {name: jax.ShapeDtypeStruct(v, float) for name, v in shapes.items()}, None, None)
        yield same_integer(f"{kind}: closed formula and predicted nullity", closed.dimension, predicted.dimension)
        size = float(np.linalg.norm(seen, 2))
        yield vanishes(f"{kind}: outputs along the predicted basis", seen @ predicted.basis, scale=size, tol=1e-9)
