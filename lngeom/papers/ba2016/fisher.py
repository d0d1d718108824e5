"""Eqs. 13 and 14: the Fisher matrix of normalized models, as printed and as it is."""

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jaxtyping import Array
from sympy import Expr, KroneckerDelta, sqrt

from lngeom import families
from lngeom._core.numerics import agreement, decide_rank
from lngeom._core.types import GLMParameters
from lngeom.claims import (
    Problem,
    Role,
    Verdict,
    agree,
    claim,
    differ,
    numpy_reference,
    proves,
    same_integer,
)
from lngeom.claims.context import Context, Reading
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.claims.evidence import Evidence
from lngeom.claims.problem import TITLES
from lngeom.information import BatchCoupled, fisher, reference
from lngeom.methods import AbstractNormalizer, BatchNorm, WeightNorm, readings
from lngeom.methods.layer import GroupedLinearization
from lngeom.methods.linearization import linearize
from lngeom.papers.ba2016.lg_fisher import (
    KL_TOLERANCE,
    LAMBDA,
    SMALL,
    TOPIC,
    certified,
    corner,
    directions,
    divergences,
    operator,
)
from lngeom.symbolic.jacobian import GAIN, LAYER, along
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, WEIGHT_NORM, Method
from lngeom.symbolic.proof import (
    Assumption,
    Counterexample,
    Names,
    Proof,
    Step,
    changed,
    confirmed,
    equality,
    fact,
    matrix,
)
from lngeom.symbolic.sums import D, Field, H, N, derivative, field, i, k, mean, n, total


@eqx.filter_jit
def projector(normalizer: AbstractNormalizer, params: GLMParameters, inputs: Array) -> Array:
    """Π of one sample [H H], as the products of `lg.fisher` have it."""
    at = linearize(normalizer, params.weights, inputs, params.gain)
    assert isinstance(at, GroupedLinearization)
    return jax.vmap(at.project, 1, 1)(jnp.eye(params.units, dtype=inputs.dtype)[None])[0]


def _printed_is_exact(method: str):
    @claim(
        f"equation.13_14.{method}",
        topic=TOPIC,
        source="Eqs. 13, 14",
        statement=f"Eqs. 13 and 14 give the Fisher matrix of {TITLES[method].lower()}.",
        formula=(
            r"\chi_i = \mathbf x - \frac{\partial\mu_i}{\partial w_i} - "
            r"\frac{a_i-\mu_i}{\sigma_i}\frac{\partial\sigma_i}{\partial w_i}"
        ),
        assumptions=("statistics over the whole data set",) if method == "bn" else (),
        expected=Verdict.HOLDS,
    )
    def check(problem: Problem):
        """Printed, by definition, and as `lg.fisher` has it: on the data, and for a softmax."""
        case = problem.case(method)
        exact = reference.by_definition(*case)
        yield agree("data: printed and JᵀΛJ", reference.as_printed(*case), exact)
        yield agree("data: lg.fisher's matrix and JᵀΛJ", operator(case).as_matrix(), exact)
        case = problem.small(method, families.Categorical())
        exact, deltas = reference.by_definition(*case), directions(problem, case)
        kl = divergences(*case, deltas)
        yield agree("softmax: printed and JᵀΛJ", reference.as_printed(*case), exact)
        defined = numpy_reference.fisher(method, case.model.family, case.params, case.inputs)
        yield agree("softmax: printed and NumPy reference", reference.as_printed(*case), defined)
        forms = jnp.einsum("kp,pq,kq->k", deltas, reference.as_printed(*case), deltas)
        yield agree("softmax: printed and finite divergences", forms, kl, tol=KL_TOLERANCE)
        yield from certified("softmax", case, exact, deltas, kl)
        products = fisher(*case, method="printed", check=False).mm(deltas.T)
        yield agree("softmax: lg.fisher's products as printed and JᵀΛJ v", products, exact @ deltas.T)
        if method == "bn":
            coupled = {"family": case.model.family, "batch_coupled": True, "check": False}
            F = fisher(case.model.natural_parameters, *case[1:], **coupled)
            yield agree("softmax: lg.fisher's matrix of the same model as a function", F.as_matrix(), exact)
            yield from in_parts(problem, deltas)
        else:
            model, params, inputs = problem.small(WeightNorm(eps=0.1))
            change = problem.normal("change of W", *params.weights.shape)
            at = linearize(model.normalizer, params.weights, inputs, jnp.ones_like(params.gain))
            stepped = np.asarray(params.weights, float) + 1e-20j * np.asarray(change, float)
            defined = readings.normalized(model.normalizer, stepped, np.asarray(inputs, float)).imag / 1e-20
            yield agree("ε = 0.1: dn in the products of lg.fisher, and a complex step", at.push(change), defined)

    return check


