#!/bin/sh
# Prints a container image with the digest that its tag has now: NAME:TAG@sha256:DIGEST.
set -eu
image=${1:-}
case $image in
*@* | '' | *[!A-Za-z0-9./:_-]* | *[!:]/*:*/*) bad=1 ;;
*:*) bad= ;;
*) bad=1 ;;
esac
if [ -n "$bad" ]; then
	echo "image: must be NAME:TAG, got $image" >&2
	exit 2
fi

# hub_digest requests the digest of an image from Docker Hub's registry.
hub_digest() {
	name=${image%:*}
	token=$(curl --fail --silent --show-error "https://auth.docker.io/token?service=registry.docker.io&scope=repository:$name:pull" | sed -n 's/.*"token" *: *"\([^"]*\)".*/\1/p')
	curl --fail --silent --show-error --head \
		--header "Authorization: Bearer $token" \
		--header 'Accept: application/vnd.oci.image.index.v1+json' \
		--header 'Accept: application/vnd.docker.distribution.manifest.list.v2+json' \
		"https://registry-1.docker.io/v2/$name/manifests/${image##*:}" |
		tr -d '\r' | sed -n 's/^[Dd]ocker-[Cc]ontent-[Dd]igest: *//p'
}

if command -v docker >/dev/null; then
	digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$image") || digest=
elif command -v skopeo >/dev/null; then
	digest=$(skopeo inspect --format '{{.Digest}}' "docker://$image") || digest=
elif command -v curl >/dev/null; then
	digest=$(hub_digest) || digest=
else
	echo "image: install docker with buildx, skopeo or curl to read the digest of $image" >&2
	exit 1
fi
if [ -z "$digest" ]; then
	echo "image: cannot read the digest of $image from its registry: check the name, the tag and the network" >&2
	exit 1
fi
if ! echo "$digest" | grep -Eq '^sha256:[0-9a-f]{64}$'; then
	echo "image: the digest must be sha256: and 64 hexadecimal digits, got $digest" >&2
	exit 1
fi
echo "$image@$digest"
