package kvevents_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// TestMessageErrors shows what makes a whole message useless, and that the
// batch is then empty.
func TestMessageErrors(t *testing.T) {
	good := stored([]uint64{1}, nil)
	tests := map[string]struct {
		payload []byte
		want    error
	}{
		"nothing":             {nil, kvevents.ErrNotABatch},
		"unused code":         {[]byte{0xc1}, kvevents.ErrNotABatch},
		"number":              {pack(t, 1), kvevents.ErrNotABatch},
		"one element":         {pack(t, list{1.5}), kvevents.ErrNotABatch},
		"time is text":        {pack(t, list{"now", list{}, 0}), kvevents.ErrNotABatch},
		"events are a map":    {pack(t, list{1.5, dict{}, 0}), kvevents.ErrNotABatch},
		"map without events":  {pack(t, dict{"ts": 1.5}), kvevents.ErrNotABatch},
		"map with other keys": {[]byte{0x81, 0x01, 0x02}, kvevents.ErrNotABatch},
		"truncated map":       {[]byte{0x81, 0xa2, 't', 's', 0xcb}, kvevents.ErrMalformed},
		"rank is text":        {pack(t, list{1.5, list{good}, "0"}), kvevents.ErrRank},
		"rank below zero":     {pack(t, list{1.5, list{good}, -1}), kvevents.ErrRank},
		"rank beyond u32":     {pack(t, list{1.5, list{good}, 1 << 32}), kvevents.ErrRank},
		"rank cut off":        {pack(t, message(good))[:len(pack(t, message(good)))-1], kvevents.ErrRank},
		"event cut off":       {pack(t, message(good))[:60], kvevents.ErrMalformed},
		"array of 2^31":       {[]byte{0x92, 0x00, 0xdd, 0x80, 0, 0, 0, 0, 0}, kvevents.ErrNotABatch},
		"nested 2000 deep":    {append([]byte{0x92, 0x00}, strings.Repeat("\x91", 2000)...), kvevents.ErrMalformed},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var dec kvevents.Decoder
			b := kvevents.Batch{Events: make([]kvevents.Event, 1), HasRank: true}
			if err := dec.Decode(tc.payload, &b); !errors.Is(err, tc.want) {
				t.Errorf("Decode = %v, want %v", err, tc.want)
			}
			if len(b.Events) != 0 || b.HasRank {
				t.Errorf("batch is not empty: %+v", b)
			}
		})
	}
}

