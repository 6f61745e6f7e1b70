package ui

import (
	"net"
	"strconv"
	"testing"
)

// freePorts returns ports on which nothing listens.
func freePorts(t *testing.T, n int) []string {
	t.Helper()
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports
}

// TestReplicas: what two real replicas say of each other: that they agree, that their thresholds
// differ, in Replicas and Doctor alike, and that one of them has gone. Its next life agrees, whatever was
// the last that the other said.
func TestReplicas(t *testing.T) {
	ports := freePorts(t, 2)
	replica := func(own, peer string) (base string, stop func()) {
		return start(t, "--use-kv-events=false", "--replica-sync-port", own, "--replica-sync-peers", "tcp://127.0.0.1:"+peer)
	}
	base, _ := replica(ports[0], ports[1])
	other, stop := replica(ports[1], ports[0])
	register(t, base, 1, "")
	register(t, other, 1, "")
	post(t, base+"/select_and_reserve", "", `{"model_name": "llama", "token_ids": [1, 2, 3]}`)
	post(t, other+"/select_and_reserve", "", `{"model_name": "llama", "token_ids": [1, 2, 3]}`)
	p := open(t, base, "#/replicas", 1440, 900, false)
	p.says("1 other replica agrees with this one.")
	p.shoot("replicas-agree", false)
	d := open(t, base, "#/doctor", 1440, 900, false)
	d.says("Nothing is wrong.")
	d.shoot("doctor-healthy", false)
	post(t, other+"/busy_threshold", "", `{"model": "llama", "active_decode_blocks_threshold": 0.5}`)
	p.says("1 of 1 replica differs from this one.")
	p.says("differ: llama")
	p.shoot("replicas-differ", false)
	p.audit("replicas")
	d.says("1 error.")
	d.shoot("doctor-differ", false)
	d.audit("doctor")
	stop()
	p.says("1 of 1 peer cannot be reached.")
	p.says("what it said is of")
	p.shoot("replicas-down", false)
	d.says("is not connected")
	d.shoot("doctor-down", true)
	other, _ = replica(ports[1], ports[0])
	register(t, other, 1, "")
	p.says("gone")
	p.says("1 other replica agrees with this one.")
}
