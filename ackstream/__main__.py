"""The ``ackstream`` command, also as ``python -m ackstream``."""

import sys

from ackstream.errors import MissingExtraError


def main() -> None:
    """Run the command line; without its extra, print the sentence that names it and exit 1."""
    try:
        from ackstream.cli.main import app  # noqa: PLC0415 - the command line is an extra
    except MissingExtraError as error:
        sys.exit(str(error))
    app()


if __name__ == "__main__":
    main()
