"""`lg.equivariance`: what follows from a symmetry is measured, what is none is said, and each measure can fail."""

import dataclasses
import unicodedata

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import optax
import pytest
from lngeom.training import _consequences
from lngeom.training._action import Action
from lngeom.training._consequences import Loss, Measured

X = np.random.default_rng(0).normal(size=(40, 3))
GLM = {
    name: lg.NormalizedGLM(
        lg.normalizers[name](), lg.families.Categorical() if name == "bn" else lg.families.Bernoulli()
    )
    for name in ("ln", "rms", "bn", "wn")
}
THETA = GLM["ln"].init(jax.random.key(0), inputs=3, outputs=5)
NET = {
    "W": np.random.default_rng(1).normal(size=(4, 3)),
    "b": np.zeros(4),
    "V": np.random.default_rng(2).normal(size=(2, 4)),
}
GAUSSIAN = lg.families.Gaussian()
SMOOTH = ("null", "orthogonality", "hessian", "norm")
ALWAYS = ("fisher", "gradient", "sgd", "momentum", "natural_gradient")


def with_weights(p, weights):
    return lg.GLMParameters(weights, p.bias, p.gain)


def scale(c, p):
    return with_weights(p, c * p.weights)


def rows(c, p):
    return with_weights(p, c[:, None] * p.weights)


def shift(gamma, p):
    return with_weights(p, p.weights + gamma[None, :])


def network(p, x):
    return jax.nn.relu(x @ p["W"].T + p["b"][None, :]) @ p["V"].T


def rescale(s, p):
    return {"W": jnp.exp(s)[:, None] * p["W"], "b": jnp.exp(s) * p["b"], "V": jnp.exp(-s)[None, :] * p["V"]}


def permute(order, p):
    return {"W": p["W"][order], "b": p["b"][order], "V": p["V"][:, order]}


def of_scale(**given):
    return lg.equivariance(GLM["ln"], params=THETA, X=X, **{"action": scale, "identity": 1.0, **given})


@pytest.fixture(scope="module")
def rescaled():
    return lg.equivariance(network, NET, X, rescale, family=GAUSSIAN, identity=np.zeros(4))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "action", "identity", "null"),
    [
        ("ln", scale, 1.0, 1),
        ("ln", shift, np.zeros(3), 3),
        ("rms", scale, 1.0, 1),
        ("bn", rows, np.ones(5), 5),
        ("wn", rows, np.ones(5), 5),
    ],
)
def test_all_follows_from_a_symmetry_of_a_glm(name, action, identity, null):
    found = lg.equivariance(GLM[name], THETA, X, action, identity=identity)
    assert found.invariant
    assert found.holds
    assert found.null_directions == null
    assert all(found[consequence].holds for consequence in (*ALWAYS, *SMOOTH)), found
    F = lg.fisher(GLM[name], THETA, X)
    assert F.in_size() - F.rank() >= null
    orthogonal = action is shift
    assert found["sgd"].note.startswith("Dg is orthogonal: the same rate") == orthogonal


@pytest.mark.thorough
def test_the_norm_of_scaled_weights_grows_by_the_squared_steps():
    found = of_scale()
    assert "‖Aθ‖² grew by" in found["norm"].note
    by_shift = lg.equivariance(GLM["ln"], THETA, X, shift, identity=np.zeros(3))
    assert by_shift["norm"].formula == "Q(θ⁺) = Q(θ), Q = ⟨ξ, θ⟩"


def test_units_of_relu_can_be_rescaled(rescaled):
    assert rescaled.holds
    assert rescaled.null_directions == 4
    assert all(rescaled[name].holds for name in (*ALWAYS, *SMOOTH))
    assert "grew" not in rescaled["norm"].note  # ‖w‖² − ‖v‖² has no sign


