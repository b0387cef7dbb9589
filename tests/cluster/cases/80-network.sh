# Partitions: the veth pair of one Pod is taken down and up again.
# shellcheck shell=bash

# Cuts a Pod off until it is healed, or the claim ends.
_cut() {
  lab cut "$1" "$2"
  # shellcheck disable=SC2064
  trap "lab heal $1 $2" EXIT
}

a_worker_that_is_cut_off_is_stale_with_a_reason_and_exact_after_it_is_back() {
  fleet
  local pid
  pid=$(task_pid serving replaying-0)
  _cut serving replaying-0
  timed 40 "said after" on_all is_stale_because serving/replaying-0 not_connected
  # It goes on serving while nobody hears it.
  nsenter --net="/proc/$pid/ns/net" curl -s --data-raw "request 1 70 71 72" http://127.0.0.1:9000/command
  lab heal serving replaying-0
  timed 20 "exact everywhere after" exact_everywhere serving/replaying-0
  within 5 all_hold 48 serving/replaying-0 sim "70 71 72"
  within 10 answers_are_the_truth
  equal_replicas
}

a_worker_without_replay_that_was_cut_off_is_not_called_exact_until_it_is_known() {
  fleet
  _cut serving silent-0
  within 40 on_all is_stale_because serving/silent-0 not_connected
  lab heal serving silent-0
  timed 20 "connected again after" active_everywhere serving/silent-0
  on_all is_degraded_because serving/silent-0 unverified_reconnect
  sim silent-0 "request 1 80 81"
  timed 5 "exact after its next batch" exact_everywhere serving/silent-0
  within 5 answers_are_the_truth
}

a_replica_that_is_cut_off_gets_no_queries_and_is_equal_after_it_is_back() {
  fleet
  renew
  _cut kvindexer kvindexer-2
  timed 15 "out of the Service after" _ready_number_is 2
  local url; url=$(service_url)
  # The proxy of a node follows the endpoints with a delay of its own.
  timed 10 "no query leads to it after" _20_are_served "$url"
  sim replaying-0 "request 1 90 91"
  sim silent-0 "request 1 90 92"
  lab heal kvindexer kvindexer-2
  timed 40 "back in the Service after" _ready_number_is 3
  timed 60 "right answers after" answers_are_the_truth
  timed 60 "all exact after" exact_everywhere serving/silent-0
  within 30 equal_replicas
}
_20_are_served() { for _ in $(seq 20); do http --max-time 2 --fail "$1/ready" || return 1; done; }
_ready_number_is() { k -n kvindexer get endpointslices -l kubernetes.io/service-name=kvindexer -o json | jq -e --argjson n "$1" '[.items[].endpoints[] | select(.conditions.ready)] | length == $n'; }
