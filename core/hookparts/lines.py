# ---- a run's environment as lines, from core/hookparts/lines.py
import re

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def environment_lines(variables, say):
    """`NAME=value` a line, for a shell that reads line by line; what has no place in that form is left out."""
    lines = []
    for name, value in sorted(variables.items()):
        if NAME.match(name) and isinstance(value, str) and not re.search(r"[\x00\r\n]", value):
            lines.append("%s=%s\n" % (name, value))
        else:
            say("left out the variable %r: its name or value cannot be passed on" % (name,))
    return "".join(lines)


# ---- end of core/hookparts/lines.py
