"""Dong, Zhang, Yao and Sun (2025), *Towards Quantifying the Hessian Structure of Neural Networks*, with normalization.

F is the Fisher matrix of the softmax, the Gauss–Newton part of the Hessian of the cross-entropy.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from lngeom import families
from lngeom._core.draws import draw_small
from lngeom.claims import Paper, Problem, Read, Verdict, agree, vanishes
from lngeom.claims.context import Context, Reading
from lngeom.information import fisher
from lngeom.methods.base import summed_inputs
from lngeom.papers.lab import at_least, at_most, exponent_of
from lngeom.symbolic.proof import Proof, equality, expanded
from lngeom.symbolic.sums import H, field, mean, total

PAPER = Paper(
    "dong2025",
    "Towards Quantifying the Hessian Structure of Neural Networks",
    ("Zhaorui Dong", "Yushun Zhang", "Jianfeng Yao", "Ruoyu Sun"),
    2025,
    "2505.02809",
    "Many classes decouple the units and the classes of a network with one hidden layer, as the paper says; they do "
    "not decouple the units before a layer norm, nor the layers of a residual network.",
    "The blocks of two classes are 1/(C − 1) of a diagonal block. But layer norm takes the mean of its units away: a "
    "change that is common to all units does nothing, so the blocks of one unit with all others sum to minus its own "
    "block, for every number of classes. And layers that write to one residual stream move the outputs in the same "
    "way, so that their common blocks are about as large as their own.",
)
CLASSES = (4, 16, 64)
INPUTS, UNITS, BLOCKS, SAMPLES = 4, 6, 3, 24
SCALE = 0.0
"""Of the weights of the linear model: zero ones give all classes the same probability."""
WRITING = 0.02
"""Of the weights that write to the residual stream, as in GPT-2."""
Matrix = Float[np.ndarray, "P P"]


def inputs(problem: Problem, width: int) -> Float[Array, "N D"]:
    """Gaussian inputs, one a row."""
    return problem.normal("dong2025.inputs", SAMPLES, width, dtype=float)


def matrix(function: Any, params: Any, x: Float[Array, "N D"]) -> Matrix:
    """F of the softmax of a function's outputs."""
    return np.asarray(fisher(function, params, x, family=families.Categorical(), check=False).as_matrix())


def block_norms(F: Matrix, owner: np.ndarray) -> Float[np.ndarray, "B B"]:
    """Frobenius norms of the blocks of F.

    Args:
        F: a matrix.
        owner: number of the block that each parameter belongs to.
    """
    member = np.eye(owner.max() + 1)[owner]
    return np.sqrt(member.T @ F**2 @ member)


def outside(norms: Float[np.ndarray, "B B"]) -> float:
    """Frobenius norm of all blocks outside the diagonal, relative to those on it."""
    diagonal = np.sum(np.diag(norms) ** 2)
    return float(np.sqrt((np.sum(norms**2) - diagonal) / diagonal))


def by_classes(problem: Problem, classes: int, scale: float) -> Float[np.ndarray, "C C"]:
    """Blocks of a linear model Wx, a row of W each."""
    weights = scale * problem.normal("dong2025.linear", classes, INPUTS, dtype=float)
    F = matrix(summed_inputs, weights, inputs(problem, INPUTS))
    return block_norms(F, np.repeat(np.arange(classes), INPUTS))


@PAPER.claim(
    "dong2025.classes",
    source="Abstract",
    statement="In linear models the block-diagonal structure arises as the number of classes C becomes large.",
    formula=r"\frac{\lVert F_{ab}\rVert}{\lVert F_{aa}\rVert} = \frac1{C - 1}",
    assumptions=("equal probabilities, which small random weights approach",),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
)
def classes(problem: Problem):
    """Each block, and all of them together; and that they fall at random weights, too."""
    found = {C: by_classes(problem, C, SCALE) for C in CLASSES}
    for C, norms in found.items():
        yield agree(f"‖F_ab‖/‖F_aa‖ and 1/(C − 1), C = {C}", norms[0, 1:] / norms[0, 0], np.full(C - 1, 1 / (C - 1)))
        yield agree(f"all blocks outside the diagonal and 1/√(C − 1), C = {C}", outside(norms), (C - 1) ** -0.5)
    random = [outside(by_classes(problem, C, INPUTS**-0.5)) * (C - 1) ** 0.5 for C in CLASSES]
    yield at_most("at random weights, all blocks outside the diagonal times √(C − 1)", random, 2.0)


