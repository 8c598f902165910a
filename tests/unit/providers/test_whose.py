"""Whose credential a call goes with, and that nobody else's call meets it in a worker."""

import asyncio

from qtandem.core.providers.base import ProviderSpec


async def key(workers, **more):
    return await workers.call("a", "task_logs", "setting:api_key", **more)


def pid(answer):
    return answer.rpartition(" ")[2]


async def test_a_users_secrets_go_before_the_sites_in_a_worker_of_their_own(pool):
    workers = pool(a={"api_key": "site", "region": "x"}, limit=8)
    site, ann, bob = [
        await key(workers, purpose="execute", **more)
        for more in ({}, {"secrets": {"api_key": "ann's"}}, {"secrets": {"api_key": "bob's"}})
    ]
    assert [answer.rpartition(" ")[0] for answer in (site, ann, bob)] == ["site", "ann's", "bob's"]
    assert len({pid(site), pid(ann), pid(bob)}) == 3
    assert pid(await key(workers, purpose="execute", secrets={"api_key": "ann's"})) == pid(ann)


async def test_secrets_whose_names_do_not_tell_are_kept_apart_too(pool):
    workers = pool(a={"bucket": "site"}, limit=2)
    site = await workers.call("a", "task_logs", "setting:bucket")
    own = await workers.call("a", "task_logs", "setting:bucket", secrets={"bucket": "own"})
    assert own.startswith("own ")
    assert pid(own) != pid(site)


async def test_forgotten_secrets_have_no_worker_left(pool):
    workers = pool(a={"api_key": "site"})
    site, own = await key(workers), await key(workers, secrets={"api_key": "own"})
    await workers.forget({"api_key": "own"})
    assert pid(await key(workers)) == pid(site)
    assert pid(await key(workers, secrets={"api_key": "own"})) != pid(own)


async def test_observing_may_have_another_credential_than_executing(pool):
    workers = pool(a={})
    run, look = ({"a": ProviderSpec("a", "scripted", {"api_key": word})} for word in ("run", "look"))
    await workers.update(run, look)
    assert (await key(workers, purpose="observe")).startswith("look ")
    assert (await key(workers, purpose="execute")).startswith("run ")


async def test_a_new_secret_gets_a_new_worker_and_the_call_under_way_ends_with_the_old_one(pool):
    workers = pool(a={"api_key": "old"})
    old = pid(await key(workers))
    under_way = asyncio.create_task(workers.call("a", "task_logs", "sleep:0.3"))
    await asyncio.sleep(0.1)
    await workers.update({"a": ProviderSpec("a", "scripted", {"api_key": "new"})})
    assert await under_way == old
    fresh = await key(workers)
    assert fresh.startswith("new ")
    assert pid(fresh) != old
