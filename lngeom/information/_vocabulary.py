r"""A linear head with many classes, whose logits are never all in memory.

The outputs of a model with such a head are its features h [N *T D] and the head itself, W [V D] and b [V]. Seen from
there, the information of a categorical response with logits $z = hW^\top + b$ is $J^\top \Lambda J$, with
$dz = dh\,W^\top + h\,dW^\top + db$ and $\Lambda = \mathrm{diag}(q) - qq^\top$, $q_v = e^{z_v - \log\sum_u e^{z_u}}$.
All of it is sums over classes, which are taken in blocks of rows of W.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from lngeom.information._planner import CLASSES

Head = tuple[Array, Array] | tuple[Array, Array, Array]
"""Features and the head: (h, W) or (h, W, b)."""


class VocabularyHead(eqx.Module):
    r"""A function apply(params, X) of the logits $z = hW^\top + b$, whose Fisher products hold few of them at a time.

    `lg.fisher` takes it as any function, with `family=lg.families.Categorical()`. Exact products F v, and what is made
    of products alone (eigenvalues, solutions, spectral density, traces), then hold `block` logits a position instead of
    V. Everything else computes all logits. The gain is in memory: a product computes the logits twice more.

    Attributes:
        features: function of (params, X) that returns (h, W) or (h, W, b), with h [N D] or [N *T D], W [V D] and b [V].
            W and b may be leaves of params, such as a tied embedding, or constants.
        block: number of classes at a time.

    Example:
        >>> import jax, lngeom as lg
        >>> W, X = jax.random.normal(jax.random.key(0), (50, 3)), jax.random.normal(jax.random.key(1), (4, 3))
        >>> head = lg.information.VocabularyHead(lambda W, x: (jax.numpy.tanh(x), W), block=16)
        >>> F = lg.fisher(head, W, X, family=lg.families.Categorical())
        >>> F.mv(W).shape
        (50, 3)
    """

    features: Callable[..., Head]
    block: int = eqx.field(static=True, default=CLASSES)

    def __check_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"block must be a number of classes, at least 1; got {self.block}")

    def __call__(self, params: PyTree, X: PyTree) -> Float[Array, "N *T V"]:
        """All logits."""
        h, weight, bias = self.parts(params, X)
        z = h @ weight.T
        return z if bias is None else z + jnp.broadcast_to(bias, z.shape)

    def parts(self, params: PyTree, X: PyTree) -> tuple[Array, Array, Array | None]:
        """Features h [N *T D], W [V D], and b [V] or None.

        Raises:
            ValueError: if what `features` returns has other shapes.
        """
        found = self.features(params, X)
        shapes = [jnp.shape(leaf) for leaf in found] if isinstance(found, tuple) else None
        if shapes is None or len(shapes) not in {2, 3}:
            raise ValueError(f"features must return (h, W) or (h, W, b); got {type(found).__name__} of {shapes}")
        h, weight, bias = found if len(found) == 3 else (*found, None)
        fits = len(shapes[0]) >= 2 and len(shapes[1]) == 2 and shapes[0][-1] == shapes[1][-1]
        if not fits or shapes[2:] not in ([], [shapes[1][:1]]):
            raise ValueError(f"features must return h [N *T D], W [V D] and perhaps b [V]; got shapes {shapes}")
        return h, weight, bias


class HeadMetric(eqx.Module):
    """Λ of the logits, seen from features and head, with weights and 1/N.

    Attributes:
        outputs: (h, W, b), with b None where there is none.
        weights: of each position [N *T], or None.
        log_norm: log Σ exp z of each position.
        largest: the class of the largest logit of each position.
        samples: N.
        block: number of classes at a time.
    """

    outputs: tuple[Array, Array, Array | None]
    weights: Float[Array, "N *T"] | None
    log_norm: Float[Array, " M"]
    largest: Int[Array, " M"]
    samples: int = eqx.field(static=True)
    block: int = eqx.field(static=True)

    def __init__(self, outputs: tuple[Array, Array, Array | None], weights: Array | None, samples: int, block: int):
        self.outputs, self.weights, self.samples = outputs, weights, samples
        self.block = min(block, outputs[1].shape[0])
        count = self._features.shape[0]
        dtype = self._features.dtype
        start = (jnp.full(count, -jnp.inf, dtype), jnp.zeros(count, dtype), jnp.zeros(count, int))

        def add(carry, first, new):
            top, total, place = carry
            z = jnp.where(new, self._logits(first), -jnp.inf)
            here = jnp.max(z, -1)
            higher = jnp.maximum(top, here)
            total = total * jnp.exp(top - higher) + jnp.sum(jnp.exp(z - higher[:, None]), -1)
            return higher, total, jnp.where(here > top, first + jnp.argmax(z, -1), place)

        top, total, self.largest = self._over_blocks(add, start)
        self.log_norm = top + jnp.log(total)

    @property
    def _features(self) -> Float[Array, "M D"]:
        """h, one row a position."""
        return self.outputs[0].reshape(-1, self.outputs[0].shape[-1])

    @property
    def _share(self) -> Float[Array, "M 1"] | float:
        """Weight of each position over N."""
        return 1 / self.samples if self.weights is None else self.weights.reshape(-1, 1) / self.samples

    def _over_blocks(self, add: Callable, carry: Any) -> Any:
        """Adds up blocks of classes: add(carry, first class, which classes no earlier block has had)."""
        classes = self.outputs[1].shape[0]

        def step(carry, start):
            first = jnp.minimum(start, classes - self.block)
            return add(carry, first, first + jnp.arange(self.block) >= start), None

        return jax.lax.scan(step, carry, jnp.arange(0, classes, self.block))[0]

    def _rows(self, of: Array, first: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(of, first, self.block)

    def _logits(self, first: Array) -> Float[Array, "M B"]:
        _, weight, bias = self.outputs
        z = self._features @ self._rows(weight, first).T
        return z if bias is None else z + self._rows(bias, first)[None, :]

    def _tangents(self, tangent: tuple[Array, Array, Array | None]) -> Callable[[Array], Float[Array, "M B"]]:
        """First class ↦ dz of a block, less dz at the largest logit, which keeps the digits of 1 − q."""
        _, weight, _ = self.outputs
        dh, dweight, dbias = tangent
        dh = dh.reshape(self._features.shape)

        def change(rows: Array, drows: Array, dbias: Array | None, subscripts: str) -> Array:
            dz = jnp.einsum(subscripts, dh, rows) + jnp.einsum(subscripts, self._features, drows)
            return dz if dbias is None else dz + dbias

        k = self.largest
        at_largest = change(weight[k], dweight[k], None if dbias is None else dbias[k], "md,md->m")

        def block(first: Array) -> Array:
            bias = None if dbias is None else self._rows(dbias, first)[None, :]
            rows, drows = self._rows(weight, first), self._rows(dweight, first)
            return change(rows, drows, bias, "md,vd->mv") - at_largest[:, None]

        return block

    def _centred(self, tangent: tuple[Array, Array, Array | None]) -> Callable:
        """(first class, which count) ↦ probabilities q of a block, and its dz less the mean over all classes."""
        tangents = self._tangents(tangent)

        def probabilities(first: Array, new: Array) -> Array:
            return jnp.where(new, jnp.exp(self._logits(first) - self.log_norm[:, None]), 0)

        def add(mean, first, new):
            return mean + jnp.sum(probabilities(first, new) * tangents(first), -1)

        mean = self._over_blocks(add, jnp.zeros_like(self.log_norm))
        return lambda first, new: (probabilities(first, new), tangents(first) - mean[:, None])

    def product(self, tangent: tuple[Array, Array, Array | None]) -> tuple[Array, Array, Array | None]:
        """Λ of a tangent (dh, dW, db): a cotangent of the same shapes."""
        h, weight, bias = self.outputs
        centred = self._centred(tangent)

        def add(carry, first, new):
            to_h, to_weight, to_bias = carry
            q, dz = centred(first, new)
            u = self._share * q * dz
            put = jax.lax.dynamic_update_slice_in_dim
            to_weight = put(to_weight, self._rows(to_weight, first) + u.T @ self._features, first, 0)
            if to_bias is not None:
                to_bias = put(to_bias, self._rows(to_bias, first) + jnp.sum(u, 0), first, 0)
            return to_h + u @ self._rows(weight, first), to_weight, to_bias

        zero = None if bias is None else jnp.zeros_like(bias)
        to_h, *rest = self._over_blocks(add, (jnp.zeros_like(self._features), jnp.zeros_like(weight), zero))
        return to_h.reshape(h.shape), *rest

    def squared_norm(self, tangent: tuple[Array, Array, Array | None]) -> Float[Array, ""]:
        """The form of a tangent, Σ over positions of Var_q[dz] / N, which rounding cannot make negative."""
        centred = self._centred(tangent)

        def add(total, first, new):
            q, dz = centred(first, new)
            return total + jnp.sum(self._share * q * jnp.square(dz))

        return self._over_blocks(add, jnp.zeros((), self.log_norm.dtype))