def in_parts(problem: Problem, deltas: Array) -> Iterator[Evidence]:
    """Batch norm with ε on data that pass in parts: moments of all the data, and how they move with W, come first.

    Args:
        problem: data and seed.
        deltas: tangents [K P].

    Yields:
        Products of `lg.fisher`: along the weights of the model, and of a function that names its means.
    """
    model, *point = problem.small(BatchNorm(eps=0.1), families.Categorical())

    def with_means(params, inputs, average):
        a = inputs @ params.weights.T
        centred = a - average(a)
        n = centred / jnp.sqrt(average(centred**2) + model.normalizer.eps)
        return n * params.gain[None] + params.bias[None]

    exact, weights = reference.by_definition(model, *point), slice(0, point[0].weights.size)
    given = {"chunk": 20, "check": False}
    F = fisher(model, *point, wrt="weights", **given)
    products = F.mm(deltas[:, weights].T), exact[weights, weights] @ deltas[:, weights].T
    yield agree("ε = 0.1, in parts of 20 cases: products of lg.fisher along the weights", *products)
    F = fisher(BatchCoupled(with_means), *point, family=model.family, **given)
    what = "ε = 0.1, in parts of 20 cases: products of lg.fisher, of a function that names its means"
    yield agree(what, F.mm(deltas.T), exact @ deltas.T)


_printed_is_exact("bn")


def chi(method: Method, V: Field, unit=i) -> Expr:
    """χ_i · v of Eq. 14, for v the row V_i: x·v − ∂μ_i[v] − n_i ∂σ_i[v], only row i of W moving."""
    own: Field = lambda l, d: KroneckerDelta(l, unit) * V(l, d)
    average = lambda L: L.a(n, unit) - method.numerator(L, n, unit)
    slope = lambda f: derivative(lambda t: f(LAYER.towards(own, t)))
    moved = total(lambda d: V(unit, d) * LAYER.X(n, d), D)
    return moved - slope(average) - method(LAYER, n, unit) * slope(lambda L: sqrt(method.square(L, n, unit)))


BIAS_CHANGE, GAIN_CHANGE = field("beta"), field("h")


def own_rows(method: Method, V: Field, stated: Expr, short: Names | None = None) -> tuple[Step, ...]:
    """Units do not see each other's weights, so Eq. 14 is the whole Jacobian.

    Args:
        method: the method.
        V: the direction in which W moves.
        stated: χ_i · V_i in closed form.
        short: names in it.

    Returns:
        The steps.
    """
    others: Field = lambda l, d: (1 - KroneckerDelta(l, i)) * V(l, d)
    sigma = sqrt(method.square(LAYER))
    slope, moved, output = sp.Symbol(r"\chi_i^\top v"), sp.Symbol("f_{i}"), sp.Symbol("n_{i}")
    defined = {slope.name: chi(method, V)}
    b, g = BIAS_CHANGE(i), GAIN_CHANGE(i)
    return (
        equality("Other rows w_k of W do not move unit i", along(method, others), 0, r"\partial n_i/\partial w_k"),
        equality("χ from its definition", chi(method, V), stated, slope.name, short),
        equality(
            "The whole Jacobian is (g/σ) χ", GAIN(i) * along(method, V), GAIN(i) / sigma * slope, r"dz_i", defined
        ),
        equality(
            "So blocks are those of Eq. 13: for f = (g/σ) χᵀv, β = db and h = dg, the square of dz has these terms",
            (moved + b + output * g) ** 2,
            moved**2 + 2 * moved * b + 2 * moved * output * g + b**2 + 2 * output * b * g + output**2 * g**2,
            short={moved.name: GAIN(i) / sigma * chi(method, V), output.name: method(LAYER)},
        ),
    )


