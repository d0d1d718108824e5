r"""A norm in its place in a model: the layout of its units, its formula, and its share of ε.

All of it is measured on the layer as a function. Invariances and the formula are measured on probes: numbers without
special values, of the shape of the layer's inputs. They are scaled by `far` where no ε should matter, and by `size`
where it should matter as much as for the layer's own inputs. Padding, dead units or offsets of the inputs therefore
give no verdict. Only what depends on the inputs (the share of ε, lost digits) is measured on them, without sets of
values whose spread is not above the rounding of the inputs.

A change counts as a difference if it is above `tolerance`, which follows from the digits with which the layer computes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from lngeom._core.draws import probe_generator
from lngeom.checks._formula import Fitted, Formula, Sets, explain, fit, fitted, follows, formulas
from lngeom.checks._probed import LARGEST, SAMPLES, SIDE, UNITS, Probed
from lngeom.checks._reach import Reach, reach_of
from lngeom.checks.recorded import Layer
from lngeom.checks.subject import deviation
from lngeom.methods.page import GROUPS

ROWS = {"ln", "rms", "gn", "gn_spatial", "in", "bn", "ln_pooled"}
"""Rows of the invariance table that a layer of summed inputs may be."""


class Coupling(NamedTuple):
    """What the statistics of a value are taken over.

    Attributes:
        samples: other samples.
        positions: other positions of the sample.
        units: number of units, itself included.
    """

    samples: bool
    positions: bool
    units: int


@dataclass(frozen=True)
class Placed(Probed):
    """A norm in its place; its attributes are those of `Probed`."""

    @cached_property
    def fitted(self) -> Fitted | None:
        """The formula that gives its outputs, up to a gain and a bias of each place.

        For a layer that normalizes nothing it is that of a map of each value by itself, where it is one.
        """
        if self.constant or not np.all(np.isfinite(self.outputs)):
            return None
        tolerance = max(10 * self.tolerance, 1e-6)
        if self.normalizes:
            large = int(np.prod(self.shape)) > LARGEST  # of large arrays, only what single values reached is tried
            tried = self._likely if large else formulas(self.shape, self._likely)
            return explain(self.probes, self.outputs, tolerance, self.unit, tried)
        near = np.stack([self.run(self.size * x) for x in self.probes])
        found = fitted(None, self.size * self.probes, near, self.unit)
        return found if np.max(found.off) <= tolerance else None

    @property
    def _likely(self) -> list[Formula]:
        """Formulas that the name of its class promises."""
        long = [a for a in range(len(self.shape)) if self.shape[a] > 1]
        units, positions = (tuple(a for a in long if a in axes) for axes in (self.axes, self.positions))
        declared = self.layer.declared
        sets = {
            "ln": [Sets(units), Sets((*positions, *units))],
            "rms": [Sets(units)],
            "in": [Sets(positions)],
            "bn": [Sets(tuple(a for a in long if a not in units))],
        }.get(declared or "", [])
        if declared == "gn" and len(self.axes) == 1 and self.promised_groups:
            groups = self.promised_groups
            inner = {1: Sets((*positions, *units)), self.units: Sets(positions)}
            sets = [inner.get(groups, Sets(positions, self.axes[0], groups))] if self.units % groups == 0 else []
        sets = [s for s in sets if s.axes or s.split is not None]
        found = [Formula(s) if declared == "rms" else Formula(s, s, True) for s in sets]
        reached = None if self.reached is None else self.reached.sets(self.axes)
        return found if reached is None else [*found, Formula(reached, reached, True), Formula(reached)]

    @cached_property
    def reach(self) -> Reach | None:
        """Where outputs move with one value of inputs of the shape of its own, which may be larger than the probes."""
        inputs = self.layer.inputs
        if (
            self.reached is not None
            or self.layer.several
            or self.unit == UNITS[2]
            or self.shape[1:] == inputs.shape[1:]
        ):
            return self.reached
        count = min(SAMPLES, len(inputs), max(2, LARGEST // max(inputs[:1].size, 1)))
        return reach_of(lambda x: self.run(self.far * x), (count, *inputs.shape[1:]))

    @property
    def in_part(self) -> bool:
        """Whether at the shape of its own inputs its statistics are over other places than at that of the probes."""
        if self.reach is None or not self.normalizes or self.shape[1:] == self.reach.shape[1:]:
            return False
        if self.formula is None:
            return True
        return self.formula.usual and not self.reach.follows(self.formula.scale, self.shape)

    @cached_property
    def promised_groups(self) -> int | None:
        """Number of groups that an attribute of the layer promises."""
        for name in ("num_groups", "groups", "n_groups", "ngroups"):
            value = getattr(self.layer.module, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value:
                return value if value > 0 else self.units
        value = getattr(self.layer.module, "group_size", None)
        whole = isinstance(value, int) and value > 0 and self.units % value == 0
        return self.units // value if whole else None  # type: ignore[operator]

    @cached_property
    def promised_size(self) -> int | None:
        """Number of values in a set of the statistics that its class promises, for the probes."""
        units, positions = (int(np.prod([self.shape[a] for a in axes])) for axes in (self.axes, self.positions))
        groups = self.promised_groups or 0
        by_group = units // groups * positions if groups and units % groups == 0 else None
        known = {"ln": units, "rms": units, "in": positions, "bn": self.shape[0] * positions, "gn": by_group}
        return known.get(self.layer.declared or "")

    @cached_property
    def few(self) -> int:
        """Size of its sets, where they are so small that outputs are constants or signs; 0 where they are not.

        One value without its mean is 0, one without is divided by its size, and two without their mean are ±1.
        """
        size, largest = self.promised_size, 1 if self.layer.declared == "rms" else 2
        if size is None or size > largest or self.normalizes or not np.all(np.isfinite(self.outputs)):
            return 0
        base = self.far * self.probe
        if size == 1 and self.layer.declared != "rms":  # 0 up to rounding, divided by √ε
            rest = np.max(np.abs(self.run(base) - self.run(-base)))
            return int(rest <= 1e6 * float(jnp.finfo(self.dtype).eps) * np.max(np.abs(base)))
        stays = deviation(self.outputs[0], self.run(2 * base)) <= max(self.tolerance, 1e-6)
        return size if stays or self.constant else 0

    @cached_property
    def formula(self) -> Formula | None:
        """Its formula, where it normalizes by one: up to a gain and a bias, or up to a step that follows the norm."""
        if self.fitted is not None or not self.normalizes:
            return None if self.fitted is None else self.fitted.formula
        tolerance = max(10 * self.tolerance, 1e-6)
        return follows(lambda x: self.run(self.far * x), self.shape, tolerance, self._likely)

    @cached_property
    def stepped(self) -> bool:
        """Whether a further step follows its normalized values, such as a rectifier."""
        if self.fitted is not None or self.formula is None:
            return False
        n = np.stack([self.formula.normalized(x) for x in self.probes])
        return bool(np.max(fit(n, self.outputs, self.unit).off) > max(100 * self.tolerance, 1e-4))

    @property
    def affine(self) -> bool:
        """Whether each output is an affine function of its own input: nothing is normalized."""
        return self.fitted is not None and self.fitted.formula is None

    @cached_property
    def damped(self) -> bool:
        r"""Whether outputs for inputs of ordinary size are those of its formula, each set times one factor up to 1.

        An ε does that. A constant that is added before the norm does not.
        """
        if self.fitted is None or self.fitted.formula is None:
            return False
        gain, bias, sets = self.fitted.gain, self.fitted.bias, self.fitted.formula.scale
        for x in self.probes[:3]:
            outputs = self.run(self.size * x)
            full, found = gain * self.fitted.formula.normalized(x), outputs - bias
            power = sets.mean(full**2)
            factor = np.divide(sets.mean(full * found), power, out=np.zeros_like(power), where=power > 0)
            apart = np.max(np.abs(found - factor * full))
            slack = max(10 * self.tolerance, 1e-6)
            floor = 1e3 * self.unit * (np.max(np.abs(full)) + np.max(np.abs(bias)))
            if (
                not apart <= slack * np.max(np.abs(outputs)) + floor
                or np.any(factor > 1 + slack)
                or np.any(factor < -slack)
            ):
                return False
        return True

    @cached_property
    def coupling(self) -> Coupling:
        """What moves with one value of the inputs."""
        if self.formula is not None and self.formula.usual:
            sets = self.formula.scale
            long = [a for a in self.axes if self.shape[a] > 1 and sets.over(a)]
            count = int(np.prod([self.shape[a] for a in long], initial=1))
            count = count // sets.parts if sets.split in long else count
            return Coupling(sets.over(0), any(sets.over(a) for a in self.positions), count)
        start = self.ordinary
        return self._coupled(start, self(start))

    def evaluation_leak(self) -> float:
        """Largest change of a sample's outputs in evaluation mode when other samples are replaced."""
        start = self.ordinary
        other = np.concatenate([start[:1], 3 * start[1:][::-1] + self.size])
        before, after = (self(rows, training=False)[:1] for rows in (start, other))
        return deviation(before, after) if np.all(np.isfinite((before, after))) else 0.0

    def _coupled(self, start: np.ndarray, before: np.ndarray) -> Coupling:
        spread = float(np.std(start)) or 1.0
        found = Coupling(False, False, 1)
        for place in ((0,) * start.ndim, tuple(n - 1 for n in start.shape)):
            moved = start.copy()
            moved[place] += (1 if moved[place] >= np.mean(start) else -1) * spread
            after = self(moved)
            scale = max(np.max(np.abs(before)), np.max(np.abs(after)), 1e-300)
            changed = ~(np.abs(after - before) <= max(1e-6, 4 * self.unit) * scale)
            sample, unit = place[0], place[-1]
            samples = np.delete(changed, sample, 0).any()
            here = changed[sample].reshape(-1, changed.shape[-1])
            at = place[1] if start.ndim == 3 else 0
            found = Coupling(
                found.samples or bool(samples),
                found.positions or bool(np.delete(here, at, 0)[:, unit].any()),
                max(found.units, int(here[at].sum()) or 1),
            )
        return found

    @cached_property
    def groups(self) -> int:
        """Number of groups of units, where they divide the units."""
        size = self.coupling.units
        return self.units // size if self.units % size == 0 else 1

    @cached_property
    def centred(self) -> bool:
        """Whether a constant added to all values that share statistics leaves the outputs."""
        if self.formula is not None:
            return self.formula.centred
        rows = self.rows(self.far * self.probe)
        return deviation(self(rows), self(rows + self.far)) <= max(1e-6, self.tolerance)

    @cached_property
    def row(self) -> str | None:
        """Row of the invariance table that its formula is; None where it is none."""
        if self.affine:
            return "bn_evaluation"
        formula = self.formula
        if formula is None or not formula.usual:
            return None
        sets, centred = formula.scale, formula.centred
        long = [a for a in self.axes if self.shape[a] > 1]
        units = [a for a in long if sets.over(a)]
        positions = [a for a in self.positions if self.shape[a] > 1]
        pooled = [a for a in positions if sets.over(a)]
        if sets.tiles or len(pooled) not in {0, len(positions)} or (sets.split is not None and sets.split in positions):
            return None
        if sets.over(0):
            return "bn" if centred and not units and len(pooled) == len(positions) else None
        if not units:
            return "in" if centred and pooled else None
        if all(a in sets.axes for a in long):
            return ("ln_pooled" if centred else None) if pooled else ("ln" if centred else "rms")
        return ("gn_spatial" if pooled else "gn") if centred else (None if pooled else "rms")

    @property
    def pools(self) -> bool:
        """Whether its class is called a layer norm and its statistics are over positions, which have no gains."""
        named = getattr(self.layer.module, "reduction_axes", ())
        named = {a % len(self.shape) for a in ((named,) if isinstance(named, int) else named or ())}
        asked = named >= set(self.positions) or "glob" in self.layer.kind.lower()
        return self.layer.declared == "ln" and self.row == "ln_pooled" and self.measured and not asked

    @property
    def uncentred(self) -> bool:
        """Whether its class is called a layer norm and it is an RMS norm, as by design in T5."""
        whole = self.formula is not None and all(self.formula.scale.over(a) for a in self.axes if self.shape[a] > 1)
        return self.layer.declared == "ln" and self.row == "rms" and whole and self.groups == 1

    @property
    def outside(self) -> str:
        """Why it is outside of the table, though it may be called a norm; empty where it is not."""
        if self.layer.declared is not None or self.normalizes or self.affine or self.constant:
            return ""
        base = self.far * self.probe
        change = deviation(self.outputs[0], self.run(2 * base))
        if change <= max(self.tolerance, 1e-6):
            return "no row of the table: its outputs hardly move with large inputs"
        return f"no row of the table: outputs change by {min(change, 1):.0%} where large inputs are doubled"

    @cached_property
    def blends(self) -> bool:
        """Whether outputs in training mode depend on running statistics and on the batch, as with a moving average."""
        if not (self.training and self.running and self.moving) or self.affine or self.constant:
            return False
        inputs, stored = self.far * self.probe, self.layer.statistics
        other = stored | {k: v + np.asarray(np.abs(v).max() + self.far, v.dtype) for k, v in self.moving.items()}
        pair = [self.layer.step(inputs, s, dtype=self.dtype, training=True)[0] for s in (stored, other)]
        return deviation(*(np.asarray(v, np.float64) for v in pair)) > max(self.tolerance, 1e-6)

    @cached_property
    def expected(self) -> str | None:
        """Row that the name of its class promises for these inputs; that of its formula where it promises none.

        Statistics over parts of the units that are whole axes, such as heads, are those of a group norm. An RMS norm
        that is called a layer norm is judged as an RMS norm.
        """
        declared, row = self.layer.declared, self.row
        if self.blends:
            return None
        if declared is None:
            return None if self.affine else row
        if self.affine and declared in {"bn", "in"} and (self.layer.statistics or not self.training):
            return "bn_evaluation"
        whole = self.formula is not None and self.formula.scale.split is None
        if declared == "ln" and (
            row == "ln_pooled" or (row in {"gn", "gn_spatial"} and (whole or self.promised_groups))
        ):
            return row
        if self.uncentred:
            return "rms"
        if declared == "gn":
            if self.promised_groups == 1 and row in {"ln", "ln_pooled"}:
                return row
            return row if row in {"in", "gn", "gn_spatial"} else ("gn_spatial" if self.positions else "gn")
        return declared

    def odd(self, rows: np.ndarray, **options: Any) -> np.ndarray:
        """Outputs without what does not change its sign with the inputs, such as a bias: g·n."""
        return (self(rows, **options) - self(-rows, **options)) / 2

    @cached_property
    def gain(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The parameter that multiplies outputs, and their change for probes at `far` with 1 more of it.

        The change is n, whatever else the layer adds to the parameter, such as 1. None where no parameter does that,
        or outputs are no affine function of it, as where it is the logarithm of a gain.
        """
        rows = self.rows(self.far * self.probe)
        base = self.odd(rows)
        for name, value in self.layer.parameters.items():
            start = np.asarray(self.changed.get(name, value), np.float64)
            change, twice = (self.odd(rows, parameters={name: start + by}) - base for by in (1, 2))
            if np.max(np.abs(change)) > 1e-6 * max(np.max(np.abs(base)), 1e-300):
                affine = deviation(twice, 2 * change) <= max(1e-4, 10 * self.tolerance)
                return (start, change) if affine else None
        return None

    @cached_property
    def normalized(self) -> np.ndarray:
        """Its own normalized values for the first probe at `far`, in rows: outputs without bias, per unit of gain."""
        return self.odd(self.rows(self.far * self.probe)) if self.gain is None else self.gain[1]

    @property
    def shares(self) -> np.ndarray:
        """Share of ε in the denominator, 1 − (g n)²/(g n∞)², at each value of the inputs whose set has a spread."""
        return self._shares[0]

    @property
    def follows_dtype(self) -> bool:
        """Whether its ε is another one in the dtype of the inputs than in its widest dtype."""
        return self._shares[1]

    @cached_property
    def _shares(self) -> tuple[np.ndarray, bool]:
        """The shares, and whether they are another in the dtype of the inputs.

        There they are taken where they are apart by more than the rounding of a variance, (1 + κ²)u.
        """
        inputs, sets = self.own, None if self.formula is None else self.formula.scale
        if sets is None or not self.normalizes or self.refused:
            return np.zeros(0), False
        far = self.far / self.size
        full = sets.mean(self._odd_part(far * inputs) ** 2)

        def share(**options: Any) -> np.ndarray:
            with np.errstate(all="ignore"):
                return 1 - sets.mean(self._odd_part(inputs, **options) ** 2) / full

        wide = share()
        kept = np.isfinite(wide) & self.spread
        if self.changed:  # its own parameters hide all else
            return wide[kept], False
        native = share(dtype=None)
        size, offset = self._moments
        with np.errstate(all="ignore"):
            rounding = 8 * float(jnp.finfo(self.layer.inputs.dtype).eps) * (1 + (offset / size) ** 2)
            apart = (
                kept & (np.abs(native - wide) > rounding) & (native >= 0)
            )  # a variance that is lost gives less than 0
        eps = self.layer.default_eps
        if eps is not None:  # a share below the rounding of outputs cannot be measured in this dtype
            return (eps / (size**2 + eps))[kept], bool(apart.any())
        return np.where(apart, native, wide)[kept], bool(apart.any())

    def _odd_part(self, inputs: np.ndarray, **options: Any) -> np.ndarray:
        if "dtype" in options:
            inputs = inputs.astype(self.layer.inputs.dtype)
        return (self.run(inputs, **options) - self.run(-inputs, **options)) / 2

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Root mean squares of each set of the inputs, about its centre and about zero."""
        inputs, sets = self.own, self.formula.scale  # type: ignore[union-attr]
        with np.errstate(all="ignore"):
            around = inputs - sets.mean(inputs) if self.formula.central else inputs  # type: ignore[union-attr]
            return np.sqrt(sets.mean(around**2)), np.sqrt(sets.mean(inputs**2))

    @cached_property
    def own(self) -> np.ndarray:
        """The layer's inputs in this mode, in float64; of many, the first samples, at positions evenly apart."""
        inputs = self.layer.reaching(self.training)
        pools = self.formula is None or any(self.formula.scale.over(a) for a in self.positions)
        if not pools and not self.layer.several and self.shape[1:] != inputs.shape[1:]:
            while inputs[:SAMPLES].size > LARGEST and (long := max(inputs.shape[a] for a in self.positions)) > SIDE:
                halved = {a for a in self.positions if inputs.shape[a] == long}
                inputs = inputs[tuple(slice(None, None, 2 if a in halved else 1) for a in range(inputs.ndim))]
        count = max(2, LARGEST // max(inputs[:1].size, 1))
        return np.asarray(inputs[:count], np.float64)

    @cached_property
    def refused(self) -> str:
        """Why it cannot be called on its own inputs in this mode, as a batch norm in training on one sample."""
        try:
            self.run(self.own)
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return ""

    @cached_property
    def spread(self) -> np.ndarray:
        """Whether each of these inputs is in a set whose values differ by more than the rounding of the inputs."""
        inputs = self.own
        finite = np.isfinite(inputs)
        if self.formula is None:
            return finite
        size, offset = self._moments
        smallest = float(jnp.finfo(self.layer.inputs.dtype).tiny)
        return finite & (size > 32 * float(jnp.finfo(self.layer.inputs.dtype).eps) * offset) & (size > smallest)

    @property
    def determined(self) -> np.ndarray:
        """Whether the outputs at each of these inputs are known in any dtype.

        They are where the set has a spread, and an ε that is the machine epsilon of the dtype is below the rounding of
        outputs.
        """
        eps, rounding = self.layer.default_eps, self.short
        if eps is None or self.formula is None:
            return self.spread
        with np.errstate(all="ignore"):
            return self.spread & (eps <= self._moments[0] ** 2 * rounding / 8)

    @property
    def share(self) -> float:
        """Median share of ε; NaN where it has no denominator of the data, or none was finite."""
        return max(float(np.median(self.shares)), 0.0) if self.shares.size else math.nan

    @property
    def short(self) -> float:
        """Rounding of the inputs or of the outputs, as the layer runs in the model, the coarser of the two."""
        return max(float(jnp.finfo(v.dtype).eps) for v in (self.layer.inputs, self.layer.outputs))

    @cached_property
    def lost(self) -> float:
        """Largest error of outputs in the dtype of the inputs against float64, relative to the outputs.

        It is measured on the inputs, and on others that differ from them by part of the spread of their sets: an error
        of rounding can vanish by chance. Values of sets without a spread are left out.
        """
        return 0.0 if self.refused else max(self._error(inputs) for inputs in (self.own, *self._nearby()))

    def _nearby(self) -> Iterator[np.ndarray]:
        if self.formula is None or not self.formula.usual:
            return
        sets, inputs = self.formula.scale, self.own
        with np.errstate(all="ignore"):
            spread = np.sqrt(sets.mean((inputs - sets.mean(inputs)) ** 2))
        for seed in range(2):
            yield inputs + 0.3 * spread * probe_generator(seed).normal(size=inputs.shape)

    def _error(self, inputs: np.ndarray) -> float:
        dtype = self.layer.inputs.dtype
        given = inputs.astype(dtype)
        exact, native = self.run(given), self.run(given, dtype=None)
        kept = self.spread & np.isfinite(exact)
        if not kept.any():
            return 0.0
        return deviation(np.where(kept, exact, 0), np.where(kept, native, 0))

    def apart(self) -> float | None:
        """Change of outputs between training and evaluation mode, relative to them; None without both."""
        if not self.running or self.refused or self.layer.fixed is not None:
            return None
        return deviation(*(self.run(self.own, training=mode) for mode in (True, False)))

    def elsewhere(self, layer: Layer) -> "Placed":
        """The same norm at another call; what does not depend on the inputs is not measured again."""
        other = replace(self, layer=replace(layer, fill=self.layer.fill, place=self.layer.place))
        kept = {"probes", "far", "outputs", "unit", "constant", "normalizes", "fitted", "formula", "row", "coupling"}
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k in kept})
        return other

    @property
    def group_count(self) -> int:
        """Groups for the columns of groups: its own, or those of the table."""
        return self.groups if self.expected in {"gn", "gn_spatial"} and self.groups > 1 else GROUPS
