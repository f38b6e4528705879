"""``python -m mooncake_node``, the same as ``mooncake-node``."""

import sys

from mooncake_node.cli import main

if __name__ == "__main__":
    sys.exit(main())
