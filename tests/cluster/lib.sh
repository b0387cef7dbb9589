# What the claims are written with: asking the cluster and the replicas, engines in Pods, waiting with a limit.
# shellcheck shell=bash

NET="nsenter --net=/var/run/netns/${NS:-kvxlab}"
k() { $NET env KUBECONFIG="$LAB/cfg/admin.kubeconfig" "$BIN/kubectl" "$@"; }
lab() { "$CLUSTER/lab.sh" "$@"; }
http() { $NET curl --silent --show-error --max-time 10 "$@"; }
now_ms() { date +%s%3N; }
seconds_since() { local ms=$(($(now_ms) - $1)); printf '%d.%d' $((ms / 1000)) $((ms % 1000 / 100)); }
figure() { echo "$*" >>"$RUN/figure"; }
fail() { echo "$*"; return 1; }

image_digest() { tar xOf "$1" index.json | jq -r '.manifests[0].digest'; }

# within SECONDS COMMAND..: repeats it until it succeeds; fails after so long, and shows its last output. Inside COMMAND a
# failed step does not end it (bash switches that off here), so functions that are used this way check each step.
within() {
  local limit=$1 start; shift
  start=$(now_ms)
  until "$@" >"$RUN/last" 2>&1; do
    if [ $(($(now_ms) - start)) -gt $((limit * 1000)) ]; then
      echo "not within $limit s: $*"; tail -n 5 "$RUN/last"; return 1
    fi
    sleep 0.1
  done
}
# timed SECONDS WHAT COMMAND..: the same, and notes how long it took.
timed() {
  local limit=$1 what=$2 start; shift 2
  start=$(now_ms)
  within "$limit" "$@"
  figure "$what $(seconds_since "$start") s"
}
same() { [ "$1" = "$2" ] || fail "is \`$1\`, must be \`$2\`"; }

node_is_ready() { k get node node0 -o json | jq -e '.status.conditions[] | select(.type == "Ready" and .status == "True")'; }

