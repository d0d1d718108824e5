"""Faults in the Fisher matrix: closed form, derivative, outer products, factor, spectrum, solutions, sampling."""

from analysis.mutants.mutant import Source

ROUTES = ("tests/information/test_one_matrix.py", "tests/information/test_routes.py")
EXACT = ("equation.13_14.*", "equation.9", "scaling.*")
RANKS = ("equation.9", "nullspace.ln", "nullspace.softmax_ln", "equation.13_14.ln", "text.riemannian")
SOLVE_TESTS = ("tests/information/test_operator.py", "tests/information/test_routes.py")

LAYER = Source("information", "methods/layer.py", EXACT, ROUTES)
BATCH = Source("information", "methods/batch.py", EXACT, ROUTES)
WEIGHT = Source("information", "methods/weight.py", EXACT, ROUTES)
LINEARIZATION = Source("information", "methods/linearization.py", EXACT, ROUTES)
CLOSED = Source("information", "information/_closed_form.py", EXACT, ROUTES)
DERIVATIVE = Source("information", "information/_derivative.py", EXACT, ROUTES)
SCORE = Source("information", "families/_family.py", EXACT, ROUTES)
MATRIX = Source(
    "information",
    "information/_matrix.py",
    ("equation.9", "equation.13_14.bn", "equation.13_14.ln", "equation.12", "dynamics.fisher_trained"),
    ("tests/information/test_outer_products.py", *ROUTES),
)
DIAGONAL = Source(
    "information",
    "information/_diagonal.py",
    ("equation.9", "equation.13_14.bn", "equation.13_14.ln", "equation.12", "dynamics.fisher_trained"),
    ("tests/information/test_outer_products.py", *ROUTES),
)
SPECTRUM = Source(
    "information",
    "information/_spectrum.py",
    RANKS,
    ("tests/information/test_ranks.py", "tests/information/test_operator.py"),
)
ENTROPY = Source("information", "_core/numerics.py")
SOLVE = Source(
    "information",
    "information/_solve.py",
    ("equation.9", "dynamics.equivalence.natural_gradient"),
    ("tests/information/test_nullspace_measured.py", *SOLVE_TESTS),
)
KRYLOV = Source("information", "information/_krylov.py", SOLVE.claims, SOLVE.tests)
OPERATOR = Source(
    "information", "information/_operator.py", ("equation.9", "equation.12", "equation.13_14.*"), SOLVE_TESTS
)
REFERENCE = Source("information", "information/reference.py", EXACT, ROUTES)
ORDER = Source("information", "information/orders.py", EXACT, ROUTES)
COUPLED = Source(
    "information", "information/_coupled.py", ("equation.13_14.bn",), ("tests/information/test_coupled.py",)
)
STREAMED = Source("information", "methods/batch.py", ("equation.13_14.bn",), ("tests/information/test_coupled.py",))
SHARDING = Source("information", "information/_sharding.py", EXACT, ("tests/information/test_scale_out.py", *ROUTES))
SUMS = Source("information", "_core/sums.py", EXACT, ("tests/information/test_scale_out.py", *ROUTES))
MEASURED = Source(
    "information",
    "information/_nullspace.py",
    ("nullspace.ln_eps", "text.riemannian", "nullspace.ln"),
    ("tests/information/test_nullspace_measured.py", "tests/information/test_nullspace.py"),
)
NAMES = ("tests/information/test_names.py",)
SUBSPACES = Source("information", "_core/subspaces.py", MEASURED.claims, (*NAMES, *MEASURED.tests))
SPACES = Source("information", "information/candidates.py", MEASURED.claims, NAMES)
ELSEWHERE = Source("information", "information/_elsewhere.py", MEASURED.claims, NAMES)
PROBLEM = Source("information", "information/_problem.py", EXACT, ROUTES)

