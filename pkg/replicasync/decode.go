package replicasync

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/select-service/select-service/internal/codec/msgpack"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// Errors that the reader distinguishes from bytes that make no sense.
var (
	errOversized    = errors.New("message or list is too long")
	errNamesDiffer  = errors.New("tenant_id and routing_group differ")
	errZeroProcess  = errors.New("process id is zero")
	errZeroSequence = errors.New("sequence is zero")
)

// variants are the names of the kinds; variantIndex has them in the order of
// Dynamo's code.
var (
	variants     = [numSteps]string{booked: "AddRequest", prefillCompleted: "MarkPrefillCompleted", freed: "Free", renewed: "Renew"}
	variantIndex = [...]kind{booked, freed, prefillCompleted}
)

// maxSpan bounds durations from others, in milliseconds (34 years), to keep sums
// of them from overflowing.
const maxSpan = 1 << 40

// The fields of each struct, in the order in which dynamo-kv-router sends them, which
// is that of the elements if a struct comes as an array. There tenant_id stands for
// routing_group too.
var (
	envelopeFields = []string{
		"model_name", "tenant_id", "block_size", "event",
		"routing_group", "sequence", "origin_process", "origin_sequence", "per_scope", "lease_ms", "pair",
	}
	envelopeArray = envelopeFields[:4]
	eventFields   = []string{"request_id", "worker", "data", "router_id", "lora_name"}
	workerFields  = []string{"worker_id", "dp_rank"}
	addFields     = []string{"token_sequence", "track_prefill_tokens", "expected_output_tokens", "prefill_load_hint", "prefix"}
	addArray      = addFields[:4]
	prefixFields  = []string{"process", "sequence", "request_id", "blocks", "digest"}
	hintFields    = []string{"initial_effective_prefill_tokens", "expected_prefill_duration"}
	durationField = []string{"secs", "nanos"}
)

// event decodes what a peer published on TopicEvents, by the rules of
// dynamo-kv-router. Bytes after the message are ignored.
func (r *reader) event(payload []byte) (event, error) {
	e, err := r.envelope(payload)
	if err == nil && (e.kind == renewed || e.prefix.Blocks > 0) {
		err = errTopic
	}
	return e, err
}

// reservation decodes what a replica published on TopicReservations.
func (r *reader) reservation(payload []byte) (event, error) {
	e, err := r.envelope(payload)
	switch {
	case err != nil:
		return event{}, err
	case e.prefix.Blocks == 0:
		return event{}, errTopic
	case e.sequence == 0:
		return event{}, errZeroSequence
	case e.prefix.Blocks+len(e.hashes) > maxHashes:
		return event{}, errOversized
	}
	return e, nil
}

// renewal decodes what a replica published on TopicLeases.
func (r *reader) renewal(payload []byte) (event, error) {
	e, err := r.envelope(payload)
	switch {
	case err != nil:
		return event{}, err
	case e.kind != renewed:
		return event{}, errTopic
	case e.sequence == 0 || e.origin.Sequence == 0:
		return event{}, errZeroSequence
	}
	return e, nil
}

// rawEnvelope is a message as it was read, before its fields are compared. A nil
// pointer stands for a field that is missing.
type rawEnvelope struct {
	event          event
	tenant, group  *string // tenant_id of 1.3.x and routing_group of 1.4
	originProcess  *uint64
	originSequence uint64
}

func (r *reader) envelope(payload []byte) (event, error) {
	if len(payload) > MaxPayload {
		return event{}, errOversized
	}
	r.reset(payload)
	names := envelopeFields
	if r.IsArray() {
		names = envelopeArray
	}
	var v rawEnvelope
	err := r.fields(names, 1, func(name string) error { return r.envelopeField(&v, name) })
	if err == nil {
		err = v.complete()
	}
	if err != nil {
		return event{}, err
	}
	return v.event, nil
}

func (r *reader) envelopeField(v *rawEnvelope, name string) (err error) {
	e := &v.event
	switch name {
	case "model_name":
		e.scope.Model, err = r.text()
	case "tenant_id":
		v.tenant = new(string)
		*v.tenant, err = r.text()
	case "routing_group":
		v.group = new(string)
		*v.group, err = r.text()
	case "block_size":
		e.blockSize, err = r.uint32()
	case "event":
		err = r.innerEvent(e)
	case "sequence":
		if e.sequence, err = r.uint(maxSequence); err == nil && e.sequence == 0 {
			err = errZeroSequence
		}
	case "origin_process":
		v.originProcess = new(uint64)
		*v.originProcess, err = r.uint(math.MaxUint64)
	case "origin_sequence":
		v.originSequence, err = r.uint(maxSequence)
	case "per_scope":
		e.perScope, err = r.bool()
	case "lease_ms":
		e.lease, err = r.milliseconds()
	case "pair":
		e.pair, err = r.bool()
	}
	return err
}

