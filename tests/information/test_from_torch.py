"""Torch modules through one door: the Fisher matrix is that of the module's outputs, or one sentence says why not."""

import copy
import os
import re
import sys
import warnings
from pathlib import Path

import jax
import lngeom as lg
import numpy as np
import pytest

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")
nn = torch.nn
pytest.importorskip("torchax")

CATEGORICAL = lg.families.Categorical()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def batch(rows=12, width=4):
    return np.random.default_rng(0).normal(size=(rows, width))


def ids(rows=12, length=3, vocabulary=5):
    return np.random.default_rng(0).integers(0, vocabulary, (rows, length))


def literal(module, *args, parameters=None):
    """Σ JᵀΛJ / N in torch: `jacrev` of the module's outputs, Λ of the softmax; in the order of sorted names."""
    held = dict(module.named_parameters())
    names = sorted(parameters or held)
    others = {k: v.detach() for k, v in (held | dict(module.named_buffers())).items() if k not in names}

    def logits(leaves):
        found = torch.func.functional_call(module, {**others, **leaves}, tuple(torch.tensor(a) for a in args))
        return found.reshape(-1, found.shape[-1])

    with torch.no_grad():
        leaves = {k: held[k].detach() for k in names}
        p = torch.softmax(logits(leaves), -1)
    J = torch.func.jacrev(logits)(leaves)
    J = torch.cat([J[k].reshape(*p.shape, -1) for k in names], -1)
    metric = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    return torch.einsum("ncp,ncd,ndq->pq", J, metric, J).numpy() / len(args[0])


def agrees(F, expected, tolerance=1e-12):
    found = np.asarray(F.as_matrix())
    assert found.shape == expected.shape
    assert np.max(np.abs(expected)) > 0
    assert np.max(np.abs(found - expected)) <= tolerance * np.max(np.abs(expected))


def normed(width=4, hidden=6, classes=3):
    return nn.Sequential(nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, classes)).double()


def test_the_fisher_matrix_is_that_of_the_module():
    net, X = normed(), batch()
    apply, params = lg.from_torch(net, X)
    assert list(params) == [name for name, _ in net.named_parameters()]
    agrees(lg.fisher(apply, params, X, family=CATEGORICAL), literal(net, X))
    agrees(lg.fisher(apply, params, torch.tensor(X), family=CATEGORICAL), literal(net, X))
    only = [name for name in params if name.startswith("3.")]
    agrees(lg.fisher(apply, params, X, family=CATEGORICAL, wrt="3"), literal(net, X, parameters=only))


def test_a_batch_norm_in_evaluation_mode_keeps_its_statistics_out_of_the_matrix():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
    X = np.random.default_rng(0).normal(size=(10, 1, 4, 4))
    net(torch.tensor(3 * X + 1))  # statistics that differ from a new layer's
    apply, params = lg.from_torch(net.eval(), X)
    assert set(apply.fixed) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    F = lg.fisher(apply, params, X, family=CATEGORICAL)
    assert F.in_size() == sum(p.numel() for p in net.parameters())
    agrees(F, literal(net, X))
    assert "evaluation mode" in repr(apply)


def test_batch_norm_in_training_mode_couples_samples_and_both_are_said():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    X, before = batch(), copy.deepcopy(net.state_dict())
    with pytest.raises(ValueError, match="is in training mode, in which its outputs are others"):
        lg.from_torch(net, X)
    apply, params = lg.from_torch(net, X, mode="train")
    with pytest.raises(ValueError, match="batch_coupled"):
        lg.fisher(apply, params, X, family=CATEGORICAL)
    F = lg.fisher(apply, params, X, family=CATEGORICAL, batch_coupled=True)
    names = [name for name in before if "running" not in name and "num" not in name]
    stateless = copy.deepcopy(net)
    stateless[1] = nn.BatchNorm1d(3, track_running_stats=False).double()
    agrees(F, literal_coupled(stateless, X, names))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def literal_coupled(module, X, names):
    return literal(module, X, parameters=names)  # `jacrev` of all outputs by all parameters: coupling is in it


