# `kubectl delete -f deploy/` ends soon and leaves nothing.
# shellcheck shell=bash

one_delete_removes_everything_within_30_seconds() {
  fleet
  local start; start=$(now_ms)
  (cd "$REPO" && k delete --timeout=60s -f deploy/)
  figure "$(seconds_since "$start") s"
  [ $(($(now_ms) - start)) -lt 30000 ] || fail "too slow"
  local kind left
  for kind in $(k api-resources --verbs=list -o name | grep -v '^events'); do
    left=$(k get "$kind" -A -o json | jq -r '.items[] | select(((.metadata.namespace // "") == "kvindexer") or (.metadata.labels["app.kubernetes.io/part-of"] // "" | . == "kvindexer") or (.metadata.name | test("kvindexer")) or (.metadata.finalizers // [] | any(test("kvindexer")))) | "\(.kind)/\(.metadata.name)"')
    [ -z "$left" ] || fail "left: $left"
  done
}

# The README's way to remove the program and keep everybody's objects.
it_can_be_removed_without_the_objects_of_users() {
  (cd "$REPO" && k apply -f deploy/)
  within 10 k wait --for=condition=Established crd/indexerworkers.kvindexer.io --timeout=5s
  worker kept '{"selector": {"matchLabels": {"pool": "replaying"}}, "ports": {"events": 5557}}'
  within 60 replicas_are_ready 3
  k delete namespace kvindexer --timeout=60s
  k delete clusterrole/kvindexer clusterrolebinding/kvindexer
  k -n serving get iw kept
  timed 5 "deleted without a finalizer after" k -n serving delete iw kept --timeout=5s
}

replica_sets_of_two_fleets_share_the_cluster() {
  k apply -k "$REPO/overlays/fleets"
  within 10 k wait --for=condition=Established crd/indexerworkers.kvindexer.io --timeout=5s
  engine fleet-a '.metadata.labels.pool = "fleet-a"'
  engine fleet-b '.metadata.labels.pool = "fleet-b"'
  worker fleet-a '{"selector": {"matchLabels": {"pool": "fleet-a"}}, "ports": {"events": 5557, "replay": 6557}}' '.metadata.labels.fleet = "a"'
  worker fleet-b '{"selector": {"matchLabels": {"pool": "fleet-b"}}, "ports": {"events": 5557, "replay": 6557}}' '.metadata.labels.fleet = "b"'
  local fleet
  for fleet in a b; do within 60 _fleet_is_ready "$fleet"; done
  for fleet in a b; do timed 10 "workers of $fleet alone after" _has_only "$fleet"; done
  k delete -k "$REPO/overlays/fleets" --timeout=60s
}
_fleet_is_ready() { k -n kvindexer get statefulset "kvindexer-$1" -o json | jq -e '.status.readyReplicas == 3'; }
_has_only() {
  local ip
  for ip in $(k -n kvindexer get pods -l "app.kubernetes.io/instance=$1" -o jsonpath='{.items[*].status.podIP}'); do
    same "$(http "http://$ip:8090/workers" | jq -r '[.[].instance_id] | join(" ")')" "serving/fleet-$1"
  done
}
