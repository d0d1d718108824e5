"""Claims about recurrent networks and logits turn where the library, or what they are held against, is broken."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from lngeom import nn
from lngeom.claims import Verdict, all_claims, run
from lngeom.nn import dynamics
from lngeom.papers.ba2016 import recurrent
from lngeom.papers.ba2016.recurrent import HIDDEN, gru_is_defined
from lngeom.symbolic.proof import ProofError

UNROLL = dynamics.unroll_batch_norm


def verdict(problem, id):
    found = run(all_claims(id=id)[0], problem)
    assert not found.error, found.error
    return found.verdict


def without_recurrent_weights(cell, xs, stored=None):
    """Recurrent batch norm that ignores W_hh."""
    return UNROLL(eqx.tree_at(lambda c: c.recurrent_weights, cell, 0 * cell.recurrent_weights), xs, stored)


def without_a_limit(cell, xs, stored=None):
    """Recurrent batch norm that takes the last statistics for steps that have none."""
    if stored is not None:
        stored = jax.tree.map(lambda v: jnp.concatenate([v, jnp.repeat(v[-1:], len(xs), 0)]), stored)
    return UNROLL(cell, xs, stored)


@pytest.mark.parametrize("broken", [without_recurrent_weights, without_a_limit])
def test_broken_recurrent_batch_norm_turns_its_claim(problem, monkeypatch, broken):
    monkeypatch.setattr(dynamics, "unroll_batch_norm", broken)
    assert verdict(problem, "text.bn_per_time_step") is Verdict.CLASH


def test_the_gated_unit_is_defined_at_one_pair_of_sizes():
    assert gru_is_defined(2 * HIDDEN, HIDDEN)
    assert not gru_is_defined(2 * HIDDEN, 2 * HIDDEN)
    assert not gru_is_defined(HIDDEN, HIDDEN)
    assert not gru_is_defined(2, 1)  # where NumPy would broadcast
    assert not gru_is_defined(2 * HIDDEN, HIDDEN, star=False)


def test_equations_that_broadcast_turn_the_claim(problem, monkeypatch):
    monkeypatch.setattr(recurrent, "gru_is_defined", lambda *sizes, star=True: True)
    assert verdict(problem, "equation.23_28") is not Verdict.SLIP


def test_logits_that_are_normalized_to_more_turn_the_cap(problem, monkeypatch):
    right = nn.layer_norm
    monkeypatch.setattr(nn, "layer_norm", lambda *arguments, **options: 1.1 * right(*arguments, **options))
    assert verdict(problem, "experiments.no_ln_on_logits") is Verdict.CLASH


def test_a_wrong_exponent_of_the_cap_is_refused(monkeypatch):
    """The height of a spike is √(H − 1): with √H, what the proof says of it is false."""
    monkeypatch.setattr(recurrent, "sqrt", lambda value: right_root(value + 1))
    with pytest.raises(ProofError):
        recurrent.no_ln_on_logits_proof()


right_root = recurrent.sqrt
