#!/bin/sh
# Installs skyserve from the files of a release: detects the system, verifies the checksum, copies the binary.
#
#   SKYSERVE_RELEASE_URL=https://HOST/PATH sh install.sh
#
# SKYSERVE_RELEASE_URL  where the release's files are: the archives and checksums.txt; https, or file:// for a directory
# SKYSERVE_INSTALL_DIR  where to put the binary (default: /usr/local/bin if it can be written, else ~/.local/bin)
set -eu

fail() {
	printf 'error: %s\n' "$1" >&2
	[ -z "${2-}" ] || printf 'hint: %s\n' "$2" >&2
	exit 1
}

platform() {
	os=$(uname -s)
	case $os in
	Linux) os=linux ;;
	Darwin) os=darwin ;;
	*) fail "no binary for $os: releases are for Linux and macOS" "build it from source: make build" ;;
	esac
	arch=$(uname -m)
	case $arch in
	x86_64 | amd64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	*) fail "no binary for $arch: releases are for amd64 and arm64" "build it from source: make build" ;;
	esac
	echo "${os}_$arch"
}

# download URL FILE
download() {
	if command -v curl >/dev/null 2>&1; then
		curl -fsSL --retry 2 -o "$2" "$1" || fail "downloading $1 failed" "check SKYSERVE_RELEASE_URL"
	elif command -v wget >/dev/null 2>&1; then
		wget -q -O "$2" "$1" || fail "downloading $1 failed" "check SKYSERVE_RELEASE_URL"
	else
		fail "curl or wget is needed to download" "install one of them"
	fi
}

sha256() {
	if command -v sha256sum >/dev/null 2>&1; then
		sha256sum "$1" | cut -d ' ' -f 1
	elif command -v shasum >/dev/null 2>&1; then
		shasum -a 256 "$1" | cut -d ' ' -f 1
	else
		fail "sha256sum or shasum is needed to verify the download" "install coreutils"
	fi
}

# All steps are in a function, so that a script that was cut off while downloading does nothing.
main() {
	url=${SKYSERVE_RELEASE_URL-}
	[ -n "$url" ] || fail "SKYSERVE_RELEASE_URL is not set" "set it to where the release's checksums.txt is"
	case $url in
	https://* | file://* | http://127.0.0.1[:/]* | http://localhost[:/]*) ;;
	*) fail "SKYSERVE_RELEASE_URL must be https:// or file://, got $url" "the checksums are only as safe as their transport" ;;
	esac
	url=${url%/}
	platform=$(platform)

	dir=${SKYSERVE_INSTALL_DIR-}
	if [ -z "$dir" ]; then
		dir=/usr/local/bin
		[ -w "$dir" ] || dir=$HOME/.local/bin
	fi

	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	trap 'exit 130' INT TERM

	download "$url/checksums.txt" "$work/checksums.txt"
	line=$(grep -E "^[0-9a-f]{64}  skyserve_[0-9A-Za-z.+~-]+_$platform\.tar\.gz\$" "$work/checksums.txt") ||
		fail "$url/checksums.txt lists no archive for $platform" "check SKYSERVE_RELEASE_URL"
	[ "$(printf '%s\n' "$line" | wc -l)" -eq 1 ] || fail "$url/checksums.txt lists several archives for $platform" "point SKYSERVE_RELEASE_URL at one release"
	want=${line%% *}
	archive=${line##* }

	download "$url/$archive" "$work/$archive"
	got=$(sha256 "$work/$archive")
	[ "$got" = "$want" ] || fail "$archive: checksum is $got, want $want: nothing was installed" "download again; if it differs again, report it and do not use the file"

	tar -xzf "$work/$archive" -C "$work" skyserve || fail "$archive contains no skyserve"
	"$work/skyserve" version >/dev/null || fail "the binary of $archive does not run here"

	mkdir -p "$dir" || fail "cannot create $dir" "set SKYSERVE_INSTALL_DIR to a directory that you can write"
	# Replaced in one step: a running skyserve keeps its file.
	if ! { cp "$work/skyserve" "$dir/.skyserve.new" && chmod 755 "$dir/.skyserve.new" && mv -f "$dir/.skyserve.new" "$dir/skyserve"; }; then
		fail "cannot write $dir/skyserve" "set SKYSERVE_INSTALL_DIR to a directory that you can write"
	fi

	echo "installed $dir/skyserve: $("$dir/skyserve" version)"
	case ":$PATH:" in
	*":$dir:"*) ;;
	*) echo "hint: add it to your PATH: export PATH=\"$dir:\$PATH\"" >&2 ;;
	esac
}

main
