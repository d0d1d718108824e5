"""The `lngeom` command. Only this module prints and exits."""

import dataclasses
import difflib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from lngeom._core import files as _files
from lngeom.cli.interrupts import Workers

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="The geometry of normalization layers: an audit of Layer Normalization (2016).",
    pretty_exceptions_enable=False,
)

Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)]
Data = Annotated[
    str,
    typer.Option(
        help="'digits', or a .npz, .npy, .csv or .tsv file (or .gz): one sample a row.", metavar="digits|FILE"
    ),
]


FEW, MANY = 20, 150
"""Up to `FEW` claims, one process makes all numbers; more than `MANY` has the extended table only.

Its proofs take longer than its numbers.
"""


def _tell(message: str) -> None:
    Console(stderr=True).print(Text.assemble(("error: ", "red"), message), soft_wrap=True)


def _fail(message: str) -> NoReturn:
    _tell(message)
    raise typer.Exit(2)


def _width() -> int:
    """Columns of the terminal, 40 at least; 100 where there is none."""
    return max(40, shutil.get_terminal_size((100, 24)).columns)


def _compile_sparingly() -> None:
    """Compiles with few optimizations, and keeps the programs."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    _keep_programs()


def _keep_programs() -> None:
    """Keeps compiled programs for the next call: in JAX's folder if one is set, else in the user's cache folder."""
    import jax

    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        try:
            base = os.environ.get("XDG_CACHE_HOME")
            folder = (Path(base) if base else Path.home() / ".cache") / "lngeom" / "jax"
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError):  # the folder cannot be made, or there is no home
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    for name, value in {
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)


def _check_writable(folder: Path, option: str = "--out") -> None:
    """Exits before the computation if its results could not be written."""
    try:
        _files.check_writable(folder)
    except OSError as error:
        _fail(f"cannot write to {option} {folder}: {error}")


@contextmanager
def _stages() -> Iterator[Callable[[str], None]]:
    """Shows the current stage of a long computation and its time; yields a function that sets the stage's name."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")
        yield lambda stage: progress.reset(task, description=stage)


def _run(
    claims,
    data: str,
    seed: int,
    results: Path | None = None,
    proofs: bool = True,
    steps: bool = True,
    each: Callable[[Any], None] | None = None,
    prover: Workers | None = None,
    papers: Mapping[str, str] | None = None,
):
    """Checks claims on data with a progress bar; returns the data set and the outcomes.

    Proofs run in parallel with the numbers, in the processes of `prover` or in new ones: two for more than `MANY`
    claims, else one, which then takes the numbers of the last claims while this process takes those of the first.
    `steps` is whether a document is to show theirs. `each` is told each outcome as it comes; where it prints to a
    terminal, there is no progress bar. `papers` names for the id of a paper what it is found by, where that is not its
    id.
    """
    import jax
    import jax.numpy as jnp
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from threadpoolctl import threadpool_limits

    from lngeom.claims import Problem, registry
    from lngeom.claims.data import DataError, load
    from lngeom.claims.numeric import numeric_evidence
    from lngeom.claims.proofs import proof_evidence

    try:
        dataset = load(data, seed)
    except DataError as error:
        _fail(str(error))
    outcomes = []
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # NumPy's matrices are small here; its own threads would only contend with JAX's.
    with (
        nullcontext(prover) if prover else Workers(1 if len(claims) <= MANY else 2) as prover,
        jax.enable_x64(True),
        threadpool_limits(1, user_api="blas"),
        Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=each is None,
            disable=each is not None and sys.stdout.isatty(),
        ) as progress,
    ):
        found_by = {claim.paper: claim.paper for claim in claims} | dict(papers or {})
        pending = {
            claim.id: prover.submit(proof_evidence, claim.id, steps=steps, paper=found_by[claim.paper])
            for claim in claims
            if proofs
        }

        ahead = {}
        if proofs and FEW < len(claims) <= MANY:
            prover.submit(_compile_sparingly)
            ahead = {
                c.id: prover.submit(numeric_evidence, c.id, data, seed, results, paper=found_by[c.paper])
                for c in reversed(claims)
            }

        def result(future: Future) -> list:
            try:
                return list(future.result())
            except BrokenProcessPool:
                _tell("a worker process was killed, perhaps because memory ran out: free memory and start again")
                sys.exit(2)  # an exception would be recorded as evidence

        def proof(id: str) -> list:
            return result(pending[id])

        def numbers(claim: registry.Claim, problem: Problem) -> list:
            here = claim.id not in ahead or ahead[claim.id].cancel()
            return registry.numbers(claim, problem) if here else result(ahead[claim.id])

        problem = Problem(jnp.asarray(dataset.inputs), seed, results=results)
        task = progress.add_task("", total=len(claims))
        for claim in claims:
            progress.update(task, description=claim.id)
            outcomes.append(registry.run(claim, problem, proof if proofs else None, numbers))
            if each:
                each(outcomes[-1])
            progress.advance(task)
    return dataset, outcomes


