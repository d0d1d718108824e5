"""Approximations equal F where they are exact, their error is measured, and a planted fault shows."""

from dataclasses import replace
from functools import cache
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom.information.approximations.operator import ApproximateFisher, jackknife
from lngeom.information.layers import find_layers

from tests.cases import drawn

KEY = jax.random.key(0)


def linear(p, X):
    return X @ p["w"] + p["b"][None]


def layer(seed, D, H):
    return {"w": drawn(seed, D, H), "b": jnp.zeros(H)}


X = drawn(1, 12, 3)


@cache
def exact_case(name):
    """Cases in which both approximations are F itself."""
    if name == "gaussian":
        return lg.fisher(linear, layer(0, 3, 4), X, family=lg.families.Gaussian())
    if name == "categorical":  # at equal logits every sample has the same Λ
        return lg.fisher(linear, jax.tree.map(jnp.zeros_like, layer(0, 3, 4)), X, family=lg.families.Categorical())
    if name == "transposed":
        return lg.fisher(lambda p, x: x @ p["w"].T, {"w": jnp.ones((4, 3))}, X, family=lg.families.Gaussian())
    if name == "positions":
        sequences = drawn(0, 6, 5, 3)
        f = lambda p, x: x @ p["w"] + p["b"][None, None]  # noqa: E731
        return lg.fisher(f, layer(0, 3, 4), sequences, family=lg.families.Gaussian())
    assert name == "heads"
    sequences = drawn(0, 6, 5, 3)
    f = lambda p, x: jnp.einsum("ntd,dhk->nthk", x, p).reshape(6, 5, 4) if len(x) == 6 else _heads(p, x)  # noqa: E731
    return lg.fisher(f, jnp.ones((3, 2, 2)), sequences, family=lg.families.Gaussian())


def _heads(p, x):
    return jnp.einsum("ntd,dhk->nthk", x, p).reshape(len(x), 5, 4)


def gap(F, approximation):
    exact = np.asarray(F.as_matrix())
    return np.linalg.norm(exact - np.asarray(approximation.as_matrix())) / np.linalg.norm(exact)


@pytest.mark.parametrize("kind", ["kfac", "ekfac"])
@pytest.mark.parametrize("name", ["gaussian", "categorical", "transposed", "positions", "heads"])
def test_one_linear_layer_is_exact(name, kind):
    F = exact_case(name)
    approximation = F.approximate(kind)
    assert gap(F, approximation) < 1e-12
    assert {part.kind for part in approximation.parts} == {"kronecker"}


def test_reduce_is_exact_for_a_mean_over_positions():
    sequences = drawn(0, 6, 5, 3)
    f = lambda p, x: jnp.mean(x @ p, 1)  # noqa: E731
    F = lg.fisher(f, jnp.ones((3, 4)), sequences, family=lg.families.Gaussian())
    assert gap(F, F.approximate("kfac", convention="reduce")) < 1e-12
    assert gap(F, F.approximate("kfac", convention="expand")) > 0.1


@cache
def network():
    """A sequence model with a table, positions, a norm, attention-like mixing and a head."""
    params = {
        "tokens": drawn(0, 7, 4),
        "positions": drawn(1, 5, 4),
        "gain": 1 + 0.1 * drawn(2, 4),
        "shift": 0.1 * drawn(3, 4),
        "mix": layer(4, 4, 4),
        "head": layer(5, 4, 3),
    }

    def f(p, tokens):
        x = p["tokens"][tokens] + p["positions"][None]
        n = x - jnp.mean(x, -1, keepdims=True)
        n = n / jnp.sqrt(jnp.mean(n**2, -1, keepdims=True) + 1e-3)
        n = n * p["gain"][None, None] + p["shift"][None, None]
        x = x + jnp.tanh(jnp.cumsum(n, 1) @ p["mix"]["w"] + p["mix"]["b"][None, None])
        return x @ p["head"]["w"] + p["head"]["b"][None, None]

    tokens = jax.random.randint(jax.random.key(7), (11, 5), 0, 7)
    return lg.fisher(f, params, tokens, family=lg.families.Categorical())