// complete checks the fields and sets the tenant and the origin of the event.
func (r *rawEnvelope) complete() error {
	e := &r.event
	switch {
	case e.blockSize == 0:
		return errors.New("block_size is missing or zero")
	case e.sender == 0:
		return errZeroProcess
	case r.tenant == nil && r.group == nil:
		return errors.New("tenant_id is missing")
	case r.tenant != nil && r.group != nil && *r.tenant != *r.group:
		return errNamesDiffer
	}
	e.scope.Tenant = *cmp.Or(r.tenant, r.group)
	e.origin = reservations.Origin{Process: e.sender}
	if e.kind == booked {
		e.origin.Sequence = e.sequence
		return nil
	}
	e.lease, e.pair = 0, false
	switch {
	case r.originProcess == nil:
	case *r.originProcess == 0:
		return errZeroProcess
	default:
		e.origin = reservations.Origin{Process: *r.originProcess, Sequence: r.originSequence}
	}
	return nil
}

// milliseconds reads milliseconds.
func (r *reader) milliseconds() (time.Duration, error) {
	n, err := r.uint(maxSpan)
	return time.Duration(n) * time.Millisecond, err
}

func (r *reader) uint32() (uint32, error) {
	n, err := r.uint(math.MaxUint32)
	return uint32(n), err
}

// innerEvent reads the event inside the envelope.
func (r *reader) innerEvent(e *event) error {
	return r.fields(eventFields, 4, func(name string) (err error) {
		switch name {
		case "request_id":
			e.id, err = r.text()
		case "worker":
			e.rank, err = r.rank()
		case "data":
			err = r.data(e)
		case "router_id":
			e.sender, err = r.uint(math.MaxUint64)
		case "lora_name": // not used
			if !r.Nil() {
				_, err = r.text()
			}
		}
		return err
	})
}

func (r *reader) rank() (rank catalog.Rank, err error) {
	err = r.fields(workerFields, 2, func(name string) (err error) {
		switch name {
		case "worker_id":
			rank.Worker, err = r.uint(math.MaxUint64)
		case "dp_rank":
			rank.DP, err = r.uint32()
		}
		return err
	})
	return rank, err
}

// data reads the kind and its content: the name or index of a variant, or a map with
// one entry from that to the content.
func (r *reader) data(e *event) error {
	if !r.IsMap() {
		k, err := r.variant()
		if err == nil && k == booked {
			err = errors.New("AddRequest without content")
		}
		e.kind = k
		return err
	}
	n, ok := r.MapLen()
	if !ok {
		return errBroken
	}
	if n != 1 {
		return fmt.Errorf("want one variant, got %d", n)
	}
	var err error
	if e.kind, err = r.variant(); err != nil {
		return err
	}
	if e.kind == booked {
		return r.bookedContent(e)
	}
	if !r.Nil() {
		return fmt.Errorf("%s with content", variants[e.kind])
	}
	return nil
}

func (r *reader) variant() (kind, error) {
	if r.IsText() {
		name, err := r.text()
		for k, v := range variants {
			if name == v {
				return kind(k), err
			}
		}
		return 0, fmt.Errorf("unknown variant %q", name)
	}
	n, err := r.uint(uint64(len(variantIndex) - 1))
	if err != nil {
		return 0, fmt.Errorf("variant: %w", err)
	}
	return variantIndex[n], nil
}

// bookedContent reads what belongs to AddRequest. All but track_prefill_tokens may
// be nil.
func (r *reader) bookedContent(e *event) error {
	e.track = true
	names := addFields
	if r.IsArray() {
		names = addArray
	}
	return r.fields(names, 0, func(name string) (err error) {
		if name != "track_prefill_tokens" && r.Nil() {
			return nil
		}
		switch name {
		case "token_sequence":
			e.hashes, err = r.hashes()
		case "track_prefill_tokens":
			e.track, err = r.bool()
		case "expected_output_tokens":
			e.expectedOutput = new(uint32)
			*e.expectedOutput, err = r.uint32()
		case "prefill_load_hint":
			e.hinted = true
			e.prefillTokens, err = r.hint()
		case "prefix":
			e.prefix, err = r.prefix()
		}
		return err
	})
}

func (r *reader) prefix() (p reservations.Prefix, err error) {
	err = r.fields(prefixFields, len(prefixFields), func(name string) (err error) {
		switch name {
		case "process":
			p.Origin.Process, err = r.uint(math.MaxUint64)
		case "sequence":
			p.Origin.Sequence, err = r.uint(maxSequence)
		case "request_id":
			p.ID, err = r.text()
		case "blocks":
			var n uint64
			n, err = r.uint(maxHashes)
			p.Blocks = int(n)
		case "digest":
			p.Digest, err = r.uint(math.MaxUint64)
		}
		return err
	})
	switch {
	case err != nil:
		return reservations.Prefix{}, err
	case p.Origin.Process == 0:
		return reservations.Prefix{}, errZeroProcess
	case p.Origin.Sequence == 0:
		return reservations.Prefix{}, errZeroSequence
	case p.Blocks == 0:
		return reservations.Prefix{}, errors.New("prefix without blocks")
	}
	return p, nil
}

