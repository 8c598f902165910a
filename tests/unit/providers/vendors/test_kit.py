"""The kit that plays vendors."""

import time

import pytest
import requests

from tests.fakes.vendors.kit import FakeServer, Reply, page, route


class Shop(FakeServer):
    harmless = ("/token",)

    def __init__(self):
        self.bought = []
        super().__init__()

    @route("GET", "/things/(?P<name>[a-z]+)")
    def thing(self, request, name):
        return Reply(body={"name": name, "parts": [{"size": 1}]})

    @route("POST", "/things")
    def buy(self, request):
        self.bought.append(request.json()["name"])
        return Reply(201)

    @route("POST", "/token")
    def token(self, request):
        return Reply(body={})


@pytest.fixture
def shop():
    with Shop() as server:
        yield server


def test_it_answers_and_keeps_a_log(shop):
    assert requests.get(f"{shop.url}/things/cup", params={"a": ["1", "2"]}).json()["name"] == "cup"
    requests.post(f"{shop.url}/token")
    requests.post(f"{shop.url}/things", json={"name": "jug"})
    assert [(each.method, each.path) for each in shop.writes()] == [("POST", "/things")]
    assert shop.seen[0].query == {"a": ["1", "2"]}
    assert requests.get(f"{shop.url}/elsewhere").status_code == 404
    assert requests.delete(f"{shop.url}/things").status_code == 405


def test_faults_strike_what_they_match_so_often(shop):
    shop.fail(429, method="GET", path="things", times=2, retry_after=3)
    statuses = [requests.get(f"{shop.url}/things/cup") for _ in range(3)]
    assert [each.status_code for each in statuses] == [429, 429, 200]
    assert statuses[0].headers["Retry-After"] == "3"


def test_an_answer_gets_lost_after_the_work_was_done(shop):
    shop.fault("drop", method="POST", times=1, after=True)
    with pytest.raises(requests.ConnectionError):
        requests.post(f"{shop.url}/things", json={"name": "jug"})
    assert shop.bought == ["jug"]


def test_answers_are_spoiled(shop):
    url = f"{shop.url}/things/cup"
    for kind in ("malformed", "garbage"):
        shop.fault(kind, times=1)
        with pytest.raises(requests.JSONDecodeError):
            requests.get(url).json()
    shop.fault("unknown", times=1)
    assert requests.get(url).json()["parts"][0]["brand_new"]
    shop.fault("null", times=1, fields=("size",))
    assert requests.get(url).json()["parts"] == [{"size": None}]
    shop.fault("missing", times=1, fields=("size", "name"))
    assert requests.get(url).json() == {"parts": [{}]}


def test_hanging_ends_with_the_healing_and_the_clock_can_be_wrong(shop):
    shop.fault("hang")
    with pytest.raises(requests.ReadTimeout):
        requests.get(f"{shop.url}/things/cup", timeout=0.2)
    shop.heal()
    shop.skew_s = 7200
    before = time.time()
    assert requests.get(f"{shop.url}/things/cup").ok
    assert shop.now() - before >= 7200


def test_pages():
    assert page([1, 2, 3], 0, 2) == ([1, 2], 2)
    assert page([1, 2, 3], 2, 2) == ([3], None)
