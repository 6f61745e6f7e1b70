package replicasync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// Bounds of what is read from one peer. A ledger with a million live reservations, and
// 46 minutes of ends at 3,000 events a second, stay below them.
const (
	maxReservations = 4 << 20
	maxSessions     = 1 << 20
	maxEnded        = 4 << 20
	maxPages        = 16 << 10
	maxSeen         = 1 << 10
	// maxValue bounds one value of the JSON in bytes: a reservation of maxHashes,
	// each of 20 digits and a comma.
	maxValue = 24 << 20
	// endedBatch is how many ended ranges are passed on at a time: 1 MiB. For each
	// batch the ledger looks at all live reservations.
	endedBatch = 1 << 16
	// longList is from how many elements on the scratch of such a list, of at most endedBatch elements, is on
	// the account until the end of the page. An element takes listBytes at most.
	longList, listBytes = 1 << 12, 24
)

var errSnapshot = errors.New("snapshot")

// snapshotSink receives the contents of a snapshot as they are read. It must not
// keep the ranges.
type snapshotSink interface {
	// onHead comes first; its error ends the reading.
	onHead(process, sequence uint64, at string) error
	onRenewals(sequence uint64)
	onEnded(process uint64, ended history.EndedSet)
	onFreed(names []history.Name)
	onReservation(*reservationJSON) error
	onSession(*sessionJSON) error
}

// pageReader reads the pages of one snapshot.
type pageReader struct {
	sink    snapshotSink
	account *memory.Account // of long values
	// The totals of all pages.
	reservations, sessions, ranges, pages int

	assumed map[uint64]uint64 // of this page; nil: the peer does not say
	shared  bool              // this page has common beginnings once
	prompts []listedPrompt    // of its reservations
	whole   []uint64          // scratch: a prompt that was put together
	work    int               // what that has cost on this page, in hashes and steps
	charged int64             // bytes of prompts and long lists on the account
	pair    []uint64
	batch   []history.Range
	names   []history.Name
	// longBatch and longNames: these are on the account.
	longBatch, longNames bool
	src                  boundedReader
	dec                  *json.Decoder
	next                 string // the cursor at the end of the page
	more                 bool
}

// listedPrompt is a prompt as a page lists it: it begins with the first likeBlocks hashes of the
// prompt like.
type listedPrompt struct {
	like, likeBlocks int
	hashes           []uint64
}

func (l *listedPrompt) blocks() int { return l.likeBlocks + len(l.hashes) }

const (
	// maxWork bounds pageReader.work: 10,000 prompts of 26,000 blocks.
	maxWork = 1 << 28
	// promptBytes is what a listedPrompt takes beside its hashes.
	promptBytes = 64
)

// boundedReader fails when one value takes too many bytes.
type boundedReader struct {
	r    io.Reader
	left int // bytes that the present value may still take
	// account is charged for the longest value, in steps of valueStep bytes of text (the
	// first step is free), until the page has been read. granted is the charged text.
	account *memory.Account
	granted int // bytes of text
}

const (
	valueStep = 64 << 10 // bytes
	// valueFactor is the memory that a value takes, in multiples of its text: the text,
	// twice while the buffer grows, and its numbers.
	valueFactor = 3
)

var errNoMemory = errors.New("no memory for so long a value (--max-memory)")

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errOversized
	}
	for maxValue-b.left > b.granted+valueStep {
		if !b.account.Reserve(valueFactor * valueStep) {
			return 0, errNoMemory
		}
		b.granted += valueStep
	}
	if len(p) > b.left {
		p = p[:b.left]
	}
	n, err := b.r.Read(p)
	b.left -= n
	return n, err
}

// release takes the charge off the account.
func (b *boundedReader) release() {
	b.account.Release(int64(valueFactor * b.granted))
	b.granted = 0
}