@app.command()
def verify(
    data: Data = "digits",
    topic: Annotated[str | None, typer.Option(help="Check one topic only (see --list), or 'all'.")] = None,
    claim: Annotated[str | None, typer.Option(help="Check one claim only, by its id (see --list).")] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            help="Check another paper: its id or number on arXiv (see lngeom papers), 'all', or the path of a folder.",
            metavar="ID|PATH|all",
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Also check the experiments' claims, on the results in this folder (such as figures)."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.json and report.html.")] = Path("report"),
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of tables.")] = False,
    seed: Seed = 0,
    every: Annotated[bool, typer.Option("--all", help="Print every claim, not only what does not hold.")] = False,
    list_only: Annotated[bool, typer.Option("--list", help="List the claims without checking them.")] = False,
) -> None:
    """Check every claim of the paper on real data; exit 0 if all verdicts are the recorded ones, else 1.

    Exit 1 means that a verdict differs, is undecided, or clashes: a number contradicts a proof. Some numbers are no
    evidence on your data, because they are not finite or lost to rounding. Then a proof alone decides, if there is one.
    On the digits such numbers also lead to exit 1.
    """
    from lngeom.claims import papers, registry
    from lngeom.report import terminal, write
    from lngeom.report.document import document as build_document, dumps
    from lngeom.report.page import page as build_page

    if paper == "all":
        if topic is not None or claim is not None or results is not None:
            _fail("--paper all checks every claim of every paper: leave --topic, --claim and --results out")
        _verify_all(data, seed, out, json, list_only)
        return
    try:
        about = papers.find(paper or papers.home(claim))
        chosen = registry.all_claims(topic, claim, about.id)
        if results is not None and topic is None and claim is None:
            chosen += registry.all_claims("experiments")
    except ValueError as error:
        _fail(str(error))
    console = Console()
    if list_only:
        console.print(terminal.listing(chosen if topic or claim else registry.all_claims("all", paper=about.id)))
        return
    if results is not None and not results.is_dir():
        _fail(f"no folder {results}: give the output folder of `python -m analysis`")
    _check_writable(out)
    _compile_sparingly()
    dataset, outcomes = _run(chosen, data, seed, results, papers={about.id: paper or about.id})
    document = build_document(outcomes, dataset, seed, about)
    text = dumps(document)
    try:
        paths = write(out, {"report.json": text, "report.html": build_page(document)})
    except OSError as error:
        _fail(f"cannot write to --out {out}: {error}")
    if json:
        sys.stdout.write(text)
    else:
        detailed = every or len(outcomes) == 1
        if detailed:
            console.print(terminal.claims_table(outcomes, about.title, console.width))
        if alarm := terminal.clashes(outcomes):
            console.print(alarm)
        console.print(
            f"Data: {dataset.name}, {' × '.join(map(str, dataset.shape))}, rank {dataset.rank}", highlight=False
        )
        for note in dataset.notes:
            console.print(f"  {note}", highlight=False, markup=False)
        if detailed:
            console.print(terminal.summary(outcomes))
            for extra in (terminal.context(outcomes), terminal.errata(outcomes), terminal.numbers_alone(outcomes)):
                if extra:
                    console.print(extra)
        else:
            for part in terminal.overview(outcomes):
                console.print(part, highlight=False)
            console.print("\nOne claim: lngeom verify --claim ID, lngeom prove ID. Every claim: --all.", style="dim")
        console.print("Written: " + ", ".join(map(str, paths)), highlight=False, soft_wrap=True)
    _conclude(outcomes, dataset)


