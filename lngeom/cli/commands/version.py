"""Print the version."""

from rich.console import Console


def run() -> None:
    import lngeom

    Console().print(lngeom.__version__, highlight=False)