@classes.proof()
def classes_proof() -> Proof:
    """At equal probabilities Λ = I/C − 11ᵀ/C², and F_ab = Λ_ab E[xxᵀ]."""
    C = sp.Symbol("C", positive=True)
    same, other = 1 / C - 1 / C**2, -1 / C**2
    return Proof(
        r"\lVert F_{ab}\rVert = \lVert F_{aa}\rVert / (C - 1)",
        (
            expanded(
                "blocks are multiples of E[xxᵀ]: off the diagonal by −1/C², on it by 1/C − 1/C²",
                r"\Lambda_{ab} / \Lambda_{aa} = -1/(C - 1)",
                other / same + 1 / (C - 1),
            ),
            expanded(
                "of C² blocks C are on the diagonal, so that all the others have 1/(C − 1) of their square",
                r"\sum_{a \neq b}\Lambda_{ab}^2 = \frac1{C - 1}\sum_a\Lambda_{aa}^2",
                C * (C - 1) * other**2 - C * same**2 / (C - 1),
            ),
        ),
    )


HIDDEN, DRAWS = 8, 4
"""Units of the hidden layer, and number of random networks."""
LARGE = (4, 16, 64, 128)
"""Numbers of classes."""


def spread(classes: int) -> float:
    """Size of the readout of the hidden layer, as networks are initialized."""
    return HIDDEN**-0.5


def two_blocks(norms: Float[np.ndarray, "B B"]) -> float:
    """The mean norm of a block outside the diagonal, over that of a block on it."""
    count = len(norms)
    return float((norms.sum() - np.trace(norms)) / (count - 1) / np.trace(norms))


def one_hidden_layer(params: tuple[Array, Array], x: Float[Array, "N D"]) -> Float[Array, "N C"]:
    """Logits V ReLU(Wx)."""
    first, second = params
    return jax.nn.relu(x @ first.T) @ second.T


def of_one_hidden_layer(problem: Problem, classes: int) -> tuple[float, float]:
    """Blocks of the units of a ReLU network, and of its classes; the mean of random networks.

    The outputs are linear in the weights of either layer wherever no unit is at its kink, so that F is the Hessian of
    the cross-entropy by these weights, whatever the labels are.
    """
    x = problem.normal("dong2025.samples", 2 * SAMPLES, HIDDEN, dtype=float)
    owner, found = np.repeat(np.arange(HIDDEN + classes), HIDDEN), []
    for draw in range(DRAWS):
        first = problem.normal(f"dong2025.first {draw}", HIDDEN, HIDDEN, dtype=float) / HIDDEN**0.5
        second = spread(classes) * problem.normal(f"dong2025.second {draw}", classes, HIDDEN, dtype=float)
        norms = block_norms(matrix(one_hidden_layer, (first, second), x), owner)
        found.append((two_blocks(norms[:HIDDEN, :HIDDEN]), two_blocks(norms[HIDDEN:, HIDDEN:])))
    units, by_class = np.mean(found, 0)
    return float(units), float(by_class)


