#!/usr/bin/env bash
# The stages of `vivavoce triton` from one to another, as the original deployment's script takes them.
set -euo pipefail

if [[ $# -lt 2 ]]; then
    echo "usage: run.sh STAGE STOP_STAGE [options of \`vivavoce triton\`]" >&2
    echo "  0 download  1 convert  2 repository  3 server  4 HTTP  5 gRPC benchmark  6 offline benchmark" >&2
    exit 2
fi
if ! command -v vivavoce > /dev/null; then
    echo "error: vivavoce is not on PATH; install it, or activate its environment" >&2
    exit 2
fi
exec vivavoce triton --stage "$1" --stop-stage "$2" "${@:3}"
