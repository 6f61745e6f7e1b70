package httpapi

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/codec/msgpack"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// hashBody is a selection by n block hashes and n sequence hashes.
func hashBody(n int) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	b := []byte(`{"model_name":"model","block_hashes":`)
	for range 2 {
		b = append(b, '[')
		for i := range n {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(rnd.Uint64()), 10)
		}
		b = append(b, "],\"sequence_hashes\":"...)
	}
	b = bytes.TrimSuffix(b, []byte(`"sequence_hashes":`))
	return append(append(b, `"isl_tokens":`...), strconv.Itoa(n*16)+"}"...)
}

// tokenBody is a selection by n tokens.
func tokenBody(n int) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	b := []byte(`{"model_name":"model","token_ids":[`)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(rnd.IntN(128000)), 10)
	}
	return append(b, "]}"...)
}

var benchBodies = []struct {
	name string
	text []byte
}{
	{"hashes=64x2", hashBody(64)}, {"hashes=512x2", hashBody(512)}, {"hashes=4096x2", hashBody(4096)}, {"tokens=8192", tokenBody(8192)}, {"tokens=52000", tokenBody(52000)},
}

// inMsgpack is a body in msgpack with its lists as arrays; words: as byte strings.
func inMsgpack(text []byte, words bool) []byte {
	if !words {
		return bodyscan.AppendMsgpack(nil, text)
	}
	var req selectBody
	var s bodyscan.Scanner
	if err := newSelectShape(dialect13).Decode(&s, bodyscan.JSON, text, &req); err != nil {
		panic(err)
	}
	p := &req.req.Prompt
	b, n := msgpack.AppendText(msgpack.AppendText(nil, "model_name"), req.req.Scope.Model), 1
	if p.HasISLTokens {
		b, n = msgpack.AppendUint(msgpack.AppendText(b, "isl_tokens"), p.ISLTokens), n+1
	}
	if p.HasTokenIDs {
		b, n = msgpack.AppendBytesLen(msgpack.AppendText(b, "token_ids"), 4*len(p.TokenIDs)), n+1
		for _, v := range p.TokenIDs {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	} else {
		for name, list := range map[string][]uint64{"block_hashes": p.BlockHashes, "sequence_hashes": p.SequenceHashes} {
			b, n = msgpack.AppendBytesLen(msgpack.AppendText(b, name), 8*len(list)), n+1
			for _, v := range list {
				b = binary.LittleEndian.AppendUint64(b, v)
			}
		}
	}
	return msgpack.InsertMapLen(b, 0, n)
}

// formats are the bodies of a benchmark in each format.
func formats(text []byte) []struct {
	name, contentType string
	format            bodyscan.Format
	text              []byte
} {
	return []struct {
		name, contentType string
		format            bodyscan.Format
		text              []byte
	}{
		{"json", "application/json", bodyscan.JSON, text},
		{"arrays", "application/msgpack", bodyscan.Msgpack, inMsgpack(text, false)},
		{"words", "application/msgpack", bodyscan.Msgpack, inMsgpack(text, true)},
	}
}

// BenchmarkScanSelect reads selection bodies; floors of a reader made for one
// body only: 2.1, 16, 132 and 62 µs.
func BenchmarkScanSelect(b *testing.B) {
	for _, bc := range benchBodies {
		for _, f := range formats(bc.text) {
			b.Run(bc.name+"/"+f.name, func(b *testing.B) {
				shape := newSelectShape(dialect13)
				body := newSelectBody(shape)
				var s bodyscan.Scanner
				var req selectBody
				b.SetBytes(int64(len(f.text)))
				b.ReportAllocs()
				for b.Loop() {
					body.reset(&req)
					if err := shape.Decode(&s, f.format, f.text, &req); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// discard is a ResponseWriter that forgets.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

// fixed answers every selection the same.
type fixed struct {
	Service
	selection selection.Selection
}

func (f fixed) Select(context.Context, *selection.SelectRequest, bool) (selection.Selection, error) {
	return f.selection, nil
}

// BenchmarkSelectHandler is /select without the network and the selection.
func BenchmarkSelectHandler(b *testing.B) {
	h := New(fixed{selection: selection.Selection{
		Scope: catalog.Scope{Model: "model", Tenant: "default"}, Rank: catalog.Rank{Worker: 1}, Endpoint: "http://worker:8000", BlockSize: 16,
		Overlap: selection.OverlapSummary{LongestMatched: 64, GPU: 64, CPU: 64, Disk: 64, DP: []selection.RankTokens{{DP: 0, Tokens: 64}, {DP: 1, Tokens: 0}}},
	}}, nil, Options{Log: zerolog.Nop(), Memory: NewMemory(memory.New(1<<30), nil, NewScanned(64<<20, nil))})
	for _, bc := range benchBodies {
		for _, f := range formats(bc.text) {
			b.Run(bc.name+"/"+f.name, func(b *testing.B) {
				benchmarkHandler(b, h, "/select", f.contentType, f.text)
			})
		}
	}
}

// benchmarkHandler posts a body to a handler again and again.
func benchmarkHandler(b *testing.B, h http.Handler, path, contentType string, body []byte) {
	text := bytes.NewReader(body)
	r := httptest.NewRequest("POST", path, text)
	r.Header.Set("Content-Type", contentType)
	r.ContentLength = int64(len(body))
	r.Body = io.NopCloser(text)
	w := &discard{header: http.Header{}}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		text.Reset(body)
		h.ServeHTTP(w, r)
		if w.status != 200 {
			b.Fatal(w.status)
		}
	}
}

// BenchmarkSelectOverTCP is the same over one kept connection, client included.
func BenchmarkSelectOverTCP(b *testing.B) {
	base := start(b, echo{})
	for _, bc := range benchBodies[:2] {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if resp, text := send(b, "POST", base+"/select", bytes.NewReader(bc.text)); resp.StatusCode != 200 {
					b.Fatal(fmt.Errorf("%d %s", resp.StatusCode, text))
				}
			}
		})
	}
}

// ignorer is a Requests that costs nothing itself.
type ignorer struct{}

func (ignorer) Begin()                                                  {}
func (ignorer) Refused(string)                                          {}
func (ignorer) End(string, string, int, time.Duration, metrics.Example) {}

// BenchmarkSelectObserved is /select without the network and the selection, by
// who looks on.
func BenchmarkSelectObserved(b *testing.B) {
	info, debug := zerolog.New(io.Discard).Level(zerolog.InfoLevel), zerolog.New(io.Discard).Level(zerolog.DebugLevel)
	shed := &fake{err: &contract.Error{Kind: contract.Overloaded, Text: "busy", Message: "busy, please"}}
	for _, bc := range []struct {
		name   string
		svc    Service
		o      Options
		status int
	}{
		{"nobody", echo{}, Options{Log: info}, 200},
		{"tokens", echo{}, Options{Log: info, Access: guardOf(b)}, 200},
		{"counted", echo{}, Options{Log: info, Requests: ignorer{}}, 200},
		{"logged", echo{}, Options{Log: debug}, 200},
		{"both", echo{}, Options{Log: debug, Requests: ignorer{}}, 200},
		{"shed", shed, Options{Log: info, Requests: ignorer{}, RetryAfter: time.Second}, 503},
	} {
		b.Run(bc.name, func(b *testing.B) {
			h := New(bc.svc, nil, bc.o)
			body := benchBodies[0].text
			text := bytes.NewReader(body)
			r := httptest.NewRequest("POST", "/select", io.NopCloser(text))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Authorization", "Bearer call")
			r.Header.Set(requestIDHeader, "3f9c2d7a-9d0a-4a53-a3a5-0e3d9f5d8e11")
			r.ContentLength = int64(len(body))
			w := &discard{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				text.Reset(body)
				h.ServeHTTP(w, r)
				if w.status != bc.status {
					b.Fatal(w.status)
				}
			}
		})
	}
}
