package main

// Workload: a real request trace (512-token block ids) expanded to tokens, an
// LRU cache model per worker, and the vLLM msgpack KV events which it yields.

import (
	"bufio"
	"container/list"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"

	"github.com/zeebo/xxh3"
)

const (
	traceBlock = 512
	hashSeed   = 1337
	vocab      = 128000
)

type traceReq struct {
	TimestampMs  int64   `json:"timestamp"`
	InputLength  int     `json:"input_length"`
	OutputLength int     `json:"output_length"`
	HashIDs      []int64 `json:"hash_ids"`
}

func loadTrace(path string, max int) ([]traceReq, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(make([]byte, 1<<20), 64<<20)
	var out []traceReq
	for sc.Scan() {
		var r traceReq
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			return nil, err
		}
		out = append(out, r)
		if max > 0 && len(out) >= max {
			break
		}
	}
	return out, sc.Err()
}

func mix(x uint64) uint64 { // splitmix64 finaliser
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}

// expander turns trace ids into per-block local hashes; memoised by id.
type expander struct {
	bs    int
	local map[int64][]uint64
}

func newExpander(bs int) *expander {
	if traceBlock%bs != 0 {
		panic("block size must divide 512")
	}
	return &expander{bs: bs, local: map[int64][]uint64{}}
}

func tokensOf(id int64, dst []uint32) []uint32 {
	for j := 0; j < traceBlock; j++ {
		dst = append(dst, uint32(mix(uint64(id)*traceBlock+uint64(j))%vocab))
	}
	return dst
}

func localHash(tok []uint32, buf []byte) uint64 {
	buf = buf[:0]
	for _, t := range tok {
		buf = binary.LittleEndian.AppendUint32(buf, t)
	}
	return xxh3.HashSeed(buf, hashSeed)
}

func (e *expander) locals(id int64) []uint64 {
	if l, ok := e.local[id]; ok {
		return l
	}
	tok := tokensOf(id, make([]uint32, 0, traceBlock))
	buf := make([]byte, 0, e.bs*4)
	l := make([]uint64, 0, traceBlock/e.bs)
	for i := 0; i < traceBlock; i += e.bs {
		l = append(l, localHash(tok[i:i+e.bs], buf))
	}
	e.local[id] = l
	return l
}

func chainNext(parent, local uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], parent)
	binary.LittleEndian.PutUint64(b[8:], local)
	return xxh3.HashSeed(b[:], hashSeed)
}

func chain(local []uint64) []uint64 {
	out := make([]uint64, len(local))
	for i, l := range local {
		if i == 0 {
			out[i] = l
		} else {
			out[i] = chainNext(out[i-1], l)
		}
	}
	return out
}

// engineHash is what the simulated engine calls a block: any bijection of the
// chained hash will do, the service must not assume that they are equal.
func engineHash(seq uint64) uint64 { return mix(seq ^ 0xabcdef) }

type prompt struct {
	ids    []int64
	tokens int
	local  []uint64
	seq    []uint64
}

func (e *expander) prompt(ids []int64, tokens int) *prompt {
	n := tokens / e.bs
	local := make([]uint64, 0, n)
	for _, id := range ids {
		local = append(local, e.locals(id)...)
		if len(local) >= n {
			break
		}
	}
	if len(local) > n {
		local = local[:n]
	}
	return &prompt{ids: ids, tokens: len(local) * e.bs, local: local, seq: chain(local)}
}

func (e *expander) tokenIDs(p *prompt) []uint32 {
	var t []uint32
	for _, id := range p.ids {
		t = tokensOf(id, t)
		if len(t) >= p.tokens {
			break
		}
	}
	return t[:p.tokens]
}

// ---- worker cache model -------------------------------------------------

type cacheModel struct {
	cap int
	lru *list.List // front = most recent; value = seq hash
	at  map[uint64]*list.Element
}

func newCache(capBlocks int) *cacheModel {
	return &cacheModel{cap: capBlocks, lru: list.New(), at: map[uint64]*list.Element{}}
}

func (c *cacheModel) prefix(seq []uint64) int {
	for i, s := range seq {
		if _, ok := c.at[s]; !ok {
			return i
		}
	}
	return len(seq)
}