// TestBadEvents shows that a bad event is skipped alone, with its kind and
// reason, and that the event after it is read.
func TestBadEvents(t *testing.T) {
	one := []uint64{1}
	array := func(columns ...any) list { return append(list{"BlockStored"}, columns...) }
	tokens := list{1, 2, 3, 4}
	tests := map[string]struct {
		event any
		kind  kvevents.Kind
		want  kvevents.Reason
	}{
		"nil":                     {nil, kvevents.Unreadable, kvevents.NotAnEvent},
		"text":                    {"BlockStored", kvevents.Unreadable, kvevents.NotAnEvent},
		"empty array":             {list{}, kvevents.Unreadable, kvevents.BadTag},
		"tag is a number":         {list{7}, kvevents.Unreadable, kvevents.BadTag},
		"unknown tag":             {list{"BlockMoved"}, kvevents.Unreadable, kvevents.BadTag},
		"unknown tag in a map":    {dict{"type": "BlockMoved"}, kvevents.Unreadable, kvevents.BadTag},
		"map without tag":         {dict{"block_hashes": one}, kvevents.Unreadable, kvevents.BadTag},
		"map with a number key":   {map[int]int{1: 1}, kvevents.Unreadable, kvevents.BadField},
		"no tokens":               {without(stored(one, nil), "token_ids"), kvevents.Stored, kvevents.MissingField},
		"no hashes":               {without(stored(one, nil), "block_hashes"), kvevents.Stored, kvevents.MissingField},
		"no block size":           {without(stored(one, nil), "block_size"), kvevents.Stored, kvevents.MissingField},
		"removed nothing":         {dict{"type": "BlockRemoved"}, kvevents.Removed, kvevents.MissingField},
		"removed nothing (array)": {list{"BlockRemoved"}, kvevents.Removed, kvevents.MissingField},
		"hash is text":            {stored(nil, dict{"block_hashes": list{"1"}}), kvevents.Stored, kvevents.BadHash},
		"hash of 7 bytes":         {stored(nil, dict{"block_hashes": list{make([]byte, 7)}}), kvevents.Stored, kvevents.BadHash},
		"parent is a list":        {stored(one, dict{"parent_block_hash": list{}}), kvevents.Stored, kvevents.BadHash},
		"token below zero":        {stored(one, dict{"token_ids": list{1, -2}}), kvevents.Stored, kvevents.BadToken},
		"pair of three":           {stored(one, dict{"token_ids": list{list{1, 2, 3}}}), kvevents.Stored, kvevents.BadToken},
		"pair, then token":        {stored(one, dict{"token_ids": list{list{1, 2}, 3}}), kvevents.Stored, kvevents.BadToken},
		"token, then pair":        {stored(one, dict{"token_ids": list{3, list{1, 2}}}), kvevents.Stored, kvevents.BadToken},
		"block size is text":      {stored(one, dict{"block_size": "4"}), kvevents.Stored, kvevents.BadBlockSize},
		"block size below zero":   {stored(one, dict{"block_size": -4}), kvevents.Stored, kvevents.BadBlockSize},
		"medium is a number":      {stored(one, dict{"medium": 7}), kvevents.Stored, kvevents.BadMedium},
		"lora name is a number":   {stored(one, dict{"lora_name": 7}), kvevents.Stored, kvevents.BadField},
		"group is text":           {stored(one, dict{"group_idx": "0"}), kvevents.Stored, kvevents.BadField},
		"locality is a number":    {stored(one, dict{"locality": 7}), kvevents.Stored, kvevents.BadField},
		"ownership is a number":   {stored(one, dict{"ownership": 7}), kvevents.Stored, kvevents.BadField},
		"extra keys are text":     {stored(one, dict{"extra_keys": "x"}), kvevents.Stored, kvevents.BadField},
		"extra keys of a block":   {stored(one, dict{"extra_keys": list{"x"}}), kvevents.Stored, kvevents.BadField},
		"mm infos are a map":      {stored(one, dict{"block_mm_infos": dict{}}), kvevents.Stored, kvevents.BadField},
		"lora column is a list":   {array(one, nil, tokens, 4, nil, "GPU", list{}), kvevents.Stored, kvevents.BadField},
		"salt is a number":        {array(one, nil, tokens, 4, nil, "GPU", dict{"cache_salt": 1}), kvevents.Stored, kvevents.BadField},
		"owner of a clear":        {list{"AllBlocksCleared", 7}, kvevents.Cleared, kvevents.BadField},
		"three columns":           {array(one, nil, tokens), kvevents.Stored, kvevents.MissingField},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := decode(t, message(tc.event, list{"BlockRemoved", []uint64{9}}))
			want := []kvevents.BadEvent{{Kind: tc.kind, Reason: tc.want}}
			if !cmp.Equal(want, b.Bad) {
				t.Errorf("Bad = %v, want %v", b.Bad, want)
			}
			if len(b.Events) != 1 || b.Events[0].Hashes[0] != 9 {
				t.Errorf("the next event is %+v", b.Events)
			}
		})
	}
}

