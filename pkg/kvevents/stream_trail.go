package kvevents

// trail remembers what a few numbers of a stream stood for. An engine that
// restarted counts from 0 again: when its numbers have passed the old ones, only
// their content tells the two engines apart. A batch begins with its time, so
// that two engines never send the same one.
type trail struct {
	marks [trailMarks]imprint // every trailStride-th message
	seams [trailSeams]imprint // the last messages of earlier connections
	seam  int                 // the next one to overwrite
	first imprint
	last  imprint
}

const (
	trailMarks  = 16
	trailStride = 1024 // 16 marks span the usual ring of 10,000 messages
	trailSeams  = 4
)

// imprint tells messages apart. It is quick to take: both ends of the payload,
// where time and rank are.
type imprint struct {
	seq        uint64
	length     int // 0: no imprint
	head, tail [32]byte
}

func imprintOf(m message) (p imprint) {
	p.seq, p.length = m.seq, len(m.payload)
	copy(p.head[:], m.payload)
	copy(p.tail[:], m.payload[max(0, len(m.payload)-len(p.tail)):])
	return p
}

// note remembers m, the newest message.
func (t *trail) note(m message) {
	t.last = imprintOf(m)
	if t.first.length == 0 {
		t.first = t.last
	}
	if m.seq%trailStride == 0 {
		t.marks[m.seq/trailStride%trailMarks] = t.last
	}
}

// cut remembers the last message as the end of a connection.
func (t *trail) cut() {
	t.seams[t.seam] = t.last
	t.seam = (t.seam + 1) % trailSeams
}

// compare says whether m's number is remembered, and for the same message.
func (t *trail) compare(m message) (remembered, same bool) {
	check := func(p *imprint) bool {
		if p.length == 0 || p.seq != m.seq {
			return false
		}
		remembered, same = true, *p == imprintOf(m)
		return true
	}
	if check(&t.last) || check(&t.first) || check(&t.marks[m.seq/trailStride%trailMarks]) {
		return remembered, same
	}
	for i := range t.seams {
		if check(&t.seams[i]) {
			break
		}
	}
	return remembered, same
}
