"""Brody, Alon and Yahav (2023), *On the Expressivity Role of LayerNorm in Transformers' Attention*.

A key is selectable if some query gives it a higher score than all other keys: if it is a vertex of their convex hull.
"""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import sympy as sp
from jaxtyping import Array, Float

from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree, differ, same_integer, vanishes
from lngeom.methods import LayerNorm, RMSNorm
from lngeom.papers.lab import at_least, layer_norm
from lngeom.symbolic.jacobian import LAYER
from lngeom.symbolic.layers import LAYER_NORM
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, equality, matrix
from lngeom.symbolic.sums import H, M, field, i, mean, n, total

PAPER = Paper(
    "brody2023",
    "On the Expressivity Role of LayerNorm in Transformers' Attention",
    ("Shaked Brody", "Uri Alon", "Eran Yahav"),
    2023,
    "2305.02582",
    "Layer norm makes every key selectable, but heads narrower than d − 1 can bring unselectable keys back.",
)
COUNT, WIDTH, WIDE = 60, 8, 32
"""Number of keys; dimension of the keys; and of those that heads project."""


def projection(width: int) -> Float[Array, "d d"]:
    """The matrix I − 11ᵀ/d."""
    return jnp.eye(width) - 1 / width


@PAPER.claim(
    "brody2023.decomposition",
    source="Section 2",
    statement="Layer norm projects its input to the space orthogonal to 1, and scales the result to norm √d.",
    formula=r"\mathrm{LN}(x) = \sqrt d\,Px/\|Px\|",
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
)
def decomposition(problem: Problem):
    """On the data."""
    _, params, inputs = problem.case("ln")
    found = LayerNorm()(params.weights, inputs)
    width = found.shape[1]
    u = inputs @ params.weights.T @ projection(width)
    yield agree("layer norm and √d Px/‖Px‖", found, width**0.5 * u / jnp.linalg.norm(u, axis=1, keepdims=True))
    yield agree("norm of the output and √d", jnp.linalg.norm(found, axis=1), jnp.full(len(found), width**0.5))
    yield vanishes("sum of the output", found.sum(1), scale=float(width))


@decomposition.proof()
def decomposition_proof() -> Proof:
    """With P written as a matrix."""
    projected = lambda l: total(lambda r: (sp.KroneckerDelta(l, r) - 1 / H) * LAYER.a(n, r), H)
    return Proof(
        r"\mathrm{LN}(x) = \sqrt H\,Px/\|Px\|,\quad P = I - \mathbf{1}\mathbf{1}^\top/H",
        (
            equality(
                "Layer norm is the projection, scaled",
                LAYER_NORM(LAYER),
                sp.sqrt(H) * projected(i) / sp.sqrt(total(lambda l: projected(l) ** 2, H)),
                r"\mathrm{LN}_{ni}",
            ),
            _of_norm_root_width(),
            _orthogonal_to_one(),
        ),
    )


def _of_norm_root_width():
    squares = total(lambda l: LAYER_NORM(LAYER, n, l) ** 2, H)
    return equality("The output has squared norm H", squares, H, r"\|\mathrm{LN}_n\|^2")


def _orthogonal_to_one():
    return equality("The output is orthogonal to 1", mean(lambda l: LAYER_NORM(LAYER, n, l), H), 0)


@PAPER.claim(
    "brody2023.uniform",
    source="Section 3.1",
    statement="The projection lets the attention create a query that attends to all keys equally.",
    assumptions=("the query is parallel to 1; with gains g ≠ 0, to 1/g",),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
)
def uniform(problem: Problem):
    """The attention of such queries on the data, without and with gains and biases."""
    _, params, inputs = problem.case("ln")
    n = LayerNorm()(params.weights, inputs)
    g, b = params.gain[None, :], params.bias[None, :]
    equal = jnp.full(len(n), 1 / len(n))
    yield agree("attention of the query 3·1, and 1/N", jax.nn.softmax(3 * n.sum(1)), equal)
    yield agree("attention of the query 3/g, and 1/N", jax.nn.softmax(3 * ((g * n + b) / g).sum(1)), equal)
    without = jax.nn.softmax(3 * RMSNorm()(params.weights, inputs).sum(1))
    yield differ("RMSNorm, which does not project: attention of the query 3·1, and 1/N", without, equal)


