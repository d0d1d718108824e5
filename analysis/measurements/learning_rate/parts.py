"""What `python -m analysis learning_rate` measures: a digits MLP, a GRU that reads digits by rows, and random walks.

Every part is a function of the settings alone and gives arrays by name, so that a part can be kept and not run again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from lngeom import families, fisher, nn, training
from lngeom.claims import Problem
from lngeom.claims.problem import NORMALIZERS
from lngeom.papers.training import equilibria, network
from lngeom.papers.training.equivalence import TITLES, scaled_runs
from lngeom.papers.training.exponential import EXPONENTIAL, EXPONENTIAL_ADAPTIVE, exponential_runs
from lngeom.training import track_geometry

from analysis.experiments.datasets import bundled_digits
from analysis.measurements.learning_rate.networks import (
    OPTIMIZERS,
    Part,
    Reader,
    Sizes,
    cross_entropy,
    digit_arrays,
    make_task,
    mlp,
    mlp_logits,
    tracked,
    train_network,
)


def growth(sizes: Sizes, folder, progress) -> Part:
    """Without weight decay: norms and effective rates of the MLP by optimizer, and of the GRU under SGD."""
    data = digit_arrays()
    make = lambda key: mlp(sizes.hidden, data["x"].shape[1], key)  # noqa: E731
    found = {
        f"MLP, {name}": train_network(
            f"growth_{name}", make_task(sizes, make, mlp_logits, tracked(name, False)), sizes, data, folder, progress
        )
        for name in ("SGD", "momentum", "AdamW")
    }
    images = bundled_digits().train_images.astype(np.float64)
    rows = {"x": jnp.asarray(images), "y": data["y"]}

    def reader(key):
        keys = jax.random.split(key)
        cell = nn.LayerNormGRU(8, sizes.hidden, key=keys[0], exact=True, dtype=float)
        return Reader(cell, jax.random.normal(keys[1], (10, sizes.hidden), float) / sizes.hidden**0.5)

    groups = ["cell.recurrent_weights", "cell.input_weights"]
    tracker = track_geometry(optax.sgd(0.5), learning_rate=0.5, kind="sgd", groups=groups, every=1)
    task = make_task(sizes, reader, lambda model, x: model(x), tracker)
    return found | {"GRU, SGD": train_network("growth_GRU", task, sizes, rows, folder, progress)}


def equilibrium(sizes: Sizes, folder, progress) -> Part:
    """Weight decay on the MLP, and random walks of the kind that the predictions are for."""
    data = digit_arrays()
    make = lambda key: mlp(sizes.hidden, data["x"].shape[1], key)  # noqa: E731
    longer = Sizes(**(sizes.__dict__ | {"steps": 3 * sizes.steps}))
    found: Part = {
        f"MLP, {name}": train_network(
            f"equilibrium_{name}",
            make_task(longer, make, mlp_logits, tracked(name, True)),
            longer,
            data,
            folder,
            progress,
        )
        for name in OPTIMIZERS
    }
    problem = Problem(data["x"], 0)
    for name in equilibria.OPTIMIZERS:
        rest = equilibria.prediction(name)
        norms, angles = (np.asarray(v) for v in equilibria.walk(problem, name, 1.5))
        every = slice(None, None, 20)
        found[f"walk, {name}"] = {
            "steps": np.arange(1, norms.shape[1] + 1)[every],
            "norm": norms.mean(0)[every] / rest.norm,
            "angle": angles.mean(0)[every] / rest.angle,
            "excess": (norms**rest.power).mean(0)[every] / rest.norm**rest.power - 1,
            "relaxation": rest.relaxation,
        }
    return found


def equivalence(sizes: Sizes, folder, progress) -> Part:
    """Distance in function space between a run from W and two from cW, for every optimizer."""
    problem = Problem(digit_arrays()["x"], 0)
    found = {}
    for name in TITLES:
        base, same, wrong, *_ = (np.asarray(v) for v in scaled_runs(problem, name))
        scale = np.abs(base).max()
        found[name] = {
            "equivalent": np.abs(same - base).max((1, 2)) / scale,
            "wrong power": np.abs(wrong - base).max((1, 2)) / scale,
        }
    return found


def exponential(sizes: Sizes, folder, progress) -> Part:
    """Weight decay against a growing learning rate: outputs, norms, rates."""
    problem = Problem(digit_arrays()["x"], 0)
    cases = {k: v for k, v in {**EXPONENTIAL, **EXPONENTIAL_ADAPTIVE}.items() if "," not in k}
    found = {}
    for name, (base, converted, rate, decay, settings) in cases.items():
        outputs, same, norms, _ = (
            np.asarray(v) for v in exponential_runs(problem, name, base, converted, decay, rate, **settings)
        )
        other = training.equivalent_schedule(name, rate, decay, without_weight_decay=True, **settings)
        steps = np.arange(len(norms))
        found[name] = {
            "difference": np.abs(outputs - same).max((1, 2)) / np.abs(outputs).max(),
            "rate": np.array([other.learning_rate(t) for t in range(len(norms))]) / rate,  # pyright: ignore
            "norm": norms,
            "norm with decay": norms / np.asarray(jax.vmap(other.norm_ratio)(jnp.asarray(steps + 1))),
        }
    return found


def _trained(sizes: Sizes, normalizer: str = "ln", moments: tuple[int, ...] = (200,), rate: float = 0.3, scale=1.0):
    """Parameters of the MLP after so many steps of SGD, and the data."""
    data = digit_arrays()
    data = {"x": scale * data["x"], "y": data["y"]}
    params = mlp(sizes.hidden, data["x"].shape[1], jax.random.key(0))

    @jax.jit
    def run():
        def step(params, t):
            rows = jax.random.randint(jax.random.fold_in(jax.random.key(1), t), (sizes.batch,), 0, len(data["x"]))
            slope = jax.grad(lambda p: cross_entropy(mlp_logits(p, data["x"][rows], normalizer), data["y"][rows]))
            return jax.tree.map(lambda p, g: p - rate * g, params, slope(params)), params

        return jax.lax.scan(step, params, jnp.arange(max(moments) + 1))[1]

    path = run()
    return [jax.tree.map(lambda v: v[t], path) for t in moments], data  # noqa: B023


def doubling(sizes: Sizes, folder, progress) -> Part:
    """Angle of one step, and blocks of the Fisher matrix, against a factor c on w1 of the trained MLP."""
    (params,), data = _trained(sizes)
    factors = 2.0 ** np.arange(-2, 4)
    optimizers = {"SGD": optax.sgd(1e-4), "Adam": optax.adam(1e-5, eps=0.0), "Lion": optax.lion(1e-5, weight_decay=0.0)}

    def angle(factor, optimizer):
        w = factor * params["w1"]
        gradient = jax.grad(lambda w: cross_entropy(mlp_logits(params | {"w1": w}, data["x"]), data["y"]))(w)
        update, _ = optimizer.update(gradient, optimizer.init(w), w)
        after = w + update
        across = after - jnp.sum(after * w) / jnp.sum(w**2) * w
        return jnp.arctan(jnp.linalg.norm(across) / jnp.linalg.norm(w))

    chosen = {name: params[name] for name in ("w1", "g1", "w3")}
    apply = lambda p, x: mlp_logits(params | p, x)  # noqa: E731
    x = data["x"][:200]

    @jax.jit
    def blocks(factor):
        scaled = chosen | {"w1": factor * chosen["w1"]}
        F = fisher(apply, scaled, x, family=families.Categorical(), check=False).as_matrix()
        first = chosen["g1"].size  # leaves in order of their names: g1, w1, w3
        own = slice(first, first + chosen["w1"].size)
        return [jnp.linalg.norm(F[own, own]), jnp.linalg.norm(F[own, :first]), jnp.linalg.norm(F[:first, :first])]

    with jax.numpy_dtype_promotion("standard"):
        angles = {
            name: np.array([jax.jit(angle, static_argnums=1)(c, o) for c in factors]) for name, o in optimizers.items()
        }
    found = np.array([blocks(c) for c in factors])
    return {
        "factor": factors,
        "angle": angles,
        "blocks": {"w–w": found[:, 0], "w–g": found[:, 1], "g–g": found[:, 2]},
    }


def gain_magnitude(sizes: Sizes, folder, progress) -> Part:
    """Loss of a logistic model on real labels when only the magnitudes are learned, at three scales of the inputs."""
    data = digit_arrays()
    x, y = data["x"], jax.nn.one_hot(data["y"], 10, dtype=float)
    directions = jnp.stack([jnp.mean(x[data["y"] == c], 0) - jnp.mean(x, 0) for c in range(10)])
    directions = directions / jnp.linalg.norm(directions, axis=1, keepdims=True)
    found: Part = {}
    for method, label in (("bn", "gain of batch norm"), ("ln", "gain of layer norm"), ("identity", "norm of w")):
        for factor in (1, 10, 1000):

            @jax.jit
            def run(m, x, method=method, factor=factor):
                n = NORMALIZERS[method](directions, factor * x)

                def value(m):
                    return jnp.mean(optax.sigmoid_binary_cross_entropy(m[None] * n - 2.0, y))

                return jax.lax.scan(lambda m, _: (m - 1.0 * jax.grad(value)(m), value(m)), m, None, length=200)[1]

            found[f"{label}, inputs × {factor}"] = np.asarray(run(jnp.full(10, 0.1), x))
    return found


def edge_of_stability(sizes: Sizes, folder, progress) -> Part:
    """η_eff λ₁ on the sphere along gradient descent with weight decay, for a small layer on the digits."""
    net = network.network(Problem(digit_arrays()["x"], 0))
    found: Part = {}

    def value(weights):
        return network.loss(net.params | {"weights": weights}, net.inputs, net.labels)

    for rate, decay in ((0.5, 2e-3), (0.5, 4e-4), (0.5, 1e-4)):

        @jax.jit
        def run(rate=rate, decay=decay):
            def step(weights, _):
                weights = (1 - rate * decay) * weights - rate * jax.grad(value)(weights)
                return weights, (weights, value(weights))

            _, (path, losses) = jax.lax.scan(step, net.params["weights"], None, length=sizes.edge_steps)
            some = path[:: sizes.edge_steps // 100]
            hessians = jax.lax.map(lambda w: jax.hessian(value)(w).reshape(w.size, w.size), some)
            return hessians, losses[:: sizes.edge_steps // 100], jnp.linalg.norm(some, axis=(1, 2))

        hessians, losses, norms = (np.asarray(v) for v in run())
        found[f"ηλ = {rate * decay:.0e}"] = {
            "steps": np.arange(len(losses)) * (sizes.edge_steps // 100),
            "sharpness": rate * np.linalg.eigvalsh(hessians)[:, -1] / (1 - rate * decay),
            "loss": losses,
            "norm": norms,
        }
    return found


def fisher_spectra(sizes: Sizes, folder, progress) -> Part:
    """Largest eigenvalue and effective rank of the Fisher matrix of w1 along training, by normalizer."""
    moments = (0, 5, 10, 20, 50, 100, 200, 400)
    found: Part = {"steps": np.array(moments)}
    for method in ("identity", "bn", "wn", "ln", "rms"):
        path, data = _trained(sizes, method, moments, rate=0.1)
        x = data["x"][:100]

        @jax.jit
        def gram(params, method=method, x=x):
            """√Λ J (√Λ J)ᵀ/N over samples and classes: its eigenvalues are those of F, and it is smaller."""
            z, pull = jax.vjp(lambda w: mlp_logits(params | {"w1": w}, x, method), params["w1"])
            q = jax.nn.softmax(z)
            root = jnp.sqrt(q)[:, :, None] * (jnp.eye(10, dtype=z.dtype)[None] - q[:, None, :])
            cotangents = root[:, :, None, :] * jnp.eye(len(x), dtype=z.dtype)[:, None, :, None]
            rows = jax.lax.map(lambda c: pull(c)[0].reshape(-1), cotangents.reshape(-1, *z.shape), batch_size=50)
            return rows @ rows.T / len(x)

        spectra = [np.linalg.eigvalsh(np.asarray(gram(p))) for p in path]
        losses = [float(cross_entropy(mlp_logits(p, data["x"], method), data["y"])) for p in path]
        found[method] = {
            "largest": np.array([s[-1] for s in spectra]),
            "effective rank": np.array([s.sum() ** 2 / (s**2).sum() for s in spectra]),
            "loss": np.array(losses),
        }
    return found


PARTS: dict[str, Callable[[Sizes, Path | None, Any], Part]] = {
    "lr_doubling": doubling,
    "lr_equivalence": equivalence,
    "lr_exponential": exponential,
    "lr_growth": growth,
    "lr_equilibrium": equilibrium,
    "lr_gain_magnitude": gain_magnitude,
    "lr_edge_of_stability": edge_of_stability,
    "lr_fisher_spectra": fisher_spectra,
}
