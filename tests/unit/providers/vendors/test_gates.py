"""What gates make of the calls of programs before a vendor sees them."""

import json

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.providers.base import ProviderSpec
from qtandem.core.providers.passing import Asked, Passed, cleaned, parsed
from tests.fakes.vendors import accounts
from tests.fakes.vendors.felis import TARGET
from tests.fakes.vendors.ibm import APIKEY, BACKEND, CRN
from tests.fakes.vendors.kit import Reply
from tests.fakes.vendors.pasqal import PROJECT

pytest.importorskip("qrmi", reason="the qrmi library is not installed")

MARK = "5438c9cb"


def form(content, *, name="input", mark=MARK, more=""):
    disposition = f'Content-Disposition: form-data; name="{name}"; filename="input"'
    part = f"--{mark}\r\n{disposition}\r\nContent-Type: application/octet-stream\r\n\r\n{content}\r\n"
    return f"{part}{more}--{mark}--\r\n"


class Site:
    """A provider on a fake of its vendor; `ask` is a call of a program of the lease."""

    def __init__(self, account, make, folder):
        self.account, self.fake = account, account.fake
        settings = account.settings | {"state_dir": str(folder)}
        self.provider = make(ProviderSpec(account.device, account.type, settings))

    def ask(self, method, path, body="", type="application/json", lease="lease-1", **query):
        values = {key: [value] for key, value in query.items()}
        asked = Asked(
            method, path, values, body if isinstance(body, str) else json.dumps(body), type, self.account.device
        )
        return Passed(**self.provider._gate.pass_on(lease, asked).wire())


@pytest.fixture
def iqm(tmp_path):
    from qtandem.core.providers.qrmi.provider import IqmProvider

    site = Site(accounts.iqm_server(), IqmProvider, tmp_path)
    yield site
    site.account.close()


@pytest.fixture
def felis(tmp_path):
    from qtandem.core.providers.qrmi.provider import FelisProvider

    site = Site(accounts.alice_bob_felis(), FelisProvider, tmp_path)
    yield site
    site.account.close()


@pytest.fixture
def pasqal(tmp_path):
    from qtandem.core.providers.qrmi.provider import PasqalCloudProvider

    site = Site(accounts.pasqal_cloud(), PasqalCloudProvider, tmp_path)
    yield site
    site.account.close()


def refused(site, *call, **query):
    with pytest.raises(QtandemError) as caught:
        site.ask(*call, **query)
    return caught.value.code


class TestIqm:
    SUBMIT = ("POST", "api/v1/jobs/garnet:mock/circuit")

    def test_a_tag_says_a_tag_and_nothing_else(self, iqm):
        iqm.ask(*self.SUBMIT, '{"circuits": []}', tag="a&use_timeslot=true#\r\nX: y" + "b" * 80, use_timeslot="TRUE")
        sent = iqm.fake.seen[-1]
        assert sent.query == {"use_timeslot": ["false"], "tag": ["ause_timeslottrueXy" + "b" * 31]}

    def test_a_program_is_passed_to_the_byte(self, iqm):
        body = '{ "circuits" : [1e0, "\\u00e9", "µ"] }'
        iqm.ask(*self.SUBMIT, body)
        assert iqm.fake.seen[-1].body == body.encode()

    @pytest.mark.parametrize("body", ["", "[]", "{", '"x"', "[" * 100_000])
    def test_what_is_no_object_is_no_program(self, iqm, body):
        assert refused(iqm, *self.SUBMIT, body) == "bad-request"
        assert iqm.fake.log == []

    def test_a_wait_is_told_and_not_passed_on(self, iqm):
        iqm.fake.task_s = 600
        task = iqm.ask(*self.SUBMIT, '{"circuits": []}').document()["id"]
        path = f"api/v1/jobs/{task}"
        assert iqm.ask("GET", path, wait_until_terminal="true", timeout_seconds="30").hold_s == 30.0
        assert iqm.fake.seen[-1].query == {}
        assert iqm.ask("GET", path, wait_until_terminal="true", timeout_seconds="9e99").hold_s == 0.0
        assert iqm.ask("GET", path, wait_until_terminal="true", timeout_seconds="99999").hold_s == 60.0
        iqm.ask("POST", f"{path}/cancel")
        assert iqm.ask("GET", path, wait_until_terminal="true", timeout_seconds="30").hold_s == 0.0

    def test_a_submission_whose_answer_got_lost_is_told_and_ends_nobody_s_release(self, iqm):
        iqm.fake.task_s = 600
        iqm.fake.fault("drop", method="POST", after=True, times=1)
        assert refused(iqm, *self.SUBMIT, '{"circuits": []}') == "vendor-error"
        mine = iqm.ask(*self.SUBMIT, '{"circuits": []}').document()["id"]
        iqm.provider.release("lease-1")
        assert [row["task"] for row in iqm.fake.log if row["event"] == "task_stop"] == [mine]

    def test_what_the_vendor_refuses_is_its_own_answer_and_no_task(self, iqm):
        answer = iqm.ask(*self.SUBMIT, "{}")
        assert (answer.status, answer.document()) == (400, {})
        assert "circuits: field required" in answer.body
        assert not list(iqm.provider._records._place().glob("*.json"))


