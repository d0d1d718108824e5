"""Exact rewrites of transformers, each with a certificate."""

from lngeom.rewrite.canonical import canonical as canonical
from lngeom.rewrite.certificate import Certificate as Certificate
from lngeom.rewrite.checkpoints import save as save
from lngeom.rewrite.equivalent import equivalent as equivalent
from lngeom.rewrite.folders import load as load
from lngeom.rewrite.rewriting import (
    Rewritten as Rewritten,
    apply as apply,
    check_description as check_description,
)
from lngeom.rewrite.steps import (
    Balance as Balance,
    CentreHead as CentreHead,
    CentreReaders as CentreReaders,
    CentreRouter as CentreRouter,
    CentreWriters as CentreWriters,
    DropKeyBias as DropKeyBias,
    FoldNorms as FoldNorms,
    MergeParallelBias as MergeParallelBias,
    MergeValueBias as MergeValueBias,
    Refused as Refused,
    Rotate as Rotate,
    RotateValues as RotateValues,
    ScaleStream as ScaleStream,
    ShiftTables as ShiftTables,
    ToRMSNorm as ToRMSNorm,
    Untie as Untie,
)

__all__ = [
    "Balance",
    "CentreHead",
    "CentreReaders",
    "CentreRouter",
    "CentreWriters",
    "Certificate",
    "DropKeyBias",
    "FoldNorms",
    "MergeParallelBias",
    "MergeValueBias",
    "Refused",
    "Rewritten",
    "Rotate",
    "RotateValues",
    "ScaleStream",
    "ShiftTables",
    "ToRMSNorm",
    "Untie",
    "apply",
    "canonical",
    "check_description",
    "equivalent",
    "load",
    "save",
]
