"""The explorer: a web page on which the paper's claims can be tried by hand. It compares itself with the library."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lngeom import __version__, families
from lngeom._core.types import GLMParameters
from lngeom.claims import paper
from lngeom.claims.problem import NORMALIZERS, TITLES
from lngeom.information import fisher
from lngeom.information.glm import NormalizedGLM
from lngeom.information.orders import to_paper_order
from lngeom.information.predicted import predicted_nullspace
from lngeom.information.reference import as_printed
from lngeom.methods.transformations import TABLE1
from lngeom.methods.transformations.actions import Column
from lngeom.report.templating import environment
from lngeom.training.equilibrium import predict_equilibrium

SHAPE = 8, 4, 40
"""The largest H, D and N of the page; smaller layers are its first units, inputs and cases."""

TOLERANCE = 1e-12
"""Largest relative difference between a value of the page and the library's."""

SHIFT = (0.6, -0.35)
"""γ, for the two inputs of the small layer."""

WALK = {"rate": 0.2, "decay": 0.05}
MOVES = (
    ("bn", "weight_matrix_recentering"),
    ("wn", "dataset_recentering"),
    ("ln", "weight_vector_rescaling"),
)
"""Cells of Table 1 whose outputs move."""


def problem() -> tuple[GLMParameters, jax.Array]:
    """The page's largest layer and its data, rounded to two decimals, so that the page has the same numbers."""
    units, inputs, samples = SHAPE
    draw = np.random.default_rng(11)
    weights, data = draw.normal(size=(units, inputs)), draw.normal(size=(samples, inputs))
    gain, bias = draw.uniform(0.5, 1.5, units), 0.3 * draw.normal(size=units)
    weights, data, gain, bias = (jnp.asarray(np.round(v, 2)) for v in (weights, data, gain, bias))
    return GLMParameters(weights, bias, gain), data


def layer(units: int, inputs: int, samples: int) -> tuple[GLMParameters, jax.Array]:
    """A smaller layer: the first units, inputs and cases."""
    params, data = problem()
    small = GLMParameters(params.weights[:units, :inputs], params.bias[:units], params.gain[:units])
    return small, data[:samples, :inputs]


def _member(column: Column, params: GLMParameters, data: jax.Array) -> tuple[GLMParameters, jax.Array]:
    """The layer after a column's map of size one: factors 2, shifts γ, on the first unit or case where it is one."""

    def applied(value):
        factor, shift = functools.partial(jnp.full, fill_value=2.0), jnp.asarray(SHIFT)[None]
        return column.member(value, factor, lambda shape: shift, lambda rows: 0)(value)

    if column.acts_on == "weights":
        return GLMParameters(applied(params.weights), params.bias, params.gain), data
    return params, applied(data)


def values() -> dict[str, float]:
    """Twenty values by the library, by the names that the page knows them by.

    Returns:
        Name → value: outputs, norms, entries and eigenvalues of printed and exact Fisher matrices, dimensions of null
        spaces, blocks at twice the weights, and the equilibrium of SGD.
    """
    models = {name: NormalizedGLM(NORMALIZERS[name], families.Bernoulli()) for name in paper.TABLE1}
    columns = {column.name: column for column in TABLE1}
    found: dict[str, Any] = {}
    with jax.enable_x64(True):
        small = layer(3, 2, 7)
        for norm, name in MOVES:
            found[f"output, {norm}"] = models[norm].natural_parameters(*small)[2, 1]
            found[f"output, {norm}, {name}"] = models[norm].natural_parameters(*_member(columns[name], *small))[0, 0]
        params, data = layer(4, 2, 40)
        exact = fisher(models["ln"], params, data)
        dimension = predicted_nullspace(models["ln"], params, data).dimension
        matrices = {"exact": exact.as_matrix(), "printed": as_printed(models["ln"], params, data)}
        spectra = {
            "exact": np.square(np.asarray(exact.singular_values()))[: params.size - dimension],
            "printed": np.linalg.eigvalsh(np.asarray(matrices["printed"]))[::-1],
        }
        for kind, matrix in matrices.items():
            found[f"{kind} F, Frobenius norm"] = jnp.linalg.norm(matrix)
            found[f"{kind} F, entry 1, 2"] = to_paper_order(matrix, 4, 2)[0, 1]
            found[f"{kind} F, smallest positive eigenvalue"] = spectra[kind][-1]
        found["exact F, largest eigenvalue"] = spectra["exact"][0]
        found["nullity, H = 4, D = 2"] = params.size - exact.rank()
        found["nullity, H = 8, D = 2"] = predicted_nullspace(models["ln"], *layer(8, 2, 40)).dimension
        for norm, what, unit, size in (("bn", "w₁", 0, 2), ("wn", "w₁", 0, 2), ("ln", "W", slice(None), 8)):
            doubled = GLMParameters(params.weights.at[unit].multiply(2.0), params.bias, params.gain)
            own = fisher(models[norm], doubled, data).as_matrix()[:size, :size]
            found[f"block of {what} at 2 {what}, {norm}"] = jnp.linalg.norm(own)
    rest = predict_equilibrium("sgd", WALK["rate"], WALK["decay"])
    found |= {"angle at rest": rest.angle, "norm at rest": rest.norm}
    return {name: float(value) for name, value in found.items()}


@functools.cache
def content() -> Mapping[str, Any]:
    """The data of the page: its layer, Table 1 as printed, the columns' definitions, and values to compare with."""
    with jax.enable_x64(True):
        params, data = problem()
        arrays = {"W": params.weights, "X": data, "g": params.gain, "b": params.bias}
        arrays = {name: np.asarray(value).tolist() for name, value in arrays.items()}
    columns = [
        {"name": c.name, "heading": c.heading, "title": c.title, "on": c.acts_on, "scale": c.scale, "shift": c.shift}
        for c in TABLE1
    ]
    return {
        "version": __version__,
        "layer": arrays,
        "norms": {name: TITLES[name] for name in paper.TABLE1},
        "columns": columns,
        "paper": paper.TABLE1,
        "shift": SHIFT,
        "walk": WALK,
        "moves": MOVES,
        "values": list(values().items()),
        "tolerance": TOLERANCE,
    }


def script(given: Mapping[str, Any]) -> str:
    """The explorer's script with its data.

    Args:
        given: as `content` makes it.

    Returns:
        JavaScript.
    """
    return environment().get_template("explorer.js").render(content=given)


def style() -> str:
    """The explorer's style sheet."""
    return environment().get_template("explorer.css").render()


def page(given: Mapping[str, Any] | None = None, around: Mapping[str, str] | None = None) -> str:
    """Renders the explorer as a page of its own, which needs no network and runs no script but its own.

    Args:
        given: as `content` makes it; None for that.
        around: title → address of other pages of the same site.

    Returns:
        HTML.
    """
    given = content() if given is None else given
    templates = environment()
    sheet = templates.get_template("explorer.page.css").render() + style()
    return templates.get_template("explorer.html.j2").render(
        paper=paper, content=given, around=around or {}, script='"use strict";\n' + script(given), style=sheet
    )
