"""A product reaches its mathematics after few of our frames."""

import traceback
from pathlib import Path

import jax
import lngeom
import pytest
from lngeom.information import _derivative

from tests.information import zoo

FRAMES, FILES = 8, 3
MATHEMATICS = Path(_derivative.__file__).name
OURS = Path(lngeom.__file__).parent
"""A clone may be called like the package, and hold a virtual environment: only the package's own folder counts."""


def passed(monkeypatch, chunk: int | None) -> list[str]:
    """Our files on the way from the caller to JᵀΛJ, a name for each frame, while F v of a new function is traced."""
    F = zoo.plain_network.__wrapped__().fisher(chunk=chunk)
    jax.clear_caches()  # `fisher` has traced the derivative of all samples, and of one
    seen = []
    for name in ("product", "__init__"):
        inner = getattr(_derivative.Pullback, name)

        def spied(*arguments, inner=inner):
            files = (Path(frame.filename) for frame in traceback.extract_stack())
            seen.append([file.name for file in files if file.is_relative_to(OURS) and file.name != MATHEMATICS])
            return inner(*arguments)

        monkeypatch.setattr(_derivative.Pullback, name, spied)
    jax.eval_shape(F.mv, F.problem.params)
    return seen[0]


@pytest.mark.parametrize("chunk", [None, 7])
def test_a_product_passes_few_frames_and_files(chunk, monkeypatch):
    frames = passed(monkeypatch, chunk)
    assert 0 < len(frames) <= FRAMES, frames
    assert len(set(frames)) <= FILES, frames


def test_the_count_sees_what_chunks_add(monkeypatch):
    whole, chunked = (set(passed(monkeypatch, chunk)) for chunk in (None, 7))
    assert chunked - whole == {"_sharding.py"}
