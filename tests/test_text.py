"""Counts, lines and tables for people."""

import pytest
from lngeom._core.text import counted, table, terminal_width, verb, wrapped


@pytest.mark.parametrize(("number", "said"), [(0, "0 claims"), (1, "1 claim"), (2, "2 claims"), (1797, "1,797 claims")])
def test_a_count_has_its_noun_in_the_singular_for_one_alone(number, said):
    assert counted(number, "claim") == said
    assert (verb(number) == "is") == (number == 1)


def test_an_irregular_plural_is_given():
    assert counted(1, "axis", "axes") == "1 axis"
    assert counted(3, "axis", "axes") == "3 axes"
    assert verb(2, "has", "have") == "have"


def test_the_width_is_that_of_the_terminal_and_no_less_than_40(monkeypatch):
    monkeypatch.setenv("COLUMNS", "132")
    assert terminal_width() == 132
    monkeypatch.setenv("COLUMNS", "20")
    assert terminal_width() == 40


def test_a_line_is_wrapped_between_words_with_its_indent():
    assert wrapped("  one two three", 10) == ["  one two", "    three"]
    assert wrapped("one two three", None) == ["one two three"]


ROWS = [("what it is called", "numbers here"), ("a long name of three words", "12"), ("b", "3.5")]


def test_a_table_fits_its_width_and_aligns_numbers_to_the_right():
    lines = table(ROWS, 24, [(0, 10)], right={1})
    assert max(map(len, lines)) <= 24
    assert lines[0] == "what it is       numbers"
    assert [line[-1] for line in lines if line.rstrip()[-1:].isdigit()] == ["2", "5"]
    assert all(len(line) == 24 for line in lines if line[-1:].isdigit())


def test_a_table_of_enough_room_has_a_line_a_row():
    lines = table(ROWS, 80, [(0, 10)])
    assert len(lines) == 4
    assert set(lines[1]) == {"─"}
