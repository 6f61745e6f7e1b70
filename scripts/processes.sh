# Sourced by the demos: background processes that end with the script.

tmp=$(mktemp -d)
stop() {
	local pids
	pids=$(cat "$tmp"/*.pid 2>/dev/null) || true
	# The shell's own kill: a bare Debian has no program of that name.
	[[ ! $pids ]] || kill $pids 2>/dev/null || true # some have ended
	wait
	rm -rf "$tmp"
}
trap stop EXIT

# run NAME COMMAND...: in the background, output in $tmp/NAME, pid in $tmp/NAME.pid.
run() {
	local name=$1
	shift
	"$@" >>"$tmp/$name" 2>&1 &
	echo $! >"$tmp/$name.pid"
}

# await NAME PATTERN: until PATTERN is in the output of NAME.
await() {
	for _ in {1..600}; do
		grep -qs "$2" "$tmp/$1" && return
		kill -0 "$(<"$tmp/$1.pid")" 2>/dev/null || break
		sleep 0.1
	done
	echo "demo: $1 does not start:" >&2
	cat "$tmp/$1" >&2
	exit 1
}

# free_port PORT: the first one from PORT on that nobody on this machine listens on.
free_port() {
	local port=$1
	while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
	echo "$port"
}

# free_ports N: ports, as many. They are below those that the tests draw from, and that the system
# gives to outgoing connections: nobody takes that of a program which is restarted.
free_ports() {
	local port=$((11000 + $$ % 8000))
	ports=()
	while ((${#ports[@]} < $1)); do
		port=$(free_port "$port")
		ports+=("$port")
		port=$((port + 1))
	done
}
