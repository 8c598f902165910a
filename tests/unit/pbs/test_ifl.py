"""The bindings of libpbs, on a stand-in with its ABI; on the real one too where QTANDEM_PBS_PREFIX names it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qtandem.pbs import ifl, ifl_build
from qtandem.pbs.ifl import Attribute, Command, Connection, Library, Object, Op, PbsError
from tests.fakes.pbs.standin import libpbs

FEZ = Attribute("Resource_List", "1", "qpu_fez")


@pytest.fixture
def library() -> Library:
    return Library(libpbs())


@pytest.fixture
def connection(library: Library) -> Iterator[Connection]:
    made = library.connect()
    yield made
    made.close()


def live(library: Library) -> int:
    from cffi import FFI

    ffi = FFI()
    ffi.cdef("int stand_in_live(void);")
    return int(ffi.dlopen(str(libpbs())).stand_in_live())


def test_the_bindings_are_those_of_the_declarations(tmp_path: Path) -> None:
    ifl_build.write(tmp_path / "again.py")
    assert (tmp_path / "again.py").read_text() == ifl_build.MODULE.read_text(), "python -m qtandem.pbs.ifl_build"


def test_a_job_from_its_submission_to_its_end(library: Library, connection: Connection) -> None:
    id = connection.submit([FEZ, Attribute("Variable_List", "A=b,C=käse")], queue="main")
    [job] = connection.jobs(id)
    assert (job.name, job.get("job_state"), job.get("Resource_List.qpu_fez")) == (id, "Q", "1")
    assert (job.get("queue"), job.get("Variable_List")) == ("main", "A=b,C=käse")
    connection.hold(id, "s")
    assert connection.jobs(id, ["job_state"])[0].values == {"job_state": "H"}
    connection.release(id, "s")
    connection.alter(id, [Attribute("comment", "a, 'b' \"c\"")])
    connection.run(id, "c1/0")
    connection.rerun(id)
    [job] = connection.jobs(id)
    assert (job.get("comment"), job.get("run_version")) == ("a, 'b' \"c\"", "1")
    connection.delete(id)
    with pytest.raises(PbsError) as caught:
        connection.jobs(id)
    assert (caught.value.code, caught.value.text) == (ifl.UNKNOWN_JOB, "Unknown Job Id")
    assert live(library) == 0, "everything that the library lent was given back"


def test_jobs_are_selected_by_what_they_ask_for(connection: Connection) -> None:
    wanted = connection.submit([Attribute("Resource_List", "2", "qpu_chosen")])
    connection.submit([])
    chosen = [Attribute("job_state", "QHW", op=Op.EQ), Attribute("Resource_List", "0", "qpu_chosen", Op.GT)]
    assert [job.name for job in connection.select(chosen)] == [wanted]
    assert len(connection.jobs()) >= 2
    assert connection.select([Attribute("job_state", "F", op=Op.EQ)]) == []


def test_the_server_and_its_vnodes(connection: Connection) -> None:
    connection.manage(Command.CREATE, Object.RESOURCE, "qpu_new", [Attribute("type", "long"), Attribute("flag", "q")])
    connection.manage(Command.SET, Object.SERVER, None, [Attribute("resources_available", "2", "qpu_new")])
    assert connection.server().get("resources_available.qpu_new") == "2"
    assert [vnode.name for vnode in connection.vnodes()] == ["c1"]
    with pytest.raises(PbsError) as caught:
        connection.manage(Command.SET, Object.SERVER, "", [Attribute("resources_available", "2", "nosuch")])
    assert caught.value.text == "Unknown resource"


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.hold(None), lambda c: c.hold("1.pbs", None), lambda c: c.release(None), lambda c: c.alter(None, []),
        lambda c: c.run(None), lambda c: c.rerun(None), lambda c: c.delete(None), lambda c: c.alter("", []),
        lambda c: c.hold("1\x002"), lambda c: c.submit([Attribute(None)]),  # type: ignore[arg-type]
        lambda c: c.submit([Attribute("a", None)]), lambda c: c.jobs("7\x00"),  # type: ignore[arg-type]
        lambda c: c.manage(Command.SET, Object.QUEUE, None, []),
        lambda c: c.hold("99999.pbs"), lambda c: c.vnodes("nosuch"),
    ],
)  # fmt: skip
def test_what_is_missing_is_an_error_and_no_crash(connection: Connection, call: Any) -> None:
    with pytest.raises(PbsError) as caught:
        call(connection)
    assert caught.value.text


@pytest.mark.parametrize(
    "call", [lambda c: c.vnodes(None), lambda c: c.jobs(None, None, None), lambda c: c.server(None)]
)
def test_what_may_be_missing_may(connection: Connection, call: Any) -> None:
    call(connection)


def test_a_closed_connection_is_an_error(library: Library) -> None:
    connection = library.connect()
    connection.close()
    connection.close()
    for call in (connection.server, connection.jobs, lambda: connection.hold("1.pbs")):
        with pytest.raises(PbsError, match="closed"):
            call()


def test_no_server_is_an_error_with_its_name(library: Library) -> None:
    with pytest.raises(PbsError, match="cannot connect to elsewhere"):
        library.connect("elsewhere")


def test_a_library_that_is_not_there(tmp_path: Path) -> None:
    assert ifl.find(str(tmp_path)) is None
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libpbs.so.0").touch()
    assert ifl.find(str(tmp_path)) == tmp_path / "lib" / "libpbs.so.0"
    with pytest.raises(OSError, match="libpbs"):
        Library(tmp_path / "lib" / "libpbs.so.0")


def test_the_real_library_takes_the_same_calls() -> None:
    prefix = os.environ.get("QTANDEM_PBS_PREFIX", "")
    path = ifl.find(prefix) if prefix else None
    if path is None:
        pytest.skip("QTANDEM_PBS_PREFIX names no PBS with a libpbs")
    connection = Library(path).connect()
    try:
        assert connection.server().get("server_state")
        connection.vnodes()
        with pytest.raises(PbsError) as caught:
            connection.hold("999999999")
        assert caught.value.text
    finally:
        connection.close()
