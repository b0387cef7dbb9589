# How often statuses are written: at rest, and while engines publish.
# shellcheck shell=bash

a_status_is_not_written_at_rest() {
  fleet
  within 60 in_order replaying 2
  within 60 in_order silent 2
  # Counts of blocks alone are written once a minute: the last one must be out.
  timed 75 "numbers of blocks are out after" _shows_its_blocks
  _watch_writes 60 replaying silent
  same "$(cat "$RUN/writes")" 0
}
_shows_its_blocks() {
  local name held; http "$(replica_url 0)/workers" >"$RUN/workers"
  for name in replaying silent; do
    held=$(jq --arg name "serving/$name-" '[.[] | select(.model_name == "sim" and (.instance_id | tostring | startswith($name))) | .listeners[].blocks | add] | add' "$RUN/workers")
    [ "$held" = "$(k -n serving get iw "$name" -o jsonpath='{.status.blocks}')" ] || return 1
  done
}

a_status_is_written_seldom_while_engines_publish() {
  fleet
  engine busy-0 '.metadata.labels.pool = "busy" | .spec.containers[0].args |= (map(select(startswith("--at") | not)) + ["--ranks=4", "--rate=2000", "--blocks=512"])'
  worker busy '{"modelName": "busy", "selector": {"matchLabels": {"pool": "busy"}}, "ports": {"events": 5557, "replay": 6557}, "dataParallel": {"size": 4}}'
  within 10 active_everywhere serving/busy-0 3
  sleep 12
  local before; before=$(_events)
  _watch_writes 60 busy
  local rate=$((($(_events) - before) / 60))
  figure "$rate events/s applied on each replica"
  [ "$rate" -ge 4000 ] || fail "only $rate events/s"
  [ "$(cat "$RUN/writes")" -le 6 ] || fail "$(cat "$RUN/writes") writes in 60 s"
  k -n serving delete iw busy
  k -n serving delete pod busy-0 --wait=false
}
# Objects change their resourceVersion with every write; the replicas count their own.
_watch_writes() { # _watch_writes SECONDS NAME..
  local seconds=$1 name seen=0 writes version last; shift
  writes=$(total kvindexer_kubernetes_status_writes_total)
  declare -A last
  for name in "$@"; do last[$name]=$(_version "$name"); done
  local end=$(($(now_ms) + seconds * 1000))
  while [ "$(now_ms)" -lt "$end" ]; do
    for name in "$@"; do
      version=$(_version "$name")
      [ "$version" = "${last[$name]}" ] || { seen=$((seen + 1)); last[$name]=$version; }
    done
    sleep 0.5
  done
  figure "$seen changes of $* seen, $(($(total kvindexer_kubernetes_status_writes_total) - writes)) writes counted in $seconds s"
  echo "$seen" >"$RUN/writes"
}
_version() { k -n serving get iw "$1" -o jsonpath='{.metadata.resourceVersion}'; }
_events() { metric "$(replica_url 0)" kvindexer_applied_events_total serving/busy-0; }
