"""Records of the tracker where people look at them: TensorBoard, Weights & Biases, CSV and Parquet."""

import csv
import importlib
import io
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from lngeom._core.files import check_writable, replacing
from lngeom.training._record import Geometry

CLIENTS = ("tensorboardX", "torch.utils.tensorboard")
"""Modules with a `SummaryWriter`, the first of which that is installed writes TensorBoard's files."""


def write_record(
    record: Geometry, to: str | PathLike | Any, *, since: int = -1, prefix: str = "geometry", extra: Any = None
) -> int:
    """Writes the steps of a record, one value for each group and quantity.

    Args:
        record: result of `read_geometry`; all steps of its history, or the last one without a history.
        to: one of

            - a path that ends in .csv or .parquet: the file is replaced, with a row for each step and group. Parquet
              needs pandas with pyarrow;
            - a path without a suffix: a folder, to which TensorBoard's event files are added by tensorboardX or torch;
            - "wandb": the run that `wandb.init` has started;
            - an object with `add_scalar(tag, value, step)`, such as a `SummaryWriter` of yours, or with
              `log(values, step=step)`, such as a run of Weights & Biases.
        since: only later steps are added to event files or a run. Pass the last result while training. A file of rows
            always has all steps of the record.
        prefix: first part of the tags, "prefix/group/quantity". Values that are not finite are left out of them.
        extra: further quantities of the last step, a mapping from names to numbers, such as shares of ε.

    Returns:
        The last step that the record has, or `since` where it has none that is later.

    Raises:
        ValueError: if `to` is none of these, or no step is recorded.
        ImportError: if a package that is needed is not installed. The message names it.
        OSError: if a file cannot be written.

    Example:
        >>> import tempfile
        >>> from lngeom.training import read_geometry, track_geometry
        >>> import jax.numpy as jnp, optax
        >>> optimizer, w = track_geometry(optax.sgd(0.1), learning_rate=0.1), {"w": jnp.ones((2, 2))}
        >>> _, state = optimizer.update({"w": jnp.array([[1.0, -1.0], [1.0, -1.0]])}, optimizer.init(w), w)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     last = write_record(read_geometry(state), Path(folder) / "run.csv")
        ...     print(last, (Path(folder) / "run.csv").read_text().splitlines()[1][:10])
        0 0,w,2.0,0.
    """
    if not isinstance(record, Geometry):
        raise ValueError(f"record must be what read_geometry(state) gives; got a {type(record).__name__}")
    path = Path(to) if isinstance(to, str | PathLike) and to != "wandb" else None
    whole = path is not None and bool(path.suffix)
    rows = [row for row in record.rows() if whole or row["step"] > since]
    if not rows and since < 0:
        raise ValueError("no step is recorded yet: write after the first update")
    if not rows:
        return since
    if extra:
        last = rows[-1]["step"]
        rows = [row | dict(extra) if row["step"] == last else row for row in rows]
    if path is not None:
        _write_path(rows, path, prefix)
    else:
        _send(rows, _wandb_run() if isinstance(to, str) else to, prefix)
    return rows[-1]["step"]


def _write_path(rows: list[dict], path: Path, prefix: str) -> None:
    if path.suffix not in {".csv", ".parquet", ""}:
        raise ValueError(
            f"a path must end in .csv or .parquet, or have no suffix (a folder of TensorBoard's files); got {path}"
        )
    check_writable(path.parent)
    if not path.suffix:
        client = _tensorboard_client()
        with client.SummaryWriter(str(path)) as writer:
            _send(rows, writer, prefix)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = _csv(rows) if path.suffix == ".csv" else _parquet(rows)
    with replacing(path) as file:
        file.write(content)


def _csv(rows: list[dict]) -> bytes:
    text = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, list(names), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(
        {name: "" if isinstance(v, float) and math.isnan(v) else v for name, v in row.items()} for row in rows
    )
    return text.getvalue().encode()


def _parquet(rows: list[dict]) -> bytes:
    try:
        pandas = importlib.import_module("pandas")
        importlib.import_module("pyarrow")
    except ImportError as error:
        raise ImportError(
            f"Parquet needs pandas and pyarrow, and {error.name} is not installed: pip install 'lngeom[logging]', or "
            "write to a .csv"
        ) from error
    buffer = io.BytesIO()
    pandas.DataFrame(rows).to_parquet(buffer, engine="pyarrow", index=False)
    return buffer.getvalue()


def _tensorboard_client() -> Any:
    for name in CLIENTS:
        with suppress(ImportError):
            return importlib.import_module(name)
    raise ImportError(
        f"TensorBoard's event files need one of {', '.join(CLIENTS)}, and none is installed: pip install "
        "'lngeom[logging]', or write to a .csv"
    )


def _wandb_run() -> Any:
    try:
        wandb = importlib.import_module("wandb")
    except ImportError as error:
        raise ImportError("Weights & Biases' client is not installed: pip install wandb, or write to a .csv") from error
    if wandb.run is None:
        raise ValueError("no run of Weights & Biases is active: call wandb.init(...) before")
    return wandb.run


def _scalars(rows: Iterable[dict], prefix: str) -> Iterator[tuple[int, str, float]]:
    for row in rows:
        for name, value in row.items():
            if name not in {"step", "group"} and math.isfinite(value):
                yield row["step"], f"{prefix}/{row['group']}/{name}", value


def _send(rows: list[dict], client: Any, prefix: str) -> None:
    if hasattr(client, "add_scalar"):
        for step, tag, value in _scalars(rows, prefix):
            client.add_scalar(tag, value, step)
        return
    if not hasattr(client, "log"):
        raise ValueError(
            "to must be a path, 'wandb', or an object with add_scalar(tag, value, step) or log(values, step=step); got "
            f"a {type(client).__name__}"
        )
    for step in dict.fromkeys(row["step"] for row in rows):
        client.log({tag: value for at, tag, value in _scalars(rows, prefix) if at == step}, step=step)
