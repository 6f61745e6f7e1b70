package memory

import (
	"sync"
	"sync/atomic"
)

// Budget is the memory of a process, shared out to accounts. A nil Budget has no
// limits: its accounts are nil.
type Budget struct {
	total    int64
	accounts []*Account
}

// New returns a budget of total bytes with all its accounts empty.
func New(total int64) *Budget {
	b := &Budget{total: total}
	for _, s := range shares {
		b.accounts = append(b.accounts, NewAccount(s.name, total/1000*s.thousand))
	}
	return b
}

// Total returns the bytes that are shared out, 0 for a nil Budget.
func (b *Budget) Total() int64 {
	if b == nil {
		return 0
	}
	return b.total
}

// Account returns the account of a name, which is one of this package's constants.
func (b *Budget) Account(name string) *Account {
	if b == nil {
		return nil
	}
	for _, a := range b.accounts {
		if a.name == name {
			return a
		}
	}
	panic("budget: no account " + name) // the names are constants
}

// Accounts returns all accounts in a fixed order.
func (b *Budget) Accounts() []*Account {
	if b == nil {
		return nil
	}
	return b.accounts
}

// Account counts the bytes that one kind of use holds, and refuses what goes beyond its limit.
// It takes no locks; its Limiter does. A nil Account accepts everything and counts nothing.
//
// An account is either reserved from (Reserve, Release) or measured (Set, Fits). Add works on
// both kinds; on a reserved one it leaves less room for Reserve.
type Account struct {
	name    string
	limit   int64
	used    atomic.Int64
	refused atomic.Uint64

	once    sync.Once
	limiter Limiter
}

// NewAccount returns an empty account of limit bytes that belongs to no budget.
func NewAccount(name string, limit int64) *Account {
	return &Account{name: name, limit: limit}
}

// Reserve takes n bytes, n >= 0, and reports whether they fit. If not, it takes
// nothing and counts a refusal.
func (a *Account) Reserve(n int64) bool {
	if a.TryReserve(n) {
		return true
	}
	a.CountRefusal()
	return false
}

// TryReserve is Reserve for a caller who will try again: it counts no refusal.
func (a *Account) TryReserve(n int64) bool {
	if a == nil {
		return true
	}
	for {
		used := a.used.Load()
		if n > a.limit-used {
			return false
		}
		if a.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// CountRefusal counts something that did not fit.
func (a *Account) CountRefusal() {
	if a != nil {
		a.refused.Add(1)
	}
}

// Release returns n bytes that were reserved.
func (a *Account) Release(n int64) {
	if a == nil || n == 0 {
		return
	}
	if a.used.Add(-n) < 0 {
		panic("budget: more released than reserved from " + a.name)
	}
}

// Set replaces what a measured account uses.
func (a *Account) Set(n int64) {
	if a != nil {
		a.used.Store(n)
	}
}

// Add adds n bytes to what the account uses, n may be negative; several callers can count for
// one account. It may go beyond the limit.
func (a *Account) Add(n int64) {
	if a != nil {
		a.used.Add(n)
	}
}

// Fits reports whether n more bytes have room in a measured account, and counts a refusal if
// not. It reserves nothing.
func (a *Account) Fits(n int64) bool {
	if a == nil || n <= a.limit-a.used.Load() {
		return true
	}
	a.CountRefusal()
	return false
}

// Name returns the account's name, "" for a nil Account.
func (a *Account) Name() string {
	if a == nil {
		return ""
	}
	return a.name
}

// Used returns the bytes in use.
func (a *Account) Used() int64 {
	if a == nil {
		return 0
	}
	return a.used.Load()
}

// Limit returns the account's limit in bytes, 0 for a nil Account, which has none.
func (a *Account) Limit() int64 {
	if a == nil {
		return 0
	}
	return a.limit
}

// Refused returns how many requests for memory did not fit.
func (a *Account) Refused() uint64 {
	if a == nil {
		return 0
	}
	return a.refused.Load()
}
