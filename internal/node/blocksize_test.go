package node_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestEventsCorrectBlockSize proves that the events of an engine correct the block size that it has
// told, that its blocks are found then, also those that came before, and that a block size that is
// given is said to be wrong.
func TestEventsCorrectBlockSize(t *testing.T) {
	const events, replays = "tcp://e:5557", "tcp://e:5558"
	for name, row := range map[string]struct {
		record catalog.Record
		want   string
		device string
		says   uint32 // that the events have another size
		log    string
	}{
		"told": {
			record: described(1), want: "blocks of 8 from events", device: "1/0:4",
			log: "info: the KV events of an engine have another block size than it tells; they count block_size=4 events=8 model_name=m worker_id=1",
		},
		"given": {
			record: described(1, func(r *catalog.Record) { r.BlockSize = new(uint32(4)) }), want: "blocks of 4 from ", device: "1/0:0", says: 8,
		},
		"discovered": {
			record: described(1, func(r *catalog.Record) { r.Source = catalog.Source{Kind: catalog.SourceKubernetes, UID: "u"} }),
			want:   "blocks of 8 from events", device: "1/0:4",
			log: "info: the KV events of an engine have another block size than it tells; they count block_size=4 events=8 model_name=m worker_id=1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engines{start: time.Now()}
				d := says(4)
				d.ReplayEndpoints, d.From["replay_endpoints"] = map[uint32]string{0: replays}, "x"
				e.say(d, nil)
				w := servicetest.Start(t, func(c *node.Config) {
					c.Ask = e.ask
				})
				row.record.Scope.Tenant = servicetest.Scope.Tenant
				if _, err := w.ReplaceWorkers(catalog.Set{Kind: row.record.Source.KindOrAPI(), Records: []catalog.Record{row.record}}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				engine := w.Net.Engine(events, 0)
				prompt := servicetest.Prompt(1, 32)
				stored := engine.Stored(prompt, 8, nil)
				w.Net.At(events).Connect()
				engine.Publish(0, stored)
				synctest.Wait()
				if at := w.Net.At(replays); at != nil { // the replay of the first connection
					at.Send(nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
				}
				synctest.Wait()
				w.Net.At(events).Connect() // the stream of the corrected worker, if there is one
				synctest.Wait()
				if at := w.Net.At(replays); at != nil {
					at.Send(nil, binary.BigEndian.AppendUint64(nil, 0), servicetest.Batch(0, stored))
					at.Send(nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
				}
				synctest.Wait()
				now := w.Workers(nil, nil)[0]
				from := ""
				if now.Describe != nil {
					from = now.Describe.Filled["block_size"]
				}
				if got := fmt.Sprintf("blocks of %d from %s", *now.BlockSize, from); got != row.want || now.Lifecycle != catalog.Schedulable {
					t.Errorf("%s, %s, want %s", got, now.Lifecycle, row.want)
				}
				if got := w.EventsBlockSize(now); got != row.says {
					t.Errorf("events of %d, want %d", got, row.says)
				}
				w.WantDevice(prompt, row.device)
				found := 0
				for _, line := range w.Log.Take(t) {
					if line == row.log {
						found++
					}
				}
				if want := min(1, len(row.log)); found != want {
					t.Errorf("the log says %d times, want %d: %s", found, want, row.log)
				}
			})
		})
	}
}
