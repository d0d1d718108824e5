r"""What a Fisher matrix is taken of: a function, its parameters, the data, and the family of its outputs.

The one scaling convention: $F = \frac1N \sum_n \sum_t m_{nt}\, J_{nt}^\top \Lambda_{nt} J_{nt}$, a mean over the N
samples of the sum over each sample's unmasked positions t (there is one position where outputs are [N C]).
"""

import functools
import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from lngeom._core.lifting import in_32_bits, is_narrow
from lngeom._core.programs import Precision, depends_on, working_precision
from lngeom._core.trees import Frozen, Layout, leaf_path, leaf_paths
from lngeom._core.types import is_concrete, is_tracing
from lngeom.families import AbstractDistribution, described
from lngeom.information._captured import unchanged
from lngeom.information._given import one_line
from lngeom.information._parameters import join


class Problem(eqx.Module):
    """A function of parameters and data with a family over its outputs; every leaf is an array.

    Attributes:
        function: apply(params, inputs) → natural parameters [N], [N C] or [N *T C], its family, and what it captures
            (None where it is made of arrays alone).
        params: the leaves to differentiate, None elsewhere.
        fixed: all the other leaves of the user's parameters.
        inputs: pytree of arrays, one sample a row.
        weights: weight of each position, [N *T], or None for 1.
        scores: ∂ log p/∂z at responses, [N m *T C], in place of the family's metric; or None.
        samples: N, over which the mean is taken.
        coupled: whether one sample's output depends on the others.
    """

    function: Frozen
    params: PyTree
    fixed: Frozen
    inputs: PyTree
    weights: Float[Array, "N *T"] | None
    scores: Float[Array, "N m *T C"] | None
    samples: int = eqx.field(static=True)
    coupled: bool = eqx.field(static=True)

    @property
    def family(self) -> AbstractDistribution:
        """The family of the outputs."""
        return self.function.thaw()[1]

    @property
    def is_concrete(self) -> bool:
        """Whether all arrays are values, outside tracing. The function may still close over a traced one."""
        return is_concrete(self) and not is_tracing()

    @property
    def is_narrow(self) -> bool:
        """Whether the function computes with numbers of 16 bits: then it is computed, and summed, in 32."""
        captured = self.function.thaw()[2]
        return any(is_narrow(leaf.dtype) for leaf in jax.tree.leaves(self)) if captured is None else captured.narrow

    @property
    def rows(self) -> int:
        """Number of samples held here: N, a chunk of it, or N padded to a multiple of the devices."""
        return jax.tree.leaves(self.inputs)[0].shape[0]

    @property
    def size(self) -> int:
        """Number of scalar parameters P."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the matrix: that of the ravelled parameters."""
        return jnp.result_type(*(leaf.dtype for leaf in jax.tree.leaves(self.params)))

    def precision(self, of_inputs: bool = False) -> Precision:
        """The precision in which the outputs respond to the parameters, as `working_precision` reads it."""
        return working_precision(self.outputs, self.params, self.inputs, of_inputs)

    @property
    def decomposition_dtype(self) -> jnp.dtype:
        """The dtype of decompositions: float32 at least, since LAPACK knows no 16-bit numbers."""
        return self.dtype if jnp.finfo(self.dtype).bits >= 32 else jnp.dtype(jnp.float32)

    @property
    def rows_per_sample(self) -> int:
        """Rows of the factor for each sample: its outputs, or its scores."""
        if self.scores is not None:
            return self.scores.shape[1]
        return math.prod(self.output_shape.shape[1:])

    @property
    def output_shape(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of the outputs, [N *T C]."""
        return jax.eval_shape(_forward, replace(self, scores=None))

    @property
    def model(self) -> Any:
        """What the user gave as a function."""
        return self.function.thaw()[0]

    def outputs(self, params: PyTree, inputs: PyTree) -> Float[Array, "N *T C"]:
        """Natural parameters, with an axis of one output where the function has none.

        Raises:
            ValueError: if the function's output is not [N], [N C] or [N *T C].
        """
        apply, family, _ = self.function.thaw()
        self.require_unchanged()
        apply = in_32_bits(apply) if self.is_narrow else apply
        rows = jax.tree.leaves(inputs)[0].shape[0]
        few = f"; {rows} of {self.samples} samples: if the function needs all of them, say batch_coupled=True"
        few = few if rows < self.samples else ""
        try:
            z = apply(self.join(params), inputs)
        except Exception as error:
            if not few:
                raise
            raise ValueError(
                f"the function cannot be evaluated on {rows} of its {self.samples} samples. If it needs all of them, "
                f"as a graph network does, say batch_coupled=True ({one_line(error)})"
            ) from error
        if not eqx.is_array(z):
            raise ValueError(
                f"the function returns {described(z)}: give a family each, in a pytree like it, such as "
                'family={"policy": lg.families.Categorical(), "value": lg.families.Gaussian()}, or return one array'
            )
        if not z.ndim or z.shape[0] != rows:
            raise ValueError(
                f"the function must return natural parameters [N], [N C] or [N *T C] with N = {rows}; got {z.shape}"
                f"{few}. They are what the distribution of a response is given by: logits, or the mean of a Gaussian"
            )
        if z.ndim == 1:
            if family.joint:
                raise ValueError(f"{family.name} needs one output a class, [N C] or [N *T C]; got {z.shape}")
            z = z[:, None]
        if not jnp.issubdtype(z.dtype, jnp.floating):
            raise ValueError(f"natural parameters must be real floating point; got dtype {z.dtype}")
        return z

    def join(self, params: PyTree) -> PyTree:
        """The user's whole parameters, with these in the place of the differentiated ones."""
        return join(params, self.fixed.thaw())

    def require_unchanged(self) -> None:
        """Looks whether the function reads what it read when the problem was made, each time it is traced.

        Raises:
            ValueError: if not.
        """
        apply, _, captured = self.function.thaw()
        if captured is not None and is_tracing() and not unchanged(captured, apply):
            raise ValueError(
                "the function is not what it was when lg.fisher was called: something that it closes over has "
                "changed, or it is random. Call lg.fisher again after a change; give randomness a key in params or X"
            )

    def with_function(self, function: Any) -> "Problem":
        """The same problem of another function, made of arrays and of what this one captured."""
        _, family, captured = self.function.thaw()
        return replace(self, function=Frozen((function, family, captured and captured.of_another())))

    def with_family(self, family: AbstractDistribution) -> "Problem":
        """The same problem with another family of the outputs."""
        apply, _, captured = self.function.thaw()
        return replace(self, function=Frozen((apply, family, captured)))

    def forward(self, params: PyTree) -> Float[Array, "N *T C"]:
        """Natural parameters of the samples held here; harmless ones at positions of weight 0.

        The function is traced once for all programs that call it with these shapes.
        """
        return _forward(replace(self, params=params, scores=None))

    def ignore(self, z: Float[Array, "N *T C"]) -> Float[Array, "N *T C"]:
        """These outputs with a value inside the family's domain at positions of weight 0, whatever is there."""
        if self.weights is None:
            return z
        counts, harmless = self.weights > 0, jnp.asarray(min(0.0, self.family.upper - 1.0), z.dtype)
        if self.family.joint:  # whose domain is not known: what a position that counts has is inside
            first = jnp.argmax(counts.reshape(-1))
            inside = jax.lax.stop_gradient(z.reshape(-1, z.shape[-1])[first])
            harmless = jnp.where(jnp.any(counts), inside, harmless).reshape(*(1,) * (z.ndim - 1), -1)
        return jnp.where(counts[..., None], z, harmless)

    @property
    def per_sample(self) -> tuple:
        """Everything that has one row a sample."""
        return self.inputs, self.weights, self.scores

    def with_samples(self, per_sample: tuple) -> "Problem":
        """The same problem on other rows; `samples`, the N of the mean, stays."""
        inputs, weights, scores = per_sample
        return replace(self, inputs=inputs, weights=weights, scores=scores)

    def restrict(self, selected: set[str]) -> "Problem":
        """The same problem with only the leaves of these paths differentiated."""
        keep = jax.tree_util.tree_map_with_path(lambda path, _: leaf_path(path) in selected, self.params)
        params, others = eqx.partition(self.params, keep)
        return replace(self, params=params, fixed=Frozen(eqx.combine(others, self.fixed.thaw())))

    @property
    def layout(self) -> Layout:
        """How a tangent is laid out as a vector."""
        leaves, structure = jax.tree.flatten(self.params)
        return Layout(structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))

    def ravel(self, tangent: PyTree) -> Float[Array, " P"]:
        """A tangent as a vector, in the order of `ravel_pytree`."""
        return ravel_pytree(tangent)[0]

    def unravel(self, vector: Float[Array, " P"]) -> PyTree:
        """The inverse of `ravel`."""
        return self.layout.unravel(vector)