@pytest.mark.thorough
def test_units_can_be_permuted_and_adam_does_not_notice():
    order = np.array([1, 2, 0, 3])
    found = lg.equivariance(
        network, NET, X, permute, family=GAUSSIAN, identity=None, elements=[order], optimizer=optax.adam(0.01)
    )
    assert found.holds
    assert not found.generators
    assert not found.null_directions
    assert [c.name for c in found.consequences] == [*ALWAYS, "optimizer"]
    assert all(c.holds for c in found.consequences)


def rotate(angle, p):
    c, s = jnp.cos(angle), jnp.sin(angle)
    R = jnp.array([[c, -s], [s, c]])
    return {"W": R @ p["W"], "V": p["V"] @ R.T}


@pytest.mark.thorough
def test_a_rotation_conserves_no_norm_and_adam_notices():
    linear = {"W": NET["W"][:2], "V": NET["V"][:, :2]}
    apply = lambda p, x: x @ p["W"].T @ p["V"].T  # noqa: E731
    found = lg.equivariance(apply, linear, X, rotate, family=GAUSSIAN, optimizer=optax.adam(0.01))
    assert found["norm"].outcome == "not measured"
    assert "antisymmetric" in found["norm"].note
    assert found["sgd"].holds
    assert found["sgd"].note.startswith("Dg is orthogonal")
    assert found["optimizer"].outcome == "fails"
    assert found.holds


def test_what_is_no_symmetry_has_no_consequences():
    found = lg.equivariance(GLM["ln"], THETA, X, rows, identity=np.ones(5))
    assert not found.invariant
    assert not found.holds
    assert not found.consequences
    assert found.invariance.residual > 0.01
    assert "nothing follows" in repr(found)
    with pytest.raises(KeyError, match="no consequence 'fisher'; there are none"):
        found["fisher"]


def test_an_invariance_at_the_parameters_alone_is_none():
    """Biases of zero hide that they are not rescaled."""
    action = lambda c, p: p | {"W": c * p["W"], "V": p["V"] / c}  # noqa: E731
    found = lg.equivariance(network, NET, X, action, family=GAUSSIAN, identity=1.0)
    assert found.here.agrees
    assert not found.invariant
    assert not found.consequences
    assert "it holds at θ itself, not near it" in repr(found)


@pytest.mark.thorough
def test_logits_of_a_softmax_may_shift():
    action = lambda s, p: lg.GLMParameters(p.weights, p.bias + s, p.gain)  # noqa: E731
    assert lg.equivariance(GLM["bn"], THETA, X, action).invariant
    assert not lg.equivariance(GLM["ln"], THETA, X, action).invariant


@pytest.mark.thorough
def test_one_sample_and_single_precision_are_enough():
    small = jax.tree.map(lambda v: v.astype(np.float32), THETA)
    found = lg.equivariance(GLM["ln"], small, X[:1].astype(np.float32), scale, identity=1.0)
    assert found.holds
    assert 1e-9 < found["fisher"].deviation < 1e-4


def test_where_nothing_depends_on_the_parameters_nothing_is_measured():
    constant = lambda p, x: 0 * x @ jax.lax.stop_gradient(p.weights).T  # noqa: E731
    found = lg.equivariance(constant, THETA, X, scale, family=GAUSSIAN, identity=1.0)
    assert found.invariant
    assert not found.holds
    assert {c.outcome for c in found.consequences} == {"not measured"}


def test_an_action_that_moves_nothing_tests_nothing():
    found = lg.equivariance(GLM["ln"], THETA, X, lambda g, p: p)
    assert not found.moving
    assert not found.holds
    assert "no element moves θ: nothing was tested" in repr(found)


@pytest.mark.thorough
def test_generators_of_zero_are_no_null_directions():
    found = of_scale(action=lambda t, p: scale(jnp.exp(t**3), p), identity=0.0)
    assert found.moving == (0, 1, 2, 3)
    assert found.null_directions == 0
    assert found["null"].outcome == "not measured"
    assert "every generator ξθ is zero, though elements move θ" in repr(found)
    assert max(map(columns, repr(found).splitlines())) <= 80


SINGLE = np.random.default_rng(3)
X32 = X.astype(np.float32)


def single(*shape):
    return SINGLE.normal(size=shape).astype(np.float32)