class Padded(nn.Module):
    """Bags of embeddings, one row of which torch does not train."""

    def __init__(self, functional):
        super().__init__()
        self.table = nn.Embedding(5, 4, padding_idx=None if functional else 1)
        self.head = nn.Linear(4, 3)
        self.functional = functional

    def forward(self, ids):
        found = nn.functional.embedding(ids, self.table.weight, 1) if self.functional else self.table(ids)
        return self.head(torch.tanh(found).mean(1))


@pytest.mark.parametrize("functional", [False, True], ids=["module", "function"])
def test_a_padding_row_is_a_parameter_since_outputs_depend_on_it(functional):
    net, X = Padded(functional).double(), ids()
    with torch.no_grad():
        net.table.weight[1] = 0.3
    apply, params = lg.from_torch(net, X)
    F = lg.fisher(apply, params, X, family=CATEGORICAL)
    plain = Padded(True).double()
    plain.load_state_dict(net.state_dict())
    plain.forward = lambda ids: plain.head(torch.tanh(plain.table.weight[ids]).mean(1))
    expected = literal(plain, X)
    agrees(F, expected)
    assert np.max(np.abs(expected - literal(net, X))) > 0.05 * np.max(np.abs(expected))  # which torch itself gives
    assert net.table.padding_idx == (None if functional else 1)


class Casting(nn.Module):
    """A norm in float32 inside a model in float64, as transformers has them."""

    def __init__(self, how):
        super().__init__()
        self.lower, self.upper, self.how = nn.Linear(4, 6), nn.Linear(6, 3), how

    def forward(self, x):
        h = self.lower(x)
        h = {
            "to": lambda: h.to(torch.float32),
            "float": lambda: h.float(),
            "softmax": lambda: torch.softmax(h, -1, dtype=torch.float32),
            "scale": lambda: h * torch.linspace(0.1, 1, 6),  # made in torch's default dtype
        }[self.how]()
        return self.upper((h / h.square().mean(-1, keepdim=True).sqrt()).to(x.dtype))


@pytest.mark.parametrize("how", ["to", "float", "softmax"])
def test_casts_inside_are_lifted_and_named(how):
    net, X = Casting(how).double(), batch()
    apply, params = lg.from_torch(net, X)
    assert len(apply.casts) == 1
    assert "Casting.forward" in apply.casts[0]
    assert "lifted casts" in repr(apply)
    exact = Casting("to").double()
    exact.load_state_dict(net.state_dict())
    exact.forward = lambda x: exact.upper(
        scaled(torch.softmax(exact.lower(x), -1) if how == "softmax" else exact.lower(x))
    )
    agrees(lg.fisher(apply, params, X, family=CATEGORICAL), literal(exact, X))
    with pytest.warns(UserWarning, match=r"loses digits of float64 in '.*Casting\.forward"):
        kept, params = lg.from_torch(net, X, lift=False)
    with torch.no_grad():
        own = net(torch.tensor(X)).numpy()
    assert np.max(np.abs(kept(params, X) - own)) < 1e-6 < 1e3 * np.max(np.abs(apply(params, X) - own))


def scaled(h):
    return h / h.square().mean(-1, keepdim=True).sqrt()


def test_numbers_made_in_the_default_dtype_are_made_in_that_of_the_parameters():
    net, X = Casting("scale").double(), batch()
    apply, params = lg.from_torch(net, X)
    exact = Casting("scale").double()
    exact.load_state_dict(net.state_dict())
    exact.forward = lambda x: exact.upper(scaled(exact.lower(x) * torch.linspace(0.1, 1, 6, dtype=torch.float64)))
    agrees(lg.fisher(apply, params, X, family=CATEGORICAL), literal(exact, X))


