#!/bin/sh
# bring_tus.sh DIRECTORY: install tus-js-client, the tus project's own client, into DIRECTORY.
# Nothing is installed on the machine, and nothing is left behind where it does not work.
set -eu
into=$1
command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 || exit 1

rm -rf "$into.new" && mkdir -p "$into.new"
trap 'rm -rf "$into.new"' EXIT
npm install --silent --no-audit --no-fund --no-save --prefix "$into.new" tus-js-client@4.3.1 >/dev/null 2>&1
test -d "$into.new/node_modules/tus-js-client"
rm -rf "$into" && mv "$into.new" "$into"
trap - EXIT
