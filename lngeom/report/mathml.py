"""LaTeX as MathML that is safe to put into a page: only the elements and attributes of presentation MathML pass."""

import re
from collections.abc import Iterator
from functools import lru_cache
from html import escape
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markupsafe import Markup

NAMESPACE = "{http://www.w3.org/1998/Math/MathML}"
ELEMENTS = re.compile(
    "math|m(frac|i|n|o|over|padded|phantom|root|row|space|sqrt|style|sub|subsup|sup|table|td|text|tr|under|underover)"
)
ATTRIBUTES = {
    "accent": r"true|false",
    "columnalign": r"left|center|right",
    "display": r"block|inline",
    "displaystyle": r"true|false",
    "fence": r"true|false",
    "form": r"prefix|infix|postfix",
    "linethickness": r"\d+(\.\d+)?(em|ex|px|pt)?",
    "lspace": r"-?\d+(\.\d+)?(em|ex|px|pt)",
    "mathvariant": r"normal|bold",
    "maxsize": r"\d+(\.\d+)?(em|ex|px|pt)",
    "minsize": r"\d+(\.\d+)?(em|ex|px|pt)",
    "movablelimits": r"true|false",
    "rspace": r"-?\d+(\.\d+)?(em|ex|px|pt)",
    "scriptlevel": r"[+-]?\d",
    "separator": r"true|false",
    "stretchy": r"true|false",
    "width": r"-?\d+(\.\d+)?(em|ex|px|pt)",
}
"""Attribute → the values that pass, as a pattern."""

RELATIONS = frozenset("=≠<>≤≥≈≻∈⇒⇔→↦⟹⟺∥")
SIGNS = frozenset("+−-±")
OPENING, CLOSING = frozenset("([{"), frozenset(")]}")
LONGEST = 8
"""Characters up to which a bracket or a product is not broken."""

SUPERSCRIPT = re.compile(r"\^(?:\{([^{}]+)\}|\(([^()]+)\)|(\w+))")
"""What stands raised in text: ^{…}, ^(…) or ^ and a word."""

SUBSCRIPT = re.compile(
    r"((?<!\w)[A-Z]?[^\W\d_][\u0300-\u036f]?|[)\]])_(?:\{([^{}]{1,12})\}|([A-Za-z0-9]{1,2}(?:≠[a-z])?))(?![A-Za-z0-9_])"
)


@lru_cache(maxsize=4096)
def mathml(latex: str, display: str = "block") -> Markup:
    r"""MathML of a formula; a formula that cannot be converted is shown as its LaTeX.

    Args:
        latex: the formula.
        display: "block" or "inline".

    Returns:
        Markup with no element, attribute or value but those of presentation MathML.

    Example:
        >>> mathml("x", "inline")
        Markup('<math display="inline"><mi>x</mi></math>')
        >>> mathml(r"\text{<script>}")
        Markup('<code>\\text{&lt;script&gt;}</code>')
    """
    try:
        root = ElementTree.fromstring(convert(latex, display=display))
    except Exception:
        return Markup(f"<code>{escape(latex)}</code>")
    return Markup(_clean(root))


@lru_cache(maxsize=4096)
def lines(latex: str, longest: int = 44) -> Markup:
    r"""A displayed formula that may be broken before relations and signs, after commas, and between words.

    Args:
        latex: the formula.
        longest: characters beyond which a fraction, a root or a power is written in a line, so that it may be broken.

    Returns:
        As `mathml`; a formula with such places as several elements, each with the part up to the next place.

    Example:
        >>> str(lines("x = 1")).split("<wbr>")[1]
        '<math displaystyle="true"><mo form="infix">=</mo><mn>1</mn></math>'
    """
    try:
        root = ElementTree.fromstring(convert(latex))
    except Exception:
        return mathml(latex)
    parts: list[list[ElementTree.Element]] = [[]]
    depth = 0
    for element in _in_a_line(root, longest):
        sign = _sign(element)
        if parts[-1]:
            before = parts[-1][-1]
            if (_sign(before) in {",", ";"} and not depth) or _breaks(element, before, parts[-1]):
                parts.append([])
                if sign in RELATIONS | SIGNS:
                    element.set("form", "infix")
        depth += (sign in OPENING) - (sign in CLOSING)
        parts[-1].append(element)
    _match_brackets(parts)
    shown = ("".join(map(_clean, part)) for part in parts)
    return Markup("<wbr>").join(Markup(f'<math displaystyle="true">{part}</math>') for part in shown)


