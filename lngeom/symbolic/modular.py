"""Exact ranks of Jacobians: the layer and its derivative over a prime field, where square roots are looked up."""

import random
from dataclasses import dataclass

PRIME = 1_000_003
"""A prime that is 3 modulo 4, so that a square's root is its (PRIME + 1) / 4-th power."""

Row = list[int]


@dataclass(frozen=True)
class FieldLayer:
    """Weights [H D], inputs [N D] and gain [H] over the prime field, with the roots σ of what is to be a square.

    Attributes:
        weights: W.
        inputs: X, one case a row.
        gain: g.
        scales: σ of each case and unit [N H].
        means: μ of each case and unit [N H].
    """

    weights: list[Row]
    inputs: list[Row]
    gain: Row
    scales: list[Row]
    means: list[Row]


def inverse(value: int) -> int:
    """1/value modulo PRIME."""
    return pow(value, -1, PRIME)


def square_root(value: int) -> int | None:
    """A root of a non-zero square modulo PRIME; None otherwise."""
    root = pow(value, (PRIME + 1) // 4, PRIME)
    return root if value % PRIME and root * root % PRIME == value % PRIME else None


def _dot(u: Row, v: Row) -> int:
    return sum(a * b for a, b in zip(u, v, strict=True)) % PRIME


def _moments(values: Row, centered: bool = True) -> tuple[int, int]:
    share = inverse(len(values))
    average = sum(values) * share % PRIME if centered else 0
    return average, sum((v - average) ** 2 for v in values) * share % PRIME


EPS = 5


def _groups(name: str, units: int) -> list[range]:
    size = units // 2 if name == "GroupNorm" else units
    return [range(start, start + size) for start in range(0, units, size)]


def random_layer(name: str, units: int, inputs: int, cases: int, draw: random.Random) -> FieldLayer:
    """A random layer whose variances are all squares in the field.

    Args:
        name: class name of the normalizer; "LayerNorm with eps", "BatchNorm of data constant in one input".
        units: H.
        inputs: D.
        cases: N.
        draw: source of random numbers.

    Returns:
        The layer.
    """
    entry = lambda: draw.randrange(1, PRIME)
    W = [[entry() for _ in range(inputs)] for _ in range(units)]
    X: list[Row] = []
    means, scales = [], []
    if name.startswith(("LayerNorm", "RMSNorm", "GroupNorm")):
        while len(X) < cases:
            x = [entry() for _ in range(inputs)]
            a = [_dot(w, x) for w in W]
            mu, sigma = [0] * units, [0] * units
            for group in _groups(name, units):
                average, variance = _moments([a[i] for i in group], name != "RMSNorm")
                root = square_root(variance + (EPS if name.endswith("eps") else 0))
                for i in group:
                    mu[i], sigma[i] = average, root or 0
            if all(sigma):
                X, means, scales = [*X, x], [*means, mu], [*scales, sigma]
    else:
        X = [[entry() for _ in range(inputs)] for _ in range(cases)]
        if name.endswith("constant in one input"):
            X = [[*x[:-1], 7] for x in X]
        mu, sigma = [], []
        for i in range(units):
            while True:
                w = [entry() for _ in range(inputs)]
                average, square = _row_statistics(name, w, X, draw)
                root = square_root(square)
                if root:
                    break
            W[i], mu, sigma = w, [*mu, average], [*sigma, root]
        means, scales = [mu] * cases, [sigma] * cases
    return FieldLayer(W, X, [entry() for _ in range(units)], scales, means)


def _row_statistics(name: str, w: Row, X: list[Row], draw: random.Random) -> tuple[int, int]:
    if name.startswith("BatchNorm") and name != "BatchNormEvaluation":
        return _moments([_dot(w, x) for x in X])
    if name == "WeightNorm":
        return 0, _dot(w, w)
    if name == "BatchNormEvaluation":
        return draw.randrange(PRIME), draw.randrange(1, PRIME)
    return 0, 1


def jacobian_rows(name: str, layer: FieldLayer, *, softmax: bool = False) -> list[Row]:
    """Rows ∂z_ni/∂(W, b, g) of every case and unit; for a softmax, of z less its last unit."""
    H, D, cases = len(layer.weights), len(layer.inputs[0]), len(layer.inputs)
    blocks = []
    for c in range(cases):
        x, sigma, mu = layer.inputs[c], layer.scales[c], layer.means[c]
        n = [(_dot(w, x) - m) * inverse(s) % PRIME for w, m, s in zip(layer.weights, mu, sigma, strict=True)]
        rows = []
        for i in range(H):
            scale = layer.gain[i] * inverse(sigma[i]) % PRIME
            by_weights = [[0] * D for _ in range(H)]
            if name.startswith(("LayerNorm", "RMSNorm", "GroupNorm")):
                (group,) = [g for g in _groups(name, H) if i in g]
                share, centered = inverse(len(group)), name != "RMSNorm"
                for j in group:
                    factor = scale * ((i == j) - (centered + n[i] * n[j]) * share)
                    by_weights[j] = [factor * v % PRIME for v in x]
            else:
                by_weights[i] = [scale * v % PRIME for v in _chi(name, layer, c, i, n[i])]
            by_bias = [int(i == j) for j in range(H)]
            by_gain = [n[i] * (i == j) for j in range(H)]
            rows.append([v for block in by_weights for v in block] + by_bias + by_gain)
        if softmax:
            rows = [[(a - b) % PRIME for a, b in zip(row, rows[-1], strict=True)] for row in rows[:-1]]
        blocks += rows
    return blocks


def _chi(name: str, layer: FieldLayer, case: int, unit: int, n: int) -> Row:
    """χ of Eq. 14: x − ∂μ/∂w − n ∂σ/∂w."""
    x, w, sigma = layer.inputs[case], layer.weights[unit], layer.scales[case][unit]
    if name == "WeightNorm":
        return [v - n * u * inverse(sigma) for v, u in zip(x, w, strict=True)]
    if name.startswith("BatchNorm") and name != "BatchNormEvaluation":
        share = inverse(len(layer.inputs))
        average = [sum(column) * share % PRIME for column in zip(*layer.inputs, strict=True)]
        outputs = [(_dot(w, z) - layer.means[0][unit]) * inverse(sigma) for z in layer.inputs]
        slope = [
            sum(o * (z[d] - average[d]) for o, z in zip(outputs, layer.inputs, strict=True)) * share
            for d in range(len(x))
        ]
        return [(v - m - n * s) % PRIME for v, m, s in zip(x, average, slope, strict=True)]
    return list(x)


def rank(rows: list[Row]) -> int:
    """Rank over the prime field, by elimination."""
    rows = [[v % PRIME for v in row] for row in rows]
    found, columns = 0, len(rows[0])
    for column in range(columns):
        pivot = next((r for r in range(found, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        scale = inverse(rows[found][column])
        top = [v * scale % PRIME for v in rows[found]]
        for r in range(found + 1, len(rows)):
            if rows[r][column]:
                factor = rows[r][column]
                rows[r] = [(a - factor * b) % PRIME for a, b in zip(rows[r], top, strict=True)]
        found += 1
    return found
