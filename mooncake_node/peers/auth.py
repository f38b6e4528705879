"""How two nodes prove to each other that they know the cluster secret. No IO.

    dialer → Hello      who it is, what the connection is for, its nonce
           ← Challenge  who answers, its nonce
           → Proof      over both of these, as dialer
           ← Proof      the same as listener; only to who has proved, so that nobody can collect proofs by asking

Each proof covers both nonces, so one of another connection is worth nothing; and the role, so that one's own proof,
sent back, is worth nothing either. What travels afterwards is neither encrypted nor signed.
"""

import hmac
import secrets
from typing import Annotated, Literal

import msgspec

from mooncake_client.wire import NAME_CHARS_MAX
from mooncake_node.peers.identity import Identity
from mooncake_node.peers.messages import PEER_VERSION

NONCE_NBYTES = 32
REASON_CHARS_MAX = 200

Kind = Literal["control", "data"]

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
_Bytes32 = Annotated[bytes, msgspec.Meta(min_length=NONCE_NBYTES, max_length=NONCE_NBYTES)]


class AuthError(Exception):
    """The other side is not accepted. The message may be told to it: it gives nothing away."""


class Hello(msgspec.Struct, array_like=True, tag=1):
    """The dialer's first message."""

    version: int
    name: _Name
    incarnation: int
    kind: str
    nonce: _Bytes32


class Challenge(msgspec.Struct, array_like=True, tag=2):
    """The listener's answer to it."""

    version: int
    name: _Name
    incarnation: int
    nonce: _Bytes32


class Proof(msgspec.Struct, array_like=True, tag=3):
    """HMAC-SHA256 with the secret."""

    digest: _Bytes32


class Refusal(msgspec.Struct, array_like=True, tag=4):
    """Instead of any of the listener's messages: why not."""

    reason: str


HandshakeMessage = Hello | Challenge | Proof | Refusal


class Dialing:
    """The dialer's side, once: `hello`, `prove`, `finish`."""

    def __init__(self, me: Identity, peer: Identity, kind: Kind, secret: bytes) -> None:
        self._peer = peer
        self._secret = secret
        self.hello = Hello(PEER_VERSION, me.name, me.incarnation, kind, secrets.token_bytes(NONCE_NBYTES))
        self._challenge: Challenge | None = None

    def prove(self, message: HandshakeMessage) -> Proof:
        """The proof for the listener's challenge, if it claims to be who is expected."""
        if not isinstance(message, Challenge):
            raise _unexpected(message)
        if message.version != PEER_VERSION:
            raise AuthError(f"it speaks peer protocol version {message.version}, this node {PEER_VERSION}")
        found = Identity(message.name, message.incarnation)
        if found != self._peer:
            raise AuthError(f"{found} answers there, not {self._peer}")
        self._challenge = message
        return Proof(_digest(self._secret, "dialer", self.hello, message))

    def finish(self, message: HandshakeMessage) -> None:
        """Check the listener's own proof; then the connection may be used."""
        assert self._challenge is not None
        if not isinstance(message, Proof):
            raise _unexpected(message)
        if not hmac.compare_digest(message.digest, _digest(self._secret, "listener", self.hello, self._challenge)):
            raise AuthError("it does not know the cluster secret")


class Answering:
    """The listener's side, once: `challenge`, `finish`; then *peer* and *kind* are true."""

    def __init__(self, me: Identity, secret: bytes) -> None:
        self.me = me
        self._secret = secret
        self._hello: Hello | None = None
        self._challenge = Challenge(PEER_VERSION, me.name, me.incarnation, secrets.token_bytes(NONCE_NBYTES))

    @property
    def peer(self) -> Identity:
        """Who dials, as it claims until `finish`."""
        assert self._hello is not None
        return Identity(self._hello.name, self._hello.incarnation)

    @property
    def kind(self) -> Kind:
        """What the connection is for."""
        assert self._hello is not None
        return "data" if self._hello.kind == "data" else "control"

    def challenge(self, message: HandshakeMessage) -> Challenge:
        """The answer to the dialer's hello."""
        if not isinstance(message, Hello):
            raise _unexpected(message)
        if message.version != PEER_VERSION:
            raise AuthError(f"this node speaks peer protocol version {PEER_VERSION}, not {message.version}")
        if message.kind not in ("control", "data"):
            raise AuthError("there is no connection of that kind")
        if message.name == self.me.name:
            raise AuthError("that is the name of the node that answers; each node of a cluster needs a name of its own")
        self._hello = message
        return self._challenge

    def finish(self, message: HandshakeMessage) -> Proof:
        """This side's proof, if the dialer's is good."""
        assert self._hello is not None
        if not isinstance(message, Proof):
            raise _unexpected(message)
        if not hmac.compare_digest(message.digest, _digest(self._secret, "dialer", self._hello, self._challenge)):
            raise AuthError("the cluster secret is another one")
        return Proof(_digest(self._secret, "listener", self._hello, self._challenge))


def _digest(secret: bytes, role: str, hello: Hello, challenge: Challenge) -> bytes:
    # Length-prefixed by msgpack: no two different handshakes have the same text.
    text = msgspec.msgpack.encode(("mooncake-node peer", role, hello, challenge))
    return hmac.digest(secret, text, "sha256")


def _unexpected(message: HandshakeMessage) -> AuthError:
    if isinstance(message, Refusal):
        # Of somebody who has proved nothing: it goes into logs and messages.
        shown = "".join(char if char.isprintable() else "?" for char in message.reason[:REASON_CHARS_MAX])
        return AuthError(f"it refused: {shown}")
    return AuthError(f"a {type(message).__name__.lower()} is out of place in a handshake")
