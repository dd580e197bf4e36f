#!/bin/sh
# bring_npm.sh DIRECTORY: install what the tests take from npm into DIRECTORY: axe-core, GitHub's
# description of its API, the official MCP client, tus-js-client and Uppy. The versions and hashes are in
# tests/npm/package-lock.json.
# No package runs a script of its own, and nothing is left behind if the installation fails.
set -eu
into=$1
here=$(dirname "$0")
command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 || {
  echo 'npm is not installed (Debian: apt-get install npm): tests that need its packages are skipped' >&2
  exit 1
}
rm -rf "$into.new" && mkdir -p "$into.new"
trap 'rm -rf "$into.new"' EXIT
cp "$here/npm/package.json" "$here/npm/package-lock.json" "$into.new"
npm ci --silent --ignore-scripts --no-audit --no-fund --prefix "$into.new" >/dev/null || {
  echo 'npm could not install the packages of tests/npm: tests that need them are skipped' >&2
  exit 1
}
# The package has other descriptions as well, 390 MB of them.
find "$into.new/node_modules/@octokit/openapi" -name '*.json' ! -name api.github.com.json \
  ! -name package.json -delete
rm -rf "$into" && mv "$into.new" "$into"
trap - EXIT
