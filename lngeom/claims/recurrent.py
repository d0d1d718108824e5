"""Eqs. 4 and 15–31: layer-normalized recurrent cells, and what the supplement says of their parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lngeom import nn
from lngeom.claims import _reference
from lngeom.claims._evidence import Evidence, Kind, Role, Verdict, agree, differ, same_integer, vanishes
from lngeom.claims._problem import Problem
from lngeom.claims._registry import claim

TOPIC = "recurrent"
STEPS, BATCH, INPUTS, HIDDEN = 12, 3, 4, 6


def sequences(problem: Problem):
    """Random inputs [T B D]; more than one input, since a layer norm of scalar inputs would discard their size."""
    return jax.random.normal(problem.key("sequences"), (STEPS, BATCH, INPUTS), problem.inputs.dtype)


def cell_of(problem: Problem, kind, **options):
    """A random cell whose gains and biases are away from 1 and 0, started from a random state."""
    dtype = problem.inputs.dtype
    cell = kind(INPUTS, HIDDEN, key=problem.key(kind.__name__), dtype=dtype, **options)
    leaves, structure = jax.tree.flatten(eqx.filter(cell, eqx.is_array))
    keys = jax.random.split(problem.key("gains and biases"), len(leaves))
    moved = [v + 0.3 * jax.random.normal(k, v.shape, dtype) for v, k in zip(leaves, keys, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, moved), cell)


def start(problem: Problem, cell):
    """A random state (h, c) of the cell; zeros would have no variance, and an undefined layer norm with ε = 0."""
    h, c = jax.random.normal(problem.key("state"), (2, BATCH, HIDDEN), problem.inputs.dtype)
    return nn.LSTMState(h, c) if isinstance(cell, nn.LSTM | nn.LayerNormLSTM) else h


def transcription(problem: Problem, cell):
    """Outputs [T B H] of a cell by the NumPy transcription of its equations."""
    h, c = jax.random.normal(problem.key("state"), (2, BATCH, HIDDEN), problem.inputs.dtype)
    return _reference.recurrent(cell, *(np.asarray(v) for v in (sequences(problem), h, c)))


def run(problem: Problem, cell):
    """Outputs [T B H] of a cell by the library's scan."""
    return eqx.filter_jit(nn.unroll)(cell, sequences(problem), start(problem, cell))[1]


@claim(
    "equation.4",
    topic=TOPIC,
    source="Eq. 4; Section 3.1",
    statement="The layer-normalized RNN is invariant to re-scaling all of the summed inputs to a layer.",
    formula=r"\mathbf h^t = f\left[\tfrac{\mathbf g}{\sigma^t}\odot(\mathbf a^t-\mu^t)+\mathbf b\right]",
    assumptions=("δ > 0", "ε = 0", "σ > 0"),
    expected=Verdict.CONDITIONAL,
)
def equation_4(problem: Problem):
    """W_hh and W_xh multiplied by one δ, in the layer-normalized and in the standard RNN."""

    def scaled(cell, delta: float):
        def weights(c):
            return c.recurrent_weights, c.input_weights

        return eqx.tree_at(weights, cell, tuple(delta * w for w in weights(cell)))

    def compare(cell, delta: float):
        return run(problem, cell), run(problem, scaled(cell, delta))

    cell = cell_of(problem, nn.LayerNormRNN, eps=0.0)
    yield agree("layer norm, all summed inputs times 3, every step", *compare(cell, 3.0))
    both = transcription(problem, cell), transcription(problem, scaled(cell, 3.0))
    yield agree("the same by the NumPy transcription", *both, tol=1e-11)
    yield agree("scan and transcription", run(problem, cell), both[0], tol=1e-11)
    yield differ("δ < 0", *compare(cell, -3.0), role=Role.FAILS_WITHOUT_CONDITION)
    damped = cell_of(problem, nn.LayerNormRNN, eps=0.1)
    yield differ("ε > 0", *compare(damped, 3.0), role=Role.FAILS_WITHOUT_CONDITION)
    yield differ("the standard RNN is not invariant", *compare(cell_of(problem, nn.RNN), 3.0))


