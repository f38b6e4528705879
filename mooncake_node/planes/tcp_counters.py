"""What the TCP plane counts."""

import msgspec


class TcpCounters(msgspec.Struct, kw_only=True):
    """What has happened since the plane was made."""

    # As receiver. Every transfer submitted is counted once in one of the first three.
    transfers_ok: int = 0
    transfers_failed: int = 0
    transfers_expired: int = 0
    received_nbytes: int = 0  # raw bytes, also those of transfers that failed
    connections_dialled: int = 0
    dials_failed: int = 0
    stalled: int = 0  # connections given up, of either side, since nothing moved
    # As sender.
    connections_served: int = 0
    loans_sent: int = 0
    loans_refused: int = 0
    loans_broken: int = 0  # ended before their last byte was sent
    sent_nbytes: int = 0
