#!/bin/sh
# After the files are gone. Records stay in /var/lib/meridian, even when the package is purged.
set -e

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
