"""Generated models, with layers and families that the library does not have, have one matrix by every route."""

from analysis.fuzz.compare import run, settings
from analysis.fuzz.models import generate
from analysis.fuzz.outcome import FAILURES
from hypothesis import strategies as st

from tests.relations.relation import relation


@relation(seed=st.integers(0, 10**6), thorough=300)
def test_a_generated_model_has_one_matrix_by_every_route(seed):
    with settings():
        case = generate(seed)
    outcome = run(case)
    assert outcome.outcome not in FAILURES, f"{outcome.name}: {outcome.messages}"
