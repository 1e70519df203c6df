"""`python -m pvml` is `pvml`."""

import sys

if __name__ == "__main__":
    try:
        from pvml.cli.main import main
    except KeyboardInterrupt:  # as main itself would end; it is not there yet
        sys.exit(130)
    sys.exit(main())