def test_every_block_of_a_sequence_model_is_what_it_says():
    F = network()
    exact = np.asarray(F.as_matrix())
    where = {part.name: part.kind for part in F.approximate("kfac", limit=16).parts}
    assert where == {
        "tokens": "kronecker",
        "positions": "kronecker",
        "gain + shift": "block",
        "mix.w + mix.b": "kronecker",
        "head.w + head.b": "kronecker",
    }
    ekfac, kfac, blocks = (F.approximate(kind) for kind in ("ekfac", "kfac", "blocks"))
    names = list(F.leaves)
    edges = np.cumsum([0, *(leaf.size for leaf in jax.tree.leaves(F.problem.params))])
    part = {name: np.r_[edges[k] : edges[k + 1]] for k, name in enumerate(names)}
    norm = np.concatenate([part["gain"], part["shift"]])
    for approximation in (ekfac, kfac):  # the norm's block is exact, the others keep the trace of their block or not
        found = np.asarray(approximation.as_matrix())
        np.testing.assert_allclose(found[np.ix_(norm, norm)], exact[np.ix_(norm, norm)], atol=1e-12)
    for layer in ("mix", "head"):
        own = np.concatenate([part[f"{layer}.b"], part[f"{layer}.w"]])
        block = exact[np.ix_(own, own)]
        found = [np.asarray(a.as_matrix())[np.ix_(own, own)] for a in (ekfac, kfac, blocks)]
        np.testing.assert_allclose(np.trace(found[0]), np.trace(block))
        np.testing.assert_allclose(found[2], block, atol=1e-12)
        assert np.linalg.norm(found[0] - block) < np.linalg.norm(found[1] - block)  # the best values in one basis
    np.testing.assert_allclose(float(blocks.trace()), float(F.trace()))
    np.testing.assert_allclose(np.asarray(F.approximate("diagonal").as_matrix()), np.diag(np.diag(exact)), atol=1e-12)


def test_products_solutions_draws_and_determinants_are_of_one_matrix():
    approximation = network().approximate("ekfac")
    matrix = np.asarray(approximation.as_matrix())
    v = drawn(0, len(matrix))
    np.testing.assert_allclose(np.asarray(approximation @ v), matrix @ np.asarray(v), atol=1e-12)
    shifted = matrix + 0.1 * np.eye(len(matrix))
    np.testing.assert_allclose(approximation.solve(v, 0.1).value, np.linalg.solve(shifted, v), rtol=1e-9)
    least = np.linalg.pinv(matrix, 1e-10, hermitian=True) @ np.asarray(v)
    assert np.linalg.norm(approximation.solve(v).value - least) < 1e-6 * np.linalg.norm(least)
    np.testing.assert_allclose(float(approximation.logdet(0.1)), np.linalg.slogdet(shifted)[1])
    np.testing.assert_allclose(np.asarray(approximation.diagonal()), np.diag(matrix), atol=1e-12)
    np.testing.assert_allclose(np.asarray(approximation.eigenvalues()), np.linalg.eigvalsh(matrix)[::-1], atol=1e-12)
    draws = np.asarray(approximation.sample(KEY, 4000, damping=0.1))
    whitened = np.linalg.cholesky(shifted).T @ draws.T
    covariance = whitened @ whitened.T / 4000
    assert abs(np.trace(covariance) / len(matrix) - 1) < 0.02
    assert np.linalg.norm(covariance - np.eye(len(matrix))) < 1.3 * len(matrix) / 4000**0.5


@pytest.mark.thorough
def test_the_measured_error_covers_the_error_and_a_planted_fault_exceeds_it():
    F = network()
    kfac = F.approximate("kfac")
    error, truth = kfac.measure(KEY, probes=40), gap(F, kfac)
    assert error.interval[0] < truth < error.interval[1]
    assert all(0 < angle < 90 for angle in error.angles)
    F = exact_case("gaussian")
    exact = F.approximate("ekfac")
    assert exact.error.frobenius < 1e-12
    assert exact.error.angle < 0.1
    planted = replace(exact, parts=tuple(replace(part, values=1.5 * part.values) for part in exact.parts))
    assert planted.error.frobenius == pytest.approx(0.5)
    turned = replace(exact, parts=tuple(replace(part, right=part.right[:, ::-1]) for part in exact.parts))
    assert gap(F, turned) < 1e-12  # of a Gaussian every basis of outputs is one of eigenvectors
    mixed = replace(exact, parts=tuple(replace(part, left=part.left[:, ::-1]) for part in exact.parts))
    assert mixed.error.interval[0] > 0.05