def test_a_cast_that_is_not_seen_is_refused_by_its_operation(monkeypatch):
    from lngeom.information.torch_modules.lifted import Smooth

    monkeypatch.setattr(Smooth, "_is_narrow", lambda self, value: False)
    with pytest.raises(ValueError, match=r"still computes with fewer digits \(.*convert_element_type"):
        lg.from_torch(Casting("to").double(), batch())


def test_a_cast_that_is_no_rounding_is_not_lifted_silently():
    class Coarse(nn.Module):
        def __init__(self):
            super().__init__()
            self.lower = nn.Linear(4, 3)

        def forward(self, x):
            return 1e3 * (self.lower(x) - self.lower(x).to(torch.bfloat16).to(x.dtype))

    with pytest.raises(ValueError, match="more than by rounding: say lift=False"):
        lg.from_torch(Coarse().double(), batch())


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] * 2 * ctx.saved_tensors[0] ** 2  # for 3 x²


class Through(nn.Module):
    def __init__(self, through):
        super().__init__()
        self.lower, self.upper, self.through = nn.Linear(4, 5), nn.Linear(5, 3), through

    def forward(self, x):
        return self.upper(self.through(self.lower(x)))


def test_a_wrong_backward_pass_is_named_and_the_matrix_is_that_of_the_outputs():
    net, X = Through(Backward.apply).double(), batch()
    with pytest.warns(UserWarning, match=r"torch's own gradient of Through .* by 'lower\.weight', 'lower\.bias'"):
        apply, params = lg.from_torch(net, X)
    exact = Through(lambda x: x**3).double()
    exact.load_state_dict(net.state_dict())
    agrees(lg.fisher(apply, params, X, family=CATEGORICAL), literal(exact, X))


def without_gradient(x):
    with torch.no_grad():
        return torch.tanh(x)


@pytest.mark.parametrize("through", [lambda x: x + (torch.tanh(x) - x).detach(), lambda x: torch.tanh(x.detach())])
def test_a_derivative_that_is_not_that_of_the_outputs_is_refused_by_leaf(through):
    with pytest.raises(ValueError, match=r"By leaf: 'lower\.weight', 'lower\.bias'\. Something .* detached"):
        lg.from_torch(Through(through).double(), batch())


def test_a_part_without_gradient_is_named():
    with pytest.warns(UserWarning, match="runs without gradient"):
        lg.from_torch(Through(without_gradient).double(), batch())


def test_an_operation_that_differs_in_jax_is_refused():
    def other(x):
        return x if type(x) is torch.Tensor else 1.001 * x

    with pytest.raises(ValueError, match="outputs of Through in JAX are not torch's: they differ by"):
        lg.from_torch(Through(other).double(), batch())


def test_a_reverse_derivative_that_differs_from_the_forward_one_is_refused(monkeypatch):
    from lngeom.information.torch_modules import compared

    def planted(*given):
        z, moved, pulled = derivatives(*given)
        return z, moved, {k: 1.01 * g for k, g in pulled.items()}

    derivatives = compared._derivatives
    monkeypatch.setattr(compared, "_derivatives", planted)
    with pytest.raises(ValueError, match="forward and the reverse derivative of Sequential"):
        lg.from_torch(normed(), batch())


def test_dropout_needs_the_mode_and_noise_is_refused():
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    for mode in (None, "train"):
        with pytest.raises(ValueError, match=r"are random \('1 \(Dropout\)'\).*mode='eval'"):
            lg.from_torch(net, batch(), mode=mode)
    apply, _ = lg.from_torch(net, batch(), mode="eval")
    assert not apply.training
    assert net.training

    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.randn(())

    with pytest.raises(ValueError, match="outputs of Noisy are random:"):
        lg.from_torch(Noisy(4, 3).double().eval(), batch())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids)))


