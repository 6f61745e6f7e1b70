package httpapi

import (
	"errors"
	"testing"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/memory"
)

// TestReaders proves that readers beyond the limit, and beyond the account, are
// refused by the limit that is in the way, and that places are given back.
func TestReaders(t *testing.T) {
	refused := func(r *Readers, limit string) {
		t.Helper()
		var e *contract.Error
		if err := r.enter(); !errors.As(err, &e) || e.Kind != contract.Exhausted || e.Limit != limit {
			t.Errorf("%v, want %s", err, limit)
		}
	}
	account := memory.NewAccount(memory.Snapshots, 3*readerMemory)
	r, other := NewReaders(contract.LimitDumpReaders, 2, account), NewReaders(contract.LimitSnapshotReaders, 2, account)
	for _, x := range []*Readers{r, r, other} {
		if err := x.enter(); err != nil {
			t.Fatal(err)
		}
	}
	refused(r, contract.LimitDumpReaders)
	refused(other, contract.LimitMemory)
	r.leave()
	if err := r.enter(); err != nil {
		t.Error(err)
	}
	for _, x := range []*Readers{r, r, other} {
		x.leave()
	}
	if n := account.Used(); n != 0 {
		t.Errorf("%d bytes are left in use", n)
	}
}
