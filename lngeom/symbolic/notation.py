r"""Formulas as a person writes them: $a$ for summed inputs, $u$ for centred ones, $\sigma$ for their scale.

Only what is shown is shortened; what is checked is always the full expression.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import sympy as sp
from pylatexenc.latex2text import LatexNodes2Text, MacroTextSpec, get_default_latex_context_db
from sympy import Add, Expr, Function, Indexed, IndexedBase, Mul, Pow, Rational, Sum
from sympy.printing.latex import LatexPrinter
from sympy.printing.pretty.pretty_symbology import pretty_symbol
from sympy.printing.str import StrPrinter

from lngeom.symbolic.sums import D, H, M, N, T, displayed

_MEANINGS = {
    r"\ba_[a-z][ijkl]?(?![a-z0-9])": "a_ni = (W x_n)_i",
    r"\ba_n[tsuv][ijklsuv](?![a-z0-9])": "a_nti = (W x_nt)_i at position t",
    r"\ba_np[q-s]": "a_npq = (W x_n)_i of unit i, the q-th of group p",
    r"\ba_n[tsuv]p[q-s]": "a_ntpq = (W x_nt)_i of unit i, the q-th of group p, at position t",
    r"\b[au]_n[tsuv][12]": "a_nt1 and a_ns2 the query at position t and the key at position s",
    r"\bu_": "u = a − μ",
    "σ_": "σ² = mean u²",
    r"·": "γ·x the inner product",
    r"\w+x_": "Vx_ni = (V x_n)_i",
    r"\[\w=": "[i=j] is 1 where i = j, else 0",
    r"\b(LN|BN|GN|IN)_": "LN_i(b_i; ε) (BN_n over samples, IN_t over positions, GN_q in a group): b less its mean over "
    "the index, over the root of its mean square plus ε, which is 0 where none is named",
    "𝟏": "𝟏 all ones",
}
"""What each sign means, by a pattern that finds it in a line."""
_SUMMED, _CENTRED, _SCALE = IndexedBase("a"), IndexedBase("u"), IndexedBase("sigma", positive=True)


def legend(text: str | None = None) -> str:
    """The meaning of the signs that a text uses, or of all."""
    return "; ".join(meaning for sign, meaning in _MEANINGS.items() if text is None or re.search(sign, text))


@cache
def shown(expr: Expr) -> Expr:
    """An expression for reading, with a, u and σ written for what they stand for."""
    return displayed(_defined(expr))


@cache
def _defined(expr: Expr) -> Expr:
    """The same, with bound indices as they are."""
    expr = rebuilt(expr, _defined)
    for fold in (_fold_summed, _fold_centred, _fold_scale):
        expr = fold(expr) or expr
    return expr


def rebuilt(expr: Expr, fold: Callable[[Expr], Expr]) -> Expr:
    """An expression with its parts folded; itself where none changes."""
    if isinstance(expr, Indexed) or not expr.args:
        return expr
    if isinstance(expr, Sum):
        body = fold(expr.function)
        return expr if body is expr.function else Sum(body, *expr.limits)
    parts = [fold(arg) if isinstance(arg, Expr) else arg for arg in expr.args]
    return expr if all(new is old for new, old in zip(parts, expr.args, strict=True)) else expr.func(*parts)


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


class Inner(Function):
    """v·w, or ‖w‖²: what Σ_d v_d w_d and Σ_d w_d² are shown as, for v and w linear in vectors."""


class Standardized(Function):
    """LN_i(b_i): what (b_i − mean b) / √(mean (b − mean b)² + ε) is shown as, of b_i, i, ε and the size."""


@cache
def folded(expr: Expr) -> Expr:
    """An expression for a short line: besides `shown`, with norms, means and products."""
    return _fold_products(_fold_means(displayed(_fold_standardized(_defined(sp.sympify(expr))))))


@cache
def _fold_standardized(expr: Expr) -> Expr:
    """(b_i − mean b) / √(mean (b − mean b)² + ε) → LN_i(b_i; ε)."""
    expr = rebuilt(expr, _fold_standardized)
    if not isinstance(expr, Mul):
        return expr
    for root in expr.args:
        base, exponent = root.as_base_exp()
        if exponent != -Rational(1, 2):
            continue
        for squares in base.atoms(Sum):
            found = _standardized(expr, root, squares)
            if found is not None:
                return found
    return expr


def _standardized(expr: Expr, root: Expr, squares: Sum) -> Expr | None:
    """The product with its factor over √(squares/size + ε) folded, if the factor is a centred b_i; else None."""
    (index, _, size), *more = squares.limits
    body, power = squares.function.as_base_exp()
    base = root.as_base_exp()[0]
    eps = sp.expand(base - squares / size) if base != squares else sp.S.Zero
    if more or power != 2 or eps.has(Sum):
        return None
    for centred in expr.args:
        for total in centred.args if isinstance(centred, Add) else ():
            values = centred - total
            for place in values.free_symbols - body.free_symbols:
                moved = values.xreplace({place: index})
                mean = Sum(moved, (index, 1, size)) / size
                if displayed(-total) == displayed(mean) and displayed(body) == displayed(moved - mean):
                    rest = expr / centred / root / (sp.sqrt(size) if base == squares else 1)
                    return rest * Standardized(values, place, eps, size)
    return None


@cache
def _fold_means(expr: Expr) -> Expr:
    """Σ_i body / H → mean_i(body)."""
    expr = rebuilt(expr, _fold_means)
    if not isinstance(expr, Mul):
        return expr
    for factor in expr.args:
        for limit in factor.limits if isinstance(factor, Sum) else ():
            if limit[2] in {H, D, N, M, T} and Pow(limit[2], -1) in expr.args:
                rest = [other for other in factor.limits if other != limit]
                body = Sum(factor.function, *rest) if rest else factor.function
                return _fold_means(expr / factor * limit[2]) * Mean(body, limit[0])
    return expr


@cache
def _fold_products(expr: Expr) -> Expr:
    """Σ_d V_id X_nd → Vx_ni, and Σ_d v_d w_d → v·w."""
    expr = rebuilt(expr, _fold_products)
    if not (isinstance(expr, Sum) and len(expr.limits) == 1):
        return expr
    index, _, size = expr.limits[0]
    outside, inside = expr.function.as_independent(index, as_Add=False)
    factors = [inside.base] * 2 if isinstance(inside, Pow) and inside.exp == 2 else list(Mul.make_args(inside))
    if len(factors) != 2:
        return expr
    first, second = sorted(factors, key=lambda f: (f.has(IndexedBase("X", real=True)), len(f.args), str(f)))
    if size == D and _is_row(first, index) and first.base.name != "X" and _is_row(second, index, "X"):
        return outside * Product(first, second)
    vectors = [_vector(f, index) for f in (first, second)]
    return expr if None in vectors else outside * Inner(*vectors)


def _is_row(entry: Any, index: Expr, name: str = "") -> bool:
    """Whether an expression is the entry of a row, of a matrix of that name, at an index."""
    if not isinstance(entry, Indexed) or len(entry.indices) == 1 or entry.indices[-1] != index:
        return False
    return index not in entry.indices[:-1] and name in {"", entry.base.name}


def _vector(entry: Expr, index: Expr) -> Expr | None:
    """The vector of entries over an index, if the expression is linear in entries of vectors; else None."""
    if isinstance(entry, Indexed):
        *rest, last = entry.indices
        if last != index or index in rest:
            return None
        name = "x" if entry.base.name == "X" else entry.base.name
        return IndexedBase(name, real=True)[tuple(rest)] if rest else sp.Symbol(name, real=True)
    if not isinstance(entry, (Add, Mul)):
        return None
    scalars, vectors = [], []
    for arg in entry.args:
        (vectors if arg.has(index) else scalars).append(arg)
    if scalars if isinstance(entry, Add) else len(vectors) != 1:
        return None
    found = [_vector(arg, index) for arg in vectors]
    return None if None in found else entry.func(*scalars, *found)


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


_NORMS = {H: "LN", N: "BN", M: "GN", T: "IN", D: "LN"}
"""The norm that standardizes over an index of this size."""
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class _Plain(StrPrinter):
    """Unicode text."""

    printmethod = "_plain"

    def _print_Symbol(self, expr: Any) -> str:
        return from_latex(expr.name) if {*"_^\\\\'"} & {*expr.name} else pretty_symbol(expr.name)

    _print_Dummy = _print_Symbol

    def _print_Indexed(self, expr: Any) -> str:
        places = [self._print(index) for index in expr.indices]
        comma = "," if any(len(place) > 1 for place in places) else ""
        return f"{self._print(sp.Symbol(expr.base.name))}_{comma.join(places)}"

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

    def _print_Inner(self, expr: Any) -> str:
        first, second = expr.args
        return f"‖{self._print(first)}‖²" if first == second else f"{self._factor(first)}·{self._factor(second)}"

    def _print_Standardized(self, expr: Any) -> str:
        body, index, eps, size = expr.args
        added = "" if eps == 0 else f"; {self._print(eps)}"
        return f"{_NORMS[size]}_{self._print(index)}({self._print(body)}{added})"

    def _print_KroneckerDelta(self, expr: Any) -> str:
        return f"[{self._print(expr.args[0])}={self._print(expr.args[1])}]"

    @staticmethod
    def _is_product(expr: Expr) -> bool:
        """Whether it is v·w, which is put in brackets beside other factors."""
        return isinstance(expr, Inner) and expr.args[0] != expr.args[1]

    def _factor(self, expr: Expr) -> str:
        return f"({self._print(expr)})" if isinstance(expr, Add) else self._print(expr)

    def _print_Pow(self, expr: Any, rational: bool = False) -> str:
        base, exponent = expr.as_base_exp()
        if exponent.is_Rational and exponent.is_negative:
            return self._print_Mul(expr)
        if isinstance(base, Inner) and base.args[0] == base.args[1] and (2 * exponent).is_Integer:
            length = self._print(base)[:-1]
            return length if exponent == Rational(1, 2) else length + str(2 * exponent).translate(_RAISED)
        simple = (
            base.is_Symbol
            or isinstance(base, (Indexed, Mean, Standardized))
            or (base.is_Integer and base.is_nonnegative)
        )
        inner = self._print(base) if simple else f"({self._print(base)})"
        if exponent == Rational(1, 2):
            return f"√{inner}"
        return inner + (str(exponent).translate(_RAISED) if exponent.is_Integer else f"^({self._print(exponent)})")

    def _print_Mul(self, expr: Any) -> str:
        if expr.as_coeff_Mul()[0].is_negative:
            return f"−{self._factor(-expr)}"
        above, below = _fraction(expr)
        alone = len(above) == 1
        top = " ".join(self._factor(f) if alone or not self._is_product(f) else f"({self._print(f)})" for f in above)
        bottom = " ".join(map(self._factor, below))
        compound = len(below) > 1 or any(isinstance(f, Sum) or self._is_product(f) for f in below)
        top = top or "1"
        return top if not below else f"{top} / {f'({bottom})' if compound else bottom}"

    def _print_Add(self, expr: Any, order: Any = None) -> str:
        terms = sorted(expr.as_ordered_terms(), key=lambda term: bool(term.as_coeff_Mul()[0].is_negative))
        first, *rest = (self._print(term) for term in terms)
        return first + "".join(f" − {t[1:]}" if t.startswith("−") else f" + {t}" for t in rest)

    def _print_Abs(self, expr: Any) -> str:
        return f"|{self._print(expr.args[0])}|"

    def _print_Exp1(self, expr: Any) -> str:
        return "e"

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

    def _print_Pow(self, expr: Any) -> str:
        base, exponent = expr.as_base_exp()
        if isinstance(base, Inner) and base.args[0] == base.args[1] and (2 * exponent).is_Integer and exponent > 0:
            return _to_the(self._length(base.args[0]), None if 2 * exponent == 1 else 2 * exponent)
        return super()._print_Pow(expr)

    def _length(self, vector: Any) -> str:
        return rf"\lVert {self._print(vector)}\rVert"

    def _print_Inner(self, expr: Any, exp: Any = None) -> str:
        first, second = expr.args
        if first == second:
            square = _to_the(self._length(first), 2)
            return square if exp is None else rf"({square})^{{{exp}}}"
        parts = (rf"\left({self._print(v)}\right)" if isinstance(v, Add) else self._print(v) for v in expr.args)
        return _to_the(r"({}^\top {})".format(*parts), exp)

    def _print_Standardized(self, expr: Any, exp: Any = None) -> str:
        body, index, eps, size = expr.args
        added = "" if eps == 0 else rf";\,{self._print(eps)}"
        name = rf"\mathrm{{{_NORMS[size]}}}_{{{self._print(index)}}}"
        return _to_the(rf"{name}\left({self._print(body)}{added}\right)", exp)

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


def _bold(text: str) -> str:
    """The vector of ones in bold; other bold letters as they are."""
    return "𝟏" if text == "1" else text


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
        MacroTextSpec("mathbf", lambda node, l2tobj: _bold(_arguments(node, l2tobj)[0])),
    ],
)
_TO_TEXT = LatexNodes2Text(_CONTEXT, math_mode="text", keep_braced_groups=True, keep_braced_groups_minlen=2)


def _index(found: re.Match[str]) -> str:
    """An index with a relation or an index of its own in braces: Σ_{k≠i}, F_{w_i w_j}."""
    text = re.sub(r"\s*([=≠≤≥<>∈])\s*", r"\1", found[1])
    lowered = re.sub(r"(?<=[^\W\d_])_(\d)(?!\d)", lambda digit: digit[1].translate(_LOWERED), text)
    return f"_{_OPEN}{lowered}{_CLOSE}" if re.search("[_=≠≤≥<>∈]", text) else f"_{text}"


_OPEN, _CLOSE = "⟦", "⟧"
"""Braces that stay, while others become brackets."""
_SMALL = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻₀₁₂₃₄₅₆₇₈₉"
_LETTERS = "alpha|beta|gamma|delta|epsilon|eta|theta|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|phi|chi|psi|omega"
_LETTERS += "|Delta|Theta|Lambda|Pi|Sigma|Phi|Omega|mathbf|bar|dot|hat|tilde|nabla|partial|frac|tfrac"
_MATRIX = re.compile(r"\\left\[\s*\\begin\{matrix\}(.*?)\\end\{matrix\}\s*\\right\]", re.DOTALL)


def _rows(found: re.Match[str]) -> str:
    """A matrix in LaTeX as its rows between semicolons."""
    rows = [[re.sub(r"^-\s*", "−", entry.strip()) for entry in row.split("&")] for row in found[1].split(r"\\")]
    return f"[{'; '.join(' '.join(row) for row in rows)}]"


def from_latex(formula: str) -> str:
    """A formula in LaTeX as Unicode text."""
    for other, known in ((r"\tfrac", r"\frac"), (r"\dfrac", r"\frac"), (r"\operatorname", r"\mathrm")):
        formula = formula.replace(other, known)
    formula = re.sub(rf"(_\w)(?=[a-zA-Z]|\\(?:{_LETTERS})(?![a-zA-Z]))", r"\1 ", _MATRIX.sub(_rows, formula))
    text = _TO_TEXT.latex_to_text(formula).replace("”", "″").replace("∑", "Σ")
    text = re.sub(r"\s*([=≠≤≥<>≻⇒⇔↦→∈∉∥≈])\s*", r" \1 ", text.replace(" - ", " − "))
    for _ in range(3):  # of groups within groups, the innermost first
        text = re.sub(r"_\{([^{}]*)\}", _index, text)
        text = re.sub(r"\^(?:\{([^{}]*)\})", _power, text)
    text = re.sub(r"\^(\d|ᵀ|\+)", _power, text)
    text = re.sub(r"(?<=[^\W\d_])_(\d)(?![\w,])", lambda found: found[1].translate(_LOWERED), text)
    text = re.sub(r"(?<=[(,])-(?=\w)", "−", text)
    text = re.sub(r"(?<=[\w)ᵀ])-(?=[\w(])", " − ", re.sub(r"\s+", " ", text.replace("{", "(").replace("}", ")")))
    text = re.sub(rf"([{_SMALL}{_CLOSE}])(?=[^\W\d_ᵀ{_SMALL}])", r"\1 ", text)
    text = re.sub(r"(?<=[^\W_(\[])(?=Σ)", " ", text.replace(_OPEN, "{").replace(_CLOSE, "}"))
    return re.sub(r" (?=[),\]])", "", text).strip()
