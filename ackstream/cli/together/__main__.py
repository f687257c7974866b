"""The program that ``ackstream run`` submits, in a directory of its own: Python looks for modules there first."""

import sys

from ackstream.cli.together import named
from ackstream.spark.job import main

if __name__ == "__main__":
    main(*named(sys.argv[1:]))
