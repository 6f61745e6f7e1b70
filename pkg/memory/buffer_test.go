package memory_test

import (
	"testing"

	"github.com/select-service/select-service/pkg/memory"
)

// A buffer has room for what was asked for, and little more, which goes through a
// release and another use.
func TestBufferSizes(t *testing.T) {
	for size := range 300 << 10 {
		capacity := memory.BufferSize(size)
		if capacity < size || capacity > max(size+size/4, 128) || memory.BufferSize(capacity) != capacity {
			t.Fatalf("a buffer for %d bytes has %d, and one for these %d", size, capacity, memory.BufferSize(capacity))
		}
		if size%1009 != 0 && size&(size-1) != 0 {
			continue
		}
		for range 2 {
			b := memory.NewBuffer(size)
			if len(b.Bytes) != 0 || cap(b.Bytes) != capacity || b.Size() != 0 {
				t.Fatalf("a buffer for %d bytes has %d of %d, %d reserved", size, len(b.Bytes), cap(b.Bytes), b.Size())
			}
			b.Reserved = 1
			account := memory.NewAccount("test", 1)
			account.Reserve(1)
			b.Release(account)
			if account.Used() != 0 {
				t.Fatal("it was not returned to the account")
			}
		}
	}
}

// Whoever keeps the bytes of a buffer keeps them.
func TestKeptBuffer(t *testing.T) {
	kept := memory.NewBuffer(1000)
	content := append(kept.Bytes, "content"...)
	kept.Keep()
	kept.Release(nil)
	for range 100 {
		other := memory.NewBuffer(1000)
		_ = append(other.Bytes, "another"...)
		defer other.Release(nil)
	}
	if string(content) != "content" {
		t.Errorf("it became %q", content)
	}
	var none *memory.Buffer
	none.Keep()
	none.Release(nil)
	if none.Size() != 0 {
		t.Error("no buffer has a size")
	}
}
