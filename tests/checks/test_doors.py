"""The runner, the generator, the pytest decorator and the command line; errors that say what to do."""

import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom.checks.findings import Verdict
from lngeom.checks.recorded import tape
from lngeom.cli.commands import app
from typer.testing import CliRunner

from tests.checks import broken

EXACT = lg.nn.LayerNorm(6, exact=True)


@lg.checks.parametrize_with_invariances([EXACT], like="layer")
def test_the_exact_layer(layer, check):
    check(layer)


SPOILED_BY_A_BIAS = (
    *("weight_matrix_rescaling", "dataset_rescaling", "single_case_rescaling", "weight_sign_flip"),
    *("group_permutations", "unit_permutations", "unit_rotations_fixing_one"),
)


@lg.checks.parametrize_with_invariances(
    [(broken.bias_before_the_norm, "layer")],
    expected_failures=dict.fromkeys(SPOILED_BY_A_BIAS, "a bias is added before the norm"),
)
def test_expected_failures_fail(layer, check):
    check(layer)


def test_the_generator_fails_where_a_layer_is_broken_and_shows_why():
    failed = {}
    for check in lg.checks.generate_checks(broken.missing_eps, "batch"):
        try:
            check()
        except AssertionError as error:
            failed[check.name] = str(error)
    assert "not finite at zero variance" in failed["findings"]
    assert {"weight_matrix_recentering", "weight_vector_rescaling", "batch_independence"} <= set(failed)
    assert "W = np.array" in failed["weight_vector_rescaling"]
    assert "weight_matrix_rescaling" not in failed


class Fresh(lg.nn.LayerNorm):
    """A class that makes its own layer."""

    def __init__(self):
        super().__init__(6, exact=True)


@lg.checks.parametrize_with_invariances(Fresh, like="layer", units=6)
def test_a_class_alone_is_checked(layer, check):
    assert layer is Fresh
    check(layer)


@pytest.mark.parametrize(
    ("layers", "like", "said"),
    [
        (None, "layer", "layers must be a layer, a list of layers or pairs"),
        ([], "layer", "layers is empty"),
        ([EXACT], None, "LayerNorm has no row of the table to be compared with: give like="),
        (broken.missing_eps, None, "missing_eps has no row of the table"),
    ],
)
def test_the_decorator_refuses_what_it_cannot_check(layers, like, said):
    with pytest.raises(ValueError, match=said):
        lg.checks.parametrize_with_invariances(layers, like)


def test_an_expected_failure_must_name_a_check():
    with pytest.raises(ValueError, match="no check recentering; the checks are findings, weight_matrix_rescaling"):
        list(lg.checks.generate_checks(EXACT, "layer", expected_failures={"recentering": "no"}))


def lngeom(*args):
    return CliRunner().invoke(app, ["check", *args])


@pytest.mark.thorough
def test_check_exits_0_when_it_ran_and_1_when_the_layer_differs():
    same = lngeom("lngeom.methods:LayerNorm", "--like", "layer")
    assert same.exit_code == 0, same.output
    assert "\nAs layer norm, in " in same.output
    different = lngeom("tests.checks.broken:leakage_of_one_row", "--like", "layer")
    assert different.exit_code == 1
    assert "\nDiffers from layer norm, in " in different.output
    assert lngeom("tests.checks.broken:leakage_of_one_row").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no.such.module:Layer"], "cannot import no.such.module"),
        (["lngeom.nn:LayerNrm"], "lngeom.nn has no LayerNrm; did you mean LayerNorm?"),
        (["lngeom.nn.LayerNorm"], "PACKAGE.MODULE:NAME"),
        (["lngeom.claims.paper:TITLE"], "cannot adapt a str"),
        (["tests.checks.broken:needs_three"], "needs 3 arguments"),
        (["lngeom.nn:LayerNormLSTM"], "has no known value"),
        (["lngeom.nn:LayerNorm", "--like", "lyer"], "no method 'lyer': did you mean layer"),
        (["lngeom.nn:LayerNorm", "--dtype", "int8"], "dtype must be"),
        (["lngeom.nn:LayerNorm", "--kind", "both"], "kind must be one of weights, summed"),
    ],
)
def test_bad_input_exits_2_with_one_error(arguments, says):
    result = lngeom(*arguments)
    assert result.exit_code == 2
    assert says in result.output.replace("\n", " ")


