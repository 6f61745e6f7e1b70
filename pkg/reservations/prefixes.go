package reservations

import (
	"iter"
	"slices"

	"github.com/select-service/select-service/internal/container/keyhash"
	"github.com/select-service/select-service/internal/container/offheap"
)

// prefixes holds the active prompts of a scope as a prefix tree. A node is a run of blocks with
// the same holders, so that a prompt costs what is new in it: what it shares with others is
// compared, and counted by the run. A node lives as long as a reservation holds it.
//
// A slot's blocks are counted by their hash. Because a sequence hash stands for its whole
// chain, a hash normally is in one node only, which positions finds, and the nodes of a slot
// have all its blocks once.
//
// Callers may send sequences that no chain can produce, with one hash in several nodes. Such a
// hash is mixed: it is in the table mixed instead of positions, with holders of its own, and
// its nodes leave it out of what they count, until no reservation holds it any more.
//
// A prompt may be pinned: its nodes stay when no reservation holds them any more, for the sake of
// their hashes. Such a node is detached: no walk finds it, and its hashes count as in no node.
type prefixes struct {
	nodes     []node // by number; node 0 is the root and has no blocks
	freeNodes []uint32
	chunks    wordArena
	positions positions
	holders   holders // of nodes, and of the rows of mixed
	mixed     flat    // by hash; a and b are the owners
	// children has the nodes whose first hash is mixed. The others are found by positions.
	children map[childKey]uint32
	blocks   int // of all nodes
	// sink keeps the compiler from removing the reads of lookAhead.
	sink uint64
}

// node is a run. Its hashes are in a list of chunks.
type node struct {
	owners
	parent      uint32
	first, last uint32 // chunks
	n           uint32 // blocks
	mixed       uint32 // the part of n that is mixed
	ends        uint32 // reservations and pins whose prompt ends with this run
	children    uint32
	childrenXor uint32 // of their numbers: of a single child, its number
}

type childKey struct {
	parent uint32
	hash   uint64
}

// A chunk is chunkWords words of the arena: the next chunk of the run (0: none) and, in the
// upper half, the node; the number of hashes; the hashes. A position is the number of a word:
// 32 bits are enough for 32 GiB of them. If local hashes are kept too, they follow in chunkHashes
// words more, 0 where they are not known.
const (
	chunkBits   = 5
	chunkWords  = 1 << chunkBits
	chunkHead   = 2
	chunkHashes = chunkWords - chunkHead
)

func hashAt(a *wordArena, at uint32) uint64 {
	return a.get(at >> chunkBits)[at%chunkWords]
}

func positionIn(chunk uint32, i int) uint32 { return chunk<<chunkBits | uint32(chunkHead+i) }

func (p *prefixes) next(chunk uint32) uint32   { return uint32(p.chunks.get(chunk)[0]) }
func (p *prefixes) nodeOf(chunk uint32) uint32 { return uint32(p.chunks.get(chunk)[0] >> 32) }

func (p *prefixes) link(chunk, next, node uint32) {
	p.chunks.get(chunk)[0] = uint64(node)<<32 | uint64(next)
}

// hashesOf returns the hashes of a chunk.
func (p *prefixes) hashesOf(chunk uint32) []uint64 {
	words := p.chunks.get(chunk)
	return words[chunkHead : chunkHead+words[1]]
}

// localsOf returns the local hashes of a chunk, if they are kept.
func (p *prefixes) localsOf(chunk uint32) []uint64 {
	words := p.chunks.get(chunk)
	return words[chunkWords : chunkWords+words[1]]
}

// keepsLocal reports whether there is room for local hashes.
func (p *prefixes) keepsLocal() bool { return p.chunks.words > chunkWords }

func newPrefixes(keepLocal bool) prefixes {
	mem := new(offheap.Memory)
	words := chunkWords
	if keepLocal {
		words += chunkHashes
	}
	b := prefixes{
		chunks:    wordArena{mem: mem, words: words},
		positions: positions{mem: mem, key: keyhash.New()},
		holders:   newHolders(mem),
		mixed:     flat{key: keyhash.New()},
	}
	b.reset()
	return b
}

