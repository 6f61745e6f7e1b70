package recovery_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/recovery"
	"github.com/select-service/select-service/test/helpers/length"
)

// dumped is a dump in either format; events say the same in both once a packed one has
// been turned into the other.
type dumped map[string]*struct {
	BlockSize uint32           `json:"block_size" msgpack:"block_size"`
	Events    []map[string]any `json:"events" msgpack:"events"`
}

// fromMsgpack joins the parts of a dump in msgpack.
func fromMsgpack(t *testing.T, dump []byte) dumped {
	t.Helper()
	all := dumped{}
	for d := msgpack.NewDecoder(bytes.NewReader(dump)); ; {
		var part dumped
		if err := d.Decode(&part); errors.Is(err, io.EOF) {
			return all
		} else if err != nil || len(part) != 1 {
			t.Fatalf("a part with %d scopes, %v", len(part), err)
		}
		for key, p := range part {
			for _, e := range p.Events {
				stored := e["event"].(map[string]any)["data"].(map[string]any)["stored"].(map[string]any)
				names, local := stored["block_hashes"].([]byte), stored["tokens_hashes"].([]byte)
				delete(stored, "block_hashes")
				delete(stored, "tokens_hashes")
				blocks := []any{}
				for i := 0; i < len(names); i += 8 {
					blocks = append(blocks, map[string]any{
						"block_hash": binary.LittleEndian.Uint64(names[i:]), "tokens_hash": binary.LittleEndian.Uint64(local[i:]), "mm_extra_info": nil,
					})
				}
				stored["blocks"] = blocks
			}
			if all[key] == nil {
				all[key] = p
			} else {
				all[key].Events = append(all[key].Events, p.Events...)
			}
		}
	}
}

// TestWriteMsgpack: a dump in msgpack says what the one in JSON does, in parts that are
// written as they are complete, in a fraction of the bytes.
func TestWriteMsgpack(t *testing.T) {
	length.Sequential(t)
	salted := run(1)
	salted.Parent, salted.HasParent, salted.Seed = 17, true, 99
	salted.Slots = [indexer.NumTiers][]uint32{indexer.Host: {1, 2}, indexer.External: {0}}
	for name, sources := range map[string][]recovery.Source{
		"nothing":        {},
		"an empty scope": {source("a")},
		"scopes":         {source("a", salted, run(3)), source("b:c", run(1)), source("d")},
		"long":           {source("a", run(20_000), run(2)), source("b", run(5000))},
	} {
		for _, domain := range []bool{false, true} {
			var text, packed bytes.Buffer
			for _, w := range []*recovery.Writer{recovery.NewWriter(&text), recovery.NewMsgpackWriter(&packed)} {
				w.ResidencyDomain = domain
				for _, s := range sources {
					if err := w.Scope(t.Context(), s); err != nil {
						t.Fatal(err)
					}
				}
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
			}
			got, err := json.Marshal(fromMsgpack(t, packed.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			var a, b any
			for _, x := range []struct {
				text []byte
				v    *any
			}{{text.Bytes(), &a}, {got, &b}} {
				d := json.NewDecoder(bytes.NewReader(x.text))
				d.UseNumber()
				if err := d.Decode(x.v); err != nil {
					t.Fatal(err)
				}
			}
			if !reflect.DeepEqual(a, b) { // cmp.Diff takes seconds for the long one
				t.Errorf("%s (-JSON +msgpack):\n%.2000s", name, cmp.Diff(a, b))
			}
			if name == "long" && packed.Len()*3 > text.Len() {
				t.Errorf("%d bytes, in JSON %d", packed.Len(), text.Len())
			}
		}
	}
	broken := recovery.NewMsgpackWriter(brokenPipe{})
	if err := broken.Scope(t.Context(), source("a", run(1))); !errors.Is(err, io.ErrClosedPipe) || !errors.Is(broken.Close(), io.ErrClosedPipe) {
		t.Errorf("a writer that fails: %v", err)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
