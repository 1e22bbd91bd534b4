"""The script `distlog`: Ctrl-C ends it without a word from its first moment on, while Python still imports.

It is outside of the package, so that no import of that comes first. Those of a command take about a second.
"""

import os
import signal


def main() -> None:
    """Run the `distlog` command."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        # an exception would be raised within an import, which may hide it or report it in its own words
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    from distlog.cli import load_to_stay

    command = load_to_stay()
    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    main()
