"""The daemon's fault points. Each stands between two calls of the core, never in it."""

from mooncake_client import wire

POINTS = {
    "NodeBeforePutStart": "a put asked for room, nothing is decided yet",
    "NodeAfterPutStart": "room is reserved, the writer does not know yet",
    "NodeBeforePutEnd": "a writer has finished, its object is not visible yet",
    "NodeAfterPutEnd": "the object is visible, its writer does not know yet",
    "NodeAfterAcquire": "a handle is taken, the reader does not know yet",
    "NodeBeforeAnswerWaiter": "what a waiting request waited for has happened, it does not know yet",
    "NodeBeforeFree": "a remove, revoke, release or death was heard of, nothing is freed yet",
}

_FREEING = (wire.Released, wire.Goodbye, wire.PutRevoke, wire.Remove, wire.RemovePrefix, wire.RemoveAll)

# By type of request: the point before the core sees it, and the point before its reply is sent.
BEFORE: dict[type[wire.Request], str] = {
    wire.PutStart: "NodeBeforePutStart",
    wire.PutEnd: "NodeBeforePutEnd",
    **dict.fromkeys(_FREEING, "NodeBeforeFree"),
}
AFTER: dict[type[wire.Request], str] = {
    wire.PutStart: "NodeAfterPutStart",
    wire.PutEnd: "NodeAfterPutEnd",
    wire.Acquire: "NodeAfterAcquire",
}
