"""``python -m dpinfer``: the command line."""

import sys

from dpinfer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
