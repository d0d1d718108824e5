"""One norm of a model, with what the rules look at."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np

from lngeom.checks.placed import FAR, ROWS, Placed
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
    """

    norm: Placed
    before: Layer | None = None
    after: tuple[Layer, ...] = ()
    decays: Decays | None = None
    exported: Placed | None = None

    @property
    def layer(self) -> Layer:
        """The norm's layer."""
        return self.norm.layer

    @cached_property
    def normalizes(self) -> bool:
        """Whether its outputs have a denominator of the data in this mode."""
        return self.norm.coupling != (False, False, 1)

    @cached_property
    def rows(self) -> np.ndarray:
        """The inputs on which it is examined, [N *T H]."""
        return self.norm.rows(self.norm.small)

    @cached_property
    def outputs(self) -> np.ndarray:
        """Its outputs for `rows`."""
        return self.norm(self.rows)

    @cached_property
    def native(self) -> np.ndarray:
        """The inputs on which it is examined, in their layout and dtype."""
        return self.norm.small.astype(self.layer.inputs.dtype)

    @cached_property
    def statistics(self) -> dict[str, np.ndarray]:
        """Running statistics: one value a unit."""
        found = self.layer.statistics.items()
        return {k: v for k, v in found if jnp.issubdtype(v.dtype, jnp.floating) and v.size == self.norm.units}

    @property
    def promised(self) -> bool:
        """Whether the name of its class promises statistics of the data."""
        return self.layer.declared in ROWS

    def per_set(self, values: np.ndarray, reduce: Callable = np.mean) -> tuple[np.ndarray, int]:
        """Values reduced over each set with common statistics, and the size of a set."""
        split = values if values.ndim == 3 else values[:, None]
        split = split.reshape(*split.shape[:2], self.norm.groups, -1)
        samples, positions, units = self.norm.coupling
        over = (*((0,) if samples else ()), *((1,) if positions else ()), *((3,) if units > 1 else ()))
        return reduce(split, over), int(np.prod([split.shape[i] for i in over]))

    @cached_property
    def gains(self) -> np.ndarray:
        """Size of the gain of each unit; NaN where its normalized values vanish."""
        far = self.norm.odd(FAR * self.rows)
        over = tuple(range(far.ndim - 1))
        with np.errstate(all="ignore"):
            return np.sqrt(np.mean(far**2, over) / np.mean(self.norm.normalized**2, over))
