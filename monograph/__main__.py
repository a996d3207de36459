"""`python -m monograph` is the same as `monograph`."""

import sys

from monograph.cli import main

if __name__ == "__main__":
    sys.exit(main())
