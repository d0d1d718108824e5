"""Laplace approximations of one network by lngeom, laplax and laplace-torch: `python -m analysis laplace_peers`.

The network of `python -m analysis laplace_digits`, trained once in float64, with the same weights in JAX and PyTorch.
Each method gives the log evidence at τ = 1 for the weights as they are and with those before the norm multiplied by
10, and the negative log-likelihood and calibration error on other digits, from the mean of softmax over 200 draws of
linearized outputs. A method that stops is a row with its reason.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom._core.files import check_writable
from sklearn.datasets import load_digits

from analysis.measurements.laplace_digits import TRAINING, network, scores, trained
from analysis.store import write_results

Found = tuple[float, Any]
"""Log evidence, and mean responses [N C]."""
DRAWS = 200


def lngeom(gauge: bool, params: dict[str, Any], X: Any, y: Any, new: Any) -> Found:
    """The exact posterior of lngeom.

    Args:
        gauge: whether the gauge is taken out.
        params: trained weights.
        X: training inputs.
        y: their labels.
        new: other inputs.

    Returns:
        Log evidence and predictions.
    """
    groups = {"w": None} if gauge else None
    found = lg.laplace(network, params, X, y, family=lg.families.Categorical(), gauge=gauge, groups=groups)
    return found.log_evidence, found.predict(new, jax.random.key(9), DRAWS)


def laplax(params: dict[str, Any], X: Any, y: Any, new: Any) -> Found:
    """The full Gauss–Newton posterior of laplax; its evidence multiplies the log-likelihood by 1/(2σ), so σ = 1/2."""
    from laplax.api import laplace
    from laplax.enums import CurvApprox, LossFn
    from laplax.eval.likelihood import marginal_log_likelihood
    from laplax.eval.pushforward import lin_pred_mean, lin_samples, lin_setup, set_lin_pushforward

    data = {"input": X, "target": y}

    def model(input: Any, params: Any) -> Any:
        return network(params, input[None])[0]

    make, curvature = laplace(
        model,
        params,
        data,
        loss_fn=LossFn.CROSS_ENTROPY,
        curv_type=CurvApprox.FULL,
        num_curv_samples=len(X),
        num_total_samples=len(X),
    )
    prior = {"prior_prec": 1.0, "sigma": 0.5}

    def loss(z: Any, label: Any) -> Any:
        return jnp.sum(-jnp.take_along_axis(jax.nn.log_softmax(z), label[:, None], 1))

    evidence = marginal_log_likelihood(
        curvature, prior, data, model, params, loss, CurvApprox.FULL, vmap_over_data=True
    )
    push = set_lin_pushforward(
        model,
        params,
        make,
        prior,
        pushforward_fns=[lin_setup, lin_pred_mean, lin_samples],
        key=jax.random.key(9),
        num_samples=DRAWS,
    )
    return float(evidence), jax.lax.map(lambda x: jnp.mean(jax.nn.softmax(push(x)["samples"]), 0), new)


def laplace_torch(structure: str, params: dict[str, Any], X: Any, y: Any, new: Any) -> Found:
    """The posterior of laplace-torch.

    Args:
        structure: its `hessian_structure`.
        params: trained weights.
        X: training inputs.
        y: their labels.
        new: other inputs.

    Returns:
        Log evidence and predictions.
    """
    import torch
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    def tensor(a: Any) -> Any:
        return torch.tensor(np.asarray(a))

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = params["w"].shape[1]
            self.first = torch.nn.Linear(len(params["w"]), width, bias=False, dtype=torch.float64)
            self.norm = torch.nn.LayerNorm(width, eps=0, dtype=torch.float64)
            self.head = torch.nn.Linear(width, 10, dtype=torch.float64)
            targets = [self.first.weight, self.norm.weight, self.norm.bias, self.head.weight, self.head.bias]
            values = [params["w"].T, params["gain"], params["shift"], params["head"].T, params["bias"]]
            with torch.no_grad():
                for target, value in zip(targets, values, strict=True):
                    target.copy_(tensor(value))

        def forward(self, x: Any) -> Any:
            return self.head(torch.tanh(self.norm(self.first(x))))

    found: Any = Laplace(Network(), "classification", subset_of_weights="all", hessian_structure=structure)
    found.fit(DataLoader(TensorDataset(tensor(X), tensor(y)), batch_size=250))
    evidence = float(found.log_marginal_likelihood())
    torch.manual_seed(9)
    return evidence, found(tensor(new), pred_type="glm", link_approx="mc", n_samples=DRAWS).detach().numpy()


METHODS: dict[str, tuple[str, Callable[..., Found]]] = {
    "lngeom, gauge out": ("lngeom", lambda *a: lngeom(True, *a)),
    "lngeom, plain": ("lngeom", lambda *a: lngeom(False, *a)),
    "laplax, full": ("laplax", laplax),
    "laplace-torch, full": ("laplace", lambda *a: laplace_torch("full", *a)),
    "laplace-torch, Kronecker": ("laplace", lambda *a: laplace_torch("kron", *a)),
}
"""Row → the package it needs, and the method."""


def rows_of(width: int, steps: int, noise: float, tests: int) -> list[dict[str, Any]]:
    """A row for each method and scale of the weights."""
    digits, rng = load_digits(), np.random.default_rng(0)
    order = rng.permutation(len(digits.target))
    X, y = jnp.asarray(digits.data[order] / 16), digits.target[order]
    wrong = rng.random(TRAINING) < noise
    given = jnp.asarray(np.where(wrong, rng.integers(0, 10, TRAINING), y[:TRAINING]))
    params = trained(X[:TRAINING], given, width, steps, 0)
    new, truth = X[TRAINING : TRAINING + tests], y[TRAINING : TRAINING + tests]
    rows: list[dict[str, Any]] = []
    for name, (package, method) in METHODS.items():
        for factor in (1, 10):
            row: dict[str, Any] = {"method": name, "factor": factor}
            scaled = params | {"w": factor * params["w"]}
            start = time.perf_counter()
            if not importlib.util.find_spec(package):
                rows.append(row | {"failed": f"{package} is not installed"})
                continue
            try:
                evidence, p = method(scaled, X[:TRAINING], given, new)
                row |= {"log evidence": evidence} | scores(p, truth)
            except Exception as error:  # a peer's own
                row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            rows.append(row | {"seconds": time.perf_counter() - start})
    return rows


def page(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = ["| method | weights × | log evidence | accuracy | NLL | ECE | seconds |", "|---" * 7 + "|"]
    for row in rows:
        cells = [row["method"], str(row["factor"])]
        if "failed" in row:
            cells += [row["failed"], "", "", "", ""]
        else:
            numbers = (row["accuracy"], row["nll"], row["ece"])
            cells += [f"{row['log evidence']:.1f}", *(f"{n:.3f}" for n in numbers), f"{row['seconds']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, and writes `laplace_peers.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--noise", type=float, default=0.2, help="share of training labels drawn at random")
    parser.add_argument("--tests", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    check_writable(options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {k: v for k, v in vars(options).items() if k != "out"}
    with jax.enable_x64(True):
        rows = rows_of(**settings)
    write_results(options.out / "laplace_peers.json", {"configuration": settings, "rows": rows})
    print(page(rows))


if __name__ == "__main__":
    main()