def _in_a_line(element: ElementTree.Element, longest: int) -> Iterator[ElementTree.Element]:
    """The elements of a row, with those of long rows within it; long fractions, roots and powers in a line."""
    for child in element:
        name = child.tag.removeprefix(NAMESPACE)
        length = len("".join(child.itertext()))
        if name in {"mrow", "mstyle"} and (len(element) == 1 or length > LONGEST):
            yield from _in_a_line(child, longest)
        elif name == "mtext" and child.text:
            yield from (_new("mtext", word) for word in re.findall(r"\s*\S+|\s+$", child.text))
        elif name == "mfrac" and length > longest:
            yield from _bracketed(child[0], longest // 2)
            yield _new("mo", "/")
            yield from _bracketed(child[1], longest // 2)
        elif name == "msqrt" and length > longest:
            yield _new("mo", "√")
            yield from _bracketed(child, longest)
        elif name == "msup" and length > longest // 2 and len(child[0]):
            *inner, last = _in_a_line(child[0], longest)
            yield from inner
            power = _new("msup")
            power.extend((last, child[1]))
            yield power
        else:
            yield child


def _bracketed(element: ElementTree.Element, longest: int) -> Iterator[ElementTree.Element]:
    inner = list(_in_a_line(element, longest)) or [element]
    several = len(inner) > 1
    yield from ([_new("mo", "(")] if several else []) + inner + ([_new("mo", ")")] if several else [])


def _new(name: str, text: str = "") -> ElementTree.Element:
    element = ElementTree.Element(NAMESPACE + name)
    element.text = text
    return element


def _match_brackets(parts: list[list[ElementTree.Element]]) -> None:
    """Brackets that open and close on different lines grow with neither."""
    opened: list[tuple[int, ElementTree.Element]] = []
    for number, part in enumerate(parts):
        for element in part:
            if _sign(element) in OPENING:
                opened.append((number, element))
            elif _sign(element) in CLOSING and opened:
                line, first = opened.pop()
                for bracket in (first, element[0] if len(element) else element):
                    if line != number:
                        bracket.set("stretchy", "false")


def _sign(element: ElementTree.Element) -> str:
    """The character of an operator; empty for anything else. A power of a bracket counts as the bracket."""
    if element.tag == f"{NAMESPACE}msup":
        return _sign(element[0])
    return (element.text or "").strip() if element.tag == f"{NAMESPACE}mo" else ""


def _breaks(element: ElementTree.Element, before: ElementTree.Element, part: list[ElementTree.Element]) -> bool:
    """Whether a line may end between two elements, the first of which ends the part so far."""
    sign, last = _sign(element), _sign(before)
    if sign in RELATIONS or sign == "/":
        return True
    if sign in SIGNS:
        return not last or last in CLOSING
    if element.tag == f"{NAMESPACE}mtext":
        return (element.text or "x")[0].isspace()
    factors = not sign and (not last or last in CLOSING) and before.tag != f"{NAMESPACE}munderover"
    return factors and len("".join("".join(e.itertext()) for e in part)) > LONGEST


def _clean(element: ElementTree.Element) -> str:
    name = element.tag.removeprefix(NAMESPACE)
    content = escape(element.text or "", quote=False)
    content += "".join(_clean(child) + escape(child.tail or "", quote=False) for child in element)
    if not ELEMENTS.fullmatch(name):
        return f"<mtext>{escape(''.join(element.itertext()), quote=False)}</mtext>"
    passing = {k: v for k, v in element.attrib.items() if re.fullmatch(ATTRIBUTES.get(k, "(?!)"), v)}
    if name == "mrow" and not passing and len(element) == 1:
        return content
    attributes = "".join(f' {k}="{v}"' for k, v in passing.items())
    return f"<{name}{attributes}>{content}</{name}>"


def prose(text: str) -> Markup:
    """Text, escaped, with subscripts and superscripts set as such.

    Args:
        text: plain text with Unicode mathematics.

    Returns:
        Markup.

    Example:
        >>> prose("ds² of w_i < w_max_norm, Vx_ni")
        Markup('ds² of w<sub>i</sub> &lt; w_max_norm, Vx<sub>ni</sub>')
        >>> prose("F̄_ij of w̃_i")
        Markup('F̄<sub>ij</sub> of w̃<sub>i</sub>')
        >>> prose("e^{2A√L}, t^(1/4), L^A")
        Markup('e<sup>2A√L</sup>, t<sup>1/4</sup>, L<sup>A</sup>')
    """
    lowered = SUBSCRIPT.sub(lambda m: f"{m[1]}<sub>{m[2] or m[3]}</sub>", escape(text))
    return Markup(SUPERSCRIPT.sub(lambda m: f"<sup>{m[1] or m[2] or m[3]}</sup>", lowered))


def typeset(text: str) -> Markup:
    """Text with formulas in LaTeX between dollars, which become MathML.

    Args:
        text: the text.

    Returns:
        Markup.

    Example:
        >>> typeset("the $q$-th < all")
        Markup('the <math display="inline"><mi>q</mi></math>-th &lt; all')
    """
    parts = re.split(r"\$(.+?)\$", text)
    return Markup("").join(mathml(part, "inline") if k % 2 else Markup.escape(part) for k, part in enumerate(parts))
