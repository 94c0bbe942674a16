"""TCP with TLS: frames of bytes between a coordinator and each site, both of whom show a certificate."""

import contextlib
import errno
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dpinfer._validate import check_interval
from dpinfer.errors import SiloError
from dpinfer.mechanism.silos.messages import unpack
from dpinfer.mechanism.silos.site import Site

_MOST_BYTES = 2**30  # of a message; a hostile end must not fill memory
_HEAD = 8  # bytes of a message's length
_STRANGERS = 64  # without a certificate so far, at a time: a thread each; memory
_LOOK = 0.2  # seconds between looks at whether a site is still served; time


def tls_context(certificate: Path, key: Path, authority: Path, *, serves: bool) -> ssl.SSLContext:
    """Return a context of TLS 1.3 in which both ends show a certificate that `authority` has signed.

    The files are PEM: this end's `certificate` and `key`, and the `authority` of the sites' own circle. A site listens,
    and `serves`. Raises OSError if a file cannot be read, or holds something else.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serves else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    for path in (certificate, key, authority):
        Path(path).open("rb").close()  # an error of ssl does not name the file
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        text = "certificate, key or authority is not PEM, or the key is that of another certificate"
        raise OSError(errno.EINVAL, text, str(certificate)) from error
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _send(line: ssl.SSLSocket, message: bytes) -> None:
    line.sendall(len(message).to_bytes(_HEAD, "little") + message)


def _take(line: ssl.SSLSocket, size: int) -> bytes:
    parts = []
    while size:
        part = line.recv(min(size, 2**20))
        if not part:
            raise ConnectionError("the line was closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _receive(line: ssl.SSLSocket) -> bytes:
    size = int.from_bytes(_take(line, _HEAD), "little")
    if size > _MOST_BYTES:
        raise ConnectionError("a message is too long")
    return _take(line, size)


class TcpLine:
    """A line to sites that listen at addresses (host, port), with a :func:`tls_context`.

    A site that does not answer within `timeout` seconds is lost for the rest of the session; its first answer may need
    a curator's consent.
    """

    def __init__(
        self, addresses: Sequence[tuple[str, int]], context: ssl.SSLContext, *, timeout: float = 600.0
    ) -> None:
        self._addresses, self._context = tuple(addresses), context
        self._timeout = check_interval("timeout", timeout, 0.0)
        self._lines: dict[int, ssl.SSLSocket] = {}
        self._lost: set[int] = set()
        self.n_sites = len(self._addresses)

    def exchange(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Send each site its message, and return the replies of those that answered in time."""
        with ThreadPoolExecutor(max(len(messages), 1)) as threads:
            replies = threads.map(self._ask, messages.keys(), messages.values())
            return {place: reply for place, reply in zip(messages, replies, strict=True) if reply is not None}

    def close(self) -> None:
        """Close all lines."""
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.close()
        self._lines.clear()
        self._lost.clear()

    def _ask(self, place: int, message: bytes) -> bytes | None:
        if place in self._lost:
            return None
        try:
            if place not in self._lines:
                host, port = self._addresses[place]
                plain = socket.create_connection((host, port), self._timeout)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._lines[place] = self._context.wrap_socket(plain, server_hostname=host)
            line = self._lines[place]
            _send(line, message)
            return _receive(line)
        except OSError:
            # Later bytes are lost: the line is closed.
            self._lost.add(place)
            line_or_none = self._lines.pop(place, None)
            if line_or_none is not None:
                line_or_none.close()
            return None

    def __enter__(self) -> "TcpLine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens, for a ``with`` statement; port 0 takes a free one."""
    return socket.create_server((host, port))


def serve(
    site: Site,
    server: socket.socket,
    context: ssl.SSLContext,
    *,
    sessions: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
    patience: float = 10.0,
) -> None:
    """Answer coordinators, one after the other, on a socket of :func:`listening` and with a :func:`tls_context`.

    The function stops after `sessions` lines of coordinators, never by default; `tell` gets a line about each failure.
    A stranger without a certificate has `patience` seconds in all, is no line of a coordinator, and keeps nobody
    waiting: others are let in meanwhile.

    **Privacy.** The site reads its records, and masks its answers.

    Raises OSError if the socket can no longer listen.
    """
    seconds = check_interval("patience", patience, 0.0)
    shown: queue.Queue[tuple[ssl.SSLSocket, str]] = queue.Queue()
    door = _Door(server, context, seconds, tell, shown)
    served = 0
    try:
        while sessions is None or served < sessions:
            line, who = door.next()
            served += 1
            try:
                with line:
                    _answer(site, line)
            except OSError as error:
                tell(f"the line to {who} ended: {type(error).__name__}")
    finally:
        door.close()


class _Door:
    """Lets in who shows a certificate, while another line is answered."""

    def __init__(
        self,
        server: socket.socket,
        context: ssl.SSLContext,
        seconds: float,  # of a stranger, from first to last byte
        tell: Callable[[str], None],
        shown: "queue.Queue[tuple[ssl.SSLSocket, str]]",
    ) -> None:
        self._server, self._context, self._seconds, self._tell, self._shown = server, context, seconds, tell, shown
        self._strangers = threading.BoundedSemaphore(_STRANGERS)
        self._closed = False
        self._failed: OSError | None = None
        server.settimeout(_LOOK)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def next(self) -> tuple[ssl.SSLSocket, str]:
        """Return the next line, and where it comes from."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._shown.get(timeout=_LOOK)
            if self._failed is not None:
                raise self._failed

    def close(self) -> None:
        """Let nobody in any more."""
        self._closed = True
        self._thread.join()
        while not self._shown.empty():
            self._shown.get()[0].close()

    def _listen(self) -> None:
        while not self._closed:
            try:
                plain, address = self._server.accept()
            except TimeoutError:
                continue
            except OSError as error:
                self._failed = error
                return
            if not self._strangers.acquire(blocking=False):
                plain.close()
                self._tell(f"the line to {address[0]} ended: too many strangers")
                continue
            threading.Thread(target=self._meet, args=(plain, address[0]), daemon=True).start()

    def _meet(self, plain: socket.socket, who: str) -> None:
        """Ask for a certificate; a clock ends the line of one who sends it byte by byte."""
        clock = threading.Timer(self._seconds, _end, [plain])
        clock.daemon = True
        clock.start()
        try:
            plain.settimeout(self._seconds)
            for level, option in ((socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE)):
                plain.setsockopt(level, option, 1)
            line = self._context.wrap_socket(plain, server_side=True)
            clock.cancel()
            line.settimeout(None)
        except (OSError, ValueError) as error:
            # A socket that the clock has ended may be none any more.
            plain.close()
            self._tell(f"the line to {who} ended: {type(error).__name__}")
        else:
            self._shown.put((line, who))
        finally:
            clock.cancel()
            self._strangers.release()


def _end(plain: socket.socket) -> None:
    with contextlib.suppress(OSError):
        plain.shutdown(socket.SHUT_RDWR)


def _answer(site: Site, line: ssl.SSLSocket) -> None:
    """Answer one coordinator until it is done, or goes away."""
    while True:
        try:
            message = _receive(line)
        except ConnectionError:
            return
        reply = site.answer(message)
        _send(line, reply)
        with contextlib.suppress(SiloError):
            if unpack(reply).kind == "bye":
                return
