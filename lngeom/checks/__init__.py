"""Checks of a layer's invariances, their precision, and the scales at which they hold."""

from lngeom.checks._adapters import adapt as adapt, load as load
from lngeom.checks._report import (
    Counterexample as Counterexample,
    Curve as Curve,
    Finding as Finding,
    Report as Report,
    Result as Result,
    Verdict as Verdict,
)
from lngeom.checks._rows import NAMES as NAMES
from lngeom.checks._subject import Subject as Subject
from lngeom.checks._suite import (
    Check as Check,
    check_invariances as check_invariances,
    generate_checks as generate_checks,
    parametrize_with_invariances as parametrize_with_invariances,
)