// match is how far a prompt goes along the tree: to block at of a node, which is n blocks from
// the root.
type match struct {
	node, at uint32
	n        int
}

// child returns the child of a node whose first block has that hash, or 0.
func (p *prefixes) child(parent uint32, hash uint64) uint32 {
	if at := p.positions.find(hash, &p.chunks); at != 0 {
		chunk := at >> chunkBits
		id := p.nodeOf(chunk)
		if nd := &p.nodes[id]; nd.parent == parent && at == positionIn(nd.first, 0) {
			return id
		}
		return 0
	}
	if len(p.children) == 0 {
		return 0
	}
	return p.children[childKey{parent, hash}]
}

// step continues m by one node; rest are the prompt's blocks after m. It is false if the prompt
// goes no further.
func (p *prefixes) step(m match, rest []uint64) (match, bool) {
	if len(rest) == 0 || m.at != p.nodes[m.node].n {
		return m, false
	}
	id := p.child(m.node, rest[0])
	if id == 0 {
		return m, false
	}
	at := p.common(&p.nodes[id], 0, rest)
	return match{id, at, m.n + int(at)}, true
}

// walk follows a prompt from m on as far as it goes; rest are its blocks after m.
func (p *prefixes) walk(m match, rest []uint64) match {
	begin := m.n
	if nd := &p.nodes[m.node]; m.at < nd.n {
		k := p.common(nd, m.at, rest)
		m.at, m.n = m.at+k, m.n+int(k)
	}
	for more := true; more; {
		m, more = p.step(m, rest[m.n-begin:])
	}
	return m
}

// common returns how many blocks of a node, from block at on, the hashes begin with.
func (p *prefixes) common(nd *node, at uint32, hashes []uint64) (n uint32) {
	for chunk := nd.first; chunk != 0 && len(hashes) > 0; chunk = p.next(chunk) {
		run := p.hashesOf(chunk)
		if int(at) >= len(run) {
			at -= uint32(len(run))
			continue
		}
		run, at = run[at:], 0
		k := min(len(run), len(hashes))
		if !slices.Equal(run[:k], hashes[:k]) {
			for i := 0; run[i] == hashes[i]; i++ {
				n++
			}
			return n
		}
		n += uint32(k)
		hashes = hashes[k:]
	}
	return n
}

// preparedPrompt is a prompt that prepare has made ready for the tree. Until it enters or is dropped,
// nothing else may change the tree.
type preparedPrompt struct {
	m           match    // how far it goes along the tree
	fresh       uint32   // how many blocks it has after that
	first, last uint32   // chunks with these blocks, unless it has mixed ones
	hashes      []uint64 // all blocks, if it has mixed ones or makes some mixed; else nil
}

// blocks returns the number of distinct blocks.
func (pp *preparedPrompt) blocks() int { return pp.m.n + int(pp.fresh) }

// prepare makes a prompt ready for the tree: m is the walk of its first blocks, rest are those
// after m. Repeats are left out.
func (p *prefixes) prepare(m match, rest []uint64) preparedPrompt {
	if first, last, ok := p.store(rest); ok {
		return preparedPrompt{m: m, fresh: uint32(len(rest)), first: first, last: last}
	}
	hashes := distinct(append(p.list(m), rest...))
	m = p.walk(match{}, hashes)
	return preparedPrompt{m: m, fresh: uint32(len(hashes) - m.n), hashes: hashes}
}

// drop undoes prepare.
func (p *prefixes) drop(x preparedPrompt) { p.discard(x.first) }

// hold adds one holder on slot to a prompt's blocks. tail, the node in which the prompt ends,
// names it from now on; fresh is the number of its blocks that are new on slot.
func (p *prefixes) hold(x preparedPrompt, slot uint32) (tail uint32, fresh uint64) {
	if x.hashes != nil {
		tail = p.growMixed(x.m, x.hashes)
	} else {
		tail = p.grow(x.m, x.first, x.last, x.fresh, 0)
	}
	return tail, p.count(tail, slot)
}

