"""`from_torch`: a torch module as a function of JAX, held to the module before it is handed over."""

from typing import TYPE_CHECKING, Any

from jaxtyping import Array, PyTree

if TYPE_CHECKING:
    from lngeom.information.torch_modules.function import TorchFunction


def from_torch(
    module: Any,
    X: PyTree,
    *,
    output: str | int | None = None,
    mode: str | None = None,
    dtype: Any = None,
    lift: bool = True,
    **options: Any,
) -> tuple["TorchFunction", dict[str, Array]]:
    r"""A torch module as (apply, params): apply(params, X) is the module's output in JAX, by torchax.

    Give both to `lg.fisher`, `lg.laplace` or `lg.training.plan`. The module stays as it is: a copy runs, with the
    values that the module has now.

    Before it returns, four things are compared on the first rows of X, in float64: outputs; a product $Jv$ with
    central differences of the torch module; $\langle u, Jv\rangle$ with $\langle J^\top u, v\rangle$; and $J^\top u$
    with torch's own gradient, a leaf at a time. Outputs in the module's own dtype are compared too.

    Parameters are those with `requires_grad`. Buffers (running statistics, masks, rotary tables) are `apply.fixed`. A
    tied parameter is one parameter, by its first name. `padding_idx` of embeddings, by which torch sets the derivative
    of a row to 0 though outputs depend on it, is left out.

    Null directions of a transformer whose layout is known are named by its symmetries: with
    `stack = lg.rewrite.layouts.describe(module.config.to_dict(), params)`, by `F.nullspace().describe(stack)`.

    When not to use it: for a norm alone, `lg.check_invariances` and `lg.lint` take torch layers as they are.

    Args:
        module: on the CPU, without hooks.
        X: samples to run it on: an array or tensor, its one argument; a dict, its arguments by name, such as
            {"input_ids": ids, "attention_mask": mask}; or a tuple, its arguments in order. apply takes the same.
        output: which of several results: a name such as "logits", or an index.
        mode: "eval" or "train". By default the mode that the module is in, where it matters in evaluation mode alone.
            With batch norm in training mode samples interact: `lg.fisher` needs `batch_coupled=True`. Noise is refused.
        dtype: in which to compute, such as "float64"; by default the parameters' own.
        lift: make casts inside the module to fewer digits (of Llama's norms and rotary tables to float32) to the dtype
            of the parameters. They change outputs by rounding, and ranks, as 411 for 412. `apply.casts` names them.
        **options: further keyword arguments of every call, such as use_cache=False.

    Returns:
        apply, and a dict of the parameters by torch's names, for `wrt="layers.0"` too.

    Raises:
        ValueError: if the module, X or output is no such thing, outputs are random, or JAX's outputs or derivatives
            are not the module's.
        ImportError: if torch or torchax does not import.

    Warns:
        UserWarning: if casts stay, two parameters are one piece of memory, outputs have a kink at the parameters, or
            torch's own gradient is wrong.

    Example:
        >>> import jax, torch
        >>> import lngeom as lg
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6, eps=0), nn.GELU(), nn.Linear(6, 3))
        >>> X = torch.randn(40, 4, generator=torch.manual_seed(0))
        >>> with jax.enable_x64(True):
        ...     apply, params = lg.from_torch(net, X, dtype="float64")
        ...     F = lg.fisher(apply, params, X.numpy(), family=lg.families.Categorical())
        ...     F.in_size(), F.rank()
        (63, 50)
    """
    from lngeom.information.torch_modules.bridge import environment

    environment()
    import torch

    from lngeom.information.torch_modules import module as reader
    from lngeom.information.torch_modules.arrays import first_rows
    from lngeom.information.torch_modules.compared import require_same, require_steady
    from lngeom.information.torch_modules.function import Held, function_of

    reader.require_readable(module)
    reader.warn_of_shared_memory(module)
    wanted = reader.dtype_of(module, dtype)
    twin = reader.twin_of(module, wanted, reader.training_of(mode))
    held = Held(twin, wanted, output, options, lift)
    apply, params = function_of(held)
    rows = first_rows(X, wanted)
    with torch.random.fork_rng(devices=[]):
        require_steady(held, rows, said=mode is not None)
        held.casts = require_same(apply, params, rows)
    return apply, params
