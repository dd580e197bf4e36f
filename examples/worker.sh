#!/bin/sh
# A worker in shell, nothing but curl: examples/worker.sh mails
# TOWPATH_ADDRESS (http://127.0.0.1:8080) and TOWPATH_API_KEY say where and as whom.
# A job's payload comes on the standard input of `handle`, what it prints is the result.
queue=${1:-mails}
api=${TOWPATH_ADDRESS:-http://127.0.0.1:8080}/api/v1/queues/$queue

post() { # path body
  curl -sS --fail --max-time 40 "$api/$1" -H "Authorization: Bearer $TOWPATH_API_KEY" \
    -H 'Content-Type: application/json' -d "$2"
}
field() { python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin)["jobs"][0][sys.argv[1]]))' "$1"; }

handle() { tr '[:lower:]' '[:upper:]'; } # your work

trap 'exit 0' TERM INT
while :; do
  claimed=$(post claim "{\"worker\": \"sh-$$\", \"wait\": 5, \"lease\": 60}") || { sleep 1; continue; }
  [ -n "$claimed" ] || continue # 204: nothing to do
  id=$(echo "$claimed" | field id | tr -d '"')
  token=$(echo "$claimed" | field token)
  if result=$(echo "$claimed" | field payload | handle); then
    post "jobs/$id/complete" "{\"token\": $token, \"result\": $result}"
  else
    post "jobs/$id/fail" "{\"token\": $token, \"reason\": \"handle failed\"}"
  fi
  echo
done
