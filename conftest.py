"""The README's examples run as its readers run them: with JAX's own defaults, not those of the tests."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest


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
