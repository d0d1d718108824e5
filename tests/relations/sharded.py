"""Run as a program with several devices: `python -m tests.relations.sharded DRAWS`, samples divided over them."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.relations.models import cases
from tests.relations.relation import as_users_have_it, assert_close, assert_same_matrix

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # nearly all the time is compilation


def samples_on_several_devices_have_the_matrix_of_one(case, given_mesh, kind, masked):
    """Of 12 samples on 4 devices: those given with `mesh=`, and those that lie there."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType[kind],))
    mask = np.arange(12) % 3 if masked else None
    if masked and jax.eval_shape(case.model.apply, case.params, case.X).ndim > 2:
        mask = None
    whole = case.fisher(mask=mask)
    divided = jax.device_put(case.X, NamedSharding(mesh, PartitionSpec("data")))
    F = case.fisher(mask=mask, mesh=mesh) if given_mesh else case.fisher(X=divided, mask=mask)
    v = jnp.asarray(np.random.default_rng(0).normal(size=F.in_size()))
    assert_same_matrix(F.as_matrix(), whole.as_matrix())
    assert_close(F.mv(v), whole.mv(v))
    assert_close(F.diagonal(), whole.diagonal())
    assert_close(F.solve(v, 0.1).value, whole.solve(v, 0.1).value, 1e-7)


def main(draws: int) -> None:
    """Runs the relation on so many draws."""
    assert jax.device_count() == 4
    quiet = settings(
        max_examples=draws, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    strategies = {"given_mesh": st.booleans(), "kind": st.sampled_from(["Auto", "Explicit"]), "masked": st.booleans()}
    with as_users_have_it():
        quiet(given(case=cases(), **strategies)(samples_on_several_devices_have_the_matrix_of_one))()


if __name__ == "__main__":
    import sys

    main(int(sys.argv[1]))