def _verify_all(data: str, seed: int, out: Path, json: bool, list_only: bool) -> None:
    """Checks every paper, and writes a report of each and an index of all."""
    from lngeom.claims import papers
    from lngeom.report import gallery, terminal, write
    from lngeom.report.document import document as build_document, dumps
    from lngeom.report.page import page as build_page

    try:
        found = [papers.find(id) for id in papers.ids()]
    except papers.PaperError as error:
        _fail(str(error))
    claims = [c for p in found for c in p.claims]
    console = Console()
    if list_only:
        console.print(terminal.listing(claims))
        return
    _check_writable(out)
    _compile_sparingly()
    dataset, outcomes = _run(claims, data, seed)
    checked = [(p, [o for o in outcomes if o.claim.paper == p.id]) for p in found]
    documents = {p.id: build_document(these, dataset, seed, p) for p, these in checked}
    try:
        for id, document in documents.items():
            write(out / id, {"report.json": dumps(document), "report.html": build_page(document)})
        index = gallery.index(documents)
        paths = write(out, {"index.json": dumps(index), "index.html": gallery.page(index)})
    except OSError as error:
        _fail(f"cannot write to --out {out}: {error}")
    if json:
        sys.stdout.write(dumps(index))
    else:
        console.print(terminal.papers_table(checked))
        console.print("Written: " + ", ".join(map(str, paths)), highlight=False, soft_wrap=True)
    _conclude(outcomes, dataset)


@app.command()
def papers() -> None:
    """List the papers that lngeom audits, with the recorded verdicts of their claims and the main finding."""
    from lngeom.claims import papers as known, registry
    from lngeom.report import terminal

    try:
        found = [known.find(id) for id in known.ids()]
    except known.PaperError as error:
        _fail(str(error))
    recorded = [(p, [registry.recorded(c) for c in p.claims]) for p in found]
    Console().print(terminal.papers_table(recorded, findings=True))
    Console().print("One of them: lngeom verify --paper ID. All: --paper all. One of your own: lngeom new-paper NAME.")


@app.command()
def new_paper(
    name: Annotated[str, typer.Argument(help="Name of the paper, such as doe2027: a folder of this name is written.")],
    out: Annotated[Path, typer.Option(help="Folder to write it into.")] = Path(),
) -> None:
    """Write a folder for a paper of your own, with one worked claim, its proof and its test."""
    from lngeom.claims.papers import PaperError
    from lngeom.report import newpaper, write

    _check_writable(out)
    try:
        files = newpaper.files(name)
    except PaperError as error:
        _fail(str(error))
    if (out / name).exists():
        _fail(f"{out / name} exists already: give another name or --out")
    paths = write(out / name, files)
    Console().print("Written: " + ", ".join(map(str, paths)), highlight=False, soft_wrap=True)
    Console().print(f"Check it: lngeom verify --paper {out / name}. Test it: pytest {out / name}.", soft_wrap=True)


def _conclude(outcomes, dataset) -> None:
    """Prints problems on standard error, and exits with 1 if there are any."""
    from lngeom.report import terminal

    console = Console(stderr=True)
    for text in terminal.notices(outcomes, dataset):
        console.print(text, style="yellow", soft_wrap=True)
    if wrong := terminal.problems(outcomes, dataset):
        console.print("\n".join(wrong), style="red", soft_wrap=True)
        raise typer.Exit(1)


@app.command()
def table(
    data: Data = "digits",
    seed: Seed = 0,
    extended: Annotated[
        bool, typer.Option("--extended", help="Print 25 methods against 14 transformations and 7 groups of matrices.")
    ] = False,
) -> None:
    """Print Table 1 with the verdict of each cell, or the extended table; exit codes as for verify."""
    if extended:
        with Workers(2) as prover:
            prover.prepare("lngeom.papers.extended")
            dataset, outcomes = _run_extended(data, seed, prover)
    else:
        dataset, outcomes = _run_table1(data, seed)
    from lngeom.report import terminal

    part = terminal.exceptions(outcomes) if extended else terminal.table1(outcomes)
    for shown in (part, terminal.remarks(outcomes), terminal.clashes(outcomes)):
        if shown:
            Console().print(shown)
    _conclude(outcomes, dataset)


