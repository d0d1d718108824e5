"""The other libraries' scaling conventions, and factors to and from this one: a mean over samples of JᵀΛJ.

Each library builds the Gauss–Newton matrix of a loss, and a loss of one's own normalization brings its own factor.
kfac-jax 0.0.8 does not trace with current JAX: by its documentation, squared error is the likelihood of variance 1/2.
laplace-torch 0.3 was compared with its backends curvlinops and backpack, without torchvision; its `H` is a sum over
samples, without the prior.
"""

from typing import NamedTuple


class Convention(NamedTuple):
    """A library's matrix for one of its losses, as a multiple of this library's.

    Attributes:
        library: name, and version that the factor is about.
        loss: its loss, and reduction.
        factor: in words, N the samples and C the outputs.
        basis: what it rests on: "test" (compared in the tests), "measured" (compared once by hand), or
            "documentation" (of the library, untested).
    """

    library: str
    loss: str
    factor: str
    basis: str = "test"


CONVENTIONS = (
    Convention("curvlinops 3.0.1", "mse, mean", "2/C"),
    Convention("curvlinops 3.0.1", "mse, sum", "2N"),
    Convention("curvlinops 3.0.1", "bce, mean", "1/C"),
    Convention("curvlinops 3.0.1", "cross_entropy, mean", "1"),
    Convention("curvlinops 3.0.1", "cross_entropy, sum", "N"),
    Convention("nngeometry 0.4", "regression", "1"),
    Convention("nngeometry 0.4", "classif_logits", "1"),
    Convention("laplax 0.0.2", "mse, sum", "2N"),
    Convention("laplax 0.0.2", "cross_entropy, sum", "N"),
    Convention("somax 1.0.1", "mse, mean", "1"),
    Convention("somax 1.0.1", "cross_entropy, mean", "1"),
    Convention("kfac-jax 0.0.8", "squared_error", "2", "documentation"),
    Convention("kfac-jax 0.0.8", "softmax_cross_entropy", "1", "documentation"),
    Convention("laplace-torch 0.3", "regression", "N", "measured"),
    Convention("laplace-torch 0.3", "classification", "N", "measured"),
    Convention("statsmodels 0.15", "GLM.information", "-N"),
)


def scaling(library: str, loss: str, samples: int, outputs: int = 1) -> float:
    """What this library's matrix must be multiplied by to get another's; divide to come back.

    For squared error the family is `Gaussian(1.0)`, the likelihood with unit variance.

    Args:
        library: name as in `CONVENTIONS`, with or without its version.
        loss: loss and reduction as in `CONVENTIONS`.
        samples: N.
        outputs: C.

    Returns:
        The factor; `CONVENTIONS` says what each rests on.

    Raises:
        ValueError: if the library or the loss is not in the table.

    Example:
        >>> scaling("laplax", "mse, sum", samples=100)
        200.0
    """
    for known in CONVENTIONS:
        if library in {known.library, known.library.split()[0]} and loss == known.loss:
            values = {
                "1": 1,
                "2": 2,
                "2/C": 2 / outputs,
                "1/C": 1 / outputs,
                "N": samples,
                "2N": 2 * samples,
                "-N": -samples,
            }
            return float(values[known.factor])
    table = ", ".join(f"{c.library}: {c.loss!r}" for c in CONVENTIONS)
    raise ValueError(f"no convention is known for {library!r} with loss {loss!r}; known are {table}")
