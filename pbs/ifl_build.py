"""Writes `_ifl_abi.py`, the out-of-line bindings of libpbs: `python -m qtandem.pbs.ifl_build`.

Out of line, so that nothing parses C at run time and importing takes a millisecond; in ABI mode, so that it works
with the library of any site, without its headers.
"""

from __future__ import annotations

from pathlib import Path

import cffi

MODULE = Path(__file__).with_name("_ifl_abi.py")
DECLARATIONS = """
struct attrl { struct attrl *next; char *name; char *resource; char *value; int op; };
struct batch_status { struct batch_status *next; char *name; struct attrl *attribs; char *text; };

int *__pbs_errno_location(void);
char *pbs_default(void);
int pbs_connect(const char *server);
int pbs_disconnect(int connection);
char *pbs_geterrmsg(int connection);
void pbs_statfree(struct batch_status *status);
struct batch_status *pbs_statserver(int connection, struct attrl *wanted, const char *extend);
struct batch_status *pbs_statvnode(int connection, const char *name, struct attrl *wanted, const char *extend);
struct batch_status *pbs_statjob(int connection, const char *id, struct attrl *wanted, const char *extend);
struct batch_status *pbs_selstat(int connection, struct attrl *chosen, struct attrl *wanted, const char *extend);
int pbs_holdjob(int connection, const char *id, const char *kinds, const char *extend);
int pbs_rlsjob(int connection, const char *id, const char *kinds, const char *extend);
int pbs_alterjob(int connection, const char *id, struct attrl *values, const char *extend);
int pbs_manager(int connection, int command, int object, const char *name, struct attrl *values, const char *extend);
int pbs_runjob(int connection, const char *id, const char *location, const char *extend);
int pbs_rerunjob(int connection, const char *id, const char *extend);
char *pbs_submit(int connection, struct attrl *values, const char *script, const char *queue, const char *extend);
int pbs_deljob(int connection, const char *id, const char *extend);
void free(void *memory);
"""


def write(path: Path = MODULE) -> None:
    ffi = cffi.FFI()
    ffi.cdef(DECLARATIONS)
    ffi.set_source("qtandem.pbs._ifl_abi", None)
    ffi.emit_python_code(str(path))


if __name__ == "__main__":
    write()
