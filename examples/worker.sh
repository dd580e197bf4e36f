#!/bin/sh
# A worker in shell, nothing but curl: examples/worker.sh mails
# ADDRESS (http://127.0.0.1:8080) and TOWPATH_API_KEY say where and as whom.
# A job's payload comes as JSON on the standard input of `handle`, what it prints is the result.
api=${ADDRESS:-http://127.0.0.1:8080}/api/v1/queues/${1:-mails}

post() { # path body
  curl -sS --fail-with-body --max-time 40 "$api/$1" -H "Authorization: Bearer $TOWPATH_API_KEY" \
    -H 'Content-Type: application/json' -d "$2"
}
field() { # of the job, as JSON; the id as it stands in a path
  python3 -c 'import json, sys, urllib.parse as url
value = json.load(sys.stdin)["jobs"][0][sys.argv[1]]
print(url.quote(value, safe="") if sys.argv[1] == "id" else json.dumps(value))' "$1"
}

handle() { wc -c; } # your work

trap 'stop=1' TERM INT # heard between two jobs
while [ -z "$stop" ]; do
  claimed=$(post claim "{\"worker\": \"sh-$$\", \"wait\": 5, \"lease\": 60}") || { sleep 1; continue; }
  [ -n "$claimed" ] || continue # 204: nothing to do
  id=$(echo "$claimed" | field id)
  token=$(echo "$claimed" | field token)
  if result=$(echo "$claimed" | field payload | handle); then
    post "jobs/$id/complete" "{\"token\": $token, \"result\": $result}"
  else
    post "jobs/$id/fail" "{\"token\": $token, \"reason\": \"handle failed\"}"
  fi
  echo
done
