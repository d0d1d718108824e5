"""Faults in scaling laws, equivalent schedules, equilibria, the tracker and groups of scale-invariant weights."""

from analysis.mutants.mutant import Source

LAWS = Source(
    "training", "training/laws.py", (), ("tests/training/test_equivalence.py", "tests/training/test_tracker.py")
)
EQUIVALENCE = Source(
    "training",
    "training/equivalence.py",
    ("dynamics.exponential_learning_rate", "dynamics.exponential_adamw"),
    ("tests/training/test_equivalence.py",),
)
EQUILIBRIUM = Source("training", "training/equilibrium.py", (), ("tests/training/test_tracker.py",))
TRACKED = ("dynamics.equilibrium.sgd", "dynamics.equilibrium.lion", "dynamics.equilibrium.lars")
RECORD = Source("training", "training/_record.py", TRACKED, ("tests/training/test_tracker.py",))
TRACKER = Source("training", "training/tracker.py", TRACKED, ("tests/training/test_tracker.py",))
RECURSIONS = Source("training", "training/_recursions.py", TRACKED, ("tests/training/test_tracker.py",))
DETECT = Source("training", "training/_detect.py", TRACKED, ("tests/training/test_tracker.py",))
GROUPS = Source(
    "training",
    "information/groups.py",
    ("dynamics.orthogonality", "dynamics.equilibrium.sgd"),
    ("tests/training/test_groups.py",),
)

