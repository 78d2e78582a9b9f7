"""A headless Chromium, spoken to through a pair of pipes in its own protocol."""

import contextlib
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 120  # seconds until a browser that says nothing is given up


class Page:
    """A tab: commands, and all the events that they brought about."""

    def __init__(self, incoming, outgoing):
        self.incoming, self.outgoing, self.pending = incoming, outgoing, b""
        self.count, self.events, self.session = 0, [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """The result of a command."""
        self.count += 1
        request = {"id": self.count, "method": method, "params": params}
        request |= {"sessionId": self.session} if self.session else {}
        self.outgoing.write(json.dumps(request).encode() + b"\0")
        self.outgoing.flush()
        while True:
            message = self.receive()
            if message.get("id") == self.count:
                assert "error" not in message, message
                return message["result"]

    def receive(self):
        while b"\0" not in self.pending:
            part = os.read(self.incoming.fileno(), 65536)
            assert part, "the browser has gone"
            self.pending += part
        text, _, self.pending = self.pending.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def show(self, path, width, height=800, scheme="light"):
        """A file, in a window of some width, when all of it is there."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        while not self.events_of("Page.loadEventFired"):
            self.receive()

    def events_of(self, *methods):
        return [event["params"] for event in self.events if event["method"] in methods]

    def evaluate(self, expression):
        """What a line of JavaScript gives."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")


@contextlib.contextmanager
def chromium(profile):
    """A browser with one empty tab, gone in the end."""
    assert CHROMIUM, "no Chromium here: apt-get install chromium"
    there, ours = os.pipe()
    mine, theirs = os.pipe()
    # The browser reads commands from descriptor 3 and answers on 4; not every sh knows descriptors above 9.
    starting = f'exec "$@" 3<&{there} 4>&{theirs}'
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
    ]
    process = subprocess.Popen(
        ["bash", "-c", starting, "bash", CHROMIUM, *options, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
        pass_fds=(there, theirs),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(there)
    os.close(theirs)
    alarm = threading.Timer(PATIENCE, process.kill)
    alarm.start()
    try:
        with os.fdopen(mine, "rb") as incoming, os.fdopen(ours, "wb") as outgoing:
            yield Page(incoming, outgoing)
    finally:
        alarm.cancel()
        process.kill()
        process.wait()
