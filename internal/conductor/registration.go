package conductor

import (
	"errors"
	"fmt"
	"strings"
)

// PublisherType is the kind of program that publishes the events.
type PublisherType uint8

// The types.
const (
	VLLM PublisherType = iota
	SGLang
	Mooncake
	Standard // the standard event envelope, from any engine or store
)

var typeNames = [...]string{VLLM: "vLLM", SGLang: "SGLang", Mooncake: "Mooncake", Standard: "standard"}

// String gives the type's name on the wire.
func (t PublisherType) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return "unknown"
}

// ParseType reads the name of a type; case does not matter.
func ParseType(name string) (t PublisherType, ok bool) {
	for i, known := range typeNames {
		if strings.EqualFold(name, known) {
			return PublisherType(i), true
		}
	}
	return 0, false
}

// Identity is the isolation key of a query.
type Identity struct {
	Tenant, Model string
	LoRA          string // adapter name, "" is the base model
	Salt          string // additional salt, "" is none
	BlockSize     uint32 // tokens
}

// Registration is the registration of a publisher. Replay and HashSeed are its body,
// everything else is its key (decision C6).
type Registration struct {
	Type PublisherType
	Identity
	Instance string // routing target
	Rank     uint32 // data-parallel rank
	Endpoint string
	Replay   string // replay endpoint, "" is none
	HashSeed uint64 // of the standard's hashes (decision C5)
}

// key returns the registration without its body.
func (r Registration) key() Registration {
	r.Replay, r.HashSeed = "", 0
	return r
}

// Filter selects registrations; nil fields match all.
type Filter struct {
	Instance, Tenant                    string
	Type                                *PublisherType
	Model, LoRA, Salt, Endpoint, Replay *string
	BlockSize, Rank                     *uint32
	HashSeed                            *uint64
}

// fits reports whether f selects a registration.
func (f *Filter) fits(g *Registration) bool {
	return g.Instance == f.Instance && g.Tenant == f.Tenant &&
		is(f.Type, g.Type) && is(f.Model, g.Model) && is(f.LoRA, g.LoRA) && is(f.Salt, g.Salt) &&
		is(f.Endpoint, g.Endpoint) && is(f.Replay, g.Replay) &&
		is(f.BlockSize, g.BlockSize) && is(f.Rank, g.Rank) && is(f.HashSeed, g.HashSeed)
}

func is[T comparable](want *T, got T) bool { return want == nil || *want == got }

// errFull is the error of a registration beyond the limits of a process.
var errFull = errors.New("too many registrations or identities")

// conflictError is the error of a registration whose key is active with another body.
type conflictError struct {
	inForce Registration
}

func (e *conflictError) Error() string {
	return fmt.Sprintf("instance %q rank %d is already registered at %s with replay endpoint %q and hash seed %d",
		e.inForce.Instance, e.inForce.Rank, e.inForce.Endpoint, e.inForce.Replay, e.inForce.HashSeed)
}

// seedMismatchError is the error of a registration for an identity that is in use
// with another hash seed (decision C5).
type seedMismatchError struct {
	Identity           Identity
	inForce, Requested uint64
}

func (e *seedMismatchError) Error() string {
	id := &e.Identity
	salted := "" // the salt itself is not shown
	if id.Salt != "" {
		salted = " additionalsalt=(the one given)"
	}
	return fmt.Sprintf("hash_seed mismatch for model=%s tenant=%s lora_name=%q block_size=%d%s: existing=%d, requested=%d",
		id.Model, id.Tenant, id.LoRA, id.BlockSize, salted, e.inForce, e.Requested)
}
