from qtandem.core.resources import Catalog, Resource
from qtandem.core.settings import DaemonSettings, ManagerSettings, Settings
from qtandem.local.doctor import check
from qtandem.local.store import State


async def test_doctor_tells_what_is_missing_and_then_that_all_is_well(machine):
    settings = Settings(
        daemon=DaemonSettings(socket=machine.daemon.path),
        managers={"local": ManagerSettings(options={"state_dir": str(machine.folder)})},
    )
    catalog = Catalog({"fez": Resource("fez", "simulator", "fez")})
    machine.folder.chmod(0o755)
    faults = {found.name for found in check(settings, catalog) if not found.ok}
    assert faults == {"folder", "daemon", "runner", "sensor fez"}

    machine.folder.chmod(0o700)
    machine.daemon.routes["GET /healthz"] = {"healthy": True}
    await machine.run()
    await machine.open()
    await machine.in_state(await machine.submit("pass"), State.COMPLETED)
    assert [found for found in check(settings, catalog) if not found.ok] == []


def test_doctor_without_the_section():
    [found] = check(Settings(), Catalog({}))
    assert "[managers.local]" in found.detail
