"""What goes into messages: bounded, on one line, and with what was probably meant."""

import pickle

import pytest

from mt3.cli.main import main
from mt3.support.errors import InputError, check_number, one_of, shown, suggest


def test_long_text_is_shown_by_its_ends():
    assert shown("short") == "short"
    assert shown("a" * 60) == "a" * 60
    long = shown("begin" + "x" * 10_000 + "end")
    assert (len(long), long[:6], long[-4:]) == (60, "beginx", "xend")
    assert "..." in long
    assert shown(["y" * 500], 20) == "['yyyyyyyyy...yyyy']"


def test_what_a_terminal_would_obey_is_escaped():
    assert shown("a\x1b[31m\nb\t\u202ec\udcff\x9bé") == "a\\x1b[31m\\nb\\t\\u202ec\\udcff\\x9bé"
    assert len(shown("\x00" * 10_000)) == 60
    error = InputError("Cannot read a\nb\x1b]0;title\x07: no.")
    assert str(error) == "Cannot read a\\nb\\x1b]0;title\\x07: no."


@pytest.mark.parametrize("text", ["x" * 100_000, "x " * 50_000, "\n" * 100_000])
def test_a_message_is_bounded_whatever_goes_into_it(text):
    message = str(InputError(f"Expected less, got '{text}'; give less."))
    assert len(message) <= 2000
    assert message.startswith("Expected less, got '")
    assert message.endswith("'; give less.")
    assert str(pickle.loads(pickle.dumps(InputError(message)))) == message  # as it comes from another process


def test_a_path_is_left_whole():
    path = "/" + "folder/" * 25 + "file.json"
    assert str(InputError(f"Cannot read {path}: it is not there.")) == f"Cannot read {path}: it is not there."


def test_a_misspelt_name_gets_the_nearest_one():
    assert (
        one_of("method", "mt33", ("jt", "mt3"))
        == "Unknown method 'mt33' (did you mean 'mt3'?): expected one of jt, mt3."
    )
    assert one_of("method", "abc", ("jt", "mt3")) == "Unknown method 'abc': expected one of jt, mt3."
    assert suggest("Held_Out", ["all", "held-out"]) == " (did you mean 'held-out'?)"
    assert suggest("--", ["--lr", "--out"]) == ""
    assert suggest("severity", ["--seed", "--severity"]) == suggest("-severty", ["--severity"])
    assert suggest("", ["all"]) == suggest("x" * 10_000, ["all"]) == ""
    assert len(one_of("name", "x" * 10_000, ("a", "b"))) < 110


@pytest.mark.parametrize(
    "words",
    [
        ["{}"],
        ["train", "--method", "{}", "--out", "o"],
        ["train", "--method", "mt3", "--out", "o", "--data", "{}"],
        ["train", "--method", "mt3", "--out", "o", "--preset", "{}"],
        ["train", "--method", "mt3", "--out", "o", "--seed", "{}"],
        ["train", "--method", "mt3", "--out", "o", "--width", "{}"],
        ["train", "--method", "mt3", "--out", "o", "--order", "{}"],
        ["train", "--method", "mt3", "--out", "o", "--start", "{}"],
        ["train", "--method", "mt3", "--out", "o", "--device", "{}"],
        ["train", "--method", "mt3", "--out", "o", "--{}", "1"],
        ["train", "--method", "mt3", "--out", "o", "{}"],
        ["evaluate", "cifar10-mt3", "--lr", "{}"],
        ["evaluate", "cifar10-mt3", "--{}"],
        ["corrupt", "--out", "o", "--corruptions", "{}"],
        ["corrupt", "--out", "o", "--severity", "{}"],
        ["reproduce", "--ablations", "{}"],
    ],
)
@pytest.mark.parametrize("text", ["x" * 10_000, "x y " * 2_500, "\x1b[2J\n" * 2_000])
def test_long_arguments_are_not_repeated_whole(capsys, tmp_path, monkeypatch, words, text):
    monkeypatch.chdir(tmp_path)
    assert main([word.format(text) for word in words]) == 2
    err = capsys.readouterr().err
    assert len(err) < 1200  # the names of all fields are below 1000
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert max(len(part) for part in err.split(", ")) < 350  # 60 of an argument, 200 of what torch says of a device


@pytest.mark.parametrize(
    ("value", "low", "high", "words"),
    [
        (-1, 0, None, "a whole number from 0 on, got -1"),
        (True, 0, None, "a whole number from 0 on, got True"),
        (6, 1, 5, "a whole number from 1 to 5, got 6"),
        (2.0, 1, 5, "a whole number from 1 to 5, got 2.0"),
        (float("nan"), 0.0, None, "a number from 0.0 on, got nan"),
        (float("nan"), 0.0, 1.0, "a number from 0.0 to 1.0, got nan"),
    ],
)
def test_numbers_are_checked(value, low, high, words):
    check_number("n", low, low, high)
    with pytest.raises(InputError) as refused:
        check_number("n", value, low, high)
    assert str(refused.value) == f"Expected n to be {words}."
