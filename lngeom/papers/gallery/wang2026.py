"""Wang et al. (2026), *Negligible in Size, Significant in Effect*: scale vectors under gradient flow.

A linear layer W after a norm with gain γ: f = W(γ ⊙ n), so W_eff = W diag(γ); G = ∂L/∂W_eff.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jaxtyping import Float

from lngeom._core.draws import draw_small
from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree, differ, vanishes
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, expanded
from lngeom.symbolic.scale_free import DECAY
from lngeom.symbolic.sums import D, H, d, derivative, field, i, total

PAPER = Paper(
    "wang2026",
    "Negligible in Size, Significant in Effect: On Scale Vectors in Large Language Models",
    ("Mingze Wang", "Shuchen Zhu", "Yuxin Fang", "Binghui Li", "Kai Shen", "Shu Zhong"),
    2026,
    "2605.26895",
    "Under gradient flow γ_j² − ‖W_:j‖² is conserved: this law is the self-amplification, and it lets γ fall below 1 "
    "where the columns of W shrink.",
)
OUTPUTS, WIDTH, SAMPLES = 4, 5, 40
"""m, d and N of the random problems."""


def read_linearly(weights, inputs):
    """The layer after the norm, W n."""
    return inputs @ weights.T


@PAPER.claim(
    "wang2026.absorbed",
    source="Abstract",
    statement="In Pre-Norm architectures a scale vector adds no expressivity.",
    formula=r"W(\gamma \odot n) = (W\,\mathrm{diag}\,\gamma)\,n",
    assumptions=("every reader of the normalized state is linear",),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
)
def absorbed(problem: Problem):
    """Outputs on the data with a scale vector, and with it inside the weights."""
    model, params, inputs = problem.case("ln")
    n = np.asarray(model.normalized(params, inputs))
    draw = np.random.default_rng(problem.seed)
    weights, gain = draw.standard_normal((OUTPUTS, n.shape[1])), np.exp(draw.standard_normal(n.shape[1]))
    yield agree("W(γ ⊙ n) and (W diag γ) n", read_linearly(weights, gain * n), read_linearly(weights * gain, n))


@absorbed.proof()
def absorbed_proof() -> Proof:
    """The same sum."""
    W, gain, output = field("W"), field("g"), field("n")
    inside = lambda l: W(i, l) * gain(l)
    return Proof(
        r"W(\gamma \odot n) = (W\,\mathrm{diag}\,\gamma)\,n",
        (
            equality(
                "Each output is that of the weights W diag γ without a scale vector",
                total(lambda l: W(i, l) * (gain(l) * output(l)), D),
                total(lambda l: inside(l) * output(l), D),
                r"(W(\gamma \odot n))_i",
            ),
        ),
    )


def gradients(weights, gain, loss):
    """∂L/∂W, ∂L/∂γ and G = ∂L/∂W_eff by automatic differentiation."""
    by_weights, by_gain = jax.grad(lambda w, g: loss(w * g[None, :]), (0, 1))(weights, gain)
    return by_weights, by_gain, jax.grad(loss)(weights * gain[None, :])


def preconditioned(weights, gain, gradient):
    """P_j G_:j with P_j = γ_j² I + W_:j W_:jᵀ, for all columns j."""
    return gain[None, :] ** 2 * gradient + weights * jnp.sum(weights * gradient, 0)[None, :]


@PAPER.claim(
    "wang2026.preconditioner",
    source="Abstract: self-amplifying preconditioning effect",
    statement="Under gradient flow of W and γ the effective weights move by Ẇ_eff,:j = −P_j G_:j, P_j = γ_j² I + "
    "W_:j W_:jᵀ.",
    formula=r"P_j = \gamma_j^2 I + W_{:j}W_{:j}^\top",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def preconditioner(problem: Problem):
    """The velocity of W diag γ by the product rule of automatic differentiation, and the formula."""
    keys = jax.random.split(problem.key("wang2026"), 3)
    weights = draw_small(jax.random.normal, keys[0], (OUTPUTS, WIDTH), float)
    gain = jnp.exp(draw_small(jax.random.normal, keys[1], (WIDTH,), float))
    mixing = draw_small(jax.random.normal, keys[2], (WIDTH, 3), float)

    @jax.jit
    def velocities(weights, gain):
        by_weights, by_gain, gradient = gradients(weights, gain, lambda w: jnp.sum(jnp.cos(w @ mixing)))
        product = lambda w, g: w * g[None, :]
        return jax.jvp(product, (weights, gain), (-by_weights, -by_gain))[1], gradient

    found, gradient = velocities(weights, gain)
    yield agree("d(W diag γ)/dt and −P_j G_:j", found, -preconditioned(weights, gain, gradient))


WEIGHTS, GAIN, GRADIENT = field("W"), field("g"), field("G")


def product_with_gradient(j) -> sp.Expr:
    """W_:j · G_:j, which is ∂L/∂γ_j."""
    return total(lambda l: WEIGHTS(l, j) * GRADIENT(l, j), H)


def moved_weights(l, j, t, decay: sp.Expr = sp.S.Zero) -> sp.Expr:
    """W_lj after a time t of gradient flow, to first order."""
    return WEIGHTS(l, j) - t * (GRADIENT(l, j) * GAIN(j) + decay * WEIGHTS(l, j))


def moved_gain(j, t, decay: sp.Expr = sp.S.Zero) -> sp.Expr:
    """γ_j after a time t of gradient flow, to first order."""
    return GAIN(j) - t * (product_with_gradient(j) + decay * GAIN(j))


def balance(t, decay: sp.Expr = sp.S.Zero) -> sp.Expr:
    """γ_j² − ‖W_:j‖² after a time t, to first order."""
    return moved_gain(d, t, decay) ** 2 - total(lambda l: moved_weights(l, d, t, decay) ** 2, H)


def chain_step() -> Step:
    """∂L/∂γ_j is a product with ∂L/∂W_eff."""
    V = field("V")
    change = lambda l, t: WEIGHTS(l, d) * (GAIN(d) + t * V(d)) - WEIGHTS(l, d) * GAIN(d)
    return equality(
        "L changes with γ_j by W_:j · G_:j",
        derivative(lambda t: total(lambda l: GRADIENT(l, d) * change(l, t), H)),
        V(d) * product_with_gradient(d),
        r"dL[\gamma_d]",
    )


@preconditioner.proof()
def preconditioner_proof() -> Proof:
    """The product rule."""
    return Proof(
        r"\dot W_{\mathrm{eff},:j} = -(\gamma_j^2 I + W_{:j}W_{:j}^\top)\,G_{:j}",
        (
            chain_step(),
            equality(
                "The product rule for W_ij γ_j",
                derivative(lambda t: moved_weights(i, d, t) * moved_gain(d, t)),
                -(GAIN(d) ** 2 * GRADIENT(i, d)) - WEIGHTS(i, d) * product_with_gradient(d),
                r"\dot W_{\mathrm{eff},id}",
            ),
        ),
    )


class Flow(NamedTuple):
    """Gradient flow of ½ mean |W(γ ⊙ n) − y|² in many random problems.

    Attributes:
        weights: W at each time [T S m d].
        gain: γ at each time [T S d].
        times: [T].
    """

    weights: Float[np.ndarray, "T S m d"]
    gain: Float[np.ndarray, "T S d"]
    times: Float[np.ndarray, " T"]

    @property
    def balance(self) -> Float[np.ndarray, "T S d"]:
        """γ_j² − ‖W_:j‖²."""
        return self.gain**2 - np.sum(self.weights**2, 2)


def decays(decay: float) -> tuple[float, float]:
    """The weight decay of W and of γ."""
    return decay, decay


def flow(problem: Problem, runs: int, *, size: float = 1.0, decay: float = 0.0, step: float = 0.005) -> Flow:
    """Runge–Kutta of order 4, to t = 5.

    Args:
        problem: its seed draws inputs, targets and weights; γ begins at 1.
        runs: number S of problems.
        size: of the entries of W at the start.
        decay: weight decay.
        step: of the time.

    Returns:
        The flow.
    """
    draw = np.random.default_rng(problem.seed)
    n = draw.standard_normal((runs, SAMPLES, WIDTH))
    y = 2 * draw.standard_normal((runs, SAMPLES, OUTPUTS))
    moments, products = n.swapaxes(1, 2) @ n / SAMPLES, y.swapaxes(1, 2) @ n / SAMPLES
    of_weights, of_gain = decays(decay)

    def velocity(weights, gain):
        gradient = (weights * gain[:, None]) @ moments - products
        return (
            -gradient * gain[:, None] - of_weights * weights,
            -np.sum(weights * gradient, 1) - of_gain * gain,
        )

    weights, gain = size * draw.standard_normal((runs, OUTPUTS, WIDTH)), np.ones((runs, WIDTH))
    path = [(weights, gain)]
    for _ in range(round(5 / step)):
        slopes = [velocity(weights, gain)]
        for part in (0.5, 0.5, 1.0):
            slopes.append(velocity(weights + part * step * slopes[-1][0], gain + part * step * slopes[-1][1]))
        a, b, c, e = slopes
        weights = weights + step / 6 * (a[0] + 2 * b[0] + 2 * c[0] + e[0])
        gain = gain + step / 6 * (a[1] + 2 * b[1] + 2 * c[1] + e[1])
        path.append((weights, gain))
    return Flow(*(np.array(part) for part in zip(*path, strict=True)), np.arange(len(path)) * step)


def least_eigenvalues(weights: Float[np.ndarray, "... m d"], gain: Float[np.ndarray, "... d"]):
    """The smallest eigenvalue of each P_j, from the matrix."""
    columns = np.swapaxes(weights, -1, -2)
    P = gain[..., None, None] ** 2 * np.eye(weights.shape[-2]) + columns[..., :, None] * columns[..., None, :]
    return np.linalg.eigvalsh(P)[..., 0]


def start() -> float:
    """Size of the entries of W(0) for which the bound is claimed."""
    return 0.0


@PAPER.claim(
    "wang2026.at_least_one",
    source="beyond the paper, whose Theorem 2.2 was not read",
    statement="The smallest eigenvalue of the preconditioner is γ_j², and at least 1 during training.",
    formula=r"\lambda_{\min}(P_j) = \gamma_j^2 \geq 1",
    assumptions=("γ(0) = 1 and W(0) = 0: then γ_j² = 1 + ‖W_:j‖²", "m ≥ 2"),
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
)
def at_least_one(problem: Problem):
    """Gradient flow to t = 5 from W(0) = 0, and 200 runs from random W(0)."""
    found = flow(problem, 20, size=start())
    late = found.weights[::100], found.gain[::100]
    least = least_eigenvalues(*late)
    yield agree("W(0) = 0: λ_min(P_j) and γ_j², 20 runs", least, late[1] ** 2)
    yield vanishes("W(0) = 0: how far λ_min(P_j) falls below 1", np.maximum(1 - least, 0), scale=1.0)
    gain = flow(problem, 200, step=0.02).gain
    below = np.mean(np.min(gain**2, (0, 2)) < 1)
    yield differ(
        f"random W(0): least γ_j², below 1 in {below:.0%} of 200 runs",
        np.min(gain**2),
        1.0,
        role=Role.FAILS_WITHOUT_CONDITION,
    )


@at_least_one.proof("conditional")
def at_least_one_proof() -> Proof:
    """γ_j² is the value of P_j across W_:j, and follows ‖W_:j‖² by the conserved difference."""
    v = field("v")
    form = lambda l: v(l) * (GAIN(d) ** 2 * v(l) + WEIGHTS(l, d) * total(lambda m: WEIGHTS(m, d) * v(m), H))
    return Proof(
        r"\lambda_{\min}(P_j) = \gamma_j^2 = 1 + \|W_{:j}\|^2 - \|W_{:j}(0)\|^2",
        (
            equality(
                "vᵀP_j v is γ_j²|v|² and a square, which is 0 for v across W_:j; for m ≥ 2 there is one",
                total(form, H),
                GAIN(d) ** 2 * total(lambda l: v(l) ** 2, H) + total(lambda l: WEIGHTS(l, d) * v(l), H) ** 2,
                r"v^\top P_d\,v",
            ),
            equality("γ_j² − ‖W_:j‖² does not change", derivative(balance), 0, r"\partial_t(\gamma_d^2 - |W_{:d}|^2)"),
        ),
        (
            Assumption(
                "gradient flow starts at W = 0",
                r"W(0) = 0",
                Counterexample(
                    "the bound without it",
                    r"\lim_t \gamma^2 \geq 1",
                    {"w_0": sp.Rational(1, 2)},
                    lambda values: (1 - values["w_0"] ** 2, sp.Integer(1)),
                    "L = γ²|w|²/2 (d = 1, targets 0) from γ = 1 and w = (w_0, 0): w goes to 0 and γ² to 1 − w_0² "
                    "(left), below the least value that the statement allows (right)",
                ),
            ),
        ),
    )


@PAPER.claim(
    "wang2026.conserved",
    source="beyond the paper",
    statement="Gradient flow conserves γ_j² − ‖W_:j‖² for every column; with weight decay λ on both it falls as "
    "e^{−2λt}.",
    formula=r"\gamma_j^2 - \|W_{:j}\|^2 = e^{-2\lambda t}\,(\gamma_j^2 - \|W_{:j}\|^2)_0",
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def conserved(problem: Problem):
    """Runge–Kutta to t = 5 without and with decay."""
    found = flow(problem, 20)
    start_ = found.balance[:1]
    yield agree(
        "γ_j² − ‖W_:j‖² up to t = 5, and at the start", found.balance, np.repeat(start_, len(found.times), 0), tol=1e-6
    )
    yield differ("while γ moves", found.gain[-1], found.gain[0])
    decay = 0.1
    found = flow(problem, 20, decay=decay)
    predicted = start_ * np.exp(-2 * decay * found.times)[:, None, None]
    yield agree("with decay 0.1, and e^{−2λt} of the start", found.balance, predicted, tol=1e-6)


@conserved.proof()
def conserved_proof() -> Proof:
    """γ_j ∂L/∂γ_j = W_:j · ∂L/∂W_:j."""
    t = sp.Symbol("t", positive=True)
    return Proof(
        r"\tfrac{d}{dt}(\gamma_j^2 - \|W_{:j}\|^2) = -2\lambda(\gamma_j^2 - \|W_{:j}\|^2)",
        (
            chain_step(),
            equality(
                "Moving along γ_j is moving along W_:j",
                GAIN(d) * product_with_gradient(d),
                total(lambda l: WEIGHTS(l, d) * (GRADIENT(l, d) * GAIN(d)), H),
                r"\gamma_d\,\partial L/\partial\gamma_d",
            ),
            equality("so the difference of squares is conserved", derivative(balance), 0, r"\partial_t b_d"),
            equality(
                "and with decay on both it decays itself",
                derivative(lambda s: balance(s, DECAY)),
                -2 * DECAY * balance(sp.S.Zero),
                r"\partial_t b_d(\lambda)",
            ),
            expanded(
                "whose solution is an exponential",
                r"\tfrac{d}{dt}e^{-2\lambda t} = -2\lambda\,e^{-2\lambda t}",
                sp.exp(-2 * DECAY * t).diff(t) + 2 * DECAY * sp.exp(-2 * DECAY * t),
            ),
        ),
    )


def gain_at_start() -> float:
    """The value of γ at which rates are compared."""
    return 1.0


@PAPER.claim(
    "wang2026.instantly_faster",
    source="Abstract: improved optimization",
    statement="At γ = 1 the loss falls at least as fast as without a scale vector.",
    formula=r"-\dot L = \|G\|^2 + \sum_j (W_{:j}^\top G_{:j})^2",
    assumptions=("gradient flow, at the instant where γ = 1",),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def instantly_faster(problem: Problem):
    """Rates of 50 random problems, by complex steps of the loss along the velocities."""
    draw = np.random.default_rng(problem.seed)
    n, y = draw.standard_normal((50, SAMPLES, WIDTH)), 2 * draw.standard_normal((50, SAMPLES, OUTPUTS))
    effective = draw.standard_normal((50, OUTPUTS, WIDTH))
    gain = np.full((50, 1, WIDTH), gain_at_start())
    weights = effective / gain
    loss = lambda w: np.mean(np.sum((n @ w.swapaxes(1, 2) - y) ** 2, 2), 1) / 2
    gradient = (n @ effective.swapaxes(1, 2) - y).swapaxes(1, 2) @ n / SAMPLES
    step = 1e-30j
    along = np.sum(weights * gradient, 1, keepdims=True)
    with_gain = -loss((weights - step * gradient * gain) * (gain - step * along)).imag / step.imag
    without = -loss(effective - step * gradient).imag / step.imag
    yield vanishes("how far the rate is below that without γ", np.maximum(without - with_gain, 0), scale=without.max())
    yield agree("difference of the rates and Σ_j (W_:j · G_:j)²", with_gain - without, np.sum(along**2, (1, 2)))


@instantly_faster.proof()
def instantly_faster_proof() -> Proof:
    """The preconditioner's form is that of the identity and a square."""
    rate = total(lambda l: GRADIENT(l, d) * derivative(lambda t: moved_weights(l, d, t) * moved_gain(d, t)), H)
    return Proof(
        r"-\dot L = \sum_j \gamma_j^2\|G_{:j}\|^2 + (W_{:j}^\top G_{:j})^2",
        (
            equality(
                "The share of a column in dL/dt; at γ = 1 a square is added to that of gradient flow without γ",
                rate,
                -(GAIN(d) ** 2) * total(lambda l: GRADIENT(l, d) ** 2, H) - product_with_gradient(d) ** 2,
                r"\dot L_d",
            ),
        ),
    )
