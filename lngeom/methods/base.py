"""Base classes of normalization methods."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, TypeGuard, TypeVar

import equinox as eqx
from jaxtyping import Array, Float

from lngeom._core.types import require_array


class Statistics(NamedTuple):
    """Mean and scale of Eq. 5, each broadcastable against the summed inputs [N *T H]."""

    mean: Float[Array, "..."]
    scale: Float[Array, "..."]


def summed_inputs(weights: Float[Array, "H D"], inputs: Float[Array, "N *T D"]) -> Float[Array, "N *T H"]:
    r"""Summed inputs $a = W x$ of every sample (Eq. 1)."""
    require_array("weights", weights)
    require_array("inputs", inputs)
    return inputs @ weights.T


def check_positions(name: str, inputs: Float[Array, "N *T D"]) -> None:
    """Raises a ValueError unless inputs are [N T D]."""
    if inputs.ndim != 3:
        raise ValueError(f"{name} runs over positions: inputs must be [N T D]; got shape {inputs.shape}")


class AbstractNormalizer(eqx.Module):
    r"""A normalization method: a pure map $(W, X) \mapsto n$, shapes [H D], [N *T D] to [N *T H].

    Attributes:
        eps: added to the variance (to the squared norm for weight norm) before the square root; at least 0.
        couples_samples: whether the output for one sample depends on the other samples.
        couples_units: whether the output of one unit depends on the weights of the others.
        needs_positions: whether inputs must be [N T D], because statistics or outputs run over positions.
        outputs_are_units: whether the last axis of the output is that of the units, rows of W.
    """

    eps: eqx.AbstractVar[float]
    couples_samples: ClassVar[bool]
    couples_units: ClassVar[bool]
    needs_positions: ClassVar[bool] = False
    outputs_are_units: ClassVar[bool] = True

    def __check_init__(self):
        if not self.eps >= 0:
            raise ValueError(f"eps must be at least 0, it is added to a variance; got {self.eps}")

    @abstractmethod
    def __call__(self, weights: Float[Array, "H D"], inputs: Float[Array, "N *T D"]) -> Float[Array, "N *T H"]:
        """Normalized summed inputs of every sample."""


class AbstractStatisticsNormalizer(AbstractNormalizer):
    """A method of the form of Eq. 5: subtract a mean, divide by a scale."""

    @abstractmethod
    def statistics(self, weights: Float[Array, "H D"], inputs: Float[Array, "N *T D"]) -> Statistics:
        r"""The scalars $\mu$ and $\sigma$ of Eq. 5."""

    def __call__(self, weights: Float[Array, "H D"], inputs: Float[Array, "N *T D"]) -> Float[Array, "N *T H"]:
        mean, scale = self.statistics(weights, inputs)
        return (summed_inputs(weights, inputs) - mean) / scale


def keeps(value: object, kind: type, *methods: str) -> bool:
    """Whether a value is of this class, and neither a subclass nor a field has replaced these methods."""
    return isinstance(value, kind) and all(
        getattr(type(value), name, None) is getattr(kind, name, None) and name not in vars(value) for name in methods
    )


Known = TypeVar("Known", bound=AbstractNormalizer)
Entry = TypeVar("Entry")


def computes(normalizer: AbstractNormalizer, *kinds: type[Known]) -> TypeGuard[Known]:
    """Whether a normalizer computes the formula of one of these classes: a subclass may have statistics of its own."""
    return any(keeps(normalizer, kind, "statistics", "__call__") for kind in kinds)


def entry_of(normalizer: AbstractNormalizer, registry: Mapping[type[AbstractNormalizer], Entry]) -> Entry | None:
    """What a registry holds of the class whose formula a normalizer computes; None where it holds nothing."""
    kind = next((c for c in type(normalizer).__mro__ if c in registry), None)
    return registry[kind] if kind is not None and computes(normalizer, kind) else None
