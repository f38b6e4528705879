"""Where pools are made and what they are called, for the moment that they have a name."""

from pathlib import Path

SHM_DIRECTORY = Path("/dev/shm")  # noqa: S108 - where shm_open puts names; libc gives no choice
NAME_PREFIX = "mooncake-node."
