"""As much of a docker daemon as `docker run -i` and `docker rm -f` ask of one, on a socket: first argument.

A container is the lab server in a session of its own, with the variables it was given and no others.
"""

import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

LAB = Path(__file__).with_name("nursery_lab.py")
CONTAINERS = {}


class Container:
    def __init__(self, asked):
        self.asked = asked
        self.started, self.ended = threading.Event(), threading.Event()
        self.process = self.client = None

    def start(self):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-I", "-S", LAB, *self.asked["Cmd"]]
        given = dict(variable.split("=", 1) for variable in self.asked["Env"])
        self.process = subprocess.Popen(command, env=given, start_new_session=True, bufsize=0, **pipes)
        self.started.set()

    def tell(self, stream, source):
        """Copy what it says to its client, in frames that name the stream."""
        while data := source.read(65536):
            try:
                self.client.sendall(bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data)
            except OSError:  # nobody listens; it may go on
                return


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self):
        return "the client"

    def log_message(self, *_):
        pass

    def answer(self, status, document=None):
        body = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Api-Version", "1.43")
        self.send_header("Ostype", "linux")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        url = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        *_, name, action = url.path.split("/")
        if action == "_ping":
            self.answer(200, "OK")
        elif action == "create":
            CONTAINERS[asked["name"]] = Container(json.loads(body))
            self.answer(201, {"Id": asked["name"], "Warnings": []})
        elif self.command == "DELETE":
            self.remove(action)
        elif name not in CONTAINERS:
            self.answer(404, {"message": f"No such container: {name}"})
        else:
            getattr(self, action)(name, CONTAINERS[name], asked)

    do_GET = do_HEAD = do_DELETE = do_POST  # noqa: N815

    def start(self, name, container, _):
        container.start()
        self.answer(204)

    def kill(self, name, container, asked):
        os.kill(container.process.pid, signal.Signals[f"SIG{asked['signal'].removeprefix('SIG')}"])
        self.answer(204)

    def remove(self, name):
        container = CONTAINERS.get(name)
        if container is None:
            self.answer(404, {"message": f"No such container: {name}"})
            return
        container.process.kill()
        container.ended.wait()
        self.answer(204)

    def wait(self, name, container, _):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.flush()
        container.ended.wait()
        code = container.process.returncode
        self.wfile.write(json.dumps({"StatusCode": code if code >= 0 else 128 - code}).encode())
        self.close_connection = True

    def attach(self, name, container, _):
        self.connection.sendall(
            b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\n"
            b"Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        )
        container.client = self.connection
        container.started.wait()
        process = container.process
        tellers = [
            threading.Thread(target=container.tell, args=[stream, source])
            for stream, source in ((1, process.stdout), (2, process.stderr))
        ]
        for teller in tellers:
            teller.start()
        threading.Thread(target=self.feed, args=[process.stdin], daemon=True).start()
        process.wait()
        for teller in tellers:
            teller.join()
        del CONTAINERS[name]
        container.ended.set()
        self.close_connection = True

    def feed(self, stdin):
        try:
            while data := self.rfile.read1(65536):
                stdin.write(data)
        except OSError:  # the client was killed, or the server reads no more
            pass
        stdin.close()


class Daemon(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


if __name__ == "__main__":
    with Daemon(sys.argv[1], Handler) as daemon:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        daemon.serve_forever()
