"""The other libraries, each called as its documentation says, on the models that `bench_fisher` measures."""

import importlib.util
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from jax.flatten_util import ravel_pytree

Contenders = dict[str, Callable[[], Any]]

GROUP = 64
"""Columns of a dense matrix that are multiplied together, where a library has products alone."""


class Model(NamedTuple):
    """A model in JAX, with what it takes to write it in PyTorch.

    Attributes:
        apply: (params, X) → z.
        params: its parameters.
        inputs: X.
        family: of the outputs.
        widths: of its layers.
        layers: whether it is a network with a linear output, not a normalized GLM.
        module: makes it in PyTorch, where the widths do not say it.
    """

    apply: Callable
    params: Any
    inputs: jax.Array
    family: Any
    widths: tuple[int, ...]
    layers: bool
    module: Callable[[], Any] | None = None

    @property
    def tangent(self) -> Any:
        """Ones like the parameters."""
        return jax.tree.map(jnp.ones_like, self.params)

    def first(self, samples: int) -> "Model":
        """The same model on its first samples."""
        return self._replace(inputs=self.inputs[:samples])


def network(sizes: list[int], samples: int, dtype: Any) -> Model:
    """A network with layer norm and tanh after each hidden layer, and a softmax output."""
    keys = jax.random.split(jax.random.key(0), len(sizes))
    params = []
    for key, a, b in zip(keys, sizes, sizes[1:], strict=False):
        layer = {"w": jax.random.normal(key, (a, b), dtype) / a**0.5, "b": jnp.zeros(b, dtype)}
        params.append(layer | {"gain": jnp.ones(b, dtype), "shift": jnp.zeros(b, dtype)})
    params[-1] = {name: params[-1][name] for name in ("w", "b")}

    def apply(params: list, x: jax.Array) -> jax.Array:
        for layer in params[:-1]:
            x = x @ layer["w"] + layer["b"]
            x = x - jnp.mean(x, -1, keepdims=True)
            x = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
            x = jnp.tanh(x * layer["gain"] + layer["shift"])
        return x @ params[-1]["w"] + params[-1]["b"]

    X = jax.random.normal(keys[-1], (samples, sizes[0]), dtype)
    return Model(apply, params, X, lg.families.Categorical(), tuple(sizes), True)


def glm(units: int, inputs: int, samples: int) -> tuple[lg.NormalizedGLM, Model]:
    """A layer-normalized logistic GLM in float64."""
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=inputs, outputs=units, dtype=jnp.float64)
    X = jax.random.normal(jax.random.key(1), (samples, inputs), jnp.float64)
    return model, Model(model.natural_parameters, params, X, model.family, (inputs, units), False)


CHANNELS, SIDE = (8, 16), 12
"""Of the convolutional network, and the height and width of its images."""


def convolutional(samples: int, dtype: Any) -> Model:
    """Two convolutions of 3 × 3 with ReLU and steps of 2, and a linear output of ten classes, without norms."""
    keys = jax.random.split(jax.random.key(0), 4)
    inner = SIDE // 4
    sizes = ((CHANNELS[0], 1, 3, 3), (CHANNELS[1], CHANNELS[0], 3, 3), (10, CHANNELS[1] * inner * inner))
    params = [
        {"w": jax.random.normal(key, size, dtype) / math.prod(size[1:]) ** 0.5, "b": jnp.zeros(size[0], dtype)}
        for key, size in zip(keys, sizes, strict=False)
    ]

    def apply(params: list, x: jax.Array) -> jax.Array:
        for layer in params[:-1]:
            x = jax.lax.conv_general_dilated(x, layer["w"], (2, 2), [(1, 1), (1, 1)])
            x = jax.nn.relu(x + layer["b"][:, None, None])
        return x.reshape(len(x), -1) @ params[-1]["w"].T + params[-1]["b"]

    def module() -> Any:
        from torch import nn

        first, second = (nn.Conv2d(*pair, 3, 2, 1) for pair in ((1, CHANNELS[0]), CHANNELS))
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(sizes[-1][1], 10))

    X = jax.random.normal(keys[-1], (samples, 1, SIDE, SIDE), dtype)
    return Model(apply, params, X, lg.families.Categorical(), (SIDE**2, 10), True, module)


def plain_product(model: Model) -> Callable:
    """The product written out: jvp → Λ → vjp, with params and X as arguments of one jit."""

    @jax.jit
    def product(params: Any, X: jax.Array, v: Any) -> Any:
        function = lambda p: model.apply(p, X)  # noqa: E731
        z, dz = jax.jvp(function, (params,), (v,))
        return jax.vjp(function, params)[1](model.family.metric_product(z, dz) / len(X))[0]

    return product


def has(package: str) -> bool:
    """Whether a peer is installed."""
    return importlib.util.find_spec(package) is not None


