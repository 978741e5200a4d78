#!/bin/sh
# Publishes, receives, settles and reads with curl alone. STRANDMQ_SERVER is the
# broker's URL; the topic is made anew each time.
set -eu
server=${STRANDMQ_SERVER:-http://127.0.0.1:7171}
topic=example-curl-$$
at=$server/v1/topics/$topic
json='Content-Type: application/json'

# What fails says why: the problem is printed, and the script ends.
call() {
  curl -sS --fail-with-body "$@" || { echo >&2; exit 1; }
}

call -X PUT "$at" -H "$json" -d '{"partitions": 2}' >/dev/null

echo 'publish: one value as it is, under an id, twice'
for _ in first again; do
  call "$at/messages?key=alice&id=a-1" -H 'Content-Type: application/octet-stream' --data-binary 'twelve apples'
done

echo 'publish: one message a line'
call "$at/messages" -H 'Content-Type: application/x-ndjson' --data-binary '
{"key": "alice", "value": {"total": 7}}
{"key": "bob", "value": "by phone"}'

echo 'receive and ack, until the group has settled all three'
left=3
while [ "$left" -gt 0 ]; do
  got=$(call "$at/groups/billing/poll" -H "$json" -d '{"member": "m1", "max": 10, "wait": "20s", "create": true}')
  tokens=$(echo "$got" | grep -o '"token":"[^"]*"' | cut -d '"' -f 4)
  for token in $tokens; do
    call "$at/groups/billing/ack" -H "$json" -d "{\"tokens\": [\"$token\"]}" >/dev/null
    left=$((left - 1))
  done
done

echo 'read: all that is stored, a line each'
call "$at/messages" -H 'Accept: application/x-ndjson'

echo 'listen: the same as events, of which three are enough'
call "$at/messages?from=earliest&limit=3" -H 'Accept: text/event-stream' | grep '^data'

echo 'what is wrong says what to do'
curl -sS "$at/messages?kye=alice" -H 'Content-Type: application/octet-stream' -d x

call -X DELETE "$at?confirm=$topic"
echo 'done: 3 acked'
