#!/usr/bin/env bash
# kcat, which has no administrator's calls but lists, and no transactions. Topics are made by their first record.
set -uo pipefail
values() { awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++) { p = ""; for (j = 0; j < i % 30; j++) p = p "abcdefghij"; printf "%08d %s\n", i, p } }'; }
result() { echo "RESULT $*"; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
# How to connect, by librdkafka's names.
connect=(); while IFS= read -r option; do [ -z "$option" ] || connect+=(-X "$option"); done <<< "${OPTIONS:-}"
kc() { kcat -b "$BOOTSTRAP" "${connect[@]}" "$@"; }

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
        kcat -b "$BOOTSTRAP" "${connect[@]}" -G "${PREFIX}group" -X auto.offset.reset=earliest -X auto.commit.interval.ms=200 -u "$topic" \
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

# member NAME: joins the group; what it reads goes to out-NAME, what it is assigned to log-NAME. It leaves by SIGINT.
member() {
    kcat -b "$BOOTSTRAP" "${connect[@]}" -G "$NAME" -X auto.offset.reset=earliest -X auto.commit.interval.ms=200 -X session.timeout.ms=10000 -u -f '%p %o %s\n' "$PREFIX$PHASE" \
        > "$work/out-$1" 2> "$work/log-$1" & members[$1]=$!
}
owned() { grep rebalanced "$work/log-$1" 2>/dev/null | tail -1 | sed -n 's/.*assigned: //p' | grep -o '\[' | wc -l; }
leave() { kill -INT "${members[$1]}"; wait "${members[$1]}"; }
# await COMMAND ...: until it succeeds, for 40 s at most.
await() { local deadline=$((SECONDS + 40)); until "$@"; do [ "$SECONDS" -lt "$deadline" ] || return 1; sleep 0.1; done; }
shares() { [ "$(owned one)" = 2 ] && [ "$(owned two)" = 2 ]; }
has_all() { [ "$(owned "$1")" = 4 ]; }
has_read() { [ "$(sed 's/^[0-9]* [0-9]* 0*\([0-9]\)/\1/; s/ .*//' "$work"/out-* | sort -un | wc -l)" -ge "$1" ]; }
# tell_read FILE ...: a line for each record.
tell_read() { awk '{ print "READ", $3 + 0, $1, $2 }' "$@"; }

# Two members share four partitions, until one leaves; nodes are killed.
group_kill() {
    declare -A members
    member one; member two
    await shares || { result "$PHASE" fail "two members do not share"; return; }
    echo READY
    { number=0; while [ ! -e "$SIGNALS/stop" ]; do printf "%08d\n" "$number"; number=$((number + 1)); sleep 0.02; done; echo "$number" > "$work/count"; } |
        kc -P -t "$PREFIX$PHASE" -X acks=all -X enable.idempotence=true & local writer=$!
    await test -e "$SIGNALS/leave"
    leave two
    tell_read "$work/out-one" "$work/out-two"; echo LEFT
    wait "$writer" || { result "$PHASE" fail "kcat ended with an error"; return; }
    local count; count=$(cat "$work/count")
    seq 0 $((count - 1)) | sed 's/^/ACKED /'
    await has_all one && await has_read "$count" || { result "$PHASE" fail "one member does not have or has not read all"; return; }
    leave one
    tell_read "$work/out-one"
    member after
    await has_all after || { result "$PHASE" fail "the group does not go on"; return; }
    sleep 0.5; leave after
    awk '{ print "AGAIN", $3 + 0 }' "$work/out-after"
    result "$PHASE" ok "$count records"
}

# What kcat can ask: -L and -Q, over and over while nodes are killed.
admin_kill() {
    local rounds=0 last=false
    asks() { kc -L -t "${PREFIX}group" -m 5 | grep -q "leader [1-9]" && kc -Q -t "${PREFIX}group:0:-1" -m 5 | grep -q "offset"; }
    until "$last"; do
        [ -e "$SIGNALS/stop" ] && last=true
        await asks || { result "$PHASE" fail "-L or -Q"; return; }
        rounds=$((rounds + 1)); [ "$rounds" = 1 ] && echo READY
        sleep 0.1
    done
    result "$PHASE" ok "$rounds rounds of -L, -Q"
}

echo "VERSION $(kcat -V | grep -o "Version [0-9.]*" | cut -d" " -f2), librdkafka $(kcat -V | grep -o "librdkafka [0-9.]*" | cut -d" " -f2)"
KILL_SECONDS=${DURATION:-20}
case "$PHASE" in
    steady) steady ;;
    kill) kill_phase ;;
    group-kill) group_kill ;;
    consumer-kill) result "$PHASE" none "librdkafka is too old for it" ;;
    transactions-kill) result "$PHASE" none "kcat has none" ;;
    admin-kill) admin_kill ;;
esac