@proves("equation.13_14.bn")
def equation_13_14_bn_proof() -> Proof:
    """Batch norm: ∂μ/∂w = E x and ∂σ/∂w = Cov(x) w/σ, and Eq. 13–14 are exact."""
    V = field("V")
    own = lambda m: total(lambda d: V(i, d) * LAYER.X(m, d), D)
    covariance = mean(lambda m: (own(m) - mean(own, N)) * BATCH_NORM.numerator(LAYER, m, i), N)
    name = sp.Symbol(r"\mathrm{Cov}(v^\top x, a_i)")
    stated = own(n) - mean(own, N) - BATCH_NORM(LAYER) * name / sqrt(BATCH_NORM.square(LAYER))
    statement = r"\chi_i = x - E[x] - n_i\,\mathrm{Cov}(x)\,w_i/\sigma_i"
    return Proof(
        statement,
        own_rows(BATCH_NORM, V, stated, {name.name: covariance}),
        (Assumption("positive scale", r"\sigma_i > 0"),),
    )


_printed_is_exact("wn")


@proves("equation.13_14.wn")
def equation_13_14_wn_proof() -> Proof:
    """Weight norm: ∂σ/∂w = w/σ, and Eq. 13–14 are exact."""
    V = field("V")
    moved = total(lambda d: V(i, d) * LAYER.X(n, d), D)
    inner = total(lambda d: V(i, d) * LAYER.W(i, d), D)
    stated = moved - LAYER.a(n, i) * inner / WEIGHT_NORM.square(LAYER)
    statement = r"\chi_i = x - (w_i^\top x)\,w_i/\|w_i\|^2"
    return Proof(statement, own_rows(WEIGHT_NORM, V, stated), (Assumption("positive norm", r"w_i \neq 0"),))


