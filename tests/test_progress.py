"""Stages of long work on standard error: after two seconds, on a terminal, once."""

import contextlib
import io
import time

import pytest
from lngeom._core import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    found = Terminal()
    monkeypatch.setattr(progress, "QUIET", 0.02)
    monkeypatch.setattr(progress, "EVERY", 0.01)
    return found


@contextlib.contextmanager
def watched(terminal):
    with contextlib.redirect_stderr(terminal), progress.watched() as watch:
        yield watch


def wait_for(terminal, text):
    end = time.monotonic() + 10
    while text not in terminal.getvalue() and time.monotonic() < end:
        time.sleep(0.005)
    return text in terminal.getvalue()


def test_a_long_stage_is_shown_and_wiped(terminal):
    with watched(terminal) as watch:
        watch("a decomposition")
        assert wait_for(terminal, "s  a decomposition")
    assert terminal.getvalue().endswith("\r\033[K")


def test_an_inner_block_and_what_is_shown_elsewhere_write_nothing(terminal):
    with watched(terminal) as outer:
        outer("outer")
        with watched(terminal) as inner:
            inner("inner")
            assert wait_for(terminal, "outer")
    assert "inner" not in terminal.getvalue()
    written = terminal.getvalue()
    with progress.shown_elsewhere(), watched(terminal) as watch:
        watch("hidden")
        time.sleep(0.1)
    assert terminal.getvalue() == written


def test_short_work_and_a_pipe_stay_quiet(terminal, monkeypatch):
    monkeypatch.setattr(progress, "QUIET", 60)
    with watched(terminal) as watch:
        watch("short")
    assert terminal.getvalue() == ""
    monkeypatch.setattr(progress, "QUIET", 0.01)
    monkeypatch.setattr(terminal, "isatty", lambda: False, raising=False)
    with watched(terminal) as watch:
        watch("piped")
        time.sleep(0.1)
    assert terminal.getvalue() == ""
