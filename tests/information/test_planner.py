"""Every size is the number of things that fit a budget, and what fits is divided as little as it can be."""

import pytest
from hypothesis import given, strategies as st
from lngeom.information import _planner
from lngeom.information._planner import Sizes, even_chunk, fitting, plan, samples_in_products, samples_in_rows

BYTES = st.integers(1, 2**34)


@given(each=BYTES, together=BYTES, most=st.integers(1, 1000))
def test_as_many_fit_as_have_room_and_one_always_does(each, together, most):
    count = fitting(each, together, most)
    assert 1 <= count <= most
    assert count == 1 or count * each <= together
    assert count == most or (count + 1) * each > together


@given(each=BYTES, budget=BYTES, samples=st.integers(1, 10**6))
def test_a_chunk_takes_at_most_a_quarter_of_the_budget(each, budget, samples):
    products, rows = samples_in_products(each, budget, samples), samples_in_rows(each, budget)
    assert products == 1 or 2 * each * products <= min(_planner.CHUNK_BYTES, budget / 4)
    assert rows == 1 or each * rows <= min(_planner.ROW_BYTES, budget / 4)


@given(chunk=st.integers(0, 40), samples=st.integers(2, 60))
def test_no_sample_is_alone_in_an_even_chunk(chunk, samples):
    size = even_chunk(chunk, samples)
    assert 2 <= size <= samples
    assert samples % size != 1


def sizes(**changes) -> Sizes:
    given = {"parameters": 50, "samples": 1000, "rows_per_sample": 10, "width": 4, "coupled": False}
    return Sizes(**given | changes, derivative=lambda samples: 500 + 400 * samples)


def test_a_derivative_that_fits_is_stored_and_one_that_does_not_is_divided():
    whole = plan(sizes(), 2**30, None)
    assert (whole.store, whole.chunk, whole.derivative) == (True, 1000, 400_500)
    assert (whole.factor, whole.dense, whole.row_chunk) == (2_000_000, 10_000, _planner.ROW_BYTES // 2000)
    divided = plan(sizes(), 400_000, None)
    assert (divided.store, divided.chunk, divided.row_chunk) == (False, 125, 50)
    assert divided.batch == 2**21 // (125 * 400)


def test_chunks_that_are_named_are_taken():
    named = plan(sizes(), 2**30, 7)
    assert (named.store, named.chunk, named.row_chunk) == (False, 7, 7)


def test_samples_that_interact_are_not_divided():
    together = plan(sizes(coupled=True), 2**30, None)
    assert (together.store, together.chunk, together.row_chunk) == (True, 1000, 1000)
    with pytest.raises(ValueError, match=r"cannot be divided into chunks: .* got chunk=7 for N = 1000"):
        plan(sizes(coupled=True), 2**30, 7)
    with pytest.raises(MemoryError, match="the derivative of a coupled function, which cannot be divided, would need"):
        plan(sizes(coupled=True), 1000, None)
