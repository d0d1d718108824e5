r"""Formulas as a person writes them: $a$ for summed inputs, $u$ for centred ones, $\sigma$ for their scale.

Only what is shown is shortened; what is checked is always the full expression.
"""

from sympy import Add, Expr, Indexed, IndexedBase, Sum

from lngeom.symbolic.sums import D, H, M, N, displayed

LEGEND = "a = Wx, u = a − μ, σ = √(mean of u²), means over the index that the method takes them over"
_SUMMED, _CENTRED, _SCALE = IndexedBase("a"), IndexedBase("u"), IndexedBase("sigma", positive=True)


def shown(expr: Expr) -> Expr:
    """An expression for reading, with a, u and σ written for what they stand for."""
    for pattern in (_fold_summed, _fold_centred, _fold_scale):
        expr = expr.replace(lambda e, pattern=pattern: pattern(e) is not None, pattern)
    return displayed(expr)


def _fold_summed(expr: Expr) -> Expr | None:
    """Σ_d W_id x_nd → a_ni."""
    if not isinstance(expr, Sum) or len(expr.function.args) != 2 or not expr.function.is_Mul:
        return None
    for index, _, size in expr.limits:
        factors = {f.base.name: f.indices for f in expr.function.args if isinstance(f, Indexed)}
        if size != D or set(factors) != {"W", "X"} or any(indices[-1] != index for indices in factors.values()):
            continue
        entry = _SUMMED[(*factors["X"][:-1], *factors["W"][:-1])]
        rest = [limit for limit in expr.limits if limit[0] != index]
        return Sum(entry, *rest) if rest else entry
    return None


def _fold_centred(expr: Expr) -> Expr | None:
    """a_ni − mean of a → u_ni."""
    if not isinstance(expr, Add):
        return None
    for entry in expr.args:
        if not (isinstance(entry, Indexed) and entry.base == _SUMMED):
            continue
        for other in expr.args:
            if any(_is_total(-size * other, entry, size) for size in (H, N, M)):
                return expr - entry - other + _CENTRED[entry.indices]
    return None


def _is_total(expr: Expr, entry: Indexed, size: Expr) -> bool:
    """Whether an expression is the sum over one index of `entry`."""
    if not isinstance(expr, Sum) or len(expr.limits) != 1 or expr.limits[0][2] != size:
        return False
    index = expr.limits[0][0]
    if not (isinstance(expr.function, Indexed) and expr.function.base == _SUMMED):
        return False
    if len(expr.function.indices) != len(entry.indices):
        return False
    pairs = list(zip(expr.function.indices, entry.indices, strict=True))
    return sum(a == index for a, _ in pairs) == 1 and all(a in (index, b) for a, b in pairs)


def _fold_scale(expr: Expr) -> Expr | None:
    """Σ u² → size · σ²."""
    if not isinstance(expr, Sum) or len(expr.limits) != 1:
        return None
    index, _, size = expr.limits[0]
    base, exponent = expr.function.as_base_exp()
    if exponent != 2 or not isinstance(base, Indexed) or base.base != _CENTRED or index not in base.indices:
        return None
    return size * _SCALE[tuple(s for s in base.indices if s != index)] ** 2
