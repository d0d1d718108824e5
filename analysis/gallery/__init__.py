"""One figure a paper of the gallery, which shows what was found in it: `python -m analysis gallery`."""

from lngeom.plots import style


def series_colour(series: int) -> str:
    """Colour of a series that is no method: those of the style, in order.

    Args:
        series: its number, from 0.

    Returns:
        The colour.
    """
    colours = style.STYLE["axes.prop_cycle"].by_key()["color"]
    return colours[series % len(colours)]
