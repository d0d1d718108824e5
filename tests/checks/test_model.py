"""Norms in their places: found, checked with their own weights on the inputs that reach them, in one table."""

import lngeom as lg
import numpy as np
import pytest
from lngeom.checks.findings import Verdict


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def torch_model():
    import torch
    from torch import nn

    torch.manual_seed(0)
    first = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True), nn.Flatten()]
    weighted = nn.utils.parametrizations.weight_norm(nn.Linear(128, 5, bias=False))
    model = nn.Sequential(*first, weighted, nn.Linear(5, 6), nn.LayerNorm(6))
    for norm in (model[1], model[2], model[3], model[7]):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return model


@pytest.mark.thorough
@pytest.mark.peers
def test_every_norm_of_a_torch_model_is_as_its_row_with_trained_gains_and_biases():
    model = torch_model()
    report = lg.check_model(model, normal(7, 3, 6, 6))
    found = {n.path: (n.units, n.axis, n.like) for n in report.norms}
    assert found == {
        "1": (8, (1,), "bn"),
        "2": (8, (1,), "gn_spatial"),
        "3": (8, (1,), "in"),
        "5": (5, (0,), "wn"),
        "7": (6, (1,), "ln"),
        "6 → 7": (6, (1,), "ln"),
    }
    assert not report.differs, str(report)
    assert not report.unchecked
    assert model.training  # the model is as it was
    assert {"weight_matrix_rescaling", "weight_vector_rescaling"} <= set(report["5"].holds)
    assert "bias" in report["6 → 7"].note  # a bias before the norm keeps re-scaling of the weights from holding
    assert report["2"].statistics == "units in 2 groups, positions"
    assert 1e-6 < report["7"].eps_share < 1e-2


class Wrong:
    """Layer norms whose statistics are taken over samples."""

    @staticmethod
    def model():
        import equinox as eqx
        import jax
        import jax.numpy as jnp

        class LayerNorm(eqx.Module):
            weight: jax.Array

            def __call__(self, x):
                mean = jax.lax.pmean(jnp.mean(x), "batch")
                variance = jax.lax.pmean(jnp.mean(jnp.square(x - mean)), "batch")
                return (x - mean) / jnp.sqrt(variance + 1e-5) * self.weight

        return LayerNorm(jnp.linspace(0.5, 1.5, 6))


@pytest.mark.thorough
def test_a_layer_norm_over_samples_differs_from_its_row():
    report = lg.check_model(Wrong.model(), normal(5, 6))
    norm = report[""]
    assert norm.like == "ln"
    assert "batch_independence" in norm.differences
    assert report.differs
    assert next(r for r in norm.results if r.name == "batch_independence").verdict is Verdict.NOT
    assert "samples" in norm.statistics


@pytest.mark.peers
def test_data_may_be_rows_a_dict_or_a_tuple():
    import torch
    from lngeom.checks.recorded import layers_of

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(4)

        def forward(self, left, right):
            return self.norm(left + right)

    left, right = normal(5, 4), normal(5, 4) * 2
    rows = [{"left": a, "right": b} for a, b in zip(left, right, strict=True)]
    for X in (rows, {"left": left, "right": right}, (left, right)):
        (norm,) = [layer for layer in layers_of(Model(), X) if layer.is_norm]
        assert np.allclose(norm.inputs, left + right)
    with pytest.raises(ValueError, match="rows of X must have the same keys"):
        layers_of(Model(), [{"left": left[0]}, {"right": right[0]}])


