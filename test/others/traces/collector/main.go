// Command collector is the OTLP receiver of the OpenTelemetry collector in front of a list: it
// serves the spans that have come, as one TracesData message, at /. It has a module of its own
// because the collector's packages are many. make test-traces builds it.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run serves until the process is killed. Its arguments are the addresses of the receiver for gRPC
// and for HTTP, and that of the list.
func run() error {
	if len(os.Args) != 4 {
		return fmt.Errorf("want three addresses: gRPC, HTTP, list")
	}
	var mu sync.Mutex // guards spans
	var spans []byte  // messages one after another are one message
	took, err := consumer.NewTraces(func(_ context.Context, t ptrace.Traces) error {
		text, err := (&ptrace.ProtoMarshaler{}).MarshalTraces(t)
		mu.Lock()
		defer mu.Unlock()
		spans = append(spans, text...)
		return err
	})
	if err != nil {
		return err
	}
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	config.Protocols.GRPC.GetOrInsertDefault().NetAddr.Endpoint = os.Args[1]
	config.Protocols.HTTP.GetOrInsertDefault().ServerConfig.NetAddr.Endpoint = os.Args[2]
	receiver, err := factory.CreateTraces(context.Background(), receivertest.NewNopSettings(factory.Type()), config, took)
	if err != nil {
		return err
	}
	if err := receiver.Start(context.Background(), componenttest.NewNopHost()); err != nil {
		return err
	}
	list, err := net.Listen("tcp", os.Args[3])
	if err != nil {
		return err
	}
	return http.Serve(list, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = w.Write(spans)
	}))
}