def _run_table1(data: str, seed: int):
    from lngeom.claims import registry

    _compile_sparingly()
    cells = [c for c in registry.all_claims("invariance") if c.source == "Table 1"]
    return _run(cells, data, seed, steps=False)


def _run_extended(data: str, seed: int, prover: Workers | None):
    """Checks the claims of the extended table, and prints each row as soon as its cells are known."""
    from lngeom.claims import registry
    from lngeom.report import terminal

    _compile_sparingly()
    claims = {c.id: c for c in registry.all_claims("extended") if c.source == "Table 1, extended"}
    rows = [(grid, method) for grid in terminal.grids(_width()) for method in grid.recorded]
    ordered = [claims.pop(id) for grid, method in rows for id in grid.claims(method)] + list(claims.values())
    console, by_id = Console(), {}
    console.print(terminal.EXTENDED_LEGEND, highlight=False)
    console.print(rows[0][0].head(), soft_wrap=True)

    def each(outcome) -> None:
        by_id[outcome.claim.id] = outcome
        while rows and all(cell in by_id for cell in rows[0][0].claims(rows[0][1])):
            grid, method = rows.pop(0)
            console.print(grid.row(method, by_id), soft_wrap=True)
            if rows and rows[0][0] is not grid:
                console.print(rows[0][0].head(), soft_wrap=True)

    return _run(ordered, data, seed, steps=False, each=each, prover=prover)


@app.command()
def figures(
    out: Annotated[Path, typer.Option(help="Folder for the figures: SVG, PNG and their data as JSON.")] = Path(
        "figures"
    ),
    from_report: Annotated[
        Path, typer.Option("--report", help="Folder of a report. If it has none, Table 1 is measured again.")
    ] = Path("report"),
    data: Data = "digits",
    seed: Seed = 0,
    no_caption: Annotated[bool, typer.Option("--no-caption", help="Leave the captions out of the pictures.")] = False,
) -> None:
    """Draw the figures: invariance tables, printed and exact Fisher matrices, scaling, line elements, spectra."""
    import json

    import jax

    from lngeom import plots
    from lngeom.claims import registry
    from lngeom.plots import geometry, studies
    from lngeom.plots.style import options
    from lngeom.report.tables import tables as build_tables

    _check_writable(out)
    _compile_sparingly()
    try:
        tables = json.loads((from_report / "report.json").read_text(encoding="utf-8"))["tables"]
    except FileNotFoundError:
        cells = [c for c in registry.all_claims("invariance") if c.source == "Table 1"]
        tables = build_tables(_run(cells, data, seed, proofs=False)[1])
    except (OSError, ValueError, KeyError, TypeError) as error:
        _fail(f"{from_report / 'report.json'} is not a report of this version: {error!r}; run lngeom verify again")
    with jax.enable_x64(True), options(captions=not no_caption):
        paths = [path for table in tables for path in plots.invariance_table(table, out / table["name"])]
        for study in studies.ALL:
            paths += getattr(geometry, study.__name__)(study(), out / study.__name__)
    Console().print("Written: " + ", ".join(map(str, paths)), highlight=False, soft_wrap=True)