// TestTails shows the rules for columns without a fixed place.
func TestTails(t *testing.T) {
	head := list{"BlockStored", []uint64{1}, nil, list{1, 2, 3, 4}, 4, nil, "GPU", nil, nil}
	type tail struct {
		Group           int32
		Kind            string
		Remote, Foreign bool
		MM              [][]uint64
	}
	none := int32(kvevents.NoGroup)
	infos := list{dict{"mm_objects": list{dict{"offsets": list{}, "mm_hash": 42}}}}
	tests := map[string]struct {
		columns list
		want    tail
	}{
		"none":                   {nil, tail{Group: none}},
		"group":                  {list{3}, tail{Group: 3}},
		"group, kind, window":    {list{3, "mamba", 128}, tail{Group: 3, Kind: "mamba"}},
		"nothing set":            {list{nil, nil, nil, nil, nil}, tail{Group: none}},
		"fixed order":            {list{3, "mamba", 128, "LOCAL", "framework"}, tail{Group: 3, Kind: "mamba"}},
		"remote":                 {list{nil, nil, nil, "REMOTE"}, tail{Group: none, Remote: true}},
		"unknown locality":       {list{nil, nil, nil, "MOON"}, tail{Group: none, Remote: true}},
		"foreign owner":          {list{0, nil, nil, nil, "kvcr"}, tail{Foreign: true}},
		"more columns":           {list{0, nil, nil, nil, nil, 7, dict{"a": list{1}}}, tail{}},
		"kind before group":      {list{"mamba", 3, 5}, tail{Group: 3, Kind: "mamba"}},
		"last text wins":         {list{"mamba", "full_attention"}, tail{Group: none, Kind: "full_attention"}},
		"four, not in order":     {list{"mamba", 3, 5, "full_attention"}, tail{Group: 3, Kind: "full_attention"}},
		"infos":                  {list{3, infos}, tail{Group: 3, MM: [][]uint64{{42}}}},
		"infos among four":       {list{3, "mamba", 5, infos}, tail{Group: 3, Kind: "mamba", MM: [][]uint64{{42}}}},
		"other types are passed": {list{1.5, true, dict{}, 3}, tail{Group: 3}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ev := decode(t, message(append(slices.Clone(head), tc.columns...))).Events[0]
			got := tail{ev.Group, ev.SpecKind, ev.Remote, ev.ForeignOwner, ev.MM}
			if !cmp.Equal(tc.want, got) {
				t.Errorf("(-want +got):\n%s", cmp.Diff(tc.want, got))
			}
		})
	}
}

// TestTailOfRemoved shows the same rules on a removal, and the owner of a clear.
func TestTailOfRemoved(t *testing.T) {
	b := decode(t, message(
		list{"BlockRemoved", []uint64{1}, "cpu", 2},
		list{"BlockRemoved", []uint64{1}, nil, 2, "mamba", nil, "REMOTE", "kvcr"},
		list{"AllBlocksCleared", "kvcr", 1},
		dict{"type": "AllBlocksCleared", "ownership": "framework"},
	))
	got := make([][4]any, 0, len(b.Events))
	for _, ev := range b.Events {
		got = append(got, [4]any{ev.Kind, ev.Group, ev.Remote, ev.ForeignOwner})
	}
	want := [][4]any{
		{kvevents.Removed, int32(2), false, false},
		{kvevents.Removed, int32(2), true, true},
		{kvevents.Cleared, int32(kvevents.NoGroup), false, true},
		{kvevents.Cleared, int32(kvevents.NoGroup), false, false},
	}
	if !cmp.Equal(want, got) {
		t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
	}
}

