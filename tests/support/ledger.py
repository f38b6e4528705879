"""What must be true of a daemon when all its clients are gone."""

from mooncake_client import Client
from tests.support.waiting import eventually


def ledger_check(socket: str) -> None:
    """After remove_all: no room taken, nothing referenced, nothing unpublished, and nearly all of it can be put."""
    with Client(socket, name="ledger") as client:
        client.remove_all()

        def clean() -> bool:
            stats = client.stats()
            return (
                stats["pool"]["bytes_used"] == 0
                and stats["unpublished"] == 0
                and stats["handles"] == 0
                and stats["leases"] == 0
                and stats["stash"]["objects"] == 0
                and stats["waiting_puts"] == 0
            )

        eventually(clean, f"a clean ledger; stats: {client.stats()}")
        nbytes = client.stats()["pool"]["bytes_total"] * 9 // 10
        client.create("ledger", nbytes).abort()
