package memory_test

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/select-service/select-service/pkg/memory"
)

// TestShares: the accounts leave room for the collector (of what is not outside its heap, as the index
// and what was scanned), and the largest request fits at 512 MiB.
func TestShares(t *testing.T) {
	const total = 512 << 20
	b := memory.New(total)
	var sum int64
	for _, a := range b.Accounts() {
		sum += a.Limit()
		if b.Account(a.Name()) != a || a.Used() != 0 {
			t.Errorf("account %s is not the one of that name, or not empty", a.Name())
		}
	}
	if sum > total*92/100 || b.Total() != total {
		t.Errorf("accounts take %d of %d bytes", sum, b.Total())
	}
	if got := b.Account(memory.Serving).Limit(); got < 80<<20 {
		t.Errorf("an 8 MiB request does not fit into %d bytes", got)
	}
}

// TestAgainstModel: any history of calls leaves the account as a plain counter says.
func TestAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	a := memory.NewAccount("x", 1000)
	var held []int64
	var sum int64
	var refused uint64
	for range 10_000 {
		if len(held) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(held))
			a.Release(held[i])
			sum -= held[i]
			held[i] = held[len(held)-1]
			held = held[:len(held)-1]
		} else {
			n := r.Int64N(400)
			fits := sum+n <= a.Limit()
			if a.Reserve(n) != fits {
				t.Fatalf("%d bytes beside %d: fit is not %t", n, sum, fits)
			}
			if fits {
				held, sum = append(held, n), sum+n
			} else {
				refused++
			}
		}
		if a.Used() != sum || a.Refused() != refused {
			t.Fatalf("used %d, refused %d, want %d and %d", a.Used(), a.Refused(), sum, refused)
		}
	}
}

// TestConcurrent: the limit holds at every moment and nothing is left over.
func TestConcurrent(t *testing.T) {
	a := memory.NewAccount("x", 100)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				if a.Reserve(30) {
					if n := a.Used(); n < 30 || n > 100 {
						t.Errorf("%d bytes are used", n)
					}
					a.Release(30)
				}
			}
		})
	}
	wg.Wait()
	if a.Used() != 0 {
		t.Errorf("%d bytes are left", a.Used())
	}
}

func TestMeasured(t *testing.T) {
	a := memory.NewAccount("x", 100)
	a.Set(90)
	if !a.Fits(10) || a.Fits(11) || a.Used() != 90 || a.Refused() != 1 {
		t.Errorf("used %d, refused %d", a.Used(), a.Refused())
	}
}

// TestNil: without a budget everything fits and nothing is counted.
func TestNil(t *testing.T) {
	var b *memory.Budget
	a := b.Account(memory.Bodies)
	a.Set(5)
	ok := a.Reserve(1<<60) && a.Fits(1<<60)
	a.Release(1)
	if !ok || a.Used() != 0 || a.Limit() != 0 || a.Refused() != 0 || a.Name() != "" || b.Total() != 0 || b.Accounts() != nil {
		t.Error("a nil account counts")
	}
}

func TestReleaseTooMuch(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a negative account is not noticed")
		}
	}()
	memory.NewAccount("x", 1).Release(1)
}

// BenchmarkReserve is what an account adds to a request.
func BenchmarkReserve(b *testing.B) {
	a := memory.NewAccount("x", 1<<20)
	for b.Loop() {
		a.Reserve(100)
		a.Release(100)
	}
}
