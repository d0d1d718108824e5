"""Fisher products and matrices against the other libraries, side by side: `python -m analysis.bench_fisher`.

Rounds are interleaved and the smallest time of each contender counts, so that a ratio is one of a single run.
A peer that is not installed is left out; what cannot finish is measured at fewer samples or
columns, and marked so.
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np

Contenders = dict[str, Callable[[], Any]]


class Network(NamedTuple):
    """A network with layer norm after each hidden layer, tanh, and a softmax output."""

    params: list
    inputs: jax.Array

    @classmethod
    def make(cls, sizes: list[int], samples: int, dtype: Any) -> "Network":
        """Random weights, gains of one, and normal inputs."""
        keys = jax.random.split(jax.random.key(0), len(sizes))
        params = []
        for key, a, b in zip(keys, sizes, sizes[1:], strict=False):
            layer = {"w": jax.random.normal(key, (a, b), dtype) / a**0.5, "b": jnp.zeros(b, dtype)}
            params.append(layer | {"gain": jnp.ones(b, dtype), "shift": jnp.zeros(b, dtype)})
        params[-1] = {name: params[-1][name] for name in ("w", "b")}
        return cls(params, jax.random.normal(keys[-1], (samples, sizes[0]), dtype))

    @staticmethod
    def apply(params: list, x: jax.Array) -> jax.Array:
        """Logits."""
        for layer in params[:-1]:
            x = x @ layer["w"] + layer["b"]
            x = x - jnp.mean(x, -1, keepdims=True)
            x = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
            x = jnp.tanh(x * layer["gain"] + layer["shift"])
        return x @ params[-1]["w"] + params[-1]["b"]

    def torch(self) -> tuple[Any, Any, Any, Any]:
        """The same model for PyTorch: module, inputs, labels, torch itself."""
        import torch

        dtype = torch.float64 if self.inputs.dtype == jnp.float64 else torch.float32
        torch.set_default_dtype(dtype)
        modules = []
        for layer in self.params:
            linear = torch.nn.Linear(*layer["w"].shape)
            with torch.no_grad():
                linear.weight.copy_(torch.tensor(np.array(layer["w"].T)))
                linear.bias.zero_()
            modules += [linear, torch.nn.LayerNorm(layer["w"].shape[1]), torch.nn.Tanh()]
        labels = torch.zeros(len(self.inputs), dtype=torch.long)
        return torch.nn.Sequential(*modules[:-2]), torch.tensor(np.array(self.inputs)), labels, torch


def best_times(contenders: Contenders, rounds: int, budget: float = 0.3) -> dict[str, float]:
    """Smallest mean time of each contender over interleaved rounds, in seconds."""
    repeats = {}
    for name, run in contenders.items():
        jax.block_until_ready(run())
        start = time.perf_counter()
        jax.block_until_ready(run())
        repeats[name] = max(1, int(budget / max(time.perf_counter() - start, 1e-6)))
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                result = run()
            jax.block_until_ready(result)
            best[name] = min(best[name], (time.perf_counter() - start) / repeats[name])
    return best


def has(package: str) -> bool:
    """Whether a peer is installed."""
    return importlib.util.find_spec(package) is not None


def jax_peers(apply: Callable, params: Any, X: jax.Array, v: Any) -> Contenders:
    """Products by somax and laplax, each set up once as its documentation says."""
    result: Contenders = {}
    labels = jnp.zeros(len(X), jnp.int32)
    if has("somax"):
        from somax.curvature import GGNCE

        G = GGNCE(predict_fn=apply)
        state, _ = G.init(params, {"x": X, "y": labels})
        product = jax.jit(lambda v: G.matvec(params, state, v))
        result["somax"] = lambda: product(v)
    if has("laplax"):
        from laplax.curv.ggn import create_ggn_mv

        mv = jax.jit(
            create_ggn_mv(
                lambda input, params: apply(params, input[None])[0],
                params,
                {"input": X, "target": labels},
                loss_fn="cross_entropy",
                num_curv_samples=len(X),
                num_total_samples=1,
            )
        )
        result["laplax"] = lambda: mv(v)
    return result


def torch_products(network: Network) -> Contenders:
    """Products by curvlinops and nngeometry."""
    result: Contenders = {}
    if has("curvlinops"):
        import curvlinops

        model, X, y, torch = network.torch()
        G = curvlinops.GGNLinearOperator(model, torch.nn.CrossEntropyLoss(), list(model.parameters()), [(X, y)])
        v = torch.ones(G.shape[1], dtype=X.dtype)
        result["curvlinops"] = lambda: G @ v
    return result


def plain_product(apply: Callable, family: Any) -> Callable:
    """The product written out: jvp → Λ → vjp, with params and X as arguments of one jit."""

    @jax.jit
    def product(params: Any, X: jax.Array, v: Any) -> Any:
        function = lambda p: apply(p, X)  # noqa: E731
        z, dz = jax.jvp(function, (params,), (v,))
        return jax.vjp(function, params)[1](family.metric_product(z, dz) / len(X))[0]

    return product


def bench_products(name: str, sizes: list[int], samples: int, dtype: Any, rounds: int) -> dict[str, float]:
    """One product with a network's Fisher matrix, and 64 at once."""
    network = Network.make(sizes, samples, dtype)
    family = lg.families.Categorical()
    F = lg.fisher(network.apply, network.params, network.inputs, family=family)
    v = jax.tree.map(jnp.ones_like, network.params)
    plain = plain_product(network.apply, family)
    compiled = jax.jit(lambda v: F.mv(v))
    times = best_times(
        {
            "lngeom": lambda: F.mv(v),
            "lngeom, in jit": lambda: compiled(v),
            "plain jvp → vjp": lambda: plain(network.params, network.inputs, v),
            **jax_peers(network.apply, network.params, network.inputs, v),
            **torch_products(network),
        },
        rounds,
    )
    many = jnp.ones((F.in_size(), 64), dtype)
    both = best_times({"64 products by mm": lambda: F.mm(many), "one": lambda: F.mv(v)}, 2)
    return times | {"64 products by mm": both["64 products by mm"], "64 × one, same rounds": 64 * both["one"]}


