# From nothing to three replicas, as the README says it; what is in force then.
# shellcheck shell=bash

the_image_of_the_dockerfile_is_reproducible() {
  "$CLUSTER/image.sh" "$KVINDEXER" "$RUN/again.tar" "kvindexer:$VERSION"
  same "$(image_digest "$RUN/again.tar")" "$(image_digest "$RUN/kvindexer.tar")"
  figure "$(($(stat -c %s "$RUN/again.tar") / 1024 / 1024)) MiB"
}

three_replicas_are_ready_after_one_apply() {
  local start; start=$(now_ms)
  (cd "$REPO" && k apply -f deploy/)
  within 60 replicas_are_ready 3
  figure "from nothing to 3 ready $(seconds_since "$start") s"
}

# Words are no proof: kubectl says `configured` of objects that it leaves as they are.
a_second_apply_changes_no_resource_version() {
  local before after
  _versions >"$RUN/before"
  (cd "$REPO" && k apply -f deploy/)
  _versions >"$RUN/after"
  before=$(wc -l <"$RUN/before"); [ "$before" -ge 13 ] || fail "only $before objects"
  diff "$RUN/before" "$RUN/after"
  figure "$before objects"
}
# Those that the manifests name; the status of the StatefulSet and of the budget may move by itself, so generation counts there.
_versions() {
  k get -f "$REPO/deploy" -o json | jq -r '.items[] | "\(.kind)/\(.metadata.name) \(.metadata.uid) \(if .kind == "StatefulSet" or .kind == "PodDisruptionBudget" then .metadata.generation else .metadata.resourceVersion end)"'
}

a_dry_run_on_the_server_is_clean() {
  (cd "$REPO" && k apply --dry-run=server --warnings-as-errors -f deploy/)
}

the_overlays_are_accepted() {
  local overlay
  for overlay in image single fleets; do k apply --dry-run=server --warnings-as-errors -k "$REPO/overlays/$overlay"; done
}

the_namespace_admits_restricted_pods_only() {
  local answer
  answer=$(k -n kvindexer run intruder --image=localhost/pause:1 --restart=Never --dry-run=server 2>&1) && fail "admitted"
  grep -q 'violates PodSecurity "restricted:latest"' <<<"$answer"
}

replicas_run_without_any_privilege() {
  local pid
  pid=$(task_pid kvindexer kvindexer-0)
  figure "$(awk '/^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):/ {printf "%s%s ", $1, $2}' "/proc/$pid/status")"
  grep -qE '^Uid:\s65532\s65532\s65532\s65532$' "/proc/$pid/status"
  grep -qE '^CapEff:\s0+$' "/proc/$pid/status"
  grep -qE '^CapBnd:\s0+$' "/proc/$pid/status"
  grep -qE '^NoNewPrivs:\s1$' "/proc/$pid/status"
  grep -qE '^Seccomp:\s2$' "/proc/$pid/status"
  awk '$5 == "/" {print $6}' "/proc/$pid/mountinfo" | grep -qE '(^|,)ro(,|$)'
}

rights_are_the_fewest() {
  local verb what
  # What the code calls ..
  for verb in list watch; do
    for what in pods indexerworkers.kvindexer.io; do _may "$verb" "$what" --all-namespaces; done
  done
  _may patch indexerworkers.kvindexer.io --subresource=status --all-namespaces
  for verb in create patch; do _may "$verb" events.events.k8s.io --all-namespaces; done
  _may create leases.coordination.k8s.io -n kvindexer
  for verb in get update; do _may "$verb" leases.coordination.k8s.io/kvindexer -n kvindexer; done
  # .. and what is near it, but not called.
  for verb in get create update patch delete deletecollection; do _may_not "$verb" pods --all-namespaces; done
  for verb in get create update patch delete deletecollection; do _may_not "$verb" indexerworkers.kvindexer.io --all-namespaces; done
  for verb in get update; do _may_not "$verb" indexerworkers.kvindexer.io --subresource=status --all-namespaces; done
  for verb in get list watch update delete; do _may_not "$verb" events.events.k8s.io --all-namespaces; done
  for verb in list watch patch delete; do _may_not "$verb" leases.coordination.k8s.io -n kvindexer; done
  for verb in get update; do _may_not "$verb" leases.coordination.k8s.io/other -n kvindexer; done
  for verb in get create update; do _may_not "$verb" leases.coordination.k8s.io/kvindexer -n kube-system; done
  for what in secrets configmaps nodes services endpointslices.discovery.k8s.io statefulsets.apps customresourcedefinitions.apiextensions.k8s.io; do
    for verb in get list watch create patch; do _may_not "$verb" "$what" --all-namespaces; done
  done
  _may_not create pods --subresource=exec --all-namespaces
  figure "$(wc -l <"$RUN/rights") questions"
}
_asked() { echo "$*" >>"$RUN/rights"; k auth can-i --as=system:serviceaccount:kvindexer:kvindexer "$@" 2>/dev/null; }
_may() { [ "$(_asked "$@")" = yes ] || fail "may not $*"; }
_may_not() { [ "$(_asked "$@")" = no ] || fail "may $*"; }

the_headless_name_lists_replicas_that_are_not_ready_the_query_name_does_not() {
  local slices
  slices=$(k -n kvindexer get endpointslices -o json)
  jq -e '.items[] | select(.metadata.labels["kubernetes.io/service-name"] == "kvindexer-peers") | [.endpoints[].conditions.ready] | length == 3 and all' <<<"$slices"
  same "$(k -n kvindexer get service kvindexer-peers -o jsonpath='{.spec.publishNotReadyAddresses}')" true
  same "$(k -n kvindexer get service kvindexer -o jsonpath='{.spec.publishNotReadyAddresses}')" ""
}

the_service_answers() {
  local url; url=$(service_url)
  http --fail "$url/ready"
}
