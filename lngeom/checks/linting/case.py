"""One norm of a model, with what the rules look at."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from lngeom.checks.derivatives.in_place import GRADIENT, InPlace
from lngeom.checks.placed import ROWS, Placed
from lngeom.checks.recorded import Layer

Decays = Callable[[Layer, str], bool]
"""Whether a parameter of a layer is decayed."""


@dataclass(frozen=True)
class Case:
    """A norm of a model.

    Attributes:
        norm: the norm in its place.
        before: the linear or convolutional layer that makes its inputs; None where another does.
        after: the linear or convolutional layers that take its outputs.
        decays: whether a parameter is decayed; None where no optimizer or mask was given.
        exported: the same norm in the exported model; None where none was given.
        gradients: checks the gradients of a norm, those of one kind once.
    """

    norm: Placed
    before: Layer | None = None
    after: tuple[Layer, ...] = ()
    decays: Decays | None = None
    exported: Placed | None = None
    gradients: InPlace = field(default_factory=lambda: InPlace(1, GRADIENT))

    @property
    def layer(self) -> Layer:
        """The norm's layer."""
        return self.norm.layer

    @cached_property
    def normalizes(self) -> bool:
        """Whether an output depends on more than its own input in this mode, or is that of a norm."""
        return self.norm.normalizes or self.norm.coupling != (False, False, 1)

    @property
    def rows(self) -> np.ndarray:
        """Ordinary numbers of the size of its inputs, [N *T H]."""
        return self.norm.ordinary

    @cached_property
    def far(self) -> np.ndarray:
        """Ordinary numbers so large that no ε matters, [N *T H]."""
        return self.norm.rows(self.norm.far * self.norm.probe)

    @cached_property
    def outputs(self) -> np.ndarray:
        """Its outputs for `rows`."""
        return self.norm(self.rows)

    @cached_property
    def native(self) -> np.ndarray:
        """The inputs that reach it, in their layout and dtype."""
        inputs = self.norm.size * self.norm.probe if self.norm.refused else self.norm.own
        return inputs.astype(self.layer.inputs.dtype)

    @property
    def promised(self) -> bool:
        """Whether the name of its class promises statistics of the data."""
        return self.layer.declared in ROWS

    @cached_property
    def gains(self) -> np.ndarray:
        """Largest size of the gain of each unit; NaN where it is not known."""
        if self.norm.fitted is None:
            return np.full(self.norm.units, np.nan)
        found = self.norm.rows(np.abs(self.norm.fitted.gain))
        return np.max(found, tuple(range(found.ndim - 1)))