MUTANTS = (
    WEIGHT(
        "wn-slope-without-eps",
        "return Units(inputs, weights / scale[:, None])",
        "return Units(inputs, weights / (weights**2).sum(1, keepdims=True) ** 0.5)",
        "weight norm: slope of the scale without ε",
        ("equation.13_14.wn",),
    ),
    CLOSED(
        "groups-not-crossed",
        "            entries -= _packed_products(w, w)",
        "            entries -= _packed_products(w, w) * (group[first] == group[second])[:, None]",
        "group norm under a softmax: no blocks across groups",
        ("equation.13_14.ln",),
    ),
    LINEARIZATION(
        "unitwise-radial-sign",
        "return self.inputs @ scaled.T - self.normalized *",
        "return self.inputs @ scaled.T + self.normalized *",
        "push of batch and weight norm: radial part added",
    ),
    LINEARIZATION(
        "unitwise-pull-radial",
        "cotangent) - radial[:, None] * self.scale_slope",
        "cotangent)",
        "pull of batch and weight norm without the radial part",
    ),
    WEIGHT(
        "weight-norm-slope",
        "return Units(inputs, weights / scale[:, None])",
        "return Units(inputs, weights)",
        "slope of the length without 1/‖w‖",
        ("equation.13_14.wn", "scaling.*"),
    ),
    BATCH(
        "batch-norm-slope-n",
        "total(centered @ weights.T / scale[None, :], centered) / len(inputs)",
        "total(centered @ weights.T / scale[None, :], centered) / (len(inputs) - 1)",
        "slope of the deviation with N − 1",
        ("equation.13_14.bn", "scaling.*"),
    ),
    BATCH(
        "batch-norm-slope-raw",
        "total(centered @ weights.T / scale[None, :], centered)",
        "total(inputs @ weights.T / scale[None, :], inputs)",
        "slope of the deviation by raw second moments",
        ("equation.13_14.bn", "scaling.*"),
    ),
    BATCH(
        "batch-norm-inputs-raw",
        "return Units(centered, total",
        "return Units(inputs, total",
        "batch norm's own mean does not move",
        ("equation.13_14.bn", "scaling.*"),
    ),
    LAYER(
        "grouped-push-scale",
        "return self.gain[None, :] * ((value - self._along_normalized(self.normalized, value)) * self.inverse_scale)",
        "return self.gain[None, :] * (value * self.inverse_scale)",
        "push of layer norm without − nnᵀ/H",
    ),
    LAYER(
        "grouped-push-not-centred",
        "value = self.inputs @ self.center(weights).T",
        "value = self.inputs @ weights.T",
        "push of layer norm without − 11ᵀ/H",
    ),
    LAYER(
        "grouped-pull-gain",
        "along = self._along_normalized(self.scaled, cotangent)",
        "along = self._along_normalized(self.normalized, cotangent)",
        "pull of layer norm: gain left out of the part along n",
    ),
    LAYER(
        "grouped-pull-not-centred",
        "return self.center(sum_of_products(self.transposed, projected))",
        "return sum_of_products(self.transposed, projected)",
        "pull of layer norm without − 11ᵀ/H",
    ),
    LAYER(
        "grouped-mean-of-groups",
        "return (n * jnp.mean(scaled * value, 2, keepdims=True))",
        "return (n * jnp.mean(scaled * value, (1, 2), keepdims=True))",
        "part along n over all groups",
        ("nullspace.gn",),
    ),
    LAYER(
        "grouped-project-sign",
        "return value - self._along_normalized(self.normalized, value)",
        "return value + self._along_normalized(self.normalized, value)",
        "Π with + nnᵀ/H",
        ("equation.13_14.ln",),
    ),
    CLOSED(
        "dense-u-half",
        "u = (d * n - 0.5 * mean(d * n * n) * n) / size",
        "u = (d * n - mean(d * n * n) * n) / size",
        "closed form: ½ missing in u",
    ),
    CLOSED(
        "dense-v-half",
        "v = (d - 0.5 * mean(d) - mean(d * n) * n) / size",
        "v = (d - mean(d) - mean(d * n) * n) / size",
        "closed form: ½ missing in v",
    ),
    CLOSED(
        "dense-v-cross",
        "v = (d - 0.5 * mean(d) - mean(d * n) * n) / size",
        "v = (d - 0.5 * mean(d)) / size",
        "closed form: cross term of mean and n dropped",
    ),
    CLOSED(
        "dense-w-not-projected",
        "w = gain * q - n * mean(n * gain * q)",
        "w = gain * q",
        "closed form, softmax: q not projected along n",
    ),
    CLOSED(
        "dense-w-not-centred",
        "w = (w - mean(gain * q) if at.centered else w) * s",
        "w = w * s",
        "closed form, softmax: q not centred",
    ),
    CLOSED(
        "dense-own-sign",
        "wbg = alone * own.reshape(2, units, features).transpose(2, 0, 1)[None] - same * along",
        "wbg = alone * own.reshape(2, units, features).transpose(2, 0, 1)[None] + same * along",
        "closed form: sign of the part along n between weights and bias",
    ),
    CLOSED(
        "dense-crossed-dropped",
        "wbg -= crossed.reshape(units, features, 2, units)",
        "wbg -= 0 * crossed.reshape(units, features, 2, units)",
        "closed form, softmax: qqᵀ missing between weights and bias",
    ),
    CLOSED(
        "dense-groups-mixed",
        "if at.groups > 1:\n            entries *=",
        "if at.groups > 99:\n            entries *=",
        "closed form: blocks between groups kept",
        ("nullspace.gn",),
    ),
    CLOSED(
        "dense-gain-gain",
        "(weight, weight * n, weight * n * n)]",
        "(weight, weight * n, weight * n)]",
        "closed form: n for n² between gains",
        ("equation.33", "equation.13_14.ln", "scaling.matrix"),
    ),
    CLOSED(
        "dense-unitwise-covariance",
        "crossed = (f * outer[:, :, None]).reshape(len(n), -1)",
        "crossed = (f * jnp.square(outer[:, :, None])).reshape(len(n), -1)",
        "closed form of batch norm, softmax: q² for q",
    ),
    CLOSED(
        "dense-unitwise-slope",
        "chi = x[:, None, :] - n[:, :, None] * at.scale_slope[None]",
        "chi = x[:, None, :] - at.scale_slope[None]",
        "closed form of batch norm: n missing in χ",
    ),
    CLOSED(
        "unpacking-one-triangle",
        "positions[rows, columns] = positions[columns, rows] = np.arange(len(rows))",
        "positions[rows, columns] = np.arange(len(rows))\n    positions[columns, rows] = np.arange(len(rows))[::-1]",
        "the lower triangle unpacked in reverse",
    ),
    CLOSED(
        "chunk-sizes",
        "chunk = -(-len(inputs) // -(-len(inputs) // most))  # chunks of nearly one size",
        "chunk = max(1, most - 1)",
        "chunks of a size less one",
        equivalent="the sum does not depend on the size of its chunks",
    ),
    DERIVATIVE(
        "push-no-bias",
        "return self.at.push(tangent.weights) + tangent.bias[None, :] +",
        "return self.at.push(tangent.weights) +",
        "push without the bias",
    ),
    DERIVATIVE(
        "pull-gain",
        "jnp.sum(self.at.normalized * cotangent, 0))",
        "jnp.sum(cotangent, 0) * jnp.mean(self.at.normalized, 0))",
        "pull along gains by the mean of n",
    ),
    DERIVATIVE(
        "printed-push-gain",
        'self.gain[None, :] * jnp.einsum("nhd,hd->nh", self.inputs, weights) * self.inverse_scale',
        'jnp.einsum("nhd,hd->nh", self.inputs, weights) * self.inverse_scale',
        "printed Jacobian without the gain",
        tests=("tests/information/test_operator.py", "tests/information/test_routes.py"),
    ),
    DERIVATIVE(
        "scores-not-averaged",
        "scale = (self.samples * self.scores.shape[1]) ** 0.5",
        "scale = self.samples**0.5",
        "scores summed over draws",
        ("equation.9",),
        ("tests/information/test_sampled_scores.py",),
    ),
    DERIVATIVE(
        "weights-not-rooted",
        "y = y * jnp.sqrt(self.weights)[..., None]",
        "y = y * self.weights[..., None]",
        "weights of samples squared in the factor",
        ("dynamics.fisher_trained",),
        ROUTES,
    ),
    DERIVATIVE(
        "factor-by-n",
        "return y / self.samples**0.5",
        "return y / self.samples",
        "factor divided by N",
        RANKS + EXACT,
    ),
    DERIVATIVE(
        "metric-n-less-one",
        "* (1 / problem.samples)",
        "* (1 / (problem.samples - 1))",
        "products divided by N − 1",
        (*EXACT, "nullspace.ln"),
    ),
    SCORE(
        "audit-score-dispersion",
        "return self.residual(z, y.reshape(z.shape).astype(z.dtype)) / self.dispersion_along(z)",
        "return self.residual(z, y.reshape(z.shape).astype(z.dtype))",
        "score without φ",
        ("equation.9", "equation.8"),
        ("tests/information/test_sampled_scores.py", "tests/information/test_operator.py"),
    ),
    SCORE(
        "score-sign",
        "return y - self.mean(z)",
        "return y + self.mean(z)",
        "score y + E[y]",
        ("equation.9",),
        ("tests/information/test_sampled_scores.py",),
    ),
    DERIVATIVE(
        "draws-with-one-key",
        "family.sample(jax.random.fold_in(key, k), wide)",
        "family.sample(jax.random.fold_in(key, 0 * k), wide)",
        "all draws are the same one",
        ("equation.9",),
        ("tests/information/test_sampled_scores.py",),
    ),
    MATRIX(
        "gram-cross-transposed",
        "blocks[j, i] = blocks[i, j].T if i != j else blocks[i, j]",
        "blocks[j, i] = blocks[i, j].T if i != j else jnp.tril(blocks[i, j])",
        "upper triangles of diagonal blocks lost",
    ),
    MATRIX(
        "gram-order",
        "order = (*a.order, *(len(a.order) + axis for axis in b.order))",
        "order = (*a.order, *(len(a.order) + axis for axis in a.order))",
        "columns laid out as the rows' kernel is",
    ),
    MATRIX(
        "gram-set-for-add",
        "matrix = matrix.at[edges[leaf] : edges[leaf + 1]].add(rows[i][part])",
        "matrix = matrix.at[edges[leaf] : edges[leaf + 1]].set(rows[i][part])",
        "a leaf that is used twice counts once",
    ),
    MATRIX(
        "signals-of-first-output",
        "m = jax.vmap(signals, out_axes=2)(jnp.eye(z.shape[1], dtype=z.dtype))",
        "m = jax.vmap(signals, out_axes=2)(jnp.tri(z.shape[1], dtype=z.dtype))",
        "signals of a triangular basis of the outputs",
    ),
    MATRIX(
        "symmetric-diagonal-twice",
        "return upper + jnp.triu(upper, 1).T",
        "return upper + jnp.triu(upper).T",
        "diagonal counted twice",
    ),
    DIAGONAL(
        "diagonal-not-squared",
        "return jnp.sum(jnp.square(rows), 0), (rows @ vector) @ rows",
        "return jnp.sum(jnp.abs(rows), 0), (rows @ vector) @ rows",
        "diagonal by absolute values",
        ("equation.9", "equation.12", "text.riemannian"),
        SOLVE_TESTS,
    ),
    SPECTRUM(
        "kept-one-more",
        "return jnp.arange(len(self.singular_values)) < self.rank",
        "return jnp.arange(len(self.singular_values)) <= self.rank",
        "one null direction counts as identifiable",
        (*RANKS, "dynamics.equivalence.natural_gradient"),
        ("tests/information/test_nullspace_measured.py",),
    ),
    SPECTRUM(
        "null-one-less",
        "        return vectors[rank:].T\n",
        "        return vectors[rank + 1 :].T\n",
        "basis of the null space lacks a vector",
    ),
    SPECTRUM(
        "rank-of-eigenvalues",
        "found = decide_rank(singular_values, size, size, lost, eps=eps, bound=bound)",
        "found = decide_rank(singular_values**2, size, size, lost, eps=eps, bound=bound)",
        "rank from eigenvalues",
    ),
    SPECTRUM(
        "largest-rank-outputs",
        "positions * problem.family.metric_rank(z.shape[-1]), rows)",
        "positions * problem.family.metric_rank(z.shape[-1]) - 1, rows)",
        "the largest rank less one",
    ),
    ENTROPY(
        "effective-rank-values",
        "p = jnp.square(singular_values)\n",
        "p = singular_values\n",
        "effective rank of singular values",
        ("equation.9", "dynamics.fisher_spectrum"),
        ("tests/information/test_operator.py",),
    ),
    SPECTRUM(
        "merge-first-carry",
        "return triangular_rows(jnp.concatenate([carry, new]))",
        "return triangular_rows(jnp.concatenate([0.5 * carry, new]))",
        "earlier chunks count a quarter",
    ),
    SPECTRUM(
        "cancelled-first-order",
        "metric_diagonal(derivative.outputs) * jnp.square(derivative.at.slopes)",
        "metric_diagonal(derivative.outputs) * derivative.at.slopes",
        "size of what cancels: slopes not squared",
    ),
    SOLVE(
        "solve-by-values",
        "shifted = jnp.where(kept, jnp.square(s) + damping, 1)",
        "shifted = jnp.where(kept, s + damping, 1)",
        "solution divided by singular values",
    ),
    SOLVE(
        "solve-damping-squared",
        "jnp.square(s) + damping",
        "jnp.square(s + damping)",
        "damping added before the square",
    ),
    SOLVE(
        "solve-damping-ignored",
        "shifted = jnp.where(kept, jnp.square(s) + damping, 1)",
        "shifted = jnp.where(kept, jnp.square(s), 1)",
        "damping ignored",
    ),
    KRYLOV(
        "conjugate-beta",
        "return x, r, added(r, new / squared, p), new, step + 1",
        "return x, r, added(r, -new / squared, p), new, step + 1",
        "conjugate directions with the other sign",
    ),
    KRYLOV(
        "conjugate-no-projection",
        "return added(horizontal(null, product(horizontal(null, v))), damping, v)",
        "return added(product(v), damping, v)",
        "null space not projected out of the steps",
        equivalent="residuals are projected, so directions have no part along the null space, and no more of the "
        "product is used than its part beside it",
    ),
    SOLVE(
        "unidentifiable-part",
        '"unidentifiable": _relative(g - solved, g)}',
        '"unidentifiable": _relative(solved, g)}',
        "report: the identifiable part for the other",
    ),
    SOLVE(
        "sample-not-inverted",
        "noise / jnp.where(kept, s, 1)[None, :], 0)",
        "noise * jnp.where(kept, s, 1)[None, :], 0)",
        "draws of N(0, F)",
    ),
    SOLVE(
        "sample-by-eigenvalues",
        "noise / jnp.where(kept, s, 1)[None, :], 0)",
        "noise / jnp.square(jnp.where(kept, s, 1))[None, :], 0)",
        "draws of N(0, F⁺²)",
    ),
    OPERATOR(
        "audit-standard-error-ddof",
        "jnp.std(v, 0, ddof=1)",
        "jnp.std(v, 0, ddof=0)",
        "standard error with ddof = 0",
        ("equation.9",),
        ("tests/information/test_sampled_scores.py", "tests/information/test_operator.py"),
    ),
    OPERATOR(
        "standard-error-of-one",
        "jnp.std(v, 0, ddof=1) / scores.shape[1] ** 0.5",
        "jnp.std(v, 0, ddof=1)",
        "deviation of one draw for the standard error",
        ("equation.9",),
        ("tests/information/test_sampled_scores.py", "tests/information/test_operator.py"),
    ),
    OPERATOR(
        "pseudo-logdet-factor",
        "return 2 * jnp.sum(jnp.where(kept, jnp.log",
        "return jnp.sum(jnp.where(kept, jnp.log",
        "log-determinant of the factor",
    ),
    OPERATOR(
        "eigenvalues-not-squared",
        "s = jnp.square(self.singular_values())",
        "s = self.singular_values()",
        "singular values for eigenvalues",
        ("equation.9", "dynamics.fisher_spectrum", "dynamics.edge_of_stability"),
    ),
    REFERENCE(
        "reference-sum",
        'return jnp.einsum("nhp,nhq->pq", J, metric_J) / len(inputs)',
        'return jnp.einsum("nhp,nhq->pq", J, metric_J) / (len(inputs) - 1)',
        "definition: N − 1 for N",
    ),
    REFERENCE(
        "reference-factor",
        "rows.reshape(-1, J.shape[-1]) / len(inputs) ** 0.5",
        "rows.reshape(-1, J.shape[-1]) / len(inputs)",
        "factor of the definition divided by N",
        ("nullspace.gn", "equation.13_14.*", "nullspace.ln", "text.riemannian"),
    ),
    REFERENCE(
        "eq12-order",
        "jax.vmap(jnp.kron)(covariance, outer)",
        "jax.vmap(jnp.kron)(outer, covariance)",
        "Eq. 12: factors of the Kronecker product exchanged",
        ("equation.12",),
    ),
    REFERENCE(
        "eq14-no-mean",
        "return inputs[:, None, :] - own(mean_slope) - n[:, :, None] * own(scale_slope)",
        "return inputs[:, None, :] - n[:, :, None] * own(scale_slope)",
        "Eq. 14 without ∂μ/∂w",
        ("equation.13_14.bn", "equation.13_14.ln"),
    ),
    REFERENCE(
        "eq14-scale-sign",
        "own(mean_slope) - n[:, :, None] * own(scale_slope)",
        "own(mean_slope) + n[:, :, None] * own(scale_slope)",
        "Eq. 14 with + n ∂σ/∂w",
        ("equation.13_14.*",),
    ),
    REFERENCE(
        "eq13-inverse-scale",
        "slope = jnp.broadcast_to(params.gain[None, :] / scale, n.shape)",
        "slope = jnp.broadcast_to(params.gain[None, :] / scale**2, n.shape)",
        "Eq. 13 with g/σ²",
        ("equation.13_14.*",),
    ),
    REFERENCE(
        "divergence-richardson",
        "return (4 * second_difference(step / 2) - second_difference(step)) / 3",
        "return (2 * second_difference(step / 2) - second_difference(step))",
        "extrapolation of the divergences with the wrong order",
        ("equation.8", "equation.9", "equation.13_14.ln"),
    ),
    ORDER(
        "paper-positions-gain",
        "return np.concatenate([weights, bias, bias + units], axis=1)",
        "return np.concatenate([weights, bias + units, bias], axis=1)",
        "paper's order with gain before bias",
        ("equation.12", "equation.13_14.*"),
        ("tests/information/test_operator.py",),
    ),
    COUPLED(
        "streamed-scale-slope",
        "slope = covariances / scale[:, None]",
        "slope = covariances / jnp.square(scale)[:, None]",
        "streamed batch norm: ∂σ/∂w divided by σ²",
    ),
    STREAMED(
        "streamed-mean-fixed",
        "return Statistics((weights @ self.input_mean).reshape(shape)",
        "return Statistics((self.origin @ self.input_mean).reshape(shape)",
        "streamed batch norm: the mean does not move with the weights",
    ),
    COUPLED(
        "statistic-slope",
        "value, slope = jax.tree.map(lambda s: s / problem.samples, sums)",
        "value, slope = jax.tree.map(lambda s: s / problem.samples, sums)\n"
        "        slope = jax.tree.map(jnp.zeros_like, slope)",
        "means over samples do not move with the parameters",
    ),
    COUPLED(
        "streamed-eps",
        "scale = jnp.sqrt(variance + model.normalizer.eps)",
        "scale = jnp.sqrt(variance) + model.normalizer.eps",
        "streamed batch norm: ε outside the root",
    ),
    SUMS(
        "rest-dropped",
        "return step(carry, jax.tree.map(lambda a: a[full * chunk :], rows)) if rest else carry",
        "return carry",
        "the last, shorter chunk left out",
    ),
    SUMS(
        "rest-overlap",
        "a[full * chunk :], rows)) if rest else carry",
        "a[full * chunk - 1 :], rows)) if rest else carry",
        "one sample counted twice",
    ),
    SHARDING(
        "padding-counts",
        'last = array[-1:] if mode == "edge" else jnp.zeros_like(array[-1:])',
        "last = array[-1:]",
        "padded samples count",
        (),
        ("tests/information/test_scale_out.py",),
    ),
    SUBSPACES(
        "null-part-threshold",
        "chosen = vectors[:, 1 - squares < self.close**2]",
        "chosen = vectors[:, 1 - squares < 0.5**2]",
        "directions half outside the null space are named",
    ),
    SPACES(
        "reader-turns-as-writer",
        'changes = -np.einsum("...j,cij->c...i", moved, generators)',
        'changes = np.einsum("...j,cij->c...i", moved, generators)',
        "readers turn with the writers, not against them",
    ),
    SPACES(
        "turn-without-gain",
        "generators = turn * d[None, None, :] / d[None, :, None]",
        "generators = turn",
        "readers behind a gain do not turn in its scale",
    ),
    ELSEWHERE(
        "other-data-the-same",
        "inputs = jax.tree.map(lambda leaf: _drawn(leaf, rng), given.inputs)",
        "inputs = given.inputs",
        "what the data hide is taken for a symmetry",
    ),
    MEASURED(
        "scale-form-at-origin",
        "problem.unravel(delta * change))",
        "problem.unravel(change))",
        "form along the scale without the factor of the scale",
    ),
    MEASURED(
        "exponent-base",
        "exponent = math.log2(first / second) / 2",
        "exponent = math.log2(first / second)",
        "exponent of ε doubled",
    ),
    MEASURED(
        "residual-of-form",
        "residual = float(np.sqrt(np.max(forms(F, F.problem, np.asarray(basis))))) / largest",
        "residual = float(np.max(forms(F, F.problem, np.asarray(basis)))) / largest",
        "residual of the null space without its root",
    ),
    PROBLEM(
        "harmless-outside",
        "return jnp.where(counts[..., None], z, harmless)",
        "return jnp.where(counts[..., None], z, z)",
        "masked positions keep their outputs",
        (),
        (*ROUTES, "tests/information/test_input_checks.py"),
    ),
)
