"""Salimans and Kingma (2016), *Weight Normalization*: w = g v/‖v‖ for the weights v of a unit and a scalar g."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import sympy as sp
from jaxtyping import Array, Float
from sympy import Expr, KroneckerDelta

from lngeom.claims import Paper, Problem, Read, Verdict, agree, differ, same_integer, vanishes
from lngeom.claims.context import Context, Reading
from lngeom.methods import BatchNorm, WeightNorm
from lngeom.papers.training.learning_rate import momentum_norm_growth_proof
from lngeom.symbolic.jacobian import LAYER
from lngeom.symbolic.layers import BATCH_NORM, WEIGHT_NORM
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, fact, matrix, refutation
from lngeom.symbolic.scale_free import RATE, dot, minus, perpendicular
from lngeom.symbolic.sums import D, Field, N, derivative, e, field, i, mean, n, total

PAPER = Paper(
    "salimans2016",
    "Weight Normalization: A Simple Reparameterization to Accelerate Training of Deep Neural Networks",
    ("Tim Salimans", "Diederik P. Kingma"),
    2016,
    "1602.07868",
    "On the directions that are left, the projected covariance of the gradient is never worse conditioned than the "
    "covariance was; but Adam, unlike gradient descent, may shorten v.",
)


def loss(w: Float[Array, " D"], inputs: Float[Array, "N D"]) -> Float[Array, ""]:
    """A smooth loss of the summed inputs of one unit, which differs between cases."""
    return jnp.mean(jnp.cos(inputs @ w + jnp.arange(len(inputs)).astype(w.dtype)))


def weights(v: Float[Array, " D"], g: Float[Array, ""]) -> Float[Array, " D"]:
    """W = g v/‖v‖."""
    return g * v / jnp.linalg.norm(v)


@jax.jit
def _gradients(v, g, inputs):
    """∇_w L, and (∇_v L, ∇_g L)."""
    return jax.grad(loss)(weights(v, g), inputs), jax.grad(lambda v, g: loss(weights(v, g), inputs), (0, 1))(v, g)


def slopes(problem: Problem):
    """v, g, ∇_w L, and by automatic differentiation (∇_v L, ∇_g L)."""
    _, params, inputs = problem.small("wn", shape=(60, 6, 4))
    v, g = params.weights[0], jnp.asarray(1.7, inputs.dtype)
    at_w, at_parts = _gradients(v, g, inputs)
    return v, g, at_w, at_parts


def eq3_gradients(v, g, at_w):
    """The gradients of Eq. 3 by ∇_w L."""
    norm = jnp.linalg.norm(v)
    by_g = at_w @ v / norm
    return g / norm * at_w - g * by_g / norm**2 * v, by_g


def projection(w: Float[Array, " D"]) -> Float[Array, "D D"]:
    """M_w = I − wwᵀ/‖w‖²."""
    return jnp.eye(len(w), dtype=w.dtype) - jnp.outer(w, w) / (w @ w)


# --- Proofs: ∇_w L is arbitrary.

V, G, AT_W = field("v"), sp.Symbol("g", real=True), field(r"\ell")
W = field("w")


def _norm(v: Field) -> Expr:
    return sp.sqrt(dot(v, v))


def _along_v(d) -> Expr:
    """∇_v L as Eq. 3 has it."""
    by_g = dot(AT_W, V) / _norm(V)
    return G / _norm(V) * AT_W(d) - G * by_g / _norm(V) ** 2 * V(d)


@PAPER.claim(
    "salimans2016.eq3",
    source="Eq. 3",
    statement="∇_g L = ∇_w L·v/‖v‖ and ∇_v L = (g/‖v‖) ∇_w L − (g ∇_g L/‖v‖²) v.",
    formula=r"\nabla_v L = \frac{g}{\|v\|}\nabla_w L - \frac{g\nabla_g L}{\|v\|^2}v",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def eq3(problem: Problem):
    """Against automatic differentiation."""
    v, g, at_w, (by_v, by_g) = slopes(problem)
    stated_v, stated_g = eq3_gradients(v, g, at_w)
    yield agree("∇_v L", by_v, stated_v)
    yield agree("∇_g L", by_g[None], stated_g[None])


@eq3.proof()
def eq3_proof() -> Proof:
    """The chain rule."""
    change = field("u")
    moved = lambda d: derivative(lambda t: G * (V(d) + t * change(d)) / _norm(lambda b: V(b) + t * change(b)))
    by_g = dot(AT_W, V) / _norm(V)
    return Proof(
        r"\nabla_v L = \frac{g}{\|v\|}\nabla_w L - \frac{g\nabla_g L}{\|v\|^2}v",
        (
            equality(
                "With ∇_w L = ℓ, the derivative by g",
                total(lambda d: AT_W(d) * (G * V(d) / _norm(V)).diff(G), D),
                by_g,
                r"\nabla_g L",
            ),
            equality(
                "and along a change u of v",
                total(lambda d: AT_W(d) * moved(d), D),
                dot(_along_v, change),
                r"\langle\nabla_v L, u\rangle",
            ),
        ),
        (Assumption("v is not zero", r"v \neq 0"),),
    )


@PAPER.claim(
    "salimans2016.eq4",
    source="Eq. 4",
    statement="∇_v L = (g/‖v‖) M_w ∇_w L with M_w = I − wwᵀ/‖w‖²: weight normalization projects the gradient away from "
    "the current weight vector.",
    formula=r"\nabla_v L = \frac{g}{\|v\|}M_w\nabla_w L",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def eq4(problem: Problem):
    """Against automatic differentiation; and the product with v."""
    v, g, at_w, (by_v, _) = slopes(problem)
    norm = jnp.linalg.norm(v)
    yield agree("∇_v L", by_v, g / norm * projection(weights(v, g)) @ at_w)
    yield vanishes("⟨v, ∇_v L⟩", by_v @ v, scale=float(norm * jnp.linalg.norm(by_v)))


@eq4.proof()
def eq4_proof() -> Proof:
    """Eq. 3 with w = g v/‖v‖ put in."""
    w = lambda d: G * V(d) / _norm(V)
    projected = lambda d: AT_W(d) - w(d) * dot(w, AT_W) / dot(w, w)
    return Proof(
        r"\nabla_v L = \frac{g}{\|v\|}M_w\nabla_w L",
        (
            equality(
                "Eq. 3 is a multiple of the projected gradient",
                _along_v(e),
                G / _norm(V) * projected(e),
                r"\nabla_{v_e} L",
            ),
            equality("which is orthogonal to v", dot(_along_v, V), 0, r"\langle v, \nabla_v L\rangle"),
        ),
        (Assumption("v and g are not zero", r"v \neq 0,\ g \neq 0"),),
    )


def path(problem: Problem, optimizer: optax.GradientTransformation, steps: int = 60, runs: int = 1):
    """Norms of v [run, step] and of the changes of v, along training of (v, g) by optax."""
    inputs = problem.small("wn", shape=(60, 6, 4)).inputs
    starts = problem.normal("salimans2016.starts", runs, 6)

    def one(v):
        params = (v, jnp.asarray(1.7, v.dtype))

        def step(carry, _):
            params, state = carry
            found = jax.grad(lambda p: loss(weights(*p), inputs))(params)
            updates, state = optimizer.update(found, state, params)
            after = optax.apply_updates(params, updates)
            return (after, state), (jnp.linalg.norm(after[0]), jnp.linalg.norm(updates[0]))  # pyright: ignore

        with jax.numpy_dtype_promotion("standard"):
            norms, changes = jax.lax.scan(step, (params, optimizer.init(params)), length=steps)[1]
        return jnp.concatenate([jnp.linalg.norm(v)[None], norms]), changes

    return jax.jit(jax.vmap(one))(starts)


def growth(ratio):
    """‖v⁺‖/‖v‖ by c = ‖Δv‖/‖v‖."""
    return jnp.sqrt(1 + ratio**2)


@PAPER.claim(
    "salimans2016.growth",
    source="Section 2.1",
    statement="A step of gradient descent multiplies ‖v‖ by √(1 + c²), c = ‖Δv‖/‖v‖.",
    formula=r"\|v^+\| = \sqrt{1 + c^2}\,\|v\|",
    assumptions=("plain gradient descent",),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def norm_growth(problem: Problem):
    """Along 60 steps at a large rate."""
    norms, changes = path(problem, optax.sgd(3.0))
    yield agree("‖v⁺‖ and √(1 + c²) ‖v‖", norms[:, 1:], growth(changes / norms[:, :-1]) * norms[:, :-1])
    yield differ("‖v‖ at the end and at the start", norms[:, -1], norms[:, 0])


def _pythagoras() -> tuple[Step, Step]:
    w, r = field("v"), field("r")
    gradient = perpendicular(field("u"), w)
    after = minus(w, RATE, r)
    return (
        equality("A gradient is orthogonal to v by Eq. 4", dot(w, gradient), 0, r"\langle v,\nabla_v L\rangle"),
        equality(
            "so a step −ηr, r = ∇_v L, adds its square",
            dot(after, after),
            dot(w, w) + RATE**2 * dot(r, r),
            r"\lVert v^+\rVert^2",
            {"r": gradient},
        ),
    )


@norm_growth.proof()
def growth_proof() -> Proof:
    """Pythagoras."""
    return Proof(r"\|v^+\|^2 = (1 + c^2)\,\|v\|^2,\ c = \|\Delta v\|/\|v\|", _pythagoras())


def falls(norms: Float[Array, "R T"]) -> int:
    """Steps after which the norm is smaller than before, by more than rounding."""
    return int(jnp.sum(norms[:, 1:] < norms[:, :-1] * (1 - 1e-12)))


@PAPER.claim(
    "salimans2016.monotone",
    source="Section 2.1",
    statement="The norm of v grows monotonically with the number of weight updates.",
    assumptions=("gradient descent without momentum; with momentum it holds, too, and not for Adam",),
    context=Context(
        sentence="… the norm of v grows monotonically with the number of weight updates …",
        before="… Δv is necessarily orthogonal to the current weight vector w since we project away from it when "
        "calculating ∇_v L …",
        after="[The end of the sentence, which was read in notes only, speaks of plain gradient descent without "
        "momentum.]",
        readings=(Reading("The updates are steps of gradient descent.", Verdict.HOLDS),),
        verdict="So it holds, and with momentum, too. A step of Adam is not orthogonal to v, and its first, along the "
        "sign of the gradient, can shorten v.",
    ),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def monotone(problem: Problem):
    """20 runs of 60 steps each: falls of ‖v‖ under SGD, momentum and Adam."""
    runs = {
        "SGD": optax.sgd(1.0),
        "momentum": optax.sgd(0.3, momentum=0.9),
    }
    for name, optimizer in runs.items():
        yield same_integer(f"{name}: steps at which ‖v‖ falls", falls(path(problem, optimizer, runs=20)[0]), 0)
    found = falls(path(problem, optax.adam(0.02), runs=20)[0])
    yield differ(f"Adam, whose steps are others: steps at which ‖v‖ falls, {found} of 1200", float(found), 0.0)


@monotone.proof()
def monotone_proof() -> Proof:
    """Pythagoras; momentum adds products of steps with the weights that are not negative."""

    def shorter(values) -> tuple[Expr, Expr]:
        v, gradient = sp.Matrix(values["v"]), sp.Matrix(values[r"\nabla_v L"])
        assert v.dot(gradient) == 0
        after = v - values[r"\eta"] * gradient.applyfunc(sp.sign)
        return sp.Min(after.dot(after), v.dot(v)), v.dot(v)

    adam = Counterexample(
        "salimans2016.monotone under Adam",
        r"\min(\|v^+\|^2, \|v\|^2) = \|v\|^2",
        {"v": matrix([[2], [1]]), r"\nabla_v L": matrix([[1], [-2]]), r"\eta": sp.Rational(1, 10)},
        shorter,
        "The smaller of ‖v⁺‖² and ‖v‖² (left), and ‖v‖² (right), after Adam's first step: the sign of the gradient.",
    )
    return Proof(
        r"\|v_{t+1}\|^2 = \|v_t\|^2 + \eta^2\|p_t\|^2 + 2\eta^2\sum_{k<t}\beta^{t-k}\|p_k\|^2 \geq \|v_t\|^2",
        (
            *_pythagoras(),
            *momentum_norm_growth_proof().steps,
            refutation("Under Adam the norm can fall", adam),
        ),
        (Assumption("gradient descent, with or without momentum", r"\Delta v = -\eta p_t"),),
    )


def whitened(inputs: Float[Array, "N D"]) -> Float[Array, "N D"]:
    """Inputs with mean 0 and covariance I, by their singular vectors."""
    left, _, right = jnp.linalg.svd(inputs - inputs.mean(0, keepdims=True), full_matrices=False)
    return len(inputs) ** 0.5 * left @ right


@PAPER.claim(
    "salimans2016.whitened",
    source="Section 2.2",
    statement="On whitened inputs, weight normalization of a single layer is batch normalization.",
    assumptions=("inputs have mean 0 and covariance I on the very batch",),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def white(problem: Problem):
    """Values, and gradients of a loss by the weights, with whitened inputs and with inputs as they are."""
    _, params, inputs = problem.small("wn", shape=(40, 6, 4))
    white = whitened(inputs)

    def value(weights, inputs, method):
        outputs = method(weights, inputs)
        shift = jnp.arange(outputs.size).reshape(outputs.shape).astype(outputs.dtype)
        return jnp.sum(jnp.cos(outputs + shift)), outputs

    slope = jax.jit(jax.grad(value, has_aux=True), static_argnums=2)
    (by_wn, wn), (by_bn, bn) = (slope(params.weights, white, method) for method in (WeightNorm(), BatchNorm()))
    yield agree("values", wn, bn)
    yield agree("gradients by the weights", by_wn, by_bn)
    yield differ("inputs as they are", *(method(params.weights, inputs) for method in (WeightNorm(), BatchNorm())))


@white.proof()
def whitened_proof() -> Proof:
    """The mean over the batch is w·E[x] and the variance wᵀ Cov(x) w."""
    centre = lambda d: mean(lambda m: LAYER.X(m, d), N)
    covariance = lambda d, b: mean(lambda m: (LAYER.X(m, d) - centre(d)) * (LAYER.X(m, b) - centre(b)), N)
    form = lambda C: total(lambda d: total(lambda b: LAYER.W(i, d) * LAYER.W(i, b) * C(d, b), D), D)
    return Proof(
        r"\mathrm{E}[x] = 0,\ \mathrm{Cov}(x) = I \Rightarrow \mathrm{BN}(Wx) = \mathrm{WN}(Wx)",
        (
            equality(
                "Batch norm's numerator is the summed input, less the weights on the mean input",
                BATCH_NORM.numerator(LAYER),
                LAYER.a(n, i) - total(lambda d: LAYER.W(i, d) * centre(d), D),
                r"a_{ni} - \mu_i",
            ),
            equality("its variance is a form of the covariance", BATCH_NORM.square(LAYER), form(covariance), "v_i"),
            equality(
                "which for Cov(x) = I is weight norm's square",
                form(KroneckerDelta),
                WEIGHT_NORM.square(LAYER),
                r"w_i^\top I w_i",
            ),
        ),
        (Assumption("whitened inputs", r"\mathrm{E}[x] = 0,\ \mathrm{Cov}(x) = I"),),
    )


def condition(C: Float[np.ndarray, "D D"], w: Float[np.ndarray, " D"]) -> float:
    """Condition number of M_w C M_w on the directions orthogonal to w."""
    basis = np.linalg.svd(w[None, :])[2][1:]
    values = np.linalg.eigvalsh(basis @ C @ basis.T)
    return values[-1] / values[0]


def covariances(seed: int, count: int = 300, size: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Random covariances and weights."""
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((count, size, 2 * size)) * np.exp(rng.standard_normal((count, size, 1)))
    return roots @ roots.transpose(0, 2, 1) / (2 * size), rng.standard_normal((count, size))


