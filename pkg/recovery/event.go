package recovery

import (
	"math"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// maxEvent is the length in bytes of the longest event that is used: about 190,000
// blocks.
const maxEvent = 16 << 20

// eventKind is what an event says about its blocks.
type eventKind uint8

const (
	noEvent eventKind = iota
	storedEvent
	removedEvent
	clearedEvent
)

// event is one element of an entry's events. Its slices are reused.
type event struct {
	kind      eventKind
	rank      catalog.Rank
	hasWorker bool
	tier      indexer.Tier
	parent    uint64
	hasParent bool
	seed      uint64
	hasSeed   bool
	hashes    []uint64
	local     []uint64

	start  int64  // offset of the event in the dump, in bytes
	bad    bool   // the event cannot be used
	reason Reason // if bad
}

// fault marks the event as bad; the first reason counts.
func (e *event) fault(why Reason) {
	if !e.bad {
		e.bad, e.reason = true, why
	}
}

// require marks the event as bad if ok is false.
func (e *event) require(ok bool) {
	if !ok {
		e.fault(BadEvent)
	}
}

// read reads one event to its end, even if it is bad.
func (e *event) read(s *scanner) {
	*e = event{hashes: e.hashes[:0], local: e.local[:0], start: s.offset()}
	if !s.enter('{') {
		e.fault(BadEvent)
		return
	}
	for s.more('}') {
		switch string(s.name()) {
		case "worker_id":
			var ok bool
			e.rank.Worker, ok = s.uint(math.MaxUint64)
			e.hasWorker = ok
			e.require(ok)
		case "storage_tier":
			e.readTier(s)
		case "event":
			e.readBody(s)
		default:
			s.skip()
		}
	}
	e.require(e.hasWorker && e.kind != noEvent)
	e.checkLength(s)
}

// checkLength marks the event as bad if it is too long.
func (e *event) checkLength(s *scanner) {
	if s.offset()-e.start > maxEvent {
		e.fault(TooLarge)
	}
}

// readTier reads the name of a tier. null means the device, as does a missing tier.
func (e *event) readTier(s *scanner) {
	if s.null() {
		return
	}
	name, ok := s.text()
	e.require(ok)
	for t := range indexer.Tier(indexer.NumTiers) {
		if string(name) == t.String() {
			e.tier = t
			return
		}
	}
	e.fault(UnknownTier)
}

func (e *event) readBody(s *scanner) {
	if !s.enter('{') {
		e.fault(BadEvent)
		return
	}
	for s.more('}') {
		switch string(s.name()) {
		case "dp_rank":
			dp, ok := s.uint(math.MaxUint32)
			e.rank.DP = uint32(dp)
			e.require(ok)
		case "data":
			e.readData(s)
		default:
			s.skip()
		}
	}
}

// readData reads {"stored":…}, {"removed":…}, {"cleared":…} or "cleared".
func (e *event) readData(s *scanner) {
	if s.next() == '"' {
		text, _ := s.text()
		e.require(string(text) == "cleared")
		e.kind = clearedEvent
		return
	}
	if !s.enter('{') {
		e.fault(BadEvent)
		return
	}
	for s.more('}') {
		switch string(s.name()) {
		case "stored":
			e.setKind(storedEvent)
			e.readStored(s)
		case "removed":
			e.setKind(removedEvent)
			e.readRemoved(s)
		case "cleared":
			e.setKind(clearedEvent)
			s.skip()
		default:
			s.skip()
		}
	}
}

// setKind sets the kind. An event with two kinds is bad.
func (e *event) setKind(kind eventKind) {
	e.require(e.kind == noEvent)
	e.kind = kind
}

func (e *event) readStored(s *scanner) {
	blocks := false
	if !s.enter('{') {
		e.fault(BadEvent)
		return
	}
	for s.more('}') {
		switch string(s.name()) {
		case "parent_hash":
			if !s.null() {
				e.parent, e.hasParent = s.hash()
				e.require(e.hasParent)
			}
		case "seed":
			e.seed, e.hasSeed = s.uint(math.MaxUint64)
			e.require(e.hasSeed)
		case "blocks":
			blocks = true
			e.readBlocks(s)
		default:
			s.skip()
		}
	}
	e.require(blocks)
}

func (e *event) readBlocks(s *scanner) {
	if !s.enter('[') {
		e.fault(BadEvent)
		return
	}
	for s.more(']') {
		if e.bad {
			s.skip()
			continue
		}
		name, local, ok := s.block()
		if !ok {
			name, local, ok = readBlock(s)
			e.require(ok)
		}
		e.hashes, e.local = append(e.hashes, name), append(e.local, local)
		e.checkLength(s)
	}
}

// readBlock reads a block in any form.
func readBlock(s *scanner) (name, local uint64, ok bool) {
	if !s.enter('{') {
		return 0, 0, false
	}
	var named, hashed bool
	for s.more('}') {
		switch string(s.name()) {
		case "block_hash":
			name, named = s.hash()
		case "tokens_hash":
			local, hashed = s.hash()
		default:
			s.skip()
		}
	}
	return name, local, named && hashed
}

func (e *event) readRemoved(s *scanner) {
	hashes := false
	if !s.enter('{') {
		e.fault(BadEvent)
		return
	}
	for s.more('}') {
		if string(s.name()) != "block_hashes" {
			s.skip()
			continue
		}
		hashes = true
		if !s.enter('[') {
			e.fault(BadEvent)
			continue
		}
		for s.more(']') {
			if e.bad {
				s.skip()
				continue
			}
			name, ok := s.hash()
			e.require(ok)
			e.hashes = append(e.hashes, name)
			e.checkLength(s)
		}
	}
	e.require(hashes)
}