@functools.partial(jax.jit, inline=True)
def _forward(problem: Problem) -> Float[Array, "N *T C"]:
    return problem.ignore(problem.outputs(problem.params, problem.inputs))


def ignore_masked(problem: Problem) -> Problem:
    """Puts 0 for entries of the inputs that are not finite at positions of weight 0.

    Raises:
        ValueError: if outputs at positions that count depend on such an entry.
    """
    assert problem.weights is not None
    weights, (leaves, structure) = problem.weights, jax.tree.flatten(problem.inputs)
    has_mask = lambda a: jnp.issubdtype(a.dtype, jnp.floating) and a.shape[: weights.ndim] == weights.shape  # noqa: E731
    found = [_clean(leaf, weights) if has_mask(leaf) else (leaf, False) for leaf in leaves]
    cleaned = replace(problem, inputs=jax.tree.unflatten(structure, [leaf for leaf, _ in found]))
    if problem.is_concrete and any(bool(differs) for _, differs in found):
        given, z = _forward(problem), _forward(cleaned)  # under jit a normalized GLM does not judge its inputs
        lost = jnp.any(~jnp.isfinite(given) & jnp.isfinite(z))
        if not problem.coupled and is_concrete(lost) and bool(lost):
            raise ValueError(
                "outputs at positions that count depend on NaN or infinite inputs at masked positions: the mask must "
                "reach the model too (as an attention mask, say)"
            )
    return cleaned


