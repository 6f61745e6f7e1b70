#!/bin/sh
# Not at an upgrade: dpkg says "remove" and rpm 0 where the package goes.
set -e
case "$1" in
remove | 0)
  if [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now select-service.service || true
  elif command -v systemctl >/dev/null; then
    systemctl --no-reload disable select-service.service || true
  fi
  ;;
esac