// page reads one page and sets next and more. Unknown keys are ignored.
func (p *pageReader) page(r io.Reader) error {
	if p.pages++; p.pages > maxPages {
		return fmt.Errorf("%w: more than %d pages", errSnapshot, maxPages)
	}
	p.src = boundedReader{r: r, account: p.account}
	defer p.src.release()
	defer p.endPage()
	p.dec = json.NewDecoder(&p.src)
	before := p.next
	p.next, p.more, p.assumed, p.shared = "", false, nil, false
	if err := p.read(); err != nil {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	if p.more && p.next == before {
		return fmt.Errorf("%w: the cursor stands still", errSnapshot)
	}
	return nil
}

// pageKeys is what was read of a page so far.
type pageKeys struct {
	process, sequence, renewals uint64
	at                          string          // authenticated_at, where it comes before sequence
	have                        map[string]bool // the keys that have come
	started                     bool            // the sink has the head
}

// read reads the page's object, and nothing after it.
func (p *pageReader) read() error {
	if err := p.delim('{'); err != nil {
		return err
	}
	k := pageKeys{have: make(map[string]bool)}
	for p.hasMore() {
		key, err := p.key()
		if err != nil {
			return err
		}
		if k.have[key] {
			return fmt.Errorf("%s is there twice", key)
		}
		k.have[key] = true
		err = p.readKey(key, &k)
		if err == nil && !k.started && k.have["process_id"] && k.have["sequence"] {
			k.started = true
			err = p.head(&k)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	if err := p.delim('}'); err != nil {
		return err
	}
	for _, key := range []string{"process_id", "sequence", "bookings", "next"} {
		if !k.have[key] {
			return fmt.Errorf("%s is missing", key)
		}
	}
	return nil
}

// readKey reads the value of a key. Lists must come after process_id and sequence.
func (p *pageReader) readKey(key string, k *pageKeys) error {
	switch key {
	case "process_id":
		return p.value(&k.process)
	case "authenticated_at":
		return p.value(&k.at)
	case "sequence":
		return p.value(&k.sequence)
	case "renewals":
		if err := p.value(&k.renewals); err != nil {
			return err
		}
		if k.renewals <= maxSequence {
			p.sink.onRenewals(k.renewals)
		}
		return nil
	case "seen":
		return p.seen()
	case "assumed":
		return p.readAssumed(k.have["ended"])
	case "shared":
		return p.value(&p.shared)
	case "next":
		return p.cursor()
	case "ended", "leases_ended", "freed", "bookings", "sessions":
		if !k.started {
			return errors.New("process_id and sequence must come before")
		}
	default:
		return p.value(new(json.RawMessage))
	}
	switch key {
	case "ended":
		return p.ended(p.endedRanges)
	case "leases_ended":
		return p.ended(endedLeases)
	case "freed":
		return p.freed()
	case "sessions":
		return p.list(p.session)
	}
	return p.list(p.reservation)
}

func (p *pageReader) head(k *pageKeys) error {
	switch {
	case k.process == 0:
		return errZeroProcess
	case k.sequence > maxSequence:
		return fmt.Errorf("sequence %d is above %d", k.sequence, uint64(maxSequence))
	case len(k.at) > maxURL:
		return errOversized
	}
	return p.sink.onHead(k.process, k.sequence, k.at)
}

func (p *pageReader) cursor() error {
	var next *string
	if err := p.value(&next); err != nil {
		return err
	}
	if next != nil {
		if *next == "" || len(*next) > maxURL {
			return errors.New("is no cursor")
		}
		p.next, p.more = *next, true
	}
	return nil
}

// seen skips the list seen. Which events another replica has received of a third one
// does not say which of them it could apply with its catalog.
func (p *pageReader) seen() error {
	n := 0
	return p.members(func(uint64) error {
		if n++; n > maxSeen {
			return errOversized
		}
		return p.value(new(uint64))
	})
}

// readAssumed reads EndedSet.Assumed of each process. It must come before the lists of
// ended; tooLate: it does not.
func (p *pageReader) readAssumed(tooLate bool) error {
	if tooLate {
		return errors.New("must come before ended")
	}
	p.assumed = make(map[uint64]uint64)
	return p.members(func(process uint64) error {
		var n uint64
		if err := p.value(&n); err != nil {
			return err
		}
		if len(p.assumed) >= maxSeen || n > maxSequence {
			return errOversized
		}
		p.assumed[process] = n
		return nil
	})
}

// endedRanges returns the EndedSet of a list in ended. A peer that does not know leases
// sends no assumed: then the ends of leases are uncertain for all numbers.
func (p *pageReader) endedRanges(process uint64, ranges []history.Range) history.EndedSet {
	e := history.EndedSet{Ranges: ranges, Assumed: math.MaxUint64}
	if p.assumed != nil {
		e.Assumed = p.assumed[process]
	}
	return e
}

func endedLeases(_ uint64, ranges []history.Range) history.EndedSet {
	return history.EndedSet{Leases: ranges, Assumed: math.MaxUint64}
}

// ended reads lists of ranges by process, and passes them on as converted by as.
func (p *pageReader) ended(as func(uint64, []history.Range) history.EndedSet) error {
	return p.members(func(process uint64) error {
		if process == 0 {
			return errZeroProcess
		}
		p.batch = p.batch[:0]
		err := p.list(func() error {
			if p.ranges++; p.ranges > maxEnded {
				return errOversized
			}
			r, err := p.endedRange()
			if err != nil {
				return err
			}
			if p.batch = append(p.batch, r); len(p.batch) == endedBatch {
				p.sink.onEnded(process, as(process, p.batch))
				p.batch = p.batch[:0]
			}
			return p.charge(&p.longBatch, len(p.batch))
		})
		if err == nil && len(p.batch) > 0 {
			p.sink.onEnded(process, as(process, p.batch))
		}
		return err
	})
}

// freed reads lists of names by process.
func (p *pageReader) freed() error {
	p.names = p.names[:0]
	pass := func() {
		if len(p.names) > 0 {
			p.sink.onFreed(p.names)
			p.names = p.names[:0]
		}
	}
	err := p.members(func(process uint64) error {
		if process == 0 {
			return errZeroProcess
		}
		return p.list(func() error {
			if p.ranges++; p.ranges > maxEnded {
				return errOversized
			}
			p.pair = p.pair[:0]
			if err := p.value(&p.pair); err != nil {
				return err
			}
			if len(p.pair) != 2 || p.pair[0] == 0 || p.pair[0] > maxSequence {
				return errors.New("is no name")
			}
			p.names = append(p.names, history.Name{
				Origin: history.Origin{Process: process, Sequence: p.pair[0]}, Hash: p.pair[1],
			})
			if len(p.names) == endedBatch {
				pass()
			}
			return p.charge(&p.longNames, len(p.names))
		})
	})
	pass()
	return err
}

func (p *pageReader) endedRange() (history.Range, error) {
	p.pair = p.pair[:0]
	if err := p.value(&p.pair); err != nil {
		return history.Range{}, err
	}
	if len(p.pair) != 2 || p.pair[0] == 0 || p.pair[0] > p.pair[1] || p.pair[1] > maxSequence {
		return history.Range{}, errors.New("is no range")
	}
	return history.Range{From: p.pair[0], To: p.pair[1]}, nil
}

func (p *pageReader) reservation() error {
	if p.reservations++; p.reservations > maxReservations {
		return errOversized
	}
	var b reservationJSON
	err := p.value(&b)
	if err == nil && p.shared {
		b.Hashes, err = p.prompt(&b)
	}
	if err != nil {
		return err
	}
	return p.sink.onReservation(&b)
}

// prompt returns all hashes of a reservation, valid until the next call, and keeps what it lists
// of them for later ones.
func (p *pageReader) prompt(b *reservationJSON) ([]uint64, error) {
	x := listedPrompt{b.Like, b.LikeBlocks, b.Hashes}
	switch {
	case x.likeBlocks < 0 || x.likeBlocks > 0 && (x.like < 0 || x.like >= len(p.prompts) || x.likeBlocks > p.prompts[x.like].blocks()):
		return nil, errors.New("is like none on the page")
	case x.blocks() > maxHashes:
		return nil, errOversized
	}
	bytes := int64(8*len(x.hashes) + promptBytes)
	if !p.account.Reserve(bytes) {
		return nil, errNoMemory
	}
	p.charged += bytes
	p.prompts = append(p.prompts, x)
	if x.likeBlocks == 0 {
		return x.hashes, nil
	}
	if p.work += x.blocks(); p.work > maxWork {
		return nil, errOversized
	}
	p.whole = slices.Grow(p.whole[:0], x.blocks())[:x.blocks()]
	for to := p.whole; ; {
		copy(to[x.likeBlocks:], x.hashes)
		if to = to[:x.likeBlocks]; len(to) == 0 {
			return p.whole, nil
		}
		for x = p.prompts[x.like]; x.likeBlocks >= len(to); x = p.prompts[x.like] { // it adds nothing
			if p.work++; p.work > maxWork {
				return nil, errOversized
			}
		}
	}
}

// charge puts the scratch of a list on the account once it is long.
func (p *pageReader) charge(long *bool, elements int) error {
	if elements < longList || *long {
		return nil
	}
	if !p.account.Reserve(endedBatch * listBytes) {
		return errNoMemory
	}
	*long = true
	p.charged += endedBatch * listBytes
	return nil
}

// endPage forgets what is needed for one page only.
func (p *pageReader) endPage() {
	p.account.Release(p.charged)
	p.prompts, p.whole, p.work, p.charged = nil, nil, 0, 0
	if p.longBatch {
		p.batch, p.longBatch = nil, false
	}
	if p.longNames {
		p.names, p.longNames = nil, false
	}
}

func (p *pageReader) session() error {
	if p.sessions++; p.sessions > maxSessions {
		return errOversized
	}
	var s sessionJSON
	if err := p.value(&s); err != nil {
		return err
	}
	return p.sink.onSession(&s)
}

// entries returns how many reservations and sessions were read.
func (p *pageReader) entries() int { return p.reservations + p.sessions }

// members reads an object whose keys are process ids.
func (p *pageReader) members(f func(process uint64) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	for p.hasMore() {
		key, err := p.key()
		if err != nil {
			return err
		}
		process, err := strconv.ParseUint(key, 10, 64)
		if err != nil {
			return fmt.Errorf("process id: %w", err)
		}
		if err := f(process); err != nil {
			return err
		}
	}
	return p.delim('}')
}

func (p *pageReader) list(f func() error) error {
	if err := p.delim('['); err != nil {
		return err
	}
	for p.hasMore() {
		if err := f(); err != nil {
			return err
		}
	}
	return p.delim(']')
}

// The methods below read one token or value each, within maxValue bytes.

func (p *pageReader) hasMore() bool {
	p.src.left = maxValue
	return p.dec.More()
}

func (p *pageReader) delim(want json.Delim) error {
	p.src.left = maxValue
	t, err := p.dec.Token()
	if err != nil {
		return noEOF(err)
	}
	if t != want {
		return fmt.Errorf("want %v, got %v", want, t)
	}
	return nil
}

func (p *pageReader) key() (string, error) {
	p.src.left = maxValue
	t, err := p.dec.Token()
	if err != nil {
		return "", noEOF(err)
	}
	key, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("want a key, got %v", t)
	}
	return key, nil
}

func (p *pageReader) value(v any) error {
	p.src.left = maxValue
	return noEOF(p.dec.Decode(v))
}

// noEOF replaces the end of the bytes, which is never expected inside a page.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// fetchSnapshot reads all pages of a peer's snapshot into the ledger.
func (r *Replica) fetchSnapshot(ctx context.Context, q fetchRequest) fetchResult {
	m := r.newMerge(q)
	ctx, cancel := context.WithTimeout(ctx, maxFetch)
	defer cancel()
	for m.unfinished() {
		before := m.pages.entries()
		if err := r.fetchPage(ctx, m); err != nil {
			return m.failed(err)
		}
		if m.unfinished() && m.pages.entries()-before < r.opt.Page/2 { // a full page has more
			if err := pause(ctx, lossSpacing); err != nil {
				return m.failed(err)
			}
		}
	}
	return m.result
}

// maxFetch bounds the time to read one snapshot; a usual one takes a small part of it.
const maxFetch = 10 * time.Minute

// pause waits before the next page is requested of a peer that sends nearly empty pages,
// which would otherwise be requested without end at full speed.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (r *Replica) fetchPage(ctx context.Context, m *snapshotMerge) error {
	body, err := r.fetch.GetAnnounced(ctx, m.pageURL(r.opt.Page), m.request.host)
	if err != nil {
		return err
	}
	err = m.pages.page(body)
	if closing := body.Close(); err == nil {
		err = closing
	}
	return err
}

// snapshotMerge joins one snapshot into the ledger while it is read.
type snapshotMerge struct {
	replica *Replica
	request fetchRequest
	pages   pageReader
	began   time.Time // when the page began to arrive: its ages were correct then, or earlier
	result  fetchResult
}

func (r *Replica) newMerge(q fetchRequest) *snapshotMerge {
	m := &snapshotMerge{replica: r, request: q}
	m.pages.sink, m.pages.account = m, r.opt.Snapshots
	return m
}

// unfinished reports whether there is another page to read.
func (m *snapshotMerge) unfinished() bool { return m.pages.pages == 0 || m.pages.more }

func (m *snapshotMerge) failed(err error) fetchResult {
	m.result.err = err
	return m.result
}

// pageURL is the address of the next page.
func (m *snapshotMerge) pageURL(limit int) string {
	u := m.request.url + SnapshotPath + "?shared=true&limit=" + strconv.Itoa(limit)
	if m.pages.more {
		u += "&after=" + url.QueryEscape(m.pages.next)
	}
	return u
}

// onHead implements snapshotSink. The number on the first page counts: the numbers on
// later pages cover events whose reservations belong on earlier pages.
func (m *snapshotMerge) onHead(process, sequence uint64, at string) error {
	if process != m.request.process {
		return fmt.Errorf("process %d answered for %d", process, m.request.process)
	}
	m.began = m.replica.now()
	if m.pages.pages > 1 {
		return nil
	}
	m.result.sequence = sequence
	m.replica.coreMu.Lock()
	defer m.replica.coreMu.Unlock()
	return m.replica.core.confirm(m.request, sequence, at)
}

// authority returns how far the snapshot is believed about the reservations of a process.
func (m *snapshotMerge) authority(process uint64) reservations.Authority {
	m.replica.coreMu.Lock()
	defer m.replica.coreMu.Unlock()
	return m.replica.core.authorityAbout(m.request, process)
}

// learned counts n changes of the ledger by the snapshot.
func (m *snapshotMerge) learned(n int) {
	m.result.learned = m.result.learned || n > 0
	m.replica.core.countLearned(n)
}

// onRenewals implements snapshotSink. The number on the first page counts, as in
// onHead.
func (m *snapshotMerge) onRenewals(sequence uint64) {
	if m.pages.pages == 1 {
		m.result.renewals = sequence
	}
}

// onEnded implements snapshotSink.
//
// It ignores what the snapshot says about the numbers of other processes: these report
// for themselves, and single ends come by name.
func (m *snapshotMerge) onEnded(process uint64, ended history.EndedSet) {
	if m.authority(process) != reservations.ByOwner {
		return
	}
	ended.Ranges, ended.Leases = m.upTo(ended.Ranges), m.upTo(ended.Leases)
	n := m.replica.core.ledger.MergeEnded(process, ended)
	m.replica.counts.endedBySnapshot.Add(uint64(n))
	m.learned(n)
}

// upTo cuts off the parts of ranges that are far beyond the numbers that the process has
// used.
func (m *snapshotMerge) upTo(ranges []history.Range) []history.Range {
	last := m.result.sequence + maxJump
	for i, x := range ranges {
		if x.To > last {
			m.replica.counts.drop(dropJump)
			ranges[i].To = last // a range that begins beyond last is then empty
		}
	}
	return ranges
}

// onFreed implements snapshotSink.
func (m *snapshotMerge) onFreed(names []history.Name) {
	n, fresh := m.replica.core.ledger.MergeFreed(m.request.process, names)
	for _, name := range fresh {
		m.replica.core.freed.add(m.request.process, name, m.replica.now())
	}
	m.replica.counts.endedBySnapshot.Add(uint64(n))
	m.learned(n)
}

// onReservation implements snapshotSink.
func (m *snapshotMerge) onReservation(j *reservationJSON) error {
	b, err := j.reservation(m.replica.now().Sub(m.began))
	if err != nil {
		return err
	}
	switch size, known := m.replica.scopes.BlockSize(b.Scope); {
	case !known:
		m.result.refused = true
		return nil
	case size != j.BlockSize:
		return nil
	}
	b.Authority, b.Peer, b.OfOthers = m.authority(b.Origin.Process), m.request.peer, b.Origin.Process != m.request.process
	if b.Authority == reservations.ByOwner && b.Origin.Sequence > m.result.sequence+maxJump {
		m.replica.counts.drop(dropJump)
		return nil
	}
	switch m.replica.core.ledger.MergeReservation(b) {
	case reservations.Applied:
		m.replica.counts.addedBySnapshot.Add(1)
		m.learned(1)
	case reservations.Updated:
		m.replica.counts.completedBySnapshot.Add(1)
		m.learned(1)
	case reservations.UnknownScope, reservations.UnknownRank:
		m.result.refused = true
	case reservations.Full:
		m.result.full = true
	}
	return nil
}
