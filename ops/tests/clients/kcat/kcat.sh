#!/usr/bin/env bash
# kcat, which has no administrator's calls but lists, and no transactions. Topics are made by their first record.
set -uo pipefail
values() { awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++) { p = ""; for (j = 0; j < i % 30; j++) p = p "abcdefghij"; printf "%08d %s\n", i, p } }'; }
result() { echo "RESULT $*"; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
kc() { kcat -b "$BOOTSTRAP" "$@"; }

# compare NAME TOPIC COUNT: reads the topic to its end; every record must be as sent.
compare() {
    kc -C -t "$2" -o beginning -e -q -X check.crcs=true | LC_ALL=C sort > "$work/got"
    values "$3" | LC_ALL=C sort > "$work/sent"
    if cmp -s "$work/got" "$work/sent"; then result "$1" ok "$3 records"
    else result "$1" fail "$(wc -l < "$work/got") of $3 came back as sent"; fi
}

steady() {
    for codec in none gzip snappy lz4 zstd; do
        values 2000 | kc -P -t "$PREFIX$codec" -z "$codec" -X acks=all -X enable.idempotence=true
        compare "$codec" "$PREFIX$codec" 2000
    done
    local topic="${PREFIX}group" members=() deadline=$((SECONDS + 40))
    values 1 | kc -P -t "$topic"
    for member in 1 2; do
        kcat -b "$BOOTSTRAP" -G "${PREFIX}group" -X auto.offset.reset=earliest -X auto.commit.interval.ms=200 -u "$topic" \
            > "$work/member$member" 2> "$work/log$member" & members+=($!)
    done
    values 400 | kc -P -t "$topic" -X acks=all
    until [ "$(cat "$work"/member? | sort -u | wc -l)" -ge 400 ] || [ "$SECONDS" -gt "$deadline" ]; do sleep 0.2; done
    kill -INT "${members[@]}"; wait "${members[@]}"
    local count; count=$(cat "$work"/member? | sort -u | wc -l)
    if [ "$count" = 400 ] && grep -q assigned "$work/log1" && grep -q assigned "$work/log2"; then result group ok "2 members"
    else result group fail "$count of 400 were read"; fi
    if kc -L -t "$topic" | grep -q "leader" && kc -Q -t "$topic:0:-1" | grep -q "offset"; then result admin ok "-L, -Q"
    else result admin fail "-L or -Q"; fi
    result consumer none "librdkafka is too old for it"
    result transactions none "kcat has none"
}

kill_phase() {
    # A line is given to kcat every few milliseconds; what it says is acknowledged when it ends well.
    local count=$((KILL_SECONDS * 100))
    values "$count" | while IFS= read -r line; do echo "$line"; sleep 0.01; done |
        kc -P -t "${PREFIX}kill" -X acks=all -X enable.idempotence=true ||
        { result kill fail "kcat ended with an error"; return; }
    compare kill "${PREFIX}kill" "$count"
}

echo "VERSION $(kcat -V | grep -o "Version [0-9.]*" | cut -d" " -f2), librdkafka $(kcat -V | grep -o "librdkafka [0-9.]*" | cut -d" " -f2)"
KILL_SECONDS=${DURATION:-20}
if [ "$PHASE" = steady ]; then steady; else kill_phase; fi
