"""csgl pull, list and rm, and repositories as --model-path, against a hub on this machine."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from hub import COMMIT, File, Hub
from serving import Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
LLAMA = ROOT / "tests/models/llama_mha"
GGUF = ROOT / "tests/models/gguf_q8_0/model.gguf"
REPO = "org/tiny.model_1"
FOLDER = "models--org--tiny.model_1"
WANTED = ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture
def hub():
    hub = Hub()
    hub.repos[REPO] = {
        "README.md": File(b"# not wanted"),
        "config.json": File((LLAMA / "config.json").read_bytes()),
        "tokenizer.json": File((ROOT / "tests/data/tokenizer/small_llama3.json").read_bytes()),
        "pytorch_model.bin": File(b"not wanted either", is_large=True),
        "model.safetensors": File((LLAMA / "model.safetensors").read_bytes(), is_large=True),
    }
    hub.repos["org/tiny-GGUF"] = {
        "tiny-Q8_0.gguf": File(GGUF.read_bytes(), is_large=True),
        "tiny-Q4_K_M.gguf": File(b"GGUF of another kind", is_large=True),
    }
    yield hub
    hub.close()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "hub"


@pytest.fixture
def environment(hub, cache):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "MODELSCOPE_"))}
    return {**kept, "MODELSCOPE_DOMAIN": hub.url, "MODELSCOPE_CACHE": str(cache.parent / "ms"), "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "no_proxy": "*"}


@pytest.fixture
def run(binary, environment):
    def run(*arguments, stdin="", **more):
        return subprocess.run([binary, *arguments], env={**environment, **more}, input=stdin, text=True,
                              capture_output=True, timeout=120)

    return run


@pytest.fixture
def start(binary, environment):
    started = []

    def start(*arguments):
        process = subprocess.Popen([binary, *arguments], env=environment, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def weights(hub):
    return hub.repos[REPO]["model.safetensors"]


def sentence(result):
    """The one error line of a failed command."""
    lines = [line for line in result.stderr.splitlines() if "error" in line]
    assert result.returncode == 1 and len(lines) == 1, result.stderr
    assert lines[0].startswith("csgl: error: "), result.stderr
    return lines[0]


def check_whole(result, hub, cache):
    """The snapshot has exactly the wanted files, each with the hub's bytes, and nothing is left over."""
    assert result.returncode == 0, result.stderr
    snapshot = pathlib.Path(result.stdout.strip())
    assert snapshot == cache / FOLDER / "snapshots" / hub.commit
    assert sorted(path.name for path in snapshot.iterdir()) == WANTED
    for name in WANTED:
        file = hub.repos[REPO][name]
        assert (snapshot / name).read_bytes() == file.data
        assert os.readlink(snapshot / name) == f"../../blobs/{file.etag}"
    assert sorted(path.name for path in (cache / FOLDER / "blobs").iterdir()) == \
        sorted(hub.repos[REPO][name].etag for name in WANTED)
    assert (cache / FOLDER / "refs/main").read_text() == hub.commit


def check_nothing_served(cache):
    """A failed pull has left no weights that a later run could take for whole."""
    assert not list((cache / FOLDER).glob("snapshots/*/model.safetensors"))
    assert not (cache / FOLDER / "refs/main").exists()


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def partial(hub, cache):
    path = cache / FOLDER / "blobs" / (weights(hub).etag + ".incomplete")
    return path.stat().st_size if path.exists() else 0


# --- what a pull brings


def test_a_pull_brings_the_wanted_files_in_the_hubs_layout(run, hub, cache):
    check_whole(run("pull", REPO), hub, cache)
    paths = {seen.path for seen in hub.requests()}
    assert not any("README" in path or "pytorch" in path for path in paths)
    assert f"/api/models/{REPO}/revision/main?blobs=true" in paths


def test_a_second_pull_fetches_nothing(run, hub, cache):
    check_whole(run("pull", REPO), hub, cache)
    hub.seen.clear()
    check_whole(run("pull", REPO), hub, cache)
    assert len(hub.seen) == 1


def test_a_new_commit_keeps_the_blobs_that_did_not_change(run, hub, cache):
    check_whole(run("pull", REPO), hub, cache)
    hub.commit, hub.seen = "f" * 40, []
    result = run("pull", REPO)
    assert result.returncode == 0 and result.stdout.strip().endswith("f" * 40), result.stderr
    assert (cache / FOLDER / "refs/main").read_text() == "f" * 40
    assert not hub.requests("GET", "resolve")


