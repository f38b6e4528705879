"""A client as a separate Python process that runs code sent to it, line by line, and can be killed or stopped.

The code runs in one namespace; the value of a final expression comes back pickled.
"""

import ast
import base64
import os
import pickle
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.support import patterns

_MAIN = r"""
import ast, base64, pickle, sys
space = {"__name__": "worker"}
out = sys.stdout
for line in sys.stdin:
    try:
        tree = ast.parse(base64.b64decode(line).decode())
        value = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, "<worker>", "exec"), space)
            value = eval(compile(last, "<worker>", "eval"), space)
        else:
            exec(compile(tree, "<worker>", "exec"), space)
        answer = (True, value)
        try:
            pickled = pickle.dumps(answer)
        except Exception:
            pickled = pickle.dumps((True, repr(value)))
        answer = value = tree = None
    except Exception as exc:
        import traceback
        try:
            pickled = pickle.dumps((False, exc))
        except Exception:
            pickled = pickle.dumps((False, RuntimeError(traceback.format_exc())))
        exc = None
    out.write(base64.b64encode(pickled).decode() + "\n")
    out.flush()
"""

HANG_LIMIT_S = 90.0
_PATTERNS = Path(patterns.__file__).read_text()


class WorkerDied(Exception):
    """The process ended instead of answering."""


class Worker:
    """One process with `c`, a Client of *socket*, and what is in `patterns`.

    `run` code in it, `start` code and take its `result` later, or leave it running with `run_in_background`.
    """

    def __init__(self, socket: str, *, client_args: str = "", env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        self.pid = self.process.pid
        self.run(_PATTERNS)
        self.run(f"from mooncake_client import *; c = Client({socket!r}, {client_args})")

    def start(self, code: str) -> None:
        """Send code to run."""
        code = textwrap.dedent(code)
        ast.parse(code)
        assert self.process.stdin is not None
        self.process.stdin.write(base64.b64encode(code.encode()) + b"\n")
        self.process.stdin.flush()

    def result(self, *, hang_limit_s: float = HANG_LIMIT_S) -> Any:
        """What the code sent last gave; raises what it raised."""
        assert self.process.stdout is not None
        ready = select.poll()  # not select(), which takes no descriptor above 1,023
        ready.register(self.process.stdout, select.POLLIN)
        assert ready.poll(hang_limit_s * 1000), f"worker {self.pid} has not answered in {hang_limit_s:g} s"
        line = self.process.stdout.readline()
        if not line:
            raise WorkerDied(f"worker {self.pid} ended with {self.process.wait()}")
        good, value = pickle.loads(base64.b64decode(line))
        if not good:
            raise value
        return value

    def run(self, code: str, *, hang_limit_s: float = HANG_LIMIT_S) -> Any:
        """`start` and `result`."""
        self.start(code)
        return self.result(hang_limit_s=hang_limit_s)

    def run_in_background(self, expression: str) -> None:
        """Let a thread evaluate *expression*: the worker goes on answering, `background_result` has the value."""
        self.run(f"""
            import threading
            outcome = []
            def call():
                try:
                    outcome.append({expression})
                except StoreError as error:
                    outcome.append(error)
            thread = threading.Thread(target=call, daemon=True)
            thread.start()
        """)

    def background_result(self, *, hang_limit_s: float = HANG_LIMIT_S) -> Any:
        """What the background expression gave, or the StoreError that it raised."""
        return self.run("thread.join(); outcome.pop()", hang_limit_s=hang_limit_s)

    def kill(self) -> None:
        """SIGKILL, and wait for the process to be gone."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> tuple[int, str]:
        """Let it end by itself: its exit code and what it wrote to stderr."""
        if self.process.poll() is None:
            self.resume()
        _, err = self.process.communicate(timeout=HANG_LIMIT_S)
        return self.process.returncode, err.decode()

    def end(self) -> None:
        """Whatever it is doing; twice is harmless."""
        if self.process.poll() is None:
            self.resume()
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
