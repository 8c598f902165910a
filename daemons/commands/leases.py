"""`qtandem leases`."""

from __future__ import annotations

from qtandem.daemons.commands.options import Json


def leases(json: Json = False) -> None:
    """Open leases: yours, or everybody's for root."""
    from qtandem.core.client.calls import as_rows
    from qtandem.daemons.commands.output import api, moment, print_json, print_table

    rows = as_rows(api().get("leases"), "leases")
    if json:
        print_json({"leases": rows})
        return
    print_table(
        ["ID", "RESOURCE", "SLOTS", "STATE", "OWNER", "USER", "SINCE", "EXPIRES", "REASON"],
        (
            [
                row["id"],
                row["resource"],
                row["slots"],
                row["state"],
                row["owner"],
                _user(row["uid"]),
                moment(row["changed_at"]),
                moment(row["expires_at"]),
                row["reason"],
            ]
            for row in rows
        ),
        empty="no open leases",
    )


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
