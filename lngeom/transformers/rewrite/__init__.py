"""Exact rewrites of transformers, each with a certificate."""

from lngeom.transformers.rewrite.canonical import canonical as canonical
from lngeom.transformers.rewrite.certificate import Certificate as Certificate
from lngeom.transformers.rewrite.checkpoints import save as save
from lngeom.transformers.rewrite.equivalent import equivalent as equivalent
from lngeom.transformers.rewrite.folders import load as load
from lngeom.transformers.rewrite.rewriting import (
    Rewritten as Rewritten,
    apply as apply,
    check_description as check_description,
)
from lngeom.transformers.rewrite.steps import (
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
