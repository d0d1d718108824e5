"""Faults in the algebra of proofs, and in the formulas and verdicts of claims."""

from analysis.mutants.mutant import Source

TESTS = ("tests/symbolic/test_against_library.py", "tests/claims/test_planted_falsehoods.py")
CELLS = ("table1.ln.*", "table1.bn.*", "extended.ln.*_re*", "extended.bn.*_re*")
"""Cells of the tables for layer and batch norm: re-scaling and re-centering."""

LAYERS = Source("symbolic", "symbolic/layers.py", CELLS, ("tests/symbolic/test_one_definition.py", *TESTS), proofs=True)
FORMULAS = Source("symbolic", "methods/formulas.py", LAYERS.claims, LAYERS.tests, proofs=True)
LAYER = Source("symbolic", "methods/layer.py", LAYERS.claims, LAYERS.tests, proofs=True)
WEIGHT = Source("symbolic", "methods/weight.py", LAYERS.claims, LAYERS.tests, proofs=True)
COMPOSED = Source("symbolic", "methods/composed.py", LAYERS.claims, LAYERS.tests, proofs=True)
QUERY_KEY = Source("symbolic", "methods/query_key.py", LAYERS.claims, LAYERS.tests, proofs=True)
INPUTS = Source("symbolic", "methods/inputs.py", LAYERS.claims, LAYERS.tests, proofs=True)
READINGS = Source("symbolic", "methods/readings.py", LAYERS.claims, LAYERS.tests, proofs=True)
SUMS = Source("symbolic", "symbolic/sums.py", ("invariance",), ("tests/symbolic/test_sums.py", *TESTS), proofs=True)
MODULAR = Source(
    "symbolic",
    "symbolic/modular.py",
    ("nullspace.wn", "nullspace.identity", "nullspace.rms"),
    ("tests/claims/test_planted_falsehoods.py",),
    True,
)
ACTIONS = Source("symbolic", "symbolic/actions.py", CELLS, TESTS, proofs=True)
JACOBIAN = Source("symbolic", "symbolic/jacobian.py", ("nullspace.wn", "nullspace.ln"), TESTS, proofs=True)
SCALE_FREE = Source("symbolic", "symbolic/scale_free.py", ("dynamics.sgd_norm_growth", "dynamics.angle"), TESTS, True)
TABLE = Source("symbolic", "symbolic/table.py", ("table1.*",), ("tests/symbolic/test_table.py", *TESTS), proofs=True)
PROOF = Source("symbolic", "symbolic/proof.py", ("equation.35",), ("tests/symbolic/test_proofs.py", *TESTS), True)
SEARCH = Source("symbolic", "symbolic/search.py", ("table1.*",), ("tests/symbolic/test_table.py", *TESTS), True)
EVALUATION = Source(
    "symbolic", "symbolic/evaluation.py", ("equation.3", "table1.ln.*"), ("tests/symbolic/test_sums.py", *TESTS), True
)

PLANTED = ("tests/claims/test_planted_falsehoods.py", "tests/claims/test_proofs.py")
THEOREM = Source("claims", "information/nullspace_theorem.py", ("nullspace",), PLANTED, proofs=True)
FISHER = Source("claims", "papers/ba2016/fisher.py", ("equation.13_14.ln", "text.factor_half"), PLANTED, proofs=True)
METRIC = Source("claims", "papers/ba2016/metric.py", ("metric",), PLANTED, proofs=True)
EQUIVALENCE = Source("claims", "papers/training/equivalence.py", (), PLANTED, proofs=True)
EVIDENCE = Source("claims", "claims/evidence.py", (), ("tests/claims/test_evidence.py",))
ROUNDING = Source("claims", "claims/_rounding.py", (), ("tests/claims/test_hostile_data.py",))
COMPARISON = Source("claims", "claims/comparison.py", (), ("tests/claims/test_experiments.py",))
REFERENCE = Source("claims", "claims/numpy_reference.py", (), ("tests/claims/test_registry.py",))

