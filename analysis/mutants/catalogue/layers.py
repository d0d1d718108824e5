"""Faults in the layers and cells, in the tolerance policy, and in the studies."""

from analysis.mutants.mutant import Source

FUNCTIONAL = Source(
    "nn", "nn/functional.py", ("supplement.cells", "recurrent"), ("tests/nn/test_layers.py", "tests/nn/test_modes.py")
)
ROWS = Source(
    "nn", "nn/_rows.py", ("supplement.cells", "equation.4"), ("tests/nn/test_layers.py", "tests/nn/test_accuracy.py")
)
GATED = Source("nn", "nn/gated.py", ("recurrent",), ("tests/nn/test_recurrent.py",))
RECURRENT = Source("nn", "nn/recurrent.py", ("recurrent",), ("tests/nn/test_recurrent.py",))
DYNAMICS = Source(
    "nn", "nn/dynamics.py", ("text.stable_dynamics", "text.bn_per_time_step"), ("tests/nn/test_recurrent.py",)
)
NUMERICS = Source(
    "numerics",
    "_core/numerics.py",
    ("nullspace", "fisher"),
    ("tests/test_numerics.py", "tests/information/test_ranks.py"),
)
STUDIES = Source("studies", "plots/studies.py", (), ("tests/test_plots.py",))