// insert makes seq resident; it returns the index of the first new block and
// the hashes evicted to make room (tail of the oldest chain first).
func (c *cacheModel) insert(seq []uint64) (first int, evicted []uint64) {
	first = c.prefix(seq)
	// pin the matched prefix by touching it, then evict, then add
	for i := first - 1; i >= 0; i-- {
		c.lru.MoveToFront(c.at[seq[i]])
	}
	need := len(seq) - first
	for c.lru.Len()+need > c.cap && c.lru.Len() > first {
		el := c.lru.Back()
		s := el.Value.(uint64)
		c.lru.Remove(el)
		delete(c.at, s)
		evicted = append(evicted, s)
	}
	for i := len(seq) - 1; i >= first; i-- {
		if el, ok := c.at[seq[i]]; ok { // resident orphan
			c.lru.MoveToFront(el)
			continue
		}
		c.at[seq[i]] = c.lru.PushFront(seq[i])
	}
	for i := first - 1; i >= 0; i-- {
		c.lru.MoveToFront(c.at[seq[i]])
	}
	return
}

// ---- msgpack writer (vLLM wire form, array_like) ------------------------

func mpArr(b []byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, 0x90|byte(n))
	case n < 1<<16:
		return append(b, 0xdc, byte(n>>8), byte(n))
	}
	return append(b, 0xdd, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func mpStr(b []byte, s string) []byte {
	if len(s) < 32 {
		b = append(b, 0xa0|byte(len(s)))
	} else {
		b = append(b, 0xd9, byte(len(s)))
	}
	return append(b, s...)
}

func mpUint(b []byte, v uint64) []byte {
	switch {
	case v < 128:
		return append(b, byte(v))
	case v < 1<<8:
		return append(b, 0xcc, byte(v))
	case v < 1<<16:
		return append(b, 0xcd, byte(v>>8), byte(v))
	case v < 1<<32:
		return append(b, 0xce, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
	}
	b = append(b, 0xcf)
	return binary.BigEndian.AppendUint64(b, v)
}

func mpF64(b []byte, bits uint64) []byte {
	b = append(b, 0xcb)
	return binary.BigEndian.AppendUint64(b, bits)
}

// message is one ZMQ payload with its accounting.
type message struct {
	payload []byte
	events  int
	stored  int
	removed int
}

// recOp, when set, receives every event of the workload (export mode).
var recOp func(worker int, stored bool, parent uint64, hasParent bool, engine, local []uint64)

type batch struct {
	worker  int
	body    []byte
	events  int
	stored  int
	removed int
}

func (bt *batch) storeEvent(engine []uint64, parent uint64, hasParent bool, tokens []uint32, bs int) {
	b := bt.body
	b = mpArr(b, 8)
	b = mpStr(b, "BlockStored")
	b = mpArr(b, len(engine))
	for _, h := range engine {
		b = mpUint(b, h)
	}
	if hasParent {
		b = mpUint(b, parent)
	} else {
		b = append(b, 0xc0)
	}
	b = mpArr(b, len(tokens))
	for _, t := range tokens {
		b = mpUint(b, uint64(t))
	}
	b = mpUint(b, uint64(bs))
	b = append(b, 0xc0)
	b = mpStr(b, "GPU")
	b = append(b, 0xc0)
	bt.body = b
	bt.events++
	bt.stored += len(engine)
	if recOp != nil {
		local := make([]uint64, len(engine))
		for i := range local {
			local[i] = localHash(tokens[i*bs:(i+1)*bs], nil)
		}
		recOp(bt.worker, true, parent, hasParent, engine, local)
	}
}

func (bt *batch) removeEvent(engine []uint64) {
	b := bt.body
	b = mpArr(b, 3)
	b = mpStr(b, "BlockRemoved")
	b = mpArr(b, len(engine))
	for _, h := range engine {
		b = mpUint(b, h)
	}
	b = mpStr(b, "GPU")
	bt.body = b
	bt.events++
	bt.removed += len(engine)
	if recOp != nil {
		recOp(bt.worker, false, 0, false, engine, nil)
	}
}

func (bt *batch) finish() message {
	b := make([]byte, 0, len(bt.body)+32)
	b = mpArr(b, 3)
	b = mpF64(b, 0x41d9000000000000)
	b = mpArr(b, bt.events)
	b = append(b, bt.body...)
	b = mpUint(b, 0)
	m := message{b, bt.events, bt.stored, bt.removed}
	*bt = batch{worker: bt.worker, body: bt.body[:0]}
	return m
}

// ---- full scenario ------------------------------------------------------

type workload struct {
	cfg      workloadCfg
	ex       *expander
	trace    []traceReq
	caches   []*cacheModel
	fill     [][]message // per worker, up to and including the sentinel
	advance  func(blocks int, out [][]message)
	churn    [][]message // per worker, later events (same worker order)
	sentinel []*prompt
	resident int // sum of cached blocks after fill
	unique   int
	events   int
	stored   int
	removed  int
	msgs     int
	bytes    int
}

type workloadCfg struct {
	Workers    int     `json:"workers"`
	Capacity   int     `json:"capacity"`
	BlockSize  int     `json:"block_size"`
	ChunkToks  int     `json:"chunk_tokens"`
	Decode     bool    `json:"decode_events"`
	FillFactor float64 `json:"fill_factor"`
	ChurnReqs  int     `json:"churn_requests"`
}

// pickWorker keeps a conversation on one worker (4 of 5) and else spreads.
func pickWorker(r *traceReq, n, i, pass int) int {
	key := int64(0)
	if len(r.HashIDs) > 1 {
		key = r.HashIDs[1]
	} else if len(r.HashIDs) == 1 {
		key = r.HashIDs[0]
	}
	if mix(uint64(i)+77)%5 == 0 {
		return int(mix(uint64(i)*31+uint64(pass)) % uint64(n))
	}
	return int(mix(uint64(key)*131+uint64(pass)) % uint64(n))
}

func buildWorkload(trace []traceReq, cfg workloadCfg) *workload {
	w := &workload{cfg: cfg, ex: newExpander(cfg.BlockSize), trace: trace}
	bs := cfg.BlockSize
	w.caches = make([]*cacheModel, cfg.Workers)
	w.fill = make([][]message, cfg.Workers)
	w.churn = make([][]message, cfg.Workers)
	for i := range w.caches {
		w.caches[i] = newCache(cfg.Capacity)
	}
	target := int(cfg.FillFactor * float64(cfg.Capacity*cfg.Workers))
	storedTot := 0
	var bt batch
	var tokBuf []uint32
	emit := func(wk int, p *prompt, out [][]message) {
		c := w.caches[wk]
		bt.worker = wk
		first, ev := c.insert(p.seq)
		if len(ev) > 0 {
			eh := make([]uint64, len(ev))
			for i, s := range ev {
				eh[i] = engineHash(s)
			}
			bt.removeEvent(eh)
		}
		chunk := cfg.ChunkToks / bs
		for a := first; a < len(p.seq); a += chunk {
			z := min(a+chunk, len(p.seq))
			eh := make([]uint64, 0, z-a)
			for _, s := range p.seq[a:z] {
				eh = append(eh, engineHash(s))
			}
			tokBuf = tokBuf[:0]
			for t := a * bs; t < z*bs; t++ {
				id := p.ids[t/traceBlock]
				tokBuf = append(tokBuf, uint32(mix(uint64(id)*traceBlock+uint64(t%traceBlock))%vocab))
			}
			par := uint64(0)
			if a > 0 {
				par = engineHash(p.seq[a-1])
			}
			bt.storeEvent(eh, par, a > 0, tokBuf, bs)
			storedTot += z - a
			out[wk] = append(out[wk], bt.finish())
		}
		if bt.events > 0 {
			out[wk] = append(out[wk], bt.finish())
		}
	}
	decode := func(wk int, p *prompt, outLen int, uniq int64, out [][]message) {
		// decode: single-block stored events, eight per message
		n := outLen / bs
		if n == 0 || len(p.seq) == 0 {
			return
		}
		c := w.caches[wk]
		bt.worker = wk
		ids := make([]int64, (n*bs+traceBlock-1)/traceBlock)
		for i := range ids {
			ids[i] = uniq + int64(i)
		}
		seq := append([]uint64(nil), p.seq...)
		for k := 0; k < n; k++ {
			tokBuf = tokBuf[:0]
			for t := k * bs; t < (k+1)*bs; t++ {
				tokBuf = append(tokBuf, uint32(mix(uint64(ids[t/traceBlock])*traceBlock+uint64(t%traceBlock))%vocab))
			}
			l := localHash(tokBuf, make([]byte, 0, bs*4))
			par := seq[len(seq)-1]
			if _, ok := c.at[par]; !ok {
				break
			}
			s := chainNext(par, l)
			seq = append(seq, s)
			for c.lru.Len()+1 > c.cap {
				el := c.lru.Back()
				x := el.Value.(uint64)
				c.lru.Remove(el)
				delete(c.at, x)
				bt.removeEvent([]uint64{engineHash(x)})
			}
			if _, dup := c.at[s]; !dup {
				c.at[s] = c.lru.PushFront(s)
			}
			bt.storeEvent([]uint64{engineHash(s)}, engineHash(par), true, tokBuf, bs)
			storedTot++
			if bt.events >= 8 {
				out[wk] = append(out[wk], bt.finish())
			}
		}
		if bt.events > 0 {
			out[wk] = append(out[wk], bt.finish())
		}
	}
	step := func(i, pass int, out [][]message) {
		r := &trace[i]
		wk := pickWorker(r, cfg.Workers, i, pass)
		ids := r.HashIDs
		if pass > 0 {
			ids = make([]int64, len(r.HashIDs))
			for k, h := range r.HashIDs {
				ids[k] = h
				if h != 0 {
					ids[k] = h + int64(pass)*1_000_000
				}
			}
		}
		n := len(ids) * traceBlock
		if r.InputLength < n {
			n = r.InputLength
		}
		p := w.ex.prompt(ids, n)
		if len(p.seq) == 0 || len(p.seq) > cfg.Capacity/2 {
			return
		}
		emit(wk, p, out)
		if cfg.Decode {
			decode(wk, p, r.OutputLength, 1_000_000_000+int64(pass)*50_000_000+int64(i)*64, out)
		}
	}
	pass, i := 0, 0
	next := func(out [][]message) {
		if i >= len(trace) {
			i = 0
			pass++
		}
		step(i, pass, out)
		i++
	}
	for storedTot < target {
		next(w.fill)
	}
	// sentinel: a prompt of 4 blocks which only worker k has
	w.sentinel = make([]*prompt, cfg.Workers)
	generation := int64(0)
	mark := func(out [][]message) {
		for k := range w.sentinel {
			ids := []int64{9_000_000_000 + generation*1_000_000 + int64(k)}
			p := w.ex.prompt(ids, 4*bs)
			w.sentinel[k] = p
			emit(k, p, out)
		}
		generation++
	}
	mark(w.fill)
	// advance makes the events of so many further stored blocks and new sentinels
	w.advance = func(blocks int, out [][]message) {
		for target = storedTot + blocks; storedTot < target; {
			next(out)
			if len(w.ex.local) > 200_000 { // the memo of a long run
				clear(w.ex.local)
			}
		}
		mark(out)
	}
	uniq := map[uint64]struct{}{}
	for _, c := range w.caches {
		w.resident += c.lru.Len()
		for s := range c.at {
			uniq[s] = struct{}{}
		}
	}
	w.unique = len(uniq)
	for _, ms := range w.fill {
		for _, m := range ms {
			w.msgs++
			w.events += m.events
			w.stored += m.stored
			w.removed += m.removed
			w.bytes += len(m.payload)
		}
	}
	return w
}

// addChurn makes further events (run after the checks of the filled state).
func (w *workload) addChurn(reqs int) {
	// simplest churn which keeps the model exact: per worker, store a private
	// fresh chain of 64 blocks, remove it again.
	bs := w.cfg.BlockSize
	for k := 0; k < w.cfg.Workers; k++ {
		for q := 0; q < reqs; q++ {
			ids := []int64{}
			for x := 0; x*traceBlock < 64*bs; x++ {
				ids = append(ids, 20_000_000_000+int64(k)*10_000_000+int64(q)*64+int64(x))
			}
			p := w.ex.prompt(ids, 64*bs)
			var bt batch
			eh := make([]uint64, len(p.seq))
			for i, s := range p.seq {
				eh[i] = engineHash(s)
			}
			bt.storeEvent(eh, 0, false, w.ex.tokenIDs(p), bs)
			w.churn[k] = append(w.churn[k], bt.finish())
			for a, z := 0, len(eh)-1; a < z; a, z = a+1, z-1 {
				eh[a], eh[z] = eh[z], eh[a]
			}
			bt.removeEvent(eh)
			w.churn[k] = append(w.churn[k], bt.finish())
			for _, id := range ids {
				delete(w.ex.local, id)
			}
		}
	}
}

func (w *workload) describe() string {
	return fmt.Sprintf("workers=%d cap=%d bs=%d resident=%d unique=%d msgs=%d events=%d stored=%d removed=%d MB=%.1f",
		w.cfg.Workers, w.cfg.Capacity, w.cfg.BlockSize, w.resident, w.unique, w.msgs, w.events, w.stored, w.removed, float64(w.bytes)/1e6)
}

// promptsOf picks n distinct trace prompts of at least `tokens`, cut to it.
// tokens 0 = natural length.
func (w *workload) promptsOf(tokens, n int) []*prompt {
	var out []*prompt
	limit := len(w.trace)
	for i := 0; i < limit && len(out) < n; i++ {
		r := &w.trace[(i*37)%limit]
		avail := min(len(r.HashIDs)*traceBlock, r.InputLength)
		want := tokens
		if tokens == 0 {
			want = avail
		}
		if avail < want || want < w.cfg.BlockSize {
			continue
		}
		out = append(out, w.ex.prompt(r.HashIDs, want))
	}
	return out
}
