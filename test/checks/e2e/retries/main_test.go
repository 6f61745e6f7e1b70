// Package retries_test plays callers of the Go client and the real service against
// each other while messages, processes and callers get lost.
package retries_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/checks/e2e"
)

// programEnv makes this test binary the program of TestKilledProgram: it is the
// address of the service.
const programEnv = "RETRIES_PROGRAM"

func TestMain(m *testing.M) {
	if url := os.Getenv(programEnv); url != "" {
		if err := runProgram(url); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	e2e.Main(m)
}

// runProgram books as examples/lease does, says so, and does not end.
func runProgram(url string) error {
	c, err := client.New(url, client.Options{Lease: lease})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	for range 5 {
		lease, err := c.Lease(context.Background(), client.SelectRequest{Model: model, Prompt: promptOf(100, 0)})
		if err != nil {
			return err
		}
		defer func() { _ = lease.Free() }()
		if err := lease.PrefillComplete(context.Background()); err != nil {
			return err
		}
	}
	fmt.Println("booked")
	time.Sleep(time.Hour)
	return nil
}