// TestExtraKeys shows what the keys of blocks become: salt, multimodal hashes,
// or a mark that no prompt can match.
func TestExtraKeys(t *testing.T) {
	key := "0123456789ABCDEf" + strings.Repeat("0", 48)
	own := strings.Repeat("a", 64)
	const hash = 0x0123456789abcdef
	type keys struct {
		Salt     string
		SaltSeen bool
		MM       [][]uint64
		Opaque   []bool
	}
	tests := map[string]struct {
		fields dict
		want   keys
	}{
		"none":                      {dict{"extra_keys": list{nil, nil}}, keys{}},
		"empty lists":               {dict{"extra_keys": list{list{}, list{nil}}}, keys{}},
		"adapter":                   {dict{"lora_name": "ad", "extra_keys": list{list{"ad"}, list{"ad"}}}, keys{}},
		"salt":                      {dict{"extra_keys": list{list{"s"}, nil}}, keys{Salt: "s", SaltSeen: true}},
		"adapter and salt":          {dict{"lora_name": "ad", "extra_keys": list{list{"ad", "s"}, list{"ad"}}}, keys{Salt: "s", SaltSeen: true}},
		"salt equals adapter":       {dict{"lora_name": "ad", "extra_keys": list{list{"ad", "ad"}, list{"ad"}}}, keys{Salt: "ad", SaltSeen: true}},
		"tagged salt":               {dict{"extra_keys": list{list{"dynamo-cache-salt:s"}}}, keys{Salt: "s"}},
		"tag without salt":          {dict{"extra_keys": list{list{"dynamo-cache-salt:"}}}, keys{}},
		"tag after plain text":      {dict{"extra_keys": list{list{"x", "dynamo-cache-salt:s"}}}, keys{Salt: "s"}},
		"salt key":                  {dict{"cache_salt": "s"}, keys{Salt: "s"}},
		"empty salt key":            {dict{"cache_salt": ""}, keys{}},
		"salt key and same text":    {dict{"cache_salt": "s", "extra_keys": list{list{"s"}}}, keys{Salt: "s"}},
		"tagged salt key":           {dict{"cache_salt": "dynamo-cache-salt:s"}, keys{Salt: "s"}},
		"salt key and tag":          {dict{"cache_salt": "s", "extra_keys": list{list{"dynamo-cache-salt:x"}}}, keys{Salt: "s"}},
		"second plain text":         {dict{"extra_keys": list{list{"s", "t"}}}, keys{Salt: "s", SaltSeen: true, Opaque: []bool{true, false}}},
		"text in a later block":     {dict{"extra_keys": list{nil, list{"s"}}}, keys{Opaque: []bool{false, true}}},
		"multimodal":                {dict{"extra_keys": list{list{key}, nil}}, keys{MM: [][]uint64{{hash}, nil}}},
		"multimodal pair":           {dict{"extra_keys": list{nil, list{list{key, -3}, key}}}, keys{MM: [][]uint64{nil, {hash, hash}}}},
		"multimodal and salt":       {dict{"extra_keys": list{list{list{key, 0}, "s"}}}, keys{Salt: "s", SaltSeen: true, MM: [][]uint64{{hash}, nil}}},
		"engine's own identifier":   {dict{"extra_keys": list{nil, list{own}}}, keys{Opaque: []bool{false, true}}},
		"engine's own pair":         {dict{"extra_keys": list{list{list{own, 1}}}}, keys{Opaque: []bool{true, false}}},
		"no hex":                    {dict{"extra_keys": list{nil, list{"g" + key[1:]}}}, keys{Opaque: []bool{false, true}}},
		"prompt embedding":          {dict{"extra_keys": list{list{[]byte{1, 2}}, nil}}, keys{Opaque: []bool{true, false}}},
		"numbers":                   {dict{"extra_keys": list{list{1}, list{true, 1.5}}}, keys{Opaque: []bool{true, true}}},
		"more keys than blocks":     {dict{"extra_keys": list{nil, nil, list{1, key}}}, keys{}},
		"infos":                     {dict{"block_mm_infos": list{nil, dict{"x": 1, "mm_objects": list{dict{"mm_hash": 7}, dict{"mm_hash": 5}}}}}, keys{MM: [][]uint64{nil, {7, 5}}}},
		"infos before extra keys":   {dict{"block_mm_infos": list{dict{"mm_objects": list{dict{"mm_hash": 7}}}}, "extra_keys": list{list{key, list{own, 1}, "s"}}}, keys{Salt: "s", SaltSeen: true, MM: [][]uint64{{7}, nil}}},
		"infos and an embedding":    {dict{"block_mm_infos": list{nil}, "extra_keys": list{list{[]byte{1}}}}, keys{Opaque: []bool{true, false}}},
		"nil infos, then extra key": {dict{"block_mm_infos": nil, "extra_keys": list{list{key}}}, keys{MM: [][]uint64{{hash}, nil}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := decode(t, message(stored([]uint64{1, 2}, tc.fields)))
			if len(b.Bad) > 0 {
				t.Fatalf("bad: %v", b.Bad)
			}
			ev := b.Events[0]
			got := keys{Salt: ev.Salt, SaltSeen: ev.SaltSeen, MM: ev.MM}
			for _, digest := range ev.Opaque {
				got.Opaque = append(got.Opaque, digest != 0)
			}
			if !cmp.Equal(tc.want, got) {
				t.Errorf("(-want +got):\n%s", cmp.Diff(tc.want, got))
			}
		})
	}
}