@claim(
    "equation.15_16",
    topic=TOPIC,
    source="Eqs. 15, 16",
    statement="LN(z; α, β) = (z − μ)/σ ⊙ α + β with the mean and standard deviation of the vector's own entries.",
    formula=r"\mathrm{LN}(\mathbf z;\alpha,\beta) = \frac{\mathbf z-\mu}{\sigma}\odot\alpha+\beta",
    assumptions=("σ > 0",),
    expected=Verdict.HOLDS,
    why_numeric="A definition: what can be checked is that the library computes it.",
)
def equation_15_16(problem: Problem):
    """The library's layer norm with ε = 0 against the definition, vector by vector."""
    z = sequences(problem).reshape(-1, INPUTS)
    alpha, beta = jax.random.normal(problem.key("alpha"), (2, INPUTS), z.dtype)
    values, gain, bias = (np.asarray(v, np.longdouble) for v in (z, alpha, beta))
    spread = values - values.mean(1, keepdims=True)
    defined = spread / np.sqrt((spread**2).mean(1, keepdims=True)) * gain + bias
    yield agree("layer_norm and the definition", nn.layer_norm(z, alpha, beta, eps=0.0), defined, tol=1e-12)
    identity = nn.layer_norm(z, jnp.ones(INPUTS, z.dtype), jnp.zeros(INPUTS, z.dtype), eps=0.0)
    yield vanishes("mean with gain 1 and bias 0", jnp.mean(identity, 1), scale=1.0)


def _transcribed(id: str, source: str, statement: str, *cells: tuple[str, type, dict]):
    @claim(
        id,
        topic=TOPIC,
        source=source,
        statement=statement,
        expected=Verdict.HOLDS,
        why_numeric="A definition: what can be checked is that the library computes it.",
    )
    def check(problem: Problem):
        """The library's cells against a NumPy transcription of the equations, over twelve steps."""
        for what, kind, options in cells:
            cell = cell_of(problem, kind, **options)
            yield agree(f"{what}: scan and transcription", run(problem, cell), transcription(problem, cell), tol=1e-11)

    return check


_transcribed("equation.17_19", "Eqs. 17–19", "The long short-term memory, as given.", ("LSTM", nn.LSTM, {}))
_transcribed(
    "equation.21_22",
    "Eqs. 20–22",
    "The layer-normalized LSTM carries the raw cell; the cell's layer norm feeds the output alone.",
    ("layer-normalized LSTM", nn.LayerNormLSTM, {"eps": 0.0}),
)
_transcribed(
    "equation.29_31",
    "Eqs. 29–31",
    "For DRAW, layer norm is applied to the cell on its way to the output, and nowhere else.",
    ("LSTM with normalized output", nn.LayerNormLSTM, {"eps": 0.0, "output_only": True}),
)


@claim(
    "equation.20",
    topic=TOPIC,
    source="Eq. 20",
    statement=(
        "The gates' two layer norms and the bias, LN(W_h h; α₁, β₁) + LN(W_x x; α₂, β₂) + b, have 2·4H redundant "
        "dimensions."
    ),
    expected=Verdict.HOLDS,
)
def equation_20(problem: Problem):
    """Moving a vector between β₁, β₂ and b changes nothing; the rank of ∂gates/∂(β₁, β₂, b) is 4H of 12H."""
    x, cell = sequences(problem), cell_of(problem, nn.LayerNormLSTM, eps=0.0)

    def where(c):
        return c.recurrent_norm.bias, c.input_norm.bias, c.bias

    @eqx.filter_jit
    def outputs(biases):
        return nn.unroll(eqx.tree_at(where, cell, biases), x, start(problem, cell))[1]

    t, s = jax.random.normal(problem.key("moved"), (2, 4 * HIDDEN), x.dtype)
    first, second, bias = where(cell)
    yield agree(
        "t moved from β₁ to b, s from β₂",
        outputs((first, second, bias)),
        outputs((first - t, second - s, bias + t + s)),
    )
    jacobian = eqx.filter_jit(jax.jacfwd(outputs))((first, second, bias))
    stacked = np.concatenate([np.asarray(j).reshape(-1, 4 * HIDDEN) for j in jacobian], 1)
    redundant = stacked.shape[1] - int(np.linalg.matrix_rank(stacked))
    yield same_integer("redundant dimensions and 2·4H", redundant, 2 * 4 * HIDDEN)


