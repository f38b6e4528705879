"""What several suites use: daemons and clients as real processes, and waiting without sleeping for luck."""

from tests.support.ledger import ledger_check
from tests.support.node import NodeProcess
from tests.support.patterns import digest, pattern
from tests.support.waiting import eventually
from tests.support.worker import Worker, WorkerDied

__all__ = ["NodeProcess", "Worker", "WorkerDied", "digest", "eventually", "ledger_check", "pattern"]
