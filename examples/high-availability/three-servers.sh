#!/bin/sh
# Three servers on one store, on one machine: the leader is killed, and a job that runs does not notice.
#
#   examples/high-availability/three-servers.sh postgresql://roost@localhost/roost
#   examples/high-availability/three-servers.sh etcd://localhost:2379/trial
#
# The store should be empty: what is left in it afterwards is sealed with a key that is thrown away. The servers listen
# on 127.0.0.1, .2 and .3, which every Linux has, each on the ports 8420 and 8421 (or $PORT and the next one).
set -eu

STORE=${1:?"the URL of an empty store: postgresql://... or etcd://..."}
PORT=${PORT:-8420}
DIR=$(mktemp -d)
cd "$DIR"

finish() {
    # Agents first: they say goodbye to a server that is still there.
    for process in agent s1 s2 s3; do
        [ ! -f "$process.pid" ] || kill "$(cat "$process.pid")" 2>/dev/null || true
        wait "$(cat "$process.pid" 2>/dev/null)" 2>/dev/null || true
    done
    rm -rf "$DIR"
}
trap finish EXIT
trap 'exit 130' INT TERM

# Tell what is typed, and type it.
typed() {
    echo "\$ $*"
    "$@"
}

# Try something until it works; a failed attempt says nothing.
until_works() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 200 ] || { echo "not in time: $*" >&2; tail -n 5 ./*.log >&2; exit 1; }
        sleep 0.1
    done
}

# What all servers share: the store, the key that seals what is secret in it, and the token of the API.
umask 077
openssl rand -hex 32 > cluster.key
ROOST_TOKEN=$(openssl rand -hex 32)
export ROOST_TOKEN

start_server() { # NAME ADDRESS
    roost server --store "$STORE" --name "$1" --data "$1" --listen "$2:$PORT" --agents-listen "$2:$((PORT + 1))" \
        --key-file cluster.key > "$1.log" 2>&1 &
    echo $! > "$1.pid"
}

standing_by() { # HOW MANY
    [ "$(roost leader | grep -c ' standby ')" -eq "$1" ]
}

leader() {
    roost leader | awk '$2 == "leader" { print $1 }'
}

start_server s1 127.0.0.1
start_server s2 127.0.0.2
start_server s3 127.0.0.3

# Clients know all of them, and use whichever answers.
cat > client.toml <<END
url = "http://127.0.0.1:$PORT,http://127.0.0.2:$PORT,http://127.0.0.3:$PORT"
token = "$ROOST_TOKEN"
END
export ROOST_CONFIG="$DIR/client.toml"
until_works standing_by 2
typed roost leader

# A node. Its join token names all servers, too.
roost agent --join "$(roost join-tokens create 2>/dev/null)" --name n1 --dir n1 > agent.log 2>&1 &
echo $! > agent.pid
node_is_ready() {
    roost nodes | grep -q '^n1  *ready'
}
until_works node_is_ready

typed roost run -d --name steady --cpu 100m -- sleep 5
typed roost wait steady --for running --timeout 20s

LEADER=$(leader)
echo "\$ kill -9 ... # $LEADER, which leads"
kill -9 "$(cat "$LEADER.pid")"
typed roost run -d --name after --cpu 100m -- true || [ $? -eq 4 ] # 4: taken in; the node is still on its way here
typed roost wait after --timeout 20s
typed roost leader

# The dead one comes back and stands by; then the lead goes to it in order, as before an upgrade of the others.
case $LEADER in s1) start_server s1 127.0.0.1 ;; s2) start_server s2 127.0.0.2 ;; s3) start_server s3 127.0.0.3 ;; esac
until_works standing_by 2
typed roost leader transfer --to "$LEADER"

typed roost wait steady --timeout 20s
typed roost show steady.0