def bench_dense(sizes: list[int], samples: int, dtype: Any, rounds: int, peers: bool) -> dict[str, float]:
    """The dense matrix of a network."""
    network = Network.make(sizes, samples, dtype)
    F = lg.fisher(network.apply, network.params, network.inputs, family=lg.families.Categorical())
    contenders: Contenders = {"lngeom": F.as_matrix}
    zero = jax.tree.map(jnp.zeros_like, network.params)
    flat, unravel = jax.flatten_util.ravel_pytree(zero)
    if has("somax"):
        from somax.curvature import GGNCE

        G = GGNCE(predict_fn=network.apply)
        state, _ = G.init(network.params, {"x": network.inputs, "y": jnp.zeros(samples, jnp.int32)})
        one = lambda e: jax.flatten_util.ravel_pytree(G.matvec(network.params, state, unravel(e)))[0]  # noqa: E731
        columns = jax.jit(lambda: jax.lax.map(one, jnp.eye(flat.size, dtype=dtype), batch_size=256))
        contenders["somax"] = columns
    if peers and has("curvlinops"):
        import curvlinops

        model, X, y, torch = network.torch()
        C = curvlinops.GGNLinearOperator(model, torch.nn.CrossEntropyLoss(), list(model.parameters()), [(X, y)])
        eye = torch.eye(C.shape[1], dtype=X.dtype)
        contenders["curvlinops"] = lambda: [C @ eye[:, i : i + 256] for i in range(0, len(eye), 256)][-1].numpy()
    if peers and has("nngeometry"):
        from nngeometry.metrics import FIM
        from nngeometry.object import PMatDense

        model, X, y, torch = network.torch()
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), batch_size=samples)
        contenders["nngeometry"] = lambda: FIM(model, loader, PMatDense, variant="classif_logits").to_torch().numpy()
    return best_times(contenders, rounds)


def gemm_rate(size: int = 1024, rounds: int = 5) -> float:
    """Multiply-adds × 2 a second of a float64 matrix product."""
    a = jnp.ones((size, size), jnp.float64)
    product = jax.jit(jnp.matmul)
    return 2 * size**3 / best_times({"gemm": lambda: product(a, a)}, rounds)["gemm"]


def bench_glm(units: int, inputs: int, samples: int, rounds: int) -> dict[str, float]:
    """Dense exact matrix, and a product, of a layer-normalized logistic GLM in float64."""
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=inputs, outputs=units, dtype=jnp.float64)
    X = jax.random.normal(jax.random.key(1), (samples, inputs), jnp.float64)
    F = lg.fisher(model, params, X)
    v = jax.tree.map(jnp.ones_like, params)
    plain = plain_product(model.natural_parameters, model.family)
    few = X[:200]
    columns = jax.jit(
        lambda X: jax.lax.map(
            lambda e: plain(params, X, F.problem.unravel(e)), jnp.eye(F.in_size())[:256], batch_size=16
        )
    )
    jacobian = jax.jit(
        lambda X: (A := lg.fisher(model.natural_parameters, params, X, family=model.family).factor()).T @ A
    )
    times = best_times(
        {
            "lngeom dense": F.as_matrix,
            "256 columns of products": lambda: columns(X),
            "JᵀJ at N = 200": lambda: jacobian(few),
            "lngeom product": lambda: F.mv(v),
            "plain product": lambda: plain(params, X, v),
        },
        rounds,
    )
    floor = 2 * samples * units * (units + 1) / 2 * inputs * (inputs + 1) / 2
    return times | {
        "columns of products, scaled": times["256 columns of products"] * F.in_size() / 256,
        "JᵀJ, scaled": times["JᵀJ at N = 200"] * samples / 200,
        "fraction of the GEMM rate": floor / times["lngeom dense"] / gemm_rate(),
    }


