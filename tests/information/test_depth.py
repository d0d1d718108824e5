"""A product reaches its mathematics after few of our frames."""

import traceback
from pathlib import Path

import jax
import pytest
from lngeom.information import _derivative

from tests.information import zoo

FRAMES, FILES = 8, 3
MATHEMATICS = Path(_derivative.__file__).name


def passed(F, monkeypatch) -> list[str]:
    """Our files on the way from the caller to JᵀΛJ, a name for each frame, while F v is traced."""
    seen = []
    for name in ("product", "__init__"):
        inner = getattr(_derivative.Pullback, name)

        def spied(*arguments, inner=inner):
            ours = [Path(f.filename).name for f in traceback.extract_stack() if "/lngeom/" in f.filename]
            seen.append([file for file in ours if file != MATHEMATICS])
            return inner(*arguments)

        monkeypatch.setattr(_derivative.Pullback, name, spied)
    jax.clear_caches()
    jax.eval_shape(F.mv, F.problem.params)
    return seen[0]


@pytest.mark.parametrize("chunk", [None, 7])
def test_a_product_passes_few_frames_and_files(chunk, monkeypatch):
    F = zoo.plain_network().fisher(chunk=chunk)
    frames = passed(F, monkeypatch)
    assert 0 < len(frames) <= FRAMES, frames
    assert len(set(frames)) <= FILES, frames


def test_the_count_sees_what_chunks_add(monkeypatch):
    whole, chunked = (set(passed(zoo.plain_network().fisher(chunk=chunk), monkeypatch)) for chunk in (None, 7))
    assert chunked - whole == {"_sharding.py"}
