#!/bin/sh
# Before the files go. Debian's dpkg says `remove` or `upgrade`, rpm the number of versions that stay.
set -e

case "$1" in
remove | 0)
    if [ -d /run/systemd/system ]; then
        systemctl disable --now meridian.service || true
    fi
    ;;
esac