// growMixed is grow for a prompt without repeats, whose walk is m, that has mixed hashes or makes
// some mixed.
func (p *prefixes) growMixed(m match, hashes []uint64) (tail uint32) {
	if p.nodes[m.node].n != m.at { // first: the rest of the node may have some of these hashes
		m.node = p.split(m.node, m.at)
	}
	var first, last, mixed uint32
	firstMixed := false
	for i, hash := range hashes[m.n:] {
		first, last = p.appendHash(first, last, hash)
		if at := p.positions.find(hash, &p.chunks); at != 0 {
			p.mix(hash, at)
		}
		if p.mixed.find(hash) != nil {
			mixed++
			firstMixed = firstMixed || i == 0
			continue
		}
		p.positions.init()
		p.positions.putNew(hash, p.positions.key.Sum(hash), positionIn(last, len(p.hashesOf(last))-1), &p.chunks)
	}
	tail = p.grow(m, first, last, uint32(len(hashes)-m.n), mixed)
	if firstMixed {
		p.setChild(p.nodes[tail].parent, hashes[m.n], tail)
	}
	return tail
}

// store puts hashes, none of which is in the tree or repeats, into a list of new chunks. It
// undoes everything if one is.
func (p *prefixes) store(hashes []uint64) (first, last uint32, ok bool) {
	var sums [ahead]uint64
	for len(hashes) > 0 {
		part := hashes[:min(len(hashes), chunkHashes)]
		hashes = hashes[len(part):]
		p.sink += p.positions.lookAhead(part, &sums)
		chunk := p.chunks.alloc()
		if last == 0 {
			first = chunk
		} else {
			p.link(last, chunk, 0)
		}
		last = chunk
		words := p.chunks.get(chunk)
		copy(words[chunkHead:], part)
		for i, hash := range part {
			if p.mixed.live > 0 && p.mixed.find(hash) != nil || !p.positions.putNew(hash, sums[i], positionIn(chunk, i), &p.chunks) {
				words[1] = uint64(i) // the others have no positions
				p.discard(first)
				return 0, 0, false
			}
		}
		words[1] = uint64(len(part))
	}
	return first, last, true
}

// appendHash appends a hash to a list of chunks of no node.
func (p *prefixes) appendHash(first, last uint32, hash uint64) (newFirst, newLast uint32) {
	if last == 0 || p.chunks.get(last)[1] == chunkHashes {
		chunk := p.chunks.alloc()
		if last == 0 {
			first = chunk
		} else {
			p.link(last, chunk, 0)
		}
		last = chunk
	}
	words := p.chunks.get(last)
	words[chunkHead+words[1]] = hash
	words[1]++
	return first, last
}

// discard frees a list of chunks, and removes its hashes from positions.
func (p *prefixes) discard(chunk uint32) {
	for chunk != 0 {
		p.forget(chunk)
		next := p.next(chunk)
		p.chunks.release(chunk)
		chunk = next
	}
}

// forget removes the hashes of a chunk from positions.
func (p *prefixes) forget(chunk uint32) {
	var sums [ahead]uint64
	run := p.hashesOf(chunk)
	p.sink += p.positions.lookAhead(run, &sums)
	for i := range run {
		p.positions.remove(sums[i], positionIn(chunk, i))
	}
}

// grow adds a node of n blocks, of which some are mixed, below m, and returns the node in which
// the prompt ends. Without blocks that is the node of m.
func (p *prefixes) grow(m match, first, last, n, mixed uint32) (tail uint32) {
	tail = m.node
	if p.nodes[tail].n != m.at {
		tail = p.split(tail, m.at)
	}
	if n > 0 {
		parent := tail
		tail = p.newNode()
		nd := &p.nodes[tail]
		nd.parent, nd.first, nd.last, nd.n, nd.mixed = parent, first, last, n, mixed
		p.label(first, tail)
		p.blocks += int(n)
		p.nodes[parent].children++
		p.nodes[parent].childrenXor ^= tail
	}
	p.nodes[tail].ends++
	return tail
}