MUTANTS = (
    FUNCTIONAL(
        "layer-norm-not-centred",
        "return _over_last_axis(Rule(eps, True, exact), x, gain, bias)",
        "return _over_last_axis(Rule(eps, False, exact), x, gain, bias)",
        "layer norm is RMS norm",
    ),
    FUNCTIONAL(
        "rms-norm-centred",
        "return _over_last_axis(Rule(check_eps(eps, exact), False, exact), x, gain, bias)",
        "return _over_last_axis(Rule(check_eps(eps, exact), True, exact), x, gain, bias)",
        "RMS norm subtracts the mean",
        ("recurrent",),
    ),
    FUNCTIONAL(
        "group-norm-gain-order",
        "(jnp.tile(v.reshape(groups, -1), (1, pooled)) for v in (gain, bias))",
        "(jnp.tile(v.reshape(-1, groups).T, (1, pooled)) for v in (gain, bias))",
        "group norm: gains of other units",
    ),
    FUNCTIONAL(
        "batch-norm-momentum",
        "momentum * r + (1 - momentum) * s, running, batch)",
        "(1 - momentum) * r + momentum * s, running, batch)",
        "stored statistics: weights exchanged",
        ("text.bn_per_time_step", "statements.one_case"),
    ),
    FUNCTIONAL(
        "batch-norm-biased",
        "factor = rows.shape[0] / (rows.shape[0] - 1) if unbiased else 1",
        "factor = (rows.shape[0] - 1) / rows.shape[0] if unbiased else 1",
        "stored variance: (N − 1)/N for N/(N − 1)",
        (),
    ),
    FUNCTIONAL(
        "batch-norm-evaluation-variance",
        "slope = (gain / jnp.sqrt(running.variance + eps)).reshape(shape)",
        "slope = (gain / (running.variance + eps)).reshape(shape)",
        "evaluation divides by the variance",
        ("text.bn_per_time_step",),
    ),
    FUNCTIONAL(
        "batch-norm-stored-mean",
        "RunningStatistics(((s.mean + s.correction) * scale)[0]",
        "RunningStatistics((s.mean * scale)[0]",
        "stored mean without its correction",
        ("text.bn_per_time_step",),
    ),
    FUNCTIONAL(
        "weight-norm-eps",
        "rms_norm(weights.astype(gain.dtype), eps=eps / features, exact=exact)",
        "rms_norm(weights.astype(gain.dtype), eps=eps, exact=exact)",
        "weight norm: ε times D",
        (),
    ),
    ROWS(
        "rows-variance-correction",
        "variance = jnp.maximum(mean(jnp.square(z)) - jnp.square(correction), 0)\n    else",
        "variance = jnp.maximum(mean(jnp.square(z)) + jnp.square(correction), 0)\n    else",
        "variance: correction added",
    ),
    ROWS(
        "rows-correction-ignored",
        "z = (z - s.mean) - s.correction",
        "z = z - s.mean",
        "mean without its correction",
    ),
    ROWS(
        "rows-eps-outside",
        "_reciprocal_root(variance + rule.eps), inverse_scale)",
        "_reciprocal_root(variance) / (1 + rule.eps), inverse_scale)",
        "ε outside the root",
        ("equation.4", "recurrent"),
    ),
    ROWS(
        "rows-tangent-radial",
        "slope = _outer(ones, dgain) + _outer(-mean(n * dw), gain)",
        "slope = _outer(ones, dgain)",
        "derivative without − n E[n ẇ]",
        ("text.stable_dynamics", "dynamics.ln_backward", "equation.20"),
    ),
    ROWS(
        "rows-tangent-mean",
        "if rule.centered:\n        offset = offset + _outer(-mean(dw), gain)",
        "if not rule.centered:\n        offset = offset + _outer(-mean(dw), gain)",
        "derivative: mean of RMS norm, none of layer norm",
        ("text.stable_dynamics", "dynamics.ln_backward"),
    ),
    ROWS(
        "rows-statistics-tangent",
        "drstd = -jnp.square(s.rstd) * mean(standardize(x, s) * dz)",
        "drstd = -s.rstd * mean(standardize(x, s) * dz)",
        "derivative of 1/σ with σ⁻¹ for σ⁻²",
        ("text.bn_per_time_step",),
    ),
    ROWS(
        "rows-power-of-two",
        "inverse_scale = 1 / power_of_two(jnp.max(jnp.abs(z), axis, keepdims=True))",
        "inverse_scale = 1 / jnp.max(jnp.abs(z), axis, keepdims=True)",
        "exact mode: rows divided by their largest entry",
    ),
    GATED(
        "lstm-gates-order",
        "f, i, o, g = jnp.split(gates, 4, -1)",
        "i, f, o, g = jnp.split(gates, 4, -1)",
        "LSTM: gates in the order i, f, o, g",
        ("supplement.cells",),
    ),
    GATED(
        "lstm-output-raw",
        "return LSTMState(sigmoid(o) * jnp.tanh(c), c)",
        "return LSTMState(sigmoid(o) * c, c)",
        "LSTM: output without tanh",
        ("supplement.cells",),
    ),
    GATED(
        "ln-lstm-carried",
        "normalized if self.carry_normalized_cell else c)",
        "c if self.carry_normalized_cell else normalized)",
        "LN-LSTM carries the normalized cell",
        ("supplement.cells",),
    ),
    GATED(
        "ln-lstm-one-norm",
        "recurrent = self.recurrent_norm(recurrent)\n",
        "recurrent = self.recurrent_norm(recurrent + projected) - projected\n",
        "LN-LSTM: the norm of the sum",
        ("supplement.cells", "equation.20"),
    ),
    GATED(
        "gru-update",
        "return (1 - sigmoid(z)) * h + sigmoid(z) * proposal",
        "return sigmoid(z) * h + (1 - sigmoid(z)) * proposal",
        "GRU: z for 1 − z",
        ("equation.23_28",),
    ),
    GATED(
        "gru-reset-inside",
        "proposal = jnp.tanh(candidate + sigmoid(r) * recurrent_candidate)",
        "proposal = jnp.tanh(sigmoid(r) * (candidate + recurrent_candidate))",
        "GRU: reset gate on the input too",
        ("equation.23_28",),
    ),
    GATED(
        "gru-gates-exchanged",
        "z, r = jnp.split(gates, 2, -1)",
        "r, z = jnp.split(gates, 2, -1)",
        "GRU: gates in the order r, z",
        ("equation.23_28",),
    ),
    RECURRENT(
        "rnn-norm-before-sum",
        "return self.activation(self.norm(state @ self.recurrent_weights.T + projected))",
        "return self.activation(self.norm(state @ self.recurrent_weights.T) + projected)",
        "LN-RNN: inputs added after the norm",
        ("equation.4", "text.stable_dynamics"),
    ),
    RECURRENT(
        "rnn-recurrent-transposed",
        "return self.activation(self.norm(state @ self.recurrent_weights.T + projected))",
        "return self.activation(self.norm(state @ self.recurrent_weights + projected))",
        "LN-RNN: W_hh transposed",
        ("equation.4",),
    ),
    RECURRENT(
        "weights-variance",
        "jax.random.normal, key, (rows, columns), dtype) / math.sqrt(columns)",
        "jax.random.normal, key, (rows, columns), dtype) / columns",
        "first weights of variance 1/D²",
        ("text.stable_dynamics", "supplement.initialization"),
        ("tests/nn/test_recurrent.py", "tests/nn/test_recurrent_stability.py"),
    ),
    DYNAMICS(
        "audit-growth-halved",
        "return (following, dv / growth), (following, a, jnp.log(growth))",
        "return (following, dv / growth), (following, a, 0.5 * jnp.log(growth))",
        "growth of a tangent halved",
    ),
    DYNAMICS(
        "growth-not-renormalized",
        "return (following, dv / growth), (following, a, jnp.log(growth))",
        "return (following, dv), (following, a, jnp.log(growth))",
        "tangent not renormalized",
    ),
    DYNAMICS(
        "gradient-forwards",
        "(hidden[:-1], xs[1:]), reverse=True)[1]",
        "(hidden[:-1], xs[1:]))[1]",
        "gradient carried forwards in time",
    ),
    DYNAMICS(
        "gradient-inputs",
        "(hidden[:-1], xs[1:]), reverse=True)[1]",
        "(hidden[:-1], xs[:-1]), reverse=True)[1]",
        "Jacobians at the inputs of the step before",
    ),
    DYNAMICS(
        "audit-unroll-batch-norm",
        "a = h @ cell.recurrent_weights.T + x @ cell.input_weights.T",
        "a = x @ cell.input_weights.T",
        "recurrent batch norm ignores W_hh",
    ),
    NUMERICS("audit-margin", "MARGIN = 1e3\n", "MARGIN = 1e9\n", "tolerance of 1e9 units in the last place"),
    NUMERICS(
        "agrees-loosely",
        "self.residual <= self.tolerance",
        "self.residual <= 1e4 * self.tolerance",
        "agreement within 10⁴ tolerances",
        ("equation.13_14.ln",),
    ),
    NUMERICS("audit-witness", "WITNESS = 1e-3\n", "WITNESS = 1e-12\n", "a difference of 1e-12 is a witness"),
    NUMERICS(
        "agreement-by-mean",
        "gap = float(np.max(gap))\n    return",
        "gap = float(np.mean(gap))\n    return",
        "mean difference for the largest",
    ),
    NUMERICS(
        "agreement-absolute",
        "return Agreement(gap / scale if scale else 0.0, tol, scale, a.size)",
        "return Agreement(gap, tol, scale, a.size)",
        "absolute difference",
    ),
    NUMERICS(
        "agreement-undefined",
        "return self._defined and self.residual >= self.witness",
        "return self.count > 0 and self.residual >= self.witness",
        "NaN counts as a difference",
        tests=("tests/test_numerics.py", "tests/claims/test_hostile_data.py"),
    ),
    NUMERICS("rank-clear-gap", "CLEAR_GAP = 10.0", "CLEAR_GAP = 1e9", "a clear gap is 1e9"),
    NUMERICS(
        "rank-floor",
        "floor = xp.maximum(eps * size, s[bound] if bound < count else 0)",
        "floor = xp.maximum(eps**2 * size, s[bound] if bound < count else 0)",
        "noise from eps² on",
    ),
    NUMERICS(
        "rank-ceiling",
        "xp.minimum(1e3 * threshold, eps**0.5 * size), floor)",
        "xp.minimum(1e3 * threshold, eps**0.01 * size), floor)",
        "singular values up to 1e3 thresholds may be dropped",
    ),
    NUMERICS(
        "rank-scale-ignored",
        "size = xp.maximum(s[0], xp.asarray(scale, s.dtype))",
        "size = s[0]",
        "size of what cancelled ignored",
        ("nullspace", "equation.13_14.ln"),
    ),
    NUMERICS(
        "rank-widest",
        "rank = xp.argmax(widest)\n",
        "rank = xp.argmax(widths)\n",
        "a cut is made where every value is signal",
        ("nullspace.ln_eps", "nullspace.rms"),
    ),
    STUDIES(
        "study-order",
        "both = [np.asarray(to_paper_order(route(*case), shape[2], shape[1])) for route in (as_printed, structured)]",
        "both = [np.asarray(to_paper_order(route(*case), shape[2], shape[1])) for route in (structured, as_printed)]",
        "printed and exact exchanged in the figure",
    ),
    STUDIES(
        "study-norm",
        "float(np.linalg.norm(false - true, 2) / np.linalg.norm(true, 2))",
        "float(np.linalg.norm(false - true) / np.linalg.norm(true, 2))",
        "spectral error by the Frobenius norm",
    ),
    STUDIES(
        "study-slope",
        "float(np.polyfit(np.log(c), np.log(norms), 1)[0])",
        "float(np.polyfit(np.log(c), norms, 1)[0])",
        "exponents from norms without logarithm",
    ),
    STUDIES(
        "study-unit",
        "unit, other, rest = slice(0, width), slice(width, 2 * width), slice(size, None)",
        "unit, other, rest = slice(0, width), slice(width, 3 * width), slice(size, None)",
        "the second unit's block holds two units",
    ),
)