def product(p, x):
    return x @ p["A"] @ p["B"]


def directions_of(**given):
    """The number of null directions that is said, and the table."""
    found = lg.equivariance(product, X=single(50, 4), family=GAUSSIAN, steps=1, **given)
    assert found.invariant
    return found.null_directions, repr(found)


@pytest.mark.thorough
def test_rounding_of_generators_is_no_rank():
    params = {"A": single(4, 5), "B": single(5, 3)}
    v, M = single(3), single(5, 5)

    def action(g, p):
        of = jax.scipy.linalg.expm((g @ v) * M / 4)
        return {"A": p["A"] @ of, "B": jnp.linalg.inv(of) @ p["B"]}

    assert directions_of(action=action, params=params, identity=np.zeros(3))[0] == 1


@pytest.mark.thorough
def test_the_rank_of_random_combinations_in_single_precision():
    params = {"A": single(4, 6), "B": single(6, 3)}
    action = lambda g, p: {"A": p["A"] @ g, "B": jnp.linalg.inv(g) @ p["B"]}  # noqa: E731
    said, table = directions_of(action=action, params=params, identity=np.eye(6))
    assert said == 30
    assert "at least 30, the rank of 32 random combinations" in table


def layer_norm(epsilon):
    def apply(p, x):
        z = x @ p["W"].T
        z = z - z.mean(-1, keepdims=True)
        return z / jnp.sqrt((z * z).mean(-1, keepdims=True) + epsilon)

    return apply


def scaled(c, p):
    return {name: c * leaf for name, leaf in p.items()}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("epsilon", "said"), [(1e-6, "; a near-symmetry"), (0.1, ", rounding about "), (0.0, ", rounding")]
)
def test_a_broken_symmetry_is_told_from_rounding_in_single_precision(epsilon, said):
    params = {"W": NET["W"].astype(np.float32)}
    found = lg.equivariance(layer_norm(epsilon), params, X32, scaled, family=GAUSSIAN, identity=1.0, steps=1)
    assert found.invariant == found.holds == (epsilon == 0)
    assert ("not invariant: deviation" in repr(found)) == (epsilon > 0)
    assert said in repr(found)
    assert 1e-8 < found.invariance.rounding < 1e-5


@pytest.mark.thorough
def test_large_outputs_do_not_mask_small_ones():
    params = {"W": NET["W"], "U": NET["V"][:, :3]}
    of = layer_norm(0.0)
    mixed = lambda p, x: jnp.concatenate([1e17 * of(p, x), x @ p["U"].T], 1)  # noqa: E731
    shifted = lambda p, x: layer_norm(1e-5)(p, x) + 1e8  # noqa: E731
    for apply in (mixed, shifted):
        found = lg.equivariance(apply, params, X, scaled, family=GAUSSIAN, identity=1.0)
        assert not found.invariant
        assert "not invariant" in repr(found)


def test_outputs_lost_to_rounding_allow_no_conclusion():
    params = {"W": NET["W"].astype(np.float32)}
    apply = lambda p, x: layer_norm(0.0)(p, x) + 1e6  # noqa: E731
    found = lg.equivariance(apply, params, X32, scaled, family=GAUSSIAN, identity=1.0)
    assert not found.invariant
    assert "no conclusion" in repr(found)
    assert max(map(columns, repr(found).splitlines())) <= 80


@pytest.mark.thorough
def test_where_a_generator_is_not_null_no_direction_is_counted(monkeypatch):
    monkeypatch.setattr(Action, "generator", wrong_generator)
    found = of_scale()
    assert found["null"].outcome == "fails"
    assert found.null_directions == 0
    assert "null directions of F: no conclusion" in repr(found)


