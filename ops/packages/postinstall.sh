#!/bin/sh
# After the files are there, at the first installation and at each newer one.
set -e

if ! getent passwd meridian >/dev/null; then
    useradd --system --user-group --home-dir /var/lib/meridian --no-create-home --shell /usr/sbin/nologin meridian
fi
install -d -o meridian -g meridian -m 0700 /var/lib/meridian
install -d -o root -g meridian -m 0750 /etc/meridian

# A node is restarted by its operator, who drains it first: an upgrade must not stop several at once.
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
