# ---- hand-over of a run's environment, from core/hookparts/handover.py
import errno
import os
import shutil
import struct

# qtandem:include lines.py


def runs_directory():
    """A descriptor of RUNS, which belongs to root."""
    os.makedirs(RUNS, 0o711, exist_ok=True)
    runs = os.open(RUNS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if os.fstat(runs).st_uid != os.geteuid():
        os.close(runs)
        raise OSError("%s does not belong to root" % RUNS)
    os.fchmod(runs, 0o711)
    return runs


def remove_environment(name):
    """Take RUNS/NAME away, if it is there."""
    if os.path.lexists(os.path.join(RUNS, name)):
        shutil.rmtree(os.path.join(RUNS, name))


def give_to_read(descriptor, uid, gid):
    """Let the user read root's file, and neither write to it nor change its mode: /run is small, and all need it."""
    if uid == os.geteuid():
        return
    # The form of posix_acl(5) in an extended attribute: tag, permissions and id of owner, user, group, mask, others.
    entries = ((0x01, 4, -1), (0x02, 4, uid), (0x04, 0, -1), (0x10, 4, -1), (0x20, 0, -1))
    packed = b"".join(struct.pack("<HHI", tag, rights, who & 0xFFFFFFFF) for tag, rights, who in entries)
    try:
        os.setxattr(descriptor, "system.posix_acl_access", struct.pack("<I", 2) + packed)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        # A file system without lists of rights: the file is the user's own.
        os.fchown(descriptor, uid, gid)


def write_environment(name, uid, gid, text):
    """RUNS/NAME/environment, readable by the job's user alone; never follows what somebody put in the way."""
    runs = runs_directory()
    try:
        remove_environment(name)
        os.mkdir(name, 0o700, dir_fd=runs)
        place = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=runs)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open("environment", flags, 0o600, dir_fd=place), "w") as stream:
                stream.write(text)
                stream.flush()
                give_to_read(stream.fileno(), uid, gid)
            if uid != os.geteuid():
                os.fchmod(place, 0o711)
        finally:
            os.close(place)
    finally:
        os.close(runs)


# ---- end of core/hookparts/handover.py
