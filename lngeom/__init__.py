"""The geometry of normalization layers: invariances, Fisher matrices, null spaces, effective learning rates.

The public names, all imported lazily. What else a module defines may change.

- `lngeom`, what most programs need: `Batches`, `FisherOperator`, `GLMParameters`, `NormalizedGLM`,
  `check_derivatives`, `check_invariances`, `check_model`, `Stack`, `discover_symmetries`, `equivariance`, `fisher`,
  `from_paper_order`, `from_torch`, `laplace`, `lint`, `predicted_nullspace`, `to_paper_order`.
- `lngeom.methods`, normalization methods, maps (W, X) ↦ n: `METHODS`, `AbstractNormalizer`,
  `AbstractStatisticsNormalizer`, `BatchNorm`, `BatchNormEvaluation`, `GroupNorm`, `Identity`, `LayerNorm`, `RMSNorm`,
  `Statistics`, `WeightNorm`. Others by their rows in the extended table, as in lg.normalizers["qk_l2"].
- `lngeom.methods.transformations`, columns of the invariance tables: `DATASET_RECENTERING`, `DATASET_RESCALING`,
  `EXTENDED`, `SINGLE_CASE_RESCALING`, `TABLE1`, `WEIGHT_MATRIX_RECENTERING`, `WEIGHT_MATRIX_RESCALING`,
  `WEIGHT_VECTOR_RESCALING`. Others by name, as in lg.transformations["weight_sign_flip"].
- `lngeom.families`, distributions of outputs: `AbstractDistribution`, `AbstractFamily`, `Bernoulli`, `Binomial`,
  `Categorical`, `Gamma`, `Gaussian`, `HeteroscedasticGaussian`, `InverseGaussian`, `Mixture`, `MultivariateGaussian`,
  `NegativeBinomial`, `Poisson`, `Product`, `check`.
- `lngeom.information`, Fisher matrices: `BatchCoupled`, `ConvergenceError`, `FisherOperator`, `VocabularyHead`,
  `average`, `fisher`, `weighted_sum`.
- `lngeom.checks`, which invariances a layer has, and whether its derivatives are right: `adapt`, `check_derivatives`,
  `check_invariances`, `check_model`, `generate_checks`, `parametrize_with_derivatives`,
  `parametrize_with_invariances`.
- `lngeom.checks.linting`, known mistakes around the norms of a model: `lint`.
- `lngeom.checks.derivatives`, results of a check of derivatives: `Answer`, `Derivative`, `Derivatives`.
- `lngeom.checks.discovery`, symmetries nobody named: `discover_symmetries`, `discrete_symmetries`.
- `lngeom.checks.strategies`, hypothesis strategies: `breaking_inputs`, `data_sets`, `families`, `layer_inputs`,
  `matrices`, `normalizers`, `points`, `problems`, `scales`, `transformations`.
- `lngeom.transformers`, descriptions of transformers: `Attention`, `Block`, `Buckets`, `Convolution`, `FeedForward`,
  `FrontEnd`, `Groups`, `Head`, `Latent`, `Linear`, `Mixture`, `Norm`, `Rotary`, `Rows`, `Stack`, `Table`, `Transform`,
  `hidden`, `logits`.
- `lngeom.transformers.rewrite`, exact rewrites of transformers: `Certificate`, `Comparison`, `Refused`, `Rewritten`,
  `apply`, `canonical`, `certify`, `check_description`, `load`, `save`, `steps`, which has a class for
  each step.
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

Plain modules: `lngeom.information.metric` (Eqs. 32–35), `lngeom.information.reference` (the literal Fisher matrix),
`lngeom.information.conventions` (factors of other libraries), `lngeom._core.numerics` (tolerances).

Shorter names of modules: `lngeom.normalizers` (of `lngeom.methods`), `stacks` (of `lngeom.transformers`),
`transformations`, `metric`, `rewrite`, `linting`, `discovery`, `strategies`, `conventions` and `numerics`.

`LayerNorm`, `BatchNorm`, `GroupNorm`, `RMSNorm` and `WeightNorm` are maps (W, X) ↦ n in `lngeom.methods`, and
layers with parameters of their own in `lngeom.nn`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lngeom._core.short import install

if TYPE_CHECKING:
    from lngeom import families as families, methods as methods
    from lngeom._core.types import GLMParameters as GLMParameters
    from lngeom.checks import (
        check_derivatives as check_derivatives,
        check_invariances as check_invariances,
        check_model as check_model,
    )
    from lngeom.checks.discovery import discover_symmetries as discover_symmetries
    from lngeom.checks.linting import lint as lint
    from lngeom.information import FisherOperator as FisherOperator, fisher as fisher, metric as metric
    from lngeom.information.batches import Batches as Batches
    from lngeom.information.glm import NormalizedGLM as NormalizedGLM
    from lngeom.information.orders import from_paper_order as from_paper_order, to_paper_order as to_paper_order
    from lngeom.information.posterior import laplace as laplace
    from lngeom.information.predicted import predicted_nullspace as predicted_nullspace
    from lngeom.information.torch_modules import from_torch as from_torch
    from lngeom.methods import transformations as transformations
    from lngeom.training.equivariance import equivariance as equivariance
    from lngeom.transformers import Stack as Stack, rewrite as rewrite

    normalizers = methods

__version__ = "0.1.0"

_PACKAGES = (
    *("checks", "claims", "cli", "families", "information", "methods", "nn", "papers", "plots", "report"),
    *("symbolic", "training", "transformers"),
)
_SHORT = {
    "conventions": "information.conventions",
    "discovery": "checks.discovery",
    "linting": "checks.linting",
    "metric": "information.metric",
    "normalizers": "methods",
    "numerics": "_core.numerics",
    "rewrite": "transformers.rewrite",
    "stacks": "transformers",
    "strategies": "checks.strategies",
    "transformations": "methods.transformations",
}
"""Shorter names of modules, as attributes (`lg.rewrite.load`) and in import statements."""

install(_SHORT, "lngeom")

_NAMES = {
    "Batches": "information.batches",
    "GLMParameters": "_core.types",
    "NormalizedGLM": "information.glm",
    "FisherOperator": "information",
    "fisher": "information",
    "laplace": "information.posterior",
    "lint": "checks.linting",
    "from_paper_order": "information.orders",
    "to_paper_order": "information.orders",
    "from_torch": "information.torch_modules",
    "predicted_nullspace": "information.predicted",
    "Stack": "transformers",
    "check_derivatives": "checks",
    "check_invariances": "checks",
    "check_model": "checks",
    "discover_symmetries": "checks.discovery",
    "equivariance": "training.equivariance",
}

__all__ = [
    "Batches",
    "FisherOperator",
    "GLMParameters",
    "NormalizedGLM",
    "Stack",
    "check_derivatives",
    "check_invariances",
    "check_model",
    "discover_symmetries",
    "equivariance",
    "fisher",
    "from_paper_order",
    "from_torch",
    "laplace",
    "lint",
    "predicted_nullspace",
    "to_paper_order",
]


def __getattr__(name: str) -> Any:
    """Imports subpackages, and the functions they give to the top, when they are first asked for."""
    if name in _PACKAGES or name in _SHORT:
        return importlib.import_module(f"lngeom.{_SHORT.get(name, name)}")
    if name not in _NAMES:
        raise AttributeError(f"module 'lngeom' has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(f"lngeom.{_NAMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Every public name, including those that are imported lazily."""
    return sorted({*(n for n in globals() if not n.startswith("_")), *_PACKAGES, *_SHORT, *_NAMES})