# --- replicas ---
SERVICE=kvindexer.kvindexer.svc.cluster.local
replica_pods() { k -n kvindexer get pods -l app.kubernetes.io/name=kvindexer -o json | jq -r '.items[] | select(.metadata.deletionTimestamp == null) | .metadata.name' | sort; }
task_pid() { ctr -a "$LAB/ctd/containerd.sock" -n k8s.io task ls | awk -v c="$(k -n "$1" get pod "$2" -o jsonpath="{.status.containerStatuses[0].containerID}" | sed "s#.*//##")" "\$1==c {print \$2}"; }
pod_ip() { k -n "$1" get pod "$2" -o jsonpath='{.status.podIP}'; }
replica_url() { echo "http://$(pod_ip kvindexer "kvindexer-$1"):8090"; }
replica_urls() { k -n kvindexer get pods -l app.kubernetes.io/name=kvindexer -o json | jq -r '.items[] | select(.status.podIP != null and .metadata.deletionTimestamp == null) | "http://\(.status.podIP):8090"'; }
service_url() { echo "http://$(k -n kvindexer get service kvindexer -o jsonpath='{.spec.clusterIP}'):8090"; }
ready_replicas() { k -n kvindexer get statefulset kvindexer -o jsonpath='{.status.readyReplicas}'; }
replicas_are_ready() { # replicas_are_ready NUMBER: so many, all of the present revision, and no other
  k -n kvindexer get statefulset kvindexer -o json | jq -e --argjson n "$1" \
    '.status | .readyReplicas == $n and .replicas == $n and .updatedReplicas == $n and .observedGeneration >= 1 and .currentRevision == .updateRevision'
}
# On every replica: on_all COMMAND.. gets the URL as its last argument.
on_all() {
  local url urls; urls=$(replica_urls); [ -n "$urls" ] || { fail "no replicas"; return; }
  for url in $urls; do "$@" "$url" || { echo "on $url"; return 1; }; done
}
ready_at() { http --fail "$1/ready"; }
# worker NAMESPACE/POD [RANK]: its listener, as the replica of URL sees it. Empty if there is none.
listener() { # listener ID RANK URL
  http "$3/workers" | jq -c --arg id "$1" --arg rank "$2" '[.[] | select((.instance_id | tostring) == $id) | .listeners[$rank] | select(. != null)][0] // empty'
}
is_active() { [ "$(listener "$1" "$2" "$3" | jq -r .status)" = active ]; } # is_active ID RANK URL
is_exact() { [ "$(listener "$1" "$2" "$3" | jq -r .trust.state)" = exact ]; }
is_absent() { [ -z "$(listener "$1" "$2" "$3")" ]; }
has_endpoint() { [ "$(listener "$1" "$2" "$4" | jq -r .endpoint)" = "$3" ]; } # has_endpoint ID RANK ENDPOINT URL
active_everywhere() { on_all is_active "$1" "${2:-0}"; }
exact_everywhere() { on_all is_exact "$1" "${2:-0}"; }
absent_everywhere() { on_all is_absent "$1" "${2:-0}"; }
metric() { # metric URL NAME [LABEL-TEXT]: sum of the samples whose line contains the text
  http "$1/metrics" | awk -v n="$2" -v t="${3:-}" '{ name = $1; sub(/\{.*/, "", name) } name == n && (t == "" || index($0, t)) { s += $NF } END { printf "%d", s }'
}
in_order() { # all four conditions are True for the present generation, for so many workers
  k -n serving get iw "$1" -o json | jq -e --argjson n "$2" '.metadata.generation as $g | .status.workers == $n and ([.status.conditions[] | select(.status == "True" and .observedGeneration == $g) | .type] | sort == ["Accepted", "Connected", "InSync", "Ingesting"])'
}
is_stale_because() { listener "$1" 0 "$3" | jq -e --arg reason "$2" '.trust.state == "stale" and (.trust.reasons | index($reason))'; }
total() { local url sum=0; for url in $(replica_urls); do sum=$((sum + $(metric "$url" "$1"))); done; echo "$sum"; }
no_replicas() { [ -z "$(k -n kvindexer get pods -o name)" ]; }
is_degraded_because() { listener "$1" 0 "$3" | jq -e --arg reason "$2" '.trust.state == "degraded" and (.trust.reasons | index($reason))'; }
# All replicas hold the same blocks, compared one by one.
equal_replicas() {
  local urls first url; urls=$(replica_urls); first=$(head -n 1 <<<"$urls")
  for url in $(tail -n +2 <<<"$urls"); do $NET "$KVINDEXER" diff "$first" "$url" --deep || return 1; done
}

# --- engines ---
MODEL=sim
# engine NAME [JQ]: the manifest of a Pod in `serving` with one simulated engine that serves only what it is told; the filter
# changes it. Its instance is called 1 inside.
engine_pod() {
  jq -n --arg name "$1" --arg image "kvindexer:$VERSION" '{
    apiVersion: "v1", kind: "Pod",
    metadata: {name: $name, namespace: "serving", labels: {app: $name}, annotations: {}},
    spec: {
      terminationGracePeriodSeconds: 2, automountServiceAccountToken: false, enableServiceLinks: false,
      securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: "RuntimeDefault"}},
      containers: [{
        name: "engine", image: $image, imagePullPolicy: "IfNotPresent",
        args: ["sim", "--workers=1", "--host=0.0.0.0", "--port=5557", "--replay-port=6557", "--control=0.0.0.0:9000",
               "--at=0=pause", "--tokens-per-id=16", "--block-size=16"],
        ports: [{name: "kv-events", containerPort: 5557}, {name: "kv-replay", containerPort: 6557}, {name: "http", containerPort: 9000}],
        readinessProbe: {httpGet: {path: "/health", port: "http"}, periodSeconds: 1},
        securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: ["ALL"]}}
      }]
    }
  }' | jq "${2:-.}"
}
NO_REPLAY='.spec.containers[0].args |= map(select(startswith("--replay-port") | not)) + ["--no-replay"]
  | .spec.containers[0].ports |= map(select(.name != "kv-replay"))'