def test_intervals_cover_the_ratio():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((20, 20)), rng.standard_normal((20, 20))
    truth, hits = np.linalg.norm(a) / np.linalg.norm(b), 0
    for _ in range(400):
        signs = rng.choice([-1.0, 1.0], (20, 16))
        _, (low, high) = jackknife(np.sum((a @ signs) ** 2, 0), np.sum((b @ signs) ** 2, 0))
        hits += low < truth < high
    assert 0.9 < hits / 400 <= 1


def test_draws_approach_all_rows():
    F = network()
    exact = F.approximate("ekfac")
    few, many = (gap_between(exact, F.approximate("ekfac", key=KEY, samples=m)) for m in (2, 200))
    assert many < 0.4 * few


def gap_between(a: ApproximateFisher, b: ApproximateFisher) -> float:
    a, b = (np.asarray(m.as_matrix()) for m in (a, b))
    return float(np.linalg.norm(a - b) / np.linalg.norm(a))


@pytest.mark.thorough
def test_masks_chunks_and_scores_are_respected():
    F = network()
    apply, family, _ = F.problem.function.thaw()
    tokens, params = F.problem.inputs, F.problem.params
    twice = jnp.concatenate([tokens, tokens])
    mask = jnp.concatenate([jnp.ones((11, 5)), jnp.zeros((11, 5))])
    masked = lg.fisher(apply, params, twice, family=family, mask=mask, chunk=7)
    np.testing.assert_allclose(  # a mean over twice as many samples, half of which say nothing
        2 * np.asarray(masked.approximate("kfac").as_matrix()),
        np.asarray(F.approximate("kfac").as_matrix()),
        atol=1e-10,
    )
    drawn = lg.fisher(apply, params, tokens, family=family, method="monte_carlo", key=KEY, samples=3)
    np.testing.assert_allclose(float(drawn.approximate("blocks").trace()), float(drawn.trace()))
    np.testing.assert_allclose(
        np.trace(np.asarray(drawn.approximate("ekfac").as_matrix())), float(drawn.trace()), rtol=1e-6
    )
    with pytest.warns(RuntimeWarning, match=r"gain \[4\]: it is a gain or bias without a kernel; shift") as warned:
        coarse = drawn.approximate("ekfac", limit=1)
    assert len(warned) == 1
    np.testing.assert_allclose(np.trace(np.asarray(coarse.as_matrix())), float(drawn.trace()), rtol=1e-6)


def test_vectors_are_taken_where_the_only_leaf_is_one_within_a_tree():
    F = lg.fisher(lambda p, x: jnp.tanh(x * p["g"][None]), {"g": jnp.ones(3)}, X, family=lg.families.Gaussian())
    found = F.approximate("blocks")
    np.testing.assert_allclose(found.as_matrix(), F.as_matrix(), atol=1e-12)
    v = jnp.arange(3.0)
    np.testing.assert_allclose(found @ v, F @ v, atol=1e-12)
    np.testing.assert_allclose(found.solve(v, 0.1).value, F.solve(v, 0.1).value, atol=1e-12)


def test_a_mask_leaves_out_the_samples_it_means_where_their_order_is_another():
    apply = lambda p, x: (x[::-1] @ p["w"])[::-1]  # noqa: E731
    mask = jnp.arange(len(X)) < 3
    F = lg.fisher(apply, {"w": jnp.ones((X.shape[1], 2))}, X, family=lg.families.Gaussian(), mask=mask)
    for kind in ("kfac", "ekfac"):  # the input's products, and an identity
        np.testing.assert_allclose(F.approximate(kind).as_matrix(), F.as_matrix(), atol=1e-12)


