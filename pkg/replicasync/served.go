package replicasync

import (
	"errors"
	"math"
	"strings"

	"github.com/select-service/select-service/pkg/catalog"
)

// What replicas have served to tenants is shared as states, not as changes: a message has how many engine seconds of late its
// sender has served to an account in all, those of the past discounted by their age, and takes the place of what the sender has
// said of the account before. So a message that is lost or comes again does no harm, and a replica that has just
// started knows the whole with the first message. What a process that has ended has served fades away.

// Served is what one replica has served to some of those who pay for the requests of a policy class.
type Served struct {
	Scope    catalog.Scope
	Class    string          // policy class
	Accounts []ServedAccount // at most MaxServed
}

// ServedAccount is what was served to a tenant, or to a program of a tenant.
type ServedAccount struct {
	Tenant, Program string // at most maxServedName bytes each
	OfProgram       bool   // of the program alone, else of the tenant as a whole
	Seconds         float64
}

// ServedSink takes what other replicas have served. It is safe for concurrent use, and called without a lock of the Replica.
type ServedSink interface {
	// ApplyServed replaces what a process has said of the accounts before, unless a later version of that is known. known is
	// false if there is no such class here.
	ApplyServed(process, version uint64, s *Served) (known bool)
}

const (
	// MaxServed bounds the accounts in a message.
	MaxServed = 256
	// maxServedName bounds the name of a tenant, a program or a class in bytes.
	maxServedName = 256
	// maxServedPayload bounds a message in bytes.
	maxServedPayload = 256 << 10
	// maxServedMilliseconds bounds what was served to an account.
	maxServedMilliseconds = 1 << 40
)

// AttachServed makes the replica take what others have served. It must be called once, before Run.
func (r *Replica) AttachServed(s ServedSink) { r.served = s }

// ShareServed publishes what this replica has served. It never waits for a peer.
func (r *Replica) ShareServed(s *Served) {
	version := r.servedVersion.Add(1)
	payload := newEncoder().served(r.opt.Process, version, s)
	e := event{kind: servedState, sender: r.opt.Process, sequence: version, payload: payload}
	if !r.outbox.queue.put(e, weight(&e)) {
		r.counts.drop(dropSendQueueFull)
	}
}

// served returns the message.
func (e *encoder) served(process, version uint64, s *Served) []byte {
	e.reset()
	e.fields(6)
	e.uint("process_id", process)
	e.uint("version", version)
	e.string("model_name", s.Scope.Model)
	e.string("routing_group", s.Scope.Tenant)
	e.string("policy_class", s.Class)
	e.key("accounts")
	_ = e.enc.EncodeArrayLen(len(s.Accounts))
	for i := range s.Accounts {
		a := &s.Accounts[i]
		_ = e.enc.EncodeArrayLen(3)
		e.text(strings.ToValidUTF8(a.Tenant, "�"))
		if a.OfProgram {
			e.text(strings.ToValidUTF8(a.Program, "�"))
		} else {
			_ = e.enc.EncodeNil()
		}
		_ = e.enc.EncodeUint(uint64(min(max(0, a.Seconds*1000), maxServedMilliseconds)))
	}
	return e.buf.Bytes()
}

var servedFields = []string{"process_id", "version", "model_name", "routing_group", "policy_class", "accounts"}

// served decodes what a replica published on TopicServed.
func (r *reader) served(payload []byte) (process, version uint64, s Served, err error) {
	if len(payload) > maxServedPayload {
		return 0, 0, s, errOversized
	}
	r.reset(payload)
	err = r.fields(servedFields, len(servedFields), func(name string) (err error) {
		switch name {
		case "process_id":
			process, err = r.uint(math.MaxUint64)
		case "version":
			version, err = r.uint(maxSequence)
		case "model_name":
			s.Scope.Model, err = r.text()
		case "routing_group":
			s.Scope.Tenant, err = r.text()
		case "policy_class":
			s.Class, err = r.servedName()
		case "accounts":
			s.Accounts, err = r.servedAccounts()
		}
		return err
	})
	if err == nil && process == 0 {
		err = errZeroProcess
	}
	return process, version, s, err
}

func (r *reader) servedName() (string, error) {
	text, err := r.text()
	if err == nil && len(text) > maxServedName {
		err = errOversized
	}
	return text, err
}

func (r *reader) servedAccounts() ([]ServedAccount, error) {
	n, err := r.length()
	if err != nil {
		return nil, err
	}
	if n > MaxServed {
		return nil, errOversized
	}
	all := make([]ServedAccount, n)
	for i := range all {
		a := &all[i]
		if n, err := r.length(); err != nil || n != 3 {
			return nil, errors.New("accounts: want a tenant, a program and milliseconds")
		}
		if a.Tenant, err = r.servedName(); err != nil {
			return nil, err
		}
		if a.OfProgram = !r.Nil(); a.OfProgram {
			if a.Program, err = r.servedName(); err != nil {
				return nil, err
			}
		}
		milliseconds, err := r.uint(maxServedMilliseconds)
		if err != nil {
			return nil, err
		}
		a.Seconds = float64(milliseconds) / 1000
	}
	return all, nil
}

// applyServed decodes and applies what a peer has served.
func (r *Replica) applyServed(in *reader, payload []byte) {
	process, version, s, err := in.served(payload)
	switch {
	case err != nil:
		r.counts.drop(reasonOfError(err))
		return
	case process == r.opt.Process:
		r.counts.drop(dropOwn)
		return
	}
	r.counts.received[servedState].Add(1)
	if r.served == nil || !r.served.ApplyServed(process, version, &s) {
		r.counts.drop(dropUnknownScope)
	}
}
