"""Norms of the inputs of a layer, and a bias in front of a norm: which cells of Table 1 they change."""

import jax.numpy as jnp
import sympy as sp
from sympy import sqrt

from lngeom import methods as normalizers
from lngeom.claims import (
    Problem,
    Role,
    Verdict,
    agree,
    claim,
    differ,
)
from lngeom.claims.context import Read
from lngeom.claims.problem import NORMALIZERS
from lngeom.methods.transformations.columns import (
    DATASET_RESCALING,
    SINGLE_CASE_CONSTANT_SHIFT,
    WEIGHT_VECTOR_CONSTANT_SHIFT,
)
from lngeom.papers.ba2016.table1 import TOPIC
from lngeom.symbolic.actions import DELTA, SHIFT
from lngeom.symbolic.jacobian import LAYER, SIGMA
from lngeom.symbolic.layers import EPSILON, LAYER_NORM, PRE_LAYER_NORM, Layer
from lngeom.symbolic.proof import (
    Assumption,
    Counterexample,
    Proof,
    changed,
    equality,
    matrix,
    refutation,
)
from lngeom.symbolic.sums import D, H, field, i, mean, n, total
from lngeom.symbolic.table import expansion, general_steps, prove


def _prenorm(weights, inputs, params):
    """Layer norm before the weights: z = g W LN(x) + b."""
    eye = jnp.eye(inputs.shape[1], dtype=inputs.dtype)
    return normalizers.LayerNorm()(eye, inputs) @ weights.T * params.gain[None, :] + params.bias[None, :]


@claim(
    "text.prenorm_loses_weight_invariance",
    topic=TOPIC,
    source="Section 5.1, after Eq. 6",
    statement=(
        "If only the input is normalized, before the weights, the model is not invariant to re-scaling and "
        "re-centering of the weights."
    ),
    assumptions=("D ≥ 2",),
    expected=Verdict.HOLDS,
)
def prenorm_loses_weight_invariance(problem: Problem):
    """W LN(x) changes with δW and with W + 𝟏γᵀ."""
    _, params, inputs = problem.small("ln")
    z = _prenorm(params.weights, inputs, params)
    shift = problem.normal("shift", 1, params.inputs)
    yield differ("W → 2W", z, _prenorm(2.0 * params.weights, inputs, params))
    yield differ("W → W + 𝟏γᵀ", z, _prenorm(params.weights + shift, inputs, params))


@prenorm_loses_weight_invariance.proof()
def prenorm_loses_weight_invariance_proof() -> Proof:
    """Normalizing only the input leaves the output linear in the weights."""
    scaled = Layer(lambda i, d: DELTA * LAYER.W(i, d), LAYER.X)
    shifted = Layer(lambda i, d: LAYER.W(i, d) + SHIFT(d), LAYER.X)
    only_shift = Layer(lambda i, d: SHIFT(d), LAYER.X)
    z, z_of_shift = sp.Symbol("z(W)"), sp.Symbol(r"z(\mathbf{1}\gamma^\top)")
    cells = [prove("PreLayerNorm", name) for name in ("weight_matrix_rescaling", "weight_matrix_recentering")]
    return Proof(
        r"z = W\,\mathrm{LN}(x):\ z(\delta W + \mathbf{1}\gamma^\top) = "
        r"\delta z + \gamma^\top\mathrm{LN}(x)\,\mathbf{1} \neq z",
        (
            equality(
                "A scale passes through",
                PRE_LAYER_NORM(scaled),
                DELTA * z,
                r"z(\delta W)",
                {z.name: PRE_LAYER_NORM(LAYER)},
            ),
            equality(
                "and so does a shift",
                PRE_LAYER_NORM(shifted),
                z + z_of_shift,
                r"z(W + \mathbf{1}\gamma^\top)",
                {z.name: PRE_LAYER_NORM(LAYER), z_of_shift.name: PRE_LAYER_NORM(only_shift)},
            ),
            *(
                refutation("An exact instance", cell, name)
                for cell, name in zip(cells, (r"z(\delta W)", r"z(W + \mathbf{1}\gamma^\top)"), strict=True)
                if isinstance(cell, Counterexample)
            ),
        ),
        (SIGMA,),
    )


