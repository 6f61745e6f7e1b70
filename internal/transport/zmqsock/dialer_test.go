package zmqsock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// names is a name service. A name that is not there is not found.
type names struct {
	// mu guards what follows.
	mu     sync.Mutex
	hosts  map[string][]netip.Addr
	asked  map[string]int
	change chan struct{} // of capacity 1
}

func newNames() *names {
	return &names{hosts: make(map[string][]netip.Addr), asked: make(map[string]int), change: make(chan struct{}, 1)}
}

func (n *names) set(host string, addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.hosts, host)
	for _, a := range addresses {
		n.hosts[host] = append(n.hosts[host], netip.MustParseAddr(a))
	}
}

func (n *names) lookup(_ context.Context, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	n.asked[host]++
	found := n.hosts[host]
	n.mu.Unlock()
	select {
	case n.change <- struct{}{}:
	default:
	}
	if len(found) > 0 {
		return found, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func (n *names) lookups(host string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[host]
}

// await waits until host was asked for count times.
func (n *names) await(t *testing.T, host string, count int) {
	t.Helper()
	timeout := time.After(zmqtest.Patience)
	for n.lookups(host) < count {
		select {
		case <-n.change:
		case <-timeout:
			t.Fatalf("%s: %d lookups, want %d", host, n.lookups(host), count)
		}
	}
}

// on gives endpoint another host.
func on(host, endpoint string) string {
	return "tcp://" + host + endpoint[strings.LastIndexByte(endpoint, ':'):]
}

func startWith(t *testing.T, n *names) *zmqsock.Hub {
	t.Helper()
	return zmqtest.Start(t, zmqsock.NewWithLookup(zmqsock.DefaultOptions(), n.lookup))
}

// Lookups that are not answered delay neither the connections nor the messages
// of other streams: all but one of the lookups that may run at a time hang until
// the test ends, and the streams that come after them are served nevertheless.
func TestSilentNamesDelayNoOther(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	n := newNames()
	n.set("good", "127.0.0.1")
	h := zmqtest.Start(t, zmqsock.NewWithLookup(zmqsock.DefaultOptions(), func(ctx context.Context, host string) ([]netip.Addr, error) {
		if strings.HasPrefix(host, "silent") {
			<-release
		}
		return n.lookup(ctx, host)
	}))
	for i := range zmqsock.LookupsAtOnce - 1 {
		subscribe(t, h, fmt.Sprintf("tcp://silent%d:5557", i), zmqtest.NewLog())
	}
	for i := range 20 {
		pub, l := zmqtest.NewPublisher(t, "tcp://127.0.0.1:*"), zmqtest.NewLog()
		defer pub.Close()
		endpoint := pub.Endpoint
		if i%2 == 0 {
			endpoint = on("good", endpoint)
		}
		subscribe(t, h, endpoint, l)
		pub.Subscribers(1)
		pub.Publish(1, []byte("one"))
		l.Await(t, "message", zmqtest.Has("up", zmqtest.First))
	}
}

// Hundreds of endpoints where something listens and says nothing do not keep the one that
// comes after them waiting until all of them have been tried.
func TestSilentServersDelayNoOther(t *testing.T) {
	t.Parallel()
	const silent = 500
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tried := make(chan struct{}, 100*silent)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			tried <- struct{}{}
		}
	}()
	defer func() { _ = listener.Close(); <-done }()
	h, l := start(t, zmqsock.DefaultOptions()), zmqtest.NewLog()
	for range silent {
		subscribe(t, h, "tcp://"+listener.Addr().String(), zmqtest.NewLog())
	}
	pub := zmqtest.NewPublisher(t, "tcp://127.0.0.1:*")
	defer pub.Close()
	subscribe(t, h, pub.Endpoint, l)
	l.Await(t, "connection", zmqtest.Has("up"))
	if n := len(tried); n > silent/5*4 {
		t.Errorf("%d of %d silent endpoints were tried before", n, silent)
	}
}

func TestNameIsFoundLater(t *testing.T) {
	t.Parallel()
	n, l := newNames(), zmqtest.NewLog()
	h := startWith(t, n)
	pub := zmqtest.NewPublisher(t, "tcp://127.0.0.1:*")
	defer pub.Close()
	subscribe(t, h, on("w1", pub.Endpoint), l)
	n.await(t, "w1", 1)
	n.set("w1", "127.0.0.1")
	pub.Subscribers(1)
	pub.Publish(1, []byte("one"))
	l.Await(t, "message", zmqtest.Has("up", zmqtest.First))
}

