"""Clients by the dozen that are killed at a random moment: children of one worker, each a process with a Client."""

# Run this in a Worker: its own client is closed, and `kill_one` takes its place. What the children read (data for
# their calls) is made once, by the worker.
NURSERY = """
import os, signal, time, traceback
c.close()

def kill_one(call, delay_s):
    '''Fork a client, let it begin `call(client, say)`, and SIGKILL it *delay_s* later; returns what it said, in bytes.

    The delay counts from the first thing said, or from the call if nothing is: the child says b'' first.
    '''
    hear, say_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hear)
            client = Client(c.settings.path)
            os.write(say_fd, b'.')
            call(client, lambda word: os.write(say_fd, word))
            signal.pause()
        except BaseException:
            os.write(say_fd, traceback.format_exc().encode())
        finally:
            os._exit(1)
    os.close(say_fd)
    said = os.read(hear, 1)
    time.sleep(delay_s)
    os.kill(pid, signal.SIGKILL)
    while part := os.read(hear, 65536):
        said += part
    os.close(hear)
    os.waitpid(pid, 0)
    assert b'Traceback' not in said, said.decode()
    return said[1:]
"""
