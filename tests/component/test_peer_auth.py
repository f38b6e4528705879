"""The mutual proof, without a socket: who knows the secret gets in, and nothing that was overheard helps."""

import msgspec
import pytest

from mooncake_node.peers.auth import Answering, AuthError, Challenge, Dialing, Hello, Proof, Refusal
from mooncake_node.peers.identity import Identity
from mooncake_node.peers.messages import PEER_VERSION

A, B = Identity("a", 1), Identity("b", 7)
SECRET = b"between us"


def test_two_that_know_the_secret_accept_each_other_and_know_who_it_is():
    dialing, answering = Dialing(A, B, "data", SECRET), Answering(B, SECRET)
    dialing.finish(answering.finish(dialing.prove(answering.challenge(dialing.hello))))
    assert answering.peer == A
    assert answering.kind == "data"


def test_without_a_secret_the_proofs_still_bind_the_names():
    dialing, answering = Dialing(A, B, "control", b""), Answering(B, b"")
    dialing.finish(answering.finish(dialing.prove(answering.challenge(dialing.hello))))


@pytest.mark.parametrize(("dialers", "listeners"), [(b"x", b"y"), (b"x", b""), (b"", b"y")])
def test_listener_refuses_who_has_another_secret(dialers, listeners):
    dialing, answering = Dialing(A, B, "control", dialers), Answering(B, listeners)
    with pytest.raises(AuthError, match="secret is another one"):
        answering.finish(dialing.prove(answering.challenge(dialing.hello)))


def test_dialer_refuses_a_listener_that_lets_in_anybody():
    dialing, answering = Dialing(A, B, "control", SECRET), Answering(B, b"guess")
    dialing.prove(answering.challenge(dialing.hello))
    other = Dialing(A, B, "control", b"guess")
    other.hello = dialing.hello
    forged = answering.finish(other.prove(answering.challenge(dialing.hello)))
    with pytest.raises(AuthError, match="does not know the cluster secret"):
        dialing.finish(forged)


def test_dialers_own_proof_sent_back_is_no_proof_of_the_listener():
    dialing, answering = Dialing(A, B, "control", SECRET), Answering(B, SECRET)
    own = dialing.prove(answering.challenge(dialing.hello))
    with pytest.raises(AuthError, match="secret"):
        dialing.finish(own)


def test_listeners_own_proof_sent_back_is_no_proof_of_a_dialer():
    dialing, answering = Dialing(A, B, "control", SECRET), Answering(B, SECRET)
    own = answering.finish(dialing.prove(answering.challenge(dialing.hello)))
    with pytest.raises(AuthError, match="secret"):
        answering.finish(own)


def test_overheard_dialer_is_not_let_in_again():
    dialing, answering = Dialing(A, B, "control", SECRET), Answering(B, SECRET)
    proof = dialing.prove(answering.challenge(dialing.hello))
    answering.finish(proof)
    again = Answering(B, SECRET)
    again.challenge(dialing.hello)
    with pytest.raises(AuthError, match="secret"):
        again.finish(proof)


def test_overheard_listener_is_not_believed_again():
    dialing, answering = Dialing(A, B, "control", SECRET), Answering(B, SECRET)
    challenge = answering.challenge(dialing.hello)
    proof = answering.finish(dialing.prove(challenge))
    again = Dialing(A, B, "control", SECRET)
    again.prove(challenge)
    with pytest.raises(AuthError, match="secret"):
        again.finish(proof)


@pytest.mark.parametrize(
    "change",
    [{"name": "c"}, {"incarnation": 2}, {"kind": "data"}, {"nonce": bytes(32)}],
    ids=lambda change: str(change),
)
def test_proof_of_a_dialer_holds_for_what_it_has_said_only(change):
    """Somebody between the two changes the hello on its way."""
    dialing, answering = Dialing(A, B, "control", SECRET), Answering(B, SECRET)
    challenge = answering.challenge(msgspec.structs.replace(dialing.hello, **change))
    with pytest.raises(AuthError, match="secret"):
        answering.finish(dialing.prove(challenge))


def test_proof_holds_for_one_life_of_the_listener_only():
    """Somebody between the two has the challenge of a restarted node look like that of the life expected."""
    dialing, answering = Dialing(A, B, "control", SECRET), Answering(Identity("b", 8), SECRET)
    challenge = msgspec.structs.replace(answering.challenge(dialing.hello), incarnation=7)
    with pytest.raises(AuthError, match="secret"):
        answering.finish(dialing.prove(challenge))


@pytest.mark.parametrize("found", [Identity("c", 7), Identity("b", 8)])
def test_dialer_proves_nothing_to_a_node_it_did_not_mean(found):
    dialing, answering = Dialing(A, B, "control", SECRET), Answering(found, SECRET)
    with pytest.raises(AuthError, match=f"{found} answers there, not {B}"):
        dialing.prove(answering.challenge(dialing.hello))


def test_versions_must_be_the_same():
    hello = msgspec.structs.replace(Dialing(A, B, "control", SECRET).hello, version=PEER_VERSION + 1)
    with pytest.raises(AuthError, match="version"):
        Answering(B, SECRET).challenge(hello)
    with pytest.raises(AuthError, match="version"):
        Dialing(A, B, "control", SECRET).prove(Challenge(PEER_VERSION + 1, "b", 7, bytes(32)))


def test_a_node_of_our_own_name_is_another_node():
    with pytest.raises(AuthError, match="name of its own"):
        Answering(B, SECRET).challenge(Dialing(Identity("b", 9), B, "control", SECRET).hello)


def test_unknown_kind_is_refused():
    hello = Hello(PEER_VERSION, "a", 1, "gossip", bytes(32))
    with pytest.raises(AuthError, match="kind"):
        Answering(B, SECRET).challenge(hello)


def test_messages_out_of_turn_are_refused():
    proof = Proof(bytes(32))
    with pytest.raises(AuthError, match="out of place"):
        Answering(B, SECRET).challenge(proof)
    with pytest.raises(AuthError, match="out of place"):
        Dialing(A, B, "control", SECRET).prove(proof)
    answering = Answering(B, SECRET)
    hello = Dialing(A, B, "control", SECRET).hello
    answering.challenge(hello)
    with pytest.raises(AuthError, match="out of place"):
        answering.finish(hello)


def test_a_strangers_reason_cannot_write_lines_into_the_log():
    with pytest.raises(AuthError) as caught:
        Dialing(A, B, "control", SECRET).prove(Refusal("no\nERROR all is lost\x1b[31m" + "x" * 10_000))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