def _somax(model: Model) -> Callable:
    from somax.curvature import GGNCE, GGNMSE

    samples = len(model.inputs)
    G = (GGNCE if model.layers else GGNMSE)(predict_fn=model.apply)
    y = jnp.zeros(samples, jnp.int32) if model.layers else jnp.zeros((samples, model.widths[-1]), model.inputs.dtype)
    state, _ = G.init(model.params, {"x": model.inputs, "y": y})
    return lambda v: G.matvec(model.params, state, v)


def _laplax(model: Model) -> Callable:
    from laplax.curv.ggn import create_ggn_mv

    samples = len(model.inputs)
    y = jnp.zeros(samples, jnp.int32) if model.layers else jnp.zeros((samples, model.widths[-1]), model.inputs.dtype)
    return create_ggn_mv(
        lambda input, params: model.apply(params, input[None])[0],
        model.params,
        {"input": model.inputs, "target": y},
        loss_fn="cross_entropy" if model.layers else "binary_cross_entropy",
        num_curv_samples=samples,
        num_total_samples=1,
    )


JAX_PEERS = {"somax": _somax, "laplax": _laplax}


def _label(name: str, model: Model) -> str:
    """somax has no Bernoulli outputs: for a GLM it takes Λ = I, less than is asked for."""
    return f"{name}, Λ = I" if name == "somax" and not model.layers else name


def _torch(model: Model) -> tuple[Any, Any, Any, Any]:
    """The same model for PyTorch: module, inputs, responses, torch itself."""
    import torch

    dtype = torch.float64 if model.inputs.dtype == jnp.float64 else torch.float32
    torch.set_default_dtype(dtype)
    X = torch.tensor(np.array(model.inputs))
    y = torch.zeros(len(X), dtype=torch.long) if model.layers else torch.zeros((len(X), model.widths[-1]), dtype=dtype)
    if model.module is not None:
        return model.module(), X, y, torch
    modules = []
    for a, b in zip(model.widths, model.widths[1:], strict=False):
        modules += [torch.nn.Linear(a, b, bias=model.layers), torch.nn.LayerNorm(b), torch.nn.Tanh()]
    return torch.nn.Sequential(*modules[: -2 if model.layers else -1]), X, y, torch


def _like(model: Model) -> tuple[Any, Any, Any, Any]:
    """The same model for PyTorch with the same weights."""
    module, X, y, torch = _torch(model)
    leaves = iter(
        jax.tree.leaves([[layer[k] for k in ("w", "b", "gain", "shift") if k in layer] for layer in model.params])
    )
    with torch.no_grad():
        for parameter in module.parameters():
            value = np.array(next(leaves))
            parameter.copy_(torch.tensor(value.T if value.ndim == 2 and model.module is None else value))
    return module, X, y, torch


def _curvlinops(model: Model) -> tuple[Any, Any]:
    import curvlinops

    module, X, y, torch = _torch(model)
    loss = torch.nn.CrossEntropyLoss() if model.layers else torch.nn.BCEWithLogitsLoss()
    G = curvlinops.GGNLinearOperator(module, loss, list(module.parameters()), [(X, y)], check_deterministic=False)
    return G, torch


def _nngeometry(model: Model, kind: str) -> Any:
    from nngeometry import metrics, object as matrices

    module, X, y, torch = _torch(model)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), batch_size=len(X))
    variant = "classif_logits" if model.layers else "regression"
    return metrics.FIM(module, loader, getattr(matrices, kind), variant=variant), torch


def products(model: Model, slow: bool = True) -> Contenders:
    """One product by each installed peer, set up once; those of JAX inside a jit, which makes what they hold constants.

    Args:
        model: the model.
        slow: whether to run those that are far behind, too, and those of JAX called by themselves.

    Returns:
        Functions without arguments.
    """
    result: Contenders = {}
    v = model.tangent
    for name, make in JAX_PEERS.items():
        if has(name):
            mv, label = make(model), _label(name, model)
            result[label] = lambda mv=jax.jit(mv): mv(v)
            if slow:
                result[f"{label}, called by itself"] = lambda mv=mv: mv(v)
    if has("curvlinops"):
        G, torch = _curvlinops(model)
        ones = torch.ones(G.shape[1])
        result["curvlinops"] = lambda: G @ ones
    if slow and has("nngeometry"):
        from nngeometry.object import PVector

        F, torch = _nngeometry(model, "PMatImplicit")
        size = ravel_pytree(model.params)[0].size
        vector = PVector(F.generator.layer_collection, vector_repr=torch.ones(size))
        result["nngeometry"] = lambda: F.mv(vector)
    return result


class Part(NamedTuple):
    """A contender for the dense matrix, and by how much its time is multiplied where it does only a part."""

    run: Callable[[], Any]
    scale: float


def _columns(model: Model, product: Callable, count: int | None, batch: int) -> Part:
    """Columns of the identity, by a compiled product of pytrees, `batch` at a time."""
    flat, unravel = ravel_pytree(model.params)
    count = flat.size if count is None else min(count, flat.size)
    one = lambda e: ravel_pytree(product(unravel(e)))[0]  # noqa: E731
    eye = jnp.eye(count, flat.size, dtype=flat.dtype)
    run = jax.jit(lambda eye: jax.lax.map(one, eye, batch_size=batch))
    return Part(lambda: run(eye), flat.size / count)


