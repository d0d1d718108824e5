"""Table 1, and Eq. 3: what each method does, and its cells."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp

from lngeom._core.numerics import agreement
from lngeom._core.types import GLMParameters
from lngeom.claims import (
    Problem,
    Verdict,
    agree,
    claim,
    differ,
    numpy_reference,
    proves,
    same_integer,
    vanishes,
)
from lngeom.claims.context import Context, Reading
from lngeom.claims.evidence import Evidence
from lngeom.claims.paper import TABLE1
from lngeom.claims.problem import NORMALIZERS, TITLES, Case
from lngeom.claims.registry import Claim, register
from lngeom.methods.table import Cell
from lngeom.methods.transformations.actions import Column, Transformation
from lngeom.methods.transformations.columns import (
    TABLE1 as COLUMNS,
)
from lngeom.symbolic.jacobian import LAYER, SIGMA
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, Method
from lngeom.symbolic.proof import (
    Proof,
    Step,
    changed,
    equality,
    fact,
    matrix,
    refutation,
)
from lngeom.symbolic.sums import H, N, i, mean, n
from lngeom.symbolic.table import prove_recorded

TOPIC = "invariance"
POSITIVE = ("δ > 0", "ε = 0", "σ > 0")
CELLS = Context(
    sentence="Table 1: Invariance properties under the normalization methods.",
    before="",
    after="Table 1 highlights the following invariance results for three normalization methods.",
    readings=(
        Reading(
            "A cell names a transformation. A re-scaling is by a positive factor, and Eqs. 2 and 3 have no ε.",
            Verdict.HOLDS,
        ),
        Reading(
            "With a factor of any sign, “Invariant” to a re-scaling would be conditional as in Eqs. 6 and 7: a "
            "negative factor changes the sign of the normalized values.",
            Verdict.REFUTED,
        ),
    ),
    verdict=(
        "These are the table's own assumptions, so a cell that is right under them holds. Eqs. 6 and 7 are "
        "conditional because they print the factor δ as a free variable."
    ),
)
DRAWS = 3
REFERENCE_ROWS = 256


def outputs(case: Case, transformation: Transformation | None = None, *, repair_sign: bool = False):
    """Natural parameters, after a transformation if one is given; `repair_sign` also sends g to −g."""
    params, inputs = (case.params, case.inputs) if transformation is None else transformation(case.params, case.inputs)
    if repair_sign:
        params = GLMParameters(params.weights, params.bias, -params.gain)
    return case.model.natural_parameters(params, inputs)


def table_cell(method: str, column: Column, invariant: bool):
    """The check of one cell of Table 1: the library on the whole data set, and the reference on its first rows."""

    def check(problem: Problem) -> Iterator[Evidence]:
        case = problem.case(method, name=f"{method}.{column.name}")
        params, inputs = jax.tree.map(np.asarray, (case.params, case.inputs))
        few = inputs[:REFERENCE_ROWS]
        compare = agree if invariant else differ
        before, reference = outputs(case), numpy_reference.natural_parameters(method, params, few)
        moved_values, reference_values = [], []
        for draw in range(DRAWS):
            key = problem.key(f"{column.name} {draw}")
            large = column.draw(key, params, inputs)(params, inputs)
            moved_values.append(case.model.natural_parameters(large[0], problem.rounded(large[1])))
            moved = column.draw(key, params, few)(params, few)
            reference_values.append(numpy_reference.natural_parameters(method, *moved))
        yield compare(f"{DRAWS} draws, library, all rows", np.stack([before] * DRAWS), np.stack(moved_values))
        what = f"{DRAWS} draws, NumPy reference, {len(few)} rows"
        values = np.stack([reference] * DRAWS), np.stack(reference_values)
        yield agree(what, *values, tol=1e-12) if invariant else differ(what, *values)
        library = case.model.normalizer(params.weights, few)
        yield agree("library and NumPy reference", library, numpy_reference.normalized(method, params.weights, few))

    return check


def _register_table() -> None:
    for method, row in TABLE1.items():
        for column in COLUMNS:
            invariant = row[column.name]
            says = "is invariant to" if invariant else "is not invariant to"
            id = f"table1.{method}.{column.name}"
            register(
                Claim(
                    id,
                    topic=TOPIC,
                    source="Table 1",
                    statement=f"{TITLES[method]} {says} {column.title.lower()}.",
                    formula=column.formula,
                    assumptions=POSITIVE if invariant else (),
                    context=CELLS,
                    expected=Verdict.HOLDS,
                    check=table_cell(method, column, invariant),
                )
            )
            recorded = Cell.INVARIANT if invariant else Cell.CHANGED
            proves(id)(functools.partial(prove_recorded, NORMALIZERS[method], column, recorded))


_register_table()


@claim(
    "equation.3",
    topic=TOPIC,
    source="Eqs. 2, 3; Section 5.1",
    formerly=("text.references_swapped",),
    statement=(
        "Layer norm's μ and σ (Eq. 3) are the mean and standard deviation of one case's summed inputs over the H "
        "units, batch norm's (Eq. 2) those of one unit's over the cases."
    ),
    formula=r"\mu = \tfrac1H\sum_i a_i,\quad \sigma = \sqrt{\tfrac1H\sum_i (a_i-\mu)^2}",
    assumptions=("H ≥ 2", "σ > 0"),
    expected=Verdict.HOLDS,
)
def equation_3(problem: Problem):
    """Normalized values have mean 0 and mean square 1 within each case; H = 2 leaves only signs."""
    model, params, inputs = problem.case("ln")
    n = model.normalized(params, inputs)
    yield vanishes("mean over units of the normalized values", jnp.mean(n, 1), scale=1.0)
    yield agree("their mean square is 1", jnp.mean(jnp.square(n), 1), jnp.ones(len(n), n.dtype))
    few = inputs[:REFERENCE_ROWS]
    by_equation = {k: numpy_reference.natural_parameters(k, params, few) for k in ("ln", "bn")}
    for method, other in (("ln", "bn"), ("bn", "ln")):
        found = problem.case(method).model.natural_parameters(params, few)
        yield agree(f"{TITLES[method]}: library and NumPy reference", found, by_equation[method])
        yield differ(f"{TITLES[method]} is not {TITLES[other].lower()}", found, by_equation[other])
    two = problem.small("ln", shape=(60, 5, 2))
    signs = two.model.normalized(two.params, two.inputs)
    yield agree("for H = 2 every normalized value is −1 or 1", jnp.abs(signs), jnp.ones_like(signs))
    yield resolution(np.asarray(n))


def resolution(values: np.ndarray) -> Evidence:
    """A control of the comparison that all claims rest on.

    An error of one part in 10⁸ (more where the digits of the dtype do not reach so far) is not taken for rounding, and
    not for a witness of a difference.
    """
    size = max(1e-8, 3e4 * float(np.finfo(values.dtype).eps))
    found = agreement(values, values * (1 + size))
    what = f"control: values {size:.0e} apart are called equal or different, so many times"
    return same_integer(what, found.agrees + found.differs, 0)


def standardizes(method: Method, size: sp.Expr) -> tuple[Step, Step]:
    """Over the index whose moments a method uses, n has mean zero and mean square one."""
    entry = (lambda t: method(LAYER, n, t)) if size is H else (lambda t: method(LAYER, t, i))
    return (
        equality("Normalized summed inputs have mean zero", mean(entry, size), 0),
        equality("and mean square one", mean(lambda t: entry(t) ** 2, size), 1),
    )


@equation_3.proof()
def equation_3_proof() -> Proof:
    """Layer norm's μ and σ standardize the units of each case, batch norm's the cases of each unit."""

    def one_unit() -> bool:
        a = sp.Symbol("a", real=True)
        return LAYER_NORM.rows([[a]], [[sp.S.One]], sp.S.Zero) == [[(0, 0)]]

    def two_units() -> bool:
        a, b = sp.symbols("a b", real=True)
        (pairs,) = LAYER_NORM.rows([[a], [b]], [[sp.S.One]], sp.S.Zero)
        return all(sp.expand(numerator**2 - square) == 0 for numerator, square in pairs)

    two_equations = changed(
        "equation.3 by the other equation",
        r"\text{Eqs. 2 and 3 give the same statistics}",
        "The normalized first unit of the first case by Eq. 2 (left) and by Eq. 3 (right).",
        lambda v: BATCH_NORM.exactly(v["W"], v["X"]),
        lambda v: LAYER_NORM.exactly(v["W"], v["X"]),
        {"W": matrix([[1, 0], [0, 1], [1, 1]]), "X": matrix([[1, 0], [0, 1], [3, 2]])},
        names=(r"n\text{ by Eq. 2}", r"n\text{ by Eq. 3}"),
    )
    return Proof(
        r"\tfrac1H\sum_i n_i = 0,\quad \tfrac1H\sum_i n_i^2 = 1,\quad n_i = (a_i - \mu)/\sigma",
        (
            *standardizes(LAYER_NORM, H),
            *standardizes(BATCH_NORM, N),
            refutation("Eqs. 2 and 3 are not the same", two_equations),
            equality(
                "σ² is the mean of squares less the square of the mean",
                LAYER_NORM.square(LAYER),
                mean(lambda j: LAYER.a(n, j) ** 2, H) - mean(lambda j: LAYER.a(n, j), H) ** 2,
            ),
            fact("One unit: σ is always zero, n is 0/0", r"H = 1:\ a - \mu = \sigma = 0", one_unit),
            fact("Two units: n is a sign, it keeps no magnitude", r"H = 2:\ n_i^2 = 1", two_units),
        ),
        (SIGMA,),
    )