class TestFelis:
    @pytest.fixture
    def job(self, felis):
        made = felis.ask("POST", "v1/jobs/", {"target": TARGET, "inputParams": {}, "inputDataFormat": "HUMAN_QIR"})
        return made.document()["id"]

    @pytest.mark.parametrize("content", ["define", "µ\r\n\r\n--other\r\n é", "x" * 100_000, "\n", "a\nb\r\nc\r"])
    def test_an_input_is_passed_to_the_byte_in_a_form_of_our_own(self, felis, job, content):
        answer = felis.ask("POST", f"v1/jobs/{job}/input", form(content), f"multipart/form-data; boundary={MARK}")
        assert answer.status == 200
        sent = felis.fake.seen[-1]
        mark = sent.headers["content-type"].partition("boundary=")[2]
        assert mark != MARK
        assert sent.body.split(b"\r\n\r\n", 1)[1] == content.encode() + f"\r\n--{mark}--\r\n".encode()

    @pytest.mark.parametrize(
        ("body", "type"),
        [
            (form("x"), "application/json"),
            (form("x"), "multipart/form-data"),
            (form("x", name="other"), f"multipart/form-data; boundary={MARK}"),
            (form("x", more=form("y")[:-14]), f"multipart/form-data; boundary={MARK}"),
            ("", f"multipart/form-data; boundary={MARK}"),
            (form("x"), f"multipart/form-data; boundary={MARK}\r\nX-Evil: 1"),
            (form("x"), "multipart/form-data; boundary=" + "b" * 300),
        ],
    )
    def test_any_other_form_is_none(self, felis, job, body, type):
        assert refused(felis, "POST", f"v1/jobs/{job}/input", body, type) == "bad-request"
        assert felis.fake.log == []

    def test_only_the_leased_target_is_shown_and_used(self, felis):
        assert [row["name"] for row in json.loads(felis.ask("GET", "v1/targets/").body)] == [TARGET]
        assert refused(felis, "POST", "v1/jobs/", {"target": "QPU:1Q:OTHER"}) == "not-allowed"


class TestPasqal:
    def test_a_batch_goes_into_the_site_s_project_and_its_jobs_are_the_lease_s(self, pasqal):
        body = {"sequence_builder": '{"version": "1"}', "jobs": [{"runs": 1}], "device_type": "FRESNEL"}
        batch = pasqal.ask("POST", "core-fast/api/v1/batches", body | {"project_id": "somebody's"})
        sent = pasqal.fake.seen[-1].json()
        assert (sent["project_id"], sent["sequence_builder"]) == (PROJECT, body["sequence_builder"])
        id = batch.document()["data"]["id"]
        assert refused(pasqal, "GET", f"core-fast/api/v2/batches/{id}", lease="lease-2") == "not-allowed"
        assert pasqal.ask("GET", f"core-fast/api/v2/batches/{id}").document()["data"]["job_ids"] == [id]
        assert pasqal.ask("GET", f"core-fast/api/v2/jobs/{id}").status == 200

    def test_another_device_is_refused(self, pasqal):
        body = {"sequence_builder": "{}", "jobs": [], "device_type": "EMU_FREE"}
        assert refused(pasqal, "POST", "core-fast/api/v1/batches", body) == "not-allowed"

    def test_a_token_that_ran_out_is_renewed_once(self, pasqal):
        assert pasqal.ask("GET", "core-fast/api/v1/devices/specs/FRESNEL").status == 200
        pasqal.fake.tokens.clear()
        assert pasqal.ask("GET", "core-fast/api/v1/devices/specs/FRESNEL").status == 200
        assert len([each for each in pasqal.fake.seen if each.path == "/oauth/token"]) == 2

    def test_a_wrong_secret_is_told_as_such(self, pasqal, tmp_path):
        from qtandem.core.providers.qrmi.provider import PasqalCloudProvider

        pasqal.account.settings["QRMI_PASQAL_CLOUD_CLIENT_SECRET"] = "wrong-secret"
        wrong = Site(pasqal.account, PasqalCloudProvider, tmp_path / "other")
        assert refused(wrong, "GET", "core-fast/api/v1/devices/specs/FRESNEL") == "bad-credentials"


