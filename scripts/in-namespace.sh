#!/bin/sh
# Runs a program in a fresh network namespace, with the loopback and 10.77.0.0/16 on it:
# EndpointSlices accept no address of the loopback.
set -eu
ip link set lo up
ip addr add 10.77.0.1/16 dev lo
ip route add default dev lo # an API server looks for an address of its own
TEST_KUBE_NET=10.77 exec "$@"