def test_branches_and_commits(run, hub, cache):
    result = run("pull", f"{REPO}@refs/pr/7")
    assert result.returncode == 0, result.stderr
    assert hub.seen[0].path == f"/api/models/{REPO}/revision/refs%2Fpr%2F7?blobs=true"
    assert (cache / FOLDER / "refs/refs/pr/7").read_text() == COMMIT
    assert run("pull", f"{REPO}@{COMMIT}").returncode == 0
    assert not (cache / FOLDER / "refs" / COMMIT).exists()


@pytest.mark.parametrize("name, file", [("org/tiny-GGUF:Q8_0", "tiny-Q8_0.gguf"),
                                        ("org/tiny-GGUF:tiny-Q4_K_M.gguf", "tiny-Q4_K_M.gguf")])
def test_a_gguf_by_file_or_quantization(run, hub, cache, name, file):
    result = run("pull", "--quiet", name)
    assert result.returncode == 0 and not result.stderr, result.stderr
    assert pathlib.Path(result.stdout.strip()).read_bytes() == hub.repos["org/tiny-GGUF"][file].data
    assert len(list(pathlib.Path(result.stdout.strip()).parent.iterdir())) == 1


def test_without_a_choice_the_ggufs_are_listed(run):
    for name in ("org/tiny-GGUF", "org/tiny-GGUF:Q2_K"):
        message = sentence(run("pull", name))
        assert "tiny-Q8_0.gguf" in message and "tiny-Q4_K_M.gguf" in message


def test_a_repository_without_weights_is_refused(run, hub):
    hub.repos[REPO].pop("model.safetensors")
    assert "neither safetensors nor GGUF" in sentence(run("pull", REPO))


# --- interoperable with huggingface_hub


@pytest.fixture
def hf(environment):
    """Runs a Python program that has huggingface_hub; CSGL_HF_PYTHON names its interpreter."""
    python = os.environ.get("CSGL_HF_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import huggingface_hub"], capture_output=True).returncode:
        pytest.skip("huggingface_hub is not installed; CSGL_HF_PYTHON may name a Python that has it")

    def run(program):
        result = subprocess.run([python, "-c", "import huggingface_hub as hf\n" + program], text=True,
                                env={**environment, "HF_HUB_DISABLE_XET": "1"}, capture_output=True)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    return run


def test_huggingface_hub_finds_what_csgl_pulled(run, hub, cache, hf):
    path = run("pull", REPO).stdout.strip()
    assert hf(f"print(hf.try_to_load_from_cache({REPO!r}, 'model.safetensors'))") == f"{path}/model.safetensors"
    assert hf(f"print(hf.snapshot_download({REPO!r}, local_files_only=True))") == path
    info = hf("c = hf.scan_cache_dir(); r = list(c.repos)[0]\n"
              "print(len(c.warnings), r.repo_id, r.nb_files, [list(v.refs) for v in r.revisions])")
    assert info == f"0 {REPO} 3 [['main']]"


def test_csgl_finds_what_huggingface_hub_pulled(run, hub, cache, hf):
    path = hf(f"import os\nfor name in {WANTED}: path = hf.hf_hub_download({REPO!r}, name)\n"
              "print(os.path.dirname(path))")
    hub.seen.clear()
    result = run("bench_one_batch", "--model-path", REPO, "--input-len", "4", "--output-len", "2", "--runs", "1")
    assert result.returncode == 0 and not hub.seen, result.stderr
    assert run("pull", REPO).stdout.strip() == path
    assert len(hub.seen) == 1
    assert REPO in run("list").stdout


# --- connections that break, and processes that end


def test_broken_connections_are_taken_up_where_they_were(run, hub, cache):
    hub.drop_after = 150_000
    check_whole(run("pull", REPO), hub, cache)
    starts = [int(seen.range[6:-1]) for seen in hub.requests("GET", "elsewhere") if seen.range]
    assert starts == sorted(set(starts)) and len(starts) >= 2


def test_a_server_without_ranges_sends_everything_again(run, hub, cache):
    hub.drop_after, hub.drops_left, hub.has_ranges = 150_000, 1, False
    check_whole(run("pull", REPO), hub, cache)