@claim(
    "equation.23_28",
    topic=TOPIC,
    source="Eqs. 23–28",
    statement="One matrix W_x gives both the stacked gates (Eqs. 23, 26) and the candidate (Eqs. 24, 27) of the GRU.",
    expected=Verdict.REFUTED,
    correction=(
        "The gates need a matrix of 2H rows and the candidate one of H rows: two matrices. Two ⊙ are missing "
        "in Eqs. 25 "
        "and 28: (1 − σ(z)) ⊙ h + σ(z) ⊙ ĥ."
    ),
    why_numeric="A slip of notation: the shapes of the two uses are all there is to it.",
)
def equation_23_28(problem: Problem):
    """The two uses have different numbers of rows; with two matrices and ⊙ the cells are the equations."""
    cell = cell_of(problem, nn.LayerNormGRU, eps=0.0)
    rows = len(cell.input_weights), len(cell.candidate_input_weights)
    yield Evidence(
        Kind.COUNTEREXAMPLE,
        Role.REFUTES,
        f"rows that the gates and the candidate need: {rows[0]} and {rows[1]}",
        passed=rows == (2 * HIDDEN, HIDDEN),
        residual=1 - rows[1] / rows[0],
        tolerance=0.0,
        samples=2,
    )
    for what, kind, options in (("GRU", nn.GRU, {}), ("layer-normalized GRU", nn.LayerNormGRU, {"eps": 0.0})):
        cell = cell_of(problem, kind, **options)
        both = run(problem, cell), transcription(problem, cell)
        yield agree(f"{what} with two matrices: scan and transcription", *both, tol=1e-11, role=Role.CORRECTS)


@claim(
    "supplement.initialization",
    topic=TOPIC,
    source="Supplement, after Eqs. 22, 28, 31",
    statement="Each α is initialized to a vector of zeros and each β to a vector of ones (α the gains of Eq. 15).",
    expected=Verdict.REFUTED,
    correction=(
        "Gains must be 1 and biases 0, as Section 6 says. Literally, every hidden unit is a constant, "
        "σ(2)·tanh(1) = 0.6708 "
        "with b = 0, and the gradient of every weight is zero."
    ),
)
def supplement_initialization(problem: Problem):
    """The LSTM of Eqs. 20–22 started as printed, and as it must be."""
    x = sequences(problem)
    dtype = x.dtype

    def started(alpha: float, beta: float):
        cell = nn.LayerNormLSTM(INPUTS, HIDDEN, key=problem.key("lstm"), eps=0.0, dtype=dtype)

        def norms(c):
            return c.recurrent_norm, c.input_norm, c.cell_norm

        def filled(norm):
            return eqx.tree_at(
                lambda n: (n.gain, n.bias), norm, (jnp.full_like(norm.gain, alpha), jnp.full_like(norm.bias, beta))
            )

        return eqx.tree_at(norms, cell, tuple(filled(norm) for norm in norms(cell)))

    @eqx.filter_jit
    def gradient(cell):
        return eqx.filter_grad(lambda c: jnp.sum(nn.unroll(c, x, start(problem, c))[1] ** 2))(cell)

    printed, right = started(0.0, 1.0), started(1.0, 0.0)
    hidden = run(problem, printed)
    constant = 1 / (1 + np.exp(-2.0)) * np.tanh(1.0)
    yield agree("as printed: every hidden unit and 0.6708", hidden, np.full(hidden.shape, constant), role=Role.REFUTES)
    found = gradient(printed)
    weights = jnp.concatenate([found.recurrent_weights.reshape(-1), found.input_weights.reshape(-1)])
    yield vanishes("as printed: the gradient of the weights", weights, scale=1.0, role=Role.REFUTES)
    found = gradient(right)
    sizes = jnp.array([jnp.max(jnp.abs(found.recurrent_weights)), jnp.max(jnp.abs(found.input_weights))])
    yield differ("gains 1, biases 0: the gradient of the weights is not zero", sizes, 0 * sizes, role=Role.CORRECTS)


@claim(
    "experiments.no_ln_on_logits",
    topic=TOPIC,
    source="Section 6.6",
    statement=(
        "Layer norm is unnecessary for the logit outputs, where the prediction confidence is determined by their scale."
    ),
    formula=r"\max_i q_i \le \frac{1}{1+(H-1)e^{-H/\sqrt{H-1}}}",
    assumptions=("gain 1, bias 0",),
    expected=Verdict.HOLDS,
)
def no_ln_on_logits(problem: Problem):
    """Layer-normalized logits of ten classes cap the confidence at 0.757; the cap is attained, and never passed."""
    for classes in (3, 10, 100):
        bound = 1 / (1 + (classes - 1) * np.exp(-classes / np.sqrt(classes - 1)))
        extreme = jnp.zeros((1, classes)).at[0, 0].set(1.0)
        logits = jnp.concatenate([extreme, 50 * jax.random.normal(problem.key("logits"), (2000, classes))])
        confidence = jnp.max(jax.nn.softmax(nn.layer_norm(logits, eps=0.0), -1), -1)
        yield agree(
            f"{classes} classes: bound ({bound:.3f}) and attained confidence", confidence[:1], np.array([bound])
        )
        yield vanishes(f"{classes} classes: excess over the bound", jnp.maximum(confidence - bound, 0.0), scale=bound)
