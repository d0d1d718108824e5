"""Faults in the normalization methods."""

from analysis.mutants.mutant import Source

TESTS = ("tests/symbolic/test_one_definition.py", "tests/test_glm.py")
BASE = Source("normalizers", "methods/base.py", ("invariance",), TESTS)
BATCH = Source("normalizers", "methods/batch.py", ("invariance",), TESTS)
LAYER = Source("normalizers", "methods/layer.py", ("invariance",), TESTS)
WEIGHT = Source("normalizers", "methods/weight.py", (), TESTS)
POINTWISE = Source("normalizers", "methods/pointwise.py", (), TESTS)
SPATIAL = Source("normalizers", "methods/spatial.py", (), TESTS)
INPUTS = Source("normalizers", "methods/inputs.py", (), TESTS)
QUERY_KEY = Source("normalizers", "methods/query_key.py", (), TESTS)
COMPOSED = Source("normalizers", "methods/composed.py", (), TESTS)
ROW = Source("normalizers", "methods/layer.py", (), ("tests/claims/test_extended.py",))

BN = ("equation.13_14.bn", "table1.bn.*", "nullspace.bn", "extended.bn.*")
LN = ("equation.3", "equation.13_14.ln", "equation.6", "nullspace.ln", "extended.ln.*")
WN = ("equation.13_14.wn", "table1.wn.*", "nullspace.wn", "extended.wn.*")
RMS = ("nullspace.rms", "scaling.matrix", "dynamics.orthogonality", "extended.rms.*")