def test_a_layer_beside_the_current_folder_is_found(tmp_path, monkeypatch):
    source = "def norm(a):\n    return a / (a * a).mean(-1, keepdims=True) ** 0.5\n"
    (tmp_path / "layer_beside.py").write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)
    result = lngeom("layer_beside:norm")
    assert result.exit_code == 0, result.output
    assert "not invariant" in result.output


def test_what_cannot_be_adapted_is_told_which_wrapper_to_write():
    with pytest.raises(ValueError, match=r"def layer\(a\):(.|\n)*give `layer` in place of yours"):
        lg.check_invariances(3.0)
    wrapped = lg.check_invariances(lambda W, X: lg.nn.layer_norm(X @ W.T, exact=True), like="layer")
    assert not wrapped.differences


def test_an_equinox_module_is_applied_to_one_sample_at_a_time():
    class Centered(eqx.Module):
        gain: jax.Array

        def __init__(self, units):
            self.gain = jnp.ones(units, jnp.float32)

        def __call__(self, a):
            assert a.ndim == 1
            return self.gain * (a - a.mean())

    found = lg.check_invariances(Centered)
    assert found["weight_matrix_recentering"].as_expected("I")
    assert found["weight_matrix_rescaling"].verdict is Verdict.NOT
    assert "units=3" in found["weight_matrix_rescaling"].counterexample.code


def test_dtypes_and_flags_of_jax_are_left_alone():
    before = dict(jax.config.values)
    lg.check_invariances(EXACT, dtype="bfloat16")
    assert dict(jax.config.values) == before


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_compiled_modules_of_torch_are_read_through_and_those_of_jit_are_refused():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.RMSNorm(8))
    X = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    plain = {n.path for n in lg.check_model(model, X).norms}
    compiled = torch.compile(model, backend="eager")
    report = lg.check_model(compiled, X)
    assert {n.path for n in report.norms} == plain
    assert not report.unchecked
    decayed = torch.optim.AdamW(compiled.parameters(), weight_decay=0.1)
    assert {f.path for f in lg.lint(compiled, X, decay=decayed).findings if "decay" in f.rule} >= {"1", "2"}
    nested = nn.Sequential(torch.compile(model, backend="eager"), nn.LayerNorm(8))
    assert {"0.1", "0.2", "1"} <= {n.path for n in lg.check_model(nested, X).norms if n.checked}

    for scripted in (torch.jit.script(model), torch.jit.trace(model, torch.tensor(X))):
        for call in (lg.check_model, lg.lint):
            with pytest.raises(ValueError, match=r"^a module of torch\.jit hides the calls of its layers: give the"):
                call(scripted, X)
    partly = lg.check_model(nn.Sequential(torch.jit.script(model), nn.LayerNorm(8)), X)
    assert [n.path for n in partly.norms if n.checked] == ["1"]
    assert {n.path for n in partly.unchecked} == {"0.1", "0.2"}
    assert all("torch.jit hides" in n.note for n in partly.unchecked)


class Stateful(eqx.Module):
    """A batch norm behind a linear layer; what `__call__` names its state is up to the model."""

    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self):
        self.linear = eqx.nn.Linear(6, 6, key=jax.random.key(0))
        self.norm = eqx.nn.BatchNorm(6, "batch", mode="batch")

    def __call__(self, x, st):
        return self.norm(self.linear(x), st)


class Keyed(Stateful):
    def __call__(self, x, s, *, key):
        return self.norm(self.linear(x), s)


class Defaulted(Stateful):
    def __call__(self, x, training=True, state=None):
        return self.norm(self.linear(x), state=state)


class Annotated(Stateful):
    def __call__(self, memory: eqx.nn.State, x):
        return self.norm(self.linear(x), memory)


class ByName(Stateful):
    def __call__(self, x, *, memory):
        return self.norm(self.linear(x), memory)


class Wrapped(Stateful):
    def __call__(self, *args):
        return self.norm(self.linear(args[0]), args[1])


@pytest.mark.parametrize("kind", [Stateful, Keyed, Defaulted, Annotated, ByName, Wrapped])
def test_the_state_of_an_equinox_model_may_have_any_name(kind):
    X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    model, state = eqx.nn.make_with_state(kind)()
    report = lg.check_model((model, state), X)
    assert (report["norm"].like, report["norm"].checked, report.differs) == ("bn", True, False), str(report)


def test_an_equinox_model_without_its_state_is_refused():
    model, _ = eqx.nn.make_with_state(Stateful)()
    with pytest.raises(ValueError, match=r"give \(model, state\)"):
        lg.check_model(model, np.ones((8, 6), np.float32))