@uniform.proof()
def uniform_proof() -> Proof:
    """Scores that do not depend on the key."""
    g, b = field("g", positive=True), field("b")
    affine = total(lambda l: (g(l) * LAYER_NORM(LAYER, n, l) + b(l)) / g(l), H)
    return Proof(
        r"\langle\mathbf{1}, \mathrm{LN}_n\rangle = 0,\quad "
        r"\langle 1/g, g\odot\mathrm{LN}_n + b\rangle = \textstyle\sum_i b_i/g_i",
        (
            _orthogonal_to_one(),
            equality(
                "With gains and biases the score of 1/g is that of the biases",
                affine,
                total(lambda l: b(l) / g(l), H),
                r"\langle 1/g, g\odot\mathrm{LN}_n + b\rangle",
            ),
        ),
    )


def unselectable(keys: Float[np.ndarray, "N d"]) -> int:
    """The number of keys that are convex combinations of the others, by linear programmes."""
    count = 0
    for k in range(len(keys)):
        others = np.delete(keys, k, 0)
        found = scipy.optimize.linprog(
            np.zeros(len(others)),
            A_eq=np.vstack([others.T, np.ones(len(others))]),
            b_eq=np.append(keys[k], 1.0),
            method="highs",
        )
        count += found.status == 0
    return count


def keys(problem: Problem, name: int, width: int = WIDTH) -> Float[np.ndarray, "N d"]:
    """Gaussian keys."""
    return np.random.default_rng([problem.seed, 2305, name]).normal(size=(COUNT, width))


def gains(width: int) -> Float[np.ndarray, " d"]:
    """Gains of both signs, one of them zero."""
    found = np.linspace(-1.0, 2.0, width)
    found[2] = 0
    return found


@PAPER.claim(
    "brody2023.selectable",
    source="Section 3.2",
    statement="After layer norm each key can receive the highest attention.",
    assumptions=("the normalized keys are distinct", "at most one gain is zero"),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
)
def selectable(problem: Problem):
    """Keys that lie in the convex hull of the others, by linear programmes; and the query n_k."""
    n = layer_norm(keys(problem, 1))
    scores = n @ n.T
    yield same_integer("keys that the query n_k selects", int(np.sum(np.argmax(scores, 1) == np.arange(COUNT))), COUNT)
    yield same_integer("unselectable keys, layer norm", unselectable(n), 0)
    affine = n * gains(WIDTH)[None, :] + np.linspace(-1, 1, WIDTH)[None, :]
    yield same_integer("with gains, one of them zero, and biases", unselectable(affine), 0)
    x = keys(problem, 1)
    scaled = x / np.sqrt(np.mean(x**2, 1, keepdims=True))
    yield same_integer("scaling alone (RMSNorm)", unselectable(scaled), 0)


@selectable.proof()
def selectable_proof() -> Proof:
    """The query n_k has its highest score at the key n_k, since all keys have one norm."""
    u, v, g, b = field("u"), field("v"), field("g", positive=True), field("b")
    dot = lambda x, y: total(lambda l: x(l) * y(l), H)
    affine = lambda key: total(lambda l: u(l) / g(l) * (g(l) * key(l) + b(l)), H)
    margin = dot(u, u) - dot(u, v)
    return Proof(
        r"\langle u, u\rangle - \langle u, v\rangle = \tfrac12\|u - v\|^2 > 0\quad (u \ne v)",
        (
            _of_norm_root_width(),
            equality(
                "so for two keys u, v of one norm, of which u is also the query, u has the higher score",
                margin,
                total(lambda l: (u(l) - v(l)) ** 2, H) / 2 + (dot(u, u) - dot(v, v)) / 2,
                r"\langle u, u\rangle - \langle u, v\rangle",
            ),
            equality(
                "With gains and biases the query u/g has the same margin",
                affine(u) - affine(v),
                margin,
                r"\langle u/g, g\odot u + b\rangle - \langle u/g, g\odot v + b\rangle",
            ),
            equality(
                "Where gain i is zero, the entries u_l − u_i serve as well, since keys have sum 0: entry i is not used",
                total(lambda l: (u(l) - u(i)) * v(l), H),
                dot(u, v) - u(i) * total(v, H),
                r"\sum_l (u_l - u_i) v_l",
            ),
        ),
        (Assumption("the keys are distinct", "u \\ne v"),),
    )