MUTANTS = (
    LAWS(
        "audit-lars-eps",
        '"lars": Law(0, -2, -1)',
        '"lars": Law(0, -2, 0)',
        "LARS: ε unchanged",
        ("dynamics.equivalence.lars",),
    ),
    LAWS(
        "audit-muon-eps",
        '"muon": Law(1, -1, -1, decoupled=True)',
        '"muon": Law(1, -1, 0, decoupled=True)',
        "Muon: ε unchanged",
        ("dynamics.equivalence.muon",),
    ),
    LAWS(
        "audit-adam-decay",
        '"adam": Law(1, -1, -1, decoupled=True)',
        '"adam": Law(1, -2, -1, decoupled=True)',
        "Adam: λ → c⁻²λ",
        ("dynamics.equivalence.adam",),
    ),
    LAWS(
        "audit-lamb-rate",
        '"lamb": Law(0, -1, -1, decoupled=True)',
        '"lamb": Law(1, -1, -1, decoupled=True)',
        "LAMB: η → cη",
        ("dynamics.equivalence.*",),
    ),
    LAWS("law-sgd-rate", '"sgd": Law(2, -2)', '"sgd": Law(1, -2)', "SGD: η → cη", ("dynamics.equivalence.sgd",)),
    LAWS(
        "law-momentum-decay",
        '"momentum": Law(2, -2)',
        '"momentum": Law(2, -1)',
        "momentum: λ → λ/c",
        ("dynamics.equivalence.momentum",),
    ),
    LAWS(
        "law-adam-l2-decay",
        '"adam_l2": Law(1, -2, -1)',
        '"adam_l2": Law(1, -1, -1)',
        "Adam with L2: λ → λ/c",
        ("dynamics.equivalence.adam_l2",),
    ),
    LAWS(
        "law-natural-damping",
        '"natural_gradient": Law(0, 0, -2, decoupled=True)',
        '"natural_gradient": Law(0, 0, -1, decoupled=True)',
        "natural gradient: damping → damping/c",
        ("dynamics.equivalence.natural_gradient",),
    ),
    EQUIVALENCE(
        "schedule-scale-inverse",
        "_times(scale**law.decay, weight_decay),",
        "_times(scale**-law.decay, weight_decay),",
        "weight decay multiplied by the inverse power",
        ("dynamics.equivalence.sgd", "dynamics.equivalence.adamw"),
    ),
    EQUIVALENCE(
        "exponential-power",
        'power, factor, correction = (2 if optimizer == "sgd" else 1), 1.0, None',
        'power, factor, correction = (1 if optimizer == "sgd" else 1), 1.0, None',
        "SGD: rate grows as α^(−t−1)",
    ),
    EQUIVALENCE(
        "exponential-offset",
        "jnp.power(alpha, -power * t - 1)",
        "jnp.power(alpha, -power * t)",
        "rate α^(−2t): one step late",
    ),
    EQUIVALENCE(
        "exponential-adam-b2",
        "momentum, b2 = b1 * alpha, old_b2 * alpha**2",
        "momentum, b2 = b1 * alpha, old_b2 * alpha",
        "AdamW: β₂α for β₂α²",
        ("dynamics.exponential_adamw",),
    ),
    EQUIVALENCE(
        "exponential-adam-factor",
        "(1 - b1) / (1 - momentum) * math.sqrt((1 - b2) / (1 - old_b2))",
        "(1 - b1) / (1 - momentum) * ((1 - b2) / (1 - old_b2))",
        "AdamW: constant without its root",
        ("dynamics.exponential_adamw",),
    ),
    EQUIVALENCE(
        "exponential-bias-corrections",
        "return (1 - new_b1**t) / (1 - b1**t) * jnp.sqrt(",
        "return (1 - b1**t) / (1 - new_b1**t) * jnp.sqrt(",
        "ratio of bias corrections inverted",
        ("dynamics.exponential_adamw",),
    ),
    EQUIVALENCE(
        "exponential-lion-memory",
        "ratio = b1 * alpha / (1 - b1) * (1 - b2) / (1 - b2 * alpha)",
        "ratio = b1 * alpha / (1 - b1)",
        "Lion: β₁ without the ratio of the β₂",
        ("dynamics.exponential_adamw",),
    ),
    EQUIVALENCE(
        "exponential-momentum-root",
        "alpha = (total + math.sqrt(max(total**2 - 4 * beta, 0.0))) / 2",
        "alpha = (total - math.sqrt(max(total**2 - 4 * beta, 0.0))) / 2",
        "momentum: the smaller root",
        ("dynamics.exponential_learning_rate",),
    ),
    EQUIVALENCE(
        "exponential-momentum-trace",
        "-(1 - alpha) / (rate * alpha),",
        "(1 - alpha) / (rate * alpha),",
        "momentum: first buffer with the other sign",
        ("dynamics.exponential_learning_rate",),
    ),
    EQUIVALENCE(
        "schedule-normalized",
        'return now / (before * after if optimizer == "sgd" else after)',
        'return now / (before * before if optimizer == "sgd" else after)',
        "schedule: A_t² for A_t A_{t+1}",
        ("dynamics.exponential_learning_rate",),
    ),
    EQUILIBRIUM(
        "audit-sgd-equilibrium",
        "(decay * (1 - beta) * (2 * (1 + beta) - product))",
        "(decay * (1 - beta) * 2 * (1 + beta))",
        "SGD: 2 for 2 − ηλ",
        ("dynamics.equilibrium.sgd",),
    ),
    EQUILIBRIUM(
        "audit-lars-angle",
        "return 2 * by.asin(step / 2), by.sqrt(scale",
        "return step, by.sqrt(scale",
        "LARS: ηκ for 2 arcsin(ηκ/2)",
        ("dynamics.equilibrium.lars",),
    ),
    EQUILIBRIUM(
        "audit-adamw-norm",
        "by.sqrt(square), 2 * product, 2",
        "1.02 * by.sqrt(square), 2 * product, 2",
        "AdamW: norm + 2 %",
        ("dynamics.equilibrium.adamw",),
    ),
    EQUILIBRIUM(
        "audit-lion-arcsine",
        "total += 2 * (2 / math.pi) * math.asin(covariance / variance)",
        "total += 2 * (2 / math.pi) * covariance / variance",
        "Lion: arcsin ρ ≈ ρ",
        ("dynamics.equilibrium.lion",),
    ),
    EQUILIBRIUM(
        "lion-one-sided",
        "total += 2 * (2 / math.pi) * math.asin(covariance / variance)",
        "total += (2 / math.pi) * math.asin(covariance / variance)",
        "Lion: correlations of one side only",
        ("dynamics.equilibrium.lion",),
    ),
    EQUILIBRIUM(
        "sgd-angle",
        "return angle(product / (1 + beta)), fourth",
        "return angle(product / 2 / (1 + beta)), fourth",
        "SGD: √(ηλ) for √(2ηλ)",
        ("dynamics.equilibrium.sgd",),
    ),
    EQUILIBRIUM(
        "sgd-relaxation",
        "fourth**0.25, 4 * product / (1 - beta), 4",
        "fourth**0.25, 2 * product / (1 - beta), 4",
        "SGD: relaxation 2ηλ for 4ηλ",
        ("dynamics.equilibrium.sgd",),
    ),
    EQUILIBRIUM(
        "momentum-angle",
        "return angle(product / (1 + beta)), fourth",
        "return angle(product / (1 - beta)), fourth",
        "momentum: 1 − β in the angle",
        ("dynamics.equilibrium.momentum",),
    ),
    EQUILIBRIUM(
        "adamw-angle",
        "return angle(product * (1 - beta) / (1 + kept))",
        "return angle(product)",
        "AdamW: angle without its memory",
        ("dynamics.equilibrium.adamw",),
    ),
    EQUILIBRIUM(
        "normalized-norm",
        "by.sqrt(eta / (decay * (2 - product)))",
        "by.sqrt(eta / (decay * 2))",
        "normalized gradient descent: 2 for 2 − ηλ",
        ("dynamics.equilibrium.normalized_gd",),
    ),
    EQUILIBRIUM(
        "equilibrium-warning",
        "SLOW = 0.1",
        "SLOW = 10.0",
        "no warning where the prediction is wrong",
        (),
        ("tests/training/test_tracker.py", "tests/training/test_equivalence.py"),
    ),
    RECORD(
        "record-angle",
        "angle = jnp.arctan2(jnp.sqrt(jnp.maximum(uu - jnp.square(along), 0)), norm + along)",
        "angle = jnp.arctan2(jnp.sqrt(jnp.maximum(uu - jnp.square(along), 0)), norm)",
        "angle without the radial part of the step",
    ),
    RECORD(
        "record-rate-power",
        "/ norm ** jnp.asarray([_power(move) for move in state.moves], dtype)",
        "/ norm**2",
        "effective learning rate η/‖w‖² for every optimizer",
    ),
    RECORD(
        "record-running-mean",
        "weight = (1 - MEMORY) / (1 - MEMORY ** (count + 1))",
        "weight = (1 - MEMORY) / (1 - MEMORY ** (count + 2))",
        "running mean: count off by one",
    ),
    RECORD(
        "record-divergence-again",
        "jnp.where((old.diverged_at < 0) & broken, old.step, old.diverged_at)",
        "jnp.where(broken, old.step, old.diverged_at)",
        "the last diverged step for the first",
    ),
    RECORD(
        "record-traced-sgd",
        "at_rest(move.law, now.rate, now.decay, move.memory, move.b2, scale, sizes, move.trust, jnp)",
        "at_rest(move.law, now.rate, now.decay, move.memory, move.b2, 2 * scale, sizes, move.trust, jnp)",
        "tracker: the predicted norm of twice the gradient",
    ),
    RECORD(
        "record-traced-lars",
        "for v, kept in zip(found[:2], (angle, norm), strict=True)",
        "for v, kept in zip(found[1::-1], (angle, norm), strict=True)",
        "tracker: angle and norm are exchanged",
    ),
    RECORD(
        "record-invariance-limit",
        "return ~(self.radial_spread > jnp.broadcast_to(limit, self.radial_spread.shape))",
        "return ~(self.radial_spread < jnp.broadcast_to(limit, self.radial_spread.shape))",
        "invariant and not are exchanged",
    ),
    TRACKER(
        "tracker-updates-recorded",
        "record(state, params, following, updates, None if rate is None else present)",
        "record(state, params, following, following, None if rate is None else present)",
        "updates recorded as gradients",
    ),
    TRACKER(
        "tracker-due",
        "due = old.step % state.every == state.offset",
        "due = old.step % state.every == state.offset + 1",
        "records one step late",
    ),
    TRACKER(
        "tracker-history-order",
        "shift = -(geometry.records % geometry.history_steps.shape[0])",
        "shift = geometry.records % geometry.history_steps.shape[0]",
        "history rolled the other way",
    ),
    RECURSIONS(
        "detect-momentum",
        'Recursion("sgd", lambda x: x, ((),), 2.0)',
        'Recursion("momentum", lambda x: x, ((),), 2.0)',
        "SGD taken for momentum",
    ),
    DETECT(
        "detect-rate-sign",
        "float(-base / ones[0] / (size if recursion.power == 2.0 else 1))",
        "float(base / ones[0] / (size if recursion.power == 2.0 else 1))",
        "a rate with the other sign",
    ),
    GROUPS(
        "groups-not-minimal",
        "if not any(set(known) <= set(chosen) for known in found) and vanishes(chosen):",
        "if not any(set(known) == set(chosen) for known in found) and vanishes(chosen):",
        "supersets of invariant sets are named too",
    ),
    GROUPS(
        "groups-threshold",
        "return bool(np.max(np.abs(sum(parts))) <= rounding * scale)",
        "return bool(np.max(np.abs(sum(parts))) <= 1e-1 * scale)",
        "invariant to a tenth",
    ),
    GROUPS(
        "groups-vectors",
        "if jnp.ndim(v) >= 2 and jnp.issubdtype",
        "if jnp.ndim(v) >= 1 and jnp.issubdtype",
        "vectors count as scale-invariant",
    ),
)
