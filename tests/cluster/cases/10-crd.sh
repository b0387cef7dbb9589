# What the API server makes of the CustomResourceDefinition: objects it takes, objects it refuses and why, what it explains.
# shellcheck shell=bash

# No rule was too costly, no part of the schema was put aside.
the_definition_is_accepted_as_structural() {
  local conditions
  conditions=$(k get crd indexerworkers.kvindexer.io -o json | jq -c '[.status.conditions[] | {(.type): .status}] | add')
  same "$(jq -r .Established <<<"$conditions")" True
  same "$(jq -r '.NonStructuralSchema // "absent"' <<<"$conditions")" absent
}

good_objects_are_taken() {
  local file count=0
  for file in "$CLUSTER"/crd-cases/good-*.yaml; do
    k -n default apply --dry-run=server --validate=strict --warnings-as-errors -f "$file"
    count=$((count + 1))
  done
  [ "$count" -ge 12 ] || fail "only $count"
  figure "$count objects"
}

bad_objects_are_refused_with_the_words_that_help() {
  local file want answer count=0
  for file in "$CLUSTER"/crd-cases/bad-*.yaml; do
    want=$(sed -n '1s/^# want: //p' "$file")
    [ -n "$want" ] || fail "${file##*/} does not say what it wants"
    answer=$(k -n default apply --dry-run=server --validate=strict -f "$file" 2>&1) && fail "${file##*/} was taken"
    grep -qF -- "$want" <<<"$answer" || fail "${file##*/}: $answer"
    count=$((count + 1))
  done
  [ "$count" -ge 48 ] || fail "only $count"
  figure "$count objects"
}

the_examples_are_taken() {
  local file count=0
  for file in "$REPO"/deploy/examples/*.yaml; do
    sed 's/namespace: .*/namespace: default/' "$file" | k apply --dry-run=server --validate=strict -f -
    count=$((count + 1))
  done
  [ "$count" -ge 5 ] || fail "only $count"
  figure "$count files"
}

every_field_is_explained() {
  local text
  text=$(k explain iw --recursive)
  grep -q startRankFrom <<<"$text" || fail "$text"
  text=$(k explain iw.spec)
  grep -q 'Tokens per block' <<<"$text" || fail "$text"
  ! grep -q '<no description>' <<<"$text" || fail "$text"
  text=$(k explain iw.spec.ports.events)
  grep -q '5557, or kv-events' <<<"$text" || fail "$text"
}

defaults_are_set_and_columns_are_shown() {
  local object
  object=$(k -n default create --dry-run=server -f "$CLUSTER/crd-cases/good-selector.yaml" -o json)
  jq -e '.spec.tenantId == "default" and .spec.discovery == "Off" and .spec.duplicatePolicy == "Auto"' <<<"$object"
  same "$(k get crd indexerworkers.kvindexer.io -o json | jq -r '[.spec.versions[0].additionalPrinterColumns[] | select((.priority // 0) == 0) | .name] | join(" ")')" \
    "Model Tenant Workers Ready Blocks Gaps Trust Age"
}
