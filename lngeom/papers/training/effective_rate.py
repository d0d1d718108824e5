"""The effective learning rate of normalized networks in training: what norms and inputs do to it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lngeom import families
from lngeom.claims import Problem, Role, Verdict, agree, claim, differ, vanishes
from lngeom.claims.context import Context, Read, Reading
from lngeom.claims.problem import NORMALIZERS, TITLES
from lngeom.information import fisher
from lngeom.papers.ba2016.lg_fisher import of_any_function
from lngeom.papers.training.network import (
    Network,
    Parameters,
    logits,
    loss,
    network,
    partitioned,
    scaled,
    sgd_path,
    train,
)
from lngeom.symbolic.equivariance import follows
from lngeom.symbolic.proof import Proof
from lngeom.symbolic.scale_free import INVARIANT_METHODS, SCALE_FREE, matrix_scaling
from lngeom.training import read_geometry, track_geometry

TOPIC = "learning-rate"
SECTION = "Section 5.2.2, implicit learning rate reduction"
INVARIANT = ("bn", "wn", "ln", "rms")


@claim(
    "dynamics.norm_doubling",
    topic=TOPIC,
    source=SECTION,
    statement=(
        "For the same parameter update the norm of the weights controls the learning rate: weights twice as long turn "
        "by half the angle."
    ),
    assumptions=(
        "the update is the same, or its size is, as under Adam and Lion; under SGD and momentum the gradient is halved "
        "too, and the angle falls to 1/4",
        "small steps",
    ),
    context=Context(
        sentence=(
            "As a result, for the same parameter update in the normalized model, the norm of the weight vector "
            "effectively controls the learning rate for the weight vector."
        ),
        before=(
            "The curvature along the w_i direction will change by a factor of ½ because the σ_i will also be twice as "
            "large."
        ),
        after="During learning, it is harder to change the orientation of the weight vector with large norm.",
        readings=(
            Reading("The update of the parameters is the same at both norms, as the sentence says.", Verdict.HOLDS),
            Reading(
                "The update is a gradient step, whose gradient is halved too: the angle falls to ¼.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "Weights twice as long then turn by half the angle, to first order. Optimizers whose update has a fixed "
            "size, as Adam's, keep the condition."
        ),
    ),
    expected=Verdict.CONDITIONAL,
    why_numeric="Angles over steps of optax's own optimizers.",
)
def norm_doubling(problem: Problem):
    """Angles over ten small steps from W and from 2W after 60 steps of training."""
    net = network(problem)
    start = _at(sgd_path(net, 0.3).after, -1)
    optimizers = {
        "SGD": (optax.sgd(1e-5), 1 / 4),
        "momentum": (optax.sgd(1e-5, momentum=0.9), 1 / 4),
        "Adam": (optax.adam(1e-6, eps=0.0), 1 / 2),
        "Lion": (optax.lion(1e-6, weight_decay=0.0), 1 / 2),
    }

    def record(params, gradients, after, state):
        w, v = params["weights"], after["weights"]
        unit = w / jnp.linalg.norm(w)
        return jnp.linalg.norm(v - jnp.sum(v * unit) * unit) / jnp.linalg.norm(v)

    for name, (optimizer, factor) in optimizers.items():

        @jax.jit
        def turn(factor, optimizer=optimizer):
            return train(net, partitioned(optimizer, 0.0), scaled(start, factor), record, steps=10)

        base, doubled = turn(1.0), turn(2.0)
        halves = factor == 1 / 2
        role = Role.SUPPORTS if halves else Role.FAILS_WITHOUT_CONDITION
        text = f"{name}: angle from 2W, and {factor} of that from W"
        yield agree(text, doubled, factor * base, role=role, tol=1e-3)
        if not halves:
            yield differ(f"{name}: and ½ of it", doubled, base / 2, role=role)
    w = start["weights"]
    update = 1e-5 * problem.normal("update", *w.shape)
    angles = [
        jnp.arccos(jnp.vdot(v, v + update) / jnp.linalg.norm(v) / jnp.linalg.norm(v + update)) for v in (w, 2 * w)
    ]
    yield agree("one update: angle from 2W, and ½ of that from W", angles[1], angles[0] / 2, tol=1e-3)


@partial(jax.jit, static_argnames="method")
def _matrices(net: Network, stack: Parameters, method: str):
    """Fisher matrices of all parameters, at each of a stack of them."""
    apply = lambda p, x: logits(p, x, method)
    family = families.Categorical()
    return jax.lax.map(
        lambda p: fisher(apply, p, net.inputs, family=family, batch_coupled=method == "bn", check=False).as_matrix(),
        stack,
    )


def _stacked(*params):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)


def _at(run, step: int):
    return jax.tree.map(lambda v: v[step], run)


@claim(
    "dynamics.fisher_trained",
    topic=TOPIC,
    source=SECTION,
    statement=(
        "On a trained network the Fisher matrix scales as its blocks say: with all of W multiplied by c, weights with "
        "weights by c⁻², weights with the rest by c⁻¹, the rest unchanged."
    ),
    assumptions=("ε = 0",),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def fisher_trained(problem: Problem):
    """The Fisher matrix of all parameters after 60 steps, at W and at 3W."""
    net = network(problem)
    for method in INVARIANT:
        params = _at(sgd_path(net, 0.3, method).after, -1)
        F, larger = _matrices(net, _stacked(params, scaled(params, 3.0)), method)
        size = params["weights"].size
        rest, own = slice(0, len(F) - size), slice(len(F) - size, len(F))  # leaves in order of their names
        yield agree(f"{TITLES[method]}: weights with weights, 1/9", larger[own, own], F[own, own] / 9)
        yield agree(f"{TITLES[method]}: weights with the rest, 1/3", larger[own, rest], F[own, rest] / 3)
        yield agree(f"{TITLES[method]}: the rest", larger[rest, rest], F[rest, rest])
    yield from of_any_function(problem)


@fisher_trained.proof()
def fisher_trained_proof() -> Proof:
    """Outputs of the network stay, since it reads its weights through n alone, at trained weights as at any."""
    kept, blocks = matrix_scaling(*INVARIANT_METHODS)
    return Proof(
        r"W \mapsto cW:\ ww\ c^{-2},\quad w\text{ with the rest } c^{-1},\quad \text{the rest } c^0",
        (kept, follows("fisher", "so, for any function of n"), blocks),
        (SCALE_FREE,),
    )


@claim(
    "dynamics.fisher_spectrum",
    topic=TOPIC,
    source="Section 5.2",
    statement=(
        "Under batch, layer and RMS norm the spectrum of the Fisher matrix is the same along all of training whatever "
        "the scale of the inputs; without normalization, and under weight norm, it is not."
    ),
    assumptions=("ε = 0",),
    read=Read.OWN,
    expected=Verdict.HOLDS,
    why_numeric="Follows from table1's rescaling of the data set, which is proved; the spectra are measured.",
)
def fisher_spectrum(problem: Problem):
    """Eigenvalues at both ends of a run on the inputs and on the inputs times 3; the curves show λ_max."""
    net = network(problem)
    moments = (0, 59)
    for method in ("identity", *INVARIANT):

        def spectra(factor: float, method=method):
            on = net._replace(inputs=factor * net.inputs)
            run = sgd_path(on, 0.1, method).after
            return np.linalg.eigvalsh(np.asarray(_matrices(on, _stacked(*(_at(run, t) for t in moments)), method)))

        base, larger = spectra(1.0), spectra(3.0)
        curves = {"largest eigenvalue": (np.array(moments) + 1, base[:, -1])}
        rank = base.sum(1) / base[:, -1]
        text = f"{TITLES[method]}: trace over largest eigenvalue {rank[0]:.1f} at first and {rank[-1]:.1f} at last"
        compare = differ if method in {"identity", "wn"} else agree
        yield compare(f"{text}; eigenvalues on inputs × 1 and × 3", base, larger, curves=curves)


@partial(jax.jit, static_argnames="method")
def _learn_magnitude(net: Network, targets, factor: float, rate: float, method: str):
    """Gradient descent on the magnitudes alone: gains, or the norms of the rows where nothing is normalized.

    Gives the magnitudes after each of 60 steps, and the curvature at zero.
    """
    directions = net.params["weights"] / jnp.linalg.norm(net.params["weights"], axis=1, keepdims=True)

    def value(magnitudes):
        n = NORMALIZERS[method](directions, factor * net.inputs)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(magnitudes[None, :] * n, targets))

    def step(magnitudes, _):
        magnitudes = magnitudes - rate * jax.grad(value)(magnitudes)
        return magnitudes, magnitudes

    start = jnp.ones(len(directions), net.inputs.dtype)
    return jax.lax.scan(step, start, None, length=60)[1], jax.hessian(value)(jnp.zeros_like(start))


@claim(
    "dynamics.gain_magnitude",
    topic=TOPIC,
    source="Section 5.2.2, learning the magnitude of incoming weights",
    statement=(
        "Learning the magnitude of incoming weights through the gains is more robust to the scaling of the input than "
        "through ‖w‖ in a standard model, where its curvature is multiplied by the square of the scale."
    ),
    assumptions=("batch or layer norm; not weight norm, whose gains see the scale of the input",),
    context=Context(
        sentence=(
            "Learning the magnitude of incoming weights in the normalized model is therefore, more robust to the "
            "scaling of the input and its parameters than in the standard model."
        ),
        before=(
            "… whereas learning the gain parameters for the batch normalized and layer normalized models depends only "
            "on the magnitude of the prediction error."
        ),
        after="See Appendix for detailed derivations.",
        readings=(
            Reading("The normalized model is batch or layer norm, which the sentence before names.", Verdict.HOLDS),
            Reading(
                "Weight norm is among the normalized models, and its gains see the scale of the input.",
                Verdict.REFUTED,
            ),
        ),
        verdict="Their gains follow the same path on inputs of any scale, and the standard magnitudes do not.",
    ),
    expected=Verdict.CONDITIONAL,
    why_numeric="Eqs. 32–35, which are proved, say it of the metric; here gradient descent is followed.",
)
def gain_magnitude(problem: Problem):
    """60 steps on the magnitudes alone, on inputs × 1, × 10 and × 1000, at one learning rate."""
    net = network(problem)
    targets = jax.random.bernoulli(problem.key("targets"), 0.5, (len(net.inputs), len(net.params["weights"])))
    targets = targets.astype(net.inputs.dtype)
    for method in ("bn", "ln", "identity", "wn"):
        (base, curvature), *others = (
            _learn_magnitude(net, targets, factor, 2.0, method) for factor in (1.0, 10.0, 1e3)
        )
        for factor, (found, larger) in zip((10, 1000), others, strict=True):
            text = f"{TITLES[method]}, inputs × {factor}"
            if method in {"bn", "ln"}:
                yield agree(f"{text}: gains over 60 steps", found, base)
            elif method == "identity":
                yield agree(f"{text}: curvature by ‖w‖, over the square", larger / factor**2, curvature)
                yield differ(f"{text}: ‖w‖ after 60 steps", found[-1], base[-1])
            else:
                yield differ(f"{text}: gains after 60 steps", found[-1], base[-1], role=Role.FAILS_WITHOUT_CONDITION)


@claim(
    "text.implicit_early_stopping",
    topic=TOPIC,
    source=SECTION,
    statement=(
        "Normalization has an implicit early-stopping effect on the weight vectors: as their norm grows, the effective "
        "learning rate falls, and with it the angle that a gradient of given size turns them by."
    ),
    formula=r"\eta/\|w_t\|^2 = \eta/(\|w_0\|^2 + \eta^2\textstyle\sum_{s<t}\|\nabla_s\|^2)",
    assumptions=(
        "no weight decay",
        "SGD or momentum; not Adam, whose steps may shorten the weights",
        "the weight vector is a row of W under batch or weight norm, and all of W under layer or RMS norm: under these "
        "the norms of single rows fall in many steps",
    ),
    context=Context(
        sentence=(
            "The normalization methods, therefore, have an implicit “early stopping” effect on the weight vectors and "
            "help to stabilize learning towards convergence."
        ),
        before="During learning, it is harder to change the orientation of the weight vector with large norm.",
        after="",
        readings=(
            Reading(
                "The norm grows during training, and the effective learning rate of the direction falls with it.",
                Verdict.HOLDS,
            ),
            Reading(
                "It is meant for every optimizer, and with weight decay, under which the rate does not keep falling.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "It holds for SGD and momentum without weight decay. Weight decay and Adam may shorten the weights, which "
            "the sentence does not exclude."
        ),
    ),
    expected=Verdict.CONDITIONAL,
    why_numeric="The growth is proved (dynamics.sgd_norm_growth); that it matters in a run is measured.",
)
def implicit_early_stopping(problem: Problem):
    """The tracker of `lngeom.training` over 300 steps on minibatches, with and without weight decay."""
    net = network(problem)
    rate, decay, steps = 3.0, 0.05, 300

    def effective(optimizer, rate=rate, weight_decay=0.0, momentum=0.0):
        tracked = partitioned(
            track_geometry(
                optimizer, learning_rate=rate, weight_decay=weight_decay, groups="weights", momentum=momentum, every=1
            )
        )

        def record(params, gradients, after, state):
            found = read_geometry(state)
            return found.effective_learning_rate[0], jnp.sum(jnp.square(gradients["weights"]))

        return jax.jit(lambda: train(net, tracked, net.params, record, steps=steps))()

    rates, gradients = effective(optax.sgd(rate))
    start = jnp.sum(jnp.square(net.params["weights"]))
    predicted = rate / (start + rate**2 * (jnp.cumsum(gradients) - gradients))
    curves = {"η/‖w‖² without weight decay": (np.arange(steps), np.asarray(rates))}
    yield agree(
        f"effective rate over {steps} steps: what the tracker says, and the norm growth",
        rates,
        predicted,
        curves=curves,
    )
    yield vanishes("it never rises", jnp.maximum(jnp.diff(rates), 0), scale=float(rates[0]))
    yield differ("it falls, to less than half", jnp.minimum(2 * rates[-1:], rates[:1]), rates[:1])
    shares = {}
    for method in ("bn", "wn", "ln"):
        path = sgd_path(net, 0.3, method)
        norms = [np.linalg.norm(p["weights"], axis=2) for p in (path.params, path.after)]
        shares[method] = float(np.mean(norms[1] < norms[0] * (1 - 1e-12)))
    yield vanishes(
        "batch and weight norm: share of row-steps at which a row gets shorter", [shares["bn"], shares["wn"]], scale=1.0
    )
    yield differ(
        f"layer norm: {shares['ln']:.0%} of row-steps shorten a row",
        shares["ln"],
        0.0,
        role=Role.FAILS_WITHOUT_CONDITION,
    )
    heavy, _ = effective(optax.sgd(rate / 10, momentum=0.9), rate / 10, momentum=0.9)
    yield vanishes("momentum: it never rises", jnp.maximum(jnp.diff(heavy), 0), scale=float(heavy[0]))
    decayed, _ = effective(optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate)), weight_decay=decay)
    adaptive, _ = effective(optax.adam(0.02), 0.02, momentum=0.9)
    for text, found in (("with weight decay", decayed), ("under Adam", adaptive)):
        yield differ(
            f"{text} it rises between some steps",
            jnp.maximum(jnp.diff(found), 0) / found[0],
            jnp.zeros(steps - 1),
            role=Role.FAILS_WITHOUT_CONDITION,
        )


@claim(
    "dynamics.edge_of_stability",
    topic=TOPIC,
    source="Section 5.2.2; arXiv 2206.07085",
    statement=(
        "With normalization and weight decay, gradient descent is driven to the edge of stability and beyond: the "
        "effective rate times the largest eigenvalue of the Hessian on the unit sphere starts below 2 and ends above."
    ),
    formula=r"\frac{\eta}{\|w\|^2}\,\lambda_1(\nabla^2L(\hat w)) \gtrsim 2",
    assumptions=("the whole data set as one batch", "theory has 2 in the limit ηλ → 0; 2.5 to 5.7 were seen"),
    read=Read.OWN,
    expected=Verdict.HOLDS,
    why_numeric="Known as a measurement; the theory is of its limit.",
)
def edge_of_stability(problem: Problem):
    """The median over the second half of 10 000 steps on the weights alone; at first it is far below."""
    net = network(problem)
    rate, decay, steps = 1.0, 4e-4, 10_000

    def value(weights):
        return loss(net.params | {"weights": weights}, net.inputs, net.labels)

    @jax.jit
    def run():
        def step(weights, _):
            weights = (1 - rate * decay) * weights - rate * jax.grad(value)(weights)
            return weights, weights

        _, path = jax.lax.scan(step, net.params["weights"], None, length=steps)
        some = path[:: steps // 40]
        return jax.lax.map(lambda w: jax.hessian(value)(w).reshape(w.size, w.size), some)

    sharpness = rate * np.linalg.eigvalsh(np.asarray(run()))[:, -1] / (1 - rate * decay)
    middle = np.median(sharpness[20:], keepdims=True)
    curve = {"η_eff λ₁ on the sphere": (np.arange(40) * (steps // 40), sharpness)}
    short, ahead = np.maximum(2 - middle, 0), np.maximum(sharpness[:1] - 2, 0)
    yield vanishes(f"missing to 2 from the later median, {middle[0]:.2f}", short, scale=2.0, curves=curve)
    yield vanishes(f"at first, {sharpness[0]:.2f}: what is above 2", ahead, scale=2.0)