def test_a_tied_parameter_is_one():
    net, X = Tied().double(), ids()
    apply, params = lg.from_torch(net, X)
    assert list(params) == ["table.weight"]
    agrees(lg.fisher(apply, params, X, family=CATEGORICAL), literal(net, X))
    net.head.weight = nn.Parameter(net.table.weight.data)
    with pytest.warns(UserWarning, match=r"table\.weight, head\.weight are one piece of memory and 2 parameters"):
        assert len(lg.from_torch(net, X)[1]) == 2


class Several(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.lower, self.kind = nn.Linear(4, 3), kind

    def forward(self, x, scale=1.0):
        z = scale * self.lower(x)
        return {"tuple": lambda: (None, z, x), "dict": lambda: {"loss": None, "logits": z, "hidden": x}}[self.kind]()


@pytest.mark.parametrize(
    ("kind", "output", "there"), [("tuple", 1, r"1 \[4, 3\]"), ("dict", "logits", r"'logits' \[4")]
)
def test_of_several_results_one_is_named(kind, output, there):
    net, X = Several(kind).double(), batch()
    with pytest.raises(ValueError, match=rf"Several returns a {kind} of {there}.*say which is meant, as in output="):
        lg.from_torch(net, X)
    with pytest.raises(ValueError, match="output='z' is none of these"):
        lg.from_torch(net, X, output="z")
    apply, params = lg.from_torch(net, X, output=output, scale=2.0)
    agrees(lg.fisher(apply, params, X, family=CATEGORICAL), 4 * literal_scaled(net.lower, X))


def literal_scaled(lower, X):
    """Of the logits 2 W x, as of W x with Λ at twice the logits."""
    twice = copy.deepcopy(lower)
    with torch.no_grad():
        for p in twice.parameters():
            p.mul_(2)
    return literal(twice, X)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 3.0]))
        self.shift = torch.tensor(0.5)  # no buffer, an attribute

    def forward(self, input_ids, attention_mask):
        m = attention_mask.to(self.weight.dtype) * self.weight
        pooled = (m[..., None] * self.table(input_ids)).sum(1) / m.sum(1, keepdim=True)
        return self.head(torch.tanh(pooled + self.shift))


def test_inputs_by_name_and_by_position():
    net, mask = Masked().double(), np.tril(np.ones((12, 3), int))
    X = {"input_ids": ids(), "attention_mask": mask}
    apply, params = lg.from_torch(net, X)
    assert set(apply.fixed) == {"weight", "shift"}
    agrees(lg.fisher(apply, params, X, family=CATEGORICAL), literal(net, ids(), mask))
    apply, params = lg.from_torch(net, tuple(X.values()))
    agrees(lg.fisher(apply, params, tuple(X.values()), family=CATEGORICAL), literal(net, ids(), mask))


def test_the_module_of_the_caller_stays_as_it_is():
    net, X = normed().train(), batch()
    net(torch.tensor(X)).sum().backward()
    net[1].eval()
    values = {k: v.clone() for k, v in net.state_dict().items()}
    gradients = [p.grad.clone() for p in net.parameters()]
    modes, noise = [part.training for part in net.modules()], torch.get_rng_state()
    telemetry, fast = os.environ.get("ENABLE_RUNTIME_UPTIME_TELEMETRY"), torch.backends.mha.get_fastpath_enabled()
    apply, params = lg.from_torch(net, X, mode="eval", dtype="float32")
    apply(params, X)
    assert all(torch.equal(values[k], v) and v.dtype == torch.float64 for k, v in net.state_dict().items())
    assert all(torch.equal(g, p.grad) for g, p in zip(gradients, net.parameters(), strict=True))
    assert [part.training for part in net.modules()] == modes
    assert torch.equal(noise, torch.get_rng_state())
    assert (os.environ.get("ENABLE_RUNTIME_UPTIME_TELEMETRY"), torch.backends.mha.get_fastpath_enabled()) == (
        telemetry,
        fast,
    )


