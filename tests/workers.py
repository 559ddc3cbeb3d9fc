# SPDX-License-Identifier: Apache-2.0
"""Runs functions of a test in other processes: spawned ones that stay, and forked ones."""

import multiprocessing
import os
import pickle
import signal


class Worker:
    """A spawned process that runs one function after another and keeps a dictionary between them."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, function, *args):
        """`function(state, *args)` there; what it raises is raised here."""
        self.start(function, *args)
        return self.result()

    def start(self, function, *args):
        self._connection.send((function, args))

    def result(self, timeout=60):
        if not self._connection.poll(timeout):
            raise TimeoutError("the worker does not answer")
        value, error = self._connection.recv()
        if error is not None:
            raise error
        return value

    def kill(self):
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()

    def end(self):
        """Ends it in the ordinary way and returns its exit code."""
        if self._process.is_alive():
            self._connection.send(None)
        self._process.join(60)
        return self._process.exitcode


def _serve(connection):
    state = {}
    while (job := connection.recv()) is not None:
        function, args = job
        try:
            answer = function(state, *args), None
        except Exception as error:
            answer = None, error
        connection.send(answer)


def in_fork(function, seconds=20):
    """Runs `function()` in a forked child, which ends without clean-up, and returns what it returned.

    A child that hangs is killed by its alarm.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        try:
            answer = function()
        except BaseException as error:
            answer = error
        with os.fdopen(write_end, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"
    value = pickle.loads(answer)
    if isinstance(value, BaseException):
        raise value
    return value
