# Pods become workers: by an IndexerWorker, by annotations, at fixed addresses; what kubectl shows of them.
# shellcheck shell=bash

pods_of_indexerworkers_and_annotated_pods_are_registered_on_all_replicas() {
  fleet
  timed 5 "right answers on three replicas after" answers_are_the_truth
  figure "$(wc -l <"$RUN/engines") engines, half of them without replay"
}

fixed_endpoints_are_registered_on_all_replicas() {
  serving
  # An engine that is a process of the node, not a Pod.
  local node=10.230.255.1
  $NET setsid "$KVINDEXER" sim --workers 1 --host "$node" --port 5557 --replay-port 6557 --control "$node:9000" --at 0=pause --tokens-per-id 16 \
    >"$RUN/outside.log" 2>&1 </dev/null &
  echo $! >"$LAB/pid/outside"
  worker outside "{\"endpoints\": [{\"instanceId\": \"gpu-box-1\", \"address\": \"tcp://$node:5557\", \"replayAddress\": \"tcp://$node:6557\"}]}"
  timed 5 "connected everywhere after" active_everywhere gpu-box-1
  http --data-raw "request 1 ${PROMPTS[5]}" "http://$node:9000/command"
  timed 5 "right answers after" all_hold 32 gpu-box-1 sim "${PROMPTS[5]}"
  k -n serving delete iw outside
  timed 5 "gone everywhere after" absent_everywhere gpu-box-1
  kill "$(cat "$LAB/pid/outside")"; rm "$LAB/pid/outside"
}

ranks_listen_on_their_base_port_plus_rank() {
  serving
  local rank
  engine ranks-0 '.metadata.labels.pool = "ranks" | .spec.containers[0].args += ["--ranks=4"]'
  worker ranks '{"modelName": "ranks", "selector": {"matchLabels": {"pool": "ranks"}}, "ports": {"events": 5557, "replay": 6557}, "dataParallel": {"size": 4}}'
  for rank in 0 1 2 3; do
    within 5 active_everywhere serving/ranks-0 "$rank"
    on_all has_endpoint serving/ranks-0 "$rank" "tcp://$(pod_ip serving ranks-0):$((5557 + rank))"
  done
  sim ranks-0 "request 1:2 1 2"
  within 5 on_all _ranks_hold '{"0":0,"1":0,"2":32,"3":0}' ranks "1 2"
}
_ranks_hold() { # _ranks_hold JSON MODEL PROMPT URL: device tokens by rank of the only instance
  same "$(http -H 'Content-Type: application/json' -d "{\"model_name\": \"$2\", \"token_ids\": $(prompt_tokens $3)}" "$4/query" | jq -cS '[.instances[]][0].dp')" "$1"
}

the_second_pod_of_a_leaderworkerset_has_the_higher_ranks() {
  serving
  engine lws-1 '.metadata.labels += {"leaderworkerset.sigs.k8s.io/name": "lws", "leaderworkerset.sigs.k8s.io/worker-index": "1"}
    | .spec.containers[0].args += ["--ranks=2", "--first-rank=2"]'
  worker lws '{"modelName": "lws", "selector": {"matchLabels": {"leaderworkerset.sigs.k8s.io/name": "lws"}}, "ports": {"events": 5557, "replay": 6557},
    "dataParallel": {"size": 2, "startRankFrom": "LeaderWorkerSetIndex"}}'
  within 5 active_everywhere serving/lws-1 2
  within 5 active_everywhere serving/lws-1 3
  on_all has_endpoint serving/lws-1 3 "tcp://$(pod_ip serving lws-1):5560"
  sim lws-1 "request 1:3 1 2 3"
  within 5 on_all _ranks_hold '{"2":0,"3":48}' lws "1 2 3"
}

an_engine_that_describes_itself_needs_no_ranks_in_the_object() {
  serving
  engine auto-0 '.metadata.labels.pool = "auto" | .spec.containers[0].args += ["--ranks=2"]'
  worker auto '{"modelName": "auto", "selector": {"matchLabels": {"pool": "auto"}}, "ports": {"events": 5557, "http": "http"}, "discovery": "Auto"}'
  within 10 active_everywhere serving/auto-0 0
  within 10 active_everywhere serving/auto-0 1
  sim auto-0 "request 1:1 1 2"
  within 5 on_all _ranks_hold '{"0":0,"1":32}' auto "1 2"
}

