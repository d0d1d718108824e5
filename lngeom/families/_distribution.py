r"""What a Fisher matrix needs of the distribution of a response: its density, its metric and draws.

$$s = \frac{\partial \log p(y \mid z)}{\partial z}, \qquad \Lambda(z) = \mathrm{Cov}[s].$$
"""

import functools
import math
from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from lngeom._core.text import counted


class AbstractDistribution(eqx.Module):
    r"""The distribution of a response y given a model's outputs z [*B C], with its Fisher metric $\Lambda(z)$ known.

    A distribution of one's own, in any parametrization, defines `log_prob`, `metric_product` and `sample`. Where the
    outputs are natural parameters, `AbstractFamily` takes less. `lngeom.families.check` checks either.

    Attributes:
        upper: upper limit of the outputs, exclusive (infinity where every real z is allowed).
        joint: whether the C outputs parameterize one response instead of C independent ones.
        labels: whether a response may be a label 0 … C−1.
        support: smallest and largest entry of a response.
        whole: whether responses are whole numbers.
        open_support: whether responses are larger than the smallest of `support`.
        least_outputs: fewest outputs C that carry information.
    """

    upper: ClassVar[float] = float("inf")
    joint: ClassVar[bool] = True
    labels: ClassVar[bool] = False
    support: ClassVar[tuple[float, float]] = (-float("inf"), float("inf"))
    whole: ClassVar[bool] = False
    open_support: ClassVar[bool] = False
    least_outputs: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """The name in messages."""
        return type(self).__name__

    @abstractmethod
    def log_prob(self, z: Float[Array, "*B C"], y: Any) -> Array:
        """Log p(y | z): one value a row, [*B]; of C independent responses one value each, [*B C]."""

    @abstractmethod
    def sample(self, key: PRNGKeyArray, z: Float[Array, "*B C"]) -> Any:
        """Draws y given z."""

    @abstractmethod
    def metric_product(self, z: Float[Array, "*B C"], v: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        r"""Λ(z) v."""

    def metric(self, z: Float[Array, "*B C"]) -> Float[Array, "*B C C"]:
        """Λ(z) as matrices."""
        basis = jnp.broadcast_to(jnp.eye(z.shape[-1], dtype=z.dtype), (*z.shape, z.shape[-1]))
        return jax.vmap(self.metric_product, (None, -1), -1)(z, basis)

    def metric_diagonal(self, z: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        """The diagonal of Λ(z)."""
        if self.joint:
            return jnp.diagonal(self.metric(z), axis1=-2, axis2=-1)
        return self.metric_product(z, jnp.ones_like(z))

    def metric_sqrt_product(self, z: Float[Array, "*B C"], v: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        r"""Sᵀ v, where Λ(z) = S Sᵀ: S = diag(√Λ_ii) of independent responses, a Cholesky factor of a joint one."""
        if self.joint:
            return jnp.einsum("...ik,...i->...k", pivoted_cholesky(self.metric(z)), v)
        return jnp.sqrt(self.metric_diagonal(z)) * v

    def metric_parts(self, z: Float[Array, "*B C"]) -> tuple[Float[Array, "*B C"], Float[Array, "*B C"]] | None:
        r"""Vectors λ and q with $\Lambda = \mathrm{diag}(\lambda) - q q^\top$, or None where Λ has another form.

        q = 0 for independent responses; a joint distribution has no such parts unless it defines them.
        """
        return None if self.joint else (self.metric_diagonal(z), jnp.zeros_like(z))

    @property
    def has_exact_root(self) -> bool:
        """Whether S has a closed form. Otherwise Λ is known up to eps, and singular values of S up to √eps."""
        return not self.joint or type(self).metric_sqrt_product is not AbstractDistribution.metric_sqrt_product

    def metric_rank(self, outputs: int) -> int:
        """Largest rank of Λ for C outputs."""
        return outputs

    def score(self, z: Float[Array, "*B C"], y: Any) -> Float[Array, "*B C"]:
        """∂ log p(y | z)/∂z.

        Raises:
            ValueError: if the shape of y is not one of `response_shapes`.
        """
        self.check_shape(y, z.shape)
        return jax.grad(lambda z: jnp.sum(self.log_prob(z, y)))(z)

    def response_shapes(self, outputs: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Shapes that a response may have, for outputs of the shape [*B C]."""
        shapes = [outputs]
        if self.labels or (outputs[-1] == 1 and not self.joint):
            shapes.append(outputs[:-1])
        return shapes

    def check_shape(self, y: Any, outputs: tuple[int, ...]) -> None:
        """Checks the shape of responses.

        Raises:
            ValueError: if it is not one of `response_shapes`.
        """
        expected = self.response_shapes(outputs)
        if jnp.shape(y) not in expected:
            raise ValueError(
                f"y must have shape {' or '.join(map(str, expected))} for outputs {outputs}; got {jnp.shape(y)}"
            )

    def check_responses(self, y: Any, outputs: tuple[int, ...], counts: Array | None = None) -> None:
        """Checks concrete responses.

        Args:
            y: responses, of one of `response_shapes`.
            outputs: shape of the outputs, [*B C].
            counts: [*B], whether a response counts; None if all do.

        Raises:
            ValueError: if a response that counts is not finite or lies outside the support, a count is not whole, or a
                label is not a whole number from 0 to C−1.
        """
        y = jnp.asarray(y)
        if y.dtype == bool or (jnp.issubdtype(y.dtype, jnp.integer) and y.dtype.itemsize < 4):  # limits may not fit
            y = y.astype(jnp.int32)
        is_label = self.labels and y.shape == outputs[:-1]
        low, high = (0, outputs[-1] - 1) if is_label else self.support
        above = self.open_support and not is_label
        limits: Any = low, high
        if jnp.issubdtype(y.dtype, jnp.integer):  # as floats they may be rounded
            info = jnp.iinfo(y.dtype)
            rounded = math.floor if above else math.ceil
            limits = np.array([rounded(max(low, info.min)), math.floor(min(high, info.max))], y.dtype)
        whole = (is_label or self.whole) and jnp.issubdtype(y.dtype, jnp.floating)
        wrong, some = _unsupported(y, *limits, counts, whole=whole, above=above)
        if some:
            first = np.asarray(y)[np.asarray(wrong)][0].item()
            example = f"{first:g}" if isinstance(first, float) else first
            what = f"labels 0 … {high}" if is_label else f"finite responses {'above' if above else 'from'} {low:g}"
            what += f" to {high:.12g}" if not is_label and high < float("inf") else ""
            what += ", whole numbers" if self.whole and not is_label else ""
            raise ValueError(
                f"{self.name} takes {what}; got {counted(int(jnp.sum(wrong)), 'other')}, such as {example}: correct y, "
                "or leave such positions out (lg.fisher: mask=)"
            )

    def outside(self, z: Float[Array, "*B C"]) -> Bool[Array, "*B C"]:
        """Which outputs are not allowed."""
        return z >= self.upper

    def check_count(self, outputs: int) -> None:
        """Checks the number of outputs C of a function.

        Raises:
            ValueError: if there are fewer than `least_outputs`.
        """
        if outputs < self.least_outputs:
            raise ValueError(
                f"{self.name} needs at least {self.least_outputs} outputs, since its response to {outputs} is always "
                "the same: for one logit of two classes use lg.families.Bernoulli()"
            )

    def mistaken(self, z: Float[Array, "*B C"]) -> Bool[Array, "*B"]:
        """Which rows of outputs look like something else than what the family expects."""
        return jnp.zeros(z.shape[:-1], bool)

    def atoms(self, outputs: int) -> Array | None:
        """All values of one response, of C outputs, where they are few; else None."""
        return None

    def points(self) -> Float[Array, "B C"]:
        """Outputs inside the domain, at which `lngeom.families.check` looks."""
        steps = 0.25 * jnp.arange(12.0).reshape(4, 3)
        return steps - 1.3 if self.upper == float("inf") else self.upper - 0.3 - steps


@functools.partial(jax.jit, static_argnames=("whole", "above"))
def _unsupported(
    y: Array, low: float, high: float, counts: Array | None, *, whole: bool, above: bool
) -> tuple[Array, Array]:
    """Which responses that count are not finite, outside low … high or not whole; and whether there are any."""
    wrong = ~((y > low if above else y >= low) & (y <= high) & jnp.isfinite(y))
    if whole:
        wrong |= jnp.round(y) != y
    if counts is not None:
        wrong &= counts.reshape(*counts.shape, *(1,) * (y.ndim - counts.ndim))
    return wrong, jnp.any(wrong)


def pivoted_cholesky(matrix: Float[Array, "*B C C"]) -> Float[Array, "*B C C"]:
    r"""S with S Sᵀ = Λ for positive semidefinite Λ: the outer products of Cholesky's method, largest pivots first.

    A pivot up to C eps times the largest entry of the diagonal is rounding, and counts as zero. The columns of S beyond
    the rank of Λ are therefore exactly zero. No LAPACK routine is called, since a batch of matrices would need many.

    Args:
        matrix: Λ.

    Returns:
        S; its columns are those of a Cholesky factor of Λ with permuted rows.
    """
    size = matrix.shape[-1]
    least = size * jnp.finfo(matrix.dtype).eps * jnp.max(jnp.diagonal(matrix, axis1=-2, axis2=-1), -1)

    def step(rest: Float[Array, "*B C C"], _: None) -> tuple[Float[Array, "*B C C"], Float[Array, "*B C"]]:
        diagonal = jnp.diagonal(rest, axis1=-2, axis2=-1)
        pivot = jax.nn.one_hot(jnp.argmax(diagonal, -1), size, dtype=rest.dtype)
        value = jnp.sum(pivot * diagonal, -1)
        kept = value > least
        root = jnp.sqrt(jnp.where(kept, value, 1))[..., None]
        column = jnp.einsum("...ij,...j->...i", rest, pivot) / root
        column = jnp.where(jnp.isnan(value)[..., None], jnp.nan, jnp.where(kept[..., None], column, 0))
        rest = rest - column[..., :, None] * column[..., None, :]
        return rest * (1 - pivot[..., :, None]) * (1 - pivot[..., None, :]), column

    return jnp.moveaxis(jax.lax.scan(step, matrix, None, length=size)[1], 0, -1)
