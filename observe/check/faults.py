"""A door in front of a Collector, that can be shut in all the ways in which a network shuts doors."""

import contextlib
import socket
import threading
import time

ERROR = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Door:
    """Listens on a port of its own and passes connections on to `target`, as its mode says."""

    def __init__(self, target):
        self.target = target
        self.mode = "pass"
        self.connections = set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, mode):
        """pass, slow, hang, error or reset; what was connected before is cut off, as by a restart."""
        self.mode = mode
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.set("reset")
        self.listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        self.connections.add(connection)
        with contextlib.suppress(OSError), connection:
            if self.mode == "reset":
                return
            if self.mode == "hang":
                while connection.recv(65536):
                    pass
            elif self.mode == "error":
                connection.recv(65536)
                connection.sendall(ERROR)
            else:
                with socket.create_connection(("127.0.0.1", self.target)) as onward:
                    self.connections.add(onward)
                    threading.Thread(target=self._pump, args=(onward, connection, 0), daemon=True).start()
                    self._pump(connection, onward, 0.7 if self.mode == "slow" else 0)
                    self.connections.discard(onward)
        self.connections.discard(connection)

    @staticmethod
    def _pump(source, sink, delay):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                time.sleep(delay)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
