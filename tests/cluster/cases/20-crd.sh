# The CRD: what the API server takes, what it refuses, and in which words.
# shellcheck shell=bash

# Each file of crd-cases/ says in its first line what the refusal must contain; those that begin with `good` are taken.
the_api_server_takes_and_refuses_what_the_cases_say() {
  local file want answer good=0 bad=0
  for file in "$CLUSTER"/crd-cases/*.yaml; do
    want=$(sed -n 's/^# want: //p' "$file")
    if answer=$(k -n default create --dry-run=server -f "$file" 2>&1); then
      [ -z "$want" ] || fail "${file##*/}: taken"
      good=$((good + 1))
    else
      [ -n "$want" ] || fail "${file##*/}: $answer"
      grep -qF -- "$want" <<<"$answer" || fail "${file##*/}: does not say \`$want\`: $answer"
      bad=$((bad + 1))
    fi
  done
  [ "$good" -gt 5 ] && [ "$bad" -gt 20 ]
  figure "$good taken, $bad refused"
}

the_api_server_takes_every_example() {
  local namespace
  for namespace in serving llm-d; do k create namespace "$namespace" --dry-run=client -o yaml | k apply -f - >/dev/null; done
  k apply --dry-run=server --warnings-as-errors -f "$REPO/deploy/examples"
  k delete namespace llm-d --wait=false
}

kubectl_shows_and_explains_workers() {
  local shown field
  shown=$(k -n default create --dry-run=server -f "$CLUSTER/crd-cases/good-selector.yaml" -o json)
  jq -e '.spec.tenantId == "default" and .spec.discovery == "Off" and .spec.duplicatePolicy == "Auto"' <<<"$shown"
  same "$(k get crd indexerworkers.kvindexer.io -o json | jq -r '[.spec.versions[0].additionalPrinterColumns[] | select((.priority // 0) == 0) | .name] | join(" ")')" \
    "Model Tenant Workers Ready Blocks Gaps Trust Age"
  for field in spec.modelName spec.blockSize spec.selector spec.ports.events spec.dataParallel.startRankFrom spec.endpoints.address spec.discovery status.conditions status.trust; do
    k explain "iw.$field" >"$RUN/explained"
    awk '/^DESCRIPTION:/ {getline; if (length($0) > 12) found = 1} END {exit !found}' "$RUN/explained" || fail "$field has no description"
  done
}