engine() { engine_pod "$@" | k apply -f - >/dev/null; within 30 pod_is_ready "$1"; }
pod_is_ready() { k -n serving get pod "$1" -o json | jq -e '.metadata.deletionTimestamp == null and any(.status.conditions[]; .type == "Ready" and .status == "True")'; }
pod_is_gone() { [ -z "$(k -n serving get pod "$1" --ignore-not-found -o name)" ]; }
sim() { # sim POD COMMAND: the answer of the engine in it
  http --fail-with-body --data-raw "$2" "http://$(pod_ip serving "$1"):9000/command"
}
prompt_tokens() { # prompt_tokens ID..: as the engines make them; each prompt is made once
  local file="$RUN/tokens-${*// /-}"; file=${file// /-}
  [ -s "$file" ] || printf 'tokens %s\nquit\n' "$*" | "$KVINDEXER" sim --port 0 --workers 1 --at 0=pause --tokens-per-id 16 | jq -c '.tokens // empty' >"$file"
  cat "$file"
}
truth() { # truth POD ID..: device tokens that the engine holds of the prompt
  local pod=$1; shift
  sim "$pod" "truth $*" | jq '.truth["1"].gpu'
}
held() { # held URL ID MODEL PROMPT..: device tokens by the replica's answer; `none` if it does not know the worker
  local url=$1 id=$2 model=$3; shift 3
  http --fail-with-body -H 'Content-Type: application/json' -d "{\"model_name\": \"$model\", \"token_ids\": $(prompt_tokens "$@")}" "$url/query" |
    jq -r --arg id "$id" '.instances[$id].gpu // "none"'
}
holds() { # holds TOKENS ID MODEL PROMPT URL
  local got; got=$(held "$5" "$2" "$3" $4) || { echo "$got"; return 1; }
  same "$got" "$1"
}
all_hold() { on_all holds "$@"; } # all_hold TOKENS ID MODEL PROMPT

# --- the standard fleet: two engines that replay, two that do not, one annotated Pod, one outside the cluster ---
PROMPTS=("10 11 12 13" "10 21 22" "10 11 31" "40 41" "50 51 52" "60 61")
worker() { # worker NAME SPEC-JSON [JQ]: an IndexerWorker in `serving`
  jq -n --arg name "$1" --argjson spec "$2" '{apiVersion: "kvindexer.io/v1alpha1", kind: "IndexerWorker", metadata: {name: $name, namespace: "serving"}, spec: ({modelName: "sim", blockSize: 16} + $spec)}' | jq "${3:-.}" | k apply -f - >/dev/null
}
REPLAYING='.metadata.labels += {pool: "replaying", engine: "sim"}'
SILENT='.metadata.labels += {pool: "silent", engine: "sim"} | '$NO_REPLAY
ANNOTATED='.metadata.labels += {"kvindexer.io/enabled": "true", engine: "sim"}
  | .metadata.annotations = {"kvindexer.io/model": "sim", "kvindexer.io/block-size": "16", "kvindexer.io/event-port": "kv-events"} | '$NO_REPLAY
serving() { k create namespace serving --dry-run=client -o yaml | k apply -f - >/dev/null; within 10 k -n serving get serviceaccount default; }
fleet() { # makes what is missing of it, and lets each engine serve a prompt
  serving
  local pod
  for pod in replaying-0 replaying-1; do engine_pod "$pod" "$REPLAYING"; done | k apply -f - >/dev/null
  for pod in silent-0 silent-1; do engine_pod "$pod" "$SILENT"; done | k apply -f - >/dev/null
  engine_pod annotated-0 "$ANNOTATED" | k apply -f - >/dev/null
  worker replaying '{"selector": {"matchLabels": {"pool": "replaying"}}, "ports": {"events": "kv-events", "replay": "kv-replay"}}'
  worker silent '{"selector": {"matchLabels": {"pool": "silent"}}, "ports": {"events": 5557}}'
  # After an outage of the API server the node is told not ready for a while, and its Pods with it.
  for pod in replaying-0 replaying-1 silent-0 silent-1 annotated-0; do within 90 pod_is_ready "$pod"; done
  for pod in replaying-0 replaying-1 silent-0 silent-1 annotated-0; do within 15 active_everywhere "serving/$pod"; done
  fill
}
fill() {
  sim replaying-0 "request 1 ${PROMPTS[0]}"; sim replaying-1 "request 1 ${PROMPTS[1]}"; sim silent-0 "request 1 ${PROMPTS[2]}"
  sim silent-1 "request 1 ${PROMPTS[3]}"; sim annotated-0 "request 1 ${PROMPTS[4]}"
}
# Engines without replay say again what they hold: a replica that lost it has no other way to know.
renew() {
  local pod
  for pod in silent-0 silent-1 annotated-0; do sim "$pod" "clear 1"; done
  fill
}
running_engines() { k -n serving get pods -l engine=sim -o json | jq -r '.items[] | select(.metadata.deletionTimestamp == null and .status.podIP != null) | "\(.metadata.name) \(.status.podIP)"'; }
# Every replica answers every prompt with what the engines themselves hold, and lists nobody else. Two connections per
# question would take longer than what is measured: all questions of one kind go through one process.
answers_are_the_truth() {
  local number pod ip url replica=0 dir="$RUN/truth"
  rm -rf "$dir" && mkdir -p "$dir/want" "$dir/got"
  running_engines >"$RUN/engines"
  while read -r pod ip; do
    for number in "${!PROMPTS[@]}"; do
      printf 'next\nurl = "http://%s:9000/command"\ndata-raw = "truth %s"\noutput = "%s/want/%s.%s"\n' "$ip" "${PROMPTS[number]}" "$dir" "$pod" "$number"
    done
  done <"$RUN/engines" | sed 1d >"$dir/ask-engines"
  for number in "${!PROMPTS[@]}"; do echo "{\"model_name\": \"sim\", \"token_ids\": $(prompt_tokens ${PROMPTS[number]})}" >"$dir/body.$number"; done
  for url in $(replica_urls); do
    for number in "${!PROMPTS[@]}"; do
      printf 'next\nurl = "%s/query"\nheader = "Content-Type: application/json"\ndata = "@%s/body.%s"\noutput = "%s/got/%s.%s"\nfail\n' "$url" "$dir" "$number" "$dir" "$replica" "$number"
    done
    replica=$((replica + 1))
  done >"$dir/all"
  [ "$replica" -gt 0 ] || { fail "no replicas"; return; }
  sed 1d "$dir/all" >"$dir/ask-replicas"
  [ ! -s "$RUN/engines" ] || http --config "$dir/ask-engines" || return
  http --config "$dir/ask-replicas" || return
  : >"$dir/want.txt"
  [ ! -s "$RUN/engines" ] || (cd "$dir/want" && jq -r '"\(input_filename) \(.truth["1"].gpu)"' ./*) | sed 's#^\./##' | sort >"$dir/want.txt"
  while [ "$replica" -gt 0 ]; do
    replica=$((replica - 1))
    (cd "$dir/got" && jq -r '(input_filename | split(".")[-1]) as $n | .instances | to_entries[] | select(.key | startswith("serving/")) | "\(.key | ltrimstr("serving/")).\($n) \(.value.gpu)"' ./"$replica".*) |
      sort >"$dir/got.txt"
    diff "$dir/want.txt" "$dir/got.txt" || { echo "< what engines hold, > what replica $replica of $(replica_urls | tr '\n' ' ') answers"; return 1; }
  done
}