@claim(
    "text.prenorm_gains_row_shift",
    topic=TOPIC,
    source="Section 5.1, after Eq. 6 (not in the paper)",
    statement=(
        "Normalizing the input instead gains other invariances: x → δx + c𝟏 for every case, and w_i → w_i + c_i 𝟏."
    ),
    assumptions=("δ > 0", "ε = 0", "unit gain inside the norm"),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def prenorm_gains_row_shift(problem: Problem):
    """W LN(x) is blind to the mean and size of x, and to the row sums of W."""
    _, params, inputs = problem.small("ln")
    z = _prenorm(params.weights, inputs, params)
    c = problem.normal("c", len(inputs), 1)
    yield agree("x → δx + c𝟏", z, _prenorm(params.weights, 2.0 * inputs + c, params))
    c = problem.normal("c", params.units, 1)
    yield agree("w_i → w_i + c_i 1", z, _prenorm(params.weights + c, inputs, params))


@prenorm_gains_row_shift.proof()
def prenorm_gains_row_shift_proof() -> Proof:
    """Normalizing the input makes the sum of each row of weights irrelevant."""
    normalized = lambda d: (LAYER.X(n, d) - mean(lambda e: LAYER.X(n, e), D)) / sqrt(PRE_LAYER_NORM.square(LAYER))
    return Proof(
        r"z = W\,\mathrm{LN}(x):\ w_i \mapsto w_i + "
        r"c_i\mathbf{1}_D \text{ and } x \mapsto \delta x + c\mathbf{1} \text{ leave } z",
        (
            equality("Normalized inputs sum to zero", total(normalized, D), 0),
            *general_steps(PRE_LAYER_NORM, WEIGHT_VECTOR_CONSTANT_SHIFT, sp.S.One, EPSILON),
            expansion(PRE_LAYER_NORM, WEIGHT_VECTOR_CONSTANT_SHIFT),
            *general_steps(PRE_LAYER_NORM, SINGLE_CASE_CONSTANT_SHIFT, sp.S.One, EPSILON),
            *general_steps(PRE_LAYER_NORM, DATASET_RESCALING, DELTA, sp.S.Zero),
        ),
        (SIGMA,),
    )


@claim(
    "text.bias_before_norm",
    topic=TOPIC,
    source="Section 5.1 (unstated)",
    statement=(
        "Table 1 and Eq. 7 hold of layer norm of summed inputs a = Wx; with a bias before the norm, a = Wx + c, they "
        "need not."
    ),
    assumptions=("no bias before the norm",),
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
)
def bias_before_norm(problem: Problem):
    """A bias inside the norm destroys the scalings of W and x and keeps the shift of W."""
    _, params, inputs = problem.small("ln")
    layer_norm = NORMALIZERS["ln"]
    eye = jnp.eye(params.units, dtype=inputs.dtype)
    c = problem.normal("c", 1, params.units)
    shift = problem.normal("shift", 1, params.inputs)

    def n(weights, inputs, bias):
        return layer_norm(eye, inputs @ weights.T + bias)

    for what, bias, compare, role in (
        ("without the bias", 0.0 * c, agree, Role.SUPPORTS),
        ("with a bias", c, differ, Role.FAILS_WITHOUT_CONDITION),
    ):
        before = n(params.weights, inputs, bias)
        yield compare(f"{what}, W → 2W", before, n(2.0 * params.weights, inputs, bias), role=role)
        yield compare(f"{what}, x → 2x", before, n(params.weights, 2.0 * inputs, bias), role=role)
        yield agree(f"{what}, W → W + 𝟏γᵀ", before, n(params.weights + shift, inputs, bias))


@bias_before_norm.proof("conditional")
def bias_before_norm_proof() -> Proof:
    """With a bias before the norm, scaling invariance needs the bias to be scaled too."""
    c = field("c")

    def normalized(scale_weights, scale_bias, shift):
        a = lambda j: scale_weights * LAYER.a(n, j) + scale_bias * c(j) + shift
        return (a(i) - mean(a, H)) / sqrt(mean(lambda j: (a(j) - mean(a, H)) ** 2, H))

    projected = total(lambda d: SHIFT(d) * LAYER.X(n, d), D)

    def exactly(v, scale):
        augmented = v["W"].row_join(v["c"]), sp.ImmutableMatrix([[*v["X"], 1]])
        return LAYER_NORM.exactly(augmented[0] * sp.diag(scale, scale, 1), augmented[1])

    dropped = changed(
        "text.bias_before_norm with a fixed bias",
        r"\mathrm{LN}(\delta Wx + c) = \mathrm{LN}(Wx + c)",
        "n of the first unit at W (left) and at δW (right), the bias c fixed.",
        lambda v: exactly(v, 1),
        lambda v: exactly(v, v[r"\delta"]),
        {"W": matrix([[1, 0], [0, 0], [0, 0]]), "X": matrix([[1, 0]]), "c": matrix([[0], [1], [0]]), r"\delta": 2},
        names=(r"\mathrm{LN}(Wx + c)", r"\mathrm{LN}(\delta Wx + c)"),
    )
    return Proof(
        r"a = Wx + c:\quad \mathrm{LN}(\delta Wx + \delta c + \gamma^\top x\,\mathbf{1}) = \mathrm{LN}(Wx + c)",
        (
            equality("The shift of the weights stays an invariance", normalized(1, 1, projected), normalized(1, 1, 0)),
            equality("The scale is one if it scales c too", normalized(DELTA, DELTA, 0), normalized(1, 1, 0)),
        ),
        (Assumption("the bias before the norm is zero, or scaled too", r"c \mapsto \delta c", dropped), SIGMA),
    )
