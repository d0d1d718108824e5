"""Certificates of proofs as files, for `analysis/check_certificate.py`."""

from pathlib import Path

from rich.console import Console
from rich.progress import track

from lngeom.cli.asked import proof
from lngeom.cli.console import check_writable, fail, writing, written


def write_one(claims, path: Path) -> None:
    """Writes the certificate of a claim's proof."""
    from lngeom.report import document, write
    from lngeom.symbolic.certificate import certificate

    if path.suffix != ".json":
        fail(f"--certificate writes a .json file; got {path}")
    if len(claims) > 1:
        fail(f"a certificate is of one claim: name one of {', '.join(c.id for c in claims)}")
    found = proof(claims[0].id)
    if found is None:
        fail(f"{claims[0].id} has no proof: it rests on numbers alone")
    check_writable(path.parent, "--certificate")
    with writing(path, "--certificate"):
        written(write(path.parent, {path.name: document.dumps(certificate(claims[0].id, found))}))


def write_all(claims, folder: Path) -> None:
    """Writes a certificate of each claim that has a proof, one after the other, with what is left to do."""
    from lngeom.report import document, write
    from lngeom.symbolic.certificate import certificate

    console = Console(stderr=True)
    paths = []
    for claim in track(claims, "Certificates", console=console, transient=True, disable=not console.is_terminal):
        found = proof(claim.id)
        if found is not None:
            with writing(folder, "--certificates"):
                paths += write(folder, {f"{claim.id}.json": document.dumps(certificate(claim.id, found))})
    Console(stderr=True).print(f"Written: {len(paths)} certificates in {folder}", highlight=False, soft_wrap=True)
