"""Checks claims on data: numbers in this process, proofs in others, with a progress bar."""

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from lngeom.cli import programs, workers
from lngeom.cli.console import refusing, tell


class Schedule(NamedTuple):
    """Who makes proofs and numbers.

    Attributes:
        provers: number of processes that make proofs.
        numbers: whether, when the proofs are made, they take numbers from the end of the list; this process takes them
            from its beginning.
    """

    provers: int
    numbers: bool


FEW = Schedule(1, numbers=False)
"""The numbers take less time than a second process needs to compile."""
SEVERAL = Schedule(1, numbers=True)
"""The claims of a paper."""
MANY = Schedule(2, numbers=False)
"""The extended table, or all papers: proofs take longer than numbers."""


def schedule(claims: int) -> Schedule:
    """The schedule for a number of claims."""
    return FEW if claims <= 20 else SEVERAL if claims <= 150 else MANY


def run(
    claims,
    data: str,
    seed: int,
    results: Path | None = None,
    proofs: bool = True,
    steps: bool = True,
    each: Callable[[Any], None] | None = None,
    prover: workers.Workers | None = None,
    papers: Mapping[str, str] | None = None,
):
    """Checks claims on data with a progress bar.

    Args:
        claims: what to check.
        data: as for the option --data.
        seed: of everything random.
        results: folder of results, for the claims of experiments.
        proofs: whether to make the proofs.
        steps: whether a document is to show the steps of the proofs.
        each: is told each outcome as it comes. Where it prints to a terminal, there is no progress bar.
        prover: processes that make the proofs; new ones by default.
        papers: for the id of a paper, by what it is found, where that is not its id.

    Returns:
        The data set and the outcomes.
    """
    import jax
    import jax.numpy as jnp
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from threadpoolctl import threadpool_limits

    from lngeom.claims import Problem, registry
    from lngeom.claims.data import DataError, load
    from lngeom.claims.numeric import numeric_evidence
    from lngeom.claims.proofs import proof_evidence

    with refusing(DataError):
        dataset = load(data, seed)
    outcomes = []
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    plan = schedule(len(claims))
    # NumPy's matrices are small here; its own threads would only contend with JAX's.
    with (
        nullcontext(prover) if prover else workers.Workers(plan.provers) as prover,
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
        pending, ahead = {}, {}
        if proofs:
            for c in claims:
                pending[c.id] = prover.submit(proof_evidence, c.id, steps=steps, paper=found_by[c.paper])
        if proofs and plan.numbers:
            prover.submit(programs.compile_sparingly)
            for c in reversed(claims):
                ahead[c.id] = prover.submit(numeric_evidence, c.id, data, seed, results, paper=found_by[c.paper])

        def proof(id: str) -> list:
            return _result(pending[id])

        def numbers(claim: registry.Claim, problem: Problem) -> list:
            here = claim.id not in ahead or ahead[claim.id].cancel()
            return registry.numbers(claim, problem) if here else _result(ahead[claim.id])

        problem = Problem(jnp.asarray(dataset.inputs), seed, results=results)
        task = progress.add_task("", total=len(claims))
        for claim in claims:
            progress.update(task, description=claim.id)
            outcomes.append(registry.run(claim, problem, proof if proofs else None, numbers))
            if each:
                each(outcomes[-1])
            progress.advance(task)
    return dataset, outcomes


def _result(future: Future) -> list:
    try:
        return list(future.result())
    except BrokenProcessPool:
        tell("a worker process was killed, perhaps because memory ran out: free memory and start again")
        sys.exit(2)  # an exception would be recorded as evidence


def table1() -> list:
    """The claims that are cells of Table 1."""
    from lngeom.claims import registry

    return [c for c in registry.all_claims("invariance") if c.source == "Table 1"]