def test_a_connection_that_brings_nothing_is_given_up(run, hub, cache):
    hub.drop_after = 0
    assert "5 attempts" in sentence(run("pull", REPO))
    assert len(hub.requests("GET", "elsewhere")) == 5
    check_nothing_served(cache)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_pull_goes_on_where_it_was(run, start, hub, cache, ending):
    hub.seconds_a_chunk = 0.1
    process = start("pull", REPO)
    wait_for(lambda: partial(hub, cache) > 50_000)
    process.send_signal(ending)
    _, text = process.communicate(timeout=10)
    if ending == signal.SIGINT:
        assert process.returncode == 1 and "goes on from there" in text
    had = partial(hub, cache)
    assert 50_000 < had < len(weights(hub).data)
    check_nothing_served(cache)
    hub.seconds_a_chunk, hub.seen = 0, []
    check_whole(run("pull", REPO), hub, cache)
    assert [seen.range for seen in hub.requests("GET", "elsewhere")] == [f"bytes={had}-"]


def test_two_pulls_at_once_fetch_each_byte_once(start, hub, cache):
    hub.seconds_a_chunk = 0.05
    first = start("pull", REPO)
    wait_for(lambda: partial(hub, cache) > 0)
    second = start("pull", REPO)
    texts = [process.communicate(timeout=60) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], texts
    assert "waiting for another process" in texts[1][1]
    assert len(hub.requests("GET", "elsewhere")) == 1
    assert texts[0][0] == texts[1][0]


def test_a_rotten_partial_file_is_fetched_again(run, hub, cache):
    blobs = cache / FOLDER / "blobs"
    blobs.mkdir(parents=True)
    (blobs / (weights(hub).etag + ".incomplete")).write_bytes(b"x" * 1000)
    check_whole(run("pull", REPO), hub, cache)
    assert [seen.range for seen in hub.requests("GET", "elsewhere")] == ["bytes=1000-", None]


def test_a_partial_file_that_is_too_long_is_fetched_again(run, hub, cache):
    blobs = cache / FOLDER / "blobs"
    blobs.mkdir(parents=True)
    (blobs / (weights(hub).etag + ".incomplete")).write_bytes(b"x" * (len(weights(hub).data) + 1))
    check_whole(run("pull", REPO), hub, cache)


# --- servers that lie


def test_wrong_bytes_are_deleted(run, hub, cache):
    file = weights(hub)
    file.sent = file.data[:-1] + bytes([file.data[-1] ^ 1])
    message = sentence(run("pull", REPO))
    assert file.sha256 in message and "model.safetensors" in message
    assert not list((cache / FOLDER / "blobs").glob(file.etag + "*"))
    check_nothing_served(cache)


def test_small_files_are_checked_by_gits_digest(run, hub, cache):
    file = hub.repos[REPO]["config.json"]
    file.sent = file.data[:-1] + b" "
    message = sentence(run("pull", REPO))
    assert file.blob_id in message and "config.json" in message
    check_nothing_served(cache)


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("change", [-1000, 1000])
def test_files_that_are_longer_or_shorter_than_said(run, hub, cache, change, is_chunked):
    file = weights(hub)
    file.sent = (file.data + b"x" * 1000)[:len(file.data) + change]
    file.is_chunked = is_chunked
    assert "model.safetensors" in sentence(run("pull", REPO))
    check_nothing_served(cache)


def test_listing_and_file_server_must_agree(run, hub, cache):
    weights(hub).listed_bytes -= 7
    message = sentence(run("pull", REPO))
    assert str(len(weights(hub).data)) in message and str(len(weights(hub).data) - 7) in message


def test_a_range_that_was_not_asked_for_is_refused(run, hub, cache):
    hub.drop_after, hub.drops_left, hub.range_shift = 150_000, 1, 5
    assert "from byte" in sentence(run("pull", REPO))
    check_nothing_served(cache)


def test_sizes_beyond_the_disk_are_refused_before_a_byte_arrives(run, hub, cache):
    class Endless(bytes):
        def __len__(self):
            return 1 << 60

    weights(hub).listed_bytes, weights(hub).data = 1 << 60, Endless(weights(hub).data)
    assert "make room" in sentence(run("pull", REPO))
    assert not hub.requests("GET", "elsewhere")


@pytest.mark.parametrize("name", ["../outside.safetensors", "/tmp/outside.safetensors",
                                  "a/../../outside.safetensors"])
def test_names_that_leave_the_folder_are_refused(run, hub, cache, name):
    hub.repos[REPO][name] = File(b"x", is_large=True)
    assert "would not stay inside its folder" in sentence(run("pull", REPO))
    assert not cache.exists()


