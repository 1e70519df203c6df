"""How runs went, drawn: `python experiments/plot.py [RUN_DIR...]` is `pvml plot [RUN_DIR...]`."""

import sys

from pvml.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["plot", *sys.argv[1:]]))
