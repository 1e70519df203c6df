"""What a definition's own file does: `python experiments/tinystories/NAME.py` trains the original.

It is `python experiments/run_all.py NAME --full`, and takes the same options; --twins trains the
laptop twin instead.
"""

import sys
from pathlib import Path


def run_this(file: str) -> None:
    """Train the experiment that a file defines, and end the program."""
    # run as a script, a file of this folder sees no other folder
    sys.path.insert(0, str(Path(file).resolve().parent.parent))
    from run_all import main

    kind = [] if "--twins" in sys.argv[1:] else ["--full"]
    sys.exit(main([Path(file).stem, *kind, *sys.argv[1:]]))
