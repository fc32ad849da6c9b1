#!/bin/sh
# Downloads and installs what the agent needs. It is idempotent and runs before every start
# of the agent, so that it also succeeds if the network becomes available late.
set -eu
program=/usr/local/bin/skyserve
@CREDENTIALS@
is_program() { echo "@SHA256@  $1" | sha256sum --check --status 2>/dev/null; }
if ! is_program "$program"; then
	@SIGNED@curl --fail --silent --show-error --location --retry 5 --connect-timeout 10 --output "$program.new" @SOURCE@
	is_program "$program.new" || { rm -f "$program.new"; echo 'skyserve: the file at @URL@ does not have the expected SHA-256' >&2; exit 1; }
	chmod 0755 "$program.new"
	mv "$program.new" "$program"
fi