def cost_in_samples(counts: list[int]) -> dict[int, dict[str, float]]:
    """Time of a streamed product and of the streamed diagonal, and bytes planned, as N grows."""
    result = {}
    for samples in counts:
        network = Network.make([16, 24, 4], samples, jnp.float32)
        F = lg.fisher(
            network.apply,
            network.params,
            network.inputs,
            family=lg.families.Categorical(),
            chunk=500,
            check=False,
        )
        v = jax.tree.map(jnp.ones_like, network.params)
        times = best_times({"product": lambda F=F, v=v: F.mv(v), "diagonal": F.diagonal}, 2, budget=0.05)
        compiled = jax.jit(lambda F, v: F.mv(v)).lower(F, v).compile().memory_analysis()
        result[samples] = times | {"temporary bytes": compiled.temp_size_in_bytes}
    return result


def cost_in_parameters(widths: list[int]) -> dict[int, float]:
    """Time of a product as P grows, P → seconds."""
    result = {}
    for width in widths:
        network = Network.make([width, width, 10], 256, jnp.float32)
        F = lg.fisher(network.apply, network.params, network.inputs, family=lg.families.Categorical(), check=False)
        v = jax.tree.map(jnp.ones_like, network.params)
        result[F.in_size()] = best_times({"product": lambda F=F, v=v: F.mv(v)}, 3)["product"]
    return result


def draw(results: dict, path: Path) -> None:
    """Two panels: time against N, and against P, with lines of slope one."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    samples = results["cost in N"]
    for name in ("product", "diagonal"):
        left.loglog(list(samples), [row[name] for row in samples.values()], "o-", label=name)
    first = next(iter(samples))
    left.loglog(list(samples), [samples[first]["product"] * n / first for n in samples], "k:", label="∝ N")
    left.set(xlabel="samples N", ylabel="time, s", title="Fisher products against N (chunks of 500)")
    left.legend()
    sizes = results["cost in P"]
    right.loglog(list(sizes), list(sizes.values()), "o-", label="product, N = 256")
    last = max(sizes)
    right.loglog(list(sizes), [sizes[last] * p / last for p in sizes], "k:", label="∝ P")
    right.set(xlabel="parameters P", ylabel="time, s", title="one product against P")
    right.legend()
    figure.savefig(path)


def table(results: dict) -> str:
    """The results as Markdown."""
    lines = ["| task | contender | time | ÷ lngeom |", "|---|---|---|---|"]
    for task, times in results.items():
        if task.startswith("cost"):
            continue
        own = times.get("lngeom", times.get("lngeom dense"))
        for name, value in times.items():
            if name.startswith("fraction"):
                lines.append(f"| {task} | {name} | {value:.2f} | |")
            else:
                lines.append(f"| {task} | {name} | {value * 1e3:.3g} ms | {value / own:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Runs the tasks named, prints the table, and writes JSON and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=["S", "M", "glm", "dense", "cost"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--small", action="store_true", help="fewer samples in the cost curves")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rounds, results = arguments.rounds, {}
    if "S" in arguments.tasks:
        results["product S"] = bench_products("S", [20, 32, 10], 256, jnp.float64, rounds)
    if "M" in arguments.tasks:
        results["product M"] = bench_products("M", [784, 512, 512, 10], 512, jnp.float32, rounds)
    if "glm" in arguments.tasks:
        for units, samples in ((32, 2000), (32, 10_000), (64, 2000)):
            results[f"LN GLM H = D = {units}, N = {samples}"] = bench_glm(units, units, samples, rounds)
    if "dense" in arguments.tasks:
        results["dense S"] = bench_dense([20, 32, 10], 256, jnp.float64, rounds, peers=True)
        results["dense D"] = bench_dense([64, 64, 10], 512, jnp.float32, min(rounds, 2), peers=True)
    if "cost" in arguments.tasks:
        results["cost in N"] = cost_in_samples([10**k for k in range(3, 6 if arguments.small else 7)])
        results["cost in P"] = cost_in_parameters([32, 128, 512] if arguments.small else [32, 64, 128, 256, 512, 1024])
        arguments.out.mkdir(parents=True, exist_ok=True)
        draw(results, arguments.out / "fisher_cost.svg")
    arguments.out.mkdir(parents=True, exist_ok=True)
    versions = {"jax": jax.__version__, "numpy": np.__version__}
    (arguments.out / "bench_fisher.json").write_text(json.dumps({"versions": versions, "results": results}, indent=1))
    print(table(results))


if __name__ == "__main__":
    main()
