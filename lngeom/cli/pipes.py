"""What a command does when nobody reads its output any longer, as in `lngeom audit | head -1`: it ends without a word.

The exit status is 141, which is 128 + the number of SIGPIPE, as of other programs that a closed pipe stops. The signal
itself stays ignored, as Python has it: it would end the process in the middle of a block, with half-written files.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STATUS = 141
"""Exit status of a command whose output was closed."""


class ClosedOutput(BaseException):
    """Nobody reads the output. Libraries handle `BrokenPipeError` and exit with 1, which has other meanings here."""


class _File(io.FileIO):
    def write(self, data) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        try:
            return super().write(data)
        except BrokenPipeError:
            raise ClosedOutput from None


@contextmanager
def closable() -> Iterator[None]:
    """Ends the process with `STATUS` when standard output or error is closed at the other end.

    Use it at the entry point of a command line. Streams that are no files, and terminals, stay as they are.

    Yields:
        Nothing.
    """
    sys.stdout, sys.stderr = _watched(sys.stdout), _watched(sys.stderr)
    try:
        try:
            yield
        finally:
            for stream in _streams():
                stream.flush()
    except ClosedOutput:
        _drop()
        sys.exit(STATUS)
    except OSError as error:  # of the last lines, such as a full disk
        _drop()
        if not isinstance(error.__context__, SystemExit):  # else it was told before
            sys.stderr.write(f"error: the output cannot be written: {error.strerror}\n")
        sys.exit(2)


def _streams() -> list[io.TextIOWrapper]:
    return [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]


def _drop() -> None:
    """Lets nothing that a stream still holds be written: Python would try it at the end, and say so."""
    with open(os.devnull, "w") as nothing:
        for stream in _streams():
            try:
                stream.flush()
            except (ClosedOutput, OSError):
                os.dup2(nothing.fileno(), stream.fileno())


def _watched(stream):
    """The same stream, with `ClosedOutput` for `BrokenPipeError`."""
    if not isinstance(stream, io.TextIOWrapper) or stream.isatty():
        return stream
    try:
        file = _File(stream.fileno(), "wb", closefd=False)
    except (OSError, ValueError):  # no file, or closed
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