func (r *reader) hashes() ([]uint64, error) {
	n, err := r.length()
	if err != nil {
		return nil, err
	}
	if n > maxHashes {
		return nil, errOversized
	}
	hashes := make([]uint64, n) // the message has at least n more bytes
	for i := range hashes {
		if h, ok := r.wide(); ok {
			hashes[i] = h
		} else if hashes[i], err = r.uint(math.MaxUint64); err != nil {
			return nil, err
		}
	}
	return hashes, nil
}

// hint reads a prefill load hint and returns its tokens. The duration over which
// Dynamo's embedded router lets them decay is ignored: the standalone services never
// send one.
func (r *reader) hint() (tokens uint64, err error) {
	err = r.fields(hintFields, 1, func(name string) (err error) {
		switch {
		case name == "initial_effective_prefill_tokens":
			tokens, err = r.uint(math.MaxUint64)
			return err
		case r.Nil():
			return nil
		}
		return r.fields(durationField, 2, func(string) error {
			_, err := r.uint(math.MaxUint64)
			return err
		})
	})
	return tokens, err
}

// errBroken is the error of a message that ends early or is no msgpack.
var errBroken = errors.New("message is not whole")

// reader reads one message after the other and checks what the format leaves
// open: the range of numbers, and that strings are UTF-8.
type reader struct{ msgpack.Reader }

func newReader() *reader { return &reader{} }

func (r *reader) reset(payload []byte) { r.Reader = msgpack.Reader{Data: payload} }

// uint reads an integer of any width and signedness from 0 to limit.
func (r *reader) uint(limit uint64) (uint64, error) {
	n, negative, ok := r.Integer()
	switch {
	case !ok:
		return 0, errors.New("want an unsigned integer")
	case negative:
		return 0, fmt.Errorf("negative number %d", int64(n))
	case n > limit:
		return 0, fmt.Errorf("number %d is above %d", n, limit)
	}
	return n, nil
}

// wide reads a 64-bit number of full width, the form of nearly all hashes, if that
// comes next.
func (r *reader) wide() (n uint64, ok bool) {
	rest := r.Data[r.Pos:]
	if len(rest) < 9 || rest[0] != msgpack.CodeUint64 {
		return 0, false
	}
	r.Pos += 9
	return binary.BigEndian.Uint64(rest[1:]), true
}

func (r *reader) text() (string, error) {
	text, err := r.utf8()
	return string(text), err
}

// utf8 is text without a copy: the bytes are those of the message.
func (r *reader) utf8() ([]byte, error) {
	text, ok := r.Text()
	if !ok {
		return nil, errors.New("want a string")
	}
	if !utf8.Valid(text) {
		return nil, errors.New("string is not UTF-8")
	}
	return text, nil
}

func (r *reader) bool() (bool, error) {
	c := r.Peek()
	if c != msgpack.CodeTrue && c != msgpack.CodeFalse {
		return false, errors.New("want a boolean")
	}
	r.Pos++
	return c == msgpack.CodeTrue, nil
}

// length reads the head of an array. Every element takes a byte at least, so a
// length that the message cannot hold is refused before anything is made of it.
func (r *reader) length() (int, error) {
	n, ok := r.ArrayLen()
	if !ok {
		return 0, errors.New("want a whole array")
	}
	return n, nil
}

// skip passes over one value of any type.
func (r *reader) skip() error {
	if !r.Skip() {
		return errBroken
	}
	return nil
}

// fields reads a struct: a map, whose unknown keys are ignored, or an array of values
// in the order of names, which may end early. f reads the value of the field with that
// name. The first required of names must be present, and none may be present twice.
func (r *reader) fields(names []string, required int, f func(name string) error) error {
	var seen uint64
	read := func(i int) error {
		if seen&(1<<i) != 0 {
			return fmt.Errorf("%s is there twice", names[i])
		}
		seen |= 1 << i
		if err := f(names[i]); err != nil {
			return fmt.Errorf("%s: %w", names[i], err)
		}
		return nil
	}
	var err error
	if r.IsArray() {
		err = r.positional(names, read)
	} else {
		err = r.keyed(names, read)
	}
	if err != nil {
		return err
	}
	for i := range required {
		if seen&(1<<i) == 0 {
			return fmt.Errorf("%s is missing", names[i])
		}
	}
	return nil
}

func (r *reader) positional(names []string, read func(i int) error) error {
	n, err := r.length()
	if err != nil {
		return err
	}
	for i := range n {
		if i < len(names) {
			err = read(i)
		} else {
			err = r.skip()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) keyed(names []string, read func(i int) error) error {
	n, ok := r.MapLen()
	if !ok {
		return errors.New("want a whole map or array")
	}
	for range n {
		key, err := r.utf8()
		if err != nil {
			return fmt.Errorf("key: %w", err)
		}
		if i := slices.IndexFunc(names, func(name string) bool { return name == string(key) }); i >= 0 {
			err = read(i)
		} else {
			err = r.skip()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
