#!/bin/sh
# Gets what the agent needs. It runs before every start of the agent and does what is
# not done yet, so that a machine whose network came late gets there too.
set -eu
program=/usr/local/bin/skyserve

is_program() { echo "@SHA256@  $1" | sha256sum --check --status 2>/dev/null; }
if ! is_program "$program"; then
	curl --fail --silent --show-error --location --retry 5 --connect-timeout 10 --output "$program.new" '@URL@'
	is_program "$program.new" || { rm -f "$program.new"; echo 'skyserve: what @URL@ holds is another program' >&2; exit 1; }
	chmod 0755 "$program.new"
	mv "$program.new" "$program"
fi
