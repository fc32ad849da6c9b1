#!/bin/sh
# Lists the flags in the sources of an engine, for testdata/engine_flags.txt: sh engine-flags.sh vllm|sglang CHECKOUT
set -eu
dashes() { tr _ -; }
case ${1:-} in
vllm)
	grep -oh '"--[a-z0-9-]*"' "$2/vllm/engine/arg_utils.py" | tr -d '"'
	sed -n '/^class FrontendArgs/,/def add_cli_args/s/^    \([a-z0-9_]*\): .*/--\1/p' "$2/vllm/entrypoints/openai/cli_args.py" | dashes
	;;
sglang) sed -n '/^class ServerArgs/,/def __post_init__/s/^    \([a-z0-9_]*\): A\[.*/--\1/p' "$2/python/sglang/srt/server_args.py" | dashes ;;
*)
	echo "the engine must be vllm or sglang, got '${1:-}'" >&2
	exit 2
	;;
esac | sort -u
