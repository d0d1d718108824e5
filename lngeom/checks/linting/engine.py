"""Runs the rules over the norms of a model."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from lngeom._core.text import counted
from lngeom._core.trees import leaf_path
from lngeom.checks._in_place import CALLS
from lngeom.checks._norms import candidates
from lngeom.checks.derivatives.in_place import GRADIENT, InPlace
from lngeom.checks.linting.case import Case, Decays
from lngeom.checks.linting.report import LintFinding, LintReport
from lngeom.checks.linting.rules import RULES
from lngeom.checks.model import consumers, producer
from lngeom.checks.placing import place
from lngeom.checks.recorded import Layer, layers_of


@np.errstate(all="ignore")  # what is not finite is a result
def lint(
    model: Any,
    X: Any,
    *,
    decay: Any = None,
    export: Any = None,
    training: bool = True,
    rules: Sequence[str] | None = None,
) -> LintReport:
    """Finds known mistakes around the norms of a model, each with its consequence on the model's activations.

    Args:
        model: as for `check_model`.
        X: as for `check_model`.
        decay: which parameters are decayed: a torch optimizer, a pytree of booleans like the parameters (as the mask of
            optax), or a function of the path of a parameter, such as "encoder.norm.scale". Without it, the rules about
            decay are silent.
        export: the exported model, of the same norms in the same order; without it, the rule about it is silent.
        training: whether norms with two modes are examined in training mode.
        rules: ids of the rules to run, out of `RULES`; by default all.

    Returns:
        The report; `print` it, or take `to_dict()` or `to_sarif()`.

    Raises:
        ValueError: if the model is of another kind, the forward pass fails, there is no such rule, or the exported
            model has another number of norms.

    Example:
        >>> import equinox as eqx, jax, lngeom as lg
        >>> norm = eqx.nn.LayerNorm(4, eps=0.5)
        >>> report = lg.lint(norm, jax.random.normal(jax.random.key(0), (5, 4)))
        >>> [f.rule for f in report.findings]
        ['epsilon-large']
    """
    if unknown := sorted(set(rules or ()) - set(RULES)):
        raise ValueError(f"no rule {', '.join(unknown)}; the rules are {', '.join(RULES)}")
    layers = layers_of(model, X)
    known = candidates(layers, training)
    norms = [c.layer for c in known if not c.problem]
    twins: list[Layer | None] = [None] * len(norms)
    if export is not None:
        twins = [c.layer for c in candidates(layers_of(export, X), training) if not c.problem]
        if len(twins) != len(norms):
            raise ValueError(
                f"export has {counted(len(twins), 'norm')} and the model {len(norms)}: give models of the same norms"
            )
    decays = None if decay is None else _decays(decay)
    chosen = [RULES[name] for name in rules or RULES]
    findings, shares, gradients = [], {}, InPlace(1, GRADIENT)
    unchecked = [(c.layer.path, "", c.problem) for c in known if c.problem]
    for layer, twin in zip(norms, twins, strict=True):
        try:
            first = place(layer, training)
            if first.unsteady:
                raise ValueError(f"called twice, its outputs differ by {first.unsteady:.1e}")
            if first.outside:
                raise ValueError(first.outside)
            exported = place(twin, training) if twin else None
            around = producer(layer, layers), tuple(consumers(layer, layers))
            case = Case(first, *around, decays, exported, gradients)
            others = [(i, Case(first.elsewhere(call))) for i, call in list(enumerate(layer.each_call()))[1:CALLS]]
            found = [s for s in (first.share, *(c.norm.share for _, c in others)) if not math.isnan(s)]
            shares[layer.path] = max(found, default=math.nan)
        except Exception as error:
            unchecked.append((layer.path, "", f"{error}".splitlines()[0]))
            continue
        for one in chosen:
            try:
                said = one.look(case)
                for i, other in others if one.of_inputs and not said else ():
                    if said := one.look(other):
                        said = f"in call {i + 1} of {len(layer.calls)}, {said}"
                        break
            except Exception as error:  # any error of a layer is a result
                unchecked.append((layer.path, one.id, f"{type(error).__name__}: {error}".splitlines()[0]))
                continue
            if said:
                findings.append(LintFinding(one.id, layer.path, layer.kind, said))
    first_of = model[0] if isinstance(model, tuple) else model
    return LintReport(type(first_of).__name__, tuple(findings), shares, tuple(unchecked))


def _decays(decay: Any) -> Decays:
    """Which parameters are decayed, as a function of a layer and the name of a parameter."""
    if hasattr(decay, "param_groups"):
        chosen = {id(p) for group in decay.param_groups if group.get("weight_decay") for p in group["params"]}

        def by_identity(layer: Layer, name: str) -> bool:
            return any(id(p) in chosen for k, p in layer.module.named_parameters() if k == name)

        return by_identity
    if callable(decay):
        return lambda layer, name: bool(decay(_full(layer, name)))
    leaves = jax.tree.leaves_with_path(decay)
    if not leaves or not all(isinstance(value, bool) for _, value in leaves):
        raise ValueError("decay must be a torch optimizer, a pytree of booleans or a function of a path")
    chosen_paths = {leaf_path(path).replace("/", ".").removeprefix("params.") for path, value in leaves if value}
    return lambda layer, name: _full(layer, name) in chosen_paths


def _full(layer: Layer, name: str) -> str:
    """Path of a parameter in the model, with dots."""
    own = name.rsplit(".", 1)[-1]
    return ".".join(filter(None, (layer.path.replace("/", "."), own)))