@PAPER.claim(
    "brody2023.without",
    source="Section 3.2",
    statement="Without the scaling there are keys that no query selects.",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def without(problem: Problem):
    """Gaussian keys, which are not normalized; and such keys after the projection alone."""
    x = keys(problem, 2)
    yield at_least("unselectable keys of 60", unselectable(x), 1)
    yield at_least("after the projection alone", unselectable(x - x.mean(1, keepdims=True)), 1)


@without.proof()
def without_proof() -> Proof:
    """A key between two others has a score between theirs, whatever the query."""
    q, u, v = field("q"), field("u"), field("v")
    score = lambda key: total(lambda l: q(l) * key(l), H)
    return Proof(
        r"\langle q, \tfrac12(u + v)\rangle \le \max(\langle q, u\rangle, \langle q, v\rangle)",
        (
            equality(
                "For every query the key (u + v)/2 has the mean of the scores of u and v, so not the highest",
                score(lambda l: (u(l) + v(l)) / 2),
                (score(u) + score(v)) / 2,
                r"\langle q, (u + v)/2\rangle",
            ),
        ),
    )


def projected(problem: Problem, head: int, width: int = WIDE) -> Float[np.ndarray, "N h"]:
    """Normalized keys after a random projection to the width of a head."""
    generator = np.random.default_rng([problem.seed, 2305, 3, head])
    return layer_norm(keys(problem, 4, width)) @ generator.normal(size=(width, head))


def share_unselectable(problem: Problem, heads: tuple[int, ...]) -> list[float]:
    """The share of keys that are unselectable in heads of these widths."""
    return [unselectable(projected(problem, head)) / COUNT for head in heads]


@PAPER.claim(
    "brody2023.heads",
    source="own corollary of Section 3.2",
    statement="The guarantee that each key can receive the highest attention holds in every head.",
    assumptions=("W_K is injective on the vectors of sum zero, so heads have at least d − 1 dimensions",),
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
)
def heads(problem: Problem):
    """Random projections of keys of 8 dimensions to 7, and of 32 to few."""
    enough = unselectable(projected(problem, WIDTH - 1, WIDTH))
    yield same_integer("unselectable keys, d = 8, head of 7", enough, 0)
    few = unselectable(projected(problem, WIDE // 2))
    yield same_integer("unselectable keys, d = 32, head of 16: narrow heads need not have any", few, 0)
    role = Role.FAILS_WITHOUT_CONDITION
    two, four = share_unselectable(problem, (2, 4))
    yield at_least("share of unselectable keys, d = 32, head of 2", two, 0.5, role)
    yield at_least("share of unselectable keys, d = 32, head of 4", four, 0.2, role)


def selected_on_a_line(W, X) -> tuple[sp.Integer, sp.Integer]:
    """The number of keys that some query selects in a head of one dimension, and the number of keys."""
    scores = [row[0] for row in (LAYER_NORM.exactly(sp.eye(X.cols), X) * W.T).tolist()]
    extreme = {max(scores), min(scores)}
    return sp.Integer(sum(scores.count(s) == 1 and s in extreme for s in scores)), sp.Integer(len(scores))


@heads.proof("conditional")
def heads_proof() -> Proof:
    """A head's query q acts as W_Kᵀq on the keys, which can be n_k up to 1 if W_K is injective on 1^⊥."""
    q, W, u, v, c = field("q"), field("W"), field("u"), field("v"), sp.Symbol("c", real=True)
    through = total(lambda r: q(r) * total(lambda l: W(r, l) * v(l), H), M)
    return Proof(
        r"W_K^\top q = u + c\mathbf{1}\ \Rightarrow\ \langle q, W_Kv\rangle = \langle u, v\rangle",
        (
            equality(
                "The score of q in the head is that of W_Kᵀq before it",
                through,
                total(lambda l: total(lambda r: W(r, l) * q(r), M) * v(l), H),
                r"\langle q, W_Kv\rangle",
            ),
            equality(
                "For W_Kᵀq = u + c1, which has a solution q for every u, that of u, because keys have sum 0",
                total(lambda l: (u(l) + c) * v(l), H),
                total(lambda l: u(l) * v(l), H) + c * total(v, H),
                r"\langle u + c\mathbf{1}, v\rangle",
            ),
            _orthogonal_to_one(),
        ),
        (
            Assumption(
                "W_K is injective on the vectors of sum zero",
                r"\mathrm{rank}(W_KP) = H - 1",
                Counterexample(
                    "brody2023.heads in a narrow head",
                    r"\#\{\text{keys that a query selects}\} = \#\{\text{keys}\}",
                    {"W_K": matrix([[1, 0, 0]]), "X": matrix([[1, 0, -1], [0, 1, -1], [-1, 0, 1]])},
                    lambda values: selected_on_a_line(values["W_K"], values["X"]),
                    "Keys that are the largest or the smallest in a head of one dimension (left), and keys (right).",
                ),
            ),
        ),
    )