MUTANTS = (
    LAYERS(
        "layer-a-transposed-sum",
        "self.total(lambda d: self.W(i, d) * self.X(n, d), D)",
        "self.total(lambda d: self.W(i, d) + self.X(n, d), D)",
        "summed input Σ (w + x)",
    ),
    LAYERS(
        "layer-mean-is-sum",
        "return self.total(body, size) / self.size(size)",
        "return self.total(body, size)",
        "mean is a sum",
    ),
    FORMULAS(
        "standardized-eps-twice",
        "return deviation(at), L.mean(lambda k: deviation(k) ** 2, size) + eps",
        "return deviation(at), L.mean(lambda k: deviation(k) ** 2, size) + 2 * eps",
        "ε twice in the variance",
        ("nullspace.ln_eps", "equation.7", "dynamics.epsilon"),
    ),
    FORMULAS(
        "standardized-second-moment",
        "return deviation(at), L.mean(lambda k: deviation(k) ** 2, size) + eps",
        "return deviation(at), L.mean(lambda k: values(k) ** 2, size) + eps",
        "second moment for the variance",
        ("table1.ln.*", "table1.bn.*"),
    ),
    FORMULAS(
        "layer-norm-sum",
        "return deviation(at), L.mean(lambda k: deviation(k) ** 2, size) + eps",
        "return deviation(at), L.total(lambda k: deviation(k) ** 2, size) + eps",
        "sum of squares for the variance",
        ("equation.13_14.ln", "equation.13_14.bn", "dynamics.ln_backward"),
    ),
    WEIGHT(
        "weight-norm-one-norm",
        "(L.a(n, i), dot(L, L.row(i), L.row(i), D) + eps))",
        "(L.a(n, i), L.mean(lambda d: L.row(i)(d) ** 2, D) + eps))",
        "weight norm with the mean of squares",
        ("table1.wn.*", "equation.13_14.wn", "nullspace.wn"),
    ),
    LAYER(
        "rms-centred",
        "(L.a(n, i), L.mean(lambda j: L.a(n, j) ** 2, H) + eps)",
        "(L.a(n, i) - L.mean(lambda j: L.a(n, j), H), L.mean(lambda j: L.a(n, j) ** 2, H) + eps)",
        "RMS norm subtracts the mean",
        ("extended.rms.*", "nullspace.rms"),
    ),
    LAYER(
        "group-norm-all-units",
        "lambda k: values(L, n, (i[0], k), eps), M, i[1], eps)",
        "lambda k: values(L, n, (1, k), eps), M, i[1], eps)",
        "group norm: statistics of the first group for all",
        ("nullspace.gn", "extended.gn.*"),
    ),
    LAYERS(
        "spectral-determinant",
        "trace**2 - 4 * determinant",
        "trace**2 - 2 * determinant",
        "largest singular value with 2 det for 4 det",
        ("extended.sn.*",),
    ),
    WEIGHT(
        "cosine-length",
        "dot(L, w, w, D) * dot(L, x, x, D) + eps",
        "dot(L, w, w, D) + dot(L, x, x, D) + eps",
        "cosine: lengths added",
        ("extended.cosine.*", "extended.pcc.*"),
    ),
    FORMULAS(
        "pooled-position-only",
        "average = L.mean(lambda u: L.mean(lambda v: values(u, v), size), T)",
        "average = L.mean(lambda v: values(at[0], v), size)",
        "pooled mean of one position",
        ("extended.ln_pooled.*", "extended.gn_spatial.*"),
    ),
    COMPOSED(
        "residual-sign",
        "(L.X(n, i) + ratio(L, layer_norm(L, n, i, eps)), 1)",
        "(L.X(n, i) - ratio(L, layer_norm(L, n, i, eps)), 1)",
        "x − LN(Wx)",
        ("extended.residual_ln.*", "extended.exception.residual_sign"),
    ),
    QUERY_KEY(
        "query-key-same-position",
        "key = prepared(L, lambda k: L.a((n[0], s), (2, k)), M)",
        "key = prepared(L, lambda k: L.a(n, (2, k)), M)",
        "logits of a position with itself",
        ("extended.qk_l2.*", "extended.qk_ln.*"),
    ),
    INPUTS(
        "pre-bn-over-inputs",
        "standardized(L, lambda m: L.X(m, d), N, n, eps)), D), 1",
        "(L.X(n, d), L.mean(lambda m: L.X(m, d) ** 2, N) + eps)), D), 1",
        "pre-BN without the mean",
        ("extended.pre_bn.*",),
    ),
    LAYERS(
        "towards-twice",
        "return Layer(lambda i, d: self.W(i, d) + t * V(i, d), self.X)",
        "return Layer(lambda i, d: self.W(i, d) + 2 * t * V(i, d), self.X)",
        "directional derivative along 2V",
        ("equation.13_14.ln", "dynamics.epsilon"),
    ),
    SUMS(
        "sum-of-constant",
        "if inside == 1:\n        return outside * size",
        "if inside == 1:\n        return outside",
        "Σ 1 = 1",
    ),
    SUMS(
        "delta-contraction",
        "return _expand(outside * normal_form(rest.xreplace({index: other})))",
        "return _expand(outside * normal_form(rest))",
        "a delta contracted without its substitution",
        ("equation.12", "equation.35", "nullspace.gn"),
    ),
    SUMS(
        "power-of-sum-shared",
        "fresh = {limit[0]: Dummy(integer=True, positive=True) for limit in base.limits}",
        "fresh = {limit[0]: limit[0] for limit in base.limits}",
        "(Σ a)² becomes Σ a²",
        ("equation.3", "dynamics.sgd_norm_growth", "equation.13_14.ln"),
    ),
    SUMS(
        "root-parity",
        "square ** (power // 2) * root ** (power % 2)",
        "square ** (power // 2)",
        "odd powers of a root lose it",
        ("equation.7", "dynamics.angle"),
    ),
    SUMS(
        "vanishes-always",
        "if form == 0:\n        return True",
        "if form == 0 or form.has(Sum):\n        return True",
        "everything with a sum vanishes",
        ("nullspace.ln_eps", "equation.12", "table1.*"),
    ),
    SUMS(
        "square-out-of-root",
        "outside *= (factor if factor.is_positive or whole % 2 == 0 else sp.Abs(factor)) ** whole",
        "outside *= factor**whole",
        "√(x²) = x",
        ("statements.any_unit_rescaling",),
    ),
    SUMS(
        "merge-deltas-none",
        "term = _expand(delta * normal_form((term / delta).xreplace({second: first})))",
        "term = _expand(delta * normal_form(term / delta))",
        "δ_ik f_k and δ_ik f_i stay apart",
        ("equation.12", "equation.13_14.ln", "equation.35"),
    ),
    MODULAR(
        "modular-quotient",
        "slope = reduced(-reduced(one * one) * b[..., 1:])",
        "slope = reduced(reduced(one * one) * b[..., 1:])",
        "prime field: quotient rule with a plus",
        ("nullspace.ln", "nullspace.bn"),
    ),
    MODULAR(
        "modular-root-slope",
        "a[..., 1:] * inverse(2 * value)",
        "a[..., 1:] * inverse(value)",
        "prime field: slope of a root without 1/2",
        ("nullspace.ln", "nullspace.bn"),
    ),
    MODULAR(
        "modular-product-rule",
        "reduced(product[..., 1:] + a[..., 1:] * b[..., :1])",
        "product[..., 1:]",
        "prime field: a b' for (a b)'",
        ("nullspace.ln", "nullspace.bn"),
    ),
    MODULAR(
        "modular-gain-missing",
        "by_gain = n[..., :1] * np.eye(H)",
        "by_gain = 0 * n[..., :1] * np.eye(H)",
        "modular Jacobian without gains",
    ),
    MODULAR(
        "modular-rank-pivot",
        "rows[found + 1 :] = reduced(rows[found + 1 :] - reduced(rows[found + 1 :, column, None] * top))",
        "rows[found + 2 :] = reduced(rows[found + 2 :] - reduced(rows[found + 2 :, column, None] * top))",
        "elimination leaves out the row below the pivot",
    ),
    MODULAR(
        "modular-eps-ignored",
        "arrays.outputs(layer.eps)",
        "arrays.outputs(0)",
        "modular layer norm with ε is without it",
        ("nullspace.ln_eps",),
    ),
    ACTIONS(
        "action-scale-other-index",
        'places = {"i": row, "n": first,',
        'places = {"i": row, "n": d,',
        "scale of a case depends on the input",
    ),
    ACTIONS(
        "summed-shift-missing",
        "D) if column.shift else scaled",
        "D) if column.shift == 1 else scaled",
        "shifts do not reach the summed inputs",
    ),
    ACTIONS(
        "concrete-shift-constant",
        'found[0] = gamma if "d" in str(column.shift) else gamma[0]',
        "found[0] = gamma[0]",
        "exact shifts are constant over inputs",
        ("table1.*_recentering",),
        ("tests/symbolic/test_one_definition.py", *TESTS),
    ),
    JACOBIAN(
        "nullity-of-weights",
        "return H * (D + 2) - rank(",
        "return H * (D + 1) - rank(",
        "nullity without the gains",
    ),
    JACOBIAN(
        "radial-is-shift",
        "RADIAL: Field = lambda i, d: LAYER.W(i, d)",
        "RADIAL: Field = lambda i, d: LAYER.W(1, d)",
        "radial direction: the first row in all rows",
        ("nullspace.rms", "nullspace.ln"),
    ),
    SCALE_FREE(
        "perpendicular-not",
        "return lambda d: v(d) - dot(v, w) / dot(w, w) * w(d)",
        "return lambda d: v(d) - dot(v, w) * w(d)",
        "projection without 1/‖w‖²",
    ),
    SCALE_FREE(
        "tangent-less-one",
        "return dot(w, w) * dot(after, after) / dot(w, after) ** 2 - 1",
        "return dot(w, w) * dot(after, after) / dot(w, after) ** 2",
        "1/cos² for tan²",
        ("text.norm_controls_learning_rate",),
    ),
    TABLE(
        "general-square-factor",
        "new[1], factor**2, r",
        "new[1], factor, r",
        "the scale's square changes by the factor",
    ),
    TABLE(
        "expansion-sign",
        "right_sign = expression.is_negative if flipped else expression.is_positive",
        "right_sign = expression.is_positive if flipped else expression.is_positive",
        "the expansion of a flip takes the other sign",
        ("extended.*.weight_sign_flip",),
    ),
    PROOF(
        "step-either",
        "return sums.vanishes(left - right) and agrees_at_small_sizes(left, right)",
        "return sums.vanishes(left - right) or agrees_at_small_sizes(left, right)",
        "one of two routes of a proof is enough",
        ("table1.*",),
    ),
    PROOF(
        "step-truthy",
        "if self.verify() is not True:",
        "if self.verify() is None:",
        "a step that fails counts as checked",
        ("table1.*",),
    ),
    PROOF(
        "nonzero-interval",
        "        if not interval.a <= 0 <= interval.b:\n            return True",
        "        if not interval.a < 0 < interval.b:\n            return True",
        "an interval that ends in zero counts as nonzero",
        ("equation.35", "text.factor_half"),
    ),
    PROOF(
        "counterexample-unchecked",
        "if not certified_nonzero(left - right):",
        "if left is None:",
        "counterexamples whose sides agree",
        ("equation.35", "text.factor_half", "equation.32"),
    ),
    SEARCH(
        "signed-square-unsigned",
        "return numerator * abs(numerator) / square",
        "return numerator * numerator / square",
        "a change of sign is no change",
        ("extended.*.weight_sign_flip", "equation.6"),
    ),
    EVALUATION(
        "evaluation-starts-at-zero",
        "steps = range(1, int(evaluate(high, values)) + 1)",
        "steps = range(1, int(evaluate(high, values)))",
        "numerical sums leave out the last term",
        ("table1.ln.*", "nullspace.ln"),
    ),
    EVALUATION(
        "evaluation-tolerance",
        "mpmath.mpf(10) ** -40",
        "mpmath.mpf(10) ** 3",
        "numerical check of a step with a tolerance of 1000",
        ("table1.ln.*",),
    ),
    THEOREM(
        "audit-ln-nullity",
        "return max(0, size - forms - (r if centred else 0))",
        "return max(0, size - forms - (r if centred else 0)) + 7 * (centred and r >= 5)",
        "layer norm's nullity + 7 for r ≥ 5",
        ("nullspace.ln", "nullspace.gn", "nullspace.ln_eps"),
    ),
    THEOREM(
        "audit-softmax-rms-nullity",
        "return max(0, size + (0 if centred else r) - forms)",
        "return max(0, size + (0 if centred else r) - forms) + 5 * (r >= 5 and not centred)",
        "softmax-RMS: nullity + 5 for r ≥ 5",
        ("nullspace.softmax_rms",),
    ),
    THEOREM(
        "rms-nullity-wide",
        "largest = min(rank, size - self.centred)",
        "largest = min(rank, size - 1)",
        "RMS norm's nullity with r = min(D, H − 1)",
        ("nullspace.rms",),
    ),
    THEOREM(
        "softmax-ln-nullity-conditions",
        "return max(0, size + (0 if centred else r) - forms)",
        "return max(0, size + (-r if centred else r) - forms)",
        "softmax-LN's nullity with r(r + 3)/2",
        ("nullspace.softmax_ln",),
    ),
    FISHER(
        "audit-weight-blocks",
        "column = [int(l == 0) - (1 + u[l] * u[0] / variance) / sp.Integer(H) for l in range(H)]",
        "column = [int(l == 0) - (2 + u[l] * u[0] / variance) / sp.Integer(H) for l in range(H)]",
        "exact weight block with 2 for 1",
        ("equation.13_14.ln", "text.factor_half", "scaling.no_power_law.ln"),
    ),
    METRIC(
        "audit-poisson-fourth-power",
        "return poisson_expectation(lambda y: (y - mean) ** 2, sp.exp(z))",
        "return poisson_expectation(lambda y: (y - mean) ** 4, sp.exp(z))",
        "Eq. 32's Poisson counterexample with the fourth moment",
        ("equation.32",),
    ),
    METRIC(
        "audit-eq35-left",
        "return divergence, C[0, 1] * first * second / 2",
        "return 4 * divergence, C[0, 1] * first * second / 2",
        "Eq. 35's counterexample: left side × 4",
        ("equation.35",),
    ),
    EQUIVALENCE(
        "audit-symbolic-lars-trust",
        "TAU * norm(q.W) / (norm(q.R) + h.eps) * q.R(l, d)",
        "TAU / h.decay * q.R(l, d)",
        "LARS in the proof: trust ratio 1/λ",
        ("dynamics.equivalence.lars",),
    ),
    EQUIVALENCE(
        "audit-adam-bias-correction",
        "(q.A(l, d) / CORRECTION1) / (sqrt(q.S(l, d) / CORRECTION2) + h.eps)",
        "q.A(l, d) / (sqrt(q.S(l, d)) + h.eps)",
        "Adam in the proof without bias correction",
        ("dynamics.equivalence.adam", "dynamics.equivalence.adamw", "dynamics.equivalence.adam_l2"),
    ),
    EQUIVALENCE(
        "symbolic-adam-first-power",
        "BETA2 * q.S(l, d) + (1 - BETA2) * g(q, l, d) ** 2",
        "BETA2 * q.S(l, d) + (1 - BETA2) * g(q, l, d)",
        "Adam in the proof: g for g² in the second moment",
        ("dynamics.equivalence.adam",),
    ),
    EVIDENCE(
        "decide-clash-lost",
        "if any(e.contradicts and e.role in proved for e in numbers):\n        return Verdict.CLASH",
        "if any(e.contradicts and e.role in proved for e in numbers):\n        return Verdict.HOLDS",
        "a clash counts as support",
    ),
    EVIDENCE(
        "decide-any-passes",
        "if not all(e.passed for e in left):",
        "if not any(e.passed for e in left):",
        "one piece of evidence that passes is enough",
    ),
    EVIDENCE(
        "decide-no-correction",
        "if len(against) > 1 or Role.CORRECTS not in roles or Role.SUPPORTS in roles:",
        "if len(against) > 1 or Role.SUPPORTS in roles:",
        "a refutation or a slip needs no correction",
    ),
    EVIDENCE(
        "vacuous-passes",
        "if not reason and self.vacuous:",
        "if not reason and self.vacuous and self.samples > 10**9:",
        "zeros count as agreement",
    ),
    EVIDENCE(
        "vanishes-mean",
        "largest = float(np.max(np.abs(a), initial=0.0))",
        "largest = float(np.abs(np.mean(a))) if a.size else 0.0",
        "an array vanishes if its mean does",
    ),
    ROUNDING(
        "rounding-margin",
        "MARGIN = 16.0",
        "MARGIN = 0.0",
        "rounding is never taken into account",
    ),
    COMPARISON(
        "sign-test-significance",
        "SIGNIFICANCE = 0.05",
        "SIGNIFICANCE = 0.5",
        "sign test at 50 %",
    ),
    READINGS(
        "reading-mean-unbiased",
        "return self.total(body, size) / self.size(size)",
        "return self.total(body, size) / (self.size(size) - (size == 'H'))",
        "readings over floats: means of units with H − 1",
        ("equation.3", "table1.ln.*"),
    ),
    READINGS(
        "reading-first-place",
        "chosen = tuple(place - 1",
        "chosen = tuple(place - 2",
        "readings over floats: keys for queries",
        ("extended.qk_l2.*", "extended.qk_ln.*"),
    ),
)
