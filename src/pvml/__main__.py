"""`python -m pvml` is `pvml`."""

import sys

from pvml.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