class TestIbm:
    @pytest.fixture
    def gate(self, cloud, compute):
        provider = compute()
        token = provider.acquire("lease-1", 1)

        def ask(method, path, body="", **query):
            values = {key: [value] for key, value in query.items()}
            asked = Asked(method, path, values, body if isinstance(body, str) else json.dumps(body))
            return provider._gate.pass_on(token, asked)

        ask.token = token
        return ask

    def test_a_listing_shows_the_session_s_own_jobs_whatever_the_vendor_lists(self, cloud, gate):
        other = cloud.open_session()
        for session in (gate.token, other):
            cloud.jobs[session] = {
                "id": session, "session_id": session, "tags": [], "status": "Queued", "at": 0.0, "polls": 0,
                "state": {"status": "Queued"}, "params": {}, "takes_s": 0.0,
            }  # fmt: skip
        everything = Reply(200, {"jobs": [{"id": "a", "session_id": other}, {"id": "b", "session_id": gate.token}, 7]})
        cloud.fault("status", method="GET", path="/jobs$", reply=everything)
        assert [row["id"] for row in gate("GET", "jobs", session_id=other).document()["jobs"]] == ["b"]

    @pytest.mark.parametrize("body", ["", "[]", "[" * 100_000, "nonsense", "1" * 10_000])
    def test_what_is_no_object_is_no_job(self, cloud, gate, body):
        with pytest.raises(QtandemError) as caught:
            gate("POST", "jobs", body)
        assert caught.value.code == "bad-request"
        assert [row["event"] for row in cloud.log] == ["acquire"]

    @pytest.mark.parametrize("tags", ["qtandem", {"a": 1}, 7, None, [1, "mine", None]])
    def test_tags_are_texts_and_the_mark_stays(self, cloud, gate, tags):
        job = {"program_id": "sampler", "backend": BACKEND, "params": {"pubs": []}, "tags": tags}
        made = gate("POST", "jobs", job)
        assert cloud.jobs[made.document()["id"]]["tags"][-1] == "qtandem"

    @pytest.mark.parametrize(
        "path", ["backends/ibm_fake/../ibm_other/status", "backends/ibm_fake/x/status", "backends"]
    )
    def test_only_the_leased_backend_is_described(self, cloud, gate, path):
        if path == "backends":
            assert gate("GET", path).status == 200
            return
        with pytest.raises(QtandemError) as caught:
            gate("GET", path)
        assert caught.value.code == "not-allowed"

    def test_answers_hold_no_credential(self, cloud, gate):
        token = next(iter(cloud.tokens))
        body = {"errors": [{"message": f"{token} of {APIKEY} for {CRN}"}]}
        cloud.fail(500, path="/backends$", body=body, headers={"Authorization": token})
        answer = gate("GET", "backends")
        assert (answer.status, answer.body) == (500, json.dumps({"errors": [{"message": f"*** of *** for {CRN}"}]}))


def test_short_words_are_no_secrets():
    assert cleaned("a test of it", ("test", "", "of")) == "a test of it"


def test_nothing_hurts_the_parser():
    assert [parsed(text) for text in ("[" * 10**6, "{", "", '"\\ud800"', "9" * 10**5)] == [
        None,
        None,
        None,
        "\ud800",
        None,
    ]
