# Starts into a cluster that lacks something.
# shellcheck shell=bash

without_the_right_to_watch_pods_a_start_says_so_loudly() {
  k delete clusterrolebinding kvindexer
  k -n kvindexer delete pod kvindexer-0 kvindexer-1 kvindexer-2 --grace-period=1
  within 30 _all_say kubernetes
  on_all _counts_forbidden
  k -n kvindexer logs kvindexer-0 | grep -E '"level":"ERROR"' | grep -iq forbidden
  figure "$(http "$(replica_url 0)/ready" | jq -r '.reasons | join(", ")' | cut -c1-120)"
  k apply -f "$REPO/deploy/10-rbac.yaml"
  timed 60 "ready after the right is back" replicas_are_ready 3
}
_all_say() { on_all _says "$1"; }
_says() { http "$2/ready" | jq -e --arg word "$1" '.ready == false and any(.reasons[]; contains($word) and contains("forbidden"))'; }
_counts_forbidden() { [ "$(metric "$1" kvindexer_kubernetes_watch_errors_total forbidden)" -gt 0 ]; }

without_the_crd_annotated_pods_are_registered_and_objects_follow_when_it_is_there() {
  fleet
  k -n kvindexer scale statefulset kvindexer --replicas=0
  within 30 no_replicas
  k delete -f "$REPO/deploy/05-crd.yaml"
  k -n kvindexer scale statefulset kvindexer --replicas=3
  timed 60 "ready without the CRD after" replicas_are_ready 3
  within 5 active_everywhere serving/annotated-0
  absent_everywhere serving/silent-0
  k apply -f "$REPO/deploy/05-crd.yaml"
  within 10 k wait --for=condition=Established crd/indexerworkers.kvindexer.io --timeout=5s
  worker replaying '{"selector": {"matchLabels": {"pool": "replaying"}}, "ports": {"events": "kv-events", "replay": "kv-replay"}}'
  worker silent '{"selector": {"matchLabels": {"pool": "silent"}}, "ports": {"events": 5557}}'
  timed 45 "objects followed after" active_everywhere serving/silent-0
  renew
  within 5 answers_are_the_truth
}
