"""Where a directory's server is, as its URL says."""

from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from mooncake_node.directory.port import DirectoryError

_IS_TLS = {"valkey": False, "valkeys": True, "redis": False, "rediss": True}
_PORT = 6379
_FORM = "the directory's URL is valkey://[user:password@]host[:port][/db], or valkeys:// for TLS"


class ServerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to connect. To print it does not show the password."""

    host: str
    port: int = _PORT
    db: int = 0
    username: str | None = None
    password: str | None = None
    is_tls: bool = False
    ca_file: str | None = None  # certificates to trust in place of the system's

    @property
    def place(self) -> str:
        """ "host:port", for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"ServerAddress({self.place}, db {self.db}{', TLS' * self.is_tls})"


def parse_url(url: str) -> ServerAddress:
    """The address in *url*; DirectoryError in words that never have a part of the URL that may be a secret.

    User and password are percent-encoded. With TLS, ``?ca=/path/to/file.pem`` names the certificates to trust.
    """
    scheme = url.partition("://")[0]
    if scheme not in _IS_TLS or "://" not in url:
        raise DirectoryError(f"{_FORM}; it begins with one of {', '.join(f'{name}://' for name in _IS_TLS)}")
    parts, port = _split(url)
    if not parts.hostname:
        raise DirectoryError(f"{_FORM}; there is no host in it (are '/', '#', '?' in the password percent-encoded?)")
    is_tls = _IS_TLS[scheme]
    return ServerAddress(
        host=parts.hostname,
        port=port,
        db=_db(parts.path),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        is_tls=is_tls,
        ca_file=_ca_file(parts, is_tls=is_tls),
    )


def _split(url: str) -> tuple[SplitResult, int]:
    # What urllib says of a bad port or host repeats it, and it may be a piece of the password.
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise DirectoryError(f"{_FORM}; its host or port is not understood") from None
    if port == 0:
        raise DirectoryError(f"{_FORM}; a port is 1 to 65535")
    return parts, _PORT if port is None else port


def _db(path: str) -> int:
    text = path.strip("/")
    if text and not (text.isascii() and text.isdigit()):
        raise DirectoryError(f"{_FORM}; the db is a number")
    return int(text or "0")


def _ca_file(parts: SplitResult, *, is_tls: bool) -> str | None:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    ca_file = options.pop("ca", None)
    if options or parts.fragment:
        raise DirectoryError(f"{_FORM}; the only option is ?ca=/path/to/certificates.pem")
    if ca_file is not None and not is_tls:
        raise DirectoryError("the option ca of the directory's URL is for TLS: valkeys:// or rediss://")
    return ca_file