@pytest.mark.thorough
def test_runs_are_compared_at_every_element_that_moves():
    """Adam's runs are mapped by the identity and by permutations of units, not by rescaled units."""

    def action(g, p):
        return {"W": g @ p["W"], "b": g @ p["b"], "V": p["V"] @ jnp.linalg.inv(g)}

    elements = [np.eye(4), np.eye(4)[[1, 2, 0, 3]], np.diag([0.5, 1, 2, 3])]
    found = lg.equivariance(
        network, NET, X, action, family=GAUSSIAN, identity=None, elements=elements, optimizer=optax.adam(0.01)
    )
    assert found.holds
    assert found.moving == (1, 2)
    assert found["optimizer"].outcome == "fails"
    assert found["optimizer"].note == "largest at g = elements[2]"
    assert not found["sgd"].note.startswith("Dg is orthogonal")
    assert "1 of the elements acts as the identity, and tests nothing" in repr(found)


@pytest.mark.thorough
def test_one_element_that_is_not_affine_is_seen():
    def action(g, p):
        return scale(jnp.where(g > 1.5, 1 + jnp.sum(p.weights**2), g), p)

    found = of_scale(action=action, elements=[1.25, 2.0])
    assert found["sgd"].note == "gθ is not affine in θ at g = elements[1]: steps are not mapped"


@pytest.mark.thorough
def test_elements_may_be_the_rows_of_an_array():
    assert of_scale(elements=np.array([1.25, 2.0]), steps=1).moving == (0, 1)


def test_an_action_that_needs_values_is_told_of():
    with pytest.raises(jax.errors.ConcretizationTypeError) as raised:
        of_scale(action=lambda c, p: scale(float(c), p))
    assert any("write the action in jax.numpy" in note for note in raised.value.__notes__)


@dataclasses.dataclass
class Plain:
    weights: np.ndarray


def columns(line: str) -> int:
    return sum(not unicodedata.combining(letter) for letter in line)


def test_the_table_fits_a_terminal(rescaled):
    for found in (
        rescaled,
        of_scale(optimizer=optax.sgd(0.1)),
        lg.equivariance(GLM["ln"], THETA, X, scale, identity=1.0),
    ):
        lines = repr(found).splitlines()
        assert max(map(columns, lines)) <= 80
        rated = [line for line in lines if line.rstrip().endswith(("holds", "fails", "unclear", "not measured"))]
        assert len(rated) == len(found.consequences)


DOORS = {
    "not the identity": ({"identity": 0.0}, "must be the identity at g = 0; it changes 'weights'"),
    "another pytree": ({"action": lambda g, p: (p.weights,)}, "must return a pytree like params"),
    "another shape": ({"action": lambda g, p: with_weights(p, p.weights[:2])}, r"'weights' is float64\[5, 3\]; got"),
    "another dtype": ({"action": lambda g, p: with_weights(p, p.weights.astype(np.float32))}, "keep shapes and dtypes"),
    "NaN": (
        {"action": lambda g, p: with_weights(p, p.weights * jnp.where(g == 1, 1, jnp.nan))},
        "must be finite; it is not in 'weights' at g = ",
    ),
    "no function": ({"action": 3}, "action must be a function"),
    "a finite group without elements": ({"identity": None}, "elements must be a list"),
    "no elements": ({"elements": []}, "elements must be a list"),
    "an element of another shape": ({"elements": [np.ones(3)]}, r"of the shape \(\) of the identity; got an array"),
    "an identity of words": ({"identity": "one"}, "identity must be a real number"),
    "an identity of NaN": ({"identity": float("nan")}, "identity must be a real number"),
    "an integer array": ({"identity": np.ones(3, int)}, "identity must be a real number"),
    "no samples": ({"X": X[:0]}, "inputs must not be empty"),
    "responses of NaN": ({"y": np.full((40, 5), np.nan)}, "Bernoulli takes finite responses"),
    "responses of another shape": ({"y": np.zeros((40, 4))}, r"y must have shape \(40, 5\)"),
    "an optimizer's name": ({"optimizer": "adam"}, "optimizer must be one of optax"),
    "a function of no optimizer": (
        {"optimizer": lambda g: None},
        r"optimizer\(g\) must return an optimizer of optax; got NoneType at g = 1",
    ),
    "a dataclass": ({"params": Plain(np.ones((5, 3)))}, "Plain is not a pytree: register it"),
    "a complex identity": ({"identity": 1j}, "identity must be a real number"),
    "no steps": ({"steps": 0}, "steps must be a whole number of steps, at least 1"),
    "a negative tolerance": ({"tol": -1.0}, "tol must be a finite number"),
}


