# The life of a worker: what happens to a Pod, and what every replica answers within 5 s.
# shellcheck shell=bash

a_deleted_pod_is_gone_everywhere() {
  fleet
  k -n serving delete pod replaying-1 --wait=false
  timed 5 "gone everywhere after" absent_everywhere serving/replaying-1
  within 10 pod_is_gone replaying-1
  within 5 answers_are_the_truth
}

# The engine says nothing after its restart: only Kubernetes knows.
a_container_restarted_in_place_starts_empty_though_its_engine_is_silent() {
  fleet
  local pod before
  for pod in replaying-0 silent-0; do
    before=$(_incarnation "$pod")
    on_all _holds_more_than_nothing "serving/$pod"
    lab restart serving "$pod"
    within 15 _has_restarted "$pod" "$before"
    same "$(truth "$pod" ${PROMPTS[0]})" 0
    timed 5 "$pod empty everywhere after" answers_are_the_truth
    same "$(cut -d' ' -f1 <<<"$(_incarnation "$pod")")" "$(cut -d' ' -f1 <<<"$before")"
  done
  # An engine that can be asked is known to be empty; of one that cannot, nothing is known before its first word.
  timed 10 "replaying-0 exact again after" exact_everywhere serving/replaying-0
  on_all is_stale_because serving/silent-0 nothing_heard
  timed 30 "Event after" _told replaying Restarted
  sim silent-0 "request 1 ${PROMPTS[2]}"
  timed 5 "silent-0 fills again after" answers_are_the_truth
  within 5 exact_everywhere serving/silent-0
}
_incarnation() { k -n serving get pod "$1" -o json | jq -r '"\(.metadata.uid) \(.status.podIP) \(.status.containerStatuses[0].containerID)"'; }
_has_restarted() { [ "$(_incarnation "$1")" != "$2" ] && pod_is_ready "$1" && sim "$1" status; }
_holds_more_than_nothing() { [ "$(held "$2" "$1" sim 10 11)" -gt 0 ]; }

# It has no replay endpoint, so the batch is lost for good.
a_lost_batch_is_told_in_answers_in_the_status_and_as_an_event() {
  fleet
  sim silent-1 "gap 1"; sim silent-1 "request 1 100"; sim silent-1 "request 1 101"
  within 5 on_all is_degraded_because serving/silent-1 gap
  timed 30 "Event after" _told silent Gap
  timed 30 "status after" _is_degraded silent
  k -n serving get iw silent | tee -a "$RUN/shown"
  renew
  timed 45 "in order again after" in_order silent 2
}
_is_degraded() { k -n serving get iw "$1" -o json | jq -e '.status.trust == "Degraded" and .status.gaps > 0 and any(.status.conditions[]; .type == "InSync" and .status == "False")'; }
_told() { # _told OBJECT REASON
  k -n serving get events.events.k8s.io -o json | jq -e --arg name "$1" --arg reason "$2" 'any(.items[]; .regarding.name == $name and .reason == $reason and (.reportingController | startswith("kvindexer")))'
}

a_replaced_pod_is_followed_to_its_new_address_and_starts_empty() {
  fleet
  local pod before
  for pod in replaying-0 silent-0; do
    before=$(pod_ip serving "$pod")
    k -n serving delete pod "$pod"
    engine_pod "$pod" "$([ "$pod" = silent-0 ] && echo "$SILENT" || echo "$REPLAYING")" | k apply -f - >/dev/null
    within 30 pod_is_ready "$pod"
    [ "$(pod_ip serving "$pod")" != "$before" ] || fail "the address is the same"
    timed 5 "$pod at its new address after" on_all has_endpoint "serving/$pod" 0 "tcp://$(pod_ip serving "$pod"):5557"
    within 5 answers_are_the_truth
    sim "$pod" "request 1 ${PROMPTS[0]}"
    timed 5 "fills after" answers_are_the_truth
  done
}

a_pod_whose_labels_stop_matching_is_gone_and_comes_back_with_them() {
  fleet
  local url
  k -n serving label pod silent-1 pool=none --overwrite
  timed 5 "gone everywhere after" absent_everywhere serving/silent-1
  k -n serving label pod silent-1 pool=silent --overwrite
  timed 5 "back after" active_everywhere serving/silent-1
  # It has no replay endpoint: what it held is not known any more, and that is said.
  k -n serving label pod annotated-0 kvindexer.io/enabled-
  timed 5 "annotated Pod gone after" absent_everywhere serving/annotated-0
  k -n serving label pod annotated-0 kvindexer.io/enabled=true
  within 5 active_everywhere serving/annotated-0
  renew
  within 5 answers_are_the_truth
}

