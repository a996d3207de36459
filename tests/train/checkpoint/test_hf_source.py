"""Which folder a word means: local folders, Hugging Face's cache, and the hub, served here by a server of our own."""

import hashlib
import http.server
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from monograph.errors import ConfigError
from monograph.train.checkpoint.hf_source import find_snapshot, name_model, resolve_source
from monograph.train.checkpoint.model_source import open_source
from tests.kit.pretrained import write_pretrained

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    write_pretrained(folder)
    (folder / "evil.py").write_text("raise SystemExit")
    return folder


@pytest.fixture
def cache(tmp_path, tiny, monkeypatch):
    """Hugging Face's cache with one model in it."""
    home = tmp_path / "cache"
    model = home / "models--acme--tiny"
    shutil.copytree(tiny, model / "snapshots" / COMMIT)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    monkeypatch.setenv("HF_HUB_CACHE", str(home))
    return home


def test_every_way_to_name_a_model_of_the_cache_leads_to_its_snapshot(cache):
    model = cache / "models--acme--tiny"
    snapshot = model / "snapshots" / COMMIT
    for word in (str(model), str(model / "snapshots"), str(snapshot), "acme/tiny"):
        assert resolve_source(word) == snapshot, word
    assert name_model(snapshot) == "tiny"
    assert open_source("acme/tiny").name == "tiny"


def test_a_snapshot_must_be_named_where_the_cache_does_not_say_which(cache):
    model = cache / "models--acme--tiny"
    (model / "refs" / "main").unlink()
    assert find_snapshot(model).name == COMMIT
    (model / "snapshots" / "other").mkdir()
    with pytest.raises(ConfigError, match="which of its snapshots"):
        find_snapshot(model)


def test_a_missing_folder_beside_others_is_no_name_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "outputs" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="did you mean outputs/tiny"):
        resolve_source("outputs/tyni")


def test_a_run_that_is_not_there_is_no_name_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no folder outputs/tiny") as refused:
        resolve_source("outputs/tiny")
    assert "monograph train RECIPE" in refused.value.do and "hf download" not in refused.value.do


def test_without_a_network_a_name_is_refused_with_what_to_do(tmp_path):
    """In a process of its own: huggingface_hub reads its settings when it is imported."""
    code = "from monograph.cli import main; raise SystemExit(main(['hf', 'import', 'acme/none', 'out']))"
    environment = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path.cwd())}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 2
    assert "cannot be downloaded" in run.stderr and "hf download acme/none" in run.stderr
    assert not (tmp_path / "out").exists()


def test_a_model_is_downloaded_from_the_hub_without_what_could_be_run(tmp_path, tiny):
    with HubServer(tiny) as address:
        code = "from monograph.train.checkpoint.hf_source import resolve_source; print(resolve_source('acme/tiny'))"
        environment = {
            "HF_HUB_CACHE": str(tmp_path),
            "HF_ENDPOINT": address,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": str(Path.cwd()),
        }
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    folder = Path(run.stdout.strip())
    assert (folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    assert not (folder / "evil.py").exists()
    assert open_source(str(folder)).tokenizer is not None


class HubServer:
    """A server that answers as the hub does, for one model."""

    def __init__(self, folder):
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
        described = {"id": "acme/tiny", "modelId": "acme/tiny", "sha": COMMIT, "siblings": siblings, "private": False}
        tree = [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in files.items()
        ]

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, *, with_body):
                path = self.path.partition("?")[0]
                name = path.rpartition("/")[2]
                headers = {}
                if path.startswith("/api/models/acme/tiny/tree/"):
                    data = json.dumps(tree).encode()
                elif path.startswith("/api/models/acme/tiny"):
                    data = json.dumps(described).encode()
                elif name in files:
                    data = files[name]
                    headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
                else:
                    self.send_error(404)
                    return
                self.send_response(200)
                for key, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                if with_body:
                    self.wfile.write(data)

            def do_GET(self):
                self.answer(with_body=True)

            def do_HEAD(self):
                self.answer(with_body=False)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
