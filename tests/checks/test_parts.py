"""Statistics over part of the positions, or over positions and units together, are found at the size of the inputs."""

import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from flax import linen, nnx
from lngeom.checks._formula import Sets

from tests.checks.test_places import layer_norm, module, normal


def grouped(x, groups=2):
    """A group norm over all positions, channels last."""
    parts = x.reshape(len(x), -1, groups, x.shape[-1] // groups)
    return layer_norm(parts, (1, 3)).reshape(x.shape)


def tiled(norm, rows, columns):
    """A norm of every tile by itself."""

    def call(self, x):
        blocks = [
            jnp.concatenate([norm(tile) for tile in jnp.split(strip, list(range(columns, x.shape[2], columns)), 2)], 2)
            for strip in jnp.split(x, list(range(rows, x.shape[1], rows)), 1)
        ]
        return jnp.concatenate(blocks, 1) * self.scale[...].astype(x.dtype)

    return call


@pytest.mark.parametrize(
    ("kind", "norm", "tile", "said"),
    [
        ("GroupNorm", grouped, (4, 4), "4 neighbours of axis 3 and 4 neighbours of axis 1 and 4 neighbours of axis 2"),
        ("GroupNorm", grouped, (4, 8), "axis 2 and 4 neighbours of axis 3 and 4 neighbours of axis 1"),
        ("GroupNorm", grouped, (3, 8), "first value of inputs [6, 8, 8, 8] enters outputs 0 to 2 of 8 along axis 1"),
        ("InstanceNorm", lambda x: layer_norm(x, (1, 2)), (8, 2), "axis 1 and 2 neighbours of axis 2"),
        ("BatchNorm", lambda x: layer_norm(x, (0, 1, 2)), (4, 4), "axis 0 and 4 neighbours of axis 1 and 4 neighbours"),
        ("LayerNorm", lambda x: layer_norm(x, (1, 2, 3)), (4, 8), "axes 2, 3 and 4 neighbours of axis 1"),
    ],
)
def test_a_norm_of_tiles_is_named_with_the_size_of_the_tiles(kind, norm, tile, said):
    built = module(kind, tiled(norm, *tile))
    built.num_groups = 2
    report = lg.check_model(built, normal(6, 8, 8, 8))
    assert [f.name for f in report[""].findings] == ["statistics"]
    assert said in report[""].findings[0].message
    whole = module(kind, tiled(norm, 8, 8))
    whole.num_groups = 2
    assert not lg.check_model(whole, normal(6, 8, 8, 8)).differs or kind == "LayerNorm"


def test_chunks_of_tokens_have_the_size_that_they_have_in_the_model():
    def chunks(self, x):
        parts = [layer_norm(part, (1, 2)) for part in jnp.split(x, 2, 1)]
        return jnp.concatenate(parts, 1) * self.scale[...].astype(x.dtype)

    (norm,) = lg.check_model(module("LayerNorm", chunks), normal(6, 10, 8)).norms
    assert "axis 2 and 5 neighbours of axis 1" in norm.findings[0].message


def pooled(self, x):
    return layer_norm(x, tuple(range(1, x.ndim))) * self.scale[...].astype(x.dtype)


@pytest.mark.parametrize("shape", [(6, 5, 8), (6, 40, 8), (6, 4, 4, 8)])
def test_a_layer_norm_over_tokens_and_units_is_named_with_its_axes(shape):
    (norm,) = lg.check_model(module("LayerNorm", pooled), normal(*shape)).norms
    axes = ", ".join(map(str, range(1, len(shape))))
    assert f"over axes {axes}" in norm.findings[0].message
    assert f"gains are along axis {len(shape) - 1} alone" in norm.findings[0].message
    assert not lg.check_model(module("GlobalLayerNorm", pooled), normal(*shape)).differs
    assert not lg.check_model(module("LayerNorm", pooled), normal(*shape), like={"": "ln_pooled"}).differs


@pytest.mark.parametrize("axes", [{"reduction_axes": (1, 2)}, {"reduction_axes": (-1, 1), "feature_axes": (1, 2)}, {}])
def test_axes_that_a_layer_norm_was_given_are_no_difference(axes):
    X = normal(6, 5, 8)
    assert not lg.check_model(linen.LayerNorm(**axes), X).differs
    assert not lg.check_model(nnx.LayerNorm(8, rngs=nnx.Rngs(0)), X).differs


def test_a_mean_over_tiles_and_groups_is_that_of_each():
    values = np.random.default_rng(0).normal(size=(2, 6, 4, 9))
    found = Sets((2,), 1, 3, True, tiles=((3, 3, False),)).mean(values)
    for group in range(3):
        for tile in range(3):
            part = (slice(None), slice(group, None, 3), slice(None), slice(3 * tile, 3 * tile + 3))
            expected = np.broadcast_to(values[part].mean((1, 2, 3), keepdims=True), values[part].shape)
            np.testing.assert_allclose(found[part], expected, atol=1e-15)


@pytest.mark.peers
def test_a_norm_over_neighbouring_channels_is_outside_of_the_table_and_never_called_faulty():
    from torch import nn

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.LocalResponseNorm(5))
    report = lg.check_model(model, normal(6, 3, 6, 6))
    assert (report["1"].checked, report["1"].findings, report.differs) == (False, (), False)
    assert "no row of the table: outputs change by" in report["1"].note
    linted = lg.lint(model, normal(6, 3, 6, 6))
    assert linted.findings == ()
    assert "no row of the table" in linted.unchecked[0][2]
    assert lg.check_model(model, normal(6, 3, 6, 6), include=["1"])["1"].checked  # it is shown where one asks for it


def test_the_name_of_a_class_is_read_in_words():
    kinds = {"LayerNormSimple": "ln", "GroupNormSilu": "gn", "RMSNorm": "rms", "T5LayerNorm": "ln", "NormRMS": "rms"}
    from lngeom.checks.recorded import layers_of

    for kind, row in kinds.items():
        layers = layers_of(module(kind, lambda self, x: layer_norm(x) * self.scale[...].astype(x.dtype)), normal(6, 8))
        assert layers[0].declared == row, kind
