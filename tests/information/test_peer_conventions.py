"""The table of scaling conventions, against the packages themselves."""

import re
from importlib import metadata
from pathlib import Path

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom._core.numerics import agreement
from lngeom.information.conventions import scaling

N, D, C = 12, 3, 2


def test_an_unknown_convention_is_explained():
    with pytest.raises(ValueError, match="no convention is known for 'curvlinops' with loss 'hinge'"):
        scaling("curvlinops", "hinge", samples=3)
    assert scaling("curvlinops", "mse, mean", samples=3, outputs=4) == 0.5
    assert scaling("curvlinops", "bce, mean", samples=3, outputs=4) == 0.25


def test_every_convention_says_what_it_rests_on():
    from lngeom.information.conventions import CONVENTIONS

    tested = Path(__file__).read_text()
    assert len({(c.library, c.loss) for c in CONVENTIONS}) == len(CONVENTIONS)
    for c in CONVENTIONS:
        assert c.basis in {"test", "measured", "documentation"}
        assert (c.basis == "test") == (f'"{c.loss}"' in tested and f'"{c.library.split()[0]}"' in tested)
        assert abs(scaling(c.library, c.loss, samples=7, outputs=3)) in {1, 2, 7, 14, 2 / 3, 1 / 3}
    assert scaling("laplace-torch 0.3", "classification", samples=7) == 7
    assert scaling("kfac-jax 0.0.8", "squared_error", samples=7) == 2


@pytest.mark.peers
def test_nothing_of_the_extra_is_missing_so_that_no_comparison_is_skipped():
    needed = [line for line in metadata.requires("lngeom") or [] if "peers" in line]
    assert len(needed) > 5
    for line in needed:
        assert metadata.version(re.split(r"[^\w.-]", line)[0])


def ours(family):
    """A linear model [C D] with bias, its parameters in PyTorch's order (weight, bias)."""
    W, b = jax.random.normal(jax.random.key(0), (C, D)), jnp.zeros(C)
    X = jax.random.normal(jax.random.key(1), (N, D))
    F = lg.fisher(lambda p, x: x @ p[0].T + p[1][None, :], (W, b), X, family=family)
    return np.asarray(F.as_matrix()), np.asarray(W), np.asarray(X)


def torch_model(torch, W):
    model = torch.nn.Linear(D, C).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(np.array(W)))
        model.bias.zero_()
    return model


LOSSES = {
    "mse": (lg.families.Gaussian(), "MSELoss"),
    "bce": (lg.families.Bernoulli(), "BCEWithLogitsLoss"),
    "cross_entropy": (lg.families.Categorical(), "CrossEntropyLoss"),
}


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", ["mse, mean", "mse, sum", "bce, mean", "cross_entropy, mean", "cross_entropy, sum"])
def test_curvlinops(loss):
    torch, curvlinops = pytest.importorskip("torch"), pytest.importorskip("curvlinops")
    name, reduction = loss.split(", ")
    family, torch_name = LOSSES[name]
    matrix, W, X = ours(family)
    y = torch.zeros(N, dtype=torch.long) if name == "cross_entropy" else torch.zeros(N, C).double()
    model = torch_model(torch, W)
    loss_function = getattr(torch.nn, torch_name)(reduction=reduction)
    G = curvlinops.GGNLinearOperator(model, loss_function, list(model.parameters()), [(torch.tensor(np.array(X)), y)])
    theirs = (G @ torch.eye(C * (D + 1)).double()).detach().numpy()
    assert agreement(theirs, matrix * scaling("curvlinops", loss, N, C), 1e-12).agrees


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("variant", "family"),
    [("classif_logits", lg.families.Categorical()), ("regression", lg.families.Gaussian())],
)
def test_nngeometry(variant, family):
    torch, metrics = pytest.importorskip("torch"), pytest.importorskip("nngeometry.metrics")
    objects = pytest.importorskip("nngeometry.object")
    matrix, W, X = ours(family)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        data = torch.utils.data.TensorDataset(torch.tensor(np.array(X)), torch.zeros(N, dtype=torch.long))
        loader = torch.utils.data.DataLoader(data, batch_size=N)
        FIM = metrics.FIM(torch_model(torch, W), loader, objects.PMatDense, variant=variant)
        theirs = (FIM.to_torch() if hasattr(FIM, "to_torch") else FIM.get_dense_tensor()).detach().numpy()
    finally:
        torch.set_default_dtype(before)
    assert agreement(theirs, matrix * scaling("nngeometry", variant, N, C), 1e-12).agrees


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", ["mse, sum", "cross_entropy, sum"])
def test_laplax(loss):
    laplax = pytest.importorskip("laplax.curv.ggn")
    name = loss.split(", ")[0]
    matrix, W, X = ours(LOSSES[name][0])
    y = jnp.zeros(N, jnp.int32) if name == "cross_entropy" else jnp.zeros((N, C))
    params = {"W": jnp.asarray(W), "b": jnp.zeros(C)}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        mv = laplax.create_ggn_mv(
            lambda input, params: params["W"] @ input + params["b"],
            params,
            {"input": jnp.asarray(X), "target": y},
            loss_fn=name,
            num_curv_samples=N,
            num_total_samples=N,
        )
        columns = [mv({"W": e[: C * D].reshape(C, D), "b": e[C * D :]}) for e in jnp.eye(C * (D + 1))]
    theirs = np.stack([np.concatenate([np.ravel(c["W"]), np.ravel(c["b"])]) for c in columns], 1)
    assert agreement(theirs, matrix * scaling("laplax", loss, N, C), 1e-12).agrees


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", ["mse, mean", "cross_entropy, mean"])
def test_somax(loss):
    curvature = pytest.importorskip("somax.curvature")
    name = loss.split(", ")[0]
    matrix, W, X = ours(LOSSES[name][0])
    y = jnp.zeros(N, jnp.int32) if name == "cross_entropy" else jnp.zeros((N, C))
    params = {"W": jnp.asarray(W), "b": jnp.zeros(C)}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        kind = curvature.GGNCE if name == "cross_entropy" else curvature.GGNMSE
        G = kind(predict_fn=lambda p, x: x @ p["W"].T + p["b"])
        state, *_ = G.init(params, {"x": jnp.asarray(X), "y": y}), None
        state = state[0] if isinstance(state, tuple) and not hasattr(state, "_fields") else state
        columns = [
            G.matvec(params, state, {"W": e[: C * D].reshape(C, D), "b": e[C * D :]}) for e in jnp.eye(C * (D + 1))
        ]
    theirs = np.stack([np.concatenate([np.ravel(c["W"]), np.ravel(c["b"])]) for c in columns], 1)
    assert agreement(theirs, matrix * scaling("somax", loss, N, C), 1e-12).agrees


def test_statsmodels_flips_the_sign():
    sm = pytest.importorskip("statsmodels.api")
    X = np.asarray(jax.random.normal(jax.random.key(1), (N, D)))
    beta = np.asarray([0.1, -0.2, 0.3])
    theirs = sm.GLM(np.ones(N), X, family=sm.families.Poisson()).information(beta, scale=1.0)
    F = lg.fisher(lambda p, x: x @ p, jnp.asarray(beta), jnp.asarray(X), family=lg.families.Poisson())
    assert agreement(theirs, F.as_matrix() * scaling("statsmodels", "GLM.information", N), 1e-12).agrees
