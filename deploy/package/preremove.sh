#!/bin/sh
# Not at an upgrade: dpkg says "remove" and rpm 0 where the package goes. Debian keeps until a
# purge whether the service is on, as it keeps the configuration: installed again, it is as before.
set -e
case "$1" in
remove)
  if [ -d /run/systemd/system ]; then
    systemctl stop select-service.service || true
  fi
  ;;
0)
  if [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now select-service.service || true
  elif command -v systemctl >/dev/null; then
    systemctl --no-reload disable select-service.service || true
  fi
  ;;
esac
