"""Relations over drawn models, and generated models against a literal matrix: `python -m analysis fuzz [--times 1]`.

Runs `tests/relations` with hypothesis: each relation on its own number of draws, times `--times`. What fails is shrunk
by hypothesis and shown by pytest. At the end comes a table: relations, draws, failures. Relations that have not begun
after `--minutes` are left out and counted.

With `--faults` a fault of the library is planted by each test of a fault, and all relations of its file run under it.
The table then says which of them notice it.

Exit status 0: every relation held; 1: one failed; 2: the arguments do not fit.
"""

import argparse
import math
import os
import subprocess
import sys
import time
from pathlib import Path

from lngeom._core.files import check_writable

HERE = Path(__file__).parents[2]


def main() -> None:
    """Entry point of `python -m analysis fuzz`."""
    parser = argparse.ArgumentParser(prog="python -m analysis fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=float, default=1.0, help="factor of the number of draws of each relation")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="relations that have not begun by then are left out"
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="relations with this in their names")
    parser.add_argument("--seed", type=int, help="other draws; without it they are the same in each run")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="parallel processes")
    parser.add_argument("--out", type=Path, default=Path("figures/relations.json"), help="file of the results")
    parser.add_argument("--faults", action="store_true", help="plant each fault, and say which relations notice it")
    options = parser.parse_args()
    for name in ("times", "workers", "minutes"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name} must be more than 0; got {getattr(options, name)}")
    if not (HERE / "tests" / "relations").is_dir():
        parser.error("the relations are in tests/relations of a clone; run the command from a clone")
    try:
        check_writable(options.out.parent)
    except OSError as error:
        parser.error(str(error))
    environment = os.environ | {
        "RELATIONS_TIMES": str(options.times),
        "RELATIONS_UNTIL": str(time.time() + 60 * options.minutes),
        "RELATIONS_OUT": str(options.out.resolve()),
    }
    command = [sys.executable, "-m", "pytest", "tests/relations", "-m", "relation", "--hypothesis-profile=thorough"]
    command += ["-n", str(options.workers), *(["-k", options.only] if options.only else [])]
    command += [] if options.seed is None else [f"--hypothesis-seed={options.seed}"]
    if options.faults:
        environment["RELATIONS_FAULTS"] = "1"
        only = f"Fault and ({options.only})" if options.only else "Fault"
        command = [sys.executable, "-m", "pytest", "tests/relations", "-m", "thorough", "-k", only]
    sys.exit(min(1, subprocess.run(command, cwd=HERE, env=environment, check=False).returncode))


if __name__ == "__main__":
    main()
