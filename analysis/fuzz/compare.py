"""Every route of a Fisher operator against the reference, and what became of a case."""

import math
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom._core.numerics import ConvergenceError

from analysis.fuzz.models import Case
from analysis.fuzz.outcome import EITHER, REFUSED, RIGHT, Outcome
from analysis.fuzz.reference import CLEAR, VACUOUS, Reference, reference

DRAWS = 64


class Skip(Exception):
    """Nothing to compare: the reference does not tell."""


@contextmanager
def settings() -> Iterator[None]:
    """As a user has it who wants float64: standard promotion of dtypes and ranks."""
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


def is_explained(error: BaseException) -> bool:
    """Whether an error is one of the library's own, and not one that came through it."""
    if not isinstance(error, ValueError | TypeError | MemoryError | ConvergenceError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(lg.__file__).parent in Path(frames[-1].filename).parents


def describe(error: BaseException) -> str:
    """Type, first line and place of an error."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if Path(lg.__file__).parent in Path(f.filename).parents
    ]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}{place}"[:300]


def _wide(value: Any) -> np.ndarray:
    return np.asarray(value).astype(np.float64)


class Routes:
    """The ways to ask for a Fisher matrix, each compared with the reference.

    A route gives its residual relative to the tolerance of the case: up to 1 is right.

    Attributes:
        case: the model.
        F: its operator.
        ref: the reference.
        generator: of vectors.
        rank: that the operator found.
    """

    def __init__(self, case: Case, F: Any, ref: Reference):
        self.case, self.F, self.ref = case, F, ref
        self.generator = np.random.default_rng([case.seed, 3])
        self.size = ref.matrix.shape[0]
        self.scale = ref.scale
        self.dtype = F.problem.dtype
        self.rank: int | None = None
        self.flagged = False
        self._decomposed: Any = None

    def all(self) -> dict[str, Callable[[], float]]:
        """Every route of this case; some, which take long, for a part of the seeds."""
        routes: dict[str, Callable[[], float]] = {
            "product": self.product,
            "product of a pytree": self.product_of_a_pytree,
            "products": self.products,
            "matrix": self.matrix,
            "diagonal": self.diagonal,
            "trace": self.trace,
            "block": self.block,
            "factor": self.factor,
            "quadratic form": self.quadratic_form,
            "singular values": self.singular_values,
            "rank": self.measured_rank,
            "null space": self.nullspace,
            "solution": self.solution,
            "damped solution": self.damped_solution,
            "sample": self.sample,
        }
        some = {
            0: ("many products", self.many_products),
            1: ("matrix inside jit", self.matrix_inside_jit),
            2: ("damped solution by products", self.damped_solution_by_products),
            3: ("largest eigenvalues", self.eigenvalues),
            4: ("columns of the form", self.form_of_columns),
        }
        name, route = some[self.case.seed % len(some)]
        return routes | {name: route}

    # Comparison.

    def _close(self, found: Any, expected: Any, scale: float, times: float = 1.0) -> float:
        """The largest difference, in units of the tolerance of numbers of this scale."""
        found, expected = _wide(found), np.asarray(expected, float)
        if found.shape != expected.shape:
            raise AssertionError(f"shape {found.shape}, expected {expected.shape}")
        if not found.size:
            return 0.0
        if not np.isfinite(found).all():
            return math.inf
        gap = float(np.max(np.abs(found - expected)))
        if gap == 0:
            return 0.0
        return gap / max(scale * self.ref.tolerance * times, 1e-290)

    def _vectors(self, count: int) -> np.ndarray:
        values = self.generator.normal(size=(self.size, count)).astype(self.dtype)
        return values.astype(np.float64)

    def _image_scale(self, v: np.ndarray) -> float:
        return float(np.max(self.scale * np.sum(np.abs(v), 0), initial=0.0))

    def _tangent(self, v: np.ndarray) -> Any:
        """A vector as a pytree like the differentiated leaves."""
        leaves, tree = jax.tree.flatten(self.F.in_structure())
        spans = self.ref.spans.values()
        parts = [jnp.asarray(v[s].reshape(leaf.shape), leaf.dtype) for leaf, s in zip(leaves, spans, strict=True)]
        return jax.tree.unflatten(tree, parts)

    def _flat(self, tangent: Any) -> np.ndarray:
        return np.concatenate([_wide(leaf).reshape(-1) for leaf in jax.tree.leaves(tangent)])

    def _decomposition(self) -> Any:
        if self._decomposed is None:
            self._decomposed = self.F.decompose()
        return self._decomposed

    # Routes.

    def product(self) -> float:
        v = self._vectors(1)
        return self._close(self.F @ jnp.asarray(v[:, 0], self.dtype), self.ref.matrix @ v[:, 0], self._image_scale(v))

    def product_of_a_pytree(self) -> float:
        v = self._flat(self._tangent(self._vectors(1)[:, 0]))
        found = self._flat(self.F.mv(self._tangent(v)))
        return self._close(found, self.ref.matrix @ v, self._image_scale(v[:, None]))

    def products(self) -> float:
        v = self._vectors(3)
        return self._close(self.F.mm(jnp.asarray(v, self.dtype)), self.ref.matrix @ v, self._image_scale(v))

    def many_products(self) -> float:
        v = self._vectors(40)
        return self._close(self.F @ jnp.asarray(v, self.dtype), self.ref.matrix @ v, self._image_scale(v))

    def matrix(self) -> float:
        found = _wide(self.F.as_matrix())
        if not np.allclose(
            found, found.T, rtol=0, atol=4 * float(jnp.finfo(self.dtype).eps) * self.scale, equal_nan=True
        ):
            raise AssertionError(f"the matrix is not symmetric: {np.max(np.abs(found - found.T)):.2g}")
        return self._close(found, self.ref.matrix, self.scale)

    def matrix_inside_jit(self) -> float:
        if self.case.arguments.get("method") == "empirical":
            raise Skip
        arrays, others = _partition(self.case.params)

        @jax.jit
        def matrix(arrays):
            params = jax.tree.map(lambda a, o: o if a is None else a, arrays, others, is_leaf=lambda a: a is None)
            return self.case.fisher(params=params).as_matrix()

        return self._close(matrix(arrays), self.ref.matrix, self.scale)

    def diagonal(self) -> float:
        return self._close(self.F.diagonal(), np.diag(self.ref.matrix), self.scale)

    def trace(self) -> float:
        return self._close(self.F.trace(), np.trace(self.ref.matrix), self.scale * self.size)

    def block(self) -> float:
        if tuple(self.F.leaves) != tuple(self.ref.spans):
            raise AssertionError(f"leaves {self.F.leaves}, expected {tuple(self.ref.spans)}")
        i, j = self.generator.choice(list(self.ref.spans), 2)
        expected = self.ref.matrix[self.ref.spans[i], self.ref.spans[j]]
        return self._close(self.F.block(str(i), str(j)), expected, self.scale)

    def factor(self) -> float:
        A = _wide(self.F.factor())
        return self._close(A.T @ A, self.ref.matrix, self.scale)

    def quadratic_form(self) -> float:
        v = self._flat(self._tangent(self._vectors(1)[:, 0]))
        scale = self.scale * float(np.sum(np.abs(v))) ** 2
        flat = self._close(self.F.quadratic_form(jnp.asarray(v, self.dtype)), v @ self.ref.matrix @ v, scale)
        return max(flat, self._close(self.F.quadratic_form(self._tangent(v)), v @ self.ref.matrix @ v, scale))

    def form_of_columns(self) -> float:
        v = self._vectors(2)
        scale = self.scale * float(np.max(np.sum(np.abs(v), 0))) ** 2
        expected = np.einsum("pk,pq,qk->k", v, self.ref.matrix, v)
        return self._close(self.F.quadratic_form(jnp.asarray(v, self.dtype)), expected, scale)

    def singular_values(self) -> float:
        s = np.sort(_wide(self.F.singular_values()))[::-1]
        expected = self.ref.singular_values
        if len(s) < self.size:
            s = np.concatenate([s, np.zeros(self.size - len(s))])
        rest = float(np.max(s[self.size :], initial=0.0))
        # each eigenvalue s² is as right as the matrix
        squares = self._close(np.square(s[: self.size]), np.square(expected), self.scale, float(self.size))
        return max(squares, self._close(np.array([rest]), np.zeros(1), self.scale**0.5))

    def eigenvalues(self) -> float:
        count = min(2, self.size)
        expected = np.square(self.ref.singular_values[:count])
        return self._close(self.F.eigenvalues(count), expected, self.scale, float(self.size))

    def measured_rank(self) -> float:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = self.F.rank()
        certain = getattr(found, "certain", True) and getattr(self._decomposition().decision, "certain", True)
        self.rank, self.flagged = int(found), bool(caught) or not certain
        if self.flagged:
            return 0.0
        if self.rank > self.ref.bound:
            raise AssertionError(f"rank {self.rank} is above its bound {self.ref.bound}")
        if self.ref.rank is None:
            s, (least, largest) = self.ref.singular_values, self.ref.ranks
            least = min(least, int(np.sum(s > CLEAR * float(jnp.finfo(self.case.dtype).eps) * s[0])))
            if not least <= self.rank <= largest:
                raise AssertionError(f"rank {self.rank}, plausible are {least} to {largest}")
            raise Skip
        if self.rank != self.ref.rank and not self._visible_rank() == self.rank:
            raise AssertionError(f"rank {self.rank}, expected {self.ref.rank}, and nothing says that it is not certain")
        return 0.0

    def _visible_rank(self) -> int | None:
        """The rank in low precision, where signals below one rounding error of the largest are not in the numbers.

        The kept ones must be ten times as large. This was 1e4, with which seeds 1012, 1025 and 1137 failed: their
        signals of 0.002 to 0.4 rounding errors are below what a rank is documented to count.
        """
        s, eps = self.ref.singular_values, float(jnp.finfo(self.case.dtype).eps)
        if self.case.dtype == "float64" or self.ref.rank in {None, 0}:
            return None
        seen = int(np.sum(s > eps * s[0]))
        return seen if seen and s[seen - 1] > 10 * eps * s[0] else None

    def _known_rank(self) -> int:
        """The rank, where the operator knows it, too."""
        if self.rank is None:
            self.measured_rank()
        if self.ref.rank is None or self.flagged or self.rank != self.ref.rank:
            raise Skip
        return self.ref.rank

    def _conditioned(self, rank: int, power: int) -> float:
        """How much a relative error of F is amplified along the weakest identifiable direction."""
        s = self.ref.singular_values
        amplified = (s[0] / s[rank - 1]) ** power if rank else 1.0
        if amplified * self.ref.tolerance > 1e-2 * max(1.0, self.ref.tolerance / 1e-4):
            raise Skip
        return amplified

    def nullspace(self) -> float:
        rank = self._known_rank()
        basis = _wide(self.F.nullspace().basis)
        if basis.shape != (self.size, self.size - rank):
            raise AssertionError(f"basis {basis.shape}, expected {(self.size, self.size - rank)}")
        if not basis.shape[1]:
            return 0.0
        orthonormal = self._close(basis.T @ basis, np.eye(basis.shape[1]), 1.0, 10.0)
        if not rank:
            return orthonormal
        amplified = self._conditioned(rank, 1)
        range_ = self.ref.vectors[:rank]
        return max(orthonormal, self._close(range_ @ basis, np.zeros((rank, basis.shape[1])), amplified, 10.0))

    def solution(self) -> float:
        rank = self._known_rank()
        s, V = self.ref.singular_values[:rank], self.ref.vectors[:rank]
        gradient = (s * self.generator.normal(size=rank)) @ V
        gradient = gradient.astype(self.dtype).astype(float)
        decomposition = self._decomposition()
        found = self.F.solve(jnp.asarray(gradient, self.dtype), decomposition=decomposition)
        x = _wide(found.value)
        if x.shape != (self.size,):
            raise AssertionError(f"shape {x.shape}")
        if not rank:
            return self._close(x, np.zeros(self.size), 1.0)
        projected = V.T @ (V @ gradient)
        image = self.ref.matrix @ x
        scale = s[0] ** 2 * float(np.linalg.norm(x)) + float(np.linalg.norm(gradient))
        backward = self._close(V.T @ (V @ image), projected, scale, 10.0)
        try:
            amplified = self._conditioned(rank, 2)
        except Skip:
            return backward
        expected = V.T @ ((V @ gradient) / np.square(s))
        forward = self._close(x, expected, float(np.linalg.norm(expected)) * amplified, 10.0)
        return max(backward, forward)

    def _damped(self, times: float, **arguments: Any) -> float:
        s, V = self.ref.singular_values, self.ref.vectors
        if not s[0] > 0:
            raise Skip
        damping = 0.1 * float(s[0]) ** 2
        gradient = (self.ref.matrix @ self._vectors(1)[:, 0] / s[0]).astype(self.dtype).astype(float)
        arguments = {"damping": damping} | arguments
        found = self.F.solve(self._tangent(gradient), **arguments)
        expected = V.T @ ((V @ gradient) / (np.square(s) + damping))
        norm = float(np.linalg.norm(expected))
        return self._close(self._flat(found.value), expected, norm, times)

    def damped_solution(self) -> float:
        # the gradient's rounding lies along null directions too, where it is divided by the damping alone
        return self._damped(100.0, decomposition=self._decomposition())

    def damped_solution_by_products(self) -> float:
        # its own tolerance for the residual is eps^(5/8)
        reached = float(jnp.finfo(self.dtype).eps) ** 0.625
        return self._damped(100.0 + 20 * reached / self.ref.tolerance, method="cg")

    def sample(self) -> float:
        rank = self._known_rank()
        key = jax.random.key(self.case.seed)
        draws = _wide(self.F.sample(key, DRAWS, decomposition=self._decomposition()))
        if draws.shape != (DRAWS, self.size):
            raise AssertionError(f"shape {draws.shape}")
        if not np.isfinite(draws).all():
            return math.inf
        if not rank:
            return self._close(draws, np.zeros_like(draws), 1.0)
        amplified = self._conditioned(rank, 2)
        null = self.ref.vectors[rank:]
        largest = float(np.max(np.linalg.norm(draws, axis=1)))
        leak = (
            self._close(draws @ null.T, np.zeros((DRAWS, len(null))), largest * amplified, 10.0) if len(null) else 0.0
        )
        # xᵀFx sums to a χ² of rank · DRAWS degrees of freedom
        freedom = rank * DRAWS
        form = float(np.einsum("kp,pq,kq->", draws, self.ref.matrix, draws))
        if abs(form - freedom) > 8 * math.sqrt(2 * freedom) + 60:
            raise AssertionError(
                f"Σ xᵀFx of {DRAWS} draws is {form:.4g}, expected {freedom} ± {math.sqrt(2 * freedom):.2g}"
            )
        return leak


def _partition(params: Any) -> tuple[Any, Any]:
    """Arrays and other leaves, with None in the place of each other."""
    is_array = lambda v: isinstance(v, jax.Array)  # noqa: E731
    return jax.tree.map(lambda v: v if is_array(v) else None, params), jax.tree.map(
        lambda v: None if is_array(v) else v, params
    )


def run(case: Case, fisher: Callable = lg.fisher, **more: Any) -> Outcome:
    """Asks the library for the matrix of a case by every route, and compares.

    Args:
        case: the model.
        fisher: `lg.fisher`, or another function of the same arguments (to see the comparison fail).
        more: further arguments of it, such as a mesh.

    Returns:
        What became of it.
    """
    start = time.perf_counter()
    outcome = Outcome(case.seed, case.name, expectation=case.expectation, dtype=case.dtype)
    with settings(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _run(case, outcome, fisher, more)
    outcome.warned = sorted({f"{w.category.__name__}: {str(w.message).splitlines()[0][:200]}" for w in caught})
    for w in caught:
        if issubclass(w.category, FutureWarning | DeprecationWarning):
            outcome.worsen(
                "crash", "warning", f"{w.category.__name__}, an error in a later JAX: {str(w.message)[:150]}"
            )
    outcome.seconds = time.perf_counter() - start
    return outcome


def _run(case: Case, outcome: Outcome, fisher: Callable, more: dict) -> None:
    refused = None
    operator = None
    try:
        operator = case.fisher(fisher, **more)
    except Exception as error:
        if not is_explained(error):
            outcome.worsen("crash", "construction", describe(error))
            return
        refused = describe(error)
    if refused is not None and case.expectation != RIGHT:
        outcome.worsen("refused", "construction", refused)
        return
    if case.expectation == REFUSED:
        outcome.worsen("silent", "construction", "a matrix, where there is none")
        return
    drawn = None
    if operator is not None and case.arguments.get("method") == "monte_carlo":
        drawn = np.asarray(operator.problem.scores, float)
    ref = reference(case, drawn)
    outcome.tolerance, outcome.parameters = ref.tolerance, ref.matrix.shape[0]
    if refused is not None:
        outcome.worsen("over-refused" if ref.valid else "refused", "construction", refused)
        return
    if not ref.valid:
        outcome.worsen("silent", "construction", "a matrix, where the model is not finite or outside the domain")
        return
    if not ref.tolerance <= VACUOUS[case.dtype]:  # it is NaN where the reference has no derivative in this program
        outcome.worsen("undecided", "construction", f"tolerance {ref.tolerance:.2g}: the model is badly conditioned")
        return
    compare(case, operator, ref, outcome)


def compare(case: Case, operator: Any, ref: Reference, outcome: Outcome) -> None:
    """Runs every route.

    Args:
        case: the model.
        operator: its Fisher operator.
        ref: the reference.
        outcome: to which findings are added.
    """
    routes = Routes(case, operator, ref)
    for name, route in routes.all().items():
        try:
            residual = route()
        except Skip:
            continue
        except AssertionError as error:
            outcome.worsen("silent", name, str(error))
            continue
        except Exception as error:
            kind = "refused" if case.expectation == EITHER or ref.rank is None else "over-refused"
            outcome.worsen(kind if is_explained(error) else "crash", name, describe(error))
            continue
        outcome.residuals[name] = residual
        if not residual <= 1:
            size = "not finite" if math.isinf(residual) else f"{residual * ref.tolerance:.2g} of its scale"
            outcome.worsen("silent", name, f"differs by {size}, tolerance {ref.tolerance:.2g}")
    outcome.rank = (ref.rank, routes.rank)