@PAPER.claim(
    "salimans2016.covariance",
    source="Section 2.1",
    statement="The projection brings the covariance matrix C of the gradient closer to identity: on the directions "
    "orthogonal to w, its condition number is at most that of C.",
    formula=r"\kappa(M_wCM_w|_{w^\perp}) \leq \kappa(C)",
    assumptions=("closeness to the identity is measured by the condition number on w⊥",),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def covariance(problem: Problem):
    """300 random covariances and weights; and weights orthogonal to both extreme eigenvectors, which change nothing."""
    C, w = covariances(problem.seed)
    before = np.linalg.cond(C)
    after = np.array([condition(*pair) for pair in zip(C, w, strict=True)])
    yield vanishes("excess of κ over that of C", np.maximum(after / before - 1, 0), scale=1.0)
    yield differ("κ after and before", after, before)
    vectors = np.linalg.eigh(C)[1]
    middle = np.array([condition(*pair) for pair in zip(C, vectors[:, :, 2], strict=True)])
    yield agree("κ, w orthogonal to both extreme eigenvectors, relative", middle / before, np.ones(len(C)), tol=1e-9)


@covariance.proof()
def covariance_proof() -> Proof:
    """The form of the projected covariance is that of C on w⊥, and a form lies between the extreme eigenvalues."""
    C, w, r = field("C"), field("w"), field("r")
    unit = perpendicular(r, w)
    projected = lambda d: r(d) - dot(w, r) / dot(w, w) * w(d)
    form = lambda left, right: total(lambda d: total(lambda b: left(d) * C(d, b) * right(b), D), D)
    q = field("q")
    eigenvalue, low, gap = field(r"\mu"), sp.Symbol("m", real=True), sp.Symbol("a", nonnegative=True)
    return Proof(
        r"\lambda_{\min}(C)\|u\|^2 \leq u^\top M_wCM_wu = u^\top Cu \leq \lambda_{\max}(C)\|u\|^2,\quad u \perp w",
        (
            equality("A vector u without its part along w is orthogonal to w", dot(unit, w), 0, r"\langle u, w\rangle"),
            equality(
                "and left as it is by M_w",
                unit(e) - dot(w, unit) / dot(w, w) * w(e),
                projected(e),
                r"(M_wu)_e",
            ),
            equality(
                "so M_w C M_w has the form of C on w⊥", form(projected, projected), form(unit, unit), r"u^\top Cu"
            ),
            equality(
                "In coordinates q along eigenvectors, the form exceeds m‖q‖² by a sum",
                total(lambda d: eigenvalue(d) * q(d) ** 2, D) - low * dot(q, q),
                total(lambda d: (eigenvalue(d) - low) * q(d) ** 2, D),
            ),
            fact(
                "each of whose terms is not negative where m is the smallest eigenvalue; the same for the largest",
                r"(\mu_d - m)\,q_d^2 \geq 0",
                lambda: (gap * sp.Symbol("q", real=True) ** 2).is_nonnegative is True,
            ),
        ),
        (Assumption("C is symmetric and positive definite", r"C \succ 0"),),
    )


def initial(t: Float[Array, "N H"]) -> tuple[Array, Array]:
    """The data-dependent gain 1/σ and bias −μ/σ."""
    return 1 / jnp.std(t, 0), -jnp.mean(t, 0) / jnp.std(t, 0)


@PAPER.claim(
    "salimans2016.data_init",
    source="Eqs. 5 and 6",
    statement="With g = 1/σ[t] and b = −μ[t]/σ[t], t = v·x/‖v‖, all summed inputs have mean 0 and variance 1 on the "
    "first batch.",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def data_init(problem: Problem):
    """On the data."""
    _, params, inputs = problem.case("wn")
    t = WeightNorm()(params.weights, inputs)
    g, b = initial(t)
    z = g[None, :] * t + b[None, :]
    yield vanishes("means", z.mean(0), scale=1.0)
    yield agree("variances", z.var(0), jnp.ones(len(b), z.dtype))


@data_init.proof()
def data_init_proof() -> Proof:
    """By definition."""
    t = field("t")
    centre = mean(t, N)
    scale = sp.sqrt(mean(lambda m: (t(m) - centre) ** 2, N))
    z = lambda m: t(m) / scale - centre / scale
    return Proof(
        r"\mathrm{mean}_n(gt_n + b) = 0,\quad \mathrm{mean}_n(gt_n + b)^2 = 1",
        (
            equality("The mean", mean(z, N), 0, r"\mathrm{mean}_n z_n"),
            equality("and the mean square", mean(lambda m: z(m) ** 2, N), 1, r"\mathrm{mean}_n z_n^2"),
        ),
    )
