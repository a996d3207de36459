"""`python -m monograph`, which is also what the command `monograph` runs."""

import sys

from monograph.at_start import ended_by_ctrl_c

with ended_by_ctrl_c():
    from monograph.cli import main

if __name__ == "__main__":
    sys.exit(main())