@app.command()
def explore(
    out: Annotated[Path, typer.Option(help="The page to write.", metavar="FILE.html")] = Path("explorer.html"),
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write a page to play with: Table 1, Fisher matrices, null directions and learning rates, with sliders."""
    import webbrowser

    from lngeom.report import explorer, write

    if out.is_dir():
        _fail(f"--out {out} is a folder: name a file, such as {out / 'explorer.html'}")
    _check_writable(out.parent)
    _compile_sparingly()
    text = explorer.page()
    try:
        write(out.parent, {out.name: text})
    except OSError as error:
        _fail(f"cannot write to --out {out}: {error}")
    Console().print(f"Written: {out}", highlight=False, soft_wrap=True)
    if open_page and not webbrowser.open(out.absolute().as_uri()):
        _tell(f"found no browser: open {out} yourself")


@app.command()
def prove(
    id: Annotated[str | None, typer.Argument(help="A claim's id, such as table1.ln.weight_matrix_rescaling.")] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Print also what the machine checked at each step.")] = False,
    list_only: Annotated[bool, typer.Option("--list", help="List the claims that have a proof.")] = False,
) -> None:
    """Print the proof, or the exact counterexample, of a claim. The formula of every step is checked by machine."""
    from lngeom.claims import papers
    from lngeom.claims.proofs import proof_of, provable

    papers.find(papers.home(id))
    known = provable()
    if list_only:
        sys.stdout.write("\n".join(known) + "\n")
        return
    if id is None:
        _fail("name a claim; --list shows the claims that have a proof")
    if id not in known:
        near = difflib.get_close_matches(id, known, n=3, cutoff=0.5)
        _fail(f"no proof of {id!r}" + (f"; near it: {', '.join(near)}" if near else "; list them with --list"))
    found = proof_of(id)
    assert found is not None
    named = dataclasses.replace(found, name=id)  # cells of a table share their proofs, which go by another name
    sys.stdout.write((named.to_latex() if latex else named.to_text(_width(), full)) + "\n")


@app.command()
def check(
    layer: Annotated[
        str, typer.Argument(help="The layer, such as flax.nnx:LayerNorm or mypkg.layers:MyNorm.", metavar="MODULE:NAME")
    ],
    dtype: Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")] = "float32",
    like: Annotated[
        str | None, typer.Option(help="Compare with this row of the invariance table, such as layer.")
    ] = None,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Check evaluation mode instead of training mode.")
    ] = False,
    kind: Annotated[
        str | None, typer.Option(help="Signature of a function: 'weights' for (W, X) → y, 'summed' for a → y.")
    ] = None,
    units: Annotated[int | None, typer.Option(help="Number of units, if the layer requires one.", min=2)] = None,
    positions: Annotated[int | None, typer.Option(help="Number of positions T, for inputs [N T D].", min=2)] = None,
    seed: Seed = 0,
) -> None:
    """Find a layer's invariances; exit 1 if they differ from the row of --like, 2 if nothing could be checked."""
    from lngeom.checks import check_invariances

    _keep_programs()
    options = {"kind": kind, "units": units, "positions": positions}
    try:
        report = check_invariances(layer, like=like, dtype=dtype, training=not evaluation, seed=seed, **options)
    except ValueError as error:
        _fail(str(error))
    if report.unchecked:
        _fail(f"nothing of {report.layer} could be checked: {report.unchecked}")
    sys.stdout.write(f"{report.to_text(_width())}\n")
    if report.differs:
        raise typer.Exit(1)


@app.command()
def lint(
    model: Annotated[
        str,
        typer.Argument(
            help="A function that returns (model, X), such as mypkg.models:problem; a third item holds arguments of "
            "lg.lint.",
            metavar="MODULE:NAME",
        ),
    ],
    rules: Annotated[list[str] | None, typer.Option("--rule", help="Run this rule only; may be repeated.")] = None,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Examine norms in evaluation mode instead of training mode.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of text.")] = False,
    sarif: Annotated[Path | None, typer.Option(help="Also write the report here, in SARIF 2.1.0.")] = None,
) -> None:
    """Find known mistakes around a model's norms; exit 1 if there are any, 2 if no norm could be checked."""
    from json import dumps

    from lngeom.checks.adapters import load
    from lngeom.checks.linting import lint as run
    from lngeom.checks.linting.given import given

    if sarif is not None:
        _check_writable(sarif.parent, "--sarif")
    _keep_programs()
    try:
        found = given(load(model, "a model is named as PACKAGE.MODULE:NAME, such as mypkg.models:problem"), model)
        options: dict[str, Any] = found.options
        options |= ({"rules": rules} if rules else {}) | ({"training": False} if evaluation else {})
        report = run(found.model, found.X, **options)
    except ValueError as error:
        _fail(str(error))
    if not report.checked:
        reasons = "; ".join(f"{path or report.model}: {reason}" for path, _, reason in report.unchecked)
        _fail(f"no norm of {report.model} could be checked{f': {reasons}' if reasons else ': it has none'}")
    if sarif is not None:
        text = dumps(report.to_sarif(found.uri, found.line), indent=2) + "\n"
        try:
            sarif.parent.mkdir(parents=True, exist_ok=True)
            with _files.replacing(sarif) as file:
                file.write(text.encode())
        except OSError as error:
            _fail(f"cannot write to --sarif {sarif}: {error}")
    sys.stdout.write(dumps(report.to_dict(), indent=2) + "\n" if json else f"{report.to_text(_width())}\n")
    if report.findings:
        raise typer.Exit(1)


@app.command()
def fisher(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A function that returns (apply, params, X), such as mypkg.models:problem; or apply itself, with "
            "--params and --data.",
            metavar="MODULE:NAME",
        ),
    ] = None,
    glm: Annotated[bool, typer.Option("--glm", help="Use a normalized GLM with random weights, on --data.")] = False,
    normalizer: Annotated[
        str, typer.Option(help="With --glm: identity, batch, weight, layer, rms, group, …")
    ] = "layer",
    outputs: Annotated[int, typer.Option(help="With --glm: number of units or classes.", min=1)] = 10,
    family: Annotated[str | None, typer.Option(help="Distribution of a response: categorical, bernoulli, …")] = None,
    method: Annotated[str, typer.Option(help="exact, printed (--glm), monte_carlo or empirical.")] = "exact",
    wrt: Annotated[
        list[str] | None, typer.Option(help="Leaf or subtree of the parameters to include; may be repeated.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="ε of --normalizer, or the argument eps of the function NAME.", min=0)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="X: a .npz, .npy, .csv or .tsv file (or .gz), or 'digits' with --glm.", metavar="digits|FILE"
        ),
    ] = None,
    params: Annotated[
        Path | None, typer.Option(help="Parameters: a .npz with one array per leaf ('layer1.kernel').")
    ] = None,
    responses: Annotated[
        str | None, typer.Option(help="Observed y, for --method empirical.", metavar="digits|FILE", show_default=False)
    ] = None,
    samples: Annotated[int, typer.Option(help="Draws per input, for --method monte_carlo.", min=1)] = 10,
    batch_coupled: Annotated[
        bool, typer.Option("--batch-coupled", help="The outputs of a sample depend on other samples (batch norm).")
    ] = False,
    top: Annotated[int, typer.Option(help="Number of largest eigenvalues to print.", min=1)] = 8,
    products_only: Annotated[
        bool, typer.Option("--products-only", help="Use products only, without rank, for many parameters.")
    ] = False,
    memory: Annotated[
        float | None, typer.Option(help="Memory budget in GiB; by default half of the free memory.", min=0)
    ] = None,
    dtype: Annotated[str, typer.Option(help="Cast params and X to float64 or float32.")] = "float64",
    save: Annotated[Path | None, typer.Option(help="Write the matrix to this .npz.", metavar="FILE.npz")] = None,
    seed: Seed = 0,
) -> None:
    """Print rank, null space and spectrum of a model's Fisher matrix; exit 1 if the nullity is not as predicted."""
    import jax

    from lngeom.cli import fisher as command
    from lngeom.information import ConvergenceError
    from lngeom.information.summary import summarize
    from lngeom.report.fisher import fisher as table_of

    _compile_sparingly()
    try:
        if save is not None:
            command.check_save(save)
            _check_writable(save.parent, "--save")
        with jax.enable_x64(True):
            if glm == (model is not None):
                raise ValueError("name a model as MODULE:NAME, or use --glm for a normalized GLM on --data")
            given = (
                command.normalized_glm(normalizer, family, outputs, data, epsilon, dtype, seed)
                if model is None
                else command.named(model, params, data, epsilon, dtype)
            )
            coupled = batch_coupled or None
            with _stages() as watch:
                watch("derivatives")
                operator = command.operator(given, family, method, wrt, responses, samples, coupled, memory, seed)
            matrix = operator.as_matrix(progress=True) if save is not None else None
            with _stages() as watch:
                found = summarize(operator, top, products_only=products_only, watch=watch)
            if save is not None and matrix is not None:
                operator.save(save, ["matrix"], matrix=matrix)
    except (ValueError, OSError) as error:
        _fail(str(error))
    except ConvergenceError as error:
        _fail(f"{error} (here: --top)")
    except MemoryError as error:
        _fail(f"{error} (here: --products-only, --wrt, --memory)")
    Console().print(table_of(found))
    if save is not None:
        Console().print(f"Written: {save}", highlight=False, soft_wrap=True)
    if found.as_predicted is False:
        Console(stderr=True).print("the nullity is not the predicted one", style="red")
        raise typer.Exit(1)