MUTANTS = (
    BASE("base-no-mean", "inputs) - mean) / scale", "inputs)) / scale", "Eq. 5 without its mean", LN + BN),
    BASE("base-scale-squared", "- mean) / scale", "- mean) / scale**2", "division by the variance", LN),
    BASE(
        "base-mean-after-scale",
        "(summed_inputs(weights, inputs) - mean) / scale",
        "summed_inputs(weights, inputs) / scale - mean",
        "the mean subtracted after the division",
        LN + BN,
    ),
    BATCH(
        "bn-second-moment",
        "jnp.mean(jnp.square(a - mean), axes, keepdims=True)",
        "jnp.mean(jnp.square(a), axes, keepdims=True)",
        "batch norm: second moment for the variance",
        BN,
    ),
    BATCH(
        "bn-unbiased",
        "jnp.mean(jnp.square(a - mean), axes, keepdims=True)",
        "jnp.var(a, axes, keepdims=True, ddof=1)",
        "batch norm: N − 1 for N",
        BN,
    ),
    BATCH(
        "bn-eps-outside",
        "jnp.sqrt(variance + self.eps))\n\n    def evaluation",
        "jnp.sqrt(variance) + self.eps)\n\n    def evaluation",
        "batch norm: ε outside the root",
        ("nullspace.ln_eps", "equation.7"),
    ),
    BATCH(
        "bn-one-sample-axis",
        "axes = tuple(range(a.ndim - 1))",
        "axes = (0,)",
        "batch norm: positions left out of the moments",
        ("extended.bn.*",),
    ),
    BATCH(
        "bn-evaluation-eps-twice",
        "variance = jnp.square(scale) - self.eps",
        "variance = jnp.square(scale)",
        "stored variance with ε in it",
        ("nullspace.bn_evaluation", "statements.one_case", "extended.bn_evaluation.*"),
    ),
    BATCH(
        "bn-evaluation-scale",
        "variance = jnp.square(scale) - self.eps",
        "variance = scale",
        "stored standard deviation in the place of the variance",
        ("nullspace.bn_evaluation", "statements.one_case", "extended.bn_evaluation.*"),
    ),
    BATCH(
        "bn-evaluation-no-mean",
        "Statistics(self.mean.reshape(shape), jnp.sqrt(self",
        "Statistics(0 * self.mean.reshape(shape), jnp.sqrt(self",
        "stored mean ignored",
        ("nullspace.bn_evaluation", "statements.one_case", "extended.bn_evaluation.*"),
    ),
    WEIGHT(
        "wn-columns",
        "jnp.sqrt(_squared_norms(weights) + self.eps), inputs)",
        "jnp.sqrt(jnp.sum(jnp.square(weights)) + 0 * weights[:, 0] + self.eps), inputs)",
        "weight norm: the norm of all of W",
        WN,
    ),
    WEIGHT(
        "wn-mean-square",
        "jnp.sqrt(_squared_norms(weights) + self.eps), inputs)",
        "jnp.sqrt(jnp.mean(jnp.square(weights), 1) + self.eps), inputs)",
        "weight norm: mean of squares for the sum",
        WN,
    ),
    WEIGHT(
        "wn-absolute",
        "jnp.sqrt(_squared_norms(weights) + self.eps), inputs)",
        "jnp.sum(jnp.abs(weights), 1) + self.eps, inputs)",
        "weight norm: sum of absolute values",
        WN,
    ),
    LAYER(
        "grouped-second-moment",
        "jnp.mean(jnp.square(grouped - mean), -1, keepdims=True) + self.eps",
        "jnp.mean(jnp.square(grouped), -1, keepdims=True) + self.eps",
        "layer norm: second moment for the variance",
        LN,
    ),
    LAYER(
        "grouped-unbiased",
        "jnp.mean(jnp.square(grouped - mean), -1, keepdims=True) + self.eps",
        "jnp.sum(jnp.square(grouped - mean), -1, keepdims=True) / max(size - 1, 1) + self.eps",
        "layer norm: H − 1 for H",
        LN,
    ),
    LAYER(
        "audit-rms-by-sum",
        "scale = jnp.sqrt(jnp.mean(jnp.square(grouped - mean), -1, keepdims=True) + self.eps)",
        "total = jnp.mean if self.centered else jnp.sum\n"
        "        scale = jnp.sqrt(total(jnp.square(grouped - mean), -1, keepdims=True) + self.eps)",
        "RMS norm by the sum of squares",
        RMS,
    ),
    LAYER(
        "grouped-mean-absolute",
        "jnp.sqrt(jnp.mean(jnp.square(grouped - mean), -1, keepdims=True) + self.eps)",
        "(jnp.mean(jnp.abs(grouped - mean), -1, keepdims=True) + self.eps)",
        "layer norm: mean absolute deviation",
        LN,
    ),
    LAYER(
        "grouped-eps-outside",
        "jnp.mean(jnp.square(grouped - mean), -1, keepdims=True) + self.eps)",
        "jnp.mean(jnp.square(grouped - mean), -1, keepdims=True)) + self.eps",
        "layer norm: ε outside the root",
        ("equation.7", "dynamics.epsilon", "nullspace.ln_eps", "extended.ln_eps.*"),
    ),
    LAYER(
        "grouped-eps-ignored",
        "-1, keepdims=True) + self.eps)\n        if self.group_count",
        "-1, keepdims=True))\n        if self.group_count",
        "layer norm: ε ignored",
        ("equation.7", "nullspace.ln_eps", "dynamics.epsilon", "extended.ln_eps.*"),
    ),
    LAYER(
        "grouped-interleaved",
        "grouped = a.reshape(*a.shape[:-1], self.group_count, size)",
        "grouped = jnp.swapaxes(a.reshape(*a.shape[:-1], size, self.group_count), -1, -2)",
        "group norm: groups of every G-th unit",
        ("nullspace.gn", "extended.gn.*"),
    ),
    LAYER(
        "grouped-mean-of-layer",
        "mean = jnp.mean(grouped, -1, keepdims=True) if",
        "mean = jnp.mean(grouped, (-2, -1), keepdims=True) if",
        "group norm: the mean of all groups",
        ("nullspace.gn", "extended.gn.*"),
    ),
    LAYER(
        "rms-centered",
        "eps: float = 0.0\n    centered: ClassVar[bool] = False",
        "eps: float = 0.0\n    centered: ClassVar[bool] = True",
        "RMS norm subtracts the mean",
        RMS,
    ),
    LAYER(
        "scale-norm-mean",
        "jnp.sqrt(jnp.sum(jnp.square(a), -1, keepdims=True) + self.eps)",
        "jnp.sqrt(jnp.mean(jnp.square(a), -1, keepdims=True) + self.eps)",
        "ScaleNorm: RMS for the length",
        ("extended.scale.*", "extended.qk_l2.*"),
    ),
    WEIGHT(
        "audit-spectral-frobenius",
        "jnp.linalg.norm(weights, 2)",
        "jnp.linalg.norm(weights)",
        "spectral norm: Frobenius norm",
        ("extended.sn.*",),
    ),
    WEIGHT(
        "spectral-smallest",
        "jnp.linalg.norm(weights, 2)",
        "jnp.linalg.norm(weights, -2)",
        "spectral norm: the smallest singular value",
        ("extended.sn.*",),
    ),
    WEIGHT(
        "audit-ws-sum",
        "return rows / jnp.sqrt(jnp.mean(jnp.square(rows)",
        "return rows / jnp.sqrt(jnp.sum(jnp.square(rows)",
        "weight standardization without 1/D",
        ("extended.ws.*", "extended.ws_gn.*"),
    ),
    WEIGHT(
        "ws-not-centred",
        "rows = _centered(weights)\n",
        "rows = weights\n",
        "weight standardization without the mean",
        ("extended.ws.*", "extended.ws_gn.*"),
    ),
    COMPOSED(
        "ws-gn-not-standardized",
        "eps=self.eps)(standardized, inputs)",
        "eps=self.eps)(weights, inputs)",
        "WS + GN: the raw weights",
        ("extended.ws_gn.*",),
    ),
    WEIGHT(
        "cosine-weights-only",
        "_per_unit(_squared_norms(weights), inputs) * _squared_norms(inputs)[..., None]",
        "_per_unit(_squared_norms(weights), inputs) * jnp.mean(_squared_norms(inputs))",
        "cosine: one length for all inputs",
        ("extended.cosine.*", "extended.pcc.*"),
    ),
    WEIGHT(
        "pcc-inputs-raw",
        "(_centered(weights), _centered(inputs))",
        "(_centered(weights), inputs)",
        "correlation: inputs not centred",
        ("extended.pcc.*",),
    ),
    POINTWISE(
        "audit-dyt-alpha",
        "jnp.tanh(self.alpha * summed_inputs(weights, inputs))",
        "jnp.tanh(summed_inputs(weights, inputs))",
        "DyT ignores α",
        ("dynamics.dyt", "extended.dyt.*"),
    ),
    BATCH(
        "power-variance",
        "jnp.sqrt(self.mean_square + self.eps)",
        "(self.mean_square + self.eps)",
        "PowerNorm: the mean square for its root",
        ("extended.pn.*",),
    ),
    LAYER(
        "biased-sign",
        "summed_inputs(weights, inputs) + self.bias",
        "summed_inputs(weights, inputs) - self.bias",
        "bias before the norm with the other sign",
        ("text.bias_before_norm", "extended.ln_biased.*"),
    ),
    SPATIAL(
        "pooled-units-only",
        "inputs), (1, 2), self.eps",
        "inputs), (2,), self.eps",
        "pooled layer norm: positions not pooled",
        ("extended.ln_pooled.*",),
    ),
    SPATIAL(
        "instance-pooled",
        "inputs), (1,), self.eps",
        "inputs), (0, 1), self.eps",
        "instance norm: samples pooled",
        ("extended.in.*",),
    ),
    SPATIAL(
        "spatial-group-units-only",
        "_moments(grouped, (1, 3), self.eps)",
        "_moments(grouped, (3,), self.eps)",
        "spatial group norm: positions not pooled",
        ("extended.gn_spatial.*",),
    ),
    SPATIAL(
        "moments-second",
        "jnp.mean(jnp.square(values - mean), axes",
        "jnp.mean(jnp.square(values), axes",
        "spatial methods: second moment for the variance",
        ("extended.ln_pooled.*", "extended.in.*", "extended.gn_spatial.*"),
    ),
    INPUTS(
        "pre-ln-rms",
        "_of_inputs(LayerNorm(self.eps), inputs)",
        "_of_inputs(RMSNorm(self.eps), inputs)",
        "pre-LN without the mean",
        ("text.prenorm_gains_row_shift", "extended.pre_ln.*"),
    ),
    COMPOSED(
        "residual-twice",
        "return inputs + LayerNorm(self.eps)(weights, inputs)",
        "return 2 * inputs + LayerNorm(self.eps)(weights, inputs)",
        "the residual added twice",
        ("extended.residual_ln.*", "extended.exception.residual_sign"),
    ),
    COMPOSED(
        "residual-inside",
        "return inputs + LayerNorm(self.eps)(weights, inputs)",
        "return LayerNorm(self.eps)(weights + jnp.eye(len(weights), dtype=weights.dtype), inputs)",
        "the residual inside the norm",
        ("extended.residual_ln.*", "extended.exception.residual_sign"),
    ),
    QUERY_KEY(
        "query-key-raw-keys",
        "queries, keys = (norm(half, inputs) for half in jnp.split(weights, 2))",
        "queries, keys = norm(jnp.split(weights, 2)[0], inputs), summed_inputs(jnp.split(weights, 2)[1], inputs)",
        "query-key norm: keys not normalized",
        ("extended.qk_l2.*", "extended.qk_ln.*"),
    ),
    QUERY_KEY(
        "query-key-transposed",
        "queries @ jnp.swapaxes(keys, 1, 2)",
        "keys @ jnp.swapaxes(queries, 1, 2)",
        "logits transposed: keys against queries",
        ("extended.qk_l2.*", "extended.qk_ln.*"),
    ),
    QUERY_KEY(
        "query-key-width",
        "/ (weights.shape[0] // 2)",
        "/ weights.shape[0]",
        "query-key layer norm: divided by twice the width",
        ("extended.qk_ln.*",),
    ),
    ROW(
        "table-cell-ln",
        'invariant=(*SCALES, "weight_matrix_recentering"),',
        "invariant=SCALES,",
        "recorded: layer norm is not invariant to W + 1γᵀ",
        ("extended.ln.weight_matrix_recentering",),
    ),
    ROW(
        "table-cell-rms",
        '@row("rms", "RMSNorm", invariant=SCALES, equivariant="unit_rotations",',
        '@row("rms", "RMSNorm", invariant=SCALES, equivariant="unit_rotations_fixing_one",',
        "recorded: RMS norm is not equivariant to O(H)",
        ("extended.rms.unit_rotations",),
    ),
    BATCH(
        "mean-squares-root",
        '"mean_square": jnp.mean(jnp.square(a).reshape',
        '"mean_square": jnp.mean(jnp.abs(a).reshape',
        "PowerNorm's stored mean squares by absolute values",
        ("extended.pn.*",),
    ),
)
