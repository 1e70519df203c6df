"""A conversation with a model: `python experiments/sample.py RUN_DIR` is `pvml sample RUN_DIR`."""

import sys

from pvml.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["sample", *sys.argv[1:]]))
