r"""Formulas as a person writes them: $a$ for summed inputs, $u$ for centred ones, $\sigma$ for their scale.

Only what is shown is shortened; what is checked is always the full expression.
"""

import re
from functools import cache
from typing import Any

import sympy as sp
from pylatexenc.latex2text import LatexNodes2Text, MacroTextSpec, get_default_latex_context_db
from sympy import Add, Expr, Function, Indexed, IndexedBase, Mul, Pow, Rational, Sum
from sympy.printing.latex import LatexPrinter
from sympy.printing.pretty.pretty_symbology import pretty_symbol
from sympy.printing.str import StrPrinter

from lngeom.symbolic.sums import D, H, M, N, T, displayed

LEGEND = (
    "a_ni = (W x_n)_i, u = a − μ, σ² the mean of u² over the index that the method takes it over; γ·x_n a product of "
    "vectors, Vx_ni of a matrix; [i=j] is 1 where i = j, else 0; a prime marks what has changed"
)
_SUMMED, _CENTRED, _SCALE = IndexedBase("a"), IndexedBase("u"), IndexedBase("sigma", positive=True)


@cache
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


class Mean(Function):
    """mean_i(body): what the mean of a body over an index is shown as."""


class Product(Function):
    """γ·x_n, or Vx_ni: what Σ_d γ_d X_nd and Σ_d V_id X_nd are shown as."""


@cache
def folded(expr: Expr) -> Expr:
    """An expression for a short line: besides `shown`, with means and products with the inputs."""
    return _fold_products(_fold_means(shown(sp.sympify(expr))))


def _rebuilt(expr: Expr, fold: Any) -> Expr:
    if isinstance(expr, Indexed) or not expr.args:
        return expr
    if isinstance(expr, Sum):
        return Sum(fold(expr.function), *expr.limits)
    return expr.func(*(fold(arg) if isinstance(arg, Expr) else arg for arg in expr.args))


def _fold_means(expr: Expr) -> Expr:
    """Σ_i body / H → mean_i(body)."""
    expr = _rebuilt(expr, _fold_means)
    if not isinstance(expr, Mul):
        return expr
    for factor in expr.args:
        for limit in factor.limits if isinstance(factor, Sum) else ():
            if limit[2] in {H, M, N, T} and Pow(limit[2], -1) in expr.args:
                rest = [other for other in factor.limits if other != limit]
                body = Sum(factor.function, *rest) if rest else factor.function
                return _fold_means(expr / factor * limit[2]) * Mean(body, limit[0])
    return expr


def _fold_products(expr: Expr) -> Expr:
    """Σ_d V_id X_nd → Vx_ni."""
    expr = _rebuilt(expr, _fold_products)
    if not (isinstance(expr, Sum) and len(expr.limits) == 1 and expr.limits[0][2] == D):
        return expr
    index = expr.limits[0][0]
    outside, inside = expr.function.as_independent(index, as_Add=False)
    factors = Mul.make_args(inside)
    if len(factors) != 2 or not all(isinstance(f, Indexed) and f.indices[-1] == index for f in factors):
        return expr
    first, second = sorted(factors, key=lambda f: f.base.name == "X")
    return outside * Product(first, second) if second.base.name == "X" else expr


