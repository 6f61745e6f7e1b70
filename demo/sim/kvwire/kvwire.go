// Package kvwire encodes cache events as vLLM 0.33 publishes them: one msgpack batch
// [timestamp, events, data parallel rank], each event a map.
package kvwire

import (
	"bytes"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/internal/simulation/engine"
)

// Values of an engine with one KV cache group on one accelerator.
const (
	medium   = "GPU"
	group    = 0
	specKind = "full_attention"
)

// Batch encodes the events of one scheduler step. timestamp is in seconds since
// 1970, rank the data parallel rank.
func Batch(timestamp float64, events []engine.Event, blockSize int, rank uint32) ([]byte, error) {
	var buf bytes.Buffer
	w := writer{enc: msgpack.NewEncoder(&buf)}
	w.array(3)
	w.do(w.enc.EncodeFloat64(timestamp))
	w.array(len(events))
	for i := range events {
		w.event(&events[i], blockSize)
	}
	w.uint(uint64(rank))
	if w.err != nil {
		return nil, fmt.Errorf("encode batch: %w", w.err)
	}
	return buf.Bytes(), nil
}

// writer keeps the first error, so that the code below reads like the layout.
type writer struct {
	enc *msgpack.Encoder
	err error
}

// event leaves out keys at their defaults, as the publisher of vLLM does.
func (w *writer) event(ev *engine.Event, blockSize int) {
	switch ev.Kind {
	case engine.BlockStored:
		w.stored(ev, blockSize)
	case engine.BlockRemoved:
		w.fields(4)
		w.text("type", "BlockRemoved")
		w.hashes(ev.Hashes)
		w.text("medium", medium)
		w.key("group_idx")
		w.uint(group)
	case engine.AllBlocksCleared:
		w.fields(1)
		w.text("type", "AllBlocksCleared")
	}
}

func (w *writer) stored(ev *engine.Event, blockSize int) {
	keyed := ev.Keys.LoRA != "" || ev.Keys.Salt != "" && !ev.HasParent
	if keyed {
		w.fields(11)
	} else {
		w.fields(10)
	}
	w.text("type", "BlockStored")
	w.hashes(ev.Hashes)
	w.key("parent_block_hash")
	if ev.HasParent {
		w.uint(ev.Parent)
	} else {
		w.null()
	}
	w.key("token_ids")
	w.array(len(ev.Tokens))
	for _, t := range ev.Tokens {
		w.uint(uint64(t))
	}
	w.key("block_size")
	w.uint(uint64(blockSize))
	w.key("lora_id")
	w.null()
	w.text("medium", medium)
	if ev.Keys.LoRA == "" {
		w.key("lora_name")
		w.null()
	} else {
		w.text("lora_name", ev.Keys.LoRA)
	}
	if keyed {
		w.extraKeys(ev)
	}
	w.key("group_idx")
	w.uint(group)
	w.text("kv_cache_spec_kind", specKind)
}

// extraKeys writes a list for each block, or nil: the adapter in all blocks, the salt in the
// first block of a prompt.
func (w *writer) extraKeys(ev *engine.Event) {
	w.key("extra_keys")
	w.array(len(ev.Hashes))
	for i := range ev.Hashes {
		var keys []string
		if ev.Keys.LoRA != "" {
			keys = append(keys, ev.Keys.LoRA)
		}
		if ev.Keys.Salt != "" && i == 0 && !ev.HasParent {
			keys = append(keys, ev.Keys.Salt)
		}
		if len(keys) == 0 {
			w.null()
			continue
		}
		w.array(len(keys))
		for _, key := range keys {
			w.do(w.enc.EncodeString(key))
		}
	}
}

func (w *writer) hashes(hashes []uint64) {
	w.key("block_hashes")
	w.array(len(hashes))
	for _, h := range hashes {
		w.uint(h)
	}
}

func (w *writer) text(key, value string) {
	w.key(key)
	w.do(w.enc.EncodeString(value))
}

func (w *writer) key(name string) { w.do(w.enc.EncodeString(name)) }
func (w *writer) fields(n int)    { w.do(w.enc.EncodeMapLen(n)) }
func (w *writer) array(n int)     { w.do(w.enc.EncodeArrayLen(n)) }
func (w *writer) uint(v uint64)   { w.do(w.enc.EncodeUint(v)) }
func (w *writer) null()           { w.do(w.enc.EncodeNil()) }

func (w *writer) do(err error) {
	if w.err == nil {
		w.err = err
	}
}