a_readiness_flap_keeps_every_block() {
  fleet
  engine_pod flap-0 "$SILENT"'| .spec.readinessGates = [{conditionType: "test.kvindexer.io/up"}]' | k apply -f - >/dev/null
  # Registered although it is not ready: its container runs.
  within 15 active_everywhere serving/flap-0
  _gate True
  within 10 pod_is_ready flap-0
  sim flap-0 "request 1 ${PROMPTS[0]}"
  within 5 answers_are_the_truth
  local restarts url; restarts=$(total kvindexer_kubernetes_changes_total)
  _gate False
  within 10 _is_not_ready flap-0
  for _ in 1 2 3; do answers_are_the_truth; sleep 1; done
  _gate True
  within 10 pod_is_ready flap-0
  answers_are_the_truth
  same "$(total kvindexer_kubernetes_changes_total)" "$restarts"
  k -n serving delete pod flap-0 --wait=false
}
_gate() { k -n serving patch pod flap-0 --subresource=status -p "{\"status\": {\"conditions\": [{\"type\": \"test.kvindexer.io/up\", \"status\": \"$1\"}]}}"; }
_is_not_ready() { ! pod_is_ready "$1"; }

an_evicted_pod_is_gone_and_its_successor_starts_empty() {
  fleet
  engine_pod evicted "$SILENT" | jq '{apiVersion: "apps/v1", kind: "StatefulSet", metadata: {name: "evicted", namespace: "serving"},
    spec: {replicas: 1, serviceName: "none", selector: {matchLabels: {app: "evicted"}}, template: {metadata: .metadata | del(.name, .namespace), spec: .spec}}}' | k apply -f - >/dev/null
  within 30 pod_is_ready evicted-0
  within 5 active_everywhere serving/evicted-0
  sim evicted-0 "request 1 ${PROMPTS[0]}"
  within 5 answers_are_the_truth
  local uid; uid=$(k -n serving get pod evicted-0 -o jsonpath='{.metadata.uid}')
  k create --raw /api/v1/namespaces/serving/pods/evicted-0/eviction -f - <<<'{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted-0", "namespace": "serving"}}'
  within 30 _is_another evicted-0 "$uid"
  timed 5 "successor empty everywhere after" answers_are_the_truth
  sim evicted-0 "request 1 ${PROMPTS[1]}"
  timed 5 "fills after" answers_are_the_truth
  k -n serving delete statefulset evicted
}
_is_another() { [ "$(k -n serving get pod "$1" -o jsonpath='{.metadata.uid}')" != "$2" ] && pod_is_ready "$1"; }

a_container_that_crashes_again_and_again_scores_nothing() {
  fleet
  local before
  engine crash-0 "$SILENT"
  within 5 active_everywhere serving/crash-0
  before=$(_incarnation crash-0)
  lab restart serving crash-0
  within 15 _has_restarted crash-0 "$before"
  within 5 active_everywhere serving/crash-0
  sim crash-0 "request 1 ${PROMPTS[0]}"
  within 5 all_hold 64 serving/crash-0 sim "${PROMPTS[0]}"
  # The second time the kubelet waits 10 s before it starts it again.
  lab restart serving crash-0
  timed 5 "scores nothing after" all_hold 0 serving/crash-0 sim "${PROMPTS[0]}"
  timed 5 "stale after" on_all is_stale_because serving/crash-0 container_down
  within 40 active_everywhere serving/crash-0
  within 10 answers_are_the_truth
  k -n serving delete pod crash-0 --wait=false
}

# Nothing waits for the indexer: objects go at once, also while no replica runs (F47).
an_object_deleted_while_no_replica_runs_is_gone_and_does_not_come_back() {
  fleet
  engine orphan-0 "$NO_REPLAY"' | .metadata.labels.pool = "orphan"'
  worker orphan '{"modelName": "orphan", "selector": {"matchLabels": {"pool": "orphan"}}, "ports": {"events": 5557}}'
  within 5 active_everywhere serving/orphan-0
  k -n kvindexer scale statefulset kvindexer --replicas=0
  within 30 no_replicas
  timed 5 "object gone after" k -n serving delete iw orphan --timeout=5s
  k -n kvindexer scale statefulset kvindexer --replicas=3
  within 40 replicas_are_ready 3
  absent_everywhere serving/orphan-0
  k -n serving delete pod orphan-0 --wait=false
  # Nobody was left to tell what engines without replay hold.
  renew
  within 5 answers_are_the_truth
}
