"""Kronecker factors are those of the function, however it is written; where theory says exact, they are F."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from lngeom._core import programs as _programs
from lngeom.information import _diagonal, layers
from lngeom.information.approximations import approximate as kronecker, operator

from tests.relations.models import FAMILIES, MODELS, C, D, H, Model, N, cases, plain, plain_of
from tests.relations.relation import assert_close, assert_same_matrix, fails, relation, wide

SEEDS = st.integers(0, 999)
KINDS = st.sampled_from(["kfac", "ekfac"])


def image(x):
    """A sequence [N 4 3] as an image of one channel."""
    return x.reshape(len(x), 4, 3, 1)


def conv(x, w, numbers, strides=(1, 1), padding="SAME", groups=1, dilation=None):
    return jax.lax.conv_general_dilated(
        x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=numbers, feature_group_count=groups
    )


NHWC, NCHW, NWC = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NWC", "WIO", "NWC")


def nhwc(p, x):
    h = jnp.tanh(conv(image(x), p["w"], NHWC, strides=(2, 1)) + p["b"])
    return h.reshape(len(x), -1) @ p["v"]


def nchw(p, x):
    def one(x):  # as equinox does, with an axis of one sample
        h = conv(x.reshape(1, 1, 4, 3), p["w"], NCHW, padding="VALID")[0] + p["b"]
        return p["v"] @ jnp.tanh(h).reshape(-1)

    return jax.vmap(one)(x)


def depthwise(p, x):
    h = conv(x, p["w"], NWC, (1,), "SAME", D, (2,)) + p["b"]
    return jnp.tanh(h).mean(1) @ p["v"]


def transposed(p, x):
    h = jax.lax.conv_transpose(x, p["w"], (2,), "VALID", dimension_numbers=NWC)
    return jnp.tanh(h).sum(1) @ p["v"]


def merged(p, x):
    h = jnp.tanh(x.reshape(-1, D) @ p["w"] + p["b"])
    return h.reshape(len(x), -1, H).mean(1) @ p["v"]


def stacked(p, x):
    h = jax.lax.scan(lambda h, layer: (jnp.tanh(h @ layer["w"] + layer["b"]), None), x.mean(1), p["layers"])[0]
    return h @ p["v"]


def stacked_flat(p, x):
    return stacked({"layers": {"w": p["lw"], "b": p["lb"]}, "v": p["v"]}, x)


CONVOLUTIONS = (
    Model("nhwc", nhwc, {"w": (3, 2, 1, H), "b": (H,), "v": (2 * 3 * H, C)}, "sequences"),
    Model("nchw", nchw, {"w": (H, 1, 3, 2), "b": (H, 1, 1), "v": (C, 2 * 2 * H)}, "sequences"),
    Model("depthwise", depthwise, {"w": (2, 1, 2 * D), "b": (2 * D,), "v": (2 * D, C)}, "sequences"),
    Model("transposed", transposed, {"w": (3, D, H), "v": (H, C)}, "sequences"),
)
LAYERED = (
    *CONVOLUTIONS,
    Model("merged", merged, {"w": (D, H), "b": (H,), "v": (H, C)}, "sequences"),
    Model("stacked", stacked_flat, {"lw": (2, D, D), "lb": (2, D), "v": (D, C)}, "sequences"),
    *(model for model in MODELS if model.name in {"mlp", "layer_norm", "attention", "convolution", "embedding"}),
)
"""Networks every kernel of which has a Kronecker product."""

EVERYTHING = (*LAYERED, *(model for model in MODELS if model.name in {"residual", "scaled", "recurrent", "rms_gated"}))


def names(approximation):
    return {part.name: part.kind for part in approximation.parts}


@relation(case=cases(EVERYTHING), kind=KINDS, seed=SEEDS, thorough=80)
def test_it_is_one_positive_semidefinite_operator(case, kind, seed):
    approximation = case.fisher().approximate(kind)
    matrix, rng = np.asarray(approximation.as_matrix()), np.random.default_rng(seed)
    size = len(matrix)
    assert_same_matrix(matrix.T, matrix)
    values = np.linalg.eigvalsh(matrix)
    assert values[0] > -1e-12 * values[-1]
    v = rng.normal(size=(size, 2))
    assert_close(approximation.mv(v), matrix @ v)
    tree = approximation.of.problem.unravel(jnp.asarray(v[:, 0]))
    assert_close(jax.flatten_util.ravel_pytree(approximation.mv(tree))[0], matrix @ v[:, 0])
    assert_close(approximation.diagonal(), np.diagonal(matrix))
    assert_close(approximation.trace(), np.trace(matrix))
    assert_close(approximation.eigenvalues()[::-1], values, 1e-8)


@relation(case=cases(EVERYTHING), damping=st.sampled_from([1e-12, 1e-3, 10.0]), null=st.booleans(), thorough=80)
def test_damped_solutions_are_of_the_damped_matrix_at_every_damping(case, damping, null):
    apply = lambda p, x: case.model.apply(p["net"], x)  # noqa: E731
    approximation = case.fisher(apply, {"net": case.params, "unused": jnp.ones(2)}).approximate("kfac")
    matrix = np.asarray(approximation.as_matrix())
    g = np.random.default_rng(1).normal(size=len(matrix))
    values, vectors = np.linalg.eigh(matrix)
    values = np.where(values > 1e-11 * values[-1], values, 0)
    shifted = values + damping
    inverse = 1 / shifted if null else np.where(values > 0, 1 / shifted, 0)
    found = approximation.solve(g, damping, null="keep" if null else "drop")
    if null or damping > 1e-11 * values[-1]:
        assert_close(found.value, vectors @ (inverse * (vectors.T @ g)), 1e-3)
    assert_close(np.asarray(found.value)[-2:], g[-2:] / damping if null else np.zeros(2))
    assert_close(
        approximation.solve(np.stack([g, 2 * g], 1), damping).value[:, 1] / 2, approximation.solve(g, damping).value
    )


def dense(p, x):
    return x @ p["w"] + p["b"]


def window(p, x):
    return conv(x, p["w"], NWC, (2,), "SAME") + p["b"]


def in_groups(p, x):
    return conv(x, p["w"], NWC, (1,), "SAME", D)


def one_position(p, x):
    return conv(image(x), p["w"], NHWC, padding="VALID")[:, 0, 0]


def mapped(p, x):
    return jax.vmap(lambda one: conv(one[None], p["w"], NWC, (1,), "VALID")[0])(x)


def pooled_window(p, x):
    return conv(x, p["w"], NWC, (1,), "VALID").mean(1)


def pooled_image(p, x):
    return conv(image(x), p["w"], NHWC).mean((1, 2))


AFFINE = {"w": (D, C), "b": (C,)}
LINEAR = (
    Model("dense", dense, AFFINE),
    Model("transposed", lambda p, x: x @ p["w"].T, {"w": (C, D)}),
    Model("positions", dense, AFFINE, "sequences"),
    Model("window", window, {"w": (3, D, C), "b": (C,)}, "sequences"),
    Model("groups", in_groups, {"w": (3, 1, 2 * D)}, "sequences"),
    Model("one position", one_position, {"w": (4, 3, 1, C)}, "sequences"),
    Model("vmapped", mapped, {"w": (2, D, C)}, "sequences"),
    Model("heads", lambda p, x: jnp.einsum("nhd,hdk->nhk", x, p["w"]), {"w": (4, D, 2)}, "sequences"),
)


@relation(case=cases(LINEAR, FAMILIES[:1]), kind=KINDS, thorough=60)
def test_one_linear_layer_of_gaussian_outputs_is_exact(case, kind):
    approximation = case.fisher().approximate(kind)
    assert set(names(approximation).values()) == {"kronecker"}
    assert_same_matrix(approximation.as_matrix(), plain(case))


POOLED = (
    Model("dense", lambda p, x: dense(p, x).mean(1), AFFINE, "sequences"),
    Model("window", pooled_window, {"w": (3, D, C)}, "sequences"),
    Model("image", pooled_image, {"w": (2, 2, 1, C)}, "sequences"),
)


@relation(case=cases(POOLED, FAMILIES[:1]), thorough=40)
def test_reduce_is_exact_for_one_layer_before_a_mean_over_positions(case):
    assert_same_matrix(case.fisher().approximate("kfac", convention="reduce").as_matrix(), plain(case))


@relation(case=cases(LAYERED), thorough=80, quick=0)
def test_corrected_eigenvalues_keep_the_trace_and_are_the_best_in_their_basis(case):
    matrix, F = plain(case), case.fisher()
    ekfac, kfac = F.approximate("ekfac"), F.approximate("kfac")
    assert names(ekfac) == names(kfac)
    assert "kronecker" in names(ekfac).values()
    assert_close(ekfac.trace(), np.trace(matrix))
    far = lambda a: np.linalg.norm(np.asarray(a.as_matrix()) - matrix)  # noqa: E731
    assert far(ekfac) <= far(kfac) * (1 + 1e-9)


@relation(case=cases(EVERYTHING), thorough=100)
def test_the_diagonal_is_that_of_the_matrix(case):
    assert_close(case.fisher().diagonal(), np.diagonal(plain(case)))


SCALED = {"times": lambda v, c: v * c, "by": lambda v, c: v / c, "minus": lambda v, c: -v, "less": lambda v, c: v - c}


@relation(each={"how": sorted(SCALED)}, case=cases(LAYERED), number=st.sampled_from([0.3, 2.5]), thorough=15)
def test_the_diagonal_by_leaves_that_an_array_changes_is_that_of_the_matrix(how, case, number):
    """The array is closed over."""
    number = jnp.asarray(number)
    apply = lambda p, x: case.model.apply({k: SCALED[how](v, number) for k, v in p.items()}, x)  # noqa: E731
    F = case.fisher(apply)
    assert_close(F.diagonal(), np.diagonal(plain_of(case, apply)))


@relation(case=cases(EVERYTHING, FAMILIES[:3]), chunk=st.integers(1, N), draws=st.booleans(), thorough=80, quick=0)
def test_the_diagonal_is_that_of_the_rows(case, chunk, draws):
    more = {"method": "monte_carlo", "key": jax.random.key(0), "samples": 2} if draws else {}
    mask = None if case.model.name in {"residual"} else np.arange(N) % 3
    shape = jax.eval_shape(case.model.apply, case.params, case.X).shape
    F = case.fisher(chunk=chunk, mask=mask if len(shape) == 2 else None, **more)
    assert_close(F.diagonal(), np.sum(np.square(np.asarray(F.factor())), 0))


def cast(tree, dtype):
    return jax.tree.map(lambda a: a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree)


@relation(
    case=cases(LAYERED, FAMILIES[:3]), dtype=st.sampled_from(["bfloat16", "float16", "float32"]), thorough=80, quick=0
)
def test_casts_round_factors_and_no_more(case, dtype):
    dtype, outside = jnp.dtype(dtype), jnp.float64 if dtype == "float32" else jnp.float32
    apply = lambda p, x: case.model.apply(cast(p, dtype), cast(x, dtype)).astype(outside)  # noqa: E731
    narrow = case.fisher(apply, cast(case.params, outside), cast(case.X, outside)).approximate("kfac")
    whole = case.fisher().approximate("kfac")
    assert names(narrow) == names(whole)
    found, expected = wide(narrow.as_matrix()), np.asarray(whole.as_matrix())
    assert np.linalg.norm(found - expected) <= 16 * float(jnp.finfo(dtype).eps) * np.linalg.norm(expected)


@jax.custom_jvp
def identity(z):
    return z


identity.defjvp(lambda z, dz: (z[0], dz[0]))


@jax.custom_vjp
def reverse_identity(z):
    return z


reverse_identity.defvjp(lambda z: (z, None), lambda _, g: (g,))
FORMS = {
    "compiled": jax.jit,
    "rematerialized": jax.checkpoint,
    "mapped": lambda f: lambda p, x: jax.vmap(lambda one: f(p, one[None])[0])(x),
    "in a loop": lambda f: lambda p, x: jax.lax.scan(lambda c, _: (c, f(p, x)), None, None, length=1)[1][0],
    "behind a barrier": lambda f: lambda p, x: f(*jax.lax.optimization_barrier((p, x))),
    "with a forward rule": lambda f: lambda p, x: identity(f(p, x)),
    "with a reverse rule": lambda f: lambda p, x: reverse_identity(f(p, x)),
    "of ravelled leaves": lambda f: lambda p, x: f({k: v.reshape(-1).reshape(v.shape) for k, v in p.items()}, x),
    "of transposed leaves": lambda f: lambda p, x: f({k: v.T.T for k, v in p.items()}, x),
    "of scaled leaves": lambda f: lambda p, x: f({k: 2.0 * (v / 2.0) for k, v in p.items()}, x),
}


@relation(each={"form": sorted(FORMS)}, case=cases(LAYERED, FAMILIES[:1]), thorough=15)
def test_another_form_of_the_function_has_the_same_factors(form, case):
    plain_one = case.fisher().approximate("kfac")
    other = case.fisher(FORMS[form](case.model.apply)).approximate("kfac")
    assert names(other) == names(plain_one)
    assert_same_matrix(other.as_matrix(), plain_one.as_matrix())


@relation(case=cases(EVERYTHING), kind=KINDS, seed=SEEDS, times=st.integers(1, 2), thorough=60, quick=0)
def test_order_and_repetition_of_samples_do_not_matter(case, kind, seed, times):
    order = np.random.default_rng(seed).permutation(np.tile(np.arange(N), times))
    found = case.fisher(X=case.X[order]).approximate(kind).as_matrix()
    assert_same_matrix(found, case.fisher().approximate(kind).as_matrix(), 1e-7)


@relation(case=cases(EVERYTHING), kind=KINDS, chunk=st.sampled_from([5, 2 * N]), seed=SEEDS, thorough=60)
def test_samples_that_do_not_count_are_as_if_they_were_not_there(case, kind, chunk, seed):
    """The mean is over all of them."""
    mask = np.random.default_rng(seed).permutation(np.arange(2 * N) % 2)
    X = np.array(np.repeat(case.X, 2, 0))
    X[mask == 1] = np.asarray(case.X)
    shape = jax.eval_shape(case.model.apply, case.params, X).shape
    mask = np.broadcast_to(mask.reshape(-1, *(1,) * (len(shape) - 2)), shape[:-1])
    found = case.fisher(X=X, mask=mask, chunk=chunk).approximate(kind).as_matrix()
    assert_same_matrix(2 * np.asarray(found), case.fisher().approximate(kind).as_matrix(), 1e-7)


@relation(case=cases(EVERYTHING), kind=KINDS, chunk=st.integers(1, N + 1), thorough=80, quick=0)
def test_chunks_add_up(case, kind, chunk):
    found = case.fisher(chunk=chunk).approximate(kind).as_matrix()
    assert_same_matrix(found, case.fisher().approximate(kind).as_matrix(), 1e-7)


@relation(case=cases(EVERYTHING), limit=st.sampled_from([0, 10, 2048]), thorough=60, quick=0)
def test_one_warning_names_each_leaf_of_which_only_the_diagonal_is_kept(case, limit):
    apply = lambda p, x: case.model.apply(p, x) * jnp.sort(p["t"])[0]  # noqa: E731
    F = case.fisher(apply, case.params | {"t": jnp.arange(1.0, 12.0)})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        approximation = F.approximate("kfac", limit=limit)
    said = [str(w.message) for w in seen if "no Kronecker product" in str(w.message)]
    diagonal = {name for name, kind in names(approximation).items() if kind == "diagonal"}
    assert ("t" in diagonal) == (limit < 11)
    assert len(said) == bool(diagonal)
    assert all(f"{name} [" in said[0] for name in diagonal)


@pytest.mark.thorough
class TestEachRelationNoticesAFault:
    def test_a_diagonal_in_another_basis(self, monkeypatch):
        monkeypatch.setattr(operator.Part, "diagonal", lambda part: part.values)
        fails(test_it_is_one_positive_semidefinite_operator)

    def test_a_wrong_direction_of_turning(self, monkeypatch):
        monkeypatch.setattr(operator.Part, "turn_back", operator.Part.turn)
        jax.clear_caches()
        fails(test_it_is_one_positive_semidefinite_operator)
        jax.clear_caches()

    def test_null_directions_by_size_of_the_damping(self, monkeypatch):
        before = operator._solution
        dropped = lambda parts, layout, g, damping, null: before(parts, layout, g, damping, "drop")  # noqa: E731
        monkeypatch.setattr(operator, "_solution", dropped)
        fails(test_damped_solutions_are_of_the_damped_matrix_at_every_damping)

    @pytest.mark.parametrize("turned", [lambda p: p[..., ::-1], lambda p: 2 * p])
    def test_patches(self, monkeypatch, turned):
        before = layers.Window.patches
        monkeypatch.setattr(layers.Window, "patches", lambda self, x: turned(before(self, x)))
        for test in (
            test_one_linear_layer_of_gaussian_outputs_is_exact,
            test_the_diagonal_is_that_of_the_matrix,
            test_the_diagonal_is_that_of_the_rows,
        ):
            jax.clear_caches()
            fails(test, draws=30)
        jax.clear_caches()

    def test_scales_that_are_not_read(self, monkeypatch):
        before = layers._Reader._multiples
        once = lambda *a, **k: [f if np.ndim(f) else 1.0 for f in before(*a, **k)]  # noqa: E731
        monkeypatch.setattr(layers._Reader, "_multiples", once)
        fails(test_the_diagonal_by_leaves_that_an_array_changes_is_that_of_the_matrix, how=st.just("times"))

    def test_samples_that_count_twice(self, monkeypatch):
        monkeypatch.setattr(kronecker, "_counted", lambda part, x: jnp.ones(x.shape[:2], x.dtype))
        jax.clear_caches()
        fails(test_samples_that_do_not_count_are_as_if_they_were_not_there, kind=st.just("kfac"))
        jax.clear_caches()

    def test_the_other_convention(self, monkeypatch):
        monkeypatch.setattr(kronecker, "_counted", lambda part, x: 2 * jnp.ones(x.shape[:2], x.dtype))
        jax.clear_caches()
        fails(test_one_linear_layer_of_gaussian_outputs_is_exact)
        jax.clear_caches()

    def test_no_sum_over_positions(self, monkeypatch):
        before = kronecker._first_sums
        monkeypatch.setattr(kronecker, "_first_sums", lambda *a: before(*a[:4], "expand", a[5]))
        jax.clear_caches()
        fails(test_reduce_is_exact_for_one_layer_before_a_mean_over_positions)
        jax.clear_caches()

    def test_eigenvalues_in_another_basis(self, monkeypatch):
        before = kronecker._second_sums
        turned = lambda *a: {k: v[..., ::-1, :] for k, v in before(*a).items()}  # noqa: E731
        monkeypatch.setattr(kronecker, "_second_sums", turned)
        fails(test_corrected_eigenvalues_keep_the_trace_and_are_the_best_in_their_basis)

    def test_eigenvalues_of_another_sum(self, monkeypatch):
        before = kronecker._second_sums
        monkeypatch.setattr(kronecker, "_second_sums", lambda *a: {k: 2 * v for k, v in before(*a).items()})
        fails(test_corrected_eigenvalues_keep_the_trace_and_are_the_best_in_their_basis)

    def test_squares_before_the_sum_over_positions(self, monkeypatch):
        def apart(entry, x, m):
            if entry.kind in {"bias", "gain"} or x.ndim > 3:
                return before(entry, x, m)
            return jnp.einsum("npd,rnph->dh", x**2, m**2)

        before = _diagonal._squares
        monkeypatch.setattr(_diagonal, "_squares", apart)
        monkeypatch.setattr(_diagonal, "diagonal_and_product", _diagonal.diagonal_and_product.__wrapped__)
        fails(test_the_diagonal_is_that_of_the_matrix, case=cases(CONVOLUTIONS))
        fails(test_the_diagonal_is_that_of_the_rows, case=cases(CONVOLUTIONS))

    def test_casts_that_end_the_reading(self, monkeypatch):
        monkeypatch.setattr(layers, "CASTS", set())
        fails(test_casts_round_factors_and_no_more, dtype=st.just("float32"))

    @pytest.mark.parametrize("form", ["compiled", "rematerialized"])
    def test_programs_that_are_not_looked_into(self, monkeypatch, form):
        monkeypatch.setattr(_programs, "CALLS", set())
        fails(test_another_form_of_the_function_has_the_same_factors, form=st.just(form))

    @pytest.mark.parametrize("form", ["in a loop", "of scaled leaves", "of ravelled leaves"])
    def test_forms_that_are_not_read(self, monkeypatch, form):
        if form == "in a loop":
            monkeypatch.setattr(kronecker, "STEPS", 0)
        elif form == "of scaled leaves":
            monkeypatch.setattr(layers._Reader, "_multiples", lambda *_: [])
        else:
            monkeypatch.delitem(layers.VIEWS, "reshape")
        fails(test_another_form_of_the_function_has_the_same_factors, form=st.just(form))

    def test_sums_in_place_of_means(self, monkeypatch):
        before = kronecker._bases
        counted = lambda sums: [s._replace(count=jnp.ones(())) if hasattr(s, "count") else s for s in sums]  # noqa: E731
        monkeypatch.setattr(kronecker, "_bases", lambda groups, sums: before(groups, counted(sums)))
        fails(test_order_and_repetition_of_samples_do_not_matter, kind=st.just("kfac"), times=st.just(2))

    def test_chunks_that_lose_their_rest(self, monkeypatch):
        from lngeom.information import _sharding

        before = _sharding.fold_chunks

        def fold(step, carry, rows, chunk):
            whole = len(jax.tree.leaves(rows)[0]) // chunk * chunk
            return before(step, carry, jax.tree.map(lambda a: a[:whole], rows), chunk)

        monkeypatch.setattr(_sharding, "fold_chunks", fold)
        jax.clear_caches()
        fails(test_chunks_add_up, chunk=st.just(5), kind=st.just("ekfac"))
        jax.clear_caches()

    def test_silence(self, monkeypatch):
        monkeypatch.setattr(kronecker, "_warn_of_diagonals", lambda *_: None)
        fails(test_one_warning_names_each_leaf_of_which_only_the_diagonal_is_kept)