def test_a_gain_of_an_input_that_is_broadcast_and_a_leaf_without_entries_have_parts():
    f = lambda p, x: jnp.tanh((x[:, None, :] * p["gain"][None]).sum(-1)) @ p["w"]  # noqa: E731
    params = {"empty": jnp.zeros((0, 3)), "gain": drawn(0, 6, 3), "w": jnp.ones((6, 2))}
    F = lg.fisher(f, params, X, family=lg.families.Gaussian())
    found = F.approximate("kfac")
    assert sorted(part.kind for part in found.parts) == ["block", "diagonal", "kronecker"]
    np.testing.assert_allclose(np.asarray(found.as_matrix())[:18, :18], F.as_matrix()[:18, :18], atol=1e-10)


def test_leaves_that_enter_elsewhere_are_exact_or_diagonal():
    f = lambda p, x: jnp.tanh(x @ p["tied"]) @ p["tied"].T @ p["w"]  # noqa: E731
    params = {"tied": jnp.ones((3, 2)) + jnp.arange(6.0).reshape(3, 2), "w": jnp.ones((3, 2))}
    F = lg.fisher(f, params, X, family=lg.families.Gaussian())
    layers = find_layers(F.problem, 100).readable(F.problem)
    assert (layers.unknown, layers.reasons) == ((0,), ("it enters in different ways at 2 places",))
    assert [p.kind for p in F.approximate("kfac").parts] == ["kronecker", "block"]
    with pytest.warns(RuntimeWarning, match=r"1 of 2 leaves.*\(tied \[3, 2\]: it enters in different ways"):
        assert [p.kind for p in F.approximate("kfac", limit=1).parts] == ["kronecker", "diagonal"]
    np.testing.assert_allclose(np.asarray(F.approximate("kfac").as_matrix())[:6, :6], F.as_matrix()[:6, :6], atol=1e-10)


class Narrow(nn.Module):
    dtype: Any
    convolutional: bool = False

    @nn.compact
    def __call__(self, x):
        if self.convolutional:
            x = nn.relu(nn.Conv(4, (3, 3), dtype=self.dtype)(x)).reshape(len(x), -1)
        x = nn.relu(nn.Dense(6, dtype=self.dtype)(x))
        return nn.Dense(3, dtype=self.dtype)(x).astype(jnp.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("convolutional", [False, True])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_computing_in_fewer_bits_leaves_kronecker_products(dtype, convolutional):
    inputs = drawn(0, 8, 4, 4, 2).astype(jnp.float32) if convolutional else X.astype(jnp.float32)
    found = {}
    with jax.numpy_rank_promotion("allow"):
        params = Narrow(jnp.float32, convolutional).init(KEY, inputs)
        for compute in (jnp.float32, dtype):
            network = Narrow(compute, convolutional)
            F = lg.fisher(network.apply, params, inputs, family=lg.families.Categorical())
            approximation = F.approximate("ekfac")
            found[compute] = {part.name for part in approximation.parts}, float(approximation.trace())
            assert {part.kind for part in approximation.parts} == {"kronecker"}
            assert 0 < approximation.error.frobenius < 1
            assert 0 < approximation.error.angle < 90
    (names, trace), (others, close) = found.values()
    assert names == others
    assert close == pytest.approx(trace, rel=8 * float(jnp.finfo(dtype).eps))


@pytest.mark.thorough
def test_layers_of_equinox_have_kronecker_products():
    k = jax.random.split(KEY, 3)
    layers = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 4, 3, key=k[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Conv2d(4, 6, 2, groups=2, stride=2, padding=1, key=k[1]),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(24, 3, key=k[2]),
        ]
    )
    params, rest = eqx.partition(layers, eqx.is_array)
    f = lambda p, x: jax.vmap(eqx.combine(p, rest))(x)  # noqa: E731
    with jax.numpy_rank_promotion("allow"):
        F = lg.fisher(f, params, drawn(0, 7, 1, 5, 5), family=lg.families.Categorical())
        found = F.approximate("ekfac")
        assert [part.name for part in found.parts] == [f"layers.{n}.weight + layers.{n}.bias" for n in (0, 2, 4)]
        assert {part.kind for part in found.parts} == {"kronecker"}
        assert found.parts[1].values.shape == (2, 9, 3)  # two groups of 2 · 2 · 2 inputs and a bias
        np.testing.assert_allclose(found.trace(), np.trace(np.asarray(F.as_matrix())), rtol=1e-6)