// label makes chunks part of a node.
func (p *prefixes) label(chunk, id uint32) {
	for chunk != 0 {
		next := p.next(chunk)
		p.link(chunk, next, id)
		chunk = next
	}
}

func (p *prefixes) newNode() (id uint32) {
	if last := len(p.freeNodes) - 1; last >= 0 {
		id = p.freeNodes[last]
		p.freeNodes = p.freeNodes[:last]
		return id
	}
	p.nodes = append(p.nodes, node{})
	return uint32(len(p.nodes) - 1)
}

func (p *prefixes) freeNode(id uint32) {
	p.nodes[id] = node{}
	p.freeNodes = append(p.freeNodes, id)
}

// count adds a holder on slot to all nodes up to the root. It returns how many blocks are new
// on slot.
func (p *prefixes) count(tail, slot uint32) (fresh uint64) {
	for id := tail; id != 0; id = p.nodes[id].parent {
		nd := &p.nodes[id]
		if p.holders.hold(&nd.owners, slot) {
			fresh += uint64(nd.n - nd.mixed)
		}
		if nd.mixed > 0 {
			for chunk := nd.first; chunk != 0; chunk = p.next(chunk) {
				for _, hash := range p.hashesOf(chunk) {
					if row := p.mixed.find(hash); row != nil && p.holders.hold(&row.owners, slot) {
						fresh++
					}
				}
			}
		}
	}
	return fresh
}

// release removes one holder on slot, which must be one, from a prompt's blocks. last is called
// with numbers of blocks that slot no longer holds and their deficit.
func (p *prefixes) release(tail, slot uint32, last func(n uint64, deficit uint32)) {
	if tail != 0 {
		p.nodes[tail].ends--
	}
	for id := tail; id != 0; {
		nd := &p.nodes[id]
		parent := nd.parent
		gone, deficit := p.holders.release(&nd.owners, slot)
		if gone && nd.n > nd.mixed {
			last(uint64(nd.n-nd.mixed), deficit)
		}
		if nd.mixed > 0 {
			p.releaseMixed(nd, slot, last)
		}
		switch {
		case !nd.none():
			p.rejoin(id)
		case nd.ends == 0 && nd.children == 0:
			p.detach(nd)
			p.remove(id)
		default: // pinned
			p.detach(nd)
		}
		id = parent
	}
}

// pin keeps the nodes of a prompt's blocks up to m until unpin is called with the result.
func (p *prefixes) pin(m match) (tail uint32) { return p.grow(m, 0, 0, 0, 0) }

// unpin undoes pin.
func (p *prefixes) unpin(tail uint32) {
	p.nodes[tail].ends--
	id := tail
	for nd := &p.nodes[id]; nd.none() && nd.ends == 0 && nd.children == 0; nd = &p.nodes[id] {
		if id == 0 {
			return
		}
		parent := nd.parent
		p.remove(id)
		id = parent
	}
	if id != 0 {
		p.rejoin(id)
	}
}

// releaseMixed is release for the mixed blocks of a node. If the node has no owner any more, the
// positions of its other blocks are removed too, so that only detach's part in children is left.
func (p *prefixes) releaseMixed(nd *node, slot uint32, last func(n uint64, deficit uint32)) {
	for chunk := nd.first; chunk != 0; chunk = p.next(chunk) {
		for i, hash := range p.hashesOf(chunk) {
			row := p.mixed.find(hash)
			if row == nil {
				if nd.none() {
					p.positions.remove(p.positions.key.Sum(hash), positionIn(chunk, i))
				}
				continue
			}
			if gone, deficit := p.holders.release(&row.owners, slot); gone {
				last(1, deficit)
			}
			if row.none() {
				row.b = 1 // a row of the table, until it is removed
				p.mixed.remove(hash)
			}
		}
	}
}

// detach makes that a node which has lost its last owner is not found any more.
func (p *prefixes) detach(nd *node) {
	if nd.mixed > 0 {
		delete(p.children, childKey{nd.parent, p.hashesOf(nd.first)[0]})
		nd.mixed = 0
		return
	}
	for chunk := nd.first; chunk != 0; chunk = p.next(chunk) {
		p.forget(chunk)
	}
}

