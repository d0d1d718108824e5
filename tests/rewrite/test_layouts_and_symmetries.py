"""Rewrites move along symmetries: published layouts have the predicted ones, and rewritten models are recognized."""

import lngeom as lg
import numpy as np
import pytest
from lngeom.rewrite import steps as do
from lngeom.transformers import rewrite as rw

from tests.rewrite import zoo

REWRITES = {
    "llama": [do.FoldNorms(), do.Rotate(seed=0), do.Balance()],
    "mixtral": [do.FoldNorms(), do.Rotate(seed=1), do.CentreRouter()],
    "gpt_neox": [do.FoldNorms(), do.CentreWriters(), do.MergeValueBias(), do.CentreHead()],
    "olmo": [do.CentreReaders(), do.CentreWriters(), do.Balance()],
    "gptj": [do.FoldNorms(), do.CentreWriters()],
    "phi3": [do.FoldNorms(), do.Rotate(seed=0), do.Balance()],
    "granite": [do.FoldNorms(), do.Rotate(seed=0), do.Balance()],
    "vit": [do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0), do.MergeValueBias()],
    "dinov2": [do.FoldNorms(), do.FoldScales(), do.CentreWriters(), do.Rotate(seed=0)],
    "t5": [do.FoldNorms(), do.Rotate(seed=0), do.Balance(), do.RotateValues(seed=1)],
    "whisper": [do.FoldNorms(), do.CentreWriters(), do.MergeValueBias(), do.RotateValues(seed=1)],
    "falcon": [do.FoldNorms(), do.CentreWriters(), do.MergeParallelBias(), do.RotateValues(seed=1)],
}


UNPREDICTED = {
    "hunyuan_v1_dense": "rotary positions before a norm with gains",
    "qwen2_moe": "a shared expert",
    "deepseek_v2": "latent attention",
    "deepseek_v3": "latent attention",
    "gpt_oss": "a clamped network",
    "modernbert": "reads the stream without a norm",
    "vit": "reads patches",
    "dinov2": "reads patches",
    "whisper": "reads frames, by a front end",
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", zoo.CONFIGS)
def test_the_symmetries_of_published_layouts_are_those_of_the_formulas(kind):
    stack = zoo.stack_of(kind)
    if kind in UNPREDICTED:
        with pytest.raises(ValueError, match=UNPREDICTED[kind]):
            lg.predicted_nullspace(stack, zoo.random_weights(kind, stack))
        return
    predicted = lg.predicted_nullspace(stack, zoo.random_weights(kind, stack))
    assert next(c for c in predicted.conditions if c.name == "the weights are a generic point").holds
    assert predicted.basis.shape == (predicted.parameters, predicted.dimension)


@pytest.mark.parametrize("kind", REWRITES)
def test_a_rewritten_model_is_recognized(kind):
    stack = zoo.stack_of(kind)
    weights = zoo.random_weights(kind, stack)
    out = rw.apply(stack, weights, REWRITES[kind])
    assert any(np.abs(out.weights[n] - weights[n]).max() > 0.1 for n in weights)
    found = rw.certify((stack, weights), (out.stack, dict(out.weights)))
    assert found.verdict == "same", found


def test_a_tied_model_is_compared():
    stack = zoo.stack_of("gpt2")
    weights = zoo.random_weights("gpt2", stack)
    with pytest.raises(ValueError, match="untie first"):
        rw.canonical(stack, weights)
    models = [
        rw.apply(stack, weights, [do.Untie(), *steps])
        for steps in ([], [do.FoldNorms(), do.CentreWriters(), do.DropKeyBias()])
    ]
    assert all(rw.certify((stack, weights), (m.stack, dict(m.weights))).verdict == "same" for m in models)