def replace_masked_samples(problem: Problem) -> Problem:
    """Puts a sample that counts in the place of those that do not, so that derivatives there are finite.

    A problem whose samples interact, or which is traced, stays as it is.
    """
    if problem.weights is None or problem.coupled or not problem.is_concrete:
        return problem
    counts, some = _counted(problem.weights)
    return replace(problem, inputs=_filled(problem.inputs, counts)) if bool(some) else problem


@jax.jit
def _clean(leaf: Float[Array, "..."], weights: Float[Array, "N *T"]) -> tuple[Array, Array]:
    """A leaf with 0 for entries that are not finite at positions of weight 0, and whether it differs."""
    counts = (weights > 0).reshape(*weights.shape, *(1,) * (leaf.ndim - weights.ndim))
    cleaned = jnp.where(counts | jnp.isfinite(leaf), leaf, 0)
    return cleaned, jnp.any(cleaned != leaf)


@jax.jit
def _counted(weights: Float[Array, "N *T"]) -> tuple[Bool[Array, " N"], Array]:
    """Which samples count at a position, and whether there are some that do and some that do not."""
    counts = jnp.any(weights.reshape(len(weights), -1) > 0, 1)
    return counts, jnp.any(counts) & ~jnp.all(counts)


@jax.jit
def _filled(inputs: PyTree, counts: Bool[Array, " N"]) -> PyTree:
    """The first sample that counts in the place of those that do not."""
    first = jnp.argmax(counts)
    return jax.tree.map(lambda a: jnp.where(counts.reshape(-1, *(1,) * (a.ndim - 1)), a, a[first][None]), inputs)


def unused_leaves(problem: Problem) -> set[str]:
    """Paths of the differentiated leaves by which the program of the outputs has no derivative."""
    linear = jax.linearize(problem.forward, problem.params)[1]
    program = jax.make_jaxpr(linear)(problem.params)
    names = leaf_paths(problem.params)
    return {name for k, name in enumerate(names) if not depends_on(program, k)}
