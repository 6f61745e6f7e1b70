package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/length"
)

var packedType = http.Header{"Content-Type": {"application/msgpack"}}

// TestNegotiation: the format of a body is its type's, that of the answer what Accept
// prefers, else the body's; a refusal has it too.
func TestNegotiation(t *testing.T) {
	const text, packed, plain = `{"model_name":"m"}`, "\x81\xaamodel_name\xa1m", ""
	for _, tc := range []struct {
		body, contentType, accept string
		status                    int
		answer                    string
	}{
		{text, "application/json", plain, 200, "application/json"},
		{packed, "application/msgpack", plain, 200, "application/msgpack"},
		{packed, "application/x-msgpack", "*/*", 200, "application/msgpack"},
		{packed, "Application/vnd.MsgPack; v=1", "text/html", 200, "application/msgpack"},
		{packed, "application/msgpack", "application/json", 200, "application/json"},
		{packed, "application/msgpack", "application/msgpack;q=0.1, application/json;q=0.2", 200, "application/json"},
		{packed, "application/msgpack", "application/json;q=0", 200, "application/msgpack"},
		{text, "application/json", "application/json, application/msgpack", 200, "application/json"},
		{text, "application/json", "text/html, application/x-msgpack;q=0.5", 200, "application/msgpack"},
		{text, "application/msgpack", plain, 422, "application/msgpack"}, // { is 123 there
		{"\xc1", "application/msgpack", plain, 400, "application/msgpack"},
		{packed, "application/json", plain, 400, "application/json"},
		{"\x81\xaamodel_name\x01", "application/msgpack", plain, 422, "application/msgpack"},
		{packed, "application/cbor", plain, 415, "application/json"},
		{packed, "", "application/msgpack", 415, "application/msgpack"},
	} {
		header := http.Header{}
		if tc.contentType != "" {
			header.Set("Content-Type", tc.contentType)
		}
		if tc.accept != "" {
			header.Set("Accept", tc.accept)
		}
		w := call(t, newHandler(&fake{}), http.MethodPost, "/select", tc.body, header)
		if w.Code != tc.status || w.Header().Get("Content-Type") != tc.answer {
			t.Errorf("%+v: status %d, type %s", tc, w.Code, w.Header().Get("Content-Type"))
		}
		if isJSON := json.Valid(w.Body.Bytes()); isJSON != (tc.answer == "application/json") {
			t.Errorf("%+v: answer %q", tc, w.Body)
		}
	}
}

// TestDumpInMsgpack: a dump has the format that is asked for.
func TestDumpInMsgpack(t *testing.T) {
	for accept, want := range map[string]string{"": "application/json", "*/*": "application/json", "application/msgpack": "application/msgpack"} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			w := call(t, newHandler(&fake{dump: "{}"}), method, "/dump", "", http.Header{"Accept": {accept}})
			if w.Header().Get("Content-Type") != want || method == http.MethodGet && (w.Body.String() == "\x80") != (want == "application/msgpack") {
				t.Errorf("%s %q: %v %q", method, accept, w.Header(), w.Body)
			}
		}
	}
}

// place is where a fault is, and in what: the formats differ in both.
var place = regexp.MustCompile(` at (line \d+ column|byte) \d+|^Failed to [a-z ]*(JSON|msgpack)[a-z ]*: `)

// TestFormats is differential: random requests get in msgpack the answer that they get in
// JSON, transcoded, and the same status and error.
func TestFormats(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	chosen := selection.Selection{
		SelectionID: ptr("s"), ReservationID: ptr("r/ü"), Scope: defaultScope, Rank: catalog.Rank{Worker: maxU64}, Endpoint: "http://w:8000",
		Overlap:        selection.OverlapSummary{LongestMatched: 70000, GPU: 64, DP: []selection.RankTokens{{DP: 0, Tokens: 64}, {DP: 1, Tokens: 32}}},
		SequenceHashes: []uint64{1, maxU64, 1 << 63}, EffectivePrefillTokens: maxU64, Lease: 12_345_678_900,
	}
	var rows []selection.OverlapRow
	for i := range 40 {
		rows = append(rows, selection.OverlapRow{Rank: catalog.Rank{Worker: uint64(i)}, Device: uint32(i), RouterCredit: float64(i) / 3})
	}
	f := &fake{}
	h := New(f, f.conductor(), Options{Log: zerolog.Nop(), Memory: NewMemory(memory.New(1<<30), nil, NewScanned(64<<20, nil))})
	for i := range length.Of(2000, 2000, 300) {
		*f = fake{selection: chosen, scores: selection.OverlapScores{BlockSize: 16, NumBlocks: 9, Rows: rows}}
		if rnd.IntN(8) == 0 {
			f.err = contract.Errorf(contract.Conflict, "%s", "taken by \"ü\"\n")
		}
		path := []string{
			"/select", "/select_and_reserve", "/v1.6/select_and_reserve", "/reservations", "/v1.6/reservations", "/overlap_scores",
			"/potential_loads", "/reservations/r/output_block", "/slots/add", "/slots/potential_loads", "/conductor/query",
		}[rnd.IntN(11)]
		text := randomBody(rnd)
		want := call(t, h, http.MethodPost, path, text, nil)
		asked := f.lastRequests(t)
		got := call(t, h, http.MethodPost, path, string(bodyscan.AppendMsgpack(nil, []byte(text))), packedType)
		name := fmt.Sprintf("%d: %s %s", i, path, text)
		if again := f.lastRequests(t); again != asked {
			t.Fatalf("%s: the service is asked for %s, in JSON for %s", name, again, asked)
		}
		if got.Code != want.Code || got.Header().Get("Content-Type") != "application/msgpack" {
			t.Fatalf("%s: status %d, want %d; %v", name, got.Code, want.Code, got.Header())
		}
		if want.Code/100 != 2 {
			if strip(want.Body.String(), "error") != strip(string(fromMsgpack(t, got.Body.Bytes())), "error") {
				t.Fatalf("%s: %s, in JSON %s", name, fromMsgpack(t, got.Body.Bytes()), want.Body)
			}
			continue
		}
		if got.Body.String() != string(bodyscan.AppendMsgpack(nil, want.Body.Bytes())) {
			t.Fatalf("%s: %q, in JSON %s", name, got.Body, want.Body)
		}
		var a, b any
		if json.Unmarshal(want.Body.Bytes(), &a) != nil || json.Unmarshal(fromMsgpack(t, got.Body.Bytes()), &b) != nil || !cmp.Equal(a, b) {
			t.Fatalf("%s: another reader finds %v, in JSON %v", name, b, a)
		}
	}
}