def test_the_factors_of_a_convolution_are_those_of_its_patches():
    """KFC: the mean over samples and positions of patches, and sums over positions of signals."""
    images, w = drawn(0, 6, 4, 4, 2), drawn(1, 3, 3, 2, 2)

    def f(p, x):
        z = jax.lax.conv_general_dilated(x, p, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.tanh(z).reshape(len(x), -1) @ jnp.ones((8, 1))

    F = lg.fisher(f, w, images, family=lg.families.Gaussian())
    windows = [images[:, i : i + 3, j : j + 3].reshape(6, -1) for i in (0, 1) for j in (0, 1)]
    x = jnp.stack(windows, 1)
    m = 1 - jnp.tanh(x @ w.reshape(18, 2)) ** 2
    A = jnp.einsum("npd,npe->de", x, x) / 24
    B = jnp.einsum("nph,npk->hk", m, m) / 6
    np.testing.assert_allclose(F.approximate("kfac").as_matrix(), jnp.kron(A, B), atol=1e-12)
    A, B = (jnp.einsum("nd,ne->de", a, a) / 6 for a in (x.mean(1), m.sum(1)))
    np.testing.assert_allclose(F.approximate("kfac", convention="reduce").as_matrix(), jnp.kron(A, B), atol=1e-12)


@pytest.mark.thorough
def test_a_kernel_used_at_several_places_is_exact_or_has_the_positions_of_all():
    sequences, params = drawn(0, 9, 2, 3), {"w": drawn(1, 3, 4), "out": drawn(2, 8, 2)}
    together = lambda p, x: jnp.tanh(x @ p["w"]).reshape(-1, 8) @ p["out"]  # noqa: E731
    apart = lambda p, x: jnp.concatenate([jnp.tanh(x[:, k] @ p["w"]) for k in (0, 1)], 1) @ p["out"]  # noqa: E731
    one, two = (lg.fisher(f, params, sequences, family=lg.families.Categorical()) for f in (together, apart))
    np.testing.assert_allclose(one.as_matrix(), two.as_matrix(), atol=1e-12)
    for kind in ("kfac", "ekfac"):
        found = two.approximate(kind, limit=11)
        assert {part.kind for part in found.parts} == {"kronecker"}
        np.testing.assert_allclose(found.as_matrix(), one.approximate(kind).as_matrix(), atol=1e-10)
    exact = two.approximate("kfac")
    assert {part.name: part.kind for part in exact.parts} == {"out": "kronecker", "w": "block"}
    np.testing.assert_allclose(exact.as_matrix()[16:, 16:], two.as_matrix()[16:, 16:], atol=1e-10)


@pytest.mark.thorough
def test_one_warning_names_the_leaves_that_keep_their_diagonal_and_the_reasons():
    def f(p, x):
        h = jax.lax.fori_loop(0, 40, lambda _, h: jnp.tanh(h @ p["loop"]), x)
        return h @ p["out"] * jnp.sort(p["sorted"])[0] + 0 * x[:, :2]

    params = {"loop": drawn(0, 3, 3), "out": drawn(1, 3, 2), "sorted": drawn(2, 12), "unused": jnp.ones(20)}
    F = lg.fisher(f, params, X, family=lg.families.Gaussian())
    with pytest.warns(RuntimeWarning, match="no Kronecker product for 2 of 4 leaves") as seen:
        found = F.approximate("kfac", limit=8)
    (message,) = [str(w.message) for w in seen]
    assert "loop [3, 3]: it enters in scan of 40 steps" in message
    assert "sorted [12]: it enters" in message
    assert "unused" not in message
    assert {part.name for part in found.parts if part.kind == "diagonal"} == {"loop", "sorted", "unused"}
    np.testing.assert_allclose(found.diagonal()[:9], np.diagonal(F.as_matrix())[:9], atol=1e-12)
    assert {part.kind for part in F.approximate("kfac", limit=20).parts} == {"kronecker", "block"}  # and no warning


def test_damping_has_one_meaning_at_every_size():
    F = lg.fisher(
        lambda p, x: x @ p["w"], {"unused": jnp.ones(2), "w": jnp.ones((3, 2))}, X, family=lg.families.Gaussian()
    )
    approximation, g = F.approximate("kfac"), jnp.arange(1.0, 9.0)
    for damping in (1e-20, 1e-8, 1.0):
        kept, dropped = (approximation.solve(g, damping, null=null) for null in ("keep", "drop"))
        np.testing.assert_allclose(kept.value[:2], g[:2] / damping, rtol=1e-12)
        np.testing.assert_allclose(dropped.value[:2], 0)
        np.testing.assert_allclose(kept.value[2:], dropped.value[2:])
        if damping == 1.0:
            np.testing.assert_allclose(kept.value, F.solve(g, damping).value, rtol=1e-9)
        assert kept.rank == dropped.rank == 6
        assert kept.unidentifiable < 1e-15
        assert dropped.unidentifiable == pytest.approx(float(jnp.linalg.norm(g[:2]) / jnp.linalg.norm(g)))
    draws = approximation.sample(KEY, 4000, damping=1e-8)
    np.testing.assert_allclose(np.var(np.asarray(draws)[:, :2], 0), 1e8, rtol=0.1)
    with pytest.raises(ValueError, match="null must be 'keep' or 'drop'; got 'lose'"):
        approximation.solve(g, 1.0, null="lose")


def test_natural_gradients_that_do_not_converge_are_one_sentence(monkeypatch):
    F = exact_case("gaussian")

    def stop(*_, **__):
        raise lg.numerics.ConvergenceError("stopped")

    monkeypatch.setattr(type(F), "solve", stop)
    with pytest.raises(lg.numerics.ConvergenceError, match="in the model's precision, float64: take a larger damping="):
        F.approximate("kfac").measure(KEY)
    assert F.approximate("kfac").measure(KEY, gradients=0).frobenius < 1e-12


def test_a_normalized_model_has_exact_gains_and_biases():
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    params = model.init(KEY, inputs=3, outputs=4)
    F = lg.fisher(model, params, X)
    approximation = F.approximate("ekfac")
    assert {part.name: part.kind for part in approximation.parts} == {"weights": "block", "gain + bias": "block"}
    last = np.asarray(approximation.as_matrix())[12:, 12:]
    np.testing.assert_allclose(last, np.asarray(F.as_matrix())[12:, 12:], atol=1e-12)


def test_bad_arguments_are_named():
    F = exact_case("gaussian")
    with pytest.raises(ValueError, match="must be one of kfac, ekfac"):
        F.approximate("shampoo")
    with pytest.raises(ValueError, match="convention must be"):
        F.approximate("kfac", convention="flat")
    with pytest.raises(ValueError, match="draws need key= and samples="):
        F.approximate("kfac", samples=3)
    with pytest.raises(ValueError, match="at least 2 samples"):
        lg.fisher(linear, layer(0, 3, 4), X[:1], family=lg.families.Gaussian()).approximate("kfac")
    with pytest.raises(ValueError, match="probes must be a whole number, at least 3; got 2"):
        F.approximate("kfac").measure(KEY, probes=2)
    for samples in (0, 2.5):
        with pytest.raises(ValueError, match="samples must be a whole number of draws"):
            F.approximate("kfac", key=KEY, samples=samples)
    for damping in (-1.0, jnp.nan):
        with pytest.raises(ValueError, match="damping must be"):
            F.approximate("kfac").solve(jnp.ones(16), damping)
        with pytest.raises(ValueError, match="damping must be"):
            F.approximate("kfac").sample(KEY, damping=damping)
    with pytest.raises(ValueError, match="count must be a whole number, at least 0; got -1"):
        F.approximate("kfac").sample(KEY, -1)
    with pytest.raises(ValueError, match="scale must be a finite number"):
        F.approximate("kfac").sample(KEY, scale=jnp.nan)
    with pytest.raises(ValueError, match="limit must be a finite number"):
        F.approximate("kfac", limit=jnp.nan)
    assert F.approximate("kfac").sample(KEY, 0).shape == (0, F.in_size())
    with pytest.raises(ValueError, match="do not interact"):
        lg.fisher(lambda p, x: x @ p - jnp.mean(x @ p), jnp.ones((3, 2)), X, family=lg.families.Gaussian(),
                  batch_coupled=True).approximate("kfac")  # fmt: skip
