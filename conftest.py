"""The README's examples run as its readers run them: with JAX's own defaults, not those of the tests."""

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec

import pytest

if not (find_spec("torch") and find_spec("torchax")):
    collect_ignore = ["lngeom/information/torch_modules"]  # its modules begin with `import torch`, and its example runs


@pytest.fixture(autouse=True)
def _as_a_reader(request: pytest.FixtureRequest) -> Iterator[None]:
    with ExitStack() as defaults:
        if request.node.path.name == "README.md":
            import jax

            for default in (
                jax.enable_x64(False),
                jax.numpy_dtype_promotion("standard"),
                jax.numpy_rank_promotion("allow"),
            ):
                defaults.enter_context(default)
        yield