@PAPER.claim(
    "dong2025.hidden",
    source="Abstract",
    statement="In networks with one hidden layer, at random initialization, the Hessian of the cross-entropy becomes "
    "block-diagonal as the number of classes C grows: blocks of two units fall as 1/√C, blocks of two classes as 1/C.",
    assumptions=("blocks are the units of the hidden layer, and the classes of the last one", "the rates are lngeom's"),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
    context=Context(
        before="Empirical studies reported that the Hessian matrix of neural networks (NNs) exhibits a "
        "near-block-diagonal structure, yet its theoretical foundation remains unclear. … We study linear models and "
        "1-hidden-layer networks for classification tasks with C classes.",
        sentence="By leveraging random matrix theory, we compare the limit distributions of the diagonal and "
        "off-diagonal Hessian blocks and find that the block-diagonal structure arises as C becomes large.",
        after="Our findings reveal that C is one primary driver of the near-block-diagonal structure.",
        readings=(
            Reading("It is about the models that the paper studies: linear ones, and one hidden layer.", Verdict.HOLDS),
        ),
        verdict="There both kinds of blocks outside the diagonal fall, from C = 4 to C = 128. The paper does not say "
        "it of whole layers on one residual stream (dong2025.layers).",
    ),
    why_numeric="norms of blocks at random weights, fitted over C from 4 to 128",
)
def hidden(problem: Problem):
    """Powers of C in the norm of a block outside the diagonal over one on it."""
    found = np.array([of_one_hidden_layer(problem, C) for C in LARGE]).T
    for name, power, sizes in zip(("units", "classes"), (-0.5, -1.0), found, strict=True):
        slope = exponent_of(LARGE, sizes)
        what = f"two {name}: from {sizes[0]:.3g} at C = 4 to {sizes[-1]:.3g} at C = 128, power of C {slope:.2f}"
        yield vanishes(what, slope - power, scale=1.0, tol=0.2, curves={f"{name} against C": (np.array(LARGE), sizes)})


def centred(a: Float[Array, "N H"]) -> Float[Array, "N H"]:
    """The first half of layer norm."""
    return a - jnp.mean(a, 1, keepdims=True)


def layer_norm(a: Float[Array, "N H"]) -> Float[Array, "N H"]:
    """Rows of mean 0 and mean square 1."""
    u = centred(a)
    return u / jnp.sqrt(jnp.mean(u**2, 1, keepdims=True))


def of_hidden_units(problem: Problem, classes: int) -> Matrix:
    """F of the weights before a layer norm, with a random readout into the classes."""
    keys = jax.random.split(problem.key("dong2025.hidden"), 2)
    weights = draw_small(jax.random.normal, keys[0], (UNITS, INPUTS), float)
    readout = draw_small(jax.random.normal, keys[1], (classes, UNITS), float) / UNITS**0.5
    return matrix(lambda W, x: layer_norm(x @ W.T) @ readout.T, weights, inputs(problem, INPUTS))