// remove removes a detached node without children in which no prompt ends.
func (p *prefixes) remove(id uint32) {
	nd := &p.nodes[id]
	for chunk := nd.first; chunk != 0; {
		next := p.next(chunk)
		p.chunks.release(chunk)
		chunk = next
	}
	p.blocks -= int(nd.n)
	p.nodes[nd.parent].children--
	p.nodes[nd.parent].childrenXor ^= id
	p.freeNode(id)
}

// split divides a node before block at, which is neither the first nor beyond the last. The
// blocks before it become a new node, which is returned; the others keep the number, under
// which reservations and children know them.
func (p *prefixes) split(id, at uint32) (upper uint32) {
	upper = p.newNode()
	nd, up := &p.nodes[id], &p.nodes[upper]
	*up = node{owners: p.holders.copy(&nd.owners), parent: nd.parent, first: nd.first, n: at, children: 1, childrenXor: id}
	p.nodes[nd.parent].childrenXor ^= id ^ upper
	before, chunk, left := uint32(0), nd.first, int(at)
	for left > len(p.hashesOf(chunk)) {
		left -= len(p.hashesOf(chunk))
		before, chunk = chunk, p.next(chunk)
	}
	rest := p.next(chunk)
	if moved := p.hashesOf(chunk)[left:]; len(moved) > 0 {
		rest = p.chunks.alloc()
		p.link(rest, p.next(chunk), id)
		words := p.chunks.get(rest)
		words[1] = uint64(copy(words[chunkHead:], moved))
		if p.keepsLocal() {
			copy(p.localsOf(rest), p.localsOf(chunk)[left:])
		}
		for i, hash := range moved {
			p.movePosition(hash, positionIn(chunk, left+i), positionIn(rest, i))
		}
		p.chunks.get(chunk)[1] = uint64(left)
		if nd.last == chunk {
			nd.last = rest
		}
	}
	p.link(chunk, 0, upper)
	up.last = chunk
	nd.first = rest
	p.joinNext(nd, rest)
	if before != 0 {
		p.joinNext(up, before)
	}
	p.label(up.first, upper)
	nd.parent, nd.n = upper, nd.n-at
	if nd.mixed > 0 {
		for chunk := up.first; chunk != 0; chunk = p.next(chunk) {
			for _, hash := range p.hashesOf(chunk) {
				if p.mixed.find(hash) != nil {
					up.mixed++
				}
			}
		}
		nd.mixed -= up.mixed
		p.relink(up.parent, upper)
		p.relink(upper, id)
	}
	return upper
}

// joinNext joins a chunk of a node with the next one if both fit into one: no two neighbours do.
func (p *prefixes) joinNext(nd *node, chunk uint32) {
	next := p.next(chunk)
	if next == 0 {
		return
	}
	into, from := p.chunks.get(chunk), p.hashesOf(next)
	if int(into[1])+len(from) > chunkHashes {
		return
	}
	for i, hash := range from {
		at := int(into[1])
		into[chunkHead+at] = hash
		into[1]++
		p.movePosition(hash, positionIn(next, i), positionIn(chunk, at))
	}
	if p.keepsLocal() {
		copy(p.localsOf(chunk)[int(into[1])-len(from):], p.localsOf(next))
	}
	p.link(chunk, p.next(next), p.nodeOf(chunk))
	if nd.last == next {
		nd.last = chunk
	}
	p.chunks.release(next)
}

func (p *prefixes) movePosition(hash uint64, from, to uint32) {
	if p.mixed.live == 0 || p.mixed.find(hash) == nil {
		p.positions.move(hash, from, to)
	}
}

// relink enters a node under its parent in children if its first hash is mixed.
func (p *prefixes) relink(parent, id uint32) {
	if first := p.hashesOf(p.nodes[id].first)[0]; p.mixed.find(first) != nil {
		p.setChild(parent, first, id)
	}
}

func (p *prefixes) setChild(parent uint32, hash uint64, id uint32) {
	if p.children == nil {
		p.children = make(map[childKey]uint32)
	}
	p.children[childKey{parent, hash}] = id
}

