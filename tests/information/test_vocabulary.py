"""A head with many classes: products in blocks are those of the plain route, in less memory."""

from functools import cache

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom.information import VocabularyHead

from tests.cases import drawn

CATEGORICAL = lg.families.Categorical()
CLASSES, WIDTH, SAMPLES, POSITIONS = 37, 5, 6, 3


@cache
def model(bias=True, tied=False, positions=True, scale=1.0):
    """A normalized layer before a head, its parameters, and data."""
    params = {"layer": drawn(0, WIDTH, WIDTH), "head": drawn(1, CLASSES, WIDTH)}
    params |= {"bias": drawn(2, CLASSES)} if bias else {}
    shape = (SAMPLES, POSITIONS) if positions else (SAMPLES,)
    X = jnp.asarray(np.random.default_rng(3).integers(0, CLASSES, shape)) if tied else drawn(3, *shape, WIDTH)

    def features(params, X):
        x = params["head"][X] if tied else X
        h = scale * lg.nn.layer_norm(x @ params["layer"], eps=0.0)
        return (h, params["head"], params["bias"]) if bias else (h, params["head"])

    return features, params, X


@cache
def all_logits(features):
    """The plain function of a model: no blocks."""
    head = VocabularyHead(features)
    return lambda params, X: head(params, X)


def both(block, mask=None, **given):
    """Operators of the same matrix: in blocks, and by all logits."""
    features, params, X = model(**given)
    routes = VocabularyHead(features, block), all_logits(features)
    return [lg.fisher(f, params, X, family=CATEGORICAL, mask=mask) for f in routes], params


def tangent(params, seed=5):
    return {name: drawn(seed + k, *w.shape).astype(w.dtype) for k, (name, w) in enumerate(params.items())}


def close(one, other, bound=1e-12):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert float(jnp.linalg.norm(a - b)) <= bound * float(jnp.linalg.norm(b))


@pytest.mark.thorough
def test_chunks_and_recomputed_derivatives_give_the_same():
    features, params, X = model()
    whole = lg.fisher(VocabularyHead(features, 8), params, X, family=CATEGORICAL)
    parts = lg.fisher(VocabularyHead(features, 8), params, X, family=CATEGORICAL, chunk=2)
    assert whole._stored is not None
    assert parts._stored is None
    close(parts.mv(tangent(params)), whole.mv(tangent(params)))


@pytest.mark.thorough
def test_eigenvalues_and_solutions_need_products_alone():
    (blocked, plain), params = both(8)
    close(blocked.eigenpairs(3).values, plain.eigenpairs(3).values, 1e-8)
    v = tangent(params)
    close(*(F.solve(v, damping=0.1, method="cg").value for F in (blocked, plain)), 1e-6)


def test_logits_are_never_all_in_memory():
    classes, rows = 20_000, 64
    W = jax.random.normal(jax.random.key(0), (classes, 8), jnp.float32)
    X = jax.random.normal(jax.random.key(1), (rows, 8), jnp.float32)
    head = VocabularyHead(lambda W, X: (X, W), 256)
    sizes = {}
    for name, function in (("blocks", head), ("plain", lambda W, X: head(W, X))):
        F = lg.fisher(function, W, X, family=CATEGORICAL, chunk=rows, check=False)
        sizes[name] = jax.jit(lambda F, v: F.mv(v)).lower(F, W).compile().memory_analysis().temp_size_in_bytes
    logits = 4 * classes * rows
    assert sizes["plain"] > logits
    assert sizes["blocks"] < logits / 2


def test_drawn_scores_are_those_of_all_logits():
    features, params, X = model()
    given = {"family": CATEGORICAL, "method": "monte_carlo", "key": jax.random.key(3), "samples": 2}
    F, G = (lg.fisher(f, params, X, **given) for f in (VocabularyHead(features, 8), all_logits(features)))
    close(F.mv(tangent(params)), G.mv(tangent(params)))


def test_what_is_no_head_is_refused():
    features, params, X = model()
    with pytest.raises(ValueError, match=r"family must be lg\.families\.Categorical\(\); got Gaussian"):
        lg.fisher(VocabularyHead(features), params, X, family=lg.families.Gaussian())
    with pytest.raises(ValueError, match="block must be a number of classes, at least 1; got 0"):
        VocabularyHead(features, 0)
    for wrong in (lambda p, x: x, lambda p, x: (x, p["head"].T), lambda p, x: (x, p["head"], p["head"])):
        with pytest.raises(ValueError, match="features must return"):
            lg.fisher(VocabularyHead(wrong), params, X, family=CATEGORICAL)
    broken = VocabularyHead(lambda p, x: (x.at[0, 0, 0].set(np.nan), p["head"]))
    with pytest.raises(ValueError, match="must be finite"):
        lg.fisher(broken, params, X, family=CATEGORICAL)
