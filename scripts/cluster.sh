#!/usr/bin/env bash
# A cluster of nodes on this machine, for trying things: start, break, look.
set -euo pipefail

help() {
  cat <<'TEXT'
usage: scripts/cluster.sh COMMAND

  start [N]   start N nodes (3), n1 on the default ports, and wait until clients
              are served; with nodes that are there already, start those that are down
  status      say what runs where
  kill N      kill -9 node N (1, 2, … or its name)
  pause N     stop node N with SIGSTOP, as a hung machine would
  resume N    let a paused node go on, or start one that is down
  logs N      print what node N has logged (-f: and follow)
  stop        stop all nodes in order; their data stays
  clean       delete the data of a cluster that is stopped

Data is in $MILLRACE_CLUSTER_DIR, or ./millrace-cluster. $MILLRACE_BINARY is the
program; without it bin/millrace is built. Ports on localhost: streams 5552, 5553, …,
the page and the API 7080, 7090, …; $MILLRACE_CLUSTER_PORT=P takes P, P+1, … instead,
ten for each node.
Try: bin/millrace stream create orders, then kill 1, then status.
TEXT
}

here=$(cd "$(dirname "$0")/.." && pwd)
dir=${MILLRACE_CLUSTER_DIR:-millrace-cluster}
case $dir in /*) ;; *) dir=$PWD/$dir ;; esac
ready_within=30 # seconds, for start
stop_within=35  # a node's own patience is 30 s

die() {
  echo "cluster.sh: $1" >&2
  shift
  for line in "$@"; do echo "  $line" >&2; done
  exit 1
}

nodes() { [ -e "$dir/nodes" ] && seq "$(cat "$dir/nodes")"; }

# number NAME: 2 of "2" and "n2".
number() {
  local k=${1#n}
  [ -n "${1:-}" ] || die "which node?" "scripts/cluster.sh status    lists them"
  nodes | grep -qx -- "$k" || die "there is no node $1" "scripts/cluster.sh status    lists them"
  echo "$k"
}

# port K WHAT: where node K listens.
port() {
  local at
  case $2 in stream) at=0 ;; http) at=1 ;; node) at=2 ;; gossip) at=3 ;; esac
  if [ -n "${MILLRACE_CLUSTER_PORT:-}" ]; then
    echo $((MILLRACE_CLUSTER_PORT + ($1 - 1) * 10 + at))
    return
  fi
  case $2 in
    stream) echo $((5552 + $1 - 1)) ;;
    http) echo $((7080 + ($1 - 1) * 10)) ;;
    node) echo $((7081 + ($1 - 1) * 10)) ;;
    gossip) echo $((7946 + $1 - 1)) ;;
  esac
}

# born PID: when the process began; nothing if it is gone. A number may be given
# to another process later, so a node is its number and its birth.
born() {
  if [ -e /proc/self/stat ]; then
    sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20 || true
  else
    LC_ALL=C ps -o lstart= -p "$1" 2>/dev/null | tr -s ' ' - || true
  fi
}

# pid K: node K's process; nothing if it does not run.
pid() {
  local number birth
  [ -e "$dir/n$1.pid" ] || return 0
  read -r number birth <"$dir/n$1.pid" || return 0
  [ -n "$birth" ] && [ "$(born "$number")" = "$birth" ] || return 0
  case $(ps -o stat= -p "$number") in Z*) ;; *) echo "$number" ;; esac
}

paused() { case $(ps -o stat= -p "$1" 2>/dev/null) in T*) return 0 ;; *) return 1 ;; esac; }

binary() {
  if [ -n "${MILLRACE_BINARY:-}" ]; then
    [ -x "$MILLRACE_BINARY" ] || die "\$MILLRACE_BINARY is $MILLRACE_BINARY, which can't be run"
    echo "$MILLRACE_BINARY"
    return
  fi
  (cd "$here" && go build -o bin/millrace ./cmd/millrace) || die "millrace can't be built" "Go is needed; see README"
  echo "$here/bin/millrace"
}

launch() { # K BINARY
  local k=$1 join="" n
  for n in $(nodes); do join+="${join:+,}localhost:$(port "$n" node)"; done
  : >"$dir/n$k.out"
  nohup "$2" server --data-dir "$dir/n$k" --node-name "n$k" --advertised-host localhost \
    --stream-addr "localhost:$(port "$k" stream)" --http-addr "localhost:$(port "$k" http)" \
    --node-addr "localhost:$(port "$k" node)" --gossip-addr "localhost:$(port "$k" gossip)" \
    --cluster-secret-file "$dir/secret" --bootstrap-expect "$(cat "$dir/nodes")" --join "$join" \
    </dev/null >"$dir/n$k.out" 2>>"$dir/n$k.log" &
  echo "$! $(born $!)" >"$dir/n$k.pid"
}

# await K…: until those nodes are ready.
await() {
  local end=$((SECONDS + ready_within)) k
  for k in "$@"; do
    until grep -q 'is ready after' "$dir/n$k.out"; do
      [ -n "$(pid "$k")" ] || { tail -n 5 "$dir/n$k.log" >&2; die "node n$k does not start" "scripts/cluster.sh logs $k    tells more"; }
      [ $SECONDS -lt $end ] || die "node n$k is not ready after $ready_within s" \
        "a majority of the nodes must run; scripts/cluster.sh status    lists them" "scripts/cluster.sh logs $k    tells more"
      sleep 0.05
    done
  done
}

start() {
  local count=${1:-} begin k program started=()
  case $count in '' | [1-9] | [1-9][0-9]) ;; *) die "\"$count\" is no number of nodes" ;; esac
  if [ -e "$dir/nodes" ]; then
    [ -z "$count" ] || [ "$count" = "$(cat "$dir/nodes")" ] || die "the cluster in $dir has $(cat "$dir/nodes") nodes, not $count" \
      "scripts/cluster.sh start    starts those" "scripts/cluster.sh stop && scripts/cluster.sh clean    deletes it"
  else
    mkdir -p "$dir"
    [ -z "$(ls -A "$dir")" ] || die "$dir is not empty and holds no cluster" "MILLRACE_CLUSTER_DIR=ELSEWHERE scripts/cluster.sh start"
    (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$dir/secret")
    echo "${count:-3}" >"$dir/nodes"
  fi
  program=$(binary)
  begin=$(date +%s%N)
  for k in $(nodes); do
    [ -z "$(pid "$k")" ] || continue
    launch "$k" "$program"
    started+=("$k")
  done
  [ ${#started[@]} -gt 0 ] || { echo "all nodes run already"; status; return; }
  await "${started[@]}"
  echo "${#started[@]} nodes are ready after $((($(date +%s%N) - begin) / 1000000)) ms"
  status
  echo "try: $program stream create orders${MILLRACE_CLUSTER_PORT:+ --addr http://localhost:$(port 1 http)}"
}

status() {
  local k p state
  [ -e "$dir/nodes" ] || { echo "no cluster in $dir"; return; }
  printf '%-5s %-9s %-8s %-16s %s\n' node state process streams page
  for k in $(nodes); do
    p=$(pid "$k")
    if [ -z "$p" ]; then state=down; elif paused "$p"; then state=paused; else state=runs; fi
    printf '%-5s %-9s %-8s %-16s %s\n' "n$k" "$state" "${p:--}" "localhost:$(port "$k" stream)" "http://localhost:$(port "$k" http)"
  done
}

# gone PID SECONDS: waits until a process is gone.
gone() {
  local end=$((SECONDS + $2))
  while kill -0 "$1" 2>/dev/null; do
    case $(ps -o stat= -p "$1") in Z*) return 0 ;; esac
    [ $SECONDS -lt $end ] || return 1
    sleep 0.05
  done
}

stop() {
  local k p all=()
  [ -e "$dir/nodes" ] || { echo "no cluster in $dir"; return; }
  for k in $(nodes); do
    p=$(pid "$k")
    [ -n "$p" ] || continue
    ! paused "$p" || kill -CONT "$p"
    kill "$p" && all+=("$p")
  done
  for p in ${all[@]+"${all[@]}"}; do
    gone "$p" $stop_within || { echo "process $p has not ended after $stop_within s: killed" >&2; kill -9 "$p"; gone "$p" 5; }
  done
  echo "${#all[@]} nodes stopped"
}

signal() { # NAME SIGNAL
  local k p
  k=$(number "$1")
  p=$(pid "$k")
  [ -n "$p" ] || die "node n$k does not run" "scripts/cluster.sh resume $k    starts it"
  kill "-$2" "$p"
  [ "$2" != KILL ] || gone "$p" 5
}

resume() {
  local k p
  k=$(number "$1")
  p=$(pid "$k")
  if [ -z "$p" ]; then
    launch "$k" "$(binary)"
    await "$k"
    echo "n$k is ready"
  elif paused "$p"; then
    kill -CONT "$p"
  else
    echo "n$k runs already"
  fi
}

clean() {
  local k
  [ -e "$dir/nodes" ] || { echo "no cluster in $dir"; return; }
  for k in $(nodes); do [ -z "$(pid "$k")" ] || die "node n$k still runs" "scripts/cluster.sh stop"; done
  for k in $(nodes); do rm -rf "$dir/n$k" "$dir/n$k.pid" "$dir/n$k.out" "$dir/n$k.log"; done
  rm -f "$dir/secret" "$dir/nodes"
  rmdir "$dir" || die "what else is in $dir stays"
}

case ${1:-help} in
  start) start "${2:-}" ;;
  status) status ;;
  stop) stop ;;
  kill) signal "${2:-}" KILL ;;
  pause) signal "${2:-}" STOP ;;
  resume) resume "${2:-}" ;;
  logs) k=$(number "${2:-}") && exec tail -n +1 ${3:+"$3"} "$dir/n$k.log" ;;
  clean) clean ;;
  help | -h | --help) help ;;
  *) help >&2 && exit 2 ;;
esac
