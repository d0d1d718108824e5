"""`FisherOperator`: the Fisher matrix as a linear operator, with everything one asks of it."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom._core import decompositions as _decompositions, numerics
from lngeom._core.arguments import check_count, check_nonnegative
from lngeom._core.draws import probe_key
from lngeom._core.progress import watched
from lngeom._core.text import counted
from lngeom._core.trees import leaf_rows, leaf_slices
from lngeom._core.types import GLMParameters, is_concrete
from lngeom.information import _diagonal, _krylov, _matrix, _saved, _solve, _spectrum
from lngeom.information._agreement import agreed, probe_vector, require_agreement
from lngeom.information._nullspace import MeasuredNullspace, measure
from lngeom.information._products import (
    AbstractFisher,
    as_tangent,
    at_problem,
    flat_map,
    light,
    row_chunks,
    tree_map,
)
from lngeom.information.approximations.approximate import EXACT, approximate
from lngeom.information.approximations.operator import ApproximateFisher
from lngeom.information.orders import to_paper_order


class FisherOperator(AbstractFisher):
    r"""$F = \frac1N \sum_n J_n^\top \Lambda_n J_n$: symmetric and positive semidefinite.

    Made by `lg.fisher`. Vectors are pytrees like the differentiated parameters, or ravelled
    (`jax.flatten_util.ravel_pytree`). A mean over samples; where outputs are [N T C], of the sum over unmasked
    positions.
    """

    def __repr__(self) -> str:
        """What matrix it is, of what, and how products are computed."""
        plan = self.plan
        kept = "derivative kept" if plan.store else f"chunks of {counted(plan.chunk, 'sample')}"
        return self._described(f"{counted(self.samples, 'sample')}, {kept}")

    def _described(self, data: str) -> str:
        size, problem = self.in_size(), self.problem
        kind = f"{size:,} × {size:,} {problem.dtype}, {self.method}, {problem.family.name}"
        return f"{type(self).__name__}({kind}, {data})"

    def __add__(self, other: Any) -> Any:
        """The sum with another Fisher matrix of these parameters, a `FisherOperator` too, or with another operator."""
        found = added(self, other)
        return super().__add__(other) if found is NotImplemented else found

    @light
    def as_matrix(self, order: str | None = None, *, progress: bool = False) -> Float[Array, "P P"]:
        """The matrix [P P].

        Args:
            order: None for the order of `ravel_pytree`; "paper" for θ = [w_1, b_1, g_1, …] (normalized GLM).
            progress: show a progress bar (not under jit, one device).

        Raises:
            MemoryError: if it would not fit.
            ValueError: for another order, or "paper" for something else than a whole normalized GLM.
        """
        self._require_matrix()
        if order not in {None, "paper"}:
            raise ValueError(f"order must be None or 'paper'; got {order!r}")
        if progress and self.problem.is_concrete and self._placement.mesh is None and not self.problem.coupled:
            matrix = self._in_agreement(_matrix.dense_with_progress(self.problem, row_chunks(self)))
        else:
            matrix = self._in_agreement(self.summed(_matrix.dense))
        if order is None:
            return matrix
        params = self._glm_parameters("order='paper'")
        return to_paper_order(matrix, params.units, params.inputs)

    def block(self, i: int | str, j: int | str) -> Float[Array, "p q"]:
        """A block: of two units of a normalized GLM in the paper's order, or of two leaves by path.

        Args:
            i: unit, or path of a leaf.
            j: unit, or path of a leaf.

        Raises:
            ValueError: if there is no such unit or leaf.
        """
        if isinstance(i, str) and isinstance(j, str):
            if unknown := {i, j} - set(self.leaves):
                raise ValueError(f"no such leaf: {sorted(unknown)}; the leaves are {list(self.leaves)}")
            part = self.problem.restrict({i, j})
            if not part.size:
                return jnp.zeros((0, 0), self.problem.dtype)
            self.plan.require(3 * part.size**2 * part.dtype.itemsize, "these blocks", "use products (mv, mm)")
            where = leaf_slices(part.params)
            matrix = _matrix.dense(part, row_chunks(self))
            return at_problem(self, part)._in_agreement(matrix, whole=self)[where[i], where[j]]
        params = self._glm_parameters("a block of units")
        width = params.inputs + 2
        if not (isinstance(i, int) and isinstance(j, int) and max(i, j) < params.units and min(i, j) >= -params.units):
            raise ValueError(f"units are numbered 0 … {params.units - 1}; got {i!r}, {j!r}")
        i, j = i % params.units, j % params.units
        return self.as_matrix("paper")[i * width : (i + 1) * width, j * width : (j + 1) * width]

    @light
    def diagonal(self) -> Float[Array, " P"]:
        """The diagonal, without the matrix."""
        vector = probe_vector(self)
        diagonal, image = self.summed(_diagonal.diagonal_and_product, vector)
        require_agreement(self, "diagonal", image)
        return diagonal

    @light
    def trace(self) -> Float[Array, ""]:
        """The sum of the diagonal."""
        return jnp.sum(self.diagonal())

    @light
    def factor(self) -> Float[Array, "NR P"]:
        """Rows of √(Λ/N) J, [N·C P] (N·m rows for scores): factorᵀ·factor = F; columns as in `as_matrix`.

        Raises:
            MemoryError: if it would not fit.
        """
        self.plan.require(2 * self.plan.factor, "the factor", "use singular_values(), which streams it")
        return agreed(
            self, "factor", self.summed(_matrix.factor), lambda: self.summed(_matrix.factor, structured=False)
        )

    @light
    def singular_values(self) -> Float[Array, " k"]:
        """Singular values of the factor, descending: square roots of the eigenvalues."""
        self._require_decomposition()
        s = _decompositions.singular_values(self.triangular_factor())
        return s[: self.samples * self.problem.rows_per_sample]  # rows of padding add zeros

    def rank(self) -> numerics.Rank:
        """Numerical rank, from the factor (eager).

        An integer, with `certain` and `interval`: where no gap separates the singular values from the rounding errors
        of the model's own precision, the rank may be any in the interval, and a warning says so. A signal smaller than
        one rounding error of the largest singular value is not in the numbers, and is not counted.
        """
        with watched() as watch:
            watch(f"rank: singular values of the factor, {self.in_size():,} columns")
            s = self.singular_values()
        self._require_values("rank()", s)
        return _spectrum.checked_rank(_spectrum.rank_of(self, s), self.problem)

    @light
    def effective_rank(self) -> Float[Array, ""]:
        """Exponential of the entropy of the normalized eigenvalues (Roy & Vetterli 2007)."""
        return numerics.effective_rank(self.singular_values())

    def pseudo_logdet(self) -> Float[Array, ""]:
        """Sum of the logarithms of the nonzero eigenvalues."""
        s = self.singular_values()
        kept = jnp.arange(s.size) < _spectrum.rank_of(self, s).rank
        return 2 * jnp.sum(jnp.where(kept, jnp.log(jnp.where(kept, s, 1)), 0))

    def eigenvalues(self, k: int, *, key: PRNGKeyArray | None = None, steps: int | None = None) -> Float[Array, " k"]:
        """The k largest eigenvalues, descending: from a small factor, else by Lanczos iterations.

        Args:
            k: how many.
            key: for the start vector of the iterations.
            steps: of Lanczos without restarts, at least k, converged or not. By default they go on until every residual
                |F v − λ v| is at most √eps λ, or √eps eps^(2/3) of the largest eigenvalue where that is more (not under
                jit, where there are 2k + 20).

        Raises:
            ValueError: if k is not between 1 and P, or there are fewer steps.
            ConvergenceError: if the iterations do not converge.
        """
        if self._placement.params is not None and steps is None:
            return jnp.asarray(self.eigenpairs(k, key=key).values, self.problem.decomposition_dtype)
        k = check_count("k", k, 1, self.in_size(), bound="P")
        steps = steps if steps is None else check_count("steps", steps, k, bound="k")
        if steps is None and (k == self.in_size() or self._is_small):
            self.plan.require(self._decomposition_bytes, f"{k:,} eigenvalues", "ask for fewer")
            s = jnp.square(self.singular_values())
            return jnp.pad(s, (0, max(0, k - s.shape[0])))[:k]
        return _spectrum.leading_eigenvalues(self, k, key, steps)

    def eigenpairs(
        self, k: int, *, key: PRNGKeyArray | None = None, tolerance: float | None = None, width: int | None = None
    ) -> _krylov.RitzPairs:
        """The k largest eigenvalues with eigenvectors and residuals, for any P: vectors are never ravelled (eager).

        By Lanczos iterations with restarts. Vectors are pytrees like the parameters, and divided over devices as these
        are.

        Args:
            k: how many.
            key: for start vectors.
            tolerance: of each residual, relative to its eigenvalue (or to eps^(2/3) of the largest one where that is
                more); √eps of the parameters' dtype by default.
            width: vectors that are held at a time, at least k + 2; by default 2k + 12.

        Returns:
            Values, vectors with one more leading axis, measured residuals |F v − θ v|, and the number of products.

        Raises:
            ValueError: if a number does not fit.
            ConvergenceError: if the iterations do not converge.

        Example:
            >>> import jax, lngeom as lg
            >>> X = jax.random.normal(jax.random.key(0), (50, 3))
            >>> F = lg.fisher(lambda p, x: x @ p, jax.numpy.zeros((3, 2)), X, family=lg.families.Gaussian())
            >>> found = F.eigenpairs(2)
            >>> found.vectors.shape, bool((found.residuals < 1e-3).all())
            ((2, 3, 2), True)
        """
        self._require_values("eigenpairs()")
        k = check_count("k", k, 1, self.in_size(), bound="P")
        return _spectrum.leading_eigenpairs(self, k, key, tolerance, width)

    def estimate_diagonal(self, key: PRNGKeyArray, probes: int = 16) -> _krylov.DiagonalEstimate:
        """Diagonal and trace from random probes, for any P, with the trace's standard error (eager).

        Args:
            key: random key.
            probes: products, at least 2.

        Raises:
            ValueError: if probes is no whole number of at least 2.
        """
        self._require_values("estimate_diagonal()")
        return _krylov.estimate_diagonal(tree_map(self), _spectrum.wide_like(self.problem), key, probes)

    def spectral_density(
        self, key: PRNGKeyArray | None = None, *, probes: int = 8, steps: int = 40
    ) -> _krylov.SpectralDensity:
        """Density of eigenvalues by stochastic Lanczos quadrature, for any P: point masses.

        Raises:
            ValueError: if probes or steps is no whole number of at least 1.
        """
        key, dtype = probe_key() if key is None else key, self.problem.decomposition_dtype
        return _krylov.lanczos_density(flat_map(self), self.in_size(), dtype, key, probes, steps)

    def by_leaf(self) -> list[dict[str, Any]]:
        """A row for each leaf: its path, shape and size, its part of the trace, and its largest diagonal entry.

        Plain dicts of numbers, as `pandas.DataFrame(F.by_leaf())` takes them (eager).
        """
        diagonal = np.asarray(self.diagonal(), float)
        parts = ((row, diagonal[where]) for row, where in leaf_rows(self.problem.params))
        return [row | {"trace": float(part.sum()), "largest": float(part.max(initial=0))} for row, part in parts]

    def save(self, path: Path | str, parts: Sequence[str] = ("matrix", "singular_values"), **known: Array) -> None:
        """Writes numbers with the paths of their leaves and their provenance as a .npz (eager).

        Functions and parameters are not written: a file holds no code. `pickle` keeps the operator itself, where the
        model pickles.

        Args:
            path: of the file.
            parts: of "matrix", "factor", "singular_values" and "nullspace".
            **known: a part that has been computed before, by its name.

        Raises:
            ValueError: for another part, or a path that is not that of a .npz.
            MemoryError: if a part would not fit.

        Example:
            >>> import jax.numpy as jnp, lngeom as lg, tempfile
            >>> X = jnp.array([[1.0], [2.0]])
            >>> F = lg.fisher(lambda p, x: x @ p["w"], {"w": jnp.ones((1, 1))}, X, family=lg.families.Gaussian())
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     F.save(f"{folder}/fisher.npz", ["matrix"])
            ...     found = lg.FisherOperator.load(f"{folder}/fisher.npz")
            >>> found.leaves, found.block("w", "w").round(4).item(), found.provenance["family"]
            (('w',), 2.5, 'Gaussian')
        """
        _saved.save(self, Path(path), parts, known)

    @staticmethod
    def load(path: Path | str) -> _saved.SavedFisher:
        """The numbers that `save` wrote.

        Raises:
            ValueError: if the file holds something else.
        """
        return _saved.read(Path(path))

    # The null space, and what is solved beside it (eager).

    def decompose(self, rtol: float | None = None) -> _spectrum.Decomposition:
        """Singular value decomposition of the factor, for repeated `solve` and `sample`; at least in float32.

        Args:
            rtol: at least 0; singular values up to this times the largest are null (those that only an ε keeps up). By
                default the rank is decided as in `rank`, with its warning (not under jit).
        """
        check_nonnegative("rtol", 0 if rtol is None else rtol)
        decomposition = self._decomposed(rtol)
        if is_concrete(decomposition.singular_values):
            _spectrum.checked_rank(decomposition.decision, self.problem)
        return decomposition

    def nullspace(self) -> MeasuredNullspace:
        """Orthonormal basis of the null space, with its certificate; `.describe()` names each direction (eager).

        `.certain` says whether one gap separates it from the identifiable directions.

        Raises:
            MemoryError: if the basis would not fit.
        """
        with watched() as watch:
            watch(f"null space: decomposition of the factor, {self.in_size():,} columns")
            decomposition = self._decomposed()
            self._require_values("nullspace()", decomposition.singular_values)
            watch("null space: its residual")
            _spectrum.checked_rank(decomposition.decision, self.problem)
            return measure(self, decomposition)

    def solve(
        self,
        gradient: PyTree,
        damping: float | Array = 0.0,
        *,
        null: str = "keep",
        method: str | None = None,
        nullspace: Float[Array, "P k"] | None = None,
        decomposition: _spectrum.Decomposition | None = None,
        tolerance: float | None = None,
        limit: int | None = None,
        gauge: str = "exact",
    ) -> _solve.Solution:
        """Natural gradient: the solution of (F + λI) x = g; without damping that of minimum norm, (F⁺ g).

        Works under jit, scan and vmap, where the report holds arrays, nothing is raised or warned of, and no null space
        is predicted.

        Args:
            gradient: g, a pytree like params, ravelled [P], or several as columns [P K].
            damping: λ ≥ 0.
            null: what becomes of the part of g along null directions, where λ > 0: "keep" divides it by λ, as
                (F + λI)⁻¹ does; "drop" leaves it out. Where λ = 0 it is left out.
            method: "svd" (a decomposition of the factor) or "cg" (products only, which at λ = 0 needs a g without a
                part along null directions that it does not know); by size where None.
            nullspace: orthonormal basis of known null directions, for "cg"; by default those that theory predicts for a
                normalized GLM.
            decomposition: of an earlier `decompose`, for "svd".
            tolerance: relative residual for "cg"; by default eps^0.625 of the precision in which the model computes.
            limit: most iterations of "cg"; by default 10 P.
            gauge: "exact", or "broken", which drops null directions and also the symmetries that only an ε breaks.

        Returns:
            The solution, like the gradient given, and its report.

        Raises:
            ValueError: if a number does not fit, the gradient is not like the parameters, the method, gauge or null is
                unknown, or "cg" is to drop null directions that it does not know.
            ConvergenceError: if conjugate gradients do not reach the tolerance.

        Example:
            >>> import jax.numpy as jnp, lngeom as lg
            >>> apply = lambda p, x: x @ p["used"]
            >>> params = {"used": jnp.ones(1), "unused": jnp.ones(1)}
            >>> F = lg.fisher(apply, params, jnp.ones((5, 1)), family=lg.families.Gaussian())
            >>> whole, dropped = F.solve(jnp.ones(2), damping=0.1), F.solve(jnp.ones(2), damping=0.1, null="drop")
            >>> print(whole.value.round(3), dropped.value.round(3))
            [10.     0.909] [0.    0.909]
        """
        check_nonnegative("damping", damping)
        check_nonnegative("tolerance", 0 if tolerance is None else tolerance)
        limit = limit if limit is None else check_count("limit", limit, 1, what="a whole number of iterations")
        if method is None:
            method = "svd" if decomposition is not None or self.in_size() <= _spectrum.SMALL else "cg"
        kind = self.problem.layout.kind_of(gradient)
        if method == "svd" and decomposition is None:
            decomposition = self._decomposed()

        def one(g: PyTree) -> _solve.Solution:
            x, report = _solve.solve(
                self, g, damping, method, nullspace, decomposition, tolerance, limit, gauge, null_part=null
            )
            return _solve.Solution(x, **report)

        if kind == "tangent":
            return one(as_tangent(self, gradient))
        vectors = jnp.asarray(gradient)
        return one(vectors) if kind == "vector" else _solve.side_by_side(one, vectors)

    def project_horizontal(self, v: PyTree, nullspace: Float[Array, "P k"] | None = None) -> PyTree:
        """Removes the part of v along the null space (the measured one, or the one given).

        Args:
            v: a pytree like params, ravelled [P], or several as columns [P K].
            nullspace: orthonormal basis.

        Raises:
            ValueError: if v is none of these.
        """
        kind = self.problem.layout.kind_of(v)
        flat = self.problem.ravel(as_tangent(self, v)) if kind == "tangent" else jnp.asarray(v)
        if nullspace is None:
            wide = flat.astype(self.problem.decomposition_dtype)
            result = self._decomposed().identifiable(wide).astype(flat.dtype)
        else:
            result = flat - nullspace @ (nullspace.T @ flat)
        return self.problem.unravel(result) if kind == "tangent" else result

    def sample(
        self,
        key: PRNGKeyArray,
        count: int = 1,
        decomposition: _spectrum.Decomposition | None = None,
        *,
        method: str | None = None,
    ) -> Float[Array, "K P"]:
        """Draws of parameter changes from N(0, F⁺), one a row, none along the null space.

        Args:
            key: random key.
            count: how many.
            decomposition: of an earlier `decompose`, for "svd".
            method: "svd", or "cg" (exact metrics), which draws with products alone; by size where None.

        Raises:
            ValueError: if count is no whole number of at least 0, or the method is unknown or not for this metric.
        """
        count, exact = check_count("count", count, 0), self.problem.scores is None
        if method not in {None, "svd", "cg"}:
            raise ValueError(f"method must be 'svd' or 'cg'; got {method!r}")
        if method == "cg" and not exact:
            raise ValueError(f"method='cg' draws from an exact metric; got that of {self.method!r}: use 'svd'")
        if method == "cg" and self.in_parts:
            raise ValueError("method='cg' draws a response for each sample, which must be in memory: use 'svd'")
        by_products = exact and not self.in_parts and self.in_size() > _spectrum.SMALL
        if method == "cg" or (method is None and decomposition is None and by_products):
            return _solve.sample_by_products(self, key, count)
        known = self._decomposed() if decomposition is None else decomposition  # whose budget may exceed 32 bits
        return _solve.sample_by_decomposition(known._replace(budget=0), key, count)

    def approximate(
        self,
        kind: str = "ekfac",
        *,
        key: PRNGKeyArray | None = None,
        samples: int | None = None,
        convention: str = "expand",
        limit: int = EXACT,
    ) -> ApproximateFisher:
        """A structured approximation, block-diagonal by layers, with products, solve, sample and a measured error.

        Layers are read from the program of the derivative, through casts, views and loops of up to 32 steps. A layer
        with a kernel, a convolution included, has a Kronecker product (in groups one for each); gains and biases of
        norms have their exact block. A kernel that is used at several places has its exact block, or beyond `limit`
        entries one Kronecker product over all of them. A leaf that enters in another way has its exact block, or its
        diagonal where it has more than `limit` entries: one warning names these leaves, with the reasons.

        Args:
            kind: "kfac" (arXiv:1503.05671), "ekfac" (arXiv:1806.03884), "blocks" (the exact block of each layer) or
                "diagonal".
            key: for draws.
            samples: draws of random signs for each sample, in the place of all rows of the factor.
            convention: for layers that several positions share (arXiv:2311.00636): "expand" takes positions as
                samples, "reduce" takes the mean of their inputs and the sum of their gradients.
            limit: entries up to which a block is exact where no Kronecker product is asked for.

        Returns:
            The approximation; `.error` measures it by products with F.

        Raises:
            ValueError: if an argument is unknown, samples interact, the layers cannot be read, or there are too many
                rows and no draws were asked for.
            MemoryError: if an exact block would not fit.

        Example:
            >>> import jax, lngeom as lg
            >>> apply = lambda p, X: jax.numpy.tanh(X @ p["V"]) @ p["W"]
            >>> params = {"V": jax.numpy.ones((3, 4)), "W": jax.numpy.ones((4, 2))}
            >>> X = jax.random.normal(jax.random.key(0), (50, 3))
            >>> F = lg.fisher(apply, params, X, family=lg.families.Categorical())
            >>> F.approximate("ekfac")
            ApproximateFisher(20 × 20, ekfac: kronecker V; kronecker W)
        """
        return approximate(self, kind, key=key, samples=samples, convention=convention, limit=limit)

    def standard_error(self, statistic: Callable | None = None) -> PyTree:
        """Standard error of a Monte Carlo estimate, from the spread of its draws.

        Args:
            statistic: a linear function of F, such as `lambda F: F.trace()`; `as_matrix` where None.

        Raises:
            ValueError: if the method is not "monte_carlo" or there is one draw only.
        """
        scores = self.problem.scores
        if self.method != "monte_carlo" or scores is None or scores.shape[1] < 2:
            raise ValueError("a standard error needs method='monte_carlo' with samples of at least 2")
        inputs, weights, _ = self.problem.per_sample
        statistic = FisherOperator.as_matrix if statistic is None else statistic

        def one(draw: Array) -> PyTree:
            return statistic(at_problem(self, self.problem.with_samples((inputs, weights, draw[:, None]))))

        values = jax.lax.map(one, jnp.moveaxis(scores, 1, 0))
        return jax.tree.map(lambda v: jnp.std(v, 0, ddof=1) / scores.shape[1] ** 0.5, values)

    def triangular_factor(self) -> Float[Array, "r P"]:
        """A matrix R of at most P rows with RᵀR = F: the factor, or the triangle of its QR decomposition."""
        return _spectrum.triangular_factor(self)

    @property
    def rows_that_count(self) -> int:
        """Most that the rank can be for so many rows of the factor."""
        return _spectrum.rows_that_count(self.problem)

    def _in_agreement(self, matrix: Float[Array, "P P"], whole: "FisherOperator | None" = None) -> Float[Array, "P P"]:
        """The matrix; by the plain route, with a warning, where that of the structured route is not of the product."""
        plain = lambda: _matrix.dense(self.problem, row_chunks(self), structured=False)  # noqa: E731
        return agreed(self, "matrix", matrix, plain, whole)

    def _require_matrix(self) -> None:
        what = f"the dense {self.in_size():,} × {self.in_size():,} matrix and its workspace"
        self.plan.require(3 * self.plan.dense, what, "use products (mv, mm), diagonal(), block(i, j) or eigenvalues(k)")

    def _decomposed(self, rtol: float | None = None) -> _spectrum.Decomposition:
        """The decomposition without a warning, for what a few uncertain directions do not change."""
        self._require_decomposition()
        return _spectrum.decompose(self, rtol)

    def _require_decomposition(self) -> None:
        alternative = "use eigenvalues(k) or spectral_density()"
        self.plan.require(self._decomposition_bytes, "a decomposition of the factor", alternative)

    def _require_values(self, what: str, *found: Array) -> None:
        if not self.problem.is_concrete or not is_concrete(found):
            raise ValueError(
                f"{what} is an integer or a basis of so many vectors, which needs concrete arrays: call it outside "
                "jit, scan and vmap; solve, sample, singular_values and products work inside"
            )

    @property
    def _decomposition_bytes(self) -> int:
        return 4 * min(self.plan.dense, max(self.plan.factor, 1))

    @property
    def _is_small(self) -> bool:
        """Whether a full decomposition of the factor takes seconds at most, and fits."""
        rows = self.problem.rows * self.problem.rows_per_sample
        return min(self.in_size(), rows) <= _spectrum.SMALL and self._decomposition_bytes <= self.plan.budget

    def _glm_parameters(self, what: str) -> GLMParameters:
        params = self.problem.params
        if not isinstance(params, GLMParameters) or len(jax.tree.leaves(params)) != 3:
            raise ValueError(f"{what} is for the whole parameters of a normalized GLM; the leaves are {self.leaves}")
        return params


@functools.singledispatch
def added(F: Any, other: Any) -> Any:
    """The sum of two operators, where they are of a kind that has one."""
    return NotImplemented


# What lineax dispatches on: the operator is symmetric, semidefinite, and can become a matrix.
for _property in (lx.is_symmetric, lx.is_positive_semidefinite):
    _property.register(FisherOperator)(lambda operator: True)
for _property in (lx.is_negative_semidefinite, lx.has_unit_diagonal):
    _property.register(FisherOperator)(lambda operator: False)
for _property in (lx.is_diagonal, lx.is_tridiagonal, lx.is_lower_triangular, lx.is_upper_triangular):
    _property.register(FisherOperator)(lambda operator: operator.in_size() == 1)


@lx.diagonal.register(FisherOperator)
def _(operator: FisherOperator):
    return operator.diagonal()


@lx.tridiagonal.register(FisherOperator)
def _(operator: FisherOperator):
    matrix = operator.as_matrix()
    return jnp.diagonal(matrix), jnp.diagonal(matrix, -1), jnp.diagonal(matrix, 1)


@lx.linearise.register(FisherOperator)
@lx.conj.register(FisherOperator)
def _(operator: FisherOperator):
    return operator


@lx.materialise.register(FisherOperator)
def _(operator: FisherOperator):
    layout, tags = operator.problem.layout, (lx.symmetric_tag, lx.positive_semidefinite_tag)
    leaves = []
    for rows, (shape, _) in zip(jnp.split(operator.as_matrix(), layout.edges[1:-1]), layout.leaves, strict=True):
        blocks = jax.vmap(layout.unravel)(rows)
        leaves.append(jax.tree.map(lambda b, shape=shape: b.reshape(*shape, *b.shape[1:]), blocks))
    return lx.PyTreeLinearOperator(jax.tree.unflatten(layout.structure, leaves), operator.out_structure(), tags)
