"""The geometry of normalization layers: invariances, Fisher matrices, null spaces, effective learning rates.

The public names, all imported lazily. What else a module defines may change.

- `lngeom`, what most programs need: `FisherOperator`, `GLMParameters`, `NormalizedGLM`, `check_invariances`,
  `check_model`, `Stack`, `discover_symmetries`, `fisher`, `from_paper_order`, `laplace`, `lint`, `predicted_nullspace`,
  `to_paper_order`.
- `lngeom.normalizers`, normalization methods, maps (W, X) ↦ n: `METHODS`, `AbstractNormalizer`,
  `AbstractStatisticsNormalizer`, `BatchNorm`, `BatchNormEvaluation`, `BiasedLayerNorm`, `CosineNorm`, `DynamicTanh`,
  `GroupNorm`, `Identity`, `InstanceNorm`, `LayerNorm`, `PearsonCorrelation`, `PooledLayerNorm`,
  `PowerNormEvaluation`, `PreBatchNorm`, `PreLayerNorm`, `PreRMSNorm`, `QueryKeyLayerNorm`, `QueryKeyNorm`, `RMSNorm`,
  `ResidualLayerNorm`, `ScaleNorm`, `SpatialGroupNorm`, `SpectralNorm`, `Statistics`, `WeightNorm`,
  `WeightStandardization`, `WeightStandardizedGroupNorm`.
- `lngeom.transformations`, columns of the invariance tables: `BATCH_INDEPENDENCE`, `DATASET_RECENTERING`,
  `DATASET_RESCALING`, `EXTENDED`, `INPUT_RESCALING`, `SINGLE_CASE_CONSTANT_SHIFT`, `SINGLE_CASE_RECENTERING`,
  `SINGLE_CASE_RESCALING`, `TABLE1`, `WEIGHT_GROUP_RECENTERING`, `WEIGHT_GROUP_RESCALING`,
  `WEIGHT_MATRIX_RECENTERING`, `WEIGHT_MATRIX_RESCALING`, `WEIGHT_SIGN_FLIP`, `WEIGHT_VECTOR_CONSTANT_SHIFT`,
  `WEIGHT_VECTOR_RESCALING`.
- `lngeom.information`, Fisher matrices: `BatchCoupled`, `ConvergenceError`, `FisherOperator`,
  `VocabularyHead`, `fisher`.
- `lngeom.checks`, which invariances a layer has: `adapt`, `check_invariances`, `check_model`,
  `generate_checks`, `parametrize_with_invariances`.
- `lngeom.linting`, known mistakes around the norms of a model: `lint`.
- `lngeom.discovery`, symmetries nobody named: `discover_symmetries`, `discrete_symmetries`.
- `lngeom.strategies`, hypothesis strategies: `data_sets`, `families`, `layer_inputs`, `matrices`, `normalizers`,
  `points`, `problems`, `scales`, `transformations`.
- `lngeom.stacks`, descriptions of transformers: `Attention`, `Block`, `FeedForward`, `Head`, `Linear`, `Mixture`,
  `Norm`, `Rotary`, `Rows`, `Stack`, `Table`, `Transform`, `hidden`, `logits`.
- `lngeom.rewrite`, exact rewrites of transformers: `Balance`, `CentreHead`, `CentreReaders`, `CentreRouter`,
  `CentreWriters`, `Certificate`, `DropKeyBias`, `FoldNorms`, `MergeParallelBias`, `MergeValueBias`, `Refused`,
  `Rewritten`, `Rotate`, `RotateValues`, `ScaleStream`, `ShiftTables`, `ToRMSNorm`, `Untie`, `apply`, `canonical`,
  `check_description`, `equivalent`, `load`, `save`.
- `lngeom.nn`, layers and recurrent cells: `GRU`, `LSTM`, `RNN`, `BatchNorm`, `GroupNorm`, `LayerNorm`,
  `LayerNormGRU`, `LayerNormLSTM`, `LayerNormRNN`, `RMSNorm`, `WeightNorm`, `batch_norm`, `convert_layer_norm`,
  `fused_layer_norm`, `group_norm`, `layer_norm`, `rms_norm`, `unroll`, `weight_norm`.
- `lngeom.training`, effective learning rates: `decay_mask`, `equivalent_decay`, `equivalent_schedule`,
  `fixed_norm_schedule`, `natural_gradient`, `plan`, `predict_equilibrium`, `read_geometry`, `scale_invariant_groups`,
  `track_geometry`, `write_record`.
- `lngeom.claims`, statements with their evidence: `NoEvidence`, `Paper`, `Problem`, `Read`, `Role`, `Verdict`,
  `agree`, `all_claims`, `claim`, `decide`, `differ`, `proves`, `run`, `same_integer`, `vanishes`.
- `lngeom.symbolic`, proofs: `Counterexample`, `Proof`, `equality`, `method`, `prove`.
- `lngeom.report`, verdicts as JSON and a page: `write`.
- `lngeom.plots`, figures in one style: `COLOURS`, `figure`, `invariance_table`, `save`, `spectrum`, `training`.

Plain modules: `lngeom.families` (exponential families), `lngeom.metric` (Eqs. 32–35), `lngeom.information.reference`
(the literal Fisher matrix), `lngeom.conventions` (factors of other libraries), `lngeom.numerics` (tolerances).

`LayerNorm`, `BatchNorm`, `GroupNorm`, `RMSNorm` and `WeightNorm` are maps (W, X) ↦ n in `lngeom.normalizers`, and
layers with parameters of their own in `lngeom.nn`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lngeom import (
        families as families,
        metric as metric,
        normalizers as normalizers,
        transformations as transformations,
    )
    from lngeom._types import GLMParameters as GLMParameters
    from lngeom.checks import check_invariances as check_invariances, check_model as check_model
    from lngeom.discovery import discover_symmetries as discover_symmetries
    from lngeom.glm import NormalizedGLM as NormalizedGLM
    from lngeom.information import FisherOperator as FisherOperator, fisher as fisher
    from lngeom.linting import lint as lint
    from lngeom.nullspace import predicted_nullspace as predicted_nullspace
    from lngeom.paper_order import from_paper_order as from_paper_order, to_paper_order as to_paper_order
    from lngeom.posterior import laplace as laplace
    from lngeom.stacks import Stack as Stack

__version__ = "0.1.0"

_MODULES = (
    *(
        "checks",
        "claims",
        "conventions",
        "discovery",
        "families",
        "information",
        "linting",
        "metric",
        "nn",
        "normalizers",
    ),
    *(
        "numerics",
        "plots",
        "report",
        "rewrite",
        "stacks",
        "strategies",
        "studies",
        "symbolic",
        "training",
        "transformations",
    ),
)
_NAMES = {
    "GLMParameters": "_types",
    "NormalizedGLM": "glm",
    "FisherOperator": "information",
    "fisher": "information",
    "laplace": "posterior",
    "lint": "linting",
    "from_paper_order": "paper_order",
    "to_paper_order": "paper_order",
    "predicted_nullspace": "nullspace",
    "Stack": "stacks",
    "check_invariances": "checks",
    "check_model": "checks",
    "discover_symmetries": "discovery",
}

__all__ = [
    "FisherOperator",
    "GLMParameters",
    "NormalizedGLM",
    "Stack",
    "check_invariances",
    "check_model",
    "discover_symmetries",
    "fisher",
    "from_paper_order",
    "laplace",
    "lint",
    "predicted_nullspace",
    "to_paper_order",
]


def __getattr__(name: str) -> Any:
    """Imports subpackages, and the functions they give to the top, when they are first asked for."""
    if name in _MODULES:
        return importlib.import_module(f"lngeom.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'lngeom' has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(f"lngeom.{_NAMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Every public name, including those that are imported lazily."""
    return sorted({*(n for n in globals() if not n.startswith("_")), *_MODULES, *_NAMES})
