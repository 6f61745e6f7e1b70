package history_test

import (
	"encoding/binary"
	"hash/fnv"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// TestNameHash proves that the hash is the documented FNV-1a of the documented bytes,
// and takes no memory: every freed reservation has it computed.
func TestNameHash(t *testing.T) {
	sc, id, rank := catalog.Scope{Model: "mödel", Tenant: ""}, "request-1", catalog.Rank{Worker: 1<<63 + 5, DP: 1<<31 + 7}
	var text []byte
	for _, part := range []string{sc.Model, sc.Tenant, id} {
		text = append(binary.BigEndian.AppendUint64(text, uint64(len(part))), part...)
	}
	text = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(text, rank.Worker), rank.DP)
	want := fnv.New64a()
	_, _ = want.Write(text)
	if got := history.NameHash(sc, id, rank); got != want.Sum64() {
		t.Errorf("%x, want %x", got, want.Sum64())
	}
	if n := testing.AllocsPerRun(100, func() { history.NameHash(sc, id, rank) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
