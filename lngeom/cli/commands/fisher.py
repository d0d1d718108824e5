"""Print rank, null space and spectrum of a model's Fisher matrix; exit 1 if the nullity is not as predicted."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lngeom.cli import programs
from lngeom.cli.console import check_writable, fail, refusing, stages, width, written
from lngeom.cli.options import Seed


def run(
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
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the memory that computations will need, and compute nothing.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="Cast params and X to float64 or float32.")] = "float64",
    save: Annotated[Path | None, typer.Option(help="Write the matrix to this .npz.", metavar="FILE.npz")] = None,
    seed: Seed = 0,
) -> None:
    import jax

    from lngeom.cli import fisher_problem as problem
    from lngeom.information import ConvergenceError
    from lngeom.information.summary import summarize
    from lngeom.report.fisher import fisher as table_of
    from lngeom.report.terminal import data as data_of

    programs.compile_sparingly()
    try:
        with refusing(ValueError, OSError), jax.enable_x64(True):
            if save is not None:
                problem.check_save(save)
                check_writable(save.parent, "--save")
            if glm == (model is not None):
                raise ValueError("name a model as MODULE:NAME, or use --glm for a normalized GLM on --data")
            given = (
                problem.normalized_glm(normalizer, family, outputs, data, epsilon, dtype, seed)
                if model is None
                else problem.named(model, params, data, epsilon, dtype)
            )
            coupled = batch_coupled or None
            with stages() as watch:
                watch("derivatives")
                operator = problem.operator(given, family, method, wrt, responses, samples, coupled, memory, seed)
            if given.dataset is not None:
                Console(highlight=False).print(data_of(given.dataset))
            if plan:
                Console().print(operator.plan.describe(), highlight=False, markup=False)
                return
            matrix = operator.as_matrix(progress=True) if save is not None else None
            with stages() as watch:
                found = summarize(operator, top, products_only=products_only, watch=watch)
            if save is not None and matrix is not None:
                operator.save(save, ["matrix"], matrix=matrix)
    except ConvergenceError as error:
        fail(f"{error} (here: --top)")
    except MemoryError as error:
        fail(f"{error} (here: --products-only, --wrt, --memory)")
    Console().print(table_of(found, width()))
    if save is not None:
        written([save])
    if found.as_predicted is False:
        Console(stderr=True).print("the nullity is not the predicted one", style="red")
        raise typer.Exit(1)