a_differing_block_size_in_a_description_is_shown() {
  serving
  engine pages-0 '.metadata.labels.pool = "pages" | .spec.containers[0].args |= (map(select(startswith("--block-size") | not)) + ["--engine=sglang", "--block-size=32"])'
  worker pages '{"modelName": "pages", "selector": {"matchLabels": {"pool": "pages"}}, "ports": {"events": 5557, "http": "http"}, "discovery": "Auto"}'
  timed 30 "shown after" _mentions pages BlockSizeMismatch
}
_mentions() { k -n serving get iw "$1" -o json | jq -e --arg word "$2" '[.status.conditions[]? | .reason, .message] | any(contains($word))'; }

a_native_sidecar_can_be_the_engine() {
  serving
  engine sidecar-0 '.metadata.labels.pool = "sidecar" | .spec.initContainers = [.spec.containers[0] + {name: "engine", restartPolicy: "Always"}]
    | .spec.containers = [.spec.containers[0] | .name = "front" | .args = ["sim", "--workers=1", "--port=0", "--at=0=pause"] | del(.ports, .readinessProbe)]'
  worker sidecar '{"modelName": "sidecar", "selector": {"matchLabels": {"pool": "sidecar"}}, "ports": {"events": "kv-events", "replay": "kv-replay"}}'
  within 5 active_everywhere serving/sidecar-0
  sim sidecar-0 "request 1 1"
  within 5 all_hold 16 serving/sidecar-0 sidecar 1
}

the_older_of_two_objects_has_the_pod_and_the_other_says_so() {
  fleet
  worker usurper '{"modelName": "other", "selector": {"matchLabels": {"pool": "replaying"}}, "ports": {"events": 5557}}'
  timed 30 "said after" _mentions usurper PodAlreadyClaimed
  answers_are_the_truth
  k -n serving delete iw usurper
}

a_pod_with_unusable_annotations_gets_an_event_and_is_not_registered() {
  serving
  engine_pod typo-0 '.metadata.labels["kvindexer.io/enabled"] = "true" | .metadata.annotations = {"kvindexer.io/model": "typo", "kvindexer.io/block-size": "sixteen", "kvindexer.io/event-port": "5557"}' | k apply -f - >/dev/null
  timed 20 "Event after" _has_event typo-0
  absent_everywhere serving/typo-0
  k -n serving get events.events.k8s.io -o json | jq -r '.items[] | select(.regarding.name == "typo-0" and (.reportingController | startswith("kvindexer"))) | "\(.type) \(.reason): \(.note)"' | tee -a "$RUN/shown"
}
_has_event() { k -n serving get events.events.k8s.io -o json | jq -e --arg pod "$1" 'any(.items[]; .regarding.name == $pod and (.reportingController | startswith("kvindexer")))'; }

a_tenant_has_an_index_of_its_own() {
  fleet
  worker tenants '{"tenantId": "blue", "selector": {"matchLabels": {"app": "tenants-0"}}, "ports": {"events": 5557}}'
  engine tenants-0 "$NO_REPLAY"
  within 5 active_everywhere serving/tenants-0
  sim tenants-0 "request 1 ${PROMPTS[0]}"
  # It holds the prompt, and no query of the default tenant sees it.
  answers_are_the_truth
  within 5 on_all _blue_holds 64
}
_blue_holds() { same "$(http -H 'Content-Type: application/json' -d "{\"model_name\": \"sim\", \"tenant_id\": \"blue\", \"token_ids\": $(prompt_tokens ${PROMPTS[0]})}" "$2/query" | jq -r '.instances["serving/tenants-0"].gpu')" "$1"; }

statuses_say_what_is_the_case() {
  fleet
  timed 60 "all True after" in_order replaying 2
  within 60 in_order silent 2
  local status; status=$(k -n serving get iw replaying -o json --show-managed-fields)
  jq -e '.status.observedGeneration == .metadata.generation and .status.workers == 2 and .status.ready == 2 and .status.blocks > 0 and .status.trust == "Exact"' <<<"$status"
  jq -e '.status.observedBy | test("^kvindexer-[0-9]$")' <<<"$status"
  jq -e '[.metadata.managedFields[] | select(.subresource == "status") | .manager] | unique | length == 1' <<<"$status"
  {
    echo '$ kubectl get iw -A'; k get iw -A
    echo '$ kubectl -n serving describe iw replaying'; k -n serving describe iw replaying
    echo '$ kubectl explain iw.spec'; k explain iw.spec
  } >>"$RUN/shown"
}

one_replica_writes_statuses() {
  local url leaders=0
  for url in $(replica_urls); do leaders=$((leaders + $(metric "$url" kvindexer_kubernetes_leader))); done
  same "$leaders" 1
  figure "Lease held by $(k -n kvindexer get lease kvindexer -o jsonpath='{.spec.holderIdentity}')"
}