// TestSaltInLoRAColumn shows SGLang's array form of a salt.
func TestSaltInLoRAColumn(t *testing.T) {
	ev := decode(t, message(list{
		"BlockStored",
		[]uint64{1},
		nil,
		list{1, 2, 3, 4},
		4, nil, "GPU",
		dict{"cache_salt": "s", "new": list{1}},
	})).Events[0]
	if ev.Salt != "s" || ev.LoRA != "" {
		t.Errorf("salt %q, adapter %q", ev.Salt, ev.LoRA)
	}
}

// TestIntegerForms shows that integers are read in every form that msgpack has
// for them, in the middle of a list as well as at the end of the message.
func TestIntegerForms(t *testing.T) {
	forms := "\x05" + "\xcc\xff" + "\xcd\x01\x00" + "\xce\xff\xff\xff\xff" + "\xcf\x00\x00\x00\x00\xff\xff\xff\xff" +
		"\xd0\x07" + "\xd1\x01\x00" + "\xd2\x00\x01\x00\x00" + "\xd3\x00\x00\x00\x00\x00\x00\x00\x09"
	want := []uint32{5, 255, 256, 1<<32 - 1, 1<<32 - 1, 7, 256, 65536, 9}
	payload := "\x92\x00\x91\x95\xabBlockStored\x91\x01\xc0\x99" + forms + "\x04"
	var dec kvevents.Decoder
	var b kvevents.Batch
	if err := dec.Decode([]byte(payload), &b); err != nil {
		t.Fatal(err)
	}
	if got := b.Events[0].Tokens; !slices.Equal(got, want) {
		t.Errorf("tokens %v, want %v", got, want)
	}
}

// TestSkipsEveryType shows that a value of any msgpack type under an unknown key
// is passed over, and that a cut or absurdly nested one is noticed.
func TestSkipsEveryType(t *testing.T) {
	long := strings.Repeat("x", 256)
	good := map[string]string{
		"fixint": "\x07", "negative fixint": "\xe0", "nil": "\xc0", "false": "\xc2", "true": "\xc3",
		"uint8": "\xcc\x01", "uint64": "\xcf12345678", "int8": "\xd0\x01", "int64": "\xd312345678",
		"float": "\xca1234", "double": "\xcb12345678",
		"fixstr": "\xa1x", "str8": "\xd9\x01x", "str16": "\xda\x01\x00" + long, "str32": "\xdb\x00\x00\x01\x00" + long,
		"bin8": "\xc4\x01x", "bin16": "\xc5\x01\x00" + long, "bin32": "\xc6\x00\x00\x01\x00" + long,
		"fixext1": "\xd4tx", "fixext2": "\xd5txx", "fixext4": "\xd6txxxx", "fixext8": "\xd7t" + long[:8], "fixext16": "\xd8t" + long[:16],
		"ext8": "\xc7\x01tx", "ext16": "\xc8\x01\x00t" + long, "ext32": "\xc9\x00\x00\x01\x00t" + long,
		"fixarray": "\x92\x01\x02", "array16": "\xdc\x00\x01\x07", "array32": "\xdd\x00\x00\x00\x01\x07",
		"fixmap": "\x81\x01\x90", "map16": "\xde\x00\x01\x01\x02", "map32": "\xdf\x00\x00\x00\x01\x01\x80",
		"62 levels": strings.Repeat("\x91", 61) + "\x90",
	}
	head := "\x92\x00\x91\x82\xa1?" // one map event with the key "?"
	tail := "\xa4type\xb0AllBlocksCleared"
	var dec kvevents.Decoder
	var b kvevents.Batch
	for name, value := range good {
		if err := dec.Decode([]byte(head+value+tail), &b); err != nil || len(b.Events) != 1 {
			t.Errorf("%s: %v, bad %v", name, err, b.Bad)
		}
		for cut := range len(value) {
			if err := dec.Decode([]byte(head+value[:cut]), &b); err == nil {
				t.Errorf("%s cut to %d bytes: no error", name, cut)
			}
		}
	}
	for name, value := range map[string]string{
		"unused code":      "\xc1",
		"100 levels":       strings.Repeat("\x91", 100) + "\x90",
		"longer than rest": "\xdd\xff\xff\xff\xff",
	} {
		if err := dec.Decode([]byte(head+value+tail), &b); !errors.Is(err, kvevents.ErrMalformed) {
			t.Errorf("%s: %v, want ErrMalformed", name, err)
		}
	}
}

