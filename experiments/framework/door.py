"""What a model's own file does: `python experiments/framework/NAME.py` trains and measures it.

It is `python experiments/reproduce.py --only NAME`, and takes the same options.
"""

import sys
from pathlib import Path


def run_this(file: str) -> None:
    """Train and measure the model that a file defines, and end the program."""
    # run as a script, a file of this folder sees no other folder
    sys.path.insert(0, str(Path(file).resolve().parent.parent))
    from reproduce import run

    sys.exit(run(["--only", Path(file).stem.replace("_", "-"), *sys.argv[1:]]))