def _fraction(expr: Mul) -> tuple[list[Expr], list[Expr]]:
    """Factors of numerator and denominator, simple ones first and sums last."""
    above, below = [], []
    for factor in Mul.make_args(expr):
        base, exponent = factor.as_base_exp()
        if factor.is_Rational:
            above += [sp.Integer(factor.p)] if factor.p != 1 else []
            below += [sp.Integer(factor.q)] if factor.q != 1 else []
        elif exponent.is_Rational and exponent.is_negative:
            below.append(Pow(base, -exponent))
        else:
            above.append(factor)
    weight = lambda f: (not f.is_Number, not f.is_Symbol, isinstance(f, (Sum, Mean)))
    return sorted(above, key=weight), below


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class _Plain(StrPrinter):
    """Unicode text."""

    printmethod = "_plain"

    def _print_Symbol(self, expr: Any) -> str:
        return from_latex(expr.name) if "_" in expr.name else pretty_symbol(expr.name)

    _print_Dummy = _print_Symbol

    def _print_Indexed(self, expr: Any) -> str:
        places = [self._print(index) for index in expr.indices]
        return f"{pretty_symbol(expr.base.name)}_{(',' if any(len(p) > 1 for p in places) else '').join(places)}"

    def _print_Sum(self, expr: Any) -> str:
        return f"Σ_{''.join(self._print(limit[0]) for limit in expr.limits)} {self._factor(expr.function)}"

    def _print_Mean(self, expr: Any) -> str:
        return f"mean_{self._print(expr.args[1])}({self._print(expr.args[0])})"

    def _print_Product(self, expr: Any) -> str:
        form, inputs = expr.args
        *rows, _ = form.indices
        *case, _ = inputs.indices
        case = "".join(self._print(index) for index in case)
        name = pretty_symbol(form.base.name)
        return f"{name}x_{case}{''.join(self._print(index) for index in rows)}" if rows else f"{name}·x_{case}"

    def _print_KroneckerDelta(self, expr: Any) -> str:
        return f"[{self._print(expr.args[0])}={self._print(expr.args[1])}]"

    def _factor(self, expr: Expr) -> str:
        return f"({self._print(expr)})" if isinstance(expr, Add) else self._print(expr)

    def _print_Pow(self, expr: Any, rational: bool = False) -> str:
        base, exponent = expr.as_base_exp()
        if exponent.is_Rational and exponent.is_negative:
            return self._print_Mul(expr)
        simple = base.is_Symbol or isinstance(base, (Indexed, Mean)) or (base.is_Integer and base.is_nonnegative)
        inner = self._print(base) if simple else f"({self._print(base)})"
        if exponent == Rational(1, 2):
            return f"√{inner}"
        return inner + (str(exponent).translate(_RAISED) if exponent.is_Integer else f"^({self._print(exponent)})")

    def _print_Mul(self, expr: Any) -> str:
        if expr.as_coeff_Mul()[0].is_negative:
            return f"−{self._factor(-expr)}"
        above, below = _fraction(expr)
        top = " ".join(map(self._factor, above)) or "1"
        bottom = " ".join(map(self._factor, below))
        compound = len(below) > 1 or any(isinstance(f, Sum) or " / " in self._print(f) for f in below)
        return top if not below else f"{top} / {f'({bottom})' if compound else bottom}"

    def _print_Add(self, expr: Any, order: Any = None) -> str:
        terms = sorted(expr.as_ordered_terms(), key=lambda term: bool(term.as_coeff_Mul()[0].is_negative))
        first, *rest = (self._print(term) for term in terms)
        return first + "".join(f" − {t[1:]}" if t.startswith("−") else f" + {t}" for t in rest)

    def _print_Integer(self, expr: Any) -> str:
        return f"−{-expr.p}" if expr.p < 0 else str(expr.p)

    def _print_Rational(self, expr: Any) -> str:
        return f"{'−' if expr.p < 0 else ''}{abs(expr.p)}/{expr.q}"


def _to_the(text: str, exponent: Any) -> str:
    return text if exponent is None else rf"{text}^{{{exponent}}}"


