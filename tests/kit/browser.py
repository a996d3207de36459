"""A real browser for the tests of pages: headless Chromium, driven over a pipe by its DevTools protocol."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here; apt-get install chromium")
FLAGS = "--headless=new --no-sandbox --disable-gpu --no-first-run --remote-debugging-pipe --hide-scrollbars"
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
KEYS |= {"ArrowDown": 40}
SECONDS = 60


class Browser:
    """One page at a time; `errors` are what its scripts threw, `requests` what it asked for besides itself."""

    def __init__(self, home):
        ours, theirs = os.pipe(), os.pipe()
        read_end, write_end = (fcntl.fcntl(each, fcntl.F_DUPFD, 20) for each in (ours[0], theirs[1]))
        command = ["bash", "-c", f'exec "$@" 3<&{read_end} 4>&{write_end}', "bash", BROWSER, *FLAGS.split()]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={home}", "about:blank"],
            pass_fds=(read_end, write_end),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(home)},
        )
        for each in (ours[0], theirs[1], read_end, write_end):
            os.close(each)
        self._to, self._from = ours[1], theirs[0]
        self._bytes, self._number, self._session = b"", 0, None
        self.errors, self.requests, self._events = [], [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        for each in (self._to, self._from):
            os.close(each)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method, **parameters):
        """One command and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _receive(self):
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._bytes:
            ready, _, _ = select.select([self._from], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            self._bytes += os.read(self._from, 1 << 20)
        message, _, self._bytes = self._bytes.partition(b"\0")
        found = json.loads(message)
        self._events.append(found.get("method"))
        if found.get("method") == "Runtime.exceptionThrown":
            self.errors.append(found["params"]["exceptionDetails"]["exception"].get("description", "an error"))
        if found.get("method") == "Network.requestWillBeSent":
            self.requests.append(found["params"]["request"]["url"])
        return found

    def open(self, address, *, width=1280, height=900, dark=False):
        """Load a page, as on a screen of that size."""
        self.call("Page.navigate", url="about:blank")
        self.run("document.readyState")
        self.errors.clear(), self.requests.clear(), self._events.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=address)
        while "Page.loadEventFired" not in self._events:
            self._receive()
        self.run("document.readyState")

    def run(self, script):
        """The value of an expression in the page."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def text(self, selector="body"):
        """What a reader sees of the first element that fits."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def count(self, selector):
        return self.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    def wait_for(self, script):
        """Until an expression is true."""
        deadline = time.monotonic() + SECONDS
        while not self.run(script):
            assert time.monotonic() < deadline, script
            time.sleep(0.05)

    def click(self, selector):
        """The middle of the first element that fits, as a mouse would."""
        scroll = (
            f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center', behavior: 'instant'}})"
        )
        self.run(scroll)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")  # drawn there
        x, y = self.run(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect())"
        )
        self.point(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point(self, x, y):
        """Move the mouse there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, *keys):
        """Named keys one after the other; anything else is typed."""
        for key in keys:
            if key not in KEYS:
                self.call("Input.insertText", text=key)
                continue
            known = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
            if key == "Enter":
                known["text"] = "\r"
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, **known)

    def screenshot(self, path, *, whole=False):
        """What is on the screen, or the whole page, as a PNG."""
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        path.write_bytes(base64.b64decode(image["data"]))

    def _clip(self, whole):
        if not whole:
            return {}
        width, height = self.run("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        return {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
