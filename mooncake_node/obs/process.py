"""What the kernel knows of this process."""

import os
from pathlib import Path

_FIELDS = {"VmRSS": "rss_bytes", "RssShmem": "rss_shmem_bytes", "VmPTE": "page_tables_bytes", "Threads": "threads"}


def process_facts(status: Path = Path("/proc/self/status")) -> dict[str, int]:
    """Pid and memory, in bytes. `rss_bytes` counts the pool as far as it is mapped; without it: minus shmem."""
    facts = {"pid": os.getpid()}
    for line in status.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in _FIELDS:
            number, *unit = rest.split()
            facts[_FIELDS[name]] = int(number) * (1024 if unit == ["kB"] else 1)
    return facts
