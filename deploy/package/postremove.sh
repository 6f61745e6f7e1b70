#!/bin/sh
# Configuration and data stay until a purge; the user stays, as files may be theirs.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
if [ "$1" = purge ]; then
  rm -rf /var/lib/select-service /etc/select-service /etc/systemd/system/*.wants/select-service.service
fi