@pytest.mark.parametrize("etag", ["../../../outside", "", ".hidden", "a/b"])
def test_etags_that_are_no_file_names_are_refused(run, hub, cache, etag):
    hub.repos[REPO]["config.json"].etag = etag
    assert "ETag" in sentence(run("pull", REPO))


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_redirects_out_of_http_are_not_followed(run, hub, target):
    hub.redirect_to = target
    assert "does not follow" in sentence(run("pull", REPO))


def test_endless_redirects_end(run, hub):
    hub.redirect_to = f"{hub.url}/{REPO}/resolve/{COMMIT}/model.safetensors"
    assert "redirects" in sentence(run("pull", REPO))
    assert len(hub.seen) < 40


# --- statuses and tokens


def test_the_token_goes_to_the_endpoint_alone(run, hub, cache):
    hub.needs_token = "hf_secret"
    check_whole(run("pull", REPO, HF_TOKEN="hf_secret"), hub, cache)
    elsewhere = hub.requests(part="elsewhere")
    assert elsewhere and all(seen.host.startswith("localhost") for seen in elsewhere)
    assert all(seen.token is None for seen in elsewhere)
    assert all(seen.token == "Bearer hf_secret" for seen in hub.seen if seen not in elsewhere)


def test_without_its_token_a_private_repository_says_so(run, hub):
    hub.needs_token = "hf_secret"
    for token in ({}, {"HF_TOKEN": "hf_wrong"}):
        message = sentence(run("pull", REPO, **token))
        assert "401" in message and "HF_TOKEN" in message and "hf_wrong" not in message


def test_a_token_with_a_line_break_is_refused(run, hub):
    assert "HF_TOKEN" in sentence(run("pull", REPO, HF_TOKEN="hf_x\r\nX-Evil: 1"))
    assert not hub.seen


def test_what_is_not_there_is_named(run, hub):
    message = sentence(run("pull", "org/nothing"))
    assert "404" in message and "org/nothing" in message and len(hub.seen) == 1


def test_a_busy_server_is_asked_again(run, hub, cache):
    hub.statuses = [(429, {"Retry-After": "2"}), (500, {}), (503, {})]
    start = time.monotonic()
    check_whole(run("pull", REPO), hub, cache)
    assert time.monotonic() - start > 2 + 1 + 2


def test_a_server_that_stays_broken_is_given_up(run, hub):
    hub.statuses = [(500, {})] * 20
    message = sentence(run("pull", REPO))
    assert "500" in message and len(hub.seen) == 5


def test_an_endpoint_that_is_not_there(run, hub):
    assert "cannot be fetched" in sentence(run("pull", REPO, HF_ENDPOINT="http://127.0.0.1:1"))
    assert "HF_ENDPOINT" in sentence(run("pull", REPO, HF_ENDPOINT="ftp://x"))


def test_a_cache_that_cannot_be_written(run, hub, cache):
    cache.write_text("a file, not a folder")
    assert str(cache) in sentence(run("pull", REPO))


# --- a repository as a model


def bench(run, name, **more):
    return run("bench_one_batch", "--model-path", name, "--input-len", "4", "--output-len", "2", "--runs", "1",
               **more)


def test_a_repository_is_fetched_once_and_then_used_from_the_cache(run, hub):
    assert bench(run, REPO).returncode == 0
    hub.seen.clear()
    assert bench(run, REPO).returncode == 0
    assert bench(run, REPO, HF_HUB_OFFLINE="1").returncode == 0
    assert not hub.seen


def test_a_path_that_exists_is_never_a_repository(binary, environment, hub, tmp_path):
    shutil.copytree(LLAMA, tmp_path / "org/tiny.model_1")
    result = subprocess.run([binary, "bench_one_batch", "--model-path", REPO, "--input-len", "4",
                             "--output-len", "2", "--runs", "1"], env=environment, cwd=tmp_path)
    assert result.returncode == 0 and not hub.seen


def test_offline_nothing_is_asked(run, hub):
    for command in (("pull", REPO), ("bench_one_batch", "--model-path", REPO)):
        assert "HF_HUB_OFFLINE" in sentence(run(*command, HF_HUB_OFFLINE="1"))
    assert not hub.seen