def test_fixed_parameters_are_no_parameters():
    net, X = normed(), batch()
    net[0].requires_grad_(False)
    apply, params = lg.from_torch(net, X)
    assert set(apply.fixed) == {"0.weight", "0.bias"}
    agrees(lg.fisher(apply, params, X, family=CATEGORICAL), literal(net, X, parameters=list(params)))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.1)])
def test_other_dtypes_are_computed_in(dtype, tolerance):
    net, X = normed(), batch()
    expected = literal(net, X)
    apply, params = lg.from_torch(net.to(getattr(torch, dtype)), X)
    assert {str(p.dtype) for p in params.values()} == {dtype} == {str(apply(params, X).dtype)}
    agrees(lg.fisher(apply, params, X, family=CATEGORICAL), expected, tolerance)
    with jax.enable_x64(False):
        if dtype == "float32":
            lg.from_torch(net, X)
        with pytest.raises(ValueError, match="float64 needs jax"):
            lg.from_torch(net, X, dtype="float64")


def mixed():
    net = normed()
    net[0].float()
    return net


def hooked():
    net = normed()
    net[1].register_forward_hook(lambda *_: None)
    return net


def listed():
    net = normed()
    net.tables = [torch.ones(2)]
    return net


def on_meta():
    with torch.device("meta"):
        return nn.Linear(4, 3)


class Choosing(nn.Linear):
    def forward(self, x):
        z = super().forward(x)
        return z if z.sum() > 0 else 2 * z


REFUSED = {
    "no module": (lambda: len, "takes a torch.nn.Module; got a builtin_function_or_method"),
    "hooks": (hooked, r"1 \(LayerNorm\) has hooks"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(3)), "has no shape yet: run the module once"),
    "meta": (on_meta, "weight is on the device meta, without values"),
    "compiled": (lambda: torch.compile(normed()), "is compiled"),
    "list of tensors": (listed, "holds tensors in its attribute 'tables'"),
    "dtypes": (mixed, "the parameters have dtypes float32, float64: say in which"),
    "complex": (lambda: nn.Linear(4, 3, dtype=torch.complex128), "is complex"),
    "nothing to differentiate": (lambda: normed().requires_grad_(False), "no floating point parameter with requires_"),
    "a choice by values": (lambda: Choosing(4, 3).double(), "Choosing does not run in JAX by torchax"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_run_is_refused_with_one_sentence(kind):
    make, text = REFUSED[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = make()
    with pytest.raises(ValueError, match=text):
        lg.from_torch(module, batch())


def test_arguments_that_fit_nothing_are_refused():
    net = normed()
    with pytest.raises(ValueError, match="mode must be 'eval' or 'train'; got 'evaluation'"):
        lg.from_torch(net, batch(), mode="evaluation")
    with pytest.raises(ValueError, match="dtype must be a floating point dtype"):
        lg.from_torch(net, batch(), dtype="int32")
    with pytest.raises(ValueError, match="got a str in it"):
        lg.from_torch(net, {"text": "words"})
    with pytest.raises(ValueError, match=r"apply, params = lg\.from_torch"):
        lg.fisher(net, {}, batch(), family=CATEGORICAL)


def test_a_missing_or_broken_torchax_is_one_sentence(monkeypatch):
    from lngeom.information.torch_modules import bridge

    monkeypatch.setitem(sys.modules, "torchax", None)
    bridge.environment.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=r"lg\.from_torch needs torchax.*pip install --pre"):
        lg.from_torch(normed(), batch())

    class Broken:
        def find_spec(self, name, *_):
            if name == "torchax":
                raise AttributeError("no overload of that name")

    monkeypatch.delitem(sys.modules, "torchax")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ImportError, match=r"does not import with torch .*no overload of that name.*pip install --pre"):
        lg.from_torch(normed(), batch())
    bridge.environment.cache_clear()