@pytest.mark.parametrize("door", DOORS)
def test_what_does_not_fit_is_refused(door):
    changed, message = DOORS[door]
    given = {"apply": GLM["ln"], "action": scale, "params": THETA, "X": X, "identity": 1.0} | changed
    with pytest.raises(ValueError, match=message):
        lg.equivariance(**given)


@pytest.mark.thorough
def test_what_is_no_parameter_must_stay():
    params = {"W": NET["W"], "count": np.array(3)}
    apply = lambda p, x: x @ (p["W"] / jnp.linalg.norm(p["W"])).T  # noqa: E731
    for more in (0, 1):
        action = lambda c, p, more=more: {"W": c * p["W"], "count": p["count"] + more}  # noqa: E731
        if more:
            with pytest.raises(ValueError, match="must leave 'count' as it is"):
                lg.equivariance(apply, params, X, action, family=GAUSSIAN, identity=1.0)
        else:
            assert lg.equivariance(apply, params, X, action, family=GAUSSIAN, identity=1.0).parameters == 12


def test_under_jit_there_are_no_values():
    with pytest.raises(ValueError, match="call it outside jit"):
        jax.jit(lambda theta: lg.equivariance(GLM["ln"], theta, X, scale, identity=1.0).invariant)(THETA)


@pytest.mark.thorough
def test_of_many_directions_random_combinations_are_taken():
    """Each of the 3 · 12 shifts of inputs by their outputs' units is a direction; the rank is that of the orbit."""
    wide = GLM["ln"].init(jax.random.key(0), inputs=3, outputs=12)
    action = lambda g, p: with_weights(p, p.weights + jnp.mean(g, 0, keepdims=True))  # noqa: E731
    found = lg.equivariance(GLM["ln"], wide, X, action, identity=np.zeros((12, 3)))
    assert len(found.generators) == 32
    assert found.null_directions == 3
    assert found.holds


def test_an_error_of_the_action_says_where_it_came_from():
    with pytest.raises(AttributeError) as raised:
        lg.equivariance(GLM["ln"], THETA, X, lambda g, p: p.missing, identity=1.0)
    assert "raised by action(g, params)" in raised.value.__notes__[0]


def wrong_generator(self, direction, params):
    return with_weights(params, params.weights[::-1])


def longer_rate(right):
    def descent(self, steps):
        run = right(self, steps)
        return run._replace(rate=1.01 * run.rate)

    return descent


right_derivative, right_natural = Action.derivative, Measured._natural

FAULTS = {
    "F is not taken at gθ": (Measured, "fisher_at", lambda self, params: self.F, {"fisher"}),
    "Dgᵀ is left out": (
        Action,
        "derivative",
        lambda self, g, params: (right_derivative(self, g, params)[0], lambda u: u),
        {"fisher", "gradient", "sgd", "momentum", "natural_gradient"},
    ),
    "another generator": (Action, "generator", wrong_generator, {"null", "orthogonality"}),
    "the Hessian twice": (
        Loss,
        "hessian",
        lambda self, p, v: jax.tree.map(lambda a: 2 * a, _consequences._hessian(self.problem, self.y, p, v)),
        {"hessian"},
    ),
    "a rate that is said too large": (Measured, "_descent", longer_rate(Measured._descent), {"norm"}),
    "a step of the natural gradient without Dg": (
        Measured,
        "_natural",
        lambda self, push, pull, start: right_natural(self, lambda v: v, lambda u: u, start),
        {"natural_gradient"},
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault, monkeypatch):
    where, name, wrong, seen = FAULTS[fault]
    monkeypatch.setattr(where, name, wrong)
    failed = {c.name for c in of_scale().consequences if not c.holds}
    assert seen <= failed
