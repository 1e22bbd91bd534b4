"""Numbers, sizes and durations as text for people."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size_text(size: float) -> str:
    """A number of bytes, in powers of 1000: `12.3 MB`."""
    power = 0
    while size >= 999.95 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}" if power else f"{size:.0f} B"


def duration_text(seconds: float) -> str:
    """A duration: `42 s`, `3 min 05 s`, `2 h 10 min`, `7 d`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    hours = whole % 86_400 // 3600
    return f"{whole // 86_400} d {hours:02} h" if hours else f"{whole // 86_400} d"


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """A number with its noun: `1 byte`, `2,000 bytes`; `nouns` is an irregular plural."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"
