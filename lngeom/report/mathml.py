"""LaTeX as MathML that is safe to put into a page: only the elements and attributes of presentation MathML pass."""

import re
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

SUBSCRIPT = re.compile(r"((?<!\w)[^\W\d_]|[)\]])_(?:\{([^{}]{1,12})\}|([A-Za-z0-9]{1,2}(?:≠[a-z])?))(?![A-Za-z0-9_])")


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
    """Text, escaped, with subscripts set as such.

    Args:
        text: plain text with Unicode mathematics.

    Returns:
        Markup.

    Example:
        >>> prose("ds² of w_i < w_max_norm")
        Markup('ds² of w<sub>i</sub> &lt; w_max_norm')
    """
    return Markup(SUBSCRIPT.sub(lambda m: f"{m[1]}<sub>{m[2] or m[3]}</sub>", escape(text)))