def dense(model: Model, columns: int | None, samples: int | None, batches: tuple[int, ...] = (256,)) -> dict[str, Part]:
    """The matrix by each installed peer and by plain columns of products.

    Args:
        model: the model.
        columns: how many columns of it where a library has products alone; None for all.
        samples: how many samples for those which form the Jacobian; None for all.
        batches: columns at a time, to choose the best from.

    Returns:
        Contenders.
    """
    plain = plain_product(model)
    result = {}
    for batch in batches:
        product = lambda v: plain(model.params, model.inputs, v)  # noqa: E731
        result[f"columns of products, {batch} at a time"] = _columns(model, product, columns, batch)
    for name, make in JAX_PEERS.items():
        if has(name):
            result[_label(name, model)] = _columns(model, make(model), columns, batches[0])
    few = model if samples is None else model.first(samples)
    scale = len(model.inputs) / len(few.inputs)
    if has("curvlinops"):
        G, torch = _curvlinops(model)
        size = G.shape[1]
        count = size if columns is None else min(columns, size)
        chunks = torch.eye(size, count).split(GROUP, 1)
        result["curvlinops"] = Part(lambda: [G @ chunk for chunk in chunks][-1].numpy(), size / count)
    if has("nngeometry"):
        result["nngeometry"] = Part(lambda: _nngeometry(few, "PMatDense")[0].to_torch().detach().numpy(), scale)
    jacobian = jax.jit(lambda params, X: _gram(few, params, X))
    result["JᵀΛJ"] = Part(lambda: jacobian(few.params, few.inputs), scale)
    return result


def _gram(model: Model, params: Any, X: jax.Array) -> jax.Array:
    """A Jacobian, and its Gram matrix by one matrix product."""
    flat, unravel = ravel_pytree(params)
    rows = jax.vmap(jax.jacrev(lambda theta, x: model.apply(unravel(theta), x[None])[0]), (None, 0))(flat, X)
    z = model.apply(params, X)
    rows = jax.vmap(model.family.metric_sqrt_product, (None, -1), -1)(z, rows).reshape(-1, flat.size)
    return rows.T @ rows / len(X)


def diagonals(model: Model) -> Contenders:
    """The exact diagonal by each installed peer, and by a loop over samples, each with its Jacobian.

    Args:
        model: a network.

    Returns:
        Functions without arguments, whose results have the same sum.
    """
    flat, unravel = ravel_pytree(model.params)

    def one(theta: jax.Array, x: jax.Array) -> jax.Array:
        function = lambda theta: model.apply(unravel(theta), x[None])  # noqa: E731
        rows = jax.vmap(model.family.metric_sqrt_product, (None, -1), -1)(
            function(theta)[0], jax.jacrev(function)(theta)[0]
        )
        return jnp.sum(jnp.square(rows), 0)

    loop = jax.jit(lambda theta, X: jax.lax.scan(lambda total, x: (total + one(theta, x), None), 0 * theta, X)[0])
    found: Contenders = {"a loop over samples": lambda: loop(flat, model.inputs) / len(model.inputs)}
    if has("nngeometry"):
        from nngeometry import metrics, object as matrices

        module, X, y, torch = _like(model)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), batch_size=len(X))
        found["nngeometry"] = lambda: (
            metrics.FIM(module, loader, matrices.PMatDiag, variant="classif_logits").get_diag().detach().numpy()
        )
    if has("backpack") and model.module is not None:  # it has no layer norm
        import backpack
        from backpack.extensions import DiagGGNExact

        module, X, y, torch = _like(model)
        module, loss = backpack.extend(module), backpack.extend(torch.nn.CrossEntropyLoss())

        def exact() -> Any:
            with backpack.backpack(DiagGGNExact()):
                loss(module(X), y).backward()
            return torch.cat([p.diag_ggn_exact.reshape(-1) for p in module.parameters()]).numpy()

        found["BackPACK"] = exact
    return found


def kronecker(model: Model) -> Contenders:
    """Kronecker factors and one product with them, by each installed peer, positions taken as samples.

    Args:
        model: a network.

    Returns:
        Functions without arguments, whose results have the same sum.
    """
    found: Contenders = {}
    if has("curvlinops"):
        import curvlinops

        module, X, y, torch = _like(model)
        given = module, torch.nn.CrossEntropyLoss(), list(module.parameters()), [(X, y)]
        options = {"fisher_type": "type-2", "kfac_approx": "expand", "separate_weight_and_bias": False}

        def factors() -> Any:
            K = curvlinops.KFACLinearOperator(*given, check_deterministic=False, **options)
            return (K @ torch.ones(K.shape[1])).numpy()

        found["curvlinops"] = factors
    return found