// lastRequests is what the service was asked for last, by each kind of call. A list that
// is empty is like none: which it is depends on what a buffer was used for before, and
// where it counts a field of its own says that there is one.
func (f *fake) lastRequests(t *testing.T) string {
	t.Helper()
	text, err := json.Marshal([]any{f.selected, f.projected, f.booked, f.slotsBooking, f.slotsProject})
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), ":[]", ":null")
}

func strip(answer, member string) string {
	var members map[string]any
	if json.Unmarshal([]byte(answer), &members) != nil {
		return answer
	}
	return place.ReplaceAllString(fmt.Sprint(members[member], len(members)), "")
}

// fromMsgpack reads an answer with another reader and writes it as JSON.
func fromMsgpack(t *testing.T, answer []byte) []byte {
	t.Helper()
	d := msgpack.NewDecoder(strings.NewReader(string(answer)))
	v, err := d.DecodeInterface()
	if err != nil {
		t.Fatalf("%q: %v", answer, err)
	}
	if _, err := d.DecodeInterface(); !errors.Is(err, io.EOF) {
		t.Fatalf("%q: more than one value", answer)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// randomBody is the text of a request in which members may be missing, null or of the
// wrong type.
func randomBody(rnd *rand.Rand) string {
	numbers := func() string {
		var list []string
		for range rnd.IntN(40) {
			list = append(list, []string{
				fmt.Sprint(rnd.Uint32()), fmt.Sprint(rnd.IntN(100)), fmt.Sprint(rnd.Uint32N(1 << 20)), fmt.Sprint(rnd.IntN(1000)),
			}[rnd.IntN(4)])
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	members := []string{
		`"model_name":"m"`, `"tenant_id":"t"`, `"token_ids":` + numbers(), `"block_hashes":` + numbers(), `"sequence_hashes":` + numbers(),
		`"isl_tokens":` + fmt.Sprint(rnd.IntN(1<<30)), `"lora_name":"é\n"`, `"cache_salt":null`, `"is_eagle":true`,
		`"router_config_override":{"router_temperature":0.25,"overlap_score_credit":` + fmt.Sprint(rnd.IntN(3)) + `}`,
		`"pinned_worker":{"worker_id":18446744073709551615,"dp_rank":0}`, `"allowed_worker_ids":` + numbers(),
		`"routing_constraints":{"required_taints":["a"],"preferred_taints":{"b":0.5,"c":-1}}`, `"reservation_id":"r"`, `"worker_id":1`,
		`"lease_seconds":12.5`, `"if_exists":"return"`, `"priority_jump":-5`, `"block_mm_infos":[null,{"mm_objects":[{"mm_hash":1,"offsets":[[0,1]]}]}]`,
		`"unknown":{"a":[1.5,"x",null,true,{}]}`, `"request_id":"r"`, `"dp_rank":0`, `"new_isl_tokens":7`, `"model":"m"`, `"block_size":4`, `"tokens":` + numbers(),
		`"decay_fraction":0.5`,
	}
	rnd.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	members = members[:rnd.IntN(len(members)+1)]
	if rnd.IntN(4) == 0 && len(members) > 0 {
		name, _, _ := strings.Cut(members[0], ":")
		members[0] = name + ":" + []string{`"x"`, `7`, `-7`, `1.5`, `[]`, `{}`, `[[]]`, `null`, `true`, `[-1]`, `["a"]`}[rnd.IntN(11)]
	}
	return "{" + strings.Join(members, ",") + "}"
}

// TestMsgpackWords: lists as words make the same request as arrays.
func TestMsgpackWords(t *testing.T) {
	f := &fake{}
	body := "\x84\xa9token_ids\xc4\x08\x01\x00\x00\x00\xff\xff\xff\xff\xacblock_hashes\xc4\x08\xff\xff\xff\xff\xff\xff\xff\xff" +
		"\xafsequence_hashes\xc4\x08\x02\x00\x00\x00\x00\x00\x00\x80\xb2allowed_worker_ids\xc4\x08\x03\x00\x00\x00\x00\x00\x00\x00"
	if w := call(t, newHandler(f), http.MethodPost, "/select", body, packedType); w.Code != http.StatusOK {
		t.Fatalf("%d %q", w.Code, w.Body)
	}
	p := f.selected.Prompt
	equal(t, "request", []any{p.TokenIDs, p.BlockHashes, p.SequenceHashes, f.selected.AllowedWorkers},
		[]any{[]uint32{1, 1<<32 - 1}, []uint64{maxU64}, []uint64{1<<63 | 2}, []uint64{3}})
}
