"""Samples that interact: found out, and summed in chunks once their statistics are known."""

import jax
import jax.numpy as jnp
import lngeom as lg
import pytest
from lngeom._core.numerics import agreement
from lngeom.information import BatchCoupled, reference

from tests.cases import drawn
from tests.information import zoo

CASE = zoo.batch_norm_network()


@pytest.mark.thorough
def test_interacting_samples_are_found_out():
    with pytest.raises(ValueError, match="say batch_coupled=True"):
        CASE.fisher(batch_coupled=None)
    with pytest.raises(ValueError, match=r"cannot be divided into chunks.*BatchCoupled"):
        CASE.fisher(chunk=5)
    tokens = zoo.transformer_block()._replace(
        apply=lambda p, t: p["embedding"][t] @ p["logits"] + jnp.mean(p["embedding"][t], (0, 1), keepdims=True)[..., :5]
    )
    with pytest.raises(ValueError, match="samples interact"):
        tokens.fisher()


def test_naive_chunks_of_a_coupled_function_would_be_wrong():
    naive = CASE.fisher(batch_coupled=False, chunk=5, check=False).as_matrix()
    assert agreement(naive, zoo.dense_reference(CASE)).differs


@pytest.mark.thorough
def test_chunks_of_a_coupled_function_with_known_statistics_are_right():
    case = zoo.batch_coupled_network()
    exact = zoo.dense_reference(case)
    v = jnp.cos(jnp.arange(len(exact), dtype=float))
    for chunk in (None, 7):
        F = case.fisher(chunk=chunk)
        assert F.plan.store is (chunk is None)
        assert min(F.plan.row_chunk, 25) == (chunk or 25)
        assert agreement(F.as_matrix(), exact, 1e-13).agrees
        assert agreement(F @ v, exact @ v, 1e-13).agrees
    assert agreement(F.block("middle", "out"), exact[12:28, 28:], 1e-13).agrees


def test_statistics_taken_past_the_mean_are_found_out():
    case = zoo.batch_coupled_network()
    hidden = BatchCoupled(lambda p, x, mean: zoo.two_batch_norms(p, x, mean) + jnp.mean(x))
    with pytest.raises(ValueError, match="every mean over samples with the mean it is given"):
        case._replace(apply=hidden).fisher()
    with pytest.raises(ValueError, match="BatchCoupled function couples samples"):
        case.fisher(batch_coupled=False)


@pytest.mark.thorough
def test_a_batch_normalized_glm_is_divided_into_chunks_where_it_does_not_fit():
    model = lg.NormalizedGLM(lg.normalizers.BatchNorm(0.1), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=3, outputs=4)
    X = drawn(1, 50, 3)
    exact = reference.by_definition(model, params, X)
    F = lg.fisher(model, params, X, memory=20_000)
    assert not F.plan.store
    assert F.plan.chunk < 50
    assert agreement(F.as_matrix(), exact, 1e-13).agrees
    assert agreement(F.mm(jnp.eye(20)[:, ::7]), exact[:, ::7], 1e-13).agrees
    assert agreement(jnp.square(F.singular_values()), jnp.linalg.eigvalsh(exact)[::-1], 1e-12).agrees
    weights = lg.fisher(model, params, X, wrt="weights", chunk=7)
    assert agreement(weights.as_matrix(), exact[:12, :12], 1e-13).agrees


@pytest.mark.parametrize("chunk", [None, 7])
def test_a_batch_norm_of_constant_inputs_is_refused_in_chunks_too(chunk):
    model = lg.NormalizedGLM(lg.normalizers.BatchNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=3, outputs=4)
    with pytest.raises(ValueError, match="zero variance"):
        lg.fisher(model, params, jnp.full((50, 3), 0.1), chunk=chunk)


def test_what_does_not_fit_is_refused_with_its_size_and_the_alternative():
    with pytest.raises(MemoryError, match=r"derivative of a coupled function.*BatchCoupled"):
        CASE.fisher(memory=1000)
    with pytest.raises(MemoryError, match=r"tangents of 16 batch statistics.*name fewer leaves"):
        zoo.batch_coupled_network().fisher(memory=5000)
