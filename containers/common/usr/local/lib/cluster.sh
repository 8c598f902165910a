# What the hosts of all test clusters have in common; read by each manager's own script, `cluster`, which sets
#   MANAGER   its name
#   NODES     the hosts that have a relay
#   DAEMON    the host of qtandemd
#   KEPT      NAME=VALUE... of its environment that its daemons need, if any
# and has the functions
#   own_pid DAEMON     the process of one of the manager's daemons; status 2 for a name that is none of them
#   own_start DAEMON   starts one of them; fails for a name that is none of them
#   controller, node   bring up a host of that kind
# shellcheck shell=bash

wait_for() { # SECONDS COMMAND...
    local end=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "cluster: gave up waiting for: $*" >&2; return 1; }
        sleep 0.1
    done
}
port_open() { (exec 3<>"/dev/tcp/$1/$2"); }
gone() { ! grep -q '^State:[[:space:]]*[^Z]' "/proc/$1/status" 2>/dev/null; }

# ---- daemons
noted_pid() { # FILE NAME
    local pid
    pid=$(cat "$1" 2>/dev/null) && [ -n "$pid" ] && [ -d "/proc/$pid" ] || return 1
    # A number from before a restart of the container may be another process by now.
    tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q "$2" || return 1
    echo "$pid"
}
pid_of() {
    local pid status=0
    pid=$(own_pid "$1") || status=$?
    [ $status -ne 2 ] || { status=0; pid=$(noted_pid "/run/cluster/$1.pid" "$1") || status=1; }
    [ $status -eq 0 ] && ! gone "$pid" || return 1
    echo "$pid"
}
background() { # NAME USER COMMAND...
    local name=$1 user=$2; shift 2
    mkdir -p /run/cluster /var/log/cluster
    # In a subshell, so that the daemon becomes a child of the container's init, which reaps it.
    (
        # shellcheck disable=SC2086
        setsid setpriv --reset-env --reuid "$user" --regid "$user" --init-groups -- env ${KEPT-} "$@" \
            </dev/null >>"/var/log/cluster/$name.log" 2>&1 &
        echo $! >"/run/cluster/$name.pid"
    )
}
start() {
    pid_of "$1" >/dev/null && return
    case $1 in
        launcher)
            install -d /run/qtandem-launcher
            background launcher root qtandem-launcher
            wait_for 30 launcher_listens ;;
        qtandemd)
            runtime_directory
            start launcher
            background qtandemd qtandem qtandemd
            wait_for 30 healthy ;;
        relay)
            runtime_directory
            background relay qtandem qtandem-relay
            wait_for 30 test -S /run/qtandem/qtandem.sock ;;
        deadman)
            runtime_directory
            install -d -o qtandem-publisher -m 755 /run/qtandem-deadman
            background deadman qtandem-publisher \
                env RUNTIME_DIRECTORY=/run/qtandem-deadman qtandem-deadman --manager "$MANAGER" ;;
        *)
            own_start "$1" ;;
    esac
}
stop() {
    local pid; pid=$(pid_of "$1") || return 0
    kill -TERM "$pid"
    wait_for 30 gone "$pid"
}
kill_hard() {
    local pid; pid=$(pid_of "$1") || { echo "cluster: $1 does not run" >&2; return 1; }
    kill -KILL "$pid"
    wait_for 10 gone "$pid"
}
unknown() { echo "cluster: unknown daemon $1" >&2; return 2; }
launcher_listens() { grep -q ' 00010000 .* /run/qtandem-launcher/launcher.sock$' /proc/net/unix; }
healthy() { curl -sf -m 2 --unix-socket /run/qtandem/qtandem.sock http://qtandem/v1/healthz; }
# As the tmpfiles.d file of the package has it.
runtime_directory() { install -d -o root -g qtandem -m 1775 /run/qtandem; install -d -m 711 /run/qtandem/runs; }

# ---- what an admin does by hand on a new site, see docs
configure_site() {
    install -d -o qtandem -g qtandem -m 711 /var/lib/qtandem
    install -d -o qtandem-worker -g qtandem-worker -m 700 /var/lib/qtandem/simulator
    install -d -o qtandem -g qtandem -m 700 /etc/qtandem/secrets
    configure_node
    local file
    for file in /etc/qtandem/master.key /etc/qtandem/secrets/direct; do
        [ -e $file ] && continue
        (umask 077; head -c 32 /dev/urandom | base64 >$file)
        chown qtandem: $file
    done
}
configure_node() {
    install -d -o qtandem -g qtandem -m 755 /etc/qtandem/tls
    # Vendors' keys are for the daemon's host alone.
    if [ "$DAEMON" = "$(hostname)" ]; then
        chown qtandem: /etc/qtandem/qrmi_config.json; chmod 600 /etc/qtandem/qrmi_config.json
    else
        rm -f /etc/qtandem/qrmi_config.json
    fi
}
install_hooks() {
    local log=/var/log/cluster/install.log
    qtandem install "$MANAGER" --apply >>$log 2>&1 || { cat $log >&2; return 1; }
}
offer_enrolment() {
    local node
    qtandem relay init --json | jq -r .fingerprint >/run/enrolment/fingerprint.new
    for node in $NODES; do
        (umask 077; qtandem relay token "$node" --json | jq -r .token >"/run/enrolment/$node.token")
    done
    mv /run/enrolment/fingerprint.new /run/enrolment/fingerprint
}
enrol() {
    [ ! -e /etc/qtandem/tls/node.pem ] || return 0
    wait_for 90 test -s /run/enrolment/fingerprint
    wait_for 60 port_open "$DAEMON" 7447
    qtandem relay enrol --server "$DAEMON:7447" --fingerprint "$(cat /run/enrolment/fingerprint)" \
        --token-file "/run/enrolment/$(hostname).token"
}
homes() { local user; for user in alice bob; do install -d -m 700 -o $user -g $user /home/$user; done; }

# ---- the words of the command
common_word() {
    case ${1-} in
        controller|node)
            # As a boot does.
            rm -rf /run/cluster-ready /run/cluster /run/qtandem
            mkdir -p /var/log/cluster
            "$1"
            echo "$(hostname) is up"
            exec sleep infinity ;;
        start|stop) "$1" "$2" ;;
        kill) kill_hard "$2" ;;
        pid) pid_of "$2" ;;
        ready) [ -e /run/cluster-ready ] ;;
        *) sed -n 2,3p "$0" >&2; exit 2 ;;
    esac
}