// rejoin undoes a split that nothing needs any more: it joins a node with its only child, if no
// prompt ends between them and their blocks weigh the same. The child keeps its number. Detached
// nodes are not joined.
func (p *prefixes) rejoin(id uint32) {
	up := &p.nodes[id]
	if up.ends != 0 || up.children != 1 || up.none() {
		return
	}
	child := up.childrenXor
	nd := &p.nodes[child]
	if !p.holders.equal(&up.owners, &nd.owners) {
		return
	}
	if nd.mixed > 0 {
		delete(p.children, childKey{id, p.hashesOf(nd.first)[0]})
	}
	p.label(up.first, child)
	p.link(up.last, nd.first, child)
	p.joinNext(nd, up.last)
	nd.first, nd.n, nd.mixed, nd.parent = up.first, nd.n+up.n, nd.mixed+up.mixed, up.parent
	p.nodes[nd.parent].childrenXor ^= id ^ child
	if nd.mixed > 0 {
		p.relink(nd.parent, child)
	}
	p.holders.forget(&up.owners)
	p.freeNode(id)
}

// mix makes a hash that stands at a position mixed.
func (p *prefixes) mix(hash uint64, at uint32) {
	id := p.nodeOf(at >> chunkBits)
	nd := &p.nodes[id]
	p.positions.remove(p.positions.key.Sum(hash), at)
	row, _ := p.mixed.put(hash)
	row.owners = p.holders.copy(&nd.owners)
	nd.mixed++
	if at == positionIn(nd.first, 0) {
		p.setChild(nd.parent, hash, id)
	}
}

// decay sets the deficit of those blocks of a prompt that only one reservation holds on slot.
// changed is called with numbers of blocks and their former deficit.
func (p *prefixes) decay(tail, slot, deficit uint32, changed func(n uint64, former uint32)) {
	for id := tail; id != 0; id = p.nodes[id].parent {
		nd := &p.nodes[id]
		former, ok := p.holders.decay(&nd.owners, slot, deficit)
		if !ok {
			return // nor does one reservation alone hold what is before
		}
		if nd.n > nd.mixed {
			changed(uint64(nd.n-nd.mixed), former)
		}
		if nd.mixed == 0 {
			continue
		}
		for chunk := nd.first; chunk != 0; chunk = p.next(chunk) {
			for _, hash := range p.hashesOf(chunk) {
				if row := p.mixed.find(hash); row != nil {
					if former, ok := p.holders.decay(&row.owners, slot, deficit); ok {
						changed(1, former)
					}
				}
			}
		}
	}
}

// end returns the match of a whole prompt, of n blocks, that ends in tail.
func (p *prefixes) end(tail uint32, n int) match { return match{tail, p.nodes[tail].n, n} }

// at returns the match of the first n blocks, at least one, of a prompt whose match is m.
func (p *prefixes) at(m match, n int) match {
	for m.n-int(m.at) >= n {
		m.n -= int(m.at)
		m.node = p.nodes[m.node].parent
		m.at = p.nodes[m.node].n
	}
	return match{m.node, m.at - uint32(m.n-n), n}
}

// passes reports whether a prompt that ends in tail has the blocks of a node. It looks at a
// bounded number of runs.
func (p *prefixes) passes(tail, id uint32) bool {
	for range maxRuns {
		switch tail {
		case id:
			return true
		case 0:
			return false
		}
		tail = p.nodes[tail].parent
	}
	return false
}

// maxRuns is how many runs of a prompt passes looks at.
const maxRuns = 64

// list returns the hashes up to m.
func (p *prefixes) list(m match) []uint64 { return p.appendAfter(nil, m, 0) }

// appendAfter appends the hashes of the nodes up to m whose blocks are after the first n of the
// prompt; n is at the end of a node.
func (p *prefixes) appendAfter(out []uint64, m match, n int) []uint64 {
	return p.appendWords(out, m, n, p.hashesOf)
}

