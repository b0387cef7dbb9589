# Replicas come and go: state is taken from a peer, the Service never leads to one that is not ready.
# shellcheck shell=bash

a_killed_replica_comes_back_with_the_state_of_its_peers() {
  fleet
  renew
  within 5 answers_are_the_truth
  local url start; url=$(replica_url 1)
  lab restart kvindexer kvindexer-1
  start=$(now_ms)
  within 20 _unready "$url"
  # Ready means that every block is there, those of engines that cannot replay too.
  within 40 ready_at "$url"
  figure "ready again after $(seconds_since "$start") s"
  answers_are_the_truth
  within 10 replicas_are_ready 3
  equal_replicas
}
_unready() { ! ready_at "$1"; }

the_service_never_leads_to_a_replica_that_is_not_ready() {
  fleet
  _load_begin
  k -n kvindexer delete pod kvindexer-0 --grace-period=1 --wait=false
  sleep 1
  within 60 replicas_are_ready 3
  _load_end
}

# Every answer comes from a replica that is ready: one that is not says 503. One new connection may be tried.
_load_begin() {
  local url body
  url=$(service_url); body="{\"model_name\": \"sim\", \"token_ids\": $(prompt_tokens ${PROMPTS[0]})}"
  : >"$RUN/load"
  touch "$RUN/loading"
  (
    set +eE; trap - ERR
    while [ -e "$RUN/loading" ]; do
      http -o "$RUN/load-body" -w '%{http_code} %{num_retries}\n' --max-time 5 --retry 1 --retry-all-errors --retry-delay 0 --fail \
        -H 'Content-Type: application/json' -d "$body" "$url/query" >>"$RUN/load" 2>/dev/null
      sleep 0.02
    done
  ) &
  LOAD=$!
}
_load_end() {
  rm "$RUN/loading"; wait "$LOAD" || true
  local all good again; all=$(wc -l <"$RUN/load"); good=$(grep -c '^200 ' "$RUN/load"); again=$(grep -c ' 1$' "$RUN/load" || true)
  figure "$all queries through the Service, $((all - good)) failed, $again after a second try"
  [ "$all" -gt 50 ] || fail "only $all queries"
  same "$good" "$all"
}

# The engine under load has a small cache, so that it stores and removes all the time.
a_rolling_update_under_load_costs_no_query_and_no_block() {
  fleet
  _load_engine
  _load_begin
  local start; start=$(now_ms)
  k -n kvindexer rollout restart statefulset/kvindexer
  sleep 2
  within 180 replicas_are_ready 3
  figure "rolling update of 3 replicas $(seconds_since "$start") s"
  _load_end
  timed 10 "exact everywhere after" exact_everywhere serving/load-0
  sim load-0 pause
  within 10 _applied_everywhere load-0
  within 5 answers_are_the_truth
  equal_replicas
  figure "$(metric "$(replica_url 2)" kvindexer_gaps_total) gaps on the last replica"
  k -n serving delete pod load-0 --wait=false
  k -n serving delete iw load
}
_load_engine() {
  engine load-0 '.metadata.labels.pool = "load" | .spec.containers[0].args |= (map(select(startswith("--at") | not)) + ["--rate=500", "--blocks=256"])'
  worker load '{"modelName": "load", "selector": {"matchLabels": {"pool": "load"}}, "ports": {"events": 5557, "replay": 6557}}'
  within 10 active_everywhere serving/load-0
}
_applied_everywhere() { # the last batch of the engine is applied on every replica
  local last; last=$(sim "$1" status | jq '.status[0].last_seq')
  on_all _has_applied "serving/$1" "$last"
}
_has_applied() { same "$(listener "$1" 0 "$3" | jq .last_seq)" "$2"; }

scaling_from_3_to_5_to_2_to_3_loses_nothing() {
  fleet
  renew
  local number
  for number in 5 2 3; do
    k -n kvindexer scale statefulset kvindexer --replicas="$number"
    timed 60 "$number ready after" replicas_are_ready "$number"
    within 10 answers_are_the_truth
  done
  equal_replicas
}

a_replica_ends_with_0_soon_after_it_is_told_to() {
  local pod=kvindexer-2 start code
  start=$(now_ms)
  ctr -a "$LAB/ctd/containerd.sock" -n k8s.io task kill -s SIGTERM "$(k -n kvindexer get pod "$pod" -o json | jq -r '.status.containerStatuses[0].containerID' | sed 's#.*//##')"
  within 5 _unready "$(replica_url 2)"
  within 15 _has_ended "$pod"
  code=$(k -n kvindexer get pod "$pod" -o jsonpath='{.status.containerStatuses[0].lastState.terminated.exitCode}')
  same "$code" 0
  figure "over after $(seconds_since "$start") s"
  within 40 replicas_are_ready 3
}
_has_ended() { k -n kvindexer get pod "$1" -o json | jq -e --argjson since "$(date +%s)" '.status.containerStatuses[0].lastState.terminated.finishedAt // empty | fromdate > $since - 20'; }

a_disruption_budget_lets_one_replica_go_at_a_time() {
  within 10 _allows_one
  k create --raw /api/v1/namespaces/kvindexer/pods/kvindexer-0/eviction -f - <<<'{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "kvindexer-0", "namespace": "kvindexer"}}'
  local answer
  answer=$(k create --raw /api/v1/namespaces/kvindexer/pods/kvindexer-1/eviction -f - <<<'{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "kvindexer-1", "namespace": "kvindexer"}}' 2>&1) && fail "a second one was let go"
  grep -q 'disruption budget' <<<"$answer"
  within 60 replicas_are_ready 3
}
_allows_one() { same "$(k -n kvindexer get pdb kvindexer -o jsonpath='{.status.disruptionsAllowed}')" 1; }