@app.command()
def rewrite(
    folder: Annotated[
        Path,
        typer.Argument(help="A checkpoint: config.json and .safetensors files.", metavar="FOLDER", show_default=False),
    ],
    do: Annotated[
        str,
        typer.Option(
            help="Steps in order, such as untie,fold,rotate or untie,fold,centre,rms,rotate. Others: rotate-values, "
            "balance (balance=power-of-two), merge-value-bias, drop-key-bias (drop-key-bias=unrotated), "
            "merge-parallel-bias, centre-readers, centre-head, centre-router, shift-tables, scale=FACTOR. fold, centre "
            "and rms take a pattern of paths, such as fold=blocks.*.attention_norm.",
            metavar="STEPS",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The new folder. Without it, nothing is written.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print plan and certificate as JSON.")] = False,
    seed: Seed = 0,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of config.json that no code reads. Repeat it for several.",
            metavar="KEY",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Rewrite a transformer without changing its function; exit 0 if certified, 1 if not, 2 if a step is refused."""
    from json import dumps

    from lngeom.transformers.rewrite import checkpoints, load, save
    from lngeom.transformers.rewrite.layouts import RMS_MARK
    from lngeom.transformers.rewrite.rewriting import plan
    from lngeom.transformers.rewrite.steps import parse

    _compile_sparingly()
    try:
        steps, kind = parse(do, seed), None
        if out is not None:
            checkpoints.check_target(out)
        found = plan(*load(folder, ignore=ignore or ()), steps, seed=seed)
        if out is not None:
            kind = checkpoints.check_saved(found.stack, found.draft, found.before)[1]["model_type"]
        if not json:
            sys.stdout.write(f"{found.describe()}\n")
            sys.stdout.flush()
        with _stages() as watch:
            watch("certificate")
            certificate = found.certify()
            if out is not None and certificate.passed:
                watch("writing")
                certificate = save(found.rewritten(certificate), out)
    except (ValueError, OSError) as error:
        _fail(str(error))
    written = None if out is None or not certificate.passed else str(out)
    marked = kind is not None and kind.startswith(RMS_MARK)
    if json:
        document = {"plan": found.to_json(), "certificate": certificate.to_json(), "written": written}
        sys.stdout.write(dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        note = ", with RMSNorms in place of LayerNorms: lngeom alone loads it" if marked else ""
        sys.stdout.write(f"{certificate}\n" + ("" if written is None else f"Written: {written}{note}\n"))
        source = found.draft.source
        left = checkpoints.left_out(source) if written and isinstance(source, checkpoints.Checkpoint) else ()
        if left:
            sys.stdout.write(f"Not copied: {', '.join(left)}\n")
    if not certificate.passed:
        _tell("; ".join(["the certificate failed", *certificate.faults[:1], "nothing was written"]))
        raise typer.Exit(1)


@app.command()
def where(
    name: Annotated[
        str,
        typer.Argument(
            help="Id of a claim, method or lint rule, the word of a rewriting step, or a public name.", metavar="ID"
        ),
    ],
) -> None:
    """Print the file and line at which a claim, its proof, a method, a step, a rule or a public name is written."""
    from lngeom.cli.where import find

    try:
        found = find(name)
    except ValueError as error:
        _fail(str(error))
    for place in found:
        Console().print(f"{place.file}:{place.line}  {place.what}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def version() -> None:
    """Print the version."""
    import lngeom

    Console().print(lngeom.__version__, highlight=False)


def main() -> None:
    """Runs the command, within `lngeom.__main__`."""
    try:
        app()
    except OSError as error:
        _tell(str(error))
        sys.exit(2)