@claim(
    "equation.13_14.ln",
    topic=TOPIC,
    source="Eqs. 13, 14",
    statement="Eqs. 13 and 14 give the Fisher matrix of layer norm.",
    formula=(
        r"\chi_i = \mathbf x - \frac{\partial\mu_i}{\partial w_i} - "
        r"\frac{a_i-\mu_i}{\sigma_i}\frac{\partial\sigma_i}{\partial w_i}"
    ),
    context=Context(
        sentence=(
            "Without loss of generality, we denote F̄ as the Fisher information matrix under the normalized "
            "multi-dimensional GLM with the additional gain parameters θ = vec([W, b, g]ᵀ):"
        ),
        before=(
            "We obtain normalized GLMs by applying the normalization methods to the summed inputs a in the original "
            "model through μ and σ."
        ),
        after=(
            "[Eqs. 13, 14] … Notice that, comparing to standard GLM, the block F̄_ij along the weight vector w_i "
            "direction is scaled by the gain parameters and the normalization scalar σ_i."
        ),
        readings=(
            Reading(
                "The derivatives of μ_i and σ_i in Eq. 14 are those of layer norm, and the blocks F̄_ij are those of "
                "“the Fisher information matrix under the normalized” GLM, layer norm's among them.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "The printed matrix lacks the derivatives of z_k by w_i for k ≠ i. Its diagonal blocks are right up to "
            "O(1/H), but it prints the blocks of i ≠ j too, and calls them the Fisher matrix, not an approximation. "
            "For batch norm and weight norm the equations hold (equation.13_14.bn, equation.13_14.wn)."
        ),
    ),
    erratum=Erratum(
        Consequence.CONCLUSION,
        "Eqs. 13 and 14 are not the Fisher matrix of layer norm, where the norm of a single w_i sets no learning rate.",
    ),
    expected=Verdict.REFUTED,
    correction=(
        "μ and σ depend on every row of W. The weight blocks are E[σ⁻² (Π D_g Λ D_g Π)_ij x xᵀ] with Π = I − 𝟏𝟏ᵀ/H − "
        "nnᵀ/H of rank H − 2; those with biases and gains are E[σ⁻¹ (Π D_g Λ)_ij x] and E[σ⁻¹ (Π D_g Λ D_n)_ij x]. In "
        "a diagonal block Eq. 13 lacks, for independent responses, E[σ⁻² Σ_{k≠i} g_k² λ_k (1 + n_i n_k)²/H² · x xᵀ]."
    ),
)
def equation_13_14_ln(problem: Problem):
    """Printed against the definition; `lg.fisher`, missing term, rank of Π and divergences agree with it."""
    case = problem.case("ln")
    model, params, inputs = case
    exact, printed = reference.by_definition(*case), reference.as_printed(*case)
    shown = {"printed (units 1, 2)": corner(printed, case), "exact (units 1, 2)": corner(exact, case)}
    yield differ("data: printed and JᵀΛJ", printed, exact, role=Role.REFUTES, matrices=shown)
    deltas = directions(problem, case)
    kl = divergences(*case, deltas)
    forms = [np.sum(deltas @ F * deltas, 1) for F in (printed, exact)]
    yield differ("data: printed and finite divergences", forms[0], kl, role=Role.REFUTES)
    yield agree("data: JᵀΛJ and finite divergences", forms[1], kl, tol=KL_TOLERANCE, role=Role.CORRECTS)
    yield from certified("data", case, exact, deltas, kl, role=Role.CORRECTS)
    n, sigma = np.asarray(model.normalized(params, inputs)), np.asarray(case.statistics().scale[:, 0])
    variances = model.family.variance(model.natural_parameters(params, inputs)) / model.family.dispersion**2
    own = np.square(1 + n[:, 0, None] * n[:, 1:]) / params.units**2
    others = np.sum((np.asarray(variances) * np.square(np.asarray(params.gain)))[:, 1:] * own, 1) / sigma**2
    X = np.asarray(inputs)
    missing = (others[:, None] * X).T @ X / len(X)
    block = slice(0, params.inputs)
    difference = (exact - printed)[block, block]
    yield agree("data: the missing term of the first diagonal block", missing, difference, role=Role.CORRECTS)
    rank = int(np.linalg.matrix_rank(np.asarray(projector(model.normalizer, params, inputs[:1]))))
    yield same_integer("rank of Π and H − 2", rank, params.units - 2, role=Role.CORRECTS)
    case = problem.small("ln", families.Categorical())
    exact = reference.by_definition(*case)
    yield agree("softmax: lg.fisher's matrix and JᵀΛJ", operator(case).as_matrix(), exact, role=Role.CORRECTS)
    defined = numpy_reference.fisher("ln", case.model.family, case.params, case.inputs)
    yield agree("softmax: JᵀΛJ and NumPy reference", exact, defined, role=Role.CORRECTS)
    defined = int(np.linalg.matrix_rank(np.asarray(reference.factor(*case))))
    found = int(operator(case).rank())
    yield same_integer("softmax: lg.fisher's rank and that of √Λ J", found, defined, role=Role.CORRECTS)
    groups = problem.small("gn", families.Categorical())
    defined = numpy_reference.fisher("gn", groups.model.family, groups.params, groups.inputs)
    what = "softmax over two groups, with a Π of each: lg.fisher's matrix and NumPy reference"
    yield agree(what, operator(groups).as_matrix(), defined, role=Role.CORRECTS)
    off = exact * (1 + 1e6 * float(jnp.finfo(exact.dtype).eps))
    what = "control: agreements of JᵀΛJ with itself, off by 1e6 units in the last place"
    yield same_integer(what, int(agreement(off, exact).agrees), 0, role=Role.CORRECTS)
    values = np.geomspace(1, 1e-16, 30)
    with_gap = np.where(np.arange(30) < 20, values[0], values[-1])
    certain = [decide_rank(v, 60, 30).certain for v in (with_gap, values)]
    what = "control: certain ranks of singular values with a gap, less those without"
    yield same_integer(what, int(certain[0]) - int(certain[1]), 1, role=Role.CORRECTS)


def weight_matrices(u: sp.Matrix) -> tuple[sp.Matrix, sp.Matrix]:
    """Exact and printed ww part, unit by unit, for one input x = 1 and u = Wx, with Λ = I and g = 1.

    With J_kl the velocity of output k while w_l moves, the exact matrix is JᵀJ. The printed one is diagonal, since
    Λ is, and has the square of J_ll alone.
    """
    moves = sp.symbols(f"t:{len(u)}", real=True)
    outputs = LAYER_NORM.exactly(u + sp.Matrix(moves), matrix([[1]]))
    velocities = outputs.T.jacobian(moves).subs(dict.fromkeys(moves, 0)).applyfunc(sp.radsimp)
    exact = (velocities.T * velocities).applyfunc(lambda value: sp.radsimp(sp.expand(value)))
    return exact, sp.diag(*(sp.radsimp(sp.expand(velocities[l, l] ** 2)) for l in range(len(u))))


def weight_blocks(u: sp.Matrix) -> tuple[Expr, Expr]:
    """Exact and printed ww block of unit 1."""
    exact, printed = weight_matrices(u)
    return exact[0, 0], printed[0, 0]


def stated_blocks(u: sp.Matrix) -> tuple[Expr, Expr]:
    """The same for u of mean zero, by the factors (δ_k1 − (1 + n_k n_1)/H)/σ that are to be shown."""
    H = len(u)
    variance = sum(value**2 for value in u) / sp.Integer(H)
    column = [int(l == 0) - (1 + u[l] * u[0] / variance) / sp.Integer(H) for l in range(H)]
    return sum(c**2 for c in column) / variance, column[0] ** 2 / variance


@equation_13_14_ln.proof("refuted")
def equation_13_14_ln_proof() -> Counterexample:
    """Layer norm: other rows move unit i too; the printed diagonal block lacks a positive term."""
    v = field("v")
    moved = total(lambda d: v(d) * LAYER.X(n, d), D)
    only_i: Field = lambda l, d: KroneckerDelta(l, i) * v(d)
    sigma = sqrt(LAYER_NORM.square(LAYER))
    output = lambda l: LAYER_NORM(LAYER, n, l)
    projector = lambda l, m: KroneckerDelta(l, m) - (1 + output(l) * output(m)) / H
    square = total(lambda l: projector(k, l) * projector(l, i), H)
    factor = lambda l: projector(l, i)
    exact = total(lambda l: LAMBDA(l) * (GAIN(l) * factor(l)) ** 2, H)
    printed = LAMBDA(i) * (GAIN(i) * factor(i)) ** 2
    missing = total(
        lambda l: (1 - KroneckerDelta(l, i)) * LAMBDA(l) * GAIN(l) ** 2 * (1 + output(i) * output(l)) ** 2 / H**2, H
    )
    correct = Proof(
        r"\frac{\partial z_k}{\partial w_i} = \frac{g_k}{\sigma}\Big(\delta_{ki} - \frac{1+n_k n_i}{H}\Big)x,\quad "
        r"F_{w_iw_i} - \text{printed} = "
        r"E\Big[\sigma^{-2}\sum_{k\neq i} g_k^2\lambda_k\frac{(1+n_in_k)^2}{H^2}xx^\top\Big]",
        (
            confirmed(
                equality(
                    "The exact Jacobian, with the projector [i=k] − (1 + n_i n_k)/H of rank H − 2",
                    along(LAYER_NORM, only_i, unit=k),
                    factor(k) * moved / sigma,
                    r"\partial n_k/\partial w_i \cdot v",
                ),
                equality("It is a projector", square, projector(k, i), r"(\Pi^2)_{ki}"),
                equality("of this trace", total(lambda l: projector(l, l), H), H - 2, r"\mathrm{tr}\,\Pi"),
                fact(
                    "At the instance these are the squared velocities of all outputs, and of the unit's own",
                    r"\sum_k\,\dot n_k^2 = \sigma^{-2}\,\sum_k\,([k=1] - (1 + n_k\,n_1)/H)^2",
                    lambda: weight_blocks(SMALL["W"] * SMALL["x"]) == stated_blocks(SMALL["W"] * SMALL["x"]),
                ),
            ),
            equality("χ_i of Eq. 14", chi(LAYER_NORM, lambda l, d: v(d)), factor(i) * moved, r"\chi_i^\top v"),
            equality(
                "Exact block less printed block, along v, at each case",
                exact - printed,
                missing,
                r"\sigma^2(v^\top\Delta v)/(v^\top x)^2",
            ),
        ),
        (Assumption("positive scale", r"\sigma > 0"),),
        name="the correction",
    )
    return changed(
        "equation.13_14.ln",
        r"\bar F_{w_iw_i} = E\left[\lambda_i\,g_i^2\sigma^{-2}\chi_i\chi_i^\top\right]",
        "Gaussian outputs, g = 1: block ww of unit 1, printed (left) and exact (right).",
        lambda values: weight_matrices(values["W"] * values["x"])[1],
        lambda values: weight_matrices(values["W"] * values["x"])[0],
        SMALL,
        correction=correct,
        names=(r"\bar F_{ww}\text{ as printed}", r"\bar F_{ww}"),
    )