class _Latex(LatexPrinter):
    """LaTeX with means, products and brackets for Kronecker's delta."""

    def _print_Mean(self, expr: Any, exp: Any = None) -> str:
        body = rf"\left({self._print(expr.args[0])}\right)"
        return _to_the(rf"\operatorname{{mean}}_{{{self._print(expr.args[1])}}}{body}", exp)

    def _print_Product(self, expr: Any, exp: Any = None) -> str:
        form, inputs = expr.args
        *rows, _ = form.indices
        case = "".join(self._print(index) for index in inputs.indices[:-1])
        name = self._print(sp.Symbol(form.base.name))
        rows = "".join(self._print(index) for index in rows)
        return _to_the(rf"({name}x_{{{case}}})_{{{rows}}}" if rows else rf"({name}^\top x_{{{case}}})", exp)

    def _print_KroneckerDelta(self, expr: Any, exp: Any = None) -> str:
        return _to_the(rf"[{self._print(expr.args[0])}={self._print(expr.args[1])}]", exp)


def plain(expr: Expr) -> str:
    """A short line of Unicode text."""
    return _Plain().doprint(folded(expr))


def latex(expr: Expr) -> str:
    """The same as LaTeX."""
    return _Latex().doprint(folded(expr))


def _divided(parts: list[str]) -> str:
    """a/b, with brackets where a part is more than one term or factor."""
    single = re.compile(r"\d+|[^\W\d](_\w+)?(\^\([^()]*\)|[⁻⁰¹²³⁴⁵⁶⁷⁸⁹ᵀ]+)?")
    above, below = (p if single.fullmatch(p) else f"({p})" for p in (part.strip() for part in parts))
    return f"{above}/{below} "


def _power(found: re.Match) -> str:
    exponent = found[1].replace("-", "−")
    if re.fullmatch(r"−?\d+", exponent):
        return exponent.replace("−", "⁻").translate(_RAISED)
    return exponent if exponent in {"ᵀ", "+"} else f"^({exponent})"


def _arguments(node: Any, to_text: LatexNodes2Text) -> list[str]:
    texts = [to_text.nodelist_to_text([argument]) for argument in node.nodeargd.argnlist if argument]
    return [text[1:-1] if text.startswith("{") and text.endswith("}") else text for text in texts]


_CONTEXT = get_default_latex_context_db()
_CONTEXT.add_context_category(
    "lngeom",
    prepend=True,
    macros=[
        MacroTextSpec("frac", lambda node, l2tobj: _divided(_arguments(node, l2tobj))),
        *(MacroTextSpec(name, f"{name} ") for name in ("dim", "ker")),
        *(MacroTextSpec(name, name) for name in ("max", "min", "log", "exp", "arctan")),
        *(MacroTextSpec(name, " ") for name in (",", ";", "quad", "qquad")),
        *(MacroTextSpec(name, "") for name in ("left", "right", "Big", "big", "Bigl", "Bigr", "!")),
        *(MacroTextSpec(name, "‖") for name in ("lVert", "rVert", "|")),
        *(MacroTextSpec(name, sign) for name, sign in {"top": "ᵀ", "epsilon": "ε", "phi": "φ", "mid": " | "}.items()),
        MacroTextSpec("mathbf", "%s"),
    ],
)
_TO_TEXT = LatexNodes2Text(_CONTEXT, math_mode="text", keep_braced_groups=True, keep_braced_groups_minlen=2)


def from_latex(formula: str) -> str:
    """A formula in LaTeX as Unicode text."""
    text = _TO_TEXT.latex_to_text(formula.replace(r"\tfrac", r"\frac").replace(r"\dfrac", r"\frac"))
    text = re.sub(r"\s*([=≠≤≥<>≻⇒⇔↦→∈∉∥≈])\s*", r" \1 ", text.replace(" - ", " − "))
    for _ in range(3):  # of groups within groups, the innermost first
        text = re.sub(r"_\{([^{}]*)\}", r"_\1", text)
        text = re.sub(r"\^(?:\{([^{}]*)\})", _power, text)
    text = re.sub(r"\^(\d|ᵀ|\+)", _power, text)
    text = re.sub(r"(?<=[\w)ᵀ])-(?=[\w(])", " − ", re.sub(r"\s+", " ", text.replace("{", "(").replace("}", ")")))
    return re.sub(r" (?=[),\]])", "", text).strip()
