# Registration by hand: the fall-back, through the Service.
# shellcheck shell=bash

# The replica that was asked finds the two others under the name of the headless Service.
a_registration_through_the_service_reaches_all_replicas() {
  serving
  engine by-hand-0 "$NO_REPLAY"
  local ip answer; ip=$(pod_ip serving by-hand-0)
  answer=$(_post /register "{\"instance_id\": 77, \"model_name\": \"by-hand\", \"block_size\": 16, \"endpoint\": \"tcp://$ip:5557\"}")
  echo "$answer"
  jq -e '.peers | length == 2' <<<"$answer"
  timed 5 "connected everywhere after" active_everywhere 77
  sim by-hand-0 "request 1 1 2 3"
  timed 5 "right answers after" all_hold 48 77 by-hand "1 2 3"
}

an_unregistration_through_the_service_reaches_all_replicas() {
  _post /unregister '{"instance_id": 77, "model_name": "by-hand"}'
  timed 5 "gone everywhere after" absent_everywhere 77
}
_post() { http --fail-with-body -H 'Content-Type: application/json' -d "$2" "$(service_url)$1"; }
