"""What is measured on an accelerator, and at toy size on a CPU."""

from dataclasses import dataclass

from analysis.models import gpt2 as transformer


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        layers: rows and width of the inputs of layer norm, the most important first.
        compiled: those of `torch.compile`, which takes long.
        product: widths and samples of the network whose products are taken.
        dense: of the network whose matrix is computed.
        shape: of the transformer.
        tokens: sequences, and the length of each.
        seconds: of one measurement, about.
        dtypes: of the layers.
    """

    layers: tuple[tuple[int, int], ...]
    compiled: tuple[tuple[int, int], ...]
    product: tuple[tuple[int, ...], int]
    dense: tuple[tuple[int, ...], int]
    shape: transformer.Shape
    tokens: tuple[int, int]
    seconds: float
    dtypes: tuple[str, ...] = ("bfloat16", "float32")


_FIRST = ((16384, 4096), (65536, 1024), (16384, 8192), (65536, 512))
_REST = tuple((r, w) for r in (4096, 16384, 65536) for w in (512, 1024, 2048, 4096, 8192) if (r, w) not in _FIRST)
FULL = Sizes(
    (*_FIRST, *_REST),
    _FIRST[:2],
    ((784, 512, 512, 10), 512),
    ((64, 64, 10), 512),
    transformer.GPT2,
    (4, 256),
    0.2,
)
TOY = Sizes(((8, 128),), ((8, 128),), ((6, 5, 3), 7), ((4, 3, 3), 5), transformer.TOY, (2, 5), 0.002, ("float32",))