// TestEventsKeepTheirSlices shows that growing slabs do not disturb events read
// before, and that a bad event leaves no trace in the next one.
func TestEventsKeepTheirSlices(t *testing.T) {
	var events []any
	for i := range uint64(200) {
		names := make([]uint64, i+1)
		for k := range names {
			names[k] = 1000*i + uint64(k)
		}
		events = append(events, stored(names, nil), stored(names, dict{"block_size": "bad"}))
	}
	b := decode(t, message(events...))
	if len(b.Events) != 200 || len(b.Bad) != 200 {
		t.Fatalf("%d events, %d bad", len(b.Events), len(b.Bad))
	}
	for i, ev := range b.Events {
		if len(ev.Hashes) != i+1 || len(ev.Tokens) != 4*(i+1) ||
			ev.Hashes[i] != uint64(1001*i) || ev.Tokens[4*i+3] != uint32(1001*i+4) {
			t.Fatalf("event %d: names %v", i, ev.Hashes)
		}
	}
}

// TestParseMedium shows media without case and the unknown ones.
func TestParseMedium(t *testing.T) {
	tests := []struct {
		in, name string
		tier     indexer.Tier
		ok       bool
	}{
		{"", "", indexer.Device, true},
		{"gpu", "GPU", indexer.Device, true},
		{"Cpu_Tier1", "CPU_TIER1", indexer.Host, true},
		{"cpu_tier2", "CPU_TIER2", indexer.Disk, true},
		{"nvme", "NVME", indexer.Disk, true},
		{"network", "NETWORK", indexer.External, true},
		{"tape", "TAPE", 0, false},
		{"a name longer than any", "A NAME LONGER THAN ANY", 0, false},
	}
	for _, tc := range tests {
		name, tier, ok := kvevents.ParseMedium([]byte(tc.in))
		if name != tc.name || tier != tc.tier || ok != tc.ok {
			t.Errorf("ParseMedium(%q) = %q, %v, %t", tc.in, name, tier, ok)
		}
	}
}

// TestDecodeAllocations shows that decoding plain events allocates nothing once
// the slabs have grown, adapters and kinds included.
func TestDecodeAllocations(t *testing.T) {
	names := []uint64{1, 2, 3}
	payload := pack(t, message(
		stored(names, dict{"lora_name": "ad", "cache_salt": "s", "kv_cache_spec_kind": "full_attention", "medium": "Storage"}),
		list{"BlockStored", names, 7, list{1, 2, 3, 4}, 4, nil, "GPU", "ad", list{list{"ad", "s", []byte{1}}}, 0},
		dict{"type": "BlockRemoved", "block_hashes": names},
		list{"AllBlocksCleared"},
	))
	var dec kvevents.Decoder
	var b kvevents.Batch
	if n := testing.AllocsPerRun(100, func() {
		if err := dec.Decode(payload, &b); err != nil || len(b.Events) != 4 {
			t.Fatal(err, b.Bad)
		}
	}); n != 0 {
		t.Errorf("%v allocations a message, want 0", n)
	}
}

// TestLabels pins the texts that end up in counters: none missing, none twice.
func TestLabels(t *testing.T) {
	seen := map[string]bool{}
	for r := range kvevents.NumReasons {
		label := kvevents.Reason(r).String()
		if label == "" || label == "unknown" || seen[label] {
			t.Errorf("reason %d has label %q", r, label)
		}
		seen[label] = true
	}
	for o := range kvevents.NumBlockOutcomes {
		if kvevents.BlockOutcome(o).String() == "" {
			t.Errorf("block outcome %d has no label", o)
		}
	}
}