// appendLocals is appendAfter for the local hashes from the first block on.
func (p *prefixes) appendLocals(out []uint64, m match) []uint64 {
	return p.appendWords(out, m, 0, p.localsOf)
}

func (p *prefixes) appendWords(out []uint64, m match, n int, of func(chunk uint32) []uint64) []uint64 {
	begin := len(out)
	out = slices.Grow(out, m.n-n)[:begin+m.n-n]
	for m.n > n {
		m.n -= int(m.at)
		to := out[begin+m.n-n:][:m.at]
		for chunk := p.nodes[m.node].first; len(to) > 0; chunk = p.next(chunk) {
			to = to[copy(to, of(chunk)):]
		}
		m.node = p.nodes[m.node].parent
		m.at = p.nodes[m.node].n
	}
	return out
}

// learn enters the local hashes of a prompt's blocks up to m where they are not known yet. It
// returns the first part of m, whose blocks have these local hashes then.
func (p *prefixes) learn(m match, local []uint64) match {
	agree := m.n
	if zero := slices.Index(local[:m.n], 0); zero >= 0 { // which means unknown
		agree = zero
	}
	for at, known := range p.locals(m) {
		if slices.Equal(known, local[at:at+len(known)]) {
			continue
		}
		for i, l := range known {
			if l != 0 && l != local[at+i] {
				agree = min(agree, at+i)
			}
		}
	}
	if agree == 0 {
		return match{}
	}
	m = p.at(m, agree)
	for at, known := range p.locals(m) {
		copy(known, local[at:])
	}
	return m
}

// locals returns the local hashes of the blocks up to m, chunk by chunk, each with the number of
// its first block. Nodes come in reverse order.
func (p *prefixes) locals(m match) iter.Seq2[int, []uint64] {
	return func(yield func(int, []uint64) bool) {
		for m.n > 0 {
			m.n -= int(m.at)
			at, left := m.n, int(m.at)
			for chunk := p.nodes[m.node].first; left > 0; chunk = p.next(chunk) {
				part := p.localsOf(chunk)
				part = part[:min(len(part), left)]
				if !yield(at, part) {
					return
				}
				at, left = at+len(part), left-len(part)
			}
			m.node = p.nodes[m.node].parent
			m.at = p.nodes[m.node].n
		}
	}
}

// Estimates of what parts of a tree take, in bytes, with the spare room of the tables.
const (
	blockBytes = 24 // of a node: the hash, its part of a chunk, its position
	localBytes = 8  // of a node, if local hashes are kept
	pairBytes  = 56 // of the holders
	mixedBytes = 56 // a mixed hash; its row in children too
)

// bytes returns what the tree takes beside the nodes themselves, which are part of entryBytes.
func (p *prefixes) bytes() int64 {
	sets := p.holders.sets.live * 8 * p.holders.sets.words
	block := blockBytes
	if p.keepsLocal() {
		block += localBytes
	}
	return int64(block*p.blocks + pairBytes*p.holders.pairs.live + mixedBytes*(p.mixed.live+len(p.children)) + sets)
}

// widen makes room for that many slots.
func (p *prefixes) widen(slots int) {
	if words := (slots + 63) / 64; words > p.holders.sets.words {
		p.holders.sets.widen(max(words, 2*p.holders.sets.words))
	}
}

// idle reports whether no block is held.
func (p *prefixes) idle() bool { return p.nodes[0].children == 0 }

// reset gives all memory back; only when idle.
func (p *prefixes) reset() {
	p.free()
	p.chunks.alloc() // chunk 0 is never used, so that position 0 does not exist
}

// free is reset for a tree in which nothing will be held again.
func (p *prefixes) free() {
	p.nodes, p.freeNodes, p.children = make([]node, 1), nil, nil
	p.positions.reset()
	p.holders.reset()
	p.mixed.reset()
	p.chunks.reset()
}

// trim gives back the spare memory of part i, which is below segments.
func (p *prefixes) trim(i int) {
	p.positions.trim(i)
	p.mixed.trim(i)
	p.holders.pairs.trim(i)
	if i == 0 {
		p.holders.sets.trim()
		p.chunks.trim()
	}
}
