"""What the kernel says about huge pages: of a mount, and of a mapping."""

from pathlib import Path

from mooncake_client.mapping import Mapping


def mount_policy(directory: Path, root: Path = Path("/")) -> str:
    """The ``huge=`` option of the tmpfs at *directory*; "never" where there is none.

    This option alone governs files in /dev/shm, not the system-wide shmem_enabled.
    """
    policy = "never"
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[4] != str(directory):
            continue
        # The last line is the mount on top.
        options = fields[-1].split(",")
        policy = next((o.removeprefix("huge=") for o in options if o.startswith("huge=")), "never")
    return policy


def huge_bytes(mapping: Mapping, root: Path = Path("/")) -> int:
    """How much of *mapping* this process has mapped by huge pages, as the kernel counts it."""
    start = f"{mapping.address:x}-"
    here = False
    total = 0
    with (root / "proc/self/smaps").open() as smaps:
        for line in smaps:
            # Addresses are lower-case hex, names of counters start with a capital.
            if not line[0].isupper():
                if here:
                    break
                here = line.startswith(start)
            elif here and line.startswith(("ShmemPmdMapped:", "FilePmdMapped:")):
                total += int(line.split()[1]) * 1024
    return total
