"""torchax, which runs torch modules on arrays of JAX: imported when it is needed, its switches set back."""

import contextlib
import functools
import os
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import jax

INSTALL = "pip install --pre 'torchax>=0.0.14.dev20261026'"
"""What installs a torchax that imports with torch 2.13."""

TELEMETRY = "ENABLE_RUNTIME_UPTIME_TELEMETRY"
CLIENT = "jax_pjrt_client_create_options"


@functools.cache
def environment() -> Any:
    """The environment of torchax.

    Importing torchax sets an environment variable, an option of JAX and torch's fast path of attention; they are set
    back. It also names torch's spare device "jax", which torch cannot undo.

    Raises:
        ModuleNotFoundError: if torch or torchax is missing.
        ImportError: if torchax does not import.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("lg.from_torch needs torch: pip install 'lngeom[torch]'") from error
    found, telemetry = getattr(jax.config, CLIENT, None), os.environ.get(TELEMETRY)
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        import torchax

        return torchax.default_env()
    except ModuleNotFoundError as error:
        if error.name != "torchax":
            raise
        raise ModuleNotFoundError(f"lg.from_torch needs torchax, which runs torch modules in JAX: {INSTALL}") from error
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ImportError(
            f"torchax {version()} does not import with torch {torch.__version__} ({text}): {INSTALL}"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        if telemetry is None:
            os.environ.pop(TELEMETRY, None)
        if getattr(jax.config, CLIENT, None) != found:
            jax.config.update(CLIENT, found)


def version() -> str:
    """The release of torchax."""
    try:
        return metadata.version("torchax")
    except metadata.PackageNotFoundError:
        return "(of no known release)"


@contextlib.contextmanager
def running() -> Iterator[Any]:
    """Runs what torch is asked for on arrays of JAX.

    Torch's fast path of attention, one operation that torchax does not know, is off meanwhile. Shapes and dtypes are
    promoted by JAX's own defaults, for which torchax is written.

    Yields:
        The environment.
    """
    import torch

    found, fast = environment(), torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with found, jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            yield found
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
