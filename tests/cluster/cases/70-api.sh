# The API server goes away for a minute: the data path goes on, and everything converges when it is back.
# shellcheck shell=bash

queries_go_on_for_a_minute_without_the_api_server() {
  fleet
  renew
  within 5 answers_are_the_truth
  local url start
  # Nothing can be asked of the API server meanwhile.
  replica_urls >"$RUN/urls"; running_engines >"$RUN/addresses"; service_url >"$RUN/service"
  _id replaying-0 >"$RUN/worker-id"; k -n kvindexer get pod kvindexer-1 -o json >"$RUN/replica.json"
  lab api-stop
  start=$(now_ms)
  # A worker's container and a replica's container die meanwhile; the kubelet starts both again by itself.
  ctr -a "$LAB/ctd/containerd.sock" -n k8s.io task kill -s SIGKILL "$(cat "$RUN/worker-id")"
  ctr -a "$LAB/ctd/containerd.sock" -n k8s.io task kill -s SIGKILL "$(jq -r '.status.containerStatuses[0].containerID' "$RUN/replica.json" | sed 's#.*//##')"
  url=http://$(jq -r .status.podIP "$RUN/replica.json"):8090
  within 10 _refuses "$url"
  timed 45 "restarted replica ready without the API server after" ready_at "$url"
  figure "its /ready says: $(http "$url/ready" | jq -er '.kubernetes' | cut -c1-100)"
  # It took registrations and blocks from its peers: engines without replay are known there alike.
  _same_answers silent-0 "${PROMPTS[2]}"
  _same_answers annotated-0 "${PROMPTS[4]}"
  while [ $(($(now_ms) - start)) -lt 60000 ]; do
    while read -r url; do ready_at "$url"; done <"$RUN/urls"
    _same_answers silent-1 "${PROMPTS[3]}"
    sleep 1
  done
}
_id() { k -n serving get pod "$1" -o json | jq -r '.status.containerStatuses[0].containerID' | sed 's#.*//##'; }
_refuses() { ! http --fail "$1/health"; }
_same_answers() { # _same_answers POD PROMPT: what the engine holds is what every replica answers
  local ip url want; ip=$(awk -v p="$1" '$1 == p {print $2}' "$RUN/addresses")
  want=$(http --data-raw "truth $2" "http://$ip:9000/command" | jq '.truth["1"].gpu')
  [ "$want" -gt 0 ] || fail "the engine holds nothing"
  while read -r url; do same "$(held "$url" "serving/$1" sim $2)" "$want"; done <"$RUN/urls"
}

everything_converges_when_the_api_server_is_back() {
  local start; start=$(now_ms)
  lab api-start
  within 60 _custom_resources_answer
  figure "API server back after $(seconds_since "$start") s"
  timed 45 "right answers after" answers_are_the_truth
  timed 60 "replicas ready after" replicas_are_ready 3
  sim replaying-0 "request 1 ${PROMPTS[0]}"
  within 5 answers_are_the_truth
  within 15 equal_replicas
}
_custom_resources_answer() { k get iw -A; }