def test_axes_of_units_are_measured_and_inputs_come_from_the_pass():
    import equinox as eqx
    import jax
    from lngeom.checks.placing import place
    from lngeom.checks.recorded import layers_of

    class Model(eqx.Module):
        mix: eqx.nn.Linear
        norm: eqx.nn.LayerNorm
        group: eqx.nn.GroupNorm

        def __call__(self, x):
            return self.group(jax.vmap(self.norm)(jax.vmap(self.mix)(x)).T)

    model = Model(eqx.nn.Linear(5, 6, key=jax.random.key(0)), eqx.nn.LayerNorm(6), eqx.nn.GroupNorm(3, 6))
    X = normal(7, 4, 5)
    layers = {layer.path: layer for layer in layers_of(model, X)}
    norm, group = place(layers["norm"]), place(layers["group"])
    mixed = X @ np.asarray(model.mix.weight).T + np.asarray(model.mix.bias)
    assert np.allclose(layers["norm"].inputs, mixed, atol=1e-5)
    assert (norm.axes, norm.measured, norm.row) == ((2,), True, "ln")
    assert (group.axes, group.measured, group.row, group.groups) == ((1,), True, "gn_spatial", 3)


def test_bad_input_is_named():
    import equinox as eqx

    with pytest.raises(ValueError, match="a model is a module of torch, flax"):
        lg.check_model(np.sin, normal(5, 6))
    with pytest.raises(ValueError, match="no layer head; there are"):
        lg.check_model(eqx.nn.Sequential([eqx.nn.LayerNorm(6)]), normal(5, 6), include=["head"])
    report = lg.check_model(eqx.nn.Identity(), normal(5, 6))
    assert "no norm was found" in str(report)


@pytest.mark.thorough
def test_norms_of_weights_are_checked_in_flax_and_equinox():
    import equinox as eqx
    import jax
    from flax import nnx

    rngs = nnx.Rngs(0)
    layers = (
        nnx.WeightNorm(nnx.Linear(5, 4, rngs=rngs), rngs=rngs),
        nnx.SpectralNorm(nnx.Linear(4, 6, rngs=rngs), rngs=rngs),
    )
    report = lg.check_model(nnx.Sequential(*layers), normal(7, 5))
    assert [(n.units, n.like, n.differences) for n in report.norms] == [(4, "wn", ()), (6, "sn", ())]
    assert {"weight_matrix_rescaling", "weight_vector_rescaling"} <= set(report.norms[0].holds)
    assert "weight_vector_rescaling" not in report.norms[1].holds
    weighted = eqx.nn.WeightNorm(eqx.nn.Linear(5, 4, key=jax.random.key(0)))
    (norm,) = lg.check_model(weighted, normal(7, 5)).norms
    assert (norm.units, norm.like, norm.differences) == (4, "wn", ())


def test_a_norm_of_weights_that_cannot_be_checked_is_named():
    from flax import linen

    class Pair(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(3)(linen.Dense(4)(x))

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.WeightNorm(Pair())(x)

    report = lg.check_model(Model(), normal(7, 5))
    assert [n.path for n in report.unchecked] == ["WeightNorm_0"]
    assert "it normalizes weights" in str(report)


def test_shifts_of_small_inputs_are_not_rounded_to_zero():
    from lngeom.checks._orbits import Data, draw
    from lngeom.methods.transformations.columns import SINGLE_CASE_CONSTANT_SHIFT

    data = Data(np.eye(3), 1e-3 * normal(4, 3).astype(float))
    for seed in range(3):
        moved = draw(SINGLE_CASE_CONSTANT_SHIFT, data, seed).apply(data)
        assert np.all(np.ptp(moved.inputs - data.inputs, 0) > 1e-5)  # each sample by another constant


@pytest.mark.peers
def test_a_haiku_function_without_a_random_key_is_taken():
    import haiku as hk
    import jax
    from lngeom.checks.recorded import layers_of

    function = hk.without_apply_rng(hk.transform(lambda x: hk.LayerNorm(-1, True, True)(x)))
    X = normal(5, 4)
    (layer,) = [k for k in layers_of((function, function.init(jax.random.key(0), X)), X) if k.is_norm]
    assert np.allclose(layer.outputs.mean(-1), 0, atol=1e-6)