@PAPER.claim(
    "dong2025.layer_norm",
    source="lngeom",
    statement="Before a layer norm the blocks of one unit with all the others sum to minus its own block, for every "
    "number of classes.",
    formula=r"\sum_{j \neq i} F_{ij} = -F_{ii}, \quad \sum_{j \neq i}\lVert F_{ij}\rVert^2 \geq \frac{\lVert "
    r"F_{ii}\rVert^2}{H - 1}",
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def before_layer_norm(problem: Problem):
    """The sums, and the bound on norms that follows by the triangle and Cauchy's inequality."""
    for C in CLASSES:
        F = of_hidden_units(problem, C)
        blocks = F.reshape(UNITS, INPUTS, UNITS, INPUTS)
        own = np.stack([blocks[i, :, i] for i in range(UNITS)])
        yield agree(f"Σ F_ij over the others and −F_ii, C = {C}", blocks.sum(2) - own, -own, tol=1e-9)
        norms = block_norms(F, np.repeat(np.arange(UNITS), INPUTS))
        yield at_least(f"blocks outside the diagonal, C = {C}", outside(norms), (UNITS - 1) ** -0.5)


@before_layer_norm.proof()
def layer_norm_proof() -> Proof:
    """A common change of all summed inputs leaves layer norm as it is, so that rows of its Jacobian sum to zero."""
    y, t = field("y"), sp.Symbol("t", real=True)
    return Proof(
        r"\sum_j F_{ij} = 0",
        (
            equality(
                "centring takes away what is common to all units",
                mean(lambda l: y(l) + t, H) - t,
                mean(y, H),
                r"\mu(y + t\mathbf 1) - t",
            ),
            equality(
                "so y + t1 has the same σ, the same outputs, and the derivative by t is zero",
                total(lambda l: (y(l) + t - mean(lambda m: y(m) + t, H)) ** 2, H),
                total(lambda l: (y(l) - mean(y, H)) ** 2, H),
                r"H\sigma^2(y + t\mathbf 1)",
            ),
        ),
    )


def residual_params(problem: Problem, classes: int, writing: float) -> dict[str, Any]:
    """Layers of a pre-norm residual network; a matrix with its bias is one layer, and so is a norm."""
    keys = iter(jax.random.split(problem.key("dong2025.residual"), 2 * BLOCKS + 1))
    kernel = lambda rows, columns, scale: scale * draw_small(jax.random.normal, next(keys), (rows, columns), float)
    norm = lambda: {"gain": jnp.ones(UNITS), "bias": jnp.zeros(UNITS)}  # of arrays of its own
    found = {"head": {"kernel": kernel(UNITS, classes, UNITS**-0.5)}, "norm": norm()}
    for b in range(BLOCKS):
        found[f"norm {b}"] = norm()
        found[f"read {b}"] = {"kernel": kernel(UNITS, 2 * UNITS, UNITS**-0.5), "bias": jnp.zeros(2 * UNITS)}
        found[f"write {b}"] = {"kernel": kernel(2 * UNITS, UNITS, writing), "bias": jnp.zeros(UNITS)}
    return found


def residual(params: dict[str, Any], x: Float[Array, "N H"]) -> Float[Array, "N C"]:
    """Logits: each block adds to the stream what it makes of the normalized stream."""
    affine = lambda norm, s: layer_norm(s) * norm["gain"][None, :] + norm["bias"][None, :]

    def block(stream: Array, layers: tuple) -> tuple[Array, None]:
        norm, read, write = layers
        hidden = jax.nn.relu(affine(norm, stream) @ read["kernel"] + read["bias"][None, :])
        return stream + hidden @ write["kernel"] + write["bias"][None, :], None

    blocks = [tuple(params[f"{part} {b}"] for part in ("norm", "read", "write")) for b in range(BLOCKS)]
    stream, _ = jax.lax.scan(block, x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks))
    return affine(params["norm"], stream) @ params["head"]["kernel"]


def layers_of(params: dict[str, Any]) -> np.ndarray:
    """Number of the layer that each entry of the raveled parameters belongs to."""
    numbers = {name: jax.tree.map(lambda a, i=i: jnp.full(a.shape, i), params[name]) for i, name in enumerate(params)}
    return np.asarray(ravel_pytree(numbers)[0])


def across_layers(problem: Problem, classes: int) -> float:
    """Size of all blocks of two layers of the residual network, relative to the blocks of one."""
    params = residual_params(problem, classes, WRITING)
    F = matrix(residual, params, inputs(problem, UNITS))
    return outside(block_norms(F, layers_of(params)))


@PAPER.claim(
    "dong2025.layers",
    source="beyond the paper",
    statement="Many classes do not decouple layers: in a pre-norm residual network at random weights the blocks of two "
    "layers are together larger than those of one, since biases that write to one stream move the outputs alike.",
    formula=r"\sum_{l \neq m}\lVert F_{lm}\rVert^2 \geq \sum_l\lVert F_{ll}\rVert^2",
    assumptions=("what is between two layers adds little to the stream",),
    read=Read.OWN,
    expected=Verdict.HOLDS,
    why_numeric="sizes of blocks at random weights are by numbers; that F_lm = F_ll for two biases is the chain rule",
)
def layers(problem: Problem):
    """At random weights; and the biases of blocks that add nothing else."""
    for C in CLASSES:
        yield at_least(f"blocks of two layers over those of one, C = {C}", across_layers(problem, C), 1)
    params = residual_params(problem, CLASSES[0], 0.0)
    F = matrix(residual, params, inputs(problem, UNITS))
    place = ravel_pytree({n: {k: jnp.full(a.shape, k == "bias") for k, a in p.items()} for n, p in params.items()})[0]
    owner, names = layers_of(params), list(params)
    first, last = (np.flatnonzero((owner == names.index(f"write {b}")) & np.asarray(place)) for b in (0, BLOCKS - 1))
    yield agree(
        "block of two biases and block of one, where the blocks write nothing else",
        F[np.ix_(first, last)],
        F[np.ix_(last, last)],
        tol=1e-9,
    )
