"""Generated models: `generate(seed)` is a function with parameters, data, family, mask and arguments of `lg.fisher`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from jaxtyping import Array
from lngeom.families import AbstractFamily
from lngeom.information import BatchCoupled

from analysis.fuzz import families as own
from analysis.fuzz.layers import (
    ANYWHERE,
    BATCH,
    SEQUENCES,
    Builder,
    Layer,
    TooLarge,
    activation,
    batch_layer,
    dense,
    gain,
    norm,
    same,
    standardized,
)
from analysis.fuzz.outcome import EITHER, REFUSED, RIGHT

LIMIT, WIDE = 60, 150
"""Parameters of a model, at most; the second for wide layers, and for many parameters and one or two samples."""


@dataclass(frozen=True)
class Case:
    """A generated model.

    Attributes:
        seed: it is generated from.
        name: what it is made of.
        apply: (params, X) ↦ natural parameters, as a user would write it.
        wide: the same function without casts to lower precision, for parameters in float64.
        params: pytree of parameters.
        X: pytree of inputs.
        family: of the outputs.
        mask: [N] or [N T], or None.
        arguments: further arguments of `lg.fisher`.
        dtype: the lowest precision anywhere in it.
        expectation: `RIGHT`, `EITHER` or `REFUSED`.
        reverse: whether it has derivatives in reverse mode alone.
        model: what `lg.fisher` is given in the place of apply: a normalized GLM, or a `BatchCoupled` function.
    """

    seed: int
    name: str
    apply: Callable[[Any, Any], Array]
    wide: Callable[[Any, Any], Array]
    params: Any
    X: Any
    family: AbstractFamily
    mask: np.ndarray | None
    arguments: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float64"
    expectation: str = RIGHT
    reverse: bool = False
    model: Any = None

    def fisher(self, fisher: Callable = lg.fisher, **more: Any) -> lg.FisherOperator:
        """The operator; `fisher` may be another function of the same arguments, `more` may have other params and X."""
        given = {"family": self.family, "mask": self.mask} | self.arguments | more
        params, X = given.pop("params", self.params), given.pop("X", self.X)
        return fisher(self.apply if self.model is None else self.model, params, X, **given)


@dataclass(frozen=True)
class Precision:
    """Which parts of a model are in low precision.

    Attributes:
        leaves: dtypes that leaves of the parameters are drawn from.
        inputs: dtype of floating point inputs.
        inside: dtype of casts in the function, or None.
    """

    leaves: tuple[str, ...] = ("float64",)
    inputs: str = "float64"
    inside: str | None = None

    def lowest(self, casts: bool) -> str:
        """The lowest precision anywhere, in a function with or without casts."""
        used = {*self.leaves, self.inputs} | ({self.inside} if self.inside and casts else set())
        return max(used, key=lambda d: float(jnp.finfo(d).eps))


PRECISIONS = (
    *(Precision(),) * 60,
    *(Precision(("float32",), "float32"),) * 12,
    *(Precision(inside="float32"),) * 9,
    *(Precision(("float32", "float64"), "float32"),) * 4,
    *(Precision(("float32", "float64"), "float64"),) * 3,
    *(Precision(inside="bfloat16"),) * 3,
    *(Precision(("bfloat16",), "bfloat16"),) * 3,
    *(Precision(("bfloat16", "float32"), "float32"),) * 3,
    *(Precision(("float32",), "float32", "bfloat16"),) * 2,
    *(Precision(("float16",), "float16"),) * 1,
)

SCALAR: tuple[AbstractFamily, ...] = (
    lg.families.Gaussian(0.7),
    lg.families.Bernoulli(),
    lg.families.Binomial(trials=4),
    lg.families.Poisson(),
    lg.families.Gamma(0.5),
    lg.families.InverseGaussian(0.8),
    lg.families.NegativeBinomial(2.5),
    own.CoshPair(),
    own.ScaledGaussian(),
)


def _joint(b: Builder) -> tuple[AbstractFamily, int]:
    """A joint family nobody in the library wrote, and its number of outputs."""
    classes = b.pick(2, 3, 4)
    return b.pick(
        (own.CorrelatedGaussian(), b.pick(1, 2, 3)),
        (own.CorrelatedGaussian(0.4), classes),
        (own.MeanPrecisionGaussian(), 2),
        (own.Dirichlet(), classes),
        (own.Ordinal(), b.pick(1, 2, 3)),
        (own.Multinomial(), classes),
        (own.TwoHeaded(2), b.pick(3, 4)),
        (own.TwoBits(), 3),
    )


def _into_domain(family: AbstractFamily, z: Array) -> Array:
    """Natural parameters that the family allows."""
    if family.upper == 0:
        return -jax.nn.softplus(z) - 0.1
    if isinstance(family, own.MeanPrecisionGaussian):
        return jnp.stack([z[..., 0], -jax.nn.softplus(z[..., 1]) - 0.2], -1)
    if isinstance(family, own.Dirichlet):
        return jax.nn.softplus(z) + 0.3
    return z


def generate(seed: int) -> Case:
    """The model of a seed.

    Args:
        seed: any integer ≥ 0.

    Returns:
        The case.
    """
    return _Generator(seed).case()


class _Generator:
    """Draws one case; the order of the draws is what a seed means."""

    def __init__(self, seed: int):
        self.seed = seed
        choose = np.random.default_rng([seed, 1])
        self.precision: Precision = PRECISIONS[choose.integers(len(PRECISIONS))]
        self.words: list[str] = [] if self.precision == Precision() else [self._precision_word()]
        many = choose.random() < 0.08
        self.b = b = Builder(seed, WIDE if many else LIMIT, self.precision.inside)
        self.samples = b.pick(1, 2) if many else b.pick(1, 2, 3, 4, 4, 5, 5, 6, 7, 8, 8, 12)
        self.positions = b.pick(1, 2, 3, 4)
        self.inputs = b.pick(1, 2, 3, 3, 4)
        if b.chance(0.12):  # axes of one length, which a reader of shapes may take for each other
            self.samples = self.positions = self.inputs = b.pick(2, 3, 4)
        self.depth = b.pick(3, 4, 5, 6) if many else b.pick(0, 1, 1, 2, 2, 3, 4)
        self.layers: list[Layer] = []
        self.expectation = RIGHT
        self.arguments: dict[str, Any] = {}
        self.mask: np.ndarray | None = None
        self.batch, self.scalar_output = False, False
        self.table, self.vocabulary = "", 0
        self.cell: list | None = None  # where a BatchCoupled function puts the mean it is given

    def _precision_word(self) -> str:
        p = self.precision
        return f"[{'/'.join(p.leaves)} leaves, {p.inputs} inputs, {p.inside or 'no'} casts]"

    def case(self) -> Case:
        b = self.b
        if b.chance(0.08):
            return self._normalized_glm()
        kind = b.pick(*("vector", "network") * 4, *("sequence", "tokens") * 2, "image", "keys")
        joint = b.pick("scalar", "scalar", "categorical", "categorical", "joint")
        self.family, classes = lg.families.Categorical(), b.pick(1, 2, 3, 3, 4)
        if joint == "scalar":
            self.family = SCALAR[b.rng.integers(len(SCALAR))]
        elif joint == "joint":
            self.family, classes = _joint(b)
        if isinstance(self.family, lg.families.Categorical) and classes == 1 and self.seed % 5:
            classes = 2  # of one class F is zero: rarely
        if kind == "network" and not isinstance(self.family, own.MeanPrecisionGaussian | own.TwoBits | own.TwoHeaded):
            classes = b.pick(3, 6, 7, 8)  # from about six on the library forms no rows of the factor
        X, width = getattr(self, f"_{kind}")()
        sequential = kind in {"sequence", "tokens"}
        if kind == "network":
            width = self._add_network(width)
        else:
            for _ in range(self.depth):
                width = self._add(width, ANYWHERE | (SEQUENCES if sequential else {}))
        if sequential and b.chance(0.35):
            width, sequential = self._pool(width), False
        if self.samples > 1 and b.chance(0.25 if kind == "network" else 0.16):
            width = self._add_batch_layer(width)
        self._head(width, classes, sequential)
        shape = (self.samples, self.positions) if sequential else (self.samples,)
        X = self._add_mask(X, shape)
        params, unwrap = self._container()
        self._add_arguments(params, (*shape, *(() if self.scalar_output else (classes,))))
        run, wide = ([getattr(layer, kind) for layer in self.layers] for kind in ("run", "wide"))

        def compose(layers: list[Callable]) -> Callable[[Any, Any], Array]:
            def apply(params, x):
                p = unwrap(params)
                for layer in layers:
                    x = layer(p, x)
                return x

            return apply

        apply, model = compose(run), None
        if self.cell is not None:
            cell = self.cell

            def with_mean(params, x, mean):
                cell.append(mean)
                try:
                    return apply(params, x)
                finally:
                    cell.clear()

            model = BatchCoupled(with_mean)
        return self._finished(apply, compose(wide), params, X, model)

    def _finished(self, apply: Callable, wide: Callable, params: Any, X: Any, model: Any) -> Case:
        name = f"{type(self.family).__name__}, N={self.samples}: {' · '.join(self.words)}"
        lowest = self.precision.lowest(self.b.casts)
        settings = (self.family, self.mask, self.arguments, lowest, self.expectation, self.b.reverse, model)
        return Case(self.seed, name, apply, wide, params, X, *settings)

    def _normalized_glm(self) -> Case:
        """A normalized GLM, which has closed forms, and the same function written out."""
        b, D, H = self.b, self.inputs, self.b.pick(1, 2, 2, 3, 4)
        if self.precision.leaves[0] != self.precision.inputs or len(self.precision.leaves) > 1:
            self.precision = Precision()
            self.words.clear()
        kind = b.pick("identity", "layer", "layer", "RMS", "group", "batch", "batch", "weight")
        groups = 2 if kind == "group" and H % 2 == 0 else 1
        eps: Any = b.pick(1e-5, 0.1) if kind in {"layer", "group"} and H // groups < 3 else b.pick(0.0, 1e-5, 0.1)
        if kind == "batch" and self.samples < 4:
            eps = 0.1
        normalizers = lg.normalizers
        normalizer = {
            "identity": normalizers.Identity(),
            "layer": normalizers.LayerNorm(eps),
            "RMS": normalizers.RMSNorm(eps),
            "group": normalizers.GroupNorm(groups, eps),
            "batch": normalizers.BatchNorm(eps),
            "weight": normalizers.WeightNorm(eps),
        }[kind]
        self.words.append(f"normalized GLM, {kind} ε={eps:g}, H={H}, D={D}")
        families = (*SCALAR[:7], lg.families.Categorical(), lg.families.Categorical(), lg.families.Bernoulli())
        self.family = families[b.rng.integers(len(families))]
        X = self._floats(self.samples, D)
        inside = self.family.upper > 0
        dtype = jnp.dtype(self.precision.inputs)
        gain = b.normal(H, scale=0.2, mean=1.0)
        if b.chance(0.15):
            gain[0] = 0.0
            self.words.append("a zero gain")
        bias = b.normal(H, scale=0.3)
        if not inside:
            gain, bias = 0.05 * gain, bias - 4
        params = lg.GLMParameters(*(jnp.asarray(v, dtype) for v in (b.kernel(D, H).T, bias, gain)))

        def apply(params, x):
            W = params.weights
            a = x @ W.T
            match kind:
                case "identity":
                    n = a
                case "batch":
                    centred = a - jnp.mean(a, 0)
                    n = centred / jnp.sqrt(jnp.mean(jnp.square(centred), 0) + eps)
                case "weight":
                    n = a / jnp.sqrt(jnp.sum(jnp.square(W), 1) + eps)
                case _:
                    n = standardized(a, eps, groups, kind != "RMS")
            return params.gain * n + params.bias

        self.batch = kind == "batch"
        X = self._add_mask(X, (self.samples,))
        if b.chance(0.3):
            self.arguments["chunk"] = b.pick(1, 2, 3)
            self.words.append(f"chunk {self.arguments['chunk']}")
        if b.chance(0.12):
            self._add_scores((self.samples, H))
        return self._finished(apply, apply, params, X, lg.NormalizedGLM(normalizer, self.family))

    # Inputs: each appends the layer that reads them, and gives them with their width.

    def _floats(self, *shape: int) -> np.ndarray:
        """Inputs, some of them deficient."""
        b = self.b
        values = b.normal(*shape)
        match b.pick("plain", "plain", "plain", "plain", "repeated", "deficient", "one-hot", "constant", "offset"):
            case "repeated":
                values = values[b.rng.integers(0, max(1, len(values) // 2), len(values))]
                self.words.append("repeated rows")
            case "deficient":
                values[..., -1] = values[..., 0]
                self.words.append("deficient inputs")
            case "one-hot":
                values = np.eye(shape[-1])[b.rng.integers(0, shape[-1], shape[:-1])]
                self.words.append("one-hot inputs")
            case "constant":
                values[..., 0] = b.pick(0.0, 1.0)
                self.words.append("constant input")
            case "offset":
                values = values + 10
        return values.astype(jnp.dtype(self.precision.inputs))

    def _vector(self) -> tuple[Any, int]:
        b, D = self.b, self.inputs
        form = b.pick("array", "array", "array", "array", "dict", "tuple", "scalars", "counts")
        self.words.append(f"vector {form}")
        match form:
            case "dict":
                self.layers.append(same(lambda p, x: jnp.concatenate([x["a"], x["b"][:, None]], -1)))
                return {"a": self._floats(self.samples, D), "b": self._floats(self.samples, 1)[:, 0]}, D + 1
            case "tuple":
                self.layers.append(same(lambda p, x: x[0] * (1 + x[1][:, None])))
                flags = b.rng.integers(0, 2, self.samples).astype(bool)
                return (self._floats(self.samples, D), flags, None), D
            case "scalars":
                self.layers.append(same(lambda p, x: jnp.stack([x, jnp.ones_like(x)], -1)))
                return self._floats(self.samples, 1)[:, 0], 2
            case "counts":
                dtype = self.precision.inputs
                self.layers.append(same(lambda p, x: x.astype(_widest(p, dtype))))
                return b.rng.integers(-2, 3, (self.samples, D)).astype(np.int32), D
            case _:
                return self._floats(self.samples, D), D

    def _network(self) -> tuple[Any, int]:
        self.words.append("network")
        self.inputs = max(self.inputs, 3)
        return self._floats(self.samples, self.inputs), self.inputs

    def _sequence(self) -> tuple[Any, int]:
        self.words.append("sequence")
        return self._floats(self.samples, self.positions, self.inputs), self.inputs

    def _tokens(self) -> tuple[Any, int]:
        b = self.b
        vocabulary, width = b.pick(2, 3, 4), b.pick(1, 2, 3)
        style = b.pick("index", "take", "one-hot")
        self.words.append(f"tokens by {style}")
        name = b.group("embedding", table=b.normal(vocabulary, width))

        def embed(p, x):
            table = p[name]["table"]
            match style:
                case "index":
                    return table[x]
                case "take":
                    return jnp.take(table, x, 0)
                case _:
                    return jax.nn.one_hot(x, vocabulary, dtype=table.dtype) @ table

        self.layers.append(same(embed))
        self.table, self.vocabulary = name, vocabulary
        return b.rng.integers(0, vocabulary, (self.samples, self.positions)), width

    def _image(self) -> tuple[Any, int]:
        b = self.b
        channels = b.pick(1, 2)
        self.words.append("convolution of images")
        name = b.group("image", kernel=b.normal(2, 2, 1, channels), bias=b.normal(channels, scale=0.2))
        pooling = b.pick("mean", "max", "window", "flat")

        def convolve(p, x):
            w = p[name]["kernel"]
            dtype = jnp.result_type(x, w)
            numbers = ("NHWC", "HWIO", "NHWC")
            y = jax.lax.conv_general_dilated(
                x.astype(dtype), w.astype(dtype), (1, 1), "VALID", dimension_numbers=numbers
            )
            y = jnp.tanh(y + p[name]["bias"])
            match pooling:
                case "mean":
                    return jnp.mean(y, (1, 2))
                case "max":
                    return jnp.max(y, (1, 2))
                case "window":
                    return jax.lax.reduce_window(y, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")[:, 0, 0]
                case _:
                    return y.reshape(len(y), -1)

        self.layers.append(same(convolve))
        return self._floats(self.samples, 3, 3, 1), channels * (4 if pooling == "flat" else 1)

    def _keys(self) -> tuple[Any, int]:
        """Dropout with a key for each sample among the inputs."""
        b, D = self.b, self.inputs
        typed = b.chance(0.2)
        self.words.append(f"dropout by {'typed' if typed else 'raw'} keys of samples")
        keys = jax.random.split(jax.random.key(int(b.rng.integers(2**31))), self.samples)
        if typed:
            self.expectation = EITHER
        else:
            keys = np.asarray(jax.random.key_data(keys))
        one = lambda k, v: jnp.where(jax.random.bernoulli(k, 0.7, v.shape), v / 0.7, 0)  # noqa: E731
        self.layers.append(same(lambda p, x: jax.vmap(one)(x["key"], x["x"])))
        return {"x": self._floats(self.samples, D), "key": keys}, D

    # Layers.

    def _add_network(self, width: int) -> int:
        """Appends wider layers of kernels, gains and biases, of which the library forms no rows of the factor."""
        b = self.b
        b.limit = max(b.limit, WIDE)
        for _ in range(b.pick(1, 1, 2)):
            layer, width = dense(b, width, b.pick(4, 5, 6))
            self.layers.append(layer)
            self.words.append("wide dense")
            for _ in range(b.pick(0, 1, 2)):
                width = self._add(width, {activation: 2, norm: 2, gain: 1})
        return width

    def _add(self, width: int, makers: dict[Callable, int]) -> int:
        """Appends one layer, if the model has room for it."""
        b = self.b
        weights = np.array(list(makers.values()), float)
        maker = list(makers)[b.rng.choice(len(makers), p=weights / weights.sum())]
        before = dict(b.params)
        try:
            if maker.__name__ == "across_positions":
                layer, outputs = maker(b, width, self.positions)
            else:
                layer, outputs = maker(b, width)
        except TooLarge:
            b.params = before
            return width
        self.layers.append(layer)
        self.words.append(maker.__name__.replace("_", " "))
        return outputs

    def _add_batch_layer(self, width: int) -> int:
        b = self.b
        kind = b.pick(*BATCH)
        self.cell = [] if kind in {"batch norm", "centring"} and b.chance(0.5) else None
        try:
            layer, width = batch_layer(b, width, kind, self.cell)
        except TooLarge:
            self.cell = None
            return width
        said = b.chance(0.33)
        if self.cell is not None:
            self.words.append("BatchCoupled")
        elif said:
            self.arguments["batch_coupled"] = True
        else:
            self.expectation = EITHER
        self.layers.append(layer)
        self.words.append(kind if self.cell is not None else f"{kind}, {'said' if said else 'not said'}")
        self.batch = True
        return width

    def _pool(self, width: int) -> int:
        self.b.mixes = False
        kind = self.b.pick("mean", "max", "last", "flat")
        self.words.append(f"{kind} over positions")
        match kind:
            case "mean":
                self.layers.append(same(lambda p, x: jnp.mean(x, 1)))
            case "max":
                self.layers.append(same(lambda p, x: jnp.max(x, 1)))
            case "last":
                self.layers.append(same(lambda p, x: x[:, -1]))
            case _:
                self.layers.append(same(lambda p, x: x.reshape(len(x), -1)))
                return width * self.positions
        return width

    def _head(self, width: int, classes: int, sequential: bool) -> None:
        b, family = self.b, self.family
        b.limit = 10**6
        if self.table and type(family) is lg.families.Categorical and b.chance(0.3):
            name = self.table
            inner, _ = dense(b, width, b.params[name]["table"].shape[1])
            tied = lambda p, x: inner.run(p, x) @ p[name]["table"].T  # noqa: E731
            self.layers.append(same(tied))
            self.words.append("tied logits")
        else:
            self.layers.append(dense(b, width, classes)[0])
        scale = b.pick(*(1.0,) * 12, 0.01, 4.0, 12.0) if not self._unbounded(family) else b.pick(0.5, 1.0)
        inside = family.upper > 0 or b.chance(0.93)
        if not inside:
            self.expectation = EITHER
            self.words.append("outside the domain")
        if scale != 1:
            self.words.append(f"outputs × {scale:g}")

        def finish(p, x):
            z = x * jnp.asarray(scale, x.dtype)
            if self._unbounded(family):
                z = 3 * jnp.tanh(z / 3)
            return _into_domain(family, z) if inside else z

        self.layers.append(same(finish))
        if classes == 1 and not family.joint and not sequential and b.chance(0.6):
            self.scalar_output = True
            self.words.append("outputs [N]")
            self.layers.append(same(lambda p, x: x[:, 0]))

    @staticmethod
    def _unbounded(family: AbstractFamily) -> bool:
        """Whether the variance of this family grows or falls without bound in its natural parameter."""
        return not isinstance(
            family,
            lg.families.Bernoulli
            | lg.families.Categorical
            | lg.families.Gaussian
            | own.CorrelatedGaussian
            | own.ScaledGaussian
            | own.Ordinal
            | own.Multinomial,
        )

    # What stands around the function.

    def _add_mask(self, X: Any, shape: tuple[int, ...]) -> Any:
        """A mask, with values at masked positions that must not matter."""
        b = self.b
        if not b.chance(0.3 if len(shape) == 2 else 0.12):
            return X
        mask = b.rng.random(shape) < 0.65
        if not mask.any():
            if b.chance(0.8):
                mask.flat[0] = True
            else:
                self.expectation = EITHER
        self.words.append("masked")
        counts = mask
        if b.chance(0.3):
            mask = mask * b.rng.uniform(0.2, 2, shape)
            self.words.append("with weights")
        self.mask = mask
        if b.mixes or self.batch or not b.chance(0.6):
            return X
        junk = b.pick(np.nan, np.inf, 1e30)
        self.words.append(f"{junk} there")

        def spoil(leaf: Any) -> Any:
            if not isinstance(leaf, np.ndarray) or leaf.dtype.kind != "f" or leaf.shape[: counts.ndim] != counts.shape:
                return leaf
            with np.errstate(over="ignore"):
                value = leaf.dtype.type(junk)
            return np.where(counts.reshape(counts.shape + (1,) * (leaf.ndim - counts.ndim)), leaf, value)

        return jax.tree.map(spoil, X)

    def _container(self) -> tuple[Any, Callable[[Any], dict]]:
        """Parameters as a user keeps them: in a dict, tuple or list, with leaves that are unused or no parameters."""
        b = self.b
        dtypes = self.precision.leaves

        def leaf(v: np.ndarray) -> Array:
            return jnp.asarray(v, dtypes[b.rng.integers(len(dtypes))] if v.dtype.kind == "f" else jnp.int32)

        p: Any = {name: {k: leaf(v) for k, v in group.items()} for name, group in b.params.items()}
        if b.chance(0.15):
            p["unused"] = {"spare": leaf(b.normal(2)), "none": None}
            self.words.append("unused leaf")
        if b.chance(0.06):
            p["unused0"] = {"empty": leaf(np.zeros((0, 2)))}
            self.words.append("empty leaf")
        match b.pick("dict", "dict", "dict", "tuple", "list", "settings", "steps"):
            case "tuple":
                return (p, None), lambda params: params[0]
            case "list":
                return [{"net": p}], lambda params: params[0]["net"]
            case "settings":
                return {"net": p, "name": "model", "rate": 0.1}, lambda params: params["net"]
            case "steps":
                return {"net": p, "step": jnp.asarray(3), "flag": jnp.asarray(True)}, lambda params: params["net"]
            case _:
                return p, lambda params: params

    def _add_arguments(self, params: Any, outputs: tuple[int, ...]) -> None:
        """Further arguments of `lg.fisher`."""
        b = self.b
        if b.chance(0.12):
            names = [
                jax.tree_util.keystr(path, simple=True, separator=".")
                for path, leaf in jax.tree_util.tree_leaves_with_path(params)
                if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size
            ]
            chosen = [n for n in names if b.chance(0.6)] or names[:1]
            self.arguments["wrt"] = chosen
            self.words.append("wrt " + "+".join(chosen))
        if b.chance(0.25) and "batch_coupled" not in self.arguments:
            self.arguments["chunk"] = b.pick(1, 2, 3)
            self.words.append(f"chunk {self.arguments['chunk']}")
        if b.chance(0.17):
            self._add_scores(outputs)

    def _add_scores(self, outputs: tuple[int, ...]) -> None:
        """Another method than "exact"."""
        b = self.b
        method = b.pick("empirical", "monte_carlo")
        self.words.append(method)
        self.arguments["method"] = method
        if method == "monte_carlo":
            self.arguments |= {"key": jax.random.key(int(b.rng.integers(2**31))), "samples": b.pick(1, 2, 5)}
            return
        self.arguments["y"] = self._responses(outputs)

    def _responses(self, outputs: tuple[int, ...]) -> np.ndarray:
        b, family = self.b, self.family
        if isinstance(family, lg.families.Categorical):
            classes = self.vocabulary if "tied logits" in self.words else outputs[-1]
            if b.chance(0.15):
                self.expectation = REFUSED
                self.words.append("labels outside their range")
                return b.rng.choice([-1, classes], outputs[:-1])
            labels = b.rng.integers(0, classes, outputs[:-1])
            return np.eye(classes)[labels] if b.chance(0.3) else labels
        match family:
            case lg.families.Bernoulli():
                return b.rng.integers(0, 2, outputs).astype(float)
            case own.CoshPair():
                return 2 * b.rng.integers(0, 2, outputs).astype(float) - 1
            case lg.families.Binomial() | lg.families.Poisson() | lg.families.NegativeBinomial():
                return b.rng.integers(0, 4, outputs).astype(float)
            case lg.families.Gamma() | lg.families.InverseGaussian():
                return b.rng.gamma(2.0, 1.0, outputs)
            case _:
                return b.rng.normal(size=outputs)


def _widest(p: dict, dtype: str) -> Any:
    """The dtype of integer inputs made floating: that of the parameters."""
    leaves = [leaf for leaf in jax.tree.leaves(p) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.result_type(*leaves) if leaves else dtype
