"""Spans of time in words."""

from mt3.support.progress import duration


def test_long_times_are_in_days():
    spans = [round(h * 3600) for h in (0.5, 2.25, 47.99, 48, 3549)]
    assert [duration(s) for s in spans] == ["30 min 00 s", "2 h 15 min", "47 h 59 min", "2 days 0 h", "147 days 21 h"]
