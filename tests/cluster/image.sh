#!/usr/bin/env bash
# Builds the image of the shipped Dockerfile, unchanged, without a registry: the stage `build` is replaced by a folder with
# the given program, and the distroless base by one of the same shape made from Debian packages. Needs root and buildah.
#   image.sh PROGRAM OUT.tar NAME:TAG    OUT.tar is an OCI archive; NAME:TAG is what a manifest says
# Settings: LAB (state and cache).
# Not proved by this: that the real base images exist, and that cargo works inside the official Rust image.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
REPO=$(cd "$HERE/../.." && pwd)
PROGRAM=$1 OUT=$2 NAME=$3
LAB=${LAB:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/kvindexer-cluster}
WORK=$LAB/image
BASE=$LAB/base-bookworm-2
export BUILDAH_ISOLATION=chroot SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}

# The same files as distroless `cc`, below $BASE/files.
base_root() {
  [ -e "$BASE/complete" ] && return
  rm -rf "$BASE" && mkdir -p "$BASE/debs" "$BASE/files"
  (cd "$BASE/debs" && apt-get -o APT::Sandbox::User=root download -qq libc6 libgcc-s1 gcc-12-base ca-certificates tzdata base-files netbase >/dev/null)
  local deb
  for deb in "$BASE"/debs/*.deb; do dpkg -x "$deb" "$BASE/files"; done
  rm -rf "$BASE/files/usr/share/doc" "$BASE/files/usr/share/man"
  mkdir -p "$BASE/files/etc/ssl/certs" "$BASE/files/home/nonroot" "$BASE/files/tmp"
  cat "$BASE"/files/usr/share/ca-certificates/mozilla/*.crt >"$BASE/files/etc/ssl/certs/ca-certificates.crt"
  printf 'root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n' >"$BASE/files/etc/passwd"
  printf 'root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n' >"$BASE/files/etc/group"
  echo 'hosts: files dns' >"$BASE/files/etc/nsswitch.conf"
  chown -R 65532:65532 "$BASE/files/home/nonroot"
  chmod 1777 "$BASE/files/tmp"
  touch "$BASE/complete"
}

rm -rf "$WORK"
mkdir -p "$WORK/build/src/target/release"
cat >"$WORK/storage.conf" <<T
[storage]
driver = "vfs"
graphroot = "$WORK/graph"
runroot = "$WORK/run"
T
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$WORK/policy.json"
export CONTAINERS_STORAGE_CONF=$WORK/storage.conf TMPDIR=$WORK
policy="--signature-policy $WORK/policy.json"

base_root
made=$(buildah from $policy scratch)
buildah copy --quiet "$made" "$BASE/files" / >/dev/null
buildah config --user 65532 --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$made"
buildah commit --quiet $policy --timestamp 0 --rm "$made" localhost/runtime-base:1 >/dev/null

install -m 0755 "$PROGRAM" "$WORK/build/src/target/release/kvindexer"
runtime=$(awk '$1 == "FROM" {name = $2} END {print name}' "$REPO/Dockerfile")
buildah build --quiet $policy --pull-never --timestamp 0 \
  --build-context build="$WORK/build" --build-context "$runtime=container-image://localhost/runtime-base:1" \
  --tag "$NAME" --file "$REPO/Dockerfile" "$REPO" >/dev/null
rm -f "$OUT"
# A manifest says `kvindexer:0.1.0`; the kubelet looks for the normalised name.
buildah push --quiet $policy "$NAME" "oci-archive:$OUT:docker.io/library/$NAME"
rm -rf "$WORK"