class Counted(eqx.Module):
    """A norm of one's own with a state of its own."""

    count: eqx.nn.StateIndex

    def __init__(self):
        self.count = eqx.nn.StateIndex(jnp.zeros(()))

    def __call__(self, x, memory):
        memory = memory.set(self.count, memory.get(self.count) + 1)
        return x / jnp.sqrt(jnp.mean(x**2) + 1e-6), memory


def test_a_norm_of_ones_own_may_have_a_state():
    model, state = eqx.nn.make_with_state(Counted)()
    report = lg.check_model((model, state), np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32))
    assert [(n.like, n.checked) for n in report.norms] == [("rms", True)], str(report)
    assert model(jnp.ones(6), state)[1].get(model.count) == 1  # the state can still be used


def raising(error):
    class Raising(eqx.Module):
        norm: eqx.nn.LayerNorm

        def __call__(self, x):
            raise error

    return Raising(eqx.nn.LayerNorm(6))


@pytest.mark.parametrize("call", [lg.check_model, lg.lint])
def test_what_is_said_of_x_has_to_do_with_the_error(call):
    X = np.ones((8, 6), np.float32)
    with pytest.raises(ValueError, match=r"failed: RuntimeError: no licence$"):
        call(raising(RuntimeError("no licence.")), X)
    with pytest.raises(ValueError, match=r"failed: KeyError: 'weights'$"):
        call(raising(KeyError("weights")), X)
    norm = eqx.nn.Sequential([eqx.nn.Linear(6, 6, key=jax.random.key(0)), eqx.nn.LayerNorm(6)])
    with pytest.raises(ValueError, match=r"[^.]\. X has one sample a row; an equinox model takes one sample"):
        call(norm, X[:, :5])
    for shape in [(0, 6), (8, 0)]:
        with pytest.raises(
            ValueError, match=rf"^X must have values, at least one sample; got .* \[{shape[0]}, {shape[1]}"
        ):
            call(norm, np.ones(shape, np.float32))
    for wrong in (np.nan, np.inf):
        X[1, 2:4] = wrong
        with pytest.raises(ValueError, match=r"^X must be finite; 2 of its 48 values, \[8, 6\], are NaN or infinite$"):
            call(norm, X)


@pytest.mark.peers
def test_tensors_that_are_not_finite_are_refused_and_masks_that_are_added_are_not():
    import torch
    from torch import nn

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def forward(self, x, mask):
            return self.norm(torch.softmax(mask, -1) @ x)

    X, mask = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)), torch.zeros(5, 5)
    mask[:, 3:] = -torch.inf
    assert lg.check_model(Masked(), (X, mask)).norms
    X[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"^X must be finite; 1 of its 40 values"):
        lg.check_model(Masked(), {"x": X, "mask": mask})


class Twice(eqx.Module):
    first: eqx.nn.BatchNorm
    second: eqx.nn.BatchNorm

    def __init__(self):
        self.first, self.second = (eqx.nn.BatchNorm(6, "batch", mode="batch") for _ in range(2))

    def __call__(self, x, state):
        x, state = self.first(x, state)
        return self.second(3 * x + 1, state)


def test_stateful_layers_of_equinox_share_their_programs(monkeypatch):
    compiled, jit = [], jax.jit
    monkeypatch.setattr(tape.jax, "jit", lambda *args, **options: compiled.append(1) or jit(*args, **options))
    model, state = eqx.nn.make_with_state(Twice)()
    X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    first = lg.check_model((model, state), X)
    assert [n.like for n in first.norms if n.checked] == ["bn", "bn"], str(first)
    assert len(compiled) <= 2  # the two norms in training mode and in evaluation mode
    other, state = eqx.nn.make_with_state(Twice)()
    assert [n.like for n in lg.check_model((other, state), X).norms] == ["bn", "bn"]
    assert len(compiled) <= 2


@pytest.mark.peers
@pytest.mark.parametrize("offset", [0, 5, 100])
def test_an_adapted_layer_of_keras_is_the_same_in_float64(offset):
    import keras

    X = (np.random.default_rng(0).normal(size=(64, 8)) * 2 + offset).astype(np.float32)
    first, second = keras.layers.Normalization(), keras.layers.Normalization()
    first.adapt(X)
    second.adapt(3 * X + 1)
    report = lg.check_model(keras.Sequential([keras.Input((8,)), first, second]), X)
    assert len(report.norms) == 2
    for norm in report.norms:
        assert "outputs are up to" not in norm.note, norm.note
        assert not norm.findings