def test_null_directions_of_a_known_layout_are_named_by_its_symmetries():
    from analysis.models import families
    from lngeom.transformers.rewrite import layouts

    package = families.package()
    sizes = {"hidden_size": 4, "intermediate_size": 3, "num_hidden_layers": 1, "num_attention_heads": 1}
    module = package.LlamaForCausalLM(package.LlamaConfig(**sizes, vocab_size=5, max_position_embeddings=8))
    X = {"input_ids": ids(16, 4)}
    apply, params = lg.from_torch(module.double().eval(), X, output="logits")
    stack = layouts.describe(module.config.to_dict(), params)
    described = lg.fisher(apply, params, X, family=CATEGORICAL).nullspace().describe(stack)
    assert described.unexplained == 0
    assert len(described.directions) > 2


MODELS = """
import torch
from torch import nn

X = torch.randn(20, 4, generator=torch.manual_seed(0))

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lower, self.norm, self.upper = nn.Linear(4, 6, bias=False), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x):
        h = self.norm(self.lower(x))
        return {"hidden": h, "logits": self.upper(torch.tanh(h))}

class One(Two):
    def forward(self, x):
        return super().forward(x)["logits"]

def one():
    return One(), X

def two():
    return Two(), X

def named():
    return Two(), X, {"output": "logits"}

def listed():
    return Two(), X, ["logits"]

def dropping():
    return nn.Sequential(nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 3)), X
"""


def command(monkeypatch, folder, *words):
    from lngeom.cli import programs
    from lngeom.cli.commands import app
    from typer.testing import CliRunner

    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("compile_sparingly", "keep_programs"):
        monkeypatch.setattr(programs, name, lambda: None)
    (folder / "modules_of_torch.py").write_text(MODELS)
    return CliRunner().invoke(app, list(words))


def test_the_command_fisher_takes_modules(monkeypatch, tmp_path):
    for name in ("one", "named"):
        found = command(monkeypatch, tmp_path, "fisher", f"modules_of_torch:{name}", "--family", "categorical")
        assert found.exit_code == 0, found.output
        assert "57" in found.output  # parameters: 24 + 12 + 21
    for name, text in (
        ("two", "say which is meant, as in output="),
        ("listed", "the third item of modules_of_torch:listed must be a dict"),
        ("dropping", "Say mode='eval'"),
    ):
        found = command(monkeypatch, tmp_path, "fisher", f"modules_of_torch:{name}", "--family", "categorical")
        assert found.exit_code == 2
        assert text in " ".join(found.output.split())


def test_the_commands_plan_lint_and_check_take_modules(monkeypatch, tmp_path):
    words = ("plan", "modules_of_torch:named", "--learning-rate", "1e-3", "--weight-decay", "0.1", "--json")
    found = command(monkeypatch, tmp_path, *words)
    assert found.exit_code == 0, found.output
    assert "lower.weight" in found.output
    assert command(monkeypatch, tmp_path, "lint", "modules_of_torch:one").exit_code in {0, 1}
    assert command(monkeypatch, tmp_path, "check", "torch.nn:LayerNorm", "--like", "layer").exit_code in {0, 1}


@pytest.mark.parametrize("name", ["MLP with layer norm", "ResNet with batch norm", "Llama", "BERT"])
def test_models_of_the_table_are_those_of_torch(name):
    from analysis.measurements import from_torch

    found = from_torch.run(from_torch.MODELS[name], "float64")
    assert found["outputs"] < 1e-13
    assert max(found["Jv"], found["F"]) < 1e-11
    assert found["rank"] == found["rank in torch"]
    assert bool(found["casts"]) == (name == "Llama")


def test_the_example_of_the_readme_runs():
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "from_torch" in block)
    kept = np.tril(np.ones((12, 3), int))

    class Logits(Masked):
        def forward(self, **inputs):
            return {"logits": super().forward(**inputs), "hidden": self.table.weight}

    names = {"lg": lg, "module": Logits().double(), "ids": ids(), "mask": kept}
    exec(code, names)
    plain = Masked().double()
    plain.load_state_dict(names["module"].state_dict())
    agrees(names["F"], literal(plain, ids(), kept))
