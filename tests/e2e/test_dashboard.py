"""The dashboard in a real Chromium against the real stack."""

import re
import sys
import tarfile
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from athanor.backends.base import Submission
from athanor.backends.local.backend import LocalBackend
from deploy.local.handle import wait_until
from tests.control_plane.webhooks.receiver import Receiver
from tests.e2e.browsing import BROWSER_MARKS, sign_in

pytestmark = BROWSER_MARKS
RUN_MS = 180_000  # until a tiny job has ended, on a busy machine
TINY_YAML = """\
version: 1
name: from-the-dashboard
resources: {processes_per_node: 2, accelerator: cpu}
checkpoint: {every_steps: 10, keep_last: 2}
training:
  model:
    shape:
      {hidden_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, intermediate_size: 64, tie_embeddings: true}
  data: {source: "builtin:python-stdlib"}
  tokenizer: {vocab_size: 512}
  steps: 40   # the form changes this
  tokens_per_step: 256
  sequence_length: 64
  schedule: {warmup_steps: 2}
  evaluation: {every_steps: 10, sequences: 8}
"""
# What can be operated must have a name to be called by; what is not drawn, or hidden from readers, cannot.
UNNAMED_CONTROLS = """() => {
  const named = (element) =>
    element.getAttribute('aria-label') || element.getAttribute('aria-labelledby') || element.labels?.length ||
    element.title || element.textContent.trim();
  const controls = 'button, a[href], input, select, textarea, [role=button], [contenteditable=true]';
  return [...document.querySelectorAll(controls)]
    .filter((element) => element.checkVisibility() && !element.closest('[aria-hidden=true]') && !named(element))
    .map((element) => element.outerHTML.slice(0, 200));
}"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
DRAWN = """(canvas) => {
  const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return data.some((value, index) => index % 4 === 3 && value > 0);
}"""


@pytest.fixture(scope="module")
def finished_job(stack, tmp_path_factory: pytest.TempPathFactory) -> str:
    job_id = stack.submit(tmp_path_factory.mktemp("job"), steps=3)
    assert stack.wait_for_end(job_id)["status"] == "succeeded"
    return job_id


def status_of(page: Page, status: str):
    return page.get_by_role("main").locator(f"[data-status={status}]").first


def write_spec(page: Page, text: str) -> None:
    editor = page.get_by_label("Job spec as YAML")
    editor.click()
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    page.keyboard.insert_text(text)


def test_a_job_is_submitted_watched_to_its_end_and_downloaded(page: Page, stack, tmp_path: Path) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    sign_in(page, stack)
    page.get_by_role("link", name="New job").first.click()
    expect(page.get_by_role("radio", name="Demo")).to_be_checked()

    write_spec(page, TINY_YAML)
    steps = page.get_by_role("textbox", name="Steps", exact=True)
    expect(steps).to_have_value("40")
    steps.fill("0")
    expect(page.get_by_text("training.steps", exact=True)).to_be_visible()
    expect(steps).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("button", name="Submit job")).to_be_disabled()
    steps.fill("30")
    expect(page.get_by_label("Job spec as YAML")).to_contain_text("steps: 30   # the form changes this")
    expect(page.get_by_text("Memory per process")).to_be_visible()
    page.get_by_role("button", name="Submit job").click()

    page.wait_for_url(re.compile(r"/jobs/job_\w+$"))
    job_id = page.url.rsplit("/", 1)[1]
    expect(page.get_by_role("heading", name="from-the-dashboard")).to_be_visible()
    expect(status_of(page, "succeeded")).to_be_visible(timeout=RUN_MS)
    expect(page.get_by_text("Step 30 of 30")).to_be_visible()
    for name in ("Loss", "Throughput", "Learning rate"):
        chart = page.get_by_role("img", name=re.compile(f"^{name}.*[0-9]"))
        expect(chart).to_be_visible()
        assert chart.locator("canvas").evaluate(DRAWN), f"the chart {name} is blank"
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("Checkpoint of step 30")
    expect(page.get_by_role("region", name="Time breakdown")).to_contain_text("Start-up")

    page.get_by_role("tab", name="Logs").click()
    expect(page.get_by_role("log")).to_be_visible()
    page.get_by_role("tab", name="Spec").click()
    expect(page.get_by_role("textbox", name="As written")).to_contain_text("from-the-dashboard")

    page.get_by_role("tab", name="Outputs").click()
    expect(page.get_by_role("table", name="Checkpoints").get_by_role("row")).to_have_count(3)
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download model").click()
    archive = tmp_path / "model.tar"
    downloading.value.save_as(archive)
    artifact = next(one for one in stack.get(f"/jobs/{job_id}/artifacts")["items"] if one["kind"] == "model")
    with tarfile.open(archive) as tar:
        found = {Path(member.name).name: member.size for member in tar.getmembers() if member.isfile()}
    assert found.pop("model.sig") > 0
    assert found == {Path(file["path"]).name: file["size"] for file in artifact["files"]}
    assert "model.safetensors" in found

    elsewhere = [url for url in asked if not url.startswith((stack.url, "blob:", "data:"))]
    assert elsewhere == [], "the dashboard must work without the internet"


def test_an_alert_rule_is_created_changed_and_deleted(page: Page, stack) -> None:
    sign_in(page, stack, "/alerts")
    page.get_by_role("button", name="New alert rule").click()
    page.get_by_label("Name", exact=True).fill("long queue")
    page.get_by_label("Condition", exact=True).select_option(label="A job waits in the queue for")
    page.get_by_label("Threshold (minutes)").fill("30")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("A job waits in the queue for 30 minutes")).to_be_visible()
    page.get_by_role("button", name="Change long queue").click()
    page.get_by_label("Threshold (minutes)").fill("45")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_text("A job waits in the queue for 45 minutes")).to_be_visible()
    (rule,) = stack.get("/alert-rules")["items"]
    assert (rule["measure"], rule["threshold"]) == ("queue_wait", 45)
    page.get_by_role("button", name="Delete long queue").click()
    page.get_by_role("button", name="Delete it").click()
    expect(page.get_by_role("table", name="Rules")).to_be_hidden()
    assert stack.get("/alert-rules")["items"] == []


def test_a_running_job_is_cancelled_after_a_confirmation_and_forked(page: Page, stack, tmp_path: Path) -> None:
    job_id = stack.submit(tmp_path, steps=100_000)
    stack.wait_for_step(job_id, 1)
    sign_in(page, stack, f"/jobs/{job_id}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Keep it running").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert stack.job(job_id)["desired"] == "run"
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(status_of(page, "cancelled")).to_be_visible(timeout=RUN_MS)
    expect(page.get_by_text("stopped_by_user")).to_be_visible()

    page.get_by_role("link", name="Fork").click()
    expect(page.get_by_role("textbox", name="Name")).to_have_value("tiny-fork")
    page.get_by_role("textbox", name="Steps", exact=True).fill("5")
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(re.compile(rf"/jobs/job_(?!{job_id[4:]})\w+$"))
    fork = stack.job(page.url.rsplit("/", 1)[1])
    assert (fork["forked_from"], fork["spec"]["training"]["steps"]) == (job_id, 5)
    stack.json("cancel", fork["id"])


def test_a_submission_whose_answer_was_lost_is_sent_again_and_gives_one_job(page: Page, stack) -> None:
    lost: list[str] = []

    def lose_the_first(route: Route) -> None:
        if route.request.method == "POST" and not lost:
            lost.append(route.fetch().json()["id"])
            route.abort()
        else:
            route.continue_()

    sign_in(page, stack, "/jobs/new")
    write_spec(page, TINY_YAML.replace("from-the-dashboard", "sent-twice"))
    expect(page.get_by_text("Memory per process")).to_be_visible()
    page.route(re.compile(r"/api/v1/jobs$"), lose_the_first)
    page.get_by_role("button", name="Submit job").click()
    expect(page.get_by_role("alert")).to_contain_text("offline")
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(re.compile(r"/jobs/job_\w+$"))
    assert page.url.endswith(lost[0])
    assert [job["id"] for job in stack.get("/jobs", q="sent-twice")["items"]] == lost
    stack.json("cancel", lost[0])


def test_an_open_page_lives_on_when_the_web_server_is_killed(page: Page, stack, tmp_path: Path) -> None:
    sign_in(page, stack)
    stack.kill("web")
    stack.get("/jobs", limit=1)
    job_id = stack.submit(tmp_path, steps=2)
    row = page.get_by_role("table", name="Jobs").get_by_role("row").filter(has_text=job_id[-6:])
    expect(row).to_be_visible(timeout=30_000)
    expect(page.get_by_role("alert")).to_have_count(0)
    stack.json("cancel", job_id)


def test_a_page_whose_code_did_not_come_is_loaded_when_the_server_answers(page: Page, stack) -> None:
    sign_in(page, stack, "/team")
    expect(page.get_by_role("heading", name="Team", level=1)).to_be_visible()
    away, refused = True, []

    def refuse(route: Route) -> None:
        nonlocal away
        path = route.request.url.removeprefix(stack.url)
        if away and (path == "/" or path.startswith("/assets/")):
            refused.append(path)
            away = refused.count("/") < 2  # it asks twice whether the server is there again
            route.abort()
        else:
            route.continue_()

    page.route("**/*", refuse)
    page.get_by_role("link", name="Webhooks").click()
    expect(page.get_by_role("button", name="New webhook")).to_be_visible()
    assert page.url.endswith("/webhooks")
    assert any(path.startswith("/assets/webhooks-page") for path in refused)


def test_a_failed_job_says_why_and_its_log_is_searched(page: Page, stack, tmp_path: Path) -> None:
    sign_in(page, stack)
    uploaded = page.request.post(
        "/api/v1/datasets?name=too-short",
        data=b"hardly any text\n",
        headers={"Content-Type": "text/plain", "Authorization": f"Bearer {stack.token}"},
    )
    assert uploaded.status == 201, uploaded.text()
    job_id = stack.submit(tmp_path, data={"source": "dataset:too-short"})
    page.goto(f"/jobs/{job_id}?tab=logs")
    expect(status_of(page, "failed")).to_be_visible(timeout=RUN_MS)
    reason = stack.job(job_id)["reason"]
    expect(page.get_by_role("note")).to_contain_text(reason["code"])
    expect(page.get_by_role("note")).to_contain_text(reason["remedy"][1:])
    lines = page.get_by_role("log").locator("time")
    expect(lines.first).to_be_attached()
    page.get_by_label("Show lines that contain").fill("nothing is written like this")
    expect(page.get_by_role("log")).to_contain_text("No line contains")
    expect(lines).to_have_count(0)


def test_a_refused_sign_in_says_so_and_a_good_one_leads_where_it_was_going(page: Page, stack) -> None:
    page.goto("/tokens")
    page.get_by_label("Username").fill(stack.username)
    page.get_by_label("Password", exact=True).fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("invalid_credentials")
    page.get_by_label("Password", exact=True).fill(stack.password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Tokens")).to_be_visible()
    page.get_by_role("button", name=re.compile("^Account of")).click()
    page.get_by_role("menuitem", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    page.goto("/jobs")
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def test_a_token_is_shown_once_works_and_is_revoked(page: Page, stack) -> None:
    sign_in(page, stack, "/tokens")
    page.get_by_role("button", name="New token").click()
    page.get_by_role("textbox", name="Name").fill("e2e-browser")
    page.get_by_role("button", name="Create").click()
    secret = page.get_by_role("dialog").locator("code").inner_text()
    answer = page.request.get("/api/v1/jobs", headers={"Authorization": f"Bearer {secret}"})
    assert answer.status == 200
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("row", name=re.compile("e2e-browser"))).to_be_visible()
    assert secret not in page.content()
    page.get_by_role("button", name="Revoke e2e-browser").click()
    page.get_by_role("button", name="Revoke it").click()
    expect(page.get_by_role("row", name=re.compile("e2e-browser"))).to_contain_text("Revoked")
    assert page.request.get("/api/v1/jobs", headers={"Authorization": f"Bearer {secret}"}).status == 401


def test_a_data_set_is_uploaded_and_what_is_no_text_is_refused(page: Page, stack, tmp_path: Path) -> None:
    bad, good = tmp_path / "bad.txt", tmp_path / "My corpus (v2).txt"
    bad.write_bytes(b"fine so far \xff\xfe not UTF-8")
    good.write_text("a line of text to learn from\n" * 2000)
    sign_in(page, stack, "/datasets")
    page.get_by_role("button", name="Upload").click()
    dialog = page.get_by_role("dialog")
    dialog.locator("input[type=file]").set_input_files(bad)
    expect(dialog.get_by_role("alert")).to_contain_text("byte 12 is not UTF-8")
    expect(dialog.get_by_role("button", name="Upload")).to_be_disabled()
    dialog.get_by_role("textbox", name="Name").fill("")
    dialog.locator("input[type=file]").set_input_files(good)
    expect(dialog.get_by_role("textbox", name="Name")).to_have_value("My-corpus-v2")
    dialog.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("row", name=re.compile("My-corpus-v2"))).to_contain_text("56.6 KiB")
    page.get_by_role("link", name="My-corpus-v2", exact=True).click()
    page.get_by_role("table", name="Jobs that read it").get_by_role("link", name="prepare-My-corpus-v2").click()
    expect(status_of(page, "succeeded")).to_be_visible(timeout=RUN_MS)


@pytest.mark.slow
def test_the_jobs_table_is_searched_and_walked_by_keyboard(
    page: Page, stack, finished_job: str, tmp_path: Path
) -> None:
    stack.submit(tmp_path, steps=2)
    sign_in(page, stack)
    rows = page.get_by_role("table", name="Jobs").locator("a[data-row]")
    expect(rows.nth(1)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("no job is called this")
    expect(page.get_by_text("No job matches")).to_be_visible()
    assert "q=no+job" in page.url
    page.get_by_role("button", name="Show all jobs").click()
    expect(page.get_by_role("searchbox")).to_have_value("")
    rows.first.focus()
    page.keyboard.press("ArrowDown")
    expect(rows.nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("tiny")
    page.go_back()
    page.get_by_role("radiogroup", name="Status").get_by_text("Cancelled").click()
    page.wait_for_url(re.compile("status=cancelled"))


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_every_page_fits_a_phone_and_every_control_has_a_name(
    browser: Browser, stack, finished_job: str, scheme: str
) -> None:
    context = browser.new_context(base_url=stack.url, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    context.set_default_timeout(20_000)
    page = context.new_page()
    sign_in(page, stack)
    assert page.evaluate("document.documentElement.dataset.mantineColorScheme") == scheme
    job = f"/jobs/{finished_job}"
    tabs = [f"{job}?tab={name}" for name in ("logs", "outputs", "spec")]
    for path in (
        "/jobs",
        "/jobs/new",
        "/datasets",
        "/models",
        "/tokens",
        "/team",
        "/audit",
        "/webhooks",
        "/compare",
        "/quotas",
        "/queue",
        job,
        *tabs,
        "/jobs/no/such/page",
    ):
        page.goto(path)
        page.get_by_role("heading", level=1).wait_for()
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        assert page.evaluate(OVERFLOW) <= 0, f"{path} scrolls sideways"
        assert page.evaluate(UNNAMED_CONTROLS) == [], path
    context.close()


def test_a_job_that_is_not_there_is_a_clear_message_with_its_request(page: Page, stack) -> None:
    sign_in(page, stack, "/jobs/job_01ARZ3NDEKTSV4RRFFQ69G5FAV")
    notice = page.get_by_role("alert")
    expect(notice).to_contain_text("not_found")
    expect(notice).to_contain_text("request req_")
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()


@pytest.mark.slow
def test_a_job_page_follows_by_the_stream_and_asks_seldom(page: Page, stack, tmp_path: Path) -> None:
    job_id = stack.submit(tmp_path, steps=100_000)
    stack.wait_for_step(job_id, 1)
    streams: list[str] = []
    asked: list[str] = []
    page.on(
        "request",
        lambda request: (streams if request.resource_type == "eventsource" else asked).append(request.url),
    )
    sign_in(page, stack, f"/jobs/{job_id}")
    before = stack.job(job_id)["progress"]["step"]
    stack.wait_for_step(job_id, before + 50)
    expect(page.get_by_text(re.compile(r"Step \d+ of 100,?000"))).to_be_visible()
    assert len([url for url in streams if url.endswith(f"/jobs/{job_id}/events")]) >= 1
    page.wait_for_function(
        "(least) => Number(document.body.innerText.match(/Step ([\\d,]+) of/)?.[1].replaceAll(',', '')) > least",
        arg=before + 50,
    )
    stack.json("cancel", job_id)
    expect(status_of(page, "cancelled")).to_be_visible(timeout=RUN_MS)


@pytest.mark.slow
def test_without_streams_the_job_page_asks_again_and_again(page: Page, stack, tmp_path: Path) -> None:
    page.route(
        re.compile(r"/events$"),
        lambda route: route.abort() if route.request.resource_type == "eventsource" else route.continue_(),
    )
    job_id = stack.submit(tmp_path, steps=100_000)
    sign_in(page, stack, f"/jobs/{job_id}")
    expect(status_of(page, "running")).to_be_visible(timeout=RUN_MS)
    stack.json("cancel", job_id)
    expect(status_of(page, "cancelled")).to_be_visible(timeout=RUN_MS)


@pytest.mark.slow
def test_a_webhook_is_added_tested_told_and_deleted(page: Page, stack, tmp_path: Path) -> None:
    receiver = Receiver()
    try:
        sign_in(page, stack, "/webhooks")
        page.get_by_role("button", name="New webhook").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Address").fill("https://10.0.0.1/")
        dialog.get_by_role("button", name="Create").click()
        expect(dialog.get_by_role("alert")).to_contain_text("not a public address")
        dialog.get_by_label("Address").fill(receiver.url)
        dialog.get_by_role("textbox", name="Name").fill("e2e-hook")
        dialog.get_by_role("button", name="Create").click()
        secret = dialog.get_by_text(re.compile("^whsec_")).inner_text()
        dialog.get_by_role("button", name="Done").click()
        row = page.get_by_role("row", name=re.compile("e2e-hook"))
        row.get_by_role("button", name="Test").click()
        deliveries = page.get_by_role("table", name="Deliveries")
        expect(deliveries.get_by_role("row", name=re.compile("webhook.test"))).to_contain_text("Delivered")
        assert receiver.received[0].is_signed_with(secret)
        assert secret not in page.content()

        job_id = stack.submit(tmp_path, steps=2)
        told = deliveries.get_by_role("row", name=re.compile("job.submitted"))
        expect(told.first).to_contain_text("Delivered", timeout=30_000)
        assert {got.event["subject"] for got in receiver.received[1:]} == {job_id}
        count = len(receiver.received)
        told.first.get_by_role("button", name="Redeliver").click()
        expect(told.first).to_contain_text("Delivered")
        stack.json("cancel", job_id)
        row.get_by_role("button", name="Delete").click()
        page.get_by_role("button", name="Delete it").click()
        expect(page.get_by_text("No webhooks yet")).to_be_visible()
        assert len(receiver.received) >= count
    finally:
        receiver.close()


def test_an_administrator_sees_the_reconcilers_and_cancels_an_orphan(page: Page, stack) -> None:
    command = (sys.executable, "-c", "import signal; signal.pause()")
    backend = LocalBackend(str(stack.folder.jobs), command=command, kill_after_seconds=0.5)
    backend.submit(Submission("athanor-stray", "", {}, {}))
    sign_in(page, stack)
    page.get_by_role("link", name="Administration").click()
    page.get_by_role("link", name="Operations").click()
    reconcilers = page.get_by_role("table", name="Reconcilers")
    expect(reconcilers.get_by_role("row", name=re.compile("finalise.*The end of an attempt"))).to_contain_text("Runs")
    orphans = page.get_by_role("table", name="Objects without a live attempt")
    expect(orphans).to_contain_text("There is no attempt of this name.")
    assert page.evaluate(UNNAMED_CONTROLS) == []
    page.get_by_role("button", name="Cancel athanor-stray").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("asked to end")
    dialog.get_by_role("button", name="Back").click()
    assert "athanor-stray" in backend.list_ours(), "nothing happens before the confirmation"
    page.get_by_role("button", name="Cancel athanor-stray").click()
    dialog.get_by_role("button", name="Cancel object").click()
    expect(dialog).to_be_hidden()
    wait_until(lambda: "athanor-stray" not in backend.list_ours(), "the stray has ended", 20)
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_text("No orphans")).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate(OVERFLOW) <= 0
