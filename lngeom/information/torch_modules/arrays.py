"""Tensors as arrays and back, with their dtypes."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

ROWS = 4
"""Samples on which a module is compared: the first of X."""


def bits(dtype: Any) -> int:
    """Bits of a number of a floating point dtype of torch; 0 of another."""
    import torch

    return torch.finfo(dtype).bits if dtype.is_floating_point else 0


def to_array(tensor: Any) -> np.ndarray:
    """The values of a tensor, in its dtype.

    Raises:
        ValueError: if NumPy and JAX lack the dtype.
    """
    import torch

    plain = tensor.detach().cpu()
    if plain.dtype == torch.bfloat16:
        return plain.to(torch.float32).numpy().astype(jnp.bfloat16)
    try:
        return np.array(plain.numpy())
    except TypeError as error:
        raise ValueError(f"a tensor of dtype {tensor.dtype} is no array of JAX: convert it") from error


def to_tensor(value: Any) -> Any:
    """A tensor with the values of an array, or the tensor itself."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach()
    array = np.asarray(value)
    if array.dtype == jnp.bfloat16:
        return torch.tensor(array.astype(np.float32)).to(torch.bfloat16)
    return torch.tensor(array)


def jax_dtype(dtype: Any) -> jnp.dtype:
    """The same dtype of JAX."""
    return jnp.dtype(str(dtype).removeprefix("torch."))


def torch_dtype(dtype: Any) -> Any:
    """The same dtype of torch."""
    import torch

    return dtype if isinstance(dtype, torch.dtype) else getattr(torch, jnp.dtype(dtype).name)


def inputs_of(X: PyTree, dtype: Any) -> PyTree:
    """Inputs as arrays of JAX, those of floating point in the dtype of the module.

    Raises:
        ValueError: if they hold something that is no array.
    """
    import torch

    def read(leaf: Any) -> Any:
        array = to_array(leaf) if isinstance(leaf, torch.Tensor) else leaf
        if not isinstance(array, np.ndarray | np.generic | jax.Array) or array.dtype == object:
            raise ValueError(
                "X must be an array or tensor, a dict of those by the names of the module's arguments, or a tuple of "
                f"those in their order; got a {type(leaf).__name__} in it. What is the same for every sample, such as "
                "use_cache=False, is a further argument of lg.from_torch"
            )
        floating = jnp.issubdtype(array.dtype, jnp.floating)
        return jnp.asarray(array, jax_dtype(dtype) if floating else None)

    return jax.tree.map(read, dict(X) if isinstance(X, Mapping) else X)


def first_rows(X: PyTree, dtype: Any) -> PyTree:
    """The first samples as tensors, those of floating point in a dtype of torch; all, where lengths differ."""
    arrays = inputs_of(X, dtype)
    lengths = {a.shape[:1] for a in jax.tree.leaves(arrays)}
    return jax.tree.map(lambda a: to_tensor(a[:ROWS] if len(lengths) == 1 and () not in lengths else a), arrays)


def cast(X: PyTree, dtype: Any) -> PyTree:
    """Tensors, those of floating point in another dtype."""
    return each_tensor(X, lambda t: t.to(dtype) if t.is_floating_point() else t)


def arguments_of(X: PyTree, options: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """What the module is called with: inputs by name, by position, or one."""
    if isinstance(X, Mapping):
        return (), {**X, **options}
    return (tuple(X) if isinstance(X, tuple | list) else (X,)), dict(options)


def each_tensor(tree: Any, change: Callable[[Any], Any]) -> Any:
    """A tree of lists, tuples and dicts with its tensors changed."""
    import torch

    return jax.tree.map(lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf, tree)
