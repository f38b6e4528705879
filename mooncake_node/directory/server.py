"""One directory server as this process talks to it: round trips with a time limit, and the breaker before them."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from mooncake_node.directory.breaker import Breaker
from mooncake_node.directory.naming import BATCH_MAX
from mooncake_node.directory.port import DirectoryAwayError, DirectoryError
from mooncake_node.directory.scripts import Script
from mooncake_node.directory.url import ServerAddress

Argument = str | int
Command = tuple[Script | Argument, ...]  # a script with its key and arguments, or a plain command

_ROUND_TRIPS_MAX = 16  # at once, each with a connection of its own
# The server answered, but cannot serve now: it loads its data, follows another, has no room or runs something long.
_FOR_NOW = ("LOADING", "READONLY", "OOM", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MISCONF", "NOREPLICAS")
_REFUSED = (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError)
_TRANSIENT = (
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.MasterDownError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
)


class Server:
    """Implements the time limit and the errors of `Directory` for whoever sends commands through it.

    The library's own retries are off: with them a paused server takes ten times the time limit to be noticed.
    """

    def __init__(self, address: ServerAddress, *, timeout_s: float, pause_s: float) -> None:
        if address.ca_file is not None and not Path(address.ca_file).is_file():
            raise DirectoryError(f"there is no file of certificates at {address.ca_file}")
        self._address = address
        self._timeout_s = timeout_s
        self._breaker = Breaker(pause_s=pause_s, clock=time.monotonic)
        self._room = asyncio.Semaphore(_ROUND_TRIPS_MAX)
        self._redis = Redis(
            host=address.host,
            port=address.port,
            db=address.db,
            username=address.username,
            password=address.password,
            ssl=address.is_tls,
            ssl_ca_certs=address.ca_file,
            ssl_check_hostname=True,  # not the default of every version
            protocol=2,  # one form of answers, whatever the server's version
            # The limit around each round trip covers it; one for each of 256 answers would cost more than they do.
            socket_timeout=None,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )

    @property
    def is_up(self) -> bool:
        """The last call was answered."""
        return self._breaker.is_closed

    async def run(self, commands: Sequence[Command]) -> list[object]:
        """The answers, in order; a round trip, and a time limit, for each 256 of them.

        DirectoryAwayError: some may have been carried out. Any other DirectoryError: the server refuses them.
        """
        answers: list[object] = []
        for start in range(0, len(commands), BATCH_MAX):
            answers += await self._round_trip(commands[start : start + BATCH_MAX])
        return answers

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _round_trip(self, commands: Sequence[Command]) -> list[object]:
        if not self._breaker.lets_through:
            raise self._paused()
        try:
            async with asyncio.timeout(self._timeout_s) as limit, self._room:
                # Asked again: what this call waited behind may have found the server away.
                if not self._breaker.begin():
                    raise self._paused()
                answered: bool | None = False
                try:
                    answers = await self._send(commands)
                    answered = True
                except asyncio.CancelledError:
                    answered = False if limit.expired() else None
                    raise
                except DirectoryError as error:
                    answered = not isinstance(error, DirectoryAwayError)
                    raise
                finally:
                    self._breaker.end(answered=answered)
        except TimeoutError:
            raise DirectoryAwayError(f"{self._where} did not answer within {self._timeout_s:g} s") from None
        return answers

    async def _send(self, commands: Sequence[Command]) -> list[object]:
        """As the server answers; what it has as scripts is sent by name, and in full if it says it has not."""
        try:
            answers = await self._pipelined(commands)
            unknown = [at for at, answer in enumerate(answers) if isinstance(answer, exceptions.NoScriptError)]
            if unknown:
                scripts = {commands[at][0] for at in unknown}
                loads: list[Command] = [
                    ("SCRIPT LOAD", script.text) for script in scripts if isinstance(script, Script)
                ]
                again = await self._pipelined([*loads, *(commands[at] for at in unknown)])
                for at, answer in zip(unknown, again[len(loads) :], strict=True):
                    answers[at] = answer
        except (exceptions.RedisError, OSError) as error:
            raise self._error(error) from None
        for answer in answers:
            if isinstance(answer, exceptions.RedisError):
                raise self._error(answer) from None
        return answers

    async def _pipelined(self, commands: Sequence[Command]) -> list[object]:
        pipeline = self._redis.pipeline(transaction=False)
        for command, *arguments in commands:
            if isinstance(command, Script):
                pipeline.execute_command("EVALSHA", command.sha, 1, *arguments)
            else:
                pipeline.execute_command(str(command), *arguments)
        answers: list[object] = await pipeline.execute(raise_on_error=False)
        return answers

    @property
    def _where(self) -> str:
        return f"the directory at {self._address.place}"

    def _paused(self) -> DirectoryAwayError:
        return DirectoryAwayError(f"{self._where} did not answer a moment ago")

    def _error(self, error: Exception) -> DirectoryError:
        """What the library or the server said, as an error of the port, without the password."""
        text = str(error) or type(error).__name__
        if self._address.password:
            text = text.replace(self._address.password, "***")
        if isinstance(error, _REFUSED) or text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
            return DirectoryError(f"{self._where} refuses this user or password: {text}")
        if isinstance(error, _TRANSIENT) or text.startswith(_FOR_NOW):
            return DirectoryAwayError(f"{self._where} cannot serve now: {text}")
        if isinstance(error, exceptions.TimeoutError):
            return DirectoryAwayError(f"{self._where} did not answer within {self._timeout_s:g} s")
        if isinstance(error, exceptions.ConnectionError | OSError):
            return DirectoryAwayError(f"{self._where} cannot be reached: {text}")
        return DirectoryError(f"{self._where} does not understand: {text}")
