// Lease registers a worker, books a prompt on it and follows the request.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/select-service/select-service/pkg/client"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: lease http://HOST:PORT")
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, selector string) error {
	c, err := client.New(selector, client.Options{})
	if err != nil {
		return err
	}
	defer c.Close() // frees what is still held

	_, err = c.PutWorker(ctx, client.Worker{ID: 1, Model: "llama", Endpoint: new("http://gpu-1:8000"), BlockSize: new(uint32(16))})
	if err != nil {
		return err
	}
	lease, err := c.Lease(ctx, client.SelectRequest{Model: "llama", Prompt: client.Prompt{TokenIDs: make([]uint32, 100)}})
	if err != nil {
		return err
	}
	defer lease.Free() // also if ctx ends or this program dies

	to := lease.Selection()
	fmt.Printf("send it to %s, rank %d: %d tokens to compute\n", to.Endpoint, to.DPRank, to.EffectivePrefillTokens)
	if err := lease.PrefillComplete(ctx); err != nil { // at the first token
		return err
	}
	if err := lease.OutputBlock(ctx, nil); err != nil { // for each block of 16 output tokens
		return err
	}
	return lease.Free()
}