def test_a_snapshot_with_missing_shards_is_completed(run, hub, cache):
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = {"weight_map": {"x": shards[0], "y": shards[1]}}
    repo = hub.repos[REPO]
    file = repo.pop("model.safetensors")
    repo.update({shards[0]: file, shards[1]: File(b"another", is_large=True)})
    repo["model.safetensors.index.json"] = File(json.dumps(index).encode())
    path = pathlib.Path(run("pull", REPO).stdout.strip())
    (path / shards[1]).unlink()
    assert f"cache lacks {shards[1]}" in sentence(bench(run, REPO, HF_HUB_OFFLINE="1"))
    hub.seen.clear()
    bench(run, REPO)
    assert hub.seen and (path / shards[1]).exists()


def test_generate_and_serve_take_a_repository(run, binary, environment, hub, monkeypatch):
    name = "org/tiny-GGUF:Q8_0"
    result = run("pull", name)
    assert result.returncode == 0, result.stderr
    assert bench(run, name).returncode == 0
    model = os.environ.get("CSGL_TEST_MODEL", "")
    if not model or not os.path.exists(model):
        pytest.skip("the default model is not there: scripts/fetch-model.sh fetches it")
    hub.repos["org/smol-GGUF"] = {"smol-Q4_K_M.gguf": File(pathlib.Path(model).read_bytes(), is_large=True)}
    for variable in ("HF_ENDPOINT", "HF_HUB_CACHE", "no_proxy"):
        monkeypatch.setenv(variable, environment[variable])
    server = Server(binary, "org/smol-GGUF")
    try:
        assert server.get("/v1/models").json["data"][0]["id"] == "smol-GGUF"
        assert server.complete().status == 200
    finally:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0
    result = run("generate", "--model-path", "org/smol-GGUF", "--quiet", "--max-tokens", "4", "The sea",
                 HF_HUB_OFFLINE="1")
    assert result.returncode == 0 and result.stdout.strip(), result.stderr


# --- ModelScope


MODELSCOPE = [("--model-source", "modelscope"), ("--use-modelscope",)]


@pytest.mark.parametrize("options", MODELSCOPE)
def test_a_model_of_modelscope_is_fetched_once_and_runs(run, hub, cache, options):
    result = run("pull", *options, REPO, MODELSCOPE_API_TOKEN="ms-secret")
    assert result.returncode == 0, result.stderr
    snapshot = pathlib.Path(result.stdout.strip())
    assert snapshot.parents[2] == cache.parent / "ms/csgl" and not cache.exists()
    assert sorted(path.name for path in snapshot.iterdir()) == WANTED
    assert all((snapshot / name).read_bytes() == hub.repos[REPO][name].data for name in WANTED)
    assert hub.seen[0].path == f"/api/v1/models/{REPO}/repo/files?Revision=master&Recursive=true"
    assert not hub.requests("HEAD")
    for seen in hub.seen:
        assert seen.token == (None if "elsewhere" in seen.path else "Bearer ms-secret")
    hub.seen.clear()
    for name in (REPO, f"{REPO}@master"):
        result = run("bench_one_batch", *options, "--model-path", name, "--input-len", "4", "--output-len", "2",
                     "--runs", "1")
        assert result.returncode == 0, result.stderr
    assert not hub.seen
    assert REPO in run("list", *options).stdout and REPO not in run("list").stdout
    assert run("rm", "--yes", *options, REPO).returncode == 0
    assert not snapshot.exists()


def test_plan_looks_at_a_configuration_on_modelscope(run, hub, cache):
    result = run("plan", "--use-modelscope", REPO)
    assert result.returncode == 0, result.stderr
    assert [seen.path for seen in hub.seen] == [f"/models/{REPO}/resolve/master/config.json"]
    assert not cache.exists()


def test_another_listing_of_modelscope_is_another_snapshot(run, hub):
    first = run("pull", "--use-modelscope", f"{REPO}@v1").stdout
    assert "Revision=v1" in hub.seen[0].path and hub.requests("GET", f"/models/{REPO}/resolve/v1/")
    hub.repos[REPO]["config.json"] = File(hub.repos[REPO]["config.json"].data + b"\n")
    hub.seen.clear()
    second = run("pull", "--use-modelscope", f"{REPO}@v1").stdout
    assert first != second and len(hub.requests("GET", "resolve")) == 1


