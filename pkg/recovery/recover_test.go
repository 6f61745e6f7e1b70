package recovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// peers are the dumps of a few peers by host, and what was asked for.
type peers struct {
	dumps map[string]peer
	asked []string
	open  int
	log   []string
}

type peer struct {
	dump       string
	recovering bool
	breaks     bool // off, instead of ending
}

var errRefused = errors.New("connection refused")

func (p *peers) GetDump(_ context.Context, url string) (io.ReadCloser, bool, error) {
	p.asked = append(p.asked, url)
	host, ok := strings.CutSuffix(strings.TrimPrefix(url, "http://"), "/dump")
	answer, up := p.dumps[host]
	if !ok || !up {
		return nil, false, errRefused
	}
	p.open++
	var in io.Reader = strings.NewReader(answer.dump)
	if answer.breaks {
		in = io.MultiReader(in, iotest.ErrReader(io.ErrUnexpectedEOF))
	}
	return body{in, p}, answer.recovering, nil
}

type body struct {
	io.Reader
	of *peers
}

func (b body) Close() error {
	b.of.open--
	return nil
}

func (p *peers) Asking(peer string) { p.log = append(p.log, "ask "+peer) }

func (p *peers) Read(peer string, r *Report) {
	p.log = append(p.log, fmt.Sprintf("read %s %d", peer, r.Events))
}

func (p *peers) Answered(peer string, a Answer, err error) {
	p.log = append(p.log, fmt.Sprintf("answer %s %v %v", peer, a.Sufficient(), err != nil))
}

// TestRecover: peers are asked in order until one gave all; what each gave
// stays.
func TestRecover(t *testing.T) {
	good := stored(1, 0, "device", 0, [2]uint64{11, 1})
	other := stored(2, 0, "device", 0, [2]uint64{11, 1})
	whole := peer{dump: dumpOf(good)}
	tests := map[string]struct {
		first, second peer
		asked         int
		blocks        uint64
		answered      int
		complete      bool
	}{
		"whole":                   {whole, whole, 1, 1, 1, true},
		"empty, but whole":        {peer{dump: "{}"}, whole, 1, 0, 1, true},
		"recovering":              {peer{dump: dumpOf(good), recovering: true}, peer{dump: dumpOf(other)}, 2, 2, 2, true},
		"both recovering":         {peer{dump: "{}", recovering: true}, peer{dump: "{}", recovering: true}, 2, 0, 2, false},
		"with something to skip":  {peer{dump: dumpOf(good, "5")}, peer{dump: dumpOf(other)}, 2, 2, 2, true},
		"with orphans":            {peer{dump: dumpOf(good, stored(1, 0, "device", 99, [2]uint64{100, 1}))}, whole, 2, 1, 2, true},
		"of no use here":          {peer{dump: dumpOf(good, stored(noSlot, 0, "device", 0, [2]uint64{11, 1}))}, whole, 1, 1, 1, true},
		"breaks off":              {peer{dump: strings.TrimSuffix(dumpOf(good), "]}}"), breaks: true}, whole, 2, 1, 2, true},
		"breaks off at its start": {peer{breaks: true}, whole, 2, 1, 1, true},
		"no dump at all":          {peer{dump: "<html>"}, peer{dump: "[]"}, 2, 0, 0, false},
		"incomplete at last":      {peer{dump: "<html>"}, peer{dump: dumpOf(good, "5")}, 2, 1, 1, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := &peers{dumps: map[string]peer{"a": tc.first, "b": tc.second}}
			sum := Recover(context.Background(), []string{"http://gone", "http://a/", "http://b"}, p, newWorld(), Options{}, p)
			want := []string{"http://gone/dump", "http://a/dump", "http://b/dump"}[:tc.asked+1]
			if !slices.Equal(p.asked, want) {
				t.Errorf("asked %v, want %v", p.asked, want)
			}
			if sum.Blocks != tc.blocks || sum.Answered != tc.answered || sum.Complete != tc.complete {
				t.Errorf("%+v", sum)
			}
			if p.open != 0 {
				t.Errorf("%d bodies are open", p.open)
			}
		})
	}
}

// TestRecoverTells: an observer hears of every peer.
func TestRecoverTells(t *testing.T) {
	p := &peers{dumps: map[string]peer{"a": {dump: dumpOf("5")}, "b": {dump: dumpOf()}}}
	Recover(context.Background(), []string{"gone", "http://a", "http://b", "http://c"}, p, newWorld(), Options{}, p)
	want := []string{
		"ask gone", "answer gone false true", "ask http://a", "read http://a 1", "answer http://a false false",
		"ask http://b", "read http://b 0", "answer http://b true false",
	}
	if !slices.Equal(p.log, want) {
		t.Errorf("heard %q", p.log)
	}
}

// TestRecoverStops proves that no peer is asked after the end of ctx.
func TestRecoverStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := &peers{}
	if sum := Recover(ctx, []string{"http://a"}, p, newWorld(), Options{}, p); sum.Complete || len(p.asked) > 0 {
		t.Errorf("%+v, asked %v", sum, p.asked)
	}
}
