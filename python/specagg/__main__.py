# SPDX-License-Identifier: Apache-2.0
"""python -m specagg ...: the command line, where it is installed (SPECAGG_CLI names it elsewhere)."""

import os
import shutil
import sys


def main() -> int:
    """Becomes the command; 2 if it is not there."""
    program = os.environ.get("SPECAGG_CLI") or shutil.which("specagg")
    if program is None:
        print("specagg: the command line is not installed: build the target specagg_cli, or set SPECAGG_CLI",
              file=sys.stderr)
        return 2
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
