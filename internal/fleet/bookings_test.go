package fleet

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/select-service/select-service/internal/fleet/bus"
	"github.com/select-service/select-service/internal/transport/fetch"
	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/test/helpers/natstest"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// TestBookings proves on a real server that --fleet-bookings both shares each message over NATS and over the mesh,
// and over one of them while the other is away; that a replica is followed, and its snapshot read, where its endpoint
// says; that what could not be read is counted for both; and that without a mesh everything goes over NATS.
// Source: docs/run/fleet.md, the table of --fleet-bookings.
func TestBookings(t *testing.T) {
	server := natstest.Start(t)
	a, b := onServer(t, server.URL, "a").config.Fleet.(*bus.Conn), onServer(t, server.URL, "b").config.Fleet.(*bus.Conn)
	awaits(t, "both are connected", func() bool { return a.Phase() != bus.Lost && b.Phase() != bus.Lost })
	hub := zmqtest.Start(t, zmqsock.New(zmqsock.DefaultOptions()))
	topics := replicasync.Topics(true)
	endpoint := zmqtest.FreeEndpoint(t)
	mesh := zmqsock.NewMesh(hub, endpoint, topics)
	zmqtest.Rebind(t, mesh.Open)
	t.Cleanup(mesh.Close)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "over HTTP") }))
	t.Cleanup(web.Close)
	snapshots := fetch.New(time.Minute, fetch.Identity{})
	t.Cleanup(snapshots.Close)
	sends := &Bookings{bus: a, mesh: mesh, snapshots: snapshots}
	follows := &Bookings{bus: b, mesh: zmqsock.NewMesh(hub, "", topics), snapshots: snapshots}

	followed := func(peer string) *zmqtest.Log {
		t.Helper()
		l := zmqtest.NewLog()
		stop, err := follows.Follow(peer, func(topic string, payload []byte) { l.Add(topic + " " + string(payload)) }, func(bool) {})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
		return l
	}
	overNATS, overMesh := followed("nats://a"), followed(endpoint)
	event := func(n int) string { return fmt.Sprint(replicasync.TopicEvents, " ", n) }
	has := func(l *zmqtest.Log, n int) func() bool {
		return func() bool { return slices.Contains(l.Snapshot(), event(n)) }
	}
	n := 0
	publish := func() error {
		n++
		return sends.Publish(replicasync.TopicEvents, fmt.Append(nil, n))
	}
	awaits(t, "the mesh is followed", func() bool {
		if err := publish(); err != nil {
			t.Error(err)
		}
		return len(overMesh.Snapshot()) > 0
	})
	if err := publish(); err != nil {
		t.Error(err)
	}
	awaits(t, "it comes over NATS", has(overNATS, n))
	awaits(t, "it comes over the mesh", has(overMesh, n))
	if err := sends.Publish(replicasync.TopicServed, []byte("x")); err != nil {
		t.Error(err)
	}
	for name, l := range map[string]*zmqtest.Log{"NATS": overNATS, "the mesh": overMesh} {
		awaits(t, "what was served comes over "+name, func() bool { return slices.Contains(l.Snapshot(), replicasync.TopicServed+" x") })
	}
	// A follower of the mesh gets the form of its topics, one over NATS always the first.
	if err := sends.PublishEither(replicasync.TopicEvents, []byte("0"), replicasync.TopicReservations, func() []byte { return nil }); err != nil {
		t.Error(err)
	}
	awaits(t, "either form comes over NATS", has(overNATS, 0))
	awaits(t, "either form comes over the mesh", has(overMesh, 0))

	a.SetAnswer(func(_ context.Context, w io.Writer, u *url.URL) error {
		_, err := io.WriteString(w, "over NATS "+u.Path)
		return err
	})
	for address, want := range map[string]string{"nats://a/snapshot": "over NATS /snapshot", web.URL + "/snapshot": "over HTTP"} {
		body, err := follows.GetAnnounced(t.Context(), address, "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(body)
		if _ = body.Close(); err != nil || string(text) != want {
			t.Errorf("%s says %q, %v", address, text, err)
		}
	}
	if _, err := follows.GetAnnounced(t.Context(), "http://other.invalid/snapshot", "127.0.0.1"); err == nil {
		t.Error("a URL of another host was read")
	}

	raw, err := nats.Connect(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if err := raw.Publish("select-service.f.a.sync", []byte("x")); err != nil {
		t.Fatal(err)
	}
	awaits(t, "what came over NATS is counted", func() bool { return follows.Malformed() == 1 })
	foreign := zmqtest.FreeEndpoint(t)
	followed(foreign)
	publisher := zmqtest.NewPublisher(t, foreign)
	publisher.Subscribers(len(topics))
	publisher.Send([]byte(topics[0]), []byte("three"), []byte("frames"))
	awaits(t, "what came over the mesh is counted, too", func() bool { return follows.Malformed() == 2 })

	alone := &Bookings{bus: b}
	if _, err := alone.Follow(endpoint, func(string, []byte) {}, func(bool) {}); err == nil {
		t.Error("an endpoint of a mesh is followed without a mesh")
	}
	if n := alone.Malformed(); n != 1 {
		t.Errorf("%d messages could not be read, want that over NATS", n)
	}

	server.Kill(t)
	awaits(t, "NATS is away", func() bool { return a.Phase() == bus.Lost })
	if err := publish(); err == nil {
		t.Error("a message is said to be sent over NATS, which is away")
	}
	awaits(t, "it comes over the mesh", has(overMesh, n))
	if err := (&Bookings{bus: a}).Publish(replicasync.TopicEvents, nil); err == nil {
		t.Error("a message is said to be sent, though NATS is away and there is no mesh")
	}
}
