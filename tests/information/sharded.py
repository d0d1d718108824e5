"""Run as a program: compares the Fisher matrix of divided samples with that of one device.

python -m tests.information.sharded devices           8 simulated devices, axes Auto and Explicit
python -m tests.information.sharded process PORT ID   one of two processes on this machine
python -m tests.information.sharded dies PORT ID      the same, but process 1 dies before the sum
"""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_disable_most_optimizations", True)  # nearly all the time is compilation


def error(a, b) -> float:
    a, b = np.asarray(a), np.asarray(b)
    return float(np.max(np.abs(a - b)) / np.max(np.abs(b)))


def forms(F, every: bool) -> dict:
    v = jnp.cos(jnp.arange(F.in_size(), dtype=float))
    few = {"matrix": F.as_matrix(), "product": F @ v}
    if not every:
        return few
    more = {"products": F.mm(jnp.stack([v, 2 * v], 1)), "form": F.quadratic_form(v), "singular": F.singular_values()}
    return few | more


def largest_error(F, G, every: bool = False) -> float:
    expected = forms(G, every)
    return max(error(value, expected[name]) for name, value in forms(F, every).items())


class Errors(dict):
    """Prints each error as it comes."""

    def __setitem__(self, name, value):
        print(f"{value:.2e}  {name}", flush=True)
        super().__setitem__(name, value)


def devices() -> None:
    errors = Errors()
    for kind in ("Auto", "Explicit"):
        on_axes(kind, errors)
    print("largest", max(errors.values()))


def hidden_and_head(W, x):
    return jnp.tanh(x), W


def on_axes(kind: str, errors: Errors) -> None:
    import lngeom as lg

    from tests.information import zoo

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType[kind],))
    glm = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    batch = lg.NormalizedGLM(lg.normalizers.BatchNorm(), lg.families.Bernoulli())
    params = glm.init(jax.random.key(0), inputs=3, outputs=4)
    X = jax.random.normal(jax.random.key(1), (50, 3))  # not a multiple of 8
    for name, model in (("layer norm", glm), ("batch norm", batch)):
        F = lg.fisher(model, params, X, check=False)
        errors[f"{kind} {name}"] = largest_error(lg.fisher(model, params, X, mesh=mesh), F, every=True)
        errors[f"{kind} {name}, chunks"] = largest_error(lg.fisher(model, params, X, mesh=mesh, chunk=3), F)
    head = lg.information.VocabularyHead(hidden_and_head, block=4)
    W = jnp.cos(jnp.arange(30.0)).reshape(10, 3)
    whole, divided = (lg.fisher(head, W, X, family=lg.families.Categorical(), mesh=m) for m in (None, mesh))
    errors[f"{kind} logits in blocks"] = error(divided.mv(W), whole.mv(W))
    for make in (zoo.layer_norm_network, zoo.batch_norm_network):
        case = make()
        errors[f"{kind} {case.name}"] = largest_error(case.fisher(mesh=mesh), case.fisher(check=False))
    case = zoo.transformer_block()  # two samples on each device
    errors[f"{kind} {case.name}, chunks"] = largest_error(case.fisher(mesh=mesh, chunk=1), case.fisher(check=False))
    case = zoo.batch_coupled_network()  # statistics of two batch norms first, then chunks; 25 samples, and 24
    errors[f"{kind} {case.name}, chunks"] = largest_error(case.fisher(mesh=mesh, chunk=2), case.fisher(check=False))
    even = case._replace(X=jax.device_put(case.X[:24], NamedSharding(mesh, PartitionSpec("data"))))
    whole = case._replace(X=case.X[:24]).fisher(check=False)
    errors[f"{kind} {case.name}, sharded inputs"] = largest_error(even.fisher(chunk=2), whole)
    case = zoo.layer_norm_network()
    divided = jax.device_put(case.X, NamedSharding(mesh, PartitionSpec("data")))
    errors[f"{kind} sharded inputs"] = largest_error(case._replace(X=divided).fisher(), case.fisher(check=False))
    inputs = jax.device_put(X[:48], NamedSharding(mesh, PartitionSpec("data")))
    for model in (glm, batch):
        F = lg.fisher(model, params, X[:48], check=False)
        name = f"{kind} sharded inputs {model.normalizer}"
        errors[name] = error(lg.fisher(model, params, inputs).as_matrix(), F.as_matrix())
        if not model.normalizer.couples_samples:
            with jax.set_mesh(mesh):
                found = jax.jit(lambda p, X, m=model: forms(lg.fisher(m, p, X), False))(params, inputs)
            errors[f"{name}, inside jit"] = max(error(found[form], value) for form, value in forms(F, False).items())
    y = jnp.round(jnp.abs(jnp.cos(jnp.arange(200.0)))).reshape(50, 4)
    observed = {"method": "empirical", "check": False}
    divided_y = jax.device_put(y[:48], NamedSharding(mesh, PartitionSpec("data")))
    for name, there, here in (
        ("padded", lg.fisher(glm, params, X, y=y, mesh=mesh, **observed), lg.fisher(glm, params, X, y=y, **observed)),
        (
            "divided",
            lg.fisher(glm, params, inputs, y=divided_y, **observed),
            lg.fisher(glm, params, X[:48], y=y[:48], **observed),
        ),
    ):
        errors[f"{kind} observed responses, {name}"] = error(there.mv(params).weights, here.mv(params).weights)
    drawn = {"method": "monte_carlo", "key": jax.random.key(5), "samples": 3}
    sampled = (c.fisher(**drawn).as_matrix() for c in (case._replace(X=divided), case))
    errors[f"{kind} monte carlo"] = error(*sampled)
    two = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType[kind],) * 2)
    errors[f"{kind} two axes"] = error(case.fisher(mesh=two).as_matrix(), case.fisher(check=False).as_matrix())


def process(port: str, index: int, dies: bool) -> None:
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        num_processes=2,
        process_id=index,
        heartbeat_timeout_seconds=10,
        initialization_timeout=60,
    )
    import lngeom as lg

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=3, outputs=4)
    X = np.asarray(jax.random.normal(jax.random.key(1), (40, 3)))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = jax.make_array_from_callback(X.shape, sharding, lambda where: X[where])
    F = lg.fisher(model, params, everywhere, check=not dies)
    matrix = np.asarray(F.as_matrix())
    if dies:
        print("one sum", matrix.shape, flush=True)
        if index == 1:
            os._exit(7)
        for _ in range(100_000):
            np.asarray(F.as_matrix())
    local = lg.fisher(model, params, jnp.asarray(X), check=False)
    print("largest", max(error(matrix, local.as_matrix()), float(F.rank() != local.rank())), flush=True)


if __name__ == "__main__":
    mode, *arguments = sys.argv[1:]
    if mode == "devices":
        devices()
    else:
        process(arguments[0], int(arguments[1]), dies=mode == "dies")
