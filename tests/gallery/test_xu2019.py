"""Layer norm's backward pass and AdaNorm: the number of solutions."""

import pytest
from lngeom.papers.gallery import xu2019


@pytest.mark.parametrize(("units", "dimension"), [(3, 7), (4, 4), (5, 3)])
def test_with_fewer_than_five_units_there_are_more_solutions(units, dimension):
    assert xu2019.solutions(units, 8, seed=0) == dimension
