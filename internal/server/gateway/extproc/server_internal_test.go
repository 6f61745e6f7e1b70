package extproc

import (
	"context"
	"testing"
	"time"

	"github.com/rs/zerolog"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
)

// TestHealthOfStop: a look at the readiness that has begun before Stop, and ends after it, does not make the server healthy again.
func TestHealthOfStop(t *testing.T) {
	looks, goOn := make(chan struct{}), make(chan struct{})
	first := true
	s := New(Config{MaxStreams: 1, Log: zerolog.Nop()}, gateway.New(gateway.Config{
		MaxStreams: 1, Metrics: counts.NewGateway(), Log: zerolog.Nop(),
	}, gateway.Service{Ready: func() bool {
		if !first { // that of New
			looks <- struct{}{}
			<-goOn
		}
		first = false
		return true
	}}))
	status := func() healthpb.HealthCheckResponse_ServingStatus {
		t.Helper()
		got, err := s.health.Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return got.GetStatus()
	}
	if got := status(); got != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("at first: %v", got)
	}
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		s.updateHealth()
	}()
	<-looks
	now, cancel := context.WithCancel(t.Context())
	cancel()
	s.Stop(now, time.Hour, time.Hour)
	if got := status(); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("stopped: %v", got)
	}
	close(goOn)
	<-looked
	if got := status(); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("the look has ended: %v", got)
	}
}