@pytest.mark.parametrize("range_status", [200, 206])
def test_broken_connections_to_modelscope_are_taken_up(run, hub, range_status):
    hub.drop_after, hub.range_status = 150_000, range_status
    path = pathlib.Path(run("pull", "--use-modelscope", REPO).stdout.strip())
    assert (path / "model.safetensors").read_bytes() == weights(hub).data
    assert len([seen for seen in hub.requests("GET", "elsewhere") if seen.range]) >= 2


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_wrong_bytes_of_modelscope_are_deleted(run, hub, cache, name):
    file = hub.repos[REPO][name]
    file.sent = file.data[:-1] + bytes([file.data[-1] ^ 1])
    message = sentence(run("pull", "--use-modelscope", REPO))
    assert file.sha256 in message and name in message
    assert not list(cache.parent.glob(f"ms/csgl/*/blobs/{file.sha256}*"))


def test_a_private_model_of_modelscope_asks_for_its_token(run, hub):
    hub.needs_token = "ms-secret"
    assert "MODELSCOPE_API_TOKEN" in sentence(run("pull", "--use-modelscope", REPO))
    assert "MODELSCOPE_DOMAIN" in sentence(run("pull", "--use-modelscope", REPO, MODELSCOPE_DOMAIN="ftp://x"))
    assert "404" in sentence(run("pull", "--use-modelscope", "org/nothing", MODELSCOPE_API_TOKEN="ms-secret"))


# --- list and rm


def test_list_and_rm(run, hub, cache):
    assert "no models" in run("list").stderr
    run("pull", REPO)
    run("pull", "org/tiny-GGUF:Q8_0")
    lines = run("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["MODEL", REPO, "org/tiny-GGUF"] or \
        [line.split()[0] for line in lines] == ["MODEL", "org/tiny-GGUF", REPO]
    row = next(line for line in lines if line.startswith(REPO)).split()
    assert row[1:3] == ["main", COMMIT[:12]] and row[-1] == "3"
    result = run("rm", REPO, stdin="n\n")
    assert result.returncode == 1 and "nothing was deleted" in result.stderr
    assert (cache / FOLDER).exists()
    assert run("rm", REPO, stdin="y\n").returncode == 0
    assert not (cache / FOLDER).exists() and not (cache / ".locks" / FOLDER).exists()
    assert run("rm", "--yes", "org/tiny-GGUF").returncode == 0
    assert "no models" in run("list").stderr
    assert "has no org/tiny-GGUF" in sentence(run("rm", "--yes", "org/tiny-GGUF"))


def test_rm_follows_no_link_out_of_the_cache(run, hub, cache, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    run("pull", REPO)
    (cache / FOLDER / "snapshots/link").symlink_to(outside)
    assert run("rm", "--yes", REPO).returncode == 0
    assert (outside / "kept").exists() and not (cache / FOLDER).exists()


def test_list_shows_unfinished_downloads(run, hub, cache):
    hub.drop_after = 0
    blobs = cache / FOLDER / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "x.incomplete").write_bytes(b"x" * 2048)
    assert "2.0 KiB unfinished" in run("list").stdout


@pytest.mark.parametrize("arguments, word", [(("pull",), "which model"), (("rm",), "which model"),
                                             (("pull", "a", "b"), "positional"), (("list", "x"), "positional")])
def test_wrong_command_lines(run, arguments, word):
    result = run(*arguments)
    assert result.returncode == 2 and word in result.stderr


@pytest.mark.parametrize("name", ["gpt2", "../x", "a/b/c", "a/b@..", "a/b:../x"])
def test_names_that_are_none(run, hub, name):
    for command in ("pull", "rm"):
        assert f'"{name}"' in sentence(run(command, name))
    assert not hub.seen


def test_https_needs_a_certificate_that_is_trusted(hub, run, cache):
    certificate = ROOT / "tests/data/tls/localhost.pem"  # signed by itself
    hub.use_tls(certificate)
    unset = {"HF_ENDPOINT": hub.url, "SSL_CERT_FILE": "", "CURL_CA_BUNDLE": ""}
    refused = sentence(run("pull", REPO, **unset))
    assert "SSL_CERT_FILE" in refused
    nothing = sentence(run("pull", REPO, **{**unset, "SSL_CERT_FILE": "/no/such/file"}))
    assert "SSL_CERT_FILE" in nothing
    for variable in ("SSL_CERT_FILE", "CURL_CA_BUNDLE"):
        shutil.rmtree(cache, ignore_errors=True)
        pulled = run("pull", REPO, **{**unset, variable: str(certificate)})
        assert pulled.returncode == 0, pulled.stderr