// An engine that comes back at another address is found. While it is connected
// its name is not looked up, and after the name is gone its old address is not
// tried any more.
func TestNameMoves(t *testing.T) {
	t.Parallel()
	n, l := newNames(), zmqtest.NewLog()
	n.set("w1", "127.0.0.1")
	h := startWith(t, n)
	pub := zmqtest.NewPublisher(t, "tcp://127.0.0.1:*")
	old := pub.Endpoint
	subscribe(t, h, on("w1", old), l)
	pub.Subscribers(1)
	l.Await(t, "first connection", zmqtest.Has("up"))
	connected := n.lookups("w1")
	<-time.After(1200 * time.Millisecond) // more than the first wait between two lookups
	if got := n.lookups("w1"); got != connected {
		t.Errorf("%d lookups while connected, want none", got-connected)
	}

	pub.Close()
	n.set("w1", "127.0.0.2")
	pub = zmqtest.NewPublisher(t, on("127.0.0.2", old))
	pub.Subscribers(1)
	pub.Publish(1, []byte("one"))
	l.Await(t, "message from the new address", zmqtest.Has("up", "down", "up", zmqtest.First))

	n.set("w1")
	before := n.lookups("w1")
	pub.Close()
	n.await(t, "w1", before+2) // the answer of the first has been taken
	listener, err := net.Listen("tcp", strings.TrimPrefix(pub.Endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	if err := listener.(*net.TCPListener).SetDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if conn, err := listener.Accept(); err == nil {
		_ = conn.Close()
		t.Error("the old address of a name that is gone is still tried")
	}
}

// The next address is tried as soon as one refuses: no lookup but the first is
// ever answered, so nothing else can lead to the third address.
func TestNameOfSeveralAddresses(t *testing.T) {
	t.Parallel()
	n, l := newNames(), zmqtest.NewLog()
	n.set("w1", "127.0.0.3", "127.0.0.2", "127.0.0.1")
	h := zmqtest.Start(t, zmqsock.NewWithLookup(zmqsock.DefaultOptions(), func(ctx context.Context, host string) ([]netip.Addr, error) {
		if n.lookups(host) > 0 {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return n.lookup(ctx, host)
	}))
	pub := zmqtest.NewPublisher(t, "tcp://127.0.0.1:*")
	defer pub.Close()
	subscribe(t, h, on("w1", pub.Endpoint), l)
	pub.Subscribers(1)
	pub.Publish(1, []byte("one"))
	l.Await(t, "message", zmqtest.Has("up", zmqtest.First))
	pub.Restart() // at the same address
	pub.Subscribers(1)
	l.Await(t, "reconnected", zmqtest.Has("up", "down", "up"))
}

// A request waits for its name, goes to the address that answers, and once.
func TestRequestToName(t *testing.T) {
	t.Parallel()
	n, l := newNames(), zmqtest.NewLog()
	h := startWith(t, n)
	server := zmqtest.NewReplayServer(t, "tcp://127.0.0.1:*", false)
	defer server.Close()
	server.Keep(zmqtest.Kept{Seq: 1, Payload: []byte("one")})
	id, err := h.Request(on("w1", server.Endpoint), [][]byte{nil, zmqtest.Seq(1)}, l.Answer)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close(id)
	n.await(t, "w1", 1)
	n.set("w1", "127.0.0.2", "127.0.0.1")
	l.Await(t, "answers", zmqtest.Has(zmqtest.First, `["" "\xff\xff\xff\xff\xff\xff\xff\xff" ""]`))
	if got := server.Requests(); !slices.Equal(got, []uint64{1}) {
		t.Errorf("requests %v, want [1]", got)
	}
}

// What is closed before its name is known is never connected.
func TestCloseDuringLookup(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}, 2), make(chan struct{})
	h := zmqtest.Start(t, zmqsock.NewWithLookup(zmqsock.DefaultOptions(), func(ctx context.Context, _ string) ([]netip.Addr, error) {
		asked <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}))
	server, l := zmqtest.NewReplayServer(t, "tcp://127.0.0.1:*", false), zmqtest.NewLog()
	defer server.Close()
	sub := subscribe(t, h, on("w1", zmqtest.FreeEndpoint(t)), l)
	req, err := h.Request(on("w2", server.Endpoint), [][]byte{nil, zmqtest.Seq(1)}, l.Answer)
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	<-asked
	h.Resume(sub) // nothing to read on from
	h.Close(sub)
	h.Close(req)
	close(release)
	// A request that is sent now would be the second.
	again, err := h.Request(server.Endpoint, [][]byte{nil, zmqtest.Seq(2)}, l.Answer)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close(again)
	l.Await(t, "end mark", func(events []string) bool { return len(events) == 1 })
	if got := server.Requests(); !slices.Equal(got, []uint64{2}) {
		t.Errorf("requests %v, want [2]", got)
	}
}

// A hub that stops cuts off lookups at silent name servers instead of waiting
// for their time limits, and leaves no goroutine (TestMain looks for them).
func TestStopDuringLookup(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	dialled := make(chan context.Context, 1000)
	h := zmqsock.NewWithLookup(zmqsock.DefaultOptions(), zmqsock.LookupVia(func(ctx context.Context, _, _ string) (net.Conn, error) {
		dialled <- ctx
		return new(net.Dialer).DialContext(ctx, "udp", silent.LocalAddr().String())
	}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	subscribe(t, h, "tcp://w1.example.test:5557", zmqtest.NewLog())
	lookup := <-dialled
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := lookup.Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("the lookup ended with %v, want %v", err, context.Canceled)
	}
}

// With the system's own lookup.
func TestLocalhost(t *testing.T) {
	h, l := start(t, zmqsock.DefaultOptions()), zmqtest.NewLog()
	pub := zmqtest.NewPublisher(t, "tcp://127.0.0.1:*")
	defer pub.Close()
	subscribe(t, h, on("localhost", pub.Endpoint), l)
	pub.Subscribers(1)
	pub.Publish(1, []byte("one"))
	l.Await(t, "message", zmqtest.Has("up", zmqtest.First))
}

func TestIPv6(t *testing.T) {
	listener, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6: ", err)
	}
	_ = listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	n := newNames()
	n.set("w1", "::1")
	h := startWith(t, n)
	for i, host := range []string{"[::1]", "w1"} {
		pub, l := zmqtest.NewPublisher6(t, port), zmqtest.NewLog()
		id := subscribe(t, h, fmt.Sprintf("tcp://%s:%d", host, port), l)
		pub.Subscribers(1)
		pub.Publish(1, []byte("one"))
		l.Await(t, "message", zmqtest.Has("up", zmqtest.First))
		if i == 0 && n.lookups("w1") != 0 {
			t.Error("an IP address was looked up")
		}
		h.Close(id)
		pub.Close()
	}
}
