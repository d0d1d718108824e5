"""Stock norms on hostile inputs give no difference and no finding; rebuilt faulty norms do, by name."""

import warnings

import lngeom as lg
import numpy as np
import pytest

from tests.checks.faulty import FAULTS
from tests.checks.hostile import LIBRARIES, hostile

MISSED = {"the mean is not subtracted"}
"""Faults that are a note and no finding: RMS norms are called layer norms by design, as in T5."""

OF_INPUTS = {"epsilon-large", "cancellation"}
"""Rules that are right to speak of such inputs."""

OUT_OF_RANGE = {"very large": {"wrong-gradient"}}
"""Likewise by input: σ⁻³ is less than the smallest number of float32, and gradients there are off by a half."""

FEW = {
    "the variance is taken over samples",
    "statistics of the first half of the units",
    "padded lanes enter the variance at a width that is no power of two",
    "another number of groups",
    "running statistics that no step moves",
}
"""Faults of the quick tests."""


def test_there_are_enough_of_both():
    assert len(FAULTS) >= 40
    assert len({f.name for f in FAULTS}) == len(FAULTS)
    assert len(MISSED) <= 2
    assert len(hostile((6, 5, 8), 2)) >= 20


def no_false_alarm(make, X, rules=frozenset()):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = lg.check_model(make(), X)
        linted = lg.lint(make(), X)
    assert len(report.norms) == 1
    assert not report.differs, str(report)
    assert not report.unchecked, str(report)
    assert not {f.rule for f in linted.findings} - OF_INPUTS - rules, str(linted)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "library", [pytest.param(n, marks=[pytest.mark.peers] if n in {"torch", "keras"} else []) for n in LIBRARIES]
)
def test_stock_norms_on_hostile_inputs_give_no_difference(library):
    for _, make, shape, units in LIBRARIES[library]():
        for name, X in hostile(shape, units).items():
            no_false_alarm(make, X.astype(np.float32), OUT_OF_RANGE.get(name, set()))


@pytest.mark.parametrize("name", ["a zero sample", "a dead unit", "an offset of 1000", "the same number", "very tiny"])
def test_a_stock_norm_on_hostile_inputs_gives_no_difference(name):
    from equinox import nn

    no_false_alarm(lambda: nn.LayerNorm(8), hostile((6, 8), 1)[name].astype(np.float32))


@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=[] if f.name in FEW else [pytest.mark.thorough], id=f.name) for f in FAULTS]
)
def test_a_faulty_norm_is_found_and_named(fault):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = lg.check_model(*fault.build())
        linted = lg.lint(*fault.build())
    assert (report.differs or bool(linted.findings)) == (fault.name not in MISSED), str(report)
    assert fault.said in str(report), str(report)
    assert not fault.rule or fault.rule in {f.rule for f in linted.findings}, str(linted)
